"""Operators on int8 tensors that work element by element or along rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add, mul

import numpy as np

from ....isa.vector_ops import shift_right_half_even
from ... import topi
from ...te.expr import Call, Const, Expr, select
from ...te.tensor import Tensor, clip, compute, max_of, placeholder, reduce_axis, sum_of
from ..arithmetic.fixed_point import (
    ADD_SHIFT,
    INT32_MAX,
    INT32_MIN,
    NEG_32_OVER_17,
    PLUS_48_OVER_17,
    divide_by_pot,
    exp_on_negative_values,
    high_mul,
    lifted,
    reciprocal_of_one_plus,
    rescale,
)
from ..arithmetic.requant import INT8_MAX, INT8_MIN, Requant, tflite_params
from .base import Elementwise, Expression, Fusion, Op, Shape, Type, expect, expect_dtypes

#: Integer bits of softmax's sum of exponentials, and the largest row that fits it.
SOFTMAX_SUM_BITS = 12
SOFTMAX_LIMIT = (1 << SOFTMAX_SUM_BITS) - 1


@dataclass(frozen=True)
class QAdd(Elementwise):
    """A sum of operands times factors, of which some may be negative: int8 of one shape, output
    int8 of that shape.

    ``y = clamp(round_half_even((x0*factors[0] + x1*factors[1] + .. + const) / 2**shift)
    + zero_point, lo, hi)``; every intermediate value fits int32 in any order of summation (see
    ``requant.add_params``), and 1 <= shift <= 30.
    """

    factors: tuple[int, ...]
    shift: int
    const: int
    zero_point: int
    lo: int = INT8_MIN
    hi: int = INT8_MAX

    def infer(self, *types: Type) -> Type:
        first, *others = expect_dtypes(types, *["int8"] * len(self.factors))
        expect(all(shape == first for shape in others), "operands of one shape")
        return first, "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        products = map(mul, (arg.astype(np.int64) for arg in args), self.factors)
        total = reduce(add, products) + self.const
        rounded = shift_right_half_even(total, np.asarray(self.shift)) + self.zero_point
        return np.clip(rounded, self.lo, self.hi).astype(np.int8)

    def element(self, *operands: Expr) -> Expr:
        total = reduce(add, map(mul, (x.astype("int32") for x in operands), self.factors))
        scaled = Call("rescale", (total + self.const, Const(1), Const(self.shift)), "int32")
        return topi.quantisation.clipped(scaled, self.zero_point, self.lo, self.hi)


@dataclass(frozen=True, eq=False)
class QAddFixed(Elementwise):
    """Inputs a, b int8 with NumPy broadcasting; output int8.

    ::

        left  = rescale((a - zero_a) << ADD_SHIFT, mult_a, shift_a)
        right = rescale((b - zero_b) << ADD_SHIFT, mult_b, shift_b)
        y = requant(left + right)                       (left - right if ``subtract``)

    with rescaling and requantisation (shape [1]) by rounding "tflite"; all of it fits int32.
    """

    zero_a: int
    zero_b: int
    mult_a: int
    shift_a: int
    mult_b: int
    shift_b: int
    subtract: bool
    requant: Requant

    signature = (("int8", "int8"), "int8")

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        left = lifted(args[0], self.zero_a, self.mult_a, self.shift_a)
        right = lifted(args[1], self.zero_b, self.mult_b, self.shift_b)
        total = left - right if self.subtract else left + right
        return _requantized(self.requant, total)

    def element(self, a: Expr, b: Expr) -> Expr:
        def lift(x: Expr, zero: int, multiplier: int, shift: int) -> Expr:
            return _rescaled((x.astype("int32") - zero) * (1 << ADD_SHIFT), multiplier, shift)

        left = lift(a, self.zero_a, self.mult_a, self.shift_a)
        right = lift(b, self.zero_b, self.mult_b, self.shift_b)
        return finished(left - right if self.subtract else left + right, self.requant)


def _requantized(requant: Requant, total: np.ndarray) -> np.ndarray:
    """Requantise a tensor of any rank with one parameter set; its int64 values fit int32."""
    return requant.apply(total.astype(np.int32).reshape(-1, 1)).reshape(total.shape)


def _rescaled(value: Expr, multiplier: Expr | int, shift: Expr | int) -> Expr:
    """int32 to int32 by TensorFlow Lite's double rounding."""
    return topi.rescale(value, multiplier, shift, "tflite").astype("int32")


def finished(total: Expr, requant: Requant) -> Expr:
    """An int32 sum requantised to int8 with one parameter set."""
    factors = int(requant.multiplier[0]), int(requant.shift[0])
    if requant.rounding == "tflite":
        scaled = _rescaled(total, *factors)
    else:
        scaled = topi.rescale(total, *factors, requant.rounding)
    epilogue = requant.zero_point, requant.lo, requant.hi
    return topi.quantisation.clipped(scaled.astype("int64"), *epilogue)


@dataclass(frozen=True, eq=False)
class QMul(Elementwise):
    """``y = requant((a - zero_a) * (b - zero_b))``: int8 with NumPy broadcasting; ``requant`` has
    shape [1]."""

    zero_a: int
    zero_b: int
    requant: Requant

    signature = (("int8", "int8"), "int8")

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        a, b = (x.astype(np.int64) for x in args)
        return _requantized(self.requant, (a - self.zero_a) * (b - self.zero_b))

    def element(self, a: Expr, b: Expr) -> Expr:
        left, right = a.astype("int32") - self.zero_a, b.astype("int32") - self.zero_b
        return finished(left * right, self.requant)


@dataclass(frozen=True, eq=False)
class QTable(Op):
    """``y = table[x + 128]``: any function of one int8, as int8 [256]."""

    table: np.ndarray

    fusion = Fusion.ELEMENTWISE

    def infer(self, *types: Type) -> Type:
        [shape] = expect_dtypes(types, "int8")
        return shape, "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return self.table[args[0].astype(np.int64) - INT8_MIN]

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        table = placeholder((256,), "int8", "table")
        rule = lambda x: table[(x.astype("int32") - INT8_MIN) % 256]  # noqa: E731
        out = topi.elementwise(rule, inputs, shapes)
        return Expression(out, (*inputs, table), (self.table,))


@dataclass(frozen=True)
class QSoftmax(Op):
    """Softmax of int8 along the last axis; the result has scale 1/256 and zero point -128.

    ::

        e = exponentials[max(x) - x]                        Q0
        sum = sum of round(e / 2**12)                       Q12
        inverse = 1 / (sum as 1.xxx)                        Q0, sum = 1.xxx * 2**(31 - headroom)
        y = clamp(round(e * inverse / 2**31 / 2**(35 - headroom)) - 128)

    ``real_scale`` is beta times the input's scale.
    """

    real_scale: float

    @cached_property
    def exponentials(self) -> np.ndarray:
        """exp(-difference * real_scale) in Q0, int32 [256]; 0 where it is too small to count. Steps
        of 16 and more, as of attention with a mask of -1e9, leave only the largest element."""
        difference = -np.arange(256, dtype=np.int32)
        if self.real_scale >= 16:
            return np.where(difference == 0, INT32_MAX, 0).astype(np.int32)
        multiplier, shift = tflite_params(self.real_scale * (1 << 26))
        radius = (31 << 26) >> -shift if shift < 0 else 31 << 26
        exponentials = exp_on_negative_values(rescale(difference, multiplier, shift))
        return np.where(-difference <= radius, exponentials, 0).astype(np.int32)

    def infer(self, *types: Type) -> Type:
        [shape] = expect_dtypes(types, "int8")
        fits = len(shape) > 0 and shape[-1] <= SOFTMAX_LIMIT
        expect(fits, f"rows of at most {SOFTMAX_LIMIT} elements")
        return shape, "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x = args[0].astype(np.int64)
        exponentials = self.exponentials.astype(np.int64)[x.max(axis=-1, keepdims=True) - x]
        total = divide_by_pot(exponentials, SOFTMAX_SUM_BITS).sum(axis=-1, keepdims=True)
        headroom = 31 - np.floor(np.log2(total)).astype(np.int64)
        inverse = reciprocal_of_one_plus((total << headroom) - (1 << 31))
        scaled = divide_by_pot(high_mul(exponentials, inverse), 35 - headroom)
        return np.clip(scaled + INT8_MIN, INT8_MIN, INT8_MAX).astype(np.int8)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """Stages ``most``, ``exponential``, ``total``, ``headroom``, ``inverse0`` to ``inverse3``
        and ``out`` over rows; the arithmetic of :meth:`evaluate` and
        ``fixed_point.reciprocal_of_one_plus``.
        """
        *outer, width = inputs[0].shape
        x = placeholder((math.prod(outer), width), "int8", inputs[0].name)
        table = placeholder((256,), "int32", "exponentials")
        exponential, total = _exponentials(x, table)
        headroom = compute(total.shape, lambda r: leading_zeros(total[r]), "headroom")
        inverse = _inverse(total, headroom)

        def rule(r: Expr, c: Expr) -> Expr:
            high = _rescaled(exponential[r, c], inverse[r], 0).astype("int64")
            count = Const(35, "int64") - headroom[r].astype("int64")
            rounded = (high + (Const(1, "int64") << (count - 1))) >> count
            return clip(rounded + INT8_MIN, INT8_MIN, INT8_MAX).astype("int8")

        return Expression(compute(x.shape, rule, "out"), (x, table), (self.exponentials,))


def _exponentials(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """The exponentials of the elements of each row, and their rounded sum."""
    rows, width = (x.shape[0],), x.shape[1]
    k = reduce_axis(width, "k")
    most = compute(rows, lambda r: max_of(x[r, k], k), "most")

    def below(r: Expr, c: Expr) -> Expr:
        return table[(most[r].astype("int32") - x[r, c].astype("int32")) % 256]

    exponential = compute(x.shape, below, "exponential")
    half = 1 << (SOFTMAX_SUM_BITS - 1)
    j = reduce_axis(width, "k")
    total = compute(
        rows,
        lambda r: sum_of((exponential[r, j] // 2 + half // 2) >> (SOFTMAX_SUM_BITS - 1), j),
        "total",
    )
    return exponential, total


def leading_zeros(value: Expr) -> Expr:
    """Leading zeros of a positive int32."""
    zeros: Expr = Const(31)
    for bit in range(1, 31):
        zeros = zeros - select(Const(1 << bit) <= value, Const(1), Const(0))
    return zeros


def _inverse(total: Tensor, headroom: Tensor) -> Tensor:
    """``reciprocal_of_one_plus`` of the sums without their highest bit."""

    def denominator(r: Expr) -> Expr:
        fraction = (total[r].astype("int64") << headroom[r].astype("int64")) - (1 << 31)
        return ((fraction + (INT32_MAX + 1)) >> 1).astype("int32")

    halves = compute(total.shape, denominator, "denominator")
    inverse = compute(
        total.shape, lambda r: _rescaled(halves[r], NEG_32_OVER_17, 0) + PLUS_48_OVER_17, "inverse0"
    )
    for step in range(1, 4):
        inverse = _newton(halves, inverse, f"inverse{step}")
    last = inverse
    return compute(total.shape, lambda r: _doubled(last[r], 1), "inverse")


def _newton(halves: Tensor, x: Tensor, name: str) -> Tensor:
    def rule(r: Expr) -> Expr:
        rest = Const(1 << 29) - _rescaled(halves[r], x[r], 0)
        return x[r] + _doubled(_rescaled(x[r], rest, 0), 2)

    return compute(x.shape, rule, name)


def _doubled(x: Expr, times: int) -> Expr:
    """``x * 2**times``, saturated to int32."""
    wide = x.astype("int64") * (1 << times)
    return clip(wide, INT32_MIN, INT32_MAX).astype("int32")
