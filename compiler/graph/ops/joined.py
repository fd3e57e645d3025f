"""Two operators as one: a convolution and what alone reads its result; a table, and what reads the
values looked up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...te.tensor import Tensor
from .base import Expression, Fusion, Op, Shape, Type
from .convolution import QConv2d
from .integer import QAdd, QMul, QTable
from .places import QAddChannels
from .pooling import QAvgPool


@dataclass(frozen=True, eq=False)
class QConvThen(Op):
    """``last(conv(x, weight, bias), *others)``: operands are those of ``conv``, then ``others``,
    int8 of the result's shape. The formulas are those of both, so the result of the convolution is
    rounded to int8.
    """

    conv: QConv2d
    last: Op

    fusion = Fusion.REDUCTION
    #: How many operands ``last`` has besides the result of the convolution.
    others: ClassVar[int] = 0

    def infer(self, *types: Type) -> Type:
        count = len(types) - self.others
        return self.last.infer(self.conv.infer(*types[:count]), *types[count:])

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        count = len(args) - self.others
        return self.last.evaluate(self.conv.evaluate(*args[:count]), *args[count:])

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """The stages of both, one behind the other."""
        count = len(inputs) - self.others
        conv = self.conv.expression(inputs[:count], shapes[:count])
        operands = [conv.output, *inputs[count:]]
        last = self.last.expression(operands, [tensor.shape for tensor in operands])
        constants = (*conv.args[count:], *last.args[len(operands) :])
        attributes = (*conv.attributes, *last.attributes)
        return Expression(last.output, (*inputs, *constants), attributes)

    def macs(self, *shapes: Shape) -> int:
        return self.conv.macs(*shapes[: len(shapes) - self.others])

    def attributes(self) -> Iterator[tuple[str, str]]:
        yield "conv", self.conv.text
        yield "last", self.last.text


@dataclass(frozen=True, eq=False)
class QConvAddChannels(QConvThen):
    """A convolution to [1, C, N, 1], and constants that are added to its channels."""

    last: QAddChannels


@dataclass(frozen=True, eq=False)
class QConvTable(QConvThen):
    """A convolution, and a function of its result, such as SiLU."""

    last: QTable


@dataclass(frozen=True, eq=False)
class QConvAdd(QConvThen):
    """A convolution, and the addition of another image, such as that of a residual connection."""

    last: QAdd

    others = 1


@dataclass(frozen=True, eq=False)
class QTableThen(Op):
    """``last(table(x), *others)``: a reader of a table's values that looks them up by itself."""

    table: QTable
    last: Op

    def infer(self, *types: Type) -> Type:
        return self.last.infer(self.table.infer(types[0]), *types[1:])

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return self.last.evaluate(self.table.evaluate(args[0]), *args[1:])

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """The stages of both, one behind the other."""
        table = self.table.expression(inputs[:1], shapes[:1])
        operands = [table.output, *inputs[1:]]
        last = self.last.expression(operands, shapes)
        constants = (*table.args[1:], *last.args[len(operands) :])
        attributes = (*table.attributes, *last.attributes)
        return Expression(last.output, (*inputs, *constants), attributes)

    def attributes(self) -> Iterator[tuple[str, str]]:
        yield "table", self.table.text
        yield "last", self.last.text


@dataclass(frozen=True, eq=False)
class QTableMean(QTableThen):
    """The mean of each channel of the values looked up."""

    last: QAvgPool

    fusion = Fusion.REDUCTION


@dataclass(frozen=True, eq=False)
class QTableMul(QTableThen):
    """The values looked up, times those of another tensor."""

    last: QMul

    fusion = Fusion.ELEMENTWISE
