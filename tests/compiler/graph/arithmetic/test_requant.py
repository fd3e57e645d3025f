"""Requantisation against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vdla.compiler.graph.arithmetic.requant import (
    Requant,
    add_params,
    defined_add_params,
    requant,
    requant_params,
)
from vdla.isa.errors import VdlaError
from vdla.isa.vector_ops import shift_right_half_even

SCALES = st.floats(min_value=2.0**-31, max_value=2.0**29, allow_nan=False)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT8 = st.integers(-128, 127)


@given(st.integers(-(2**62), 2**62), st.integers(0, 62))
def test_shift_rounds_half_to_even(value: int, shift: int) -> None:
    got = int(shift_right_half_even(np.array([value], np.int64), np.asarray(shift))[0])
    assert got == round(Fraction(value, 2**shift))


@given(SCALES)
def test_params_are_in_range_and_nearest(scale: float) -> None:
    multiplier, shift = requant_params(scale)
    assert 2**30 <= multiplier < 2**31 and 1 <= shift <= 62
    assert abs(Fraction(multiplier, 2**shift) / Fraction(scale) - 1) <= Fraction(1, 2**31)


@given(INT32, SCALES, INT8)
def test_requant_equals_exact_arithmetic(acc: int, scale: float, zero: int) -> None:
    made = requant(np.array([scale]), zero)
    exact = Fraction(acc) * Fraction(int(made.multiplier[0]), 2 ** int(made.shift[0]))
    expected = min(max(round(exact) + zero, -128), 127)
    assert made.apply(np.array([[acc]], np.int32)).tolist() == [[expected]]


def test_requant_is_per_channel_and_clamps() -> None:
    multiplier = np.array([2**30, 2**30], np.int32)
    made = Requant(multiplier, np.array([30, 31], np.int32), zero_point=1, lo=-2, hi=5)
    acc = np.array([[3, 3], [100, 1], [-100, 5]], np.int32)
    assert made.apply(acc).tolist() == [[4, 3], [5, 1], [-2, 3]]


@pytest.mark.parametrize("scale", [2.0**-33, 1e-30, 5e-324])
def test_tiny_scales_round_everything_to_zero(scale: float) -> None:
    made = requant(np.array([scale]), 0)
    acc = np.array([[-(2**31)], [2**31 - 1], [1]], np.int32)
    assert not made.apply(acc).any()


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 2.0**30])
def test_scales_out_of_range_are_refused(scale: float) -> None:
    with pytest.raises(VdlaError, match="to requantise by, got"):
        requant_params(scale)


@given(st.floats(2.0**-10, 2.0**10), st.floats(2.0**-10, 2.0**10), INT8, INT8, INT8, INT8)
def test_add_fits_int32_and_is_close(
    ratio_a: float, ratio_b: float, zero_a: int, zero_b: int, a: int, b: int
) -> None:
    factors, shift, const = add_params((ratio_a, ratio_b), (zero_a, zero_b))
    terms = [a * factors[0], b * factors[1], const]
    sums = [terms[i] + terms[j] for i in range(3) for j in range(i)] + [sum(terms)]
    assert all(abs(v) + 2 ** (shift - 1) < 2**31 for v in terms + sums)
    real = (a - zero_a) * ratio_a + (b - zero_b) * ratio_b
    # Each multiplier is off by at most half a unit of 2**-shift, times at most 255.
    assert abs(sum(terms) / 2**shift - real) <= 255 / 2**shift + 1e-9 * abs(real)
    assert 1 <= shift <= 30


def _not_as_defined(params, scales, zeros, lo, hi) -> int:
    """Pairs of int8 values whose sum is not that of ONNX's float32 operators."""
    factors, shift, const = params
    b = np.arange(-128, 128, dtype=np.int64)
    a = b[:, None]
    first, second, third = terms = a * factors[0], b * factors[1], np.asarray(const)
    sums = (*terms, first + second, first + third, second + third, sum(terms))
    assert all(np.abs(value).max() + 2 ** (shift - 1) < 2**31 for value in sums)
    got = np.clip(shift_right_half_even(sum(terms), np.asarray(shift)) + zeros[2], lo, hi)
    scale_a, scale_b, scale = np.float32(scales)
    real = np.float32(a - zeros[0]) * scale_a + np.float32(b - zeros[1]) * scale_b
    return int((got != np.clip(np.rint(real / scale) + zeros[2], lo, hi)).sum())


@pytest.mark.slow
def test_sums_are_as_defined() -> None:
    rng = np.random.default_rng(0)
    nearest = found = 0
    for _ in range(60):
        scale_a, scale_b = map(float, rng.uniform(0.01, 0.1, 2))
        scale = (scale_a + scale_b) * float(rng.uniform(0.4, 1))
        zeros = tuple(int(zero) for zero in rng.integers(-128, 128, 3))
        lo = int(rng.choice([-128, zeros[2]]))
        asked = (scale_a, scale_b, scale), zeros, lo, 127
        ratios = [float(np.float32(s)) / float(np.float32(scale)) for s in (scale_a, scale_b)]
        nearest += _not_as_defined(add_params(ratios, zeros[:2]), *asked)
        found += _not_as_defined(defined_add_params(*asked), *asked)
    assert nearest >= 10 and found <= nearest // 10


@pytest.mark.parametrize("ratio", [0.0, math.inf, 2.0**25])
def test_addends_out_of_range_are_refused(ratio: float) -> None:
    with pytest.raises(VdlaError, match="scale"):
        add_params((ratio, 1.0), (0, 0))
