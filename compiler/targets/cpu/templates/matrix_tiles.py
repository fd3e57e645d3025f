"""Convolutions and dense layers of int8 by an instruction that multiplies matrices, AMX: when, and
their schedule.

::

    image = phases of x with its border                         once
    for n, blocks of output, groups of rows:
        for positions of the group, 32 at a time:
            sums = 0                                            tiles: 2 blocks by 2 x 16 positions
            for blocks of input, kh, kw:
                sums += image[2 x 16 positions] * w[2 blocks]   four loads, four products
            acc[...] = sums
        y[...] = clip(rescaled acc)                             vectors
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....choose.space import Knobs, KnobValue, Refusal, Space
from ....choose.template import Decision, Plan
from ....graph.ops.base import Pair
from ....graph.ops.blocked.matrix import GROUPS, POSITIONS, BlockedMatrixConv2d, row_pitch
from ....graph.ops.convolution import QConv2d, StoredConv2d
from ....graph.ops.linear import QDense
from ....te.schedule import Schedule, Stage
from ....te.tensor import IterVar, Tensor
from ...common.workload import OperatorWorkload
from .. import micro_kernels as mk
from ..micro_kernel_code import native_intrinsics
from ..processor import Processor
from .base import CpuTemplate

#: Values of the knob ``instruction``: products of four, or of matrices.
DOTS, MATRICES = "dots", "matrices"
#: Cycles of instructions on whole tiles, by Intel's optimization manual: a product, a load, a
#: store; and from a product until the next one can be added to its sums.
PRODUCT_CYCLES, LOAD_CYCLES, STORE_CYCLES, LATENCY_CYCLES = 16, 8, 16, 52
#: Cycles to rescale a vector of sums, and to copy a vector of the image; and how many more a vector
#: of sums takes where a group's sums leave the nearest cache. Measured on a core without AMX, by
#: code whose instructions on tiles did nothing.
RESCALE_CYCLES, COPY_CYCLES, FAR_CYCLES = 3, 2, 2
#: Places that are rescaled by one stretch of code: whole groups of four are packed together.
RESCALED_PLACES = 8


@dataclass(frozen=True)
class _Sizes:
    """A convolution as products of matrices: ``rows`` x ``width`` results of ``images``, the
    distance ``pitch`` of two rows, ``blocks`` of features, ``steps`` products for each tile, and
    about the bytes of the image with its border and of the weights.
    """

    images: int
    blocks: int
    rows: int
    width: int
    pitch: int
    steps: int
    image_bytes: int
    weight_bytes: int

    @property
    def knobs(self) -> dict[str, Sequence[KnobValue]]:
        """The legal values of all knobs; all go together."""
        return {
            "blocks": [m for m in range(1, GROUPS + 1) if self.blocks % m == 0],
            "positions": range(1, GROUPS + 1),
            "rows": [r for r in range(1, self.rows + 1) if self.rows % r == 0],
            "outer": ("blocks", "rows"),
        }

    def tiles(self, rows: int, positions: int) -> int:
        """Tiles of 16 positions for a group of rows; ``positions`` of them are computed at once."""
        each = POSITIONS * positions
        return -(-((rows - 1) * self.pitch + self.width) // each) * positions

    def sums_bytes(self, blocks: int, rows: int, positions: int) -> int:
        """Size of a group's sums."""
        return 4 * POSITIONS * mk.DOT_LANES * blocks * self.tiles(rows, positions)

    def cycles(self, knobs: Knobs, near_bytes: int) -> int:
        """The cycles that the cost model predicts; the nearest cache has ``near_bytes``."""
        blocks, positions, rows = (int(knobs[name]) for name in ("blocks", "positions", "rows"))
        loads = LOAD_CYCLES * (blocks + positions)
        step = max(PRODUCT_CYCLES * blocks * positions, loads, LATENCY_CYCLES)
        tile = step * self.steps + STORE_CYCLES * blocks * positions
        far = self.sums_bytes(blocks, rows, positions) > near_bytes // 2
        rescale = (RESCALE_CYCLES + far * FAR_CYCLES) * rows * self.width * blocks
        group = self.tiles(rows, positions) // positions * tile + rescale
        groups = self.images * self.blocks // blocks * self.rows // rows
        return round(groups * group + self.image_bytes * COPY_CYCLES / mk.DOT_LANES)


def choose_depth(blocks: int) -> int:
    """Channels that one product of matrices adds, of an image of so many blocks."""
    most = mk.TILE_BYTES // mk.DOT_LANES
    return mk.DOT_LANES * max(n for n in range(1, most + 1) if blocks % n == 0)


class MatrixTiles(CpuTemplate):
    """A convolution of int8 in tiles of AMX: ``blocks`` of features by ``positions``, tiles of 16
    positions, are computed together, for a group of ``rows`` of results at a time. The ``outer``
    loop is over groups of blocks, each of which reads the whole image, or over groups of rows, each
    of which reads all weights.
    """

    name = "matrix tiles"
    ops = (BlockedMatrixConv2d,)

    def space(self, workload: OperatorWorkload) -> Space:
        return Space(_sizes(workload).knobs)

    def plan(self, workload: OperatorWorkload, fixed: Knobs) -> Plan | Refusal:
        sizes = _sizes(workload)
        points = [
            knobs for knobs in self.space(workload).points()
            if all(knobs[name] == value for name, value in fixed.items())
        ]  # fmt: skip
        if not points:
            return Refusal(f"no legal knobs with {dict(fixed)}")
        best = min(points, key=lambda knobs: self._cost(sizes, knobs))
        return Plan(best, self.predict(workload, best))

    def predict(self, workload: OperatorWorkload, knobs: Knobs) -> int:
        return _sizes(workload).cycles(knobs, self.processor.core.l1_bytes)

    def _cost(self, sizes: _Sizes, knobs: Knobs) -> tuple[int, int]:
        """The predicted cycles; of equal ones, what is read from beyond the second-level cache."""
        blocks, rows = int(knobs["blocks"]), int(knobs["rows"])
        image, weight, cache = sizes.image_bytes, sizes.weight_bytes, self.processor.core.near_bytes
        if knobs["outer"] == "blocks":
            traffic = image * sizes.blocks // blocks if image > cache else 0
        else:
            traffic = weight * sizes.rows // rows if weight > cache else 0
        return sizes.cycles(knobs, self.processor.core.l1_bytes), traffic

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        (x, _), (weight, _), *_ = workload.operands
        op = workload.op
        assert isinstance(op, BlockedMatrixConv2d)
        stages = {stage.name: stage for stage in schedule.stages}
        out, acc = stages["out"], stages["acc"]
        lanes = min(x[4], mk.DOT_LANES)
        _schedule_image(stages["image"], op.pitch(weight, workload.result[0][3]), lanes)
        around = _schedule_results(out, knobs)
        _schedule_products(schedule, acc.tensor, weight[4] * weight[6], knobs)
        schedule[acc.tensor].compute_at(out, around)


class ProductInstruction(Decision[OperatorWorkload]):
    """How a convolution or a dense layer of int8 multiplies: four products at a time ("dots"), or
    by the products of matrices ("matrices"), where the processor has both. The results are the same
    to the bit.
    """

    name = "product instruction"

    def __init__(self, processor: Processor):
        self.processor = processor

    def is_open(self, workload: OperatorWorkload) -> bool:
        """Whether there is a choice."""
        op, ((_, channels, *_), _), (weight, dtype) = workload.op, *workload.operands[:2]
        assert isinstance(op, QConv2d | StoredConv2d | QDense)
        native = native_intrinsics(self.processor)
        if isinstance(op, QDense):
            fits = channels % mk.DOT_LANES == 0
        else:
            fits = op.groups == 1 and channels >= mk.DOT_LANES
        fits = fits and dtype == "int8" and 0 not in weight
        return fits and {mk.DOT, mk.TILE_STORE} <= native

    def space(self, workload: OperatorWorkload) -> Space:
        return Space({"instruction": (DOTS, MATRICES)})

    def plan(self, workload: OperatorWorkload, fixed: Knobs) -> Plan | Refusal:
        found = [fixed["instruction"]] if fixed else [MATRICES, DOTS]
        plans = [Plan(k, self.predict(workload, k)) for k in ({"instruction": i} for i in found)]
        return min(plans, key=lambda plan: plan.cycles or 0)

    def predict(self, workload: OperatorWorkload, knobs: Knobs) -> int:
        if knobs["instruction"] == DOTS:  # which are rescaled while the next ones are added
            shapes = [shape for shape, _ in workload.operands]
            vectors = workload.op.macs(*shapes) / (mk.DOT_LANES * mk.DOT_WIDTH)
            return round(vectors / self.processor.core.products_per_cycle)
        sizes, near = _plain_sizes(workload), self.processor.core.l1_bytes
        return min(sizes.cycles(knobs, near) for knobs in Space(sizes.knobs).points())


def _sizes(workload: OperatorWorkload) -> _Sizes:
    op, (weight, _) = workload.op, workload.operands[1]
    assert isinstance(op, BlockedMatrixConv2d)
    (images, blocks, rows, width, _), _ = workload.result
    pitch = op.pitch(weight, width)
    return _of_convolution(
        (images, blocks, rows, width), pitch, weight[1], (weight[2], weight[3]),
        weight[4] * weight[6], op.strides,
    )  # fmt: skip


def _plain_sizes(workload: OperatorWorkload) -> _Sizes:
    """As :func:`_sizes`, of the convolution in the model's own layout."""
    op, (weight, _) = workload.op, workload.operands[1]
    if isinstance(op, QDense):  # a row of positions
        (width, features), _ = workload.result
        depth = choose_depth(weight[1] // mk.DOT_LANES)
        result = 1, -(-features // mk.DOT_LANES), 1, width
        return _of_convolution(result, width, weight[1] // depth, (1, 1), depth, (1, 1))
    assert isinstance(op, QConv2d | StoredConv2d)
    (images, features, rows, width), _ = workload.result
    input_blocks = -(-weight[1] // mk.DOT_LANES)
    depth = choose_depth(input_blocks)
    pitch = row_pitch(width, weight[3], op.strides[1], op.dilations[1])
    return _of_convolution(
        (images, -(-features // mk.DOT_LANES), rows, width), pitch,
        input_blocks * mk.DOT_LANES // depth, (weight[2], weight[3]), depth, op.strides,
    )  # fmt: skip


def _of_convolution(
    result: tuple[int, int, int, int],
    pitch: int,
    groups: int,
    kernel: Pair,
    depth: int,
    strides: Pair,
) -> _Sizes:
    images, blocks, rows, width = result
    phases = math.prod(min(k, s) for k, s in zip(kernel, strides, strict=True))
    steps = groups * math.prod(kernel)
    image_bytes = images * groups * depth * phases * (rows + kernel[0] - 1) * pitch
    weight_bytes = blocks * mk.DOT_LANES * steps * depth
    return _Sizes(images, blocks, rows, width, pitch, steps, image_bytes, weight_bytes)


# ---- schedules -----------------------------------------------------------------------------------


def _schedule_image(image: Stage, pitch: int, lanes: int) -> None:
    """A vector of channels of one position after another; threads share the rows."""
    n, ic, hp, wp, place, channel = image.tensor.axes
    row, column = image.split(place, pitch)
    block, lane = image.split(channel, lanes)
    image.unroll(block)
    image.vectorize(lane)
    image.reorder(n, row, ic, hp, wp, column, block, lane)
    for axis in (n, row, ic, hp, wp, column):
        image.pragma(axis, "keep_loop")
    image.parallel(row)


def _schedule_results(out: Stage, knobs: Knobs) -> IterVar:
    """Schedule the results; returns the loop in which the sums of a group of rows are computed."""
    n, ob, oh, ow, o = out.tensor.axes
    ob_outer, ob_inner = out.split(ob, int(knobs["blocks"]))
    oh_outer, oh_inner = out.split(oh, int(knobs["rows"]))
    width = max(w for w in range(1, RESCALED_PLACES + 1) if ow.extent % w == 0)
    ow_outer, ow_inner = out.split(ow, width)
    around = (ob_outer, oh_outer) if knobs["outer"] == "blocks" else (oh_outer, ob_outer)
    out.reorder(n, *around, ob_inner, oh_inner, ow_outer, ow_inner, o)
    out.parallel(max(around, key=lambda axis: axis.extent))
    out.unroll(ow_inner)
    out.vectorize(o)
    for axis in (n, *around, ob_inner, oh_inner, ow_outer):
        out.pragma(axis, "keep_loop")
    return around[1]


def _schedule_products(schedule: Schedule, tensor: Tensor, depth: int, knobs: Knobs) -> None:
    """Keep the sums of ``blocks`` by ``positions`` tiles in tiles over the whole reduction."""
    products, together = mk.TILE_PRODUCTS[depth], int(knobs["positions"])
    sums = schedule.cache_write(tensor, mk.TILE_SUMS.name)
    x, w = (read.source for read in schedule[sums].reads())
    x = schedule.cache_read(x, mk.TILE_X.name, [sums])
    w = schedule.cache_read(w, mk.TILE_W.name, [sums])

    acc = schedule[tensor]
    n, ob, place, o = tensor.axes
    acc.cover(place, POSITIONS * together)
    outer, inner = acc.split(place, POSITIONS * together)
    tile, inner = acc.split(inner, POSITIONS)
    acc.reorder(n, outer, ob, tile, inner, o)
    acc.unroll(ob)
    acc.unroll(tile)
    acc.pragma(outer, "keep_loop")
    acc.tensorize(inner, mk.TILE_STORE)

    stage = schedule[sums]
    stage.compute_at(acc, outer)
    n, ob, place, o = sums.axes
    *taps, four, k = stage.reduce_axes
    tile, inner = stage.split(place, POSITIONS)
    stage.reorder(n, *taps, tile, ob, inner, o, four, k)
    stage.unroll(tile)
    stage.unroll(ob)
    for axis in taps:
        stage.pragma(axis, "keep_loop")
    stage.tensorize(inner, products.product)

    load = schedule[x]
    load.compute_at(stage, taps[-1])
    *_, place, channel = x.axes
    tile, inner = load.split(place, POSITIONS)
    load.reorder(tile, inner, channel)
    load.unroll(tile)
    load.tensorize(inner, products.load_x)

    load = schedule[w]
    load.compute_at(stage, taps[-1])
    ob, *_, four, o, k = w.axes
    load.unroll(ob)
    load.tensorize(four, products.load_w)
