"""Element-wise operators: float ones, and any arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ... import topi
from ...te.expr import Const, Expr, Var, maximum, substitute
from ...te.numpy_values import values_of
from ...te.tensor import Tensor
from .base import (
    Bounded,
    Expression,
    Fusion,
    Op,
    Shape,
    Type,
    broadcast,
    clip,
    expect,
    expect_dtypes,
)


@dataclass(frozen=True, eq=False)
class Map(Op):
    """``body`` for every element, where ``args`` stand for the operands' elements (broadcast).

    ``label`` names the model's operator that it was made from.
    """

    label: str
    args: tuple[Var, ...]
    body: Expr

    fusion = Fusion.ELEMENTWISE

    def infer(self, *types: Type) -> Type:
        wanted = tuple(arg.dtype for arg in self.args)
        expect(tuple(dtype for _, dtype in types) == wanted, f"operands {', '.join(wanted)}")
        return broadcast(*(shape for shape, _ in types)), self.body.dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        shape = np.broadcast_shapes(*(arg.shape for arg in args))
        found = values_of(self.body, dict(zip(self.args, args, strict=True)))
        return np.array(np.broadcast_to(found, shape))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        def rule(*elements: Expr) -> Expr:
            return substitute(self.body, dict(zip(self.args, elements, strict=True)))

        return Expression(topi.elementwise(rule, inputs, shapes), tuple(inputs))


@dataclass(frozen=True)
class Relu(Op):
    """``max(x, 0)``, float32."""

    fusion = Fusion.ELEMENTWISE

    def infer(self, *types: Type) -> Type:
        [shape] = expect_dtypes(types, "float32")
        return shape, "float32"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return np.maximum(args[0], np.float32(0))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        rule = lambda x: maximum(x, Const(0.0, x.dtype))  # noqa: E731
        return Expression(topi.elementwise(rule, inputs, shapes), tuple(inputs))


@dataclass(frozen=True)
class Clip(Op):
    """``min(max(x, lo), hi)``, float32."""

    lo: float = -math.inf
    hi: float = math.inf

    fusion = Fusion.ELEMENTWISE

    def infer(self, *types: Type) -> Type:
        [shape] = expect_dtypes(types, "float32")
        return shape, "float32"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return clip(args[0], self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        rule = lambda x: topi.clip_between(x, self.lo, self.hi)  # noqa: E731
        return Expression(topi.elementwise(rule, inputs, shapes), tuple(inputs))


@dataclass(frozen=True)
class Add(Bounded):
    """Float ``a + b`` with NumPy broadcasting, clipped to lo..hi."""

    lo: float = -math.inf
    hi: float = math.inf

    fusion = Fusion.ELEMENTWISE

    def infer(self, *types: Type) -> Type:
        return broadcast(*expect_dtypes(types, "float32", "float32")), "float32"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return clip(args[0] + args[1], self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        rule = lambda a, b: topi.clip_between(a + b, self.lo, self.hi)  # noqa: E731
        return Expression(topi.elementwise(rule, inputs, shapes), tuple(inputs))
