"""The algorithm of a convolution: direct, or Winograd's, where it pays; and its weights."""

from __future__ import annotations

import math

import numpy as np

from ....choose.space import Knobs, Refusal, Space
from ....choose.template import Decision, Plan
from ....graph.ops.convolution import Conv2d
from ....topi.winograd import KERNEL, POINTS, matrices, points_of
from ...common.workload import OperatorWorkload
from ..processor import Processor

DIRECT = "direct"
#: Winograd's algorithm for several tile sizes: rows of results in a tile, by name.
ALGORITHMS = {f"winograd{size}": size for size in POINTS}

#: Convolutions of fewer channels or fewer cycles stay direct: the gain would not be worth the
#: larger error.
MIN_CHANNELS, MIN_CYCLES = 32, 1 << 16
#: Winograd's algorithm pays below this fraction of the direct convolution's cycles.
PAYS_BELOW = 0.85
#: The time to transform a vector to a point of a tile, or back, in products that a core could begin
#: meanwhile; measured.
PRODUCTS_PER_POINT = 8
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


class ConvolutionAlgorithm(Decision[OperatorWorkload]):
    """How a convolution is computed on blocks of channels: product by product ("direct"), or by
    Winograd's algorithm in tiles of 2 x 2 or 4 x 4 results, which takes fewer products and has a
    larger error. The template of the chosen algorithm then chooses register tiles.
    """

    name = "convolution algorithm"

    def __init__(self, processor: Processor):
        self.processor = processor

    def is_open(self, workload: OperatorWorkload) -> bool:
        """Whether there is a choice."""
        op, (weight, _) = workload.op, workload.operands[1]
        assert isinstance(op, Conv2d)
        plain = (op.strides, op.dilations, op.groups) == ((1, 1), (1, 1), 1)
        return plain and weight[2:] == (KERNEL, KERNEL)

    def space(self, workload: OperatorWorkload) -> Space:
        return Space({"algorithm": (DIRECT, *ALGORITHMS)})

    def plan(self, workload: OperatorWorkload, fixed: Knobs) -> Plan | Refusal:
        algorithm = fixed.get("algorithm") or self._best(workload)
        knobs = {"algorithm": algorithm}
        return Plan(knobs, self.predict(workload, knobs))

    def predict(self, workload: OperatorWorkload, knobs: Knobs) -> int:
        size = ALGORITHMS.get(str(knobs["algorithm"]))
        images = workload.result[0][0]
        return round(
            images * (self._direct(workload) if size is None else self._cost(workload, size))
        )

    def _best(self, workload: OperatorWorkload) -> str:
        """The cheapest of Winograd's algorithms where that pays, else the direct one."""
        channels, features = workload.operands[0][0][1], workload.result[0][1]
        direct = self._direct(workload)
        if min(channels, features) < MIN_CHANNELS or direct < MIN_CYCLES:
            return DIRECT
        costs = {name: self._cost(workload, size) for name, size in ALGORITHMS.items()}
        best = min(costs, key=lambda name: costs[name])
        return best if costs[best] < PAYS_BELOW * direct else DIRECT

    def _direct(self, workload: OperatorWorkload) -> float:
        """Cycles for an image."""
        (weight, _), (result, _) = workload.operands[1], workload.result
        block = self.processor.vector_lanes
        taps = math.prod(weight[1:]) * -(-result[1] // block)
        products = taps * math.prod(result[2:]) / self.processor.core.products_per_cycle
        return max(products, taps * 4 * block / WEIGHT_BYTES_PER_CYCLE)

    def _cost(self, workload: OperatorWorkload, size: int) -> float:
        """Cycles for an image: products while the weights arrive, and transformations."""
        channels, result = workload.operands[0][0][1], workload.result[0]
        block = self.processor.vector_lanes
        tiles = math.prod(-(-extent // size) for extent in result[2:])
        points, blocks = points_of(size) ** 2, -(-result[1] // block)
        weights = points * channels * blocks
        vectors = points * tiles * (-(-channels // block) + blocks)
        per_cycle = self.processor.core.products_per_cycle
        arrival = weights * 4 * block / WEIGHT_BYTES_PER_CYCLE
        products = max(weights * tiles / per_cycle, arrival)
        return products + vectors * PRODUCTS_PER_POINT / per_cycle
