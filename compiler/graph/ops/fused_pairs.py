"""Two operators fused into one: a convolution with its epilogue, a LUT with its consumer, the two
convolutions of an inverted residual."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...te.tensor import Tensor
from .base import Expression, Fusion, Op, Shape, Type
from .convolution import QConv2d
from .group_matmul import QAddChannels
from .integer import QAdd, QMul, QTable
from .pooling import QAvgPool


@dataclass(frozen=True, eq=False)
class FusedPair(Op):
    """``last(first(*operands), *others)``: operands are those of ``first``, then ``others``. Both
    keep their formulas: the intermediate result is rounded as if nothing were fused.
    """

    first: Op
    last: Op

    fusion = Fusion.REDUCTION
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
class QConvAddChannels(FusedPair):
    """A convolution to [1, C, N, 1], and a constant added to each channel."""

    first: QConv2d
    last: QAddChannels


@dataclass(frozen=True, eq=False)
class QConvTable(FusedPair):
    """A convolution, and a LUT of its result, such as SiLU."""

    first: QConv2d
    last: QTable


@dataclass(frozen=True, eq=False)
class QConvAdd(FusedPair):
    """A convolution, and the addition of a second image, as in a residual connection."""

    first: QConv2d
    last: QAdd

    others = 1


#: How an operator is fused into the convolution that makes its operand.
EPILOGUES: Mapping[type[Op], type[FusedPair]] = {
    QAddChannels: QConvAddChannels, QTable: QConvTable, QAdd: QConvAdd,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class QTableMean(FusedPair):
    """A LUT of an image, and the mean of each channel."""

    first: QTable
    last: QAvgPool


@dataclass(frozen=True, eq=False)
class QTableMul(FusedPair):
    """A LUT of an image, times a second tensor."""

    first: QTable
    last: QMul

    fusion = Fusion.ELEMENTWISE
    others = 1


@dataclass(frozen=True, eq=False)
class QConvWindow(FusedPair):
    """A fused inverted residual: a convolution, perhaps with a LUT, expands the image, and a
    depthwise convolution filters it."""

    first: QConv2d | QConvTable
    last: QConv2d

    others = 2

    def macs(self, *shapes: Shape) -> int:
        image, weight, bias, *_ = shapes
        return self.first.macs(image, weight, bias) + self.window_macs(*shapes)

    def window_macs(self, *shapes: Shape) -> int:
        image, weight, bias, *others = shapes
        between, _ = self.first.infer((image, "int8"), (weight, "int8"), (bias, "int32"))
        return self.last.macs(between, *others)


@dataclass(frozen=True)
class ProductChain(FusedPair):
    """A product, and element-wise operators on its result, which also read ``extra`` tensors that
    broadcast to it: biases, residual connections, GELU."""

    extra: int

    @property
    def others(self) -> int:  # type: ignore[override]
        """How many operands ``last`` has besides the result of ``first``."""
        return self.extra

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.first.name}+{self.last.name}"
