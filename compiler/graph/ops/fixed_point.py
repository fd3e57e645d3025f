"""Integer operators of TensorFlow Lite's reference kernels, and those that only move elements.

Activations are int8 [N,C,H,W] or of any rank where nothing else is said. Each operator brings its
result type and its meaning in NumPy; ``topi/fixed.py`` has their expressions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..arithmetic.bends import Bends, bends
from ..arithmetic.fixed_point import (
    divide_by_pot,
    exp_on_negative_values,
    high_mul,
    reciprocal_of_one_plus,
    rescale,
)
from ..arithmetic.requant import INT8_MAX, INT8_MIN, Requant, mean_requant, tflite_params
from .integer import Op, Pads, Pair

Type = tuple[tuple[int, ...], str]

#: Bits by which an addition shifts its operands left before it rescales them.
ADD_SHIFT = 20
#: Integer bits of softmax's sum of exponentials, and the largest row that fits it.
SOFTMAX_SUM_BITS = 12
SOFTMAX_LIMIT = (1 << SOFTMAX_SUM_BITS) - 1


class FixedOp(Op):
    """Base: an operator that knows its result type and its meaning."""

    def result(self, *operands: Type) -> Type | None:
        """Shape and dtype of the result, or None if the operands do not fit."""
        raise NotImplementedError

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        """The result for arrays that fit."""
        raise NotImplementedError


def _broadcast(a: Type, b: Type) -> Type | None:
    try:
        shape = tuple(np.broadcast_shapes(a[0], b[0]))
    except ValueError:
        return None
    return (shape, "int8") if a[1] == b[1] == "int8" else None


@dataclass(frozen=True, eq=False)
class QAddFixed(FixedOp):
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

    def result(self, *operands: Type) -> Type | None:
        return _broadcast(*operands) if len(operands) == 2 else None

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        left = lifted(args[0], self.zero_a, self.mult_a, self.shift_a)
        right = lifted(args[1], self.zero_b, self.mult_b, self.shift_b)
        total = left - right if self.subtract else left + right
        return _requantized(self.requant, total)


def lifted(x: np.ndarray, zero: int, multiplier: int, shift: int) -> np.ndarray:
    return rescale((x.astype(np.int32) - zero) << ADD_SHIFT, multiplier, shift)


def _requantized(requant: Requant, total: np.ndarray) -> np.ndarray:
    """Requantise with one parameter set a tensor of any rank, int64 that fits int32."""
    return requant.apply(total.astype(np.int32).reshape(-1, 1)).reshape(total.shape)


@dataclass(frozen=True, eq=False)
class QMul(FixedOp):
    """``y = requant((a - zero_a) * (b - zero_b))``: int8 with NumPy broadcasting."""

    zero_a: int
    zero_b: int
    requant: Requant

    def result(self, *operands: Type) -> Type | None:
        return _broadcast(*operands) if len(operands) == 2 else None

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        a, b = (x.astype(np.int64) for x in args)
        return _requantized(self.requant, (a - self.zero_a) * (b - self.zero_b))


@dataclass(frozen=True)
class QAvgPoolValid(FixedOp):
    """x int8 [N,C,H,W] to int8 [N,C,OH,OW]: a mean over the places of a window inside the image.

    ``y = clamp(sum of (x - zero_point) / count + zero_point, lo, hi)``, the quotient rounded half
    away from zero; ``count`` places are inside.
    """

    kernel: Pair
    strides: Pair
    pads: Pads
    zero_point: int
    lo: int = INT8_MIN
    hi: int = INT8_MAX

    def result(self, *operands: Type) -> Type | None:
        match operands:
            case [((n, c, height, width), "int8")]:
                return (n, c, *(len(self.starts(dim, (height, width))) for dim in (0, 1))), "int8"
        return None

    def starts(self, dim: int, size: Pair) -> range:
        """First rows (``dim`` 0) or columns (1) of the windows, from within the border on."""
        stop = size[dim] + self.pads[dim] + self.pads[dim + 2] - self.kernel[dim] + 1
        return range(0, stop, self.strides[dim])

    def counts(self, size: Pair) -> tuple[np.ndarray, np.ndarray]:
        """How many rows of each window in a column, and columns in a row, are inside."""
        found = []
        for dim in (0, 1):
            first = np.array(self.starts(dim, size), np.int64) - self.pads[dim]
            last = np.minimum(first + self.kernel[dim], size[dim])
            found.append(last - np.maximum(first, 0))
        return found[0], found[1]

    def divisors(self, size: Pair) -> tuple[np.ndarray, np.ndarray]:
        """Multiplier and shift int32 [OH,OW] by which rounding half to even divides exactly."""
        rows, cols = self.counts(size)
        requants = [[mean_requant(int(r * c), 0) for c in cols] for r in rows]
        multiplier = np.array([[r.multiplier[0] for r in row] for row in requants], np.int32)
        shift = np.array([[r.shift[0] for r in row] for row in requants], np.int32)
        return multiplier, shift

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        (x,) = args
        rows, cols = self.counts((x.shape[2], x.shape[3]))
        y = np.zeros((*x.shape[:2], len(rows), len(cols)), np.int8)
        for oh, ow in np.ndindex(len(rows), len(cols)):
            top = max(oh * self.strides[0] - self.pads[0], 0)
            left = max(ow * self.strides[1] - self.pads[1], 0)
            seen = x[:, :, top : top + rows[oh], left : left + cols[ow]]
            count = int(rows[oh] * cols[ow])
            total = (seen.astype(np.int64) - self.zero_point).sum(axis=(2, 3))
            mean = np.sign(total) * ((np.abs(total) + count // 2) // count)
            y[:, :, oh, ow] = np.clip(mean + self.zero_point, self.lo, self.hi)
        return y


@dataclass(frozen=True, eq=False)
class QTable(FixedOp):
    """``y = table[x + 128]``: any function of one int8, as int8 [256]."""

    table: np.ndarray

    @cached_property
    def bends(self) -> Bends | None:
        """The same as a sum that the vector unit computes."""
        return bends(self.table)

    def result(self, *operands: Type) -> Type | None:
        return operands[0] if len(operands) == 1 and operands[0][1] == "int8" else None

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return self.table[args[0].astype(np.int64) - INT8_MIN]


@dataclass(frozen=True)
class QSoftmax(FixedOp):
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
        """exp(-difference * real_scale) in Q0, int32 [256]; 0 where it is too small to count."""
        multiplier, shift = tflite_params(min(self.real_scale * (1 << 26), float((1 << 31) - 1)))
        difference = -np.arange(256, dtype=np.int32)
        radius = (31 << 26) >> -shift if shift < 0 else 31 << 26
        exponentials = exp_on_negative_values(rescale(difference, multiplier, shift))
        return np.where(-difference <= radius, exponentials, 0).astype(np.int32)

    def result(self, *operands: Type) -> Type | None:
        match operands:
            case [((*_, size), "int8")] if size <= SOFTMAX_LIMIT:
                return operands[0]
        return None

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x = args[0].astype(np.int64)
        exponentials = self.exponentials.astype(np.int64)[x.max(axis=-1, keepdims=True) - x]
        total = divide_by_pot(exponentials, SOFTMAX_SUM_BITS).sum(axis=-1, keepdims=True)
        headroom = 31 - np.floor(np.log2(total)).astype(np.int64)
        inverse = reciprocal_of_one_plus((total << headroom) - (1 << 31))
        scaled = divide_by_pot(high_mul(exponentials, inverse), 35 - headroom)
        return np.clip(scaled + INT8_MIN, INT8_MIN, INT8_MAX).astype(np.int8)


@dataclass(frozen=True)
class QuantizeAway(FixedOp):
    """``clamp(round(x / scale) + zero_point)``: x float32, the quotient in float32, ties away from
    zero; to int8. (:class:`~.ops.Quantize` rounds ties to even.)
    """

    scale: float
    zero_point: int

    def result(self, *operands: Type) -> Type | None:
        match operands:
            case [(shape, "float32")]:
                return shape, "int8"
        return None

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        exact = args[0] / np.float32(self.scale)
        whole = np.trunc(exact)
        steps = whole + np.where(np.abs(exact - whole) >= 0.5, np.sign(exact), np.float32(0))
        stored = np.nan_to_num(steps.astype(np.float64)) + self.zero_point
        return np.clip(stored, INT8_MIN, INT8_MAX).astype(np.int8)


# ---- elements change places ----------------------------------------------------------------------


@dataclass(frozen=True)
class Transpose(FixedOp):
    """``np.transpose(x, perm)``; any dtype."""

    perm: tuple[int, ...]

    def result(self, *operands: Type) -> Type | None:
        match operands:
            case [(shape, dtype)] if sorted(self.perm) == list(range(len(shape))):
                return tuple(shape[axis] for axis in self.perm), dtype
        return None

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(args[0].transpose(self.perm))


@dataclass(frozen=True)
class Pad(FixedOp):
    """``value`` around x: ``before`` and ``after`` so many elements along each axis; int8."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: int

    def result(self, *operands: Type) -> Type | None:
        match operands:
            case [(shape, "int8")] if len(shape) == len(self.before) == len(self.after):
                sizes = zip(self.before, shape, self.after, strict=True)
                return tuple(sum(size) for size in sizes), "int8"
        return None

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        spread = list(zip(self.before, self.after, strict=True))
        return np.pad(args[0], spread, constant_values=self.value)


@dataclass(frozen=True)
class Concat(FixedOp):
    """Tensors of one dtype one after the other along ``axis``."""

    axis: int

    def result(self, *operands: Type) -> Type | None:
        shapes = [shape for shape, _ in operands]
        if not shapes or not 0 <= self.axis < len(shapes[0]) or len({d for _, d in operands}) > 1:
            return None
        rest = {(*s[: self.axis], *s[self.axis + 1 :]) for s in shapes}
        if len(rest) > 1 or len({len(s) for s in shapes}) > 1:
            return None
        total = sum(s[self.axis] for s in shapes)
        return (*shapes[0][: self.axis], total, *shapes[0][self.axis + 1 :]), operands[0][1]

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return np.concatenate(args, axis=self.axis)


@dataclass(frozen=True)
class Recentre(FixedOp):
    """uint8 to int8 or back: values less or plus 128, which means the same."""

    def result(self, *operands: Type) -> Type | None:
        other = {"int8": "uint8", "uint8": "int8"}
        match operands:
            case [(shape, dtype)] if dtype in other:
                return shape, other[dtype]
        return None

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        flipped = args[0].view(np.uint8) ^ np.uint8(128)
        return flipped.view(np.int8 if args[0].dtype == np.uint8 else np.uint8)
