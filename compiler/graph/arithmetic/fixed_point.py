"""Fixed-point functions of TensorFlow Lite's reference kernels, on int64 arrays of int32 values.

A value in Q(i) has i integer bits: it means ``raw / 2**(31 - i)``. The algorithms are those of
gemmlowp's fixed-point header, because results must equal the kernels' to the last bit.
"""

from __future__ import annotations

import numpy as np

from ....isa.vector_ops import requantize_tflite

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
#: Bits by which an addition shifts its operands left before it rescales them.
ADD_SHIFT = 20

#: exp(-1/4), exp(-1/2), exp(-1) ... exp(-16) in Q0, by which exp_on_negative_values multiplies.
_EXP_FACTORS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
_EXP_MINUS_EIGHTH = 1895147668
_ONE_THIRD = 715827883
PLUS_48_OVER_17, NEG_32_OVER_17 = 1515870810, -1010580540  # in Q2


def rescale(x: np.ndarray, multiplier: np.ndarray | int, shift: np.ndarray | int) -> np.ndarray:
    """:func:`~vdla.isa.vector_ops.requantize_tflite` of int32 values in any integer type."""
    factors = (np.asarray(values, np.int32) for values in (multiplier, shift))
    return requantize_tflite(x.astype(np.int32), *factors)


def lifted(x: np.ndarray, zero: int, multiplier: int, shift: int) -> np.ndarray:
    """An int8 operand of an addition, less its zero point, shifted left and rescaled."""
    return rescale((x.astype(np.int32) - zero) << ADD_SHIFT, multiplier, shift)


def high_mul(a: np.ndarray, b: np.ndarray | int) -> np.ndarray:
    """Saturating rounding doubling high multiply: ``a * b / 2**31``, ties up."""
    return rescale(a, b, 0)


def divide_by_pot(x: np.ndarray, exponent: np.ndarray | int) -> np.ndarray:
    """``x / 2**exponent`` rounded half away from zero; int64, exponent >= 0."""
    exponent = np.asarray(exponent, np.int64)
    mask = (np.int64(1) << exponent) - 1
    threshold = (mask >> 1) + (x < 0)
    return (x >> exponent) + ((x & mask) > threshold)


def saturating_shift(x: np.ndarray, count: int) -> np.ndarray:
    """``x * 2**count``, saturated to int32; count >= 0."""
    return np.clip(x << count, INT32_MIN, INT32_MAX)


def exp_on_negative_values(x: np.ndarray, integer_bits: int = 5) -> np.ndarray:
    """exp(x) in Q0 of x <= 0 in Q(integer_bits), which is at most 5."""
    fraction_bits = 31 - integer_bits
    quarter = 1 << (fraction_bits - 2)
    below = (x & (quarter - 1)) - quarter
    result = _exp_near_zero(saturating_shift(below, integer_bits))
    remainder = below - x
    for position, factor in enumerate(_EXP_FACTORS[: integer_bits + 2]):
        bit = (remainder >> (fraction_bits - 2 + position)) & 1
        result = np.where(bit != 0, high_mul(result, factor), result)
    return np.where(x == 0, INT32_MAX, result)


def _exp_near_zero(a: np.ndarray) -> np.ndarray:
    """exp(a) in Q0 of -1/4 <= a < 0 in Q0: a Taylor series around -1/8."""
    x = a + (1 << 28)
    x2 = high_mul(x, x)
    x3, x4 = high_mul(x2, x), high_mul(x2, x2)
    quartic = high_mul(divide_by_pot(x4, 2) + x3, _ONE_THIRD) + x2
    return _EXP_MINUS_EIGHTH + high_mul(x + divide_by_pot(quartic, 1), _EXP_MINUS_EIGHTH)


def reciprocal_of_one_plus(a: np.ndarray) -> np.ndarray:
    """1 / (1 + a) in Q0 of 0 <= a < 1 in Q0: three steps of Newton and Raphson."""
    half_denominator = (a + INT32_MAX + 1) >> 1  # (a + 1) / 2, rounded; neither is negative
    x = PLUS_48_OVER_17 + high_mul(half_denominator, NEG_32_OVER_17)
    for _ in range(3):
        rest = (1 << 29) - high_mul(half_denominator, x)
        x = x + saturating_shift(high_mul(x, rest), 2)
    return saturating_shift(x, 1)
