"""Rescaling in float32: the same as the integer formula wherever it is used, and refused where it
cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from vdla.compiler.graph.arithmetic.floor_requant import FloorRequant, floor_requant
from vdla.compiler.graph.arithmetic.requant import Requant, requant

INT32_MAX = 2**31 - 1


def apply(found: FloorRequant, like: Requant, acc: np.ndarray) -> np.ndarray:
    """Exact, in int64 units of a multiplier's last bit: acc [OC, N] to int8."""
    shift = np.broadcast_to(like.shift, len(acc)).astype(np.int64)[:, None]

    def units(numbers: np.ndarray) -> np.ndarray:
        assert numbers.dtype == np.float32
        exact = np.ldexp(numbers.astype(np.float64)[:, None], shift)
        assert (exact % 1 == 0).all()
        return exact.astype(np.int64)

    x = acc.astype(np.int64) + found.bias[:, None]
    assert np.abs(x).max() <= 2**24
    offset = units(found.offset)
    if found.rest is not None:
        exact = units(found.rest) * x + offset
        nearest = exact.astype(np.float32)
        below = np.nextafter(nearest, np.float32(-np.inf))
        offset = np.where(nearest > exact, below, nearest).astype(np.int64)
    floor = (units(found.factor) * x + offset) >> shift
    return np.clip(floor, like.lo, like.hi).astype(np.int8)


@pytest.mark.slow
@pytest.mark.parametrize(("zero_point", "lo", "hi"), [(-128, -128, 127), (0, 0, 127), (5, -9, 90)])
def test_all_results_are_those_of_the_integer_formula(zero_point: int, lo: int, hi: int) -> None:
    """Every acc of short sums, of channels of many scales."""
    rng = np.random.default_rng(0)
    like = requant(2.0 ** rng.uniform(-8, 3, 32), zero_point, lo, hi)
    found = floor_requant(like, np.full(32, 2**16))
    assert found is not None
    acc = np.tile(np.arange(-(2**16), 2**16), (32, 1))
    np.testing.assert_array_equal(apply(found, like, acc), like.apply(acc.astype(np.int32), axis=0))


@pytest.mark.parametrize(
    ("least", "most", "products"), [(-8, 0, {1}), (-11, -9, {1, 2}), (-16, -13, {2})]
)
def test_thresholds_decide(least: int, most: int, products: set[int]) -> None:
    """Neighbours of every change agree; long sums, whose scales are small, take two products."""
    rng = np.random.default_rng(1)
    taken = set()
    for scales in 2.0 ** rng.uniform(least, most, (60, 8)):
        like = requant(scales, 3)
        found = floor_requant(like, np.full(8, 2**28))
        assert found is not None
        taken.add(1 if found.rest is None else 2)
        middle = (np.arange(-140, 140) + 0.5) / scales[:, None]
        acc = (np.rint(middle)[..., None] + np.arange(-3, 4)).reshape(8, -1).astype(np.int32)
        np.testing.assert_array_equal(apply(found, like, acc), like.apply(acc, axis=0))
    assert taken == products


def test_ties_to_even_are_refused() -> None:
    """A half is rounded down after an even number and up after an odd one: no line does both."""
    assert floor_requant(requant(np.array([0.5]), 0), np.array([999])) is None
    assert floor_requant(requant(np.array([0.3, 0.125]), -128), np.array([999, 999])) is None


@pytest.mark.parametrize("lo", range(-4, 4))
def test_one_tie_goes_to_even(lo: int) -> None:
    like = requant(np.array([0.5]), 0, lo, lo + 1)
    found = floor_requant(like, np.array([999]))
    assert found is not None
    acc = np.arange(-20, 20, dtype=np.int32)[None]
    np.testing.assert_array_equal(apply(found, like, acc), like.apply(acc, axis=0))


@pytest.mark.parametrize("bounds", [(-128, 0), (0, 127)])
def test_sums_beyond_float32_are_refused(bounds: tuple[int, int]) -> None:
    for scale, fits in ((2.0**-16, False), (2.0**-16.1, True), (0.99 * 2.0**-17, False)):
        found = floor_requant(requant(np.array([scale]), 0, *bounds), np.array([2**28]))
        assert (found is not None) == fits  # the first has ties


def test_what_may_overflow_is_refused() -> None:
    """Of sums with the zero point, and of results before they are clamped."""
    like = requant(np.array([0.01]), 100)
    assert floor_requant(like, np.array([INT32_MAX - 10_500])) is not None
    assert floor_requant(like, np.array([INT32_MAX - 9_500])) is None
    assert floor_requant(requant(np.array([8.01]), 0), np.array([2**27])) is not None
    assert floor_requant(requant(np.array([8.01]), 0), np.array([2**28])) is None
    assert floor_requant(requant(np.array([2.0**-20]), 0), np.array([2**28])) is None
    assert floor_requant(requant(np.array([2.0**25]), 0), np.array([9])) is None
