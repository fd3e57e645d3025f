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
class Pair(Op):
    """``last(first(*operands), *others)``: operands are those of ``first``, then ``others``. The
    formulas are those of both, so what is between them is rounded as it was.
    """

    first: Op
    last: Op

    #: How many operands ``last`` has besides the result of ``first``.
    others: ClassVar[int] = 0

    def infer(self, *types: Type) -> Type:
        count = len(types) - self.others
        return self.last.infer(self.first.infer(*types[:count]), *types[count:])

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        count = len(args) - self.others
        return self.last.evaluate(self.first.evaluate(*args[:count]), *args[count:])

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """The stages of both, one behind the other."""
        count = len(inputs) - self.others
        first = self.first.expression(inputs[:count], shapes[:count])
        operands = [first.output, *inputs[count:]]
        last = self.last.expression(operands, [tensor.shape for tensor in operands])
        constants = (*first.args[count:], *last.args[len(operands) :])
        attributes = (*first.attributes, *last.attributes)
        return Expression(last.output, (*inputs, *constants), attributes)

    def macs(self, *shapes: Shape) -> int:
        return self.first.macs(*shapes[: len(shapes) - self.others])

    def attributes(self) -> Iterator[tuple[str, str]]:
        yield "first", self.first.text
        yield "last", self.last.text


@dataclass(frozen=True, eq=False)
class QConvAddChannels(Pair):
    """A convolution to [1, C, N, 1], and constants that are added to its channels."""

    first: QConv2d
    last: QAddChannels

    fusion = Fusion.REDUCTION


@dataclass(frozen=True, eq=False)
class QConvTable(Pair):
    """A convolution, and a function of its result, such as SiLU."""

    first: QConv2d
    last: QTable

    fusion = Fusion.REDUCTION


@dataclass(frozen=True, eq=False)
class QConvAdd(Pair):
    """A convolution, and the addition of another image, such as that of a residual connection."""

    first: QConv2d
    last: QAdd

    fusion = Fusion.REDUCTION
    others = 1


@dataclass(frozen=True, eq=False)
class QTableMean(Pair):
    """The values that a table has for an image, and the mean of each channel of them."""

    first: QTable
    last: QAvgPool

    fusion = Fusion.REDUCTION


@dataclass(frozen=True, eq=False)
class QTableMul(Pair):
    """The values that a table has for an image, times those of another tensor."""

    first: QTable
    last: QMul

    fusion = Fusion.ELEMENTWISE
    others = 1


@dataclass(frozen=True, eq=False)
class QConvWindow(Pair):
    """A convolution, perhaps with a function of its result, and the depthwise convolution of that:
    the expansion and the filter of an inverted residual block."""

    first: QConv2d | QConvTable
    last: QConv2d

    fusion = Fusion.REDUCTION
    others = 2

    def macs(self, *shapes: Shape) -> int:
        image, weight, bias, *_ = shapes
        return self.first.macs(image, weight, bias) + self.window_macs(*shapes)

    def window_macs(self, *shapes: Shape) -> int:
        image, weight, bias, *others = shapes
        between, _ = self.first.infer((image, "int8"), (weight, "int8"), (bias, "int32"))
        return self.last.macs(between, *others)
