"""A convolution with a function of its result behind it, as one operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...te.tensor import Tensor
from .base import Expression, Fusion, Op, Shape, Type
from .convolution import QConv2d
from .integer import QTable


@dataclass(frozen=True, eq=False)
class QConvTable(Op):
    """``table(conv(x, weight, bias))``: operands and formulas are those of both, so the result of
    the convolution is rounded to int8."""

    conv: QConv2d
    table: QTable

    fusion = Fusion.REDUCTION

    def infer(self, *types: Type) -> Type:
        return self.table.infer(self.conv.infer(*types))

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return self.table.evaluate(self.conv.evaluate(*args))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """The stages of both, one behind the other."""
        conv = self.conv.expression(inputs, shapes)
        table = self.table.expression([conv.output], [conv.output.shape])
        args, attributes = (*conv.args, *table.args[1:]), (*conv.attributes, *table.attributes)
        return Expression(table.output, args, attributes)

    def macs(self, *shapes: Shape) -> int:
        return self.conv.macs(*shapes)

    def attributes(self) -> Iterator[tuple[str, str]]:
        yield "conv", self.conv.text
        yield "table", self.table.text
