"""Requantisation by one product and sum of float32, where that is proved to be exact.

The CPU rounds ``x * factor + offset`` down once, from float32 to float32, and then to an integer;
neither changes the floor. So its result is ``floor(x * factor + offset)`` of the exact numbers, for
``|x| <= 2**24``, and no smaller for a larger x. :func:`floor_requant` finds numbers with which it
is what :class:`~.requant.Requant` computes, or that there are none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .requant import MULTIPLIER_BITS, Requant

#: Integers up to 2**24 are float32.
EXACT_BITS = 24
#: How many neighbours of a factor are tried, on each side.
NEIGHBOURS = 4


@dataclass(frozen=True, eq=False)
class FloorRequant:
    """``y = clamp(floor((acc + bias) * factor + offset), lo, hi)`` equals a Requant's result.

    Attributes
    ----------
    bias : int32 array, shape [OC]; it has the zero point of the result in it, so that the offset
        is small and may be fine
    factor, offset : float32 arrays, shape [OC]
    """

    bias: np.ndarray
    factor: np.ndarray
    offset: np.ndarray


def floor_requant(requant: Requant, largest: np.ndarray) -> FloorRequant | None:
    """The same as a Requant that rounds "even", for ``|acc| <= largest``: int64 array, shape [OC].

    Both are monotone in acc and clamped, so they are equal everywhere if they are where the result
    changes: for each k from lo on, at the last acc whose result is k at most, ``last[k]``, and at
    the one behind it. With ``factor = f / 2**e`` and ``offset = c / 2**e`` that asks for

    ``f * last[k] + c < (k + 1) * 2**e <= f * (last[k] + 1) + c``,

    an interval of c for each f. Scales of long sums are small, which makes it narrow, and ties that
    are rounded to even in turns leave none: then the result is None.
    """
    if requant.lo == requant.hi:
        return None
    multiplier = np.broadcast_to(requant.multiplier, largest.shape).astype(np.int64)
    shift = np.broadcast_to(requant.shift, largest.shape).astype(np.int64)
    exponent = shift - (MULTIPLIER_BITS - EXACT_BITS)
    if exponent.min() < 1 or shift.max() > 2 * EXACT_BITS:  # all products below fit int64
        return None
    bias = np.rint(requant.zero_point * 2.0**shift / multiplier).astype(np.int64)
    last = _last(requant, multiplier, shift) + bias[:, None]
    if not _fits(last, largest + np.abs(bias), multiplier / 2.0**shift):
        return None
    factor, low, high = _widest(requant, multiplier, exponent, last)
    offset = ((low + high) // 2).astype(np.float32)
    if ((offset < low) | (offset > high)).any():
        return None
    scale = 2.0**-exponent
    return FloorRequant(
        bias.astype(np.int32),
        (factor * scale).astype(np.float32),
        offset * scale.astype(np.float32),
    )


def _last(requant: Requant, multiplier: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """The last acc whose result is k at most, [OC, hi - lo], for k from lo to hi - 1: it is scaled
    to less than the half behind it, or to that where this is rounded down, to an even number."""
    whole = np.arange(requant.lo, requant.hi) - requant.zero_point
    half = (2 * whole + 1) << (shift[:, None] - 1)
    last, rest = np.divmod(half, multiplier[:, None])
    return last - ((rest == 0) & (whole % 2 == 1))


def _fits(last: np.ndarray, largest: np.ndarray, scale: np.ndarray) -> bool:
    """Whether what is compared is exact, and nothing overflows that is only clamped."""
    exact = -(2**EXACT_BITS) <= last.min() and last.max() < 2**EXACT_BITS
    limit = 2**31 - 256
    return bool(exact and largest.max() < limit and (largest * scale).max() < limit)


def _widest(
    requant: Requant, multiplier: np.ndarray, exponent: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the factors that are float32 around the scale, each channel's with the widest interval of
    offsets, and that interval, in units of ``2**-exponent``; low is above high in an empty one."""
    nearest = multiplier >> (MULTIPLIER_BITS - EXACT_BITS)
    steps = np.arange(1 - NEIGHBOURS, NEIGHBOURS + 1)[:, None]
    factors = np.clip(nearest + steps, 2 ** (EXACT_BITS - 1), 2**EXACT_BITS)
    bounds = np.arange(requant.lo + 1, requant.hi + 1) << exponent[:, None]
    low = (bounds - factors[..., None] * (last + 1)).max(-1)
    high = (bounds - 1 - factors[..., None] * last).min(-1)
    best = (high - low).argmax(0), np.arange(len(exponent))
    return factors[best], low[best], high[best]
