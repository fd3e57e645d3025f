"""Fixed-point functions against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from vdla.compiler.graph.arithmetic.fixed_point import (
    divide_by_pot,
    exp_on_negative_values,
    high_mul,
)

LIMIT = 2**31


@pytest.mark.parametrize("exponent", [0, 1, 2, 5, 31])
def test_division_rounds_half_away_from_zero(exponent: int) -> None:
    x = np.array([*range(-70, 71), -LIMIT, LIMIT - 1, -LIMIT // 2, LIMIT // 2], np.int64)
    exact = [Fraction(int(value), 2**exponent) for value in x]
    expected = [int(math.copysign(math.floor(abs(v) + Fraction(1, 2)), v)) for v in exact]
    assert divide_by_pot(x, exponent).tolist() == expected


@pytest.mark.parametrize("b", [1, 3, -1, -3, 2**30, -(2**30), LIMIT - 1])
def test_products_round_ties_up(b: int) -> None:
    a = np.array([0, 1, -1, 3, -3, 2**30, -(2**30), 2**29 + 1, LIMIT - 1, -LIMIT], np.int64)
    expected = [math.floor(Fraction(int(v) * b, LIMIT) + Fraction(1, 2)) for v in a]
    assert high_mul(a, b).tolist() == expected


def test_exponential_is_close_everywhere() -> None:
    x = -np.linspace(0, LIMIT, 5001).astype(np.int64)  # 0 to -32 in Q5
    real = np.exp(x / 2.0**26)
    assert np.abs(exp_on_negative_values(x) / LIMIT - real).max() < 2.0**-21
