"""The operands of TensorFlow Lite's addition, computed by products and shifts that fit 32 bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .fixed_point import ADD_SHIFT, rescale
from .requant import INT8_MAX, INT8_MIN

FRACTION_BITS = 23  # 128 * 2**23 + 2**23 is below 2**31
REACH = 3


@dataclass(frozen=True)
class Lift:
    """A rescaled operand, in int32 for every int8 x.

    ::

        h = x * high + ((x * low + rest) >> FRACTION_BITS) + offset      the high multiply
        h / 2**shift, rounded half away from zero                        the divide
    """

    high: int
    low: int
    rest: int
    offset: int
    shift: int


def lift(zero: int, multiplier: int, shift: int) -> Lift | None:
    """The :class:`Lift` that equals ``fixed_point.lifted(x, zero, multiplier, shift)`` for every
    int8 x; None if there is none.
    """
    if not 0 <= shift <= 30:
        return None
    x = np.arange(INT8_MIN, INT8_MAX + 1, dtype=np.int64)
    h = rescale((x - zero) << ADD_SHIFT, multiplier, 0).astype(np.int64)
    high, fraction = divmod(multiplier, 1 << (31 - ADD_SHIFT))
    nearest = fraction << (FRACTION_BITS - 31 + ADD_SHIFT)
    for step in sorted(range(-REACH, REACH + 1), key=abs):
        low = nearest + step
        wanted = h - x * high
        least = ((wanted << FRACTION_BITS) - x * low).max()
        most = (((wanted + 1) << FRACTION_BITS) - x * low).min() - 1
        if least <= most and low >= 0:
            offset, rest = divmod(int((least + most) // 2), 2**FRACTION_BITS)
            return Lift(high, low, rest, offset, shift)
    return None
