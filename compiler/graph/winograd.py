"""Winograd's convolution: a tile of m x m results of a 3 x 3 kernel by (m + 2)**2 products.

::

    y = A' ((G g G') * (B' d B)) A        d a tile of the image, g the kernel, * by elements

G, B and A evaluate polynomials at the points 0, +-p for each of ``POINTS[m]`` and infinity, multiply
them there and interpolate (Toom and Cook): a row of m results takes m + 2 products instead of 3 m.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

KERNEL = 3
#: Positive points by results in a row of a tile; the negative ones, 0 and infinity belong to them.
POINTS = {2: (1.0,), 4: (1.0, 2.0)}


@dataclass(frozen=True, eq=False)
class Matrices:
    """Of n = m + 2 points, in float64: ``image`` B' [n, n], ``kernel`` G [n, 3], ``result`` A'
    [m, n]."""

    image: np.ndarray
    kernel: np.ndarray
    result: np.ndarray


@cache
def matrices(size: int) -> Matrices:
    """The transformations of tiles of ``size`` x ``size`` results."""
    points = [0.0, *(sign * p for p in POINTS[size] for sign in (1.0, -1.0))]
    count = len(points) + 1
    image, kernel = np.zeros((count, count)), np.zeros((count, KERNEL))
    result = np.zeros((size, count))
    for row, point in enumerate(points):
        others = np.array([p for p in points if p != point])
        image[row, : count - 1] = np.poly(others)[::-1]
        kernel[row] = point ** np.arange(KERNEL) / np.prod(point - others)
        result[:, row] = point ** np.arange(size)
    image[-1] = np.poly(points)[::-1]
    kernel[-1, -1] = result[-1, -1] = 1.0
    return Matrices(image, kernel, result)


def transformed_weight(weight: np.ndarray, size: int) -> np.ndarray:
    """Kernels [..., 3, 3] at the points [n, n, ...], rounded once to their dtype."""
    kernel = matrices(size).kernel
    exact = np.einsum("ia,...ab,jb->ij...", kernel, weight.astype(np.float64), kernel)
    return exact.astype(weight.dtype)
