"""Winograd's convolution on this processor: where it pays, and its weights.

``topi/winograd.py`` has the algorithm, ``winograd_schedule.py`` its schedule.
"""

from __future__ import annotations

import math

import numpy as np

from ...topi.winograd import KERNEL, POINTS, matrices, points_of

Shape = tuple[int, ...]

#: Fewer channels, and layers of fewer cycles, stay as they are: nothing is gained there that would
#: be worth a larger error.
MIN_CHANNELS, MIN_CYCLES = 32, 1 << 16
#: Of the direct convolution's cycles.
PAYS_BELOW = 0.85
#: What it takes to transform a vector, into a tile's points or back, measured.
CYCLES_PER_POINT = 8
#: Kernels that are transformed at once: their products in float64 stay in the cache.
SLAB = 1024
#: How fast weights come from memory, measured on one core.
WEIGHT_BYTES_PER_CYCLE = 7


def transformed_weight(weight: np.ndarray, size: int) -> np.ndarray:
    """Kernels [..., 3, 3] at the points [n, n, ...], rounded once to their dtype."""
    kernel = matrices(size).kernel
    taps, both = weight.reshape(-1, KERNEL**2), np.kron(kernel, kernel)
    result = np.empty((len(both), len(taps)), weight.dtype)
    for first in range(0, len(taps), SLAB):
        part = slice(first, first + SLAB)
        result[:, part] = both @ taps[part].T.astype(np.float64)
    return result.reshape(*[points_of(size)] * 2, *weight.shape[:-2])


def tile_size(image: Shape, result: Shape, block: int) -> int | None:
    """The tiles that a convolution of 3 x 3, [N, C, H, W] to [N, OC, OH, OW], is computed by on
    blocks of channels; None where it does not pay."""
    channels, features = image[1], result[1]
    if min(channels, features) < MIN_CHANNELS:
        return None
    direct = _direct_cycles(channels, features, result[2:], block)
    if direct < MIN_CYCLES:
        return None
    costs = {size: _cycles(size, channels, features, result[2:], block) for size in POINTS}
    best = min(costs, key=lambda size: costs[size])
    return best if costs[best] < PAYS_BELOW * direct else None


def _direct_cycles(channels: int, features: int, result: Shape, block: int) -> float:
    """For an image, at one product of vectors a cycle."""
    taps = KERNEL**2 * channels * -(-features // block)
    return max(taps * math.prod(result), taps * 4 * block / WEIGHT_BYTES_PER_CYCLE)


def _cycles(size: int, channels: int, features: int, result: Shape, block: int) -> float:
    """As :func:`_direct_cycles`: products while the weights arrive, and transformations."""
    tiles = math.prod(-(-extent // size) for extent in result)
    points, blocks = points_of(size) ** 2, -(-features // block)
    weights = points * channels * blocks
    products = max(weights * tiles, weights * 4 * block / WEIGHT_BYTES_PER_CYCLE)
    vectors = points * tiles * (-(-channels // block) + blocks)
    return products + vectors * CYCLES_PER_POINT
