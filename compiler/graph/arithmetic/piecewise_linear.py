"""Any function of one int8 as a piecewise linear sum that the vector unit computes.

::

    y = clamp((bias + sum over k of slopes[k] * max(x, knots[k])) / 2**FRACTION_BITS + 0, lo, hi)

Rounding is half to even, and sums are int32 and wrap. Every table has this form, at worst with a
knot at every value. The search finds the fewest pieces that stay within half a step of the table,
since each piece takes two cycles per vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....isa.vector_ops import shift_right_half_even
from .requant import INT8_MAX, INT8_MIN

#: Fraction of the sum: 256 steps of it leave three bits of int32.
FRACTION_BITS = 20
#: Distances of knots from the table, in steps.
OFFSETS = np.arange(-4, 5) / 8
#: How far lines may be from the table's values: half a step, as a tie may round to the table's
#: value; where one does not, a little less.
TOLERANCES = (0.5 + 1e-9, 0.49)
EVERYWHERE = 1e4


@dataclass(frozen=True, eq=False)
class PiecewiseLinear:
    """The sum's numbers: ``knots`` and ``slopes`` int32 [K]; see the module."""

    knots: np.ndarray
    slopes: np.ndarray
    bias: int
    lo: int
    hi: int

    def apply(self, x: np.ndarray) -> np.ndarray:
        """The function of int8 ``x``."""
        terms = np.maximum(x.astype(np.int64)[..., None], self.knots) * self.slopes.astype(np.int64)
        total = (terms.sum(axis=-1) + self.bias).astype(np.int32).astype(np.int64)
        rounded = shift_right_half_even(total, np.asarray(FRACTION_BITS))
        return np.clip(rounded, self.lo, self.hi).astype(np.int8)


def fit_piecewise_linear(table: np.ndarray) -> PiecewiseLinear | None:
    """The fewest pieces that give every value of an int8 [256] table; None if none were found."""
    for tolerance in TOLERANCES:
        path = _path(table, tolerance)
        found = None if path is None else _sum(path, int(table.min()), int(table.max()))
        if found and np.array_equal(found.apply(np.arange(INT8_MIN, INT8_MAX + 1)), table):
            return found
    return None


def _sum(path: np.ndarray, lo: int, hi: int) -> PiecewiseLinear:
    """The polyline through the corners in integers."""
    values = np.rint(path[:, 1] * 2**FRACTION_BITS).astype(np.int64)
    indices = path[:, 0].astype(np.int64) + INT8_MIN
    steps = np.rint(np.diff(values) / np.diff(indices)).astype(np.int64)
    slopes, knots = np.diff(steps, prepend=0), indices[:-1]
    # At the first index every maximum is a knot.
    bias = (values[0] - (slopes * knots).sum()).astype(np.int32)
    return PiecewiseLinear(knots.astype(np.int32), slopes.astype(np.int32), int(bias), lo, hi)


def _path(table: np.ndarray, tolerance: float) -> np.ndarray | None:
    """Corners (index, value) [K + 1, 2] of the polyline with the fewest pieces that stays within
    the tolerance of the table: a breadth-first search over indices and offsets.
    """
    y = table.astype(np.float64)
    # Beyond the lowest and highest value the clamp takes over.
    below = np.where(table == table.min(), -EVERYWHERE, y - tolerance)
    above = np.where(table == table.max(), EVERYWHERE, y + tolerance)
    corners = y[:, None] + OFFSETS
    count = len(OFFSETS)
    before = np.full(len(y) * count, -1)
    front = np.flatnonzero(np.abs(OFFSETS) <= tolerance).tolist()
    reached = np.zeros(len(before), bool)
    reached[front] = True
    while front:
        following = []
        for state in front:
            index, offset = divmod(state, count)
            far = np.flatnonzero(_visible(index, corners[index, offset], corners, below, above))
            new = far[~reached[far + (index + 1) * count]] + (index + 1) * count
            before[new], reached[new] = state, True
            following += new.tolist()
        ends = [s for s in following if s // count == len(y) - 1]
        if ends:
            return _trace(ends[0], before, corners)
        front = following
    return None


def _visible(
    index: int, value: float, corners: np.ndarray, below: np.ndarray, above: np.ndarray
) -> np.ndarray:
    """Which corners (flattened) a line from ``index`` can reach and stay within the bounds."""
    distance = np.arange(1, len(below) - index)
    least = np.maximum.accumulate((below[index + 1 :] - value) / distance)
    most = np.minimum.accumulate((above[index + 1 :] - value) / distance)
    slopes = (corners[index + 1 :] - value) / distance[:, None]
    return ((slopes >= least[:, None]) & (slopes <= most[:, None])).reshape(-1)


def _trace(end: int, before: np.ndarray, corners: np.ndarray) -> np.ndarray:
    states = [end]
    while before[states[-1]] >= 0:
        states.append(int(before[states[-1]]))
    count = corners.shape[1]
    return np.array([(s // count, corners[s // count, s % count]) for s in reversed(states)])
