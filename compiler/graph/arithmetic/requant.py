"""Requantisation: how a real scale becomes integers, and how the result is rounded.

Models in ONNX round half to even, once, as ONNX defines QuantizeLinear; models in TensorFlow Lite
follow its reference kernels, which round twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import mul

import numpy as np

from ....isa.errors import VdlaError
from ....isa.vector_ops import POST_BY_NAME, shift_right_half_even
from ..text import array_text

INT8_MIN, INT8_MAX = -128, 127
#: A uint8 value is this much more than the int8 value with the same meaning.
OFFSET, UINT8_MAX = 128, 255
MULTIPLIER_BITS = 31
MAX_SHIFT = 62
#: How far numbers of an addition, or of a product, are tried from the nearest ones, the nearest
#: first.
_NEAR = (0, 1, -1, 2, -2, 3, -3)
#: Multipliers of a product are tried so many bits apart: float32 rounds to 24 bits.
_MUL_STEP = 5


def centre(data: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    """8-bit integers less their zero point: int8, or int16 where int8 does not hold them all."""
    centred = data.astype(np.int16) - zero_point.astype(np.int16)
    fits = centred.min() >= INT8_MIN and centred.max() <= INT8_MAX
    return centred.astype(np.int8) if fits else centred


@dataclass(frozen=True, eq=False)
class Requant:
    """``y = clamp(rescale(acc) + zero_point, lo, hi)``; ``acc`` is int32, ``y`` int8.

    ``rounding`` "even": ``rescale = round_half_even(acc * multiplier / 2**shift)``, of the exact
    product. "tflite": a saturating rounding doubling high multiply of ``acc << -shift`` (where
    shift < 0), then a rounding divide by ``2**shift`` (where shift > 0), as TensorFlow Lite's
    reference kernels do it (:func:`~vdla.isa.vector_ops.requantize_tflite`).

    Attributes
    ----------
    multiplier : int32 array, shape [OC] or [1], each in [2**30, 2**31); with "tflite" any from 0 on
    shift : int32 array of the same shape, each in [1, 62]; with "tflite" in [-30, 31]
    zero_point, lo, hi : int
        Of the result; -128 <= lo <= hi <= 127. ReLU and Clip are folded into lo and hi.
    rounding : str
        "even" or "tflite".
    """

    multiplier: np.ndarray
    shift: np.ndarray
    zero_point: int
    lo: int = INT8_MIN
    hi: int = INT8_MAX
    rounding: str = "even"

    def __str__(self) -> str:
        scale = f"{array_text(self.multiplier)} >> {array_text(self.shift)}"
        return f"({scale} + {self.zero_point}, {self.lo}..{self.hi})"

    def apply(self, acc: np.ndarray, axis: int = 1) -> np.ndarray:
        """Requantise int32 ``acc``, whose channels lie along ``axis``, to int8 of its shape."""
        shape = [1] * acc.ndim
        shape[axis] = -1
        rescale = POST_BY_NAME[self.rounding].rounding
        assert rescale is not None
        rounded = rescale(acc, self.multiplier.reshape(shape), self.shift.reshape(shape))
        return np.clip(rounded + self.zero_point, self.lo, self.hi).astype(np.int8)


def requant_params(real_scale: float) -> tuple[int, int]:
    """The (multiplier, shift) whose ``multiplier / 2**shift`` is nearest, within 1 part in 2**31.

    A positive scale below 2**-32 rounds every int32 to zero, and so does the smallest pair,
    (2**30, 62), which is returned.

    Raises
    ------
    VdlaError
        When the scale is not a positive finite number below 2**30.
    """
    if not (math.isfinite(real_scale) and 0.0 < real_scale):
        raise VdlaError(f"expected a positive finite scale to requantise by, got {real_scale!r}")
    mantissa, exponent = math.frexp(real_scale)
    multiplier = round(mantissa * 2**MULTIPLIER_BITS)
    if multiplier == 2**MULTIPLIER_BITS:
        multiplier, exponent = multiplier // 2, exponent + 1
    shift = MULTIPLIER_BITS - exponent
    if shift < 1:
        raise VdlaError(f"expected a scale below 2**30 to requantise by, got {real_scale!r}")
    if shift > MAX_SHIFT:
        return 2 ** (MULTIPLIER_BITS - 1), MAX_SHIFT
    return multiplier, shift


def requant(
    real_scale: np.ndarray, zero_point: int, lo: int = INT8_MIN, hi: int = INT8_MAX
) -> Requant:
    """The :class:`Requant` of float64 scales [OC] or [1]; errors as :func:`requant_params`."""
    pairs = [requant_params(float(s)) for s in real_scale]
    multiplier, shift = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    return Requant(multiplier, shift, zero_point, lo, hi)


#: Factors of the operands of a quantised addition, its shift and its constant.
AddParams = tuple[tuple[int, ...], int, int]


def add_params(ratios: Sequence[float], zeros: Sequence[int]) -> AddParams:
    """Factors, shift and constant of a quantised addition. Ratios are input to output scale, or the
    negative of that for an operand that is subtracted; ``zeros`` are the operands' zero points.

    The shift is the largest (at most 30) for which operands times factors, the constant and all
    their partial sums, in any order and with half a unit added for rounding, fit int32 for every
    int8.

    Raises
    ------
    VdlaError
        When a ratio is 0 or not finite, or so large that no shift in [1, 30] fits.
    """
    for ratio in ratios:
        if not math.isfinite(ratio) or ratio == 0:
            raise VdlaError(f"expected finite scale ratios to add by, not 0, got {ratio!r}")
    for shift in range(30, 0, -1):
        factors = tuple(round(ratio * 2**shift) for ratio in ratios)
        const = -sum(map(mul, zeros, factors))
        if _sum_fits(factors, shift, const):
            return factors, shift, const
    raise VdlaError(
        f"cannot add: the input scales are {' and '.join(map(repr, ratios))} times the output"
        " scale, more than int32 can hold"
    )


def defined_add_params(
    scales: tuple[float, float, float], zeros: tuple[int, int, int], lo: int, hi: int
) -> AddParams:
    """The parameters of :func:`add_params` of two operands that give what ONNX defines for the most
    of all pairs of int8 values; scales and zero points are those of the operands and of the result.

    The definition rounds in float32, so where a sum is next to a tie a few of the 65,536 pairs
    differ from the nearest parameters. With those a step or two away, mostly none does.

    Raises
    ------
    VdlaError
        As :func:`add_params`.
    """
    scale_a, scale_b, scale = map(np.float32, scales)
    zero_a, zero_b, zero = zeros
    b = np.arange(INT8_MIN, INT8_MAX + 1)
    a = b[:, None]
    real = (a - zero_a).astype(np.float32) * scale_a + (b - zero_b).astype(np.float32) * scale_b
    defined = np.clip(np.rint(real / scale) + zero, lo, hi)
    ratios = float(scale_a) / float(scale), float(scale_b) / float(scale)
    best = (factor_a, factor_b), shift, const = add_params(ratios, (zero_a, zero_b))

    def wrong(factors: tuple[int, ...], shift: int, const: int) -> int:
        total = a * factors[0] + b * factors[1] + const
        rounded = shift_right_half_even(total, np.asarray(shift))
        return int((np.clip(rounded + zero, lo, hi) != defined).sum())

    least = wrong(*best)
    for more_a, more_b, more in product(_NEAR, _NEAR, _NEAR):
        if not least:
            break
        exact = const - zero_a * more_a - zero_b * more_b
        tried = (factor_a + more_a, factor_b + more_b), shift, exact + more
        if _sum_fits(*tried) and (count := wrong(*tried)) < least:
            best, least = tried, count
    return best


def _sum_fits(factors: Sequence[int], shift: int, const: int) -> bool:
    return 128 * sum(map(abs, factors)) + abs(const) + 2 ** (shift - 1) < 2**31


def defined_mul_requant(
    scales: tuple[float, float, float], zeros: tuple[int, int, int], lo: int, hi: int
) -> Requant:
    """The requantisation of ``(a - zero_a) * (b - zero_b)`` that gives what ONNX defines for the
    most of all pairs of int8 values; scales and zero points are those of the operands and of the
    result.

    The definition rounds both operands, their product and the quotient in float32. Where it is next
    to a tie, a few of the 65,536 pairs differ from the nearest parameters; with another multiplier
    mostly none does.

    Raises
    ------
    VdlaError
        As :func:`requant_params`.
    """
    scale_a, scale_b, scale = map(np.float32, scales)
    zero_a, zero_b, zero = zeros
    b = np.arange(INT8_MIN, INT8_MAX + 1)
    a = b[:, None]
    real = ((a - zero_a).astype(np.float32) * scale_a) * ((b - zero_b).astype(np.float32) * scale_b)
    defined = np.clip(np.rint(real / scale) + zero, lo, hi)
    products = ((a - zero_a) * (b - zero_b)).astype(np.int32)
    nearest = requant(np.array([float(scale_a) * float(scale_b) / float(scale)]), zero, lo, hi)
    tried = [replace(nearest, multiplier=nearest.multiplier + (n << _MUL_STEP)) for n in _NEAR]
    legal = [r for r in tried if 2 ** (MULTIPLIER_BITS - 1) <= r.multiplier[0] < 2**MULTIPLIER_BITS]
    return min(legal, key=lambda r: int((r.apply(products) != defined).sum()))


# ---- TensorFlow Lite -----------------------------------------------------------------------------


def tflite_params(real_scale: float) -> tuple[int, int]:
    """TensorFlow Lite's (multiplier, shift) of a scale, for rounding "tflite".

    The scale is ``multiplier / 2**31 / 2**shift``; one that would shift everything out is (0, 0).

    Raises
    ------
    VdlaError
        When the scale is not a finite number from 0 to below 2**30.
    """
    if not (math.isfinite(real_scale) and 0.0 <= real_scale < 2.0**30):
        raise VdlaError(f"expected a scale from 0 to below 2**30, got {real_scale!r}")
    mantissa, exponent = math.frexp(real_scale)
    multiplier = math.floor(mantissa * 2**MULTIPLIER_BITS + 0.5)
    if multiplier == 2**MULTIPLIER_BITS:
        multiplier, exponent = multiplier // 2, exponent + 1
    return (0, 0) if exponent < -31 or not multiplier else (multiplier, -exponent)


def tflite_requant(
    real_scale: np.ndarray, zero_point: int, lo: int = INT8_MIN, hi: int = INT8_MAX
) -> Requant:
    """As :func:`requant`, with TensorFlow Lite's multipliers and rounding."""
    pairs = [tflite_params(float(s)) for s in real_scale]
    multiplier, shift = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    return Requant(multiplier, shift, zero_point, lo, hi, "tflite")


def mean_requant(count: int, zero_point: int, lo: int = INT8_MIN, hi: int = INT8_MAX) -> Requant:
    """Division of a sum of ``count`` int8 values by ``count``, rounded half away from zero.

    The multiplier is a little more than 1 / count, by less than one part in 2**30. That moves every
    tie away from zero, and changes no other result. So rounding "even" is exact.

    Raises
    ------
    VdlaError
        When count is not in [1, 2**21], beyond which that argument does not hold.
    """
    if not 1 <= count <= 2**21:
        raise VdlaError(f"expected a mean over 1 to 2**21 values, got {count!r}")
    shift = MULTIPLIER_BITS - 1 + (count - 1).bit_length()
    multiplier = 2**shift // count + 1
    return Requant(
        np.array([multiplier], np.int32), np.array([shift], np.int32), zero_point, lo, hi
    )
