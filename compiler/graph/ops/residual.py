"""A convolution with the addition of a residual connection behind it, as one operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...te.tensor import Tensor
from .base import Expression, Fusion, Op, Shape, Type
from .convolution import QConv2d
from .integer import QAdd


@dataclass(frozen=True, eq=False)
class QConvAdd(Op):
    """``add(conv(x, weight, bias), other)``: operands are those of ``conv``, then ``other``, int8
    of the result's shape. The formulas are those of both, so the result of the convolution is
    rounded to int8."""

    conv: QConv2d
    add: QAdd

    fusion = Fusion.REDUCTION

    def infer(self, *types: Type) -> Type:
        *operands, other = types
        return self.add.infer(self.conv.infer(*operands), other)

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        *operands, other = args
        return self.add.evaluate(self.conv.evaluate(*operands), other)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """The stages of both, one behind the other."""
        *operands, other = inputs
        conv = self.conv.expression(operands, shapes[:-1])
        add = self.add.expression([conv.output, other], [conv.output.shape, other.shape])
        count = len(operands)
        args = (*conv.args[:count], other, *conv.args[count:])
        return Expression(add.output, args, conv.attributes)

    def macs(self, *shapes: Shape) -> int:
        return self.conv.macs(*shapes[:-1])

    def attributes(self) -> Iterator[tuple[str, str]]:
        yield "conv", self.conv.text
        yield "add", self.add.text
