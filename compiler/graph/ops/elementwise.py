"""Element-wise operators: float ones, and any arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ... import topi
from ...te.expr import Const, Expr, Var, maximum, substitute
from ...te.numpy_values import values_of
from .base import Bounded, Elementwise, Type, broadcast, clip, expect, one_dtype


@dataclass(frozen=True, eq=False)
class Map(Elementwise):
    """``body`` for every element, where ``args`` stand for the operands' elements (broadcast).

    ``label`` names the model's operator that it was made from.
    """

    label: str
    args: tuple[Var, ...]
    body: Expr

    def infer(self, *types: Type) -> Type:
        wanted = tuple(arg.dtype for arg in self.args)
        expect(tuple(dtype for _, dtype in types) == wanted, f"operands {', '.join(wanted)}")
        return broadcast(*(shape for shape, _ in types)), self.body.dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        shape = np.broadcast_shapes(*(arg.shape for arg in args))
        found = values_of(self.body, dict(zip(self.args, args, strict=True)))
        return np.array(np.broadcast_to(found, shape))

    def element(self, *operands: Expr) -> Expr:
        return substitute(self.body, dict(zip(self.args, operands, strict=True)))


@dataclass(frozen=True)
class SubtractZeroPoint(Elementwise):
    """``x - zero_point`` as int32: x and the zero points, which broadcast, are int8 or uint8."""

    def infer(self, *types: Type) -> Type:
        dtype = one_dtype(types)
        expect(len(types) == 2 and dtype in ("int8", "uint8"), "two operands of int8 or of uint8")
        return broadcast(*(shape for shape, _ in types)), "int32"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return args[0].astype(np.int32) - args[1].astype(np.int32)

    def element(self, x: Expr, zero: Expr) -> Expr:
        return x.astype("int32") - zero.astype("int32")


@dataclass(frozen=True)
class Relu(Elementwise):
    """``max(x, 0)``, float32."""

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return np.maximum(args[0], np.float32(0))

    def element(self, x: Expr) -> Expr:
        return maximum(x, Const(0.0, x.dtype))


@dataclass(frozen=True)
class Clip(Elementwise):
    """``min(max(x, lo), hi)``, float32."""

    lo: float = -math.inf
    hi: float = math.inf

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return clip(args[0], self.lo, self.hi)

    def element(self, x: Expr) -> Expr:
        return topi.clip_between(x, self.lo, self.hi)


@dataclass(frozen=True)
class Add(Bounded, Elementwise):
    """Float ``a + b`` with NumPy broadcasting, clipped to lo..hi."""

    lo: float = -math.inf
    hi: float = math.inf

    signature = (("float32", "float32"), "float32")

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return clip(args[0] + args[1], self.lo, self.hi)

    def element(self, a: Expr, b: Expr) -> Expr:
        return topi.clip_between(a + b, self.lo, self.hi)
