"""Functions of int8 that scale and shift, in integers.

A real scale and a real offset, followed by rounding and a clamp, as in a QDQ pair around an
addition of a constant, are 256 values. They are computed as::

    clamp(round_half_even((x*mult + const) / 2**shift) + zero_point)

with one multiplier for many functions of equal scale.
"""

from __future__ import annotations

import numpy as np

from .requant import INT8_MAX, INT8_MIN

INT32_LIMIT = 2**31
#: How far a multiplier may be from the nearest one.
REACH = 3
#: The end of a range that has none.
OPEN = 2**62


def find_constants(
    tables: np.ndarray, ratio: float, zero_point: int
) -> tuple[int, int, np.ndarray] | None:
    """The (mult, shift, const) that give every value of every table; None if there are none.

    Parameters
    ----------
    tables : int8 [C, 256], values for x from -128 to 127, which grow by about ``ratio`` for each x
    ratio : the scale of x in units of the result's
    zero_point : the result's
    """
    x = np.arange(INT8_MIN, INT8_MAX + 1)
    steps = tables.astype(np.int64) - zero_point
    largest = np.abs(steps).max() + 2 + 256 * ratio
    shift = next((s for s in range(30, 0, -1) if largest * 2**s < INT32_LIMIT), None)
    if shift is None:
        return None
    nearest = round(ratio * 2**shift)
    for mult in sorted(range(nearest - REACH, nearest + REACH + 1), key=lambda m: abs(m - nearest)):
        # floor((x*mult + c) / 2**shift) == steps; what is beyond a bound of int8 is as good.
        total = x * mult
        low = np.where(tables == INT8_MIN, -OPEN, (steps << shift) - total).max(axis=1)
        high = np.where(tables == INT8_MAX, OPEN, ((steps + 1) << shift) - total).min(axis=1)
        # Between the two, so that half to even rounds as half up does.
        const = _between(low, high) - 2 ** (shift - 1)
        fits = 128 * mult + np.abs(const).max() + 2**shift < INT32_LIMIT
        if (low < high - 1).all() and fits:
            return mult, shift, const.astype(np.int32)
    return None


def _between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The middle of ranges; of one that is open on one side, the number next to its other end."""
    low = np.where(low == -OPEN, high - 2, low)
    return (low + np.where(high == OPEN, low + 2, high)) // 2
