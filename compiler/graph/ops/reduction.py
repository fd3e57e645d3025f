"""Reductions of a tensor of any rank over axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ... import topi
from ...te.tensor import Tensor
from ...topi.reduction import neutral, reduced_shape
from .base import Expression, Fusion, Op, Shape, Type, expect, operands

_FUNCTIONS = {"+": np.add, "*": np.multiply, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class Reduce(Op):
    """Sum, product, minimum or maximum (``kind`` "+", "*", "min", "max") over ``axes``, which keep
    size 1 if ``keepdims``."""

    kind: str
    axes: tuple[int, ...]
    keepdims: bool

    fusion = Fusion.REDUCTION

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = operands(types, 1)
        expect(set(self.axes) <= set(range(len(shape))), f"axes {list(self.axes)}")
        expect(dtype != "bool", "numbers")
        return reduced_shape(shape, self.axes, self.keepdims), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        (x,) = args
        wide = x.astype(np.float64) if x.dtype.kind == "f" else x
        start = wide.dtype.type(neutral(self.kind, str(x.dtype)).value)
        function = _FUNCTIONS[self.kind]
        with np.errstate(all="ignore"):
            found = function.reduce(
                wide, axis=self.axes, keepdims=self.keepdims, dtype=wide.dtype, initial=start
            )
        return np.asarray(found).astype(x.dtype)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        out = topi.reduce(self.kind, inputs[0], self.axes, self.keepdims, shapes[0])
        return Expression(out, tuple(inputs))


@dataclass(frozen=True)
class ArgReduce(Op):
    """int64 index of the smallest or largest element ("min", "max") along an axis; the first of
    equal ones, or the last."""

    kind: str
    axis: int
    keepdims: bool
    last: bool

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = operands(types, 1)
        expect(self.axis < len(shape) and shape[self.axis] > 0, f"elements on axis {self.axis}")
        expect(dtype != "bool", "numbers")
        return reduced_shape(shape, (self.axis,), self.keepdims), "int64"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        (x,) = args
        best = (x.min if self.kind == "min" else x.max)(axis=self.axis, keepdims=True)
        found = x == best
        size = x.shape[self.axis]
        positions = np.argmax(np.flip(found, self.axis) if self.last else found, axis=self.axis)
        positions = size - 1 - positions if self.last else positions
        # NaN equals nothing. Where no element equals the best one, the expression finds one end.
        nothing = ~found.any(axis=self.axis)
        positions = np.where(nothing, 0 if self.last else size - 1, positions).astype(np.int64)
        return np.expand_dims(positions, self.axis) if self.keepdims else np.asarray(positions)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        out = topi.arg_reduce(self.kind, inputs[0], self.axis, self.keepdims, self.last)
        return Expression(out, tuple(inputs))
