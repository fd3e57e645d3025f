"""Transposed convolution as ordinary convolutions whose results interleave."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

Pair = tuple[int, int]


@dataclass(frozen=True)
class Subpixel:
    """One dimension of a transposed convolution, phase by phase.

    Position ``stride * q + p`` of the result, in phase p, sums ``taps`` elements of the image,
    at ``q + first + shift * p + u`` for u in 0..taps, each times element
    :meth:`kernel_position` of the kernel. There are ``positions`` values of q.
    """

    stride: int
    before: int
    kernel: int
    positions: int
    first: int
    shift: int
    taps: int

    def kernel_position(self, phase: int, tap: int) -> int | None:
        """The kernel's element that a tap of a phase multiplies by; None beyond its ends."""
        source = self.first + self.shift * phase + tap
        position = phase + self.before - self.stride * source
        return position if 0 <= position < self.kernel else None

    @property
    def reach(self) -> int:
        """Elements of the image that all phases of one position read."""
        return self.shift * (self.stride - 1) + self.taps

    def pads(self, size: int) -> tuple[int, int]:
        """Elements beyond the beginning and the end of an image of ``size`` that are read."""
        return max(0, -self.first), max(0, self.first + self.positions - 1 + self.reach - size)


def subpixel(kernel: int, stride: int, before: int, size: int) -> Subpixel | None:
    """The decomposition with the fewest taps, for a result of ``size``; None if its phases are not
    equally long."""
    if size % stride:
        return None
    found = []
    for shift in (0, 1):
        # Phase p reads the image at q + e where 0 <= p + before - stride * e < kernel.
        sources = [
            range(-(-(p + before - kernel + 1) // stride), (p + before) // stride + 1)
            for p in range(stride)
        ]
        relative = [e - shift * p for p, offsets in enumerate(sources) for e in offsets]
        first = min(relative, default=0)
        taps = max(relative, default=0) - first + 1
        found.append(Subpixel(stride, before, kernel, size // stride, first, shift, taps))
    return min(found, key=lambda choice: choice.taps)


def subpixels(
    kernel: Pair, strides: Pair, before: Pair, size: Pair
) -> tuple[Subpixel, Subpixel] | None:
    """The decompositions of rows and columns, or None if one of them has none."""
    rows, cols = (
        subpixel(k, s, b, n) for k, s, b, n in zip(kernel, strides, before, size, strict=True)
    )
    return (rows, cols) if rows and cols else None


def phase_weights(weight: np.ndarray, rows: Subpixel, cols: Subpixel) -> np.ndarray:
    """[C,OC,KH,KW] to [row phases, column phases, OC, C, row taps, column taps], of its dtype."""
    channels, out_channels = weight.shape[:2]
    taps = (rows.taps, cols.taps)
    phases = (rows.stride, cols.stride)
    made = np.zeros((*phases, out_channels, channels, *taps), weight.dtype)
    for p, q, u, v in product(*map(range, (*phases, *taps))):
        y, x = rows.kernel_position(p, u), cols.kernel_position(q, v)
        if y is not None and x is not None:
            made[p, q, :, :, u, v] = weight[:, :, y, x].T
    return made
