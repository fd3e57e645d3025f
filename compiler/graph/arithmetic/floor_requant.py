"""Requantisation by products and sums of float32 that round down, where that is proved to be exact.

The CPU rounds ``x * factor + offset`` down once, to float32, and then down to an integer. The first
rounding does not change the floor. So the result is ``floor(x * factor + offset)`` of the exact
numbers for ``|x| <= 2**24``, and no smaller for a larger x. :func:`floor_requant` finds numbers for
which that equals :class:`~.requant.Requant`, or finds that there are none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .requant import MULTIPLIER_BITS, Requant

#: float32 holds all integers up to 2**EXACT_BITS; REST_BITS bits of a multiplier are beyond that.
EXACT_BITS = 24
REST_BITS = MULTIPLIER_BITS - EXACT_BITS
#: How many neighbours of a factor are tried, on each side.
NEIGHBOURS = 4


@dataclass(frozen=True, eq=False)
class FloorRequant:
    """``y = clamp(floor(x * factor + offset), lo, hi)``, where ``x = acc + bias``; or with a
    ``rest``, ``y = clamp(floor(x * factor + down(x * rest + offset)), lo, hi)``, where ``down``
    rounds to float32.

    Attributes
    ----------
    bias : int32 array, shape [OC]; it includes the zero point of the result and the half that
        rounding adds, so that the offset is small and can be precise
    factor, offset : float32 arrays, shape [OC]
    rest : float32 array, shape [OC], or None
    """

    bias: np.ndarray
    factor: np.ndarray
    offset: np.ndarray
    rest: np.ndarray | None = None


def floor_requant(requant: Requant, largest: np.ndarray) -> FloorRequant | None:
    """The FloorRequant that equals a Requant with rounding "even" for ``|acc| <= largest`` (int64
    array, shape [OC]), or None.

    Both are monotone in acc and clamped, so they are equal everywhere if they are equal where the
    result changes: for each k from lo on, at ``last[k]``, the last acc whose result is at most k,
    and at the next acc. With ``factor = f / 2**e`` and ``offset = c / 2**e`` that requires

    ``f * last[k] + c < (k + 1) * 2**e <= f * (last[k] + 1) + c``,

    which is an interval of c for each f. Long sums have small scales, which make the interval
    narrow; then the rest of the multiplier is needed, too. Where ties round up and down in turn,
    there is no such c, and the result is None.
    """
    multiplier = np.broadcast_to(requant.multiplier, largest.shape).astype(np.int64)
    shift = np.broadcast_to(requant.shift, largest.shape).astype(np.int64)
    if requant.lo == requant.hi or shift.min() <= REST_BITS or shift.max() > 2 * EXACT_BITS:
        return None  # else all products below fit int64
    bias = np.rint((requant.zero_point + 0.5) * 2.0**shift / multiplier).astype(np.int64)
    last = _last(requant, multiplier, shift) + bias[:, None]
    if not _fits(last, largest + np.abs(bias), multiplier / 2.0**shift):
        return None
    found = _one_product(requant, multiplier, shift - REST_BITS, last)
    found = _two_products(requant, multiplier, shift, last) if found is None else found
    return None if found is None else FloorRequant(bias.astype(np.int32), *found)


def _last(requant: Requant, multiplier: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """The last acc whose result is at most k, [OC, hi - lo], for k from lo to hi - 1. Scaled, it is
    less than k + 1/2 (k less the zero point), or equal to it where that rounds down to an even
    number."""
    whole = np.arange(requant.lo, requant.hi) - requant.zero_point
    half = (2 * whole + 1) << (shift[:, None] - 1)
    last, rest = np.divmod(half, multiplier[:, None])
    return last - ((rest == 0) & (whole % 2 == 1))


def _fits(last: np.ndarray, largest: np.ndarray, scale: np.ndarray) -> bool:
    """Whether the numbers that are compared are exact, and others, which are clamped, do not
    overflow.
    """
    exact = -(2**EXACT_BITS) <= last.min() and last.max() < 2**EXACT_BITS
    limit = 2**31 - 256
    return bool(exact and largest.max() < limit and (largest * scale).max() < limit)


def _interval(
    requant: Requant, factor: np.ndarray, exponent: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest offset for a factor of each channel, in units of ``2**-exponent``.
    Where there is no offset, the least is above the largest."""
    room = np.arange(requant.lo + 1, requant.hi + 1) << exponent[:, None]
    room -= factor[:, None] * last
    return room.max(-1) - factor, room.min(-1) - 1


def _one_product(
    requant: Requant, multiplier: np.ndarray, exponent: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Factor and offset, or None. Of the float32 numbers around the scale, a channel's factor is
    the one with the most offsets.
    """
    steps = np.arange(1 - NEIGHBOURS, NEIGHBOURS + 1)[:, None]
    factors = (multiplier >> REST_BITS) + steps
    factors = np.clip(factors, 2 ** (EXACT_BITS - 1), 2**EXACT_BITS)
    found = (_interval(requant, factor, exponent, last) for factor in factors)
    low, high = map(np.stack, zip(*found, strict=True))
    best = (high - low).argmax(0), np.arange(len(exponent))
    offset = _between(low[best], high[best])
    return None if offset is None else (_scaled(factors[best], exponent), _scaled(offset, exponent))


def _two_products(
    requant: Requant, multiplier: np.ndarray, shift: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Factor, offset and rest, or None; factor and rest add up to the exact scale. The least offset
    is larger by as much as rounding ``x * rest + offset`` down may take away."""
    low, high = _interval(requant, multiplier, shift, last)
    rest = multiplier % 2**REST_BITS
    largest = rest * np.abs(last).max(-1) + np.maximum(np.abs(low), np.abs(high))
    offset = _between(low + (largest >> (EXACT_BITS - 1)) + 1, high)
    if offset is None:
        return None
    return _scaled(multiplier - rest, shift), _scaled(offset, shift), _scaled(rest, shift)


def _between(low: np.ndarray, high: np.ndarray) -> np.ndarray | None:
    """float32 numbers, each in the middle of an interval."""
    middle = ((low + high) // 2).astype(np.float32)
    return None if ((middle < low) | (middle > high)).any() else middle


def _scaled(number: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """``number / 2**exponent`` as float32, exact."""
    return np.ldexp(number.astype(np.float32), -exponent)
