"""Conversions between real numbers and 8-bit integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....isa.errors import VdlaError
from ... import topi
from ...te.expr import Call, Const, Expr, all_of, select
from ...te.tensor import Tensor, clip, placeholder
from ..arithmetic.requant import INT8_MAX, INT8_MIN
from ..text import array_text
from .base import Elementwise, Expression, Fusion, Op, Shape, Type, expect, expect_dtypes, operands


@dataclass(frozen=True, eq=False)
class Quant:
    """``real = (stored - zero_point) * scale``: float32 and int32, [1] or [C] along ``axis``."""

    scale: np.ndarray
    zero_point: np.ndarray
    dtype: str = "int8"
    axis: int | None = None

    def same(self, other: Quant) -> bool:
        """Whether the two give every stored value the same meaning."""
        return (
            self.dtype == other.dtype
            and self.axis == other.axis
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    def broadcast(self, array: np.ndarray, rank: int) -> np.ndarray:
        """``array`` (scale or zero point) shaped to broadcast against a tensor of this rank."""
        if self.axis is None:
            return array.reshape(())
        shape = [1] * rank
        shape[self.axis] = -1
        return array.reshape(shape)

    def check(self, shape: Shape) -> None:
        """Raise :class:`~.base.Misfit` unless the scales fit a tensor of this shape."""
        inside = self.axis is None or 0 <= self.axis < len(shape)
        expect(inside, f"a tensor with the quantisation axis {self.axis}")
        count = 1 if self.axis is None else shape[self.axis]
        fits = {self.scale.size, self.zero_point.size} == {count}
        given = f"{self.scale.size} scales and {self.zero_point.size} zero points"
        expect(fits, f"{count} scales and zero points, not {given}")

    def __str__(self) -> str:
        axis = "" if self.axis is None else f" axis {self.axis}"
        return f"{self.dtype}({array_text(self.scale)}, {array_text(self.zero_point)}{axis})"


class _Conversion(Op):
    """Base: converts every element by its scale and zero point."""

    quant: Quant

    @property
    def fusion(self) -> Fusion:  # type: ignore[override]
        """Element-wise, but not with a scale per channel, where an element's position matters."""
        return Fusion.ELEMENTWISE if self.quant.axis is None else Fusion.OPAQUE

    def _placeholders(self) -> tuple[Tensor, Tensor]:
        size = self.quant.scale.size
        scale = placeholder((size,), "float32", "scale")
        return scale, placeholder((size,), "int32", "zero")

    def _values(self) -> tuple[np.ndarray, np.ndarray]:
        quant = self.quant
        scale = quant.scale.reshape(-1).astype(np.float32)
        return scale, quant.zero_point.reshape(-1).astype(np.int32)

    def _along(self, values: Tensor) -> topi.quantisation.Along:
        """The scale or zero point of an element."""
        axis = self.quant.axis
        if axis is None or values.shape[0] == 1:
            return lambda _: values[0]
        return lambda index: values[index[axis]]


@dataclass(frozen=True, eq=False)
class Quantize(_Conversion):
    """``clamp(round_half_even(x / scale) + zero_point)``: x float32, the quotient in float32."""

    quant: Quant

    def infer(self, *types: Type) -> Type:
        [shape] = expect_dtypes(types, "float32")
        self.quant.check(shape)
        return shape, self.quant.dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        (x,), quant = args, self.quant
        limits = np.iinfo(quant.dtype)
        steps = np.rint(x / quant.broadcast(quant.scale, x.ndim)).astype(np.float64)
        stored = steps + quant.broadcast(quant.zero_point, x.ndim)
        return np.clip(stored, limits.min, limits.max).astype(quant.dtype)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        if self.quant.dtype not in ("int8", "uint8"):
            raise VdlaError(f"Quantize expected to int8 or uint8, got {self.quant.dtype!r}")
        scale, zero = self._placeholders()
        out = topi.quantize(inputs[0], self._along(scale), self._along(zero), self.quant.dtype)
        return Expression(out, (*inputs, scale, zero), self._values())


@dataclass(frozen=True, eq=False)
class Dequantize(_Conversion):
    """``quant.dtype`` to float32: ``float32(x - zero_point) * scale``."""

    quant: Quant

    def infer(self, *types: Type) -> Type:
        [shape] = expect_dtypes(types, self.quant.dtype)
        self.quant.check(shape)
        return shape, "float32"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        (x,), quant = args, self.quant
        shifted = x.astype(np.int64) - quant.broadcast(quant.zero_point, x.ndim)
        return shifted.astype(np.float32) * quant.broadcast(quant.scale, x.ndim)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        scale, zero = self._placeholders()
        out = topi.dequantize(inputs[0], self._along(scale), self._along(zero))
        return Expression(out, (*inputs, scale, zero), self._values())


@dataclass(frozen=True)
class QuantizeAway(Elementwise):
    """``clamp(round(x / scale) + zero_point)`` as int8: x and the quotient are float32, and ties
    round away from zero. (:class:`Quantize` rounds ties to even.)
    """

    scale: float
    zero_point: int

    signature = (("float32",), "int8")

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        exact = args[0] / np.float32(self.scale)
        whole = np.trunc(exact)
        steps = whole + np.where(np.abs(exact - whole) >= 0.5, np.sign(exact), np.float32(0))
        stored = np.nan_to_num(steps.astype(np.float64)) + self.zero_point
        return np.clip(stored, INT8_MIN, INT8_MAX).astype(np.int8)

    def element(self, x: Expr) -> Expr:
        exact = x / Const(float(np.float32(self.scale)), "float32")
        even = Call("round", (exact,), "float32")
        # Half to even equals half away from zero, except where it rounded towards zero: there, half
        # a step is left.
        up = select(all_of(exact > 0.0, (exact - even).equal(0.5)), 1.0, 0.0)
        down = select(all_of(exact < 0.0, (even - exact).equal(0.5)), 1.0, 0.0)
        stored = even + up - down + float(self.zero_point)
        return clip(stored, float(INT8_MIN), float(INT8_MAX)).astype("int8")


@dataclass(frozen=True)
class Recentre(Elementwise):
    """uint8 to int8 or back: values less or plus 128, which means the same."""

    def infer(self, *types: Type) -> Type:
        other = {"int8": "uint8", "uint8": "int8"}
        [(shape, dtype)] = operands(types, 1)
        expect(dtype in other, "int8 or uint8")
        return shape, other[dtype]

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        flipped = args[0].view(np.uint8) ^ np.uint8(128)
        return flipped.view(np.int8 if args[0].dtype == np.uint8 else np.uint8)

    def element(self, x: Expr) -> Expr:
        other = "int8" if x.dtype == "uint8" else "uint8"
        return x.astype(other) + Const(INT8_MIN if other == "int8" else -INT8_MIN, other)
