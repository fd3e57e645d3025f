"""Winograd's convolution (``topi/winograd.py``), a group of rows of tiles at a time.

::

    for n, groups of rows of tiles:
        tiles    = transformed image of the group        tile by tile, in registers
        products = tiles . weight                        register tiles, for one point after another
        y        = clip(transformed products + bias + residual)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....choose.space import Knobs, KnobValue, Refusal, Space, preferring
from ....choose.template import Plan
from ....graph.ops.blocked.convolution import BlockedWinograd
from ....te.schedule import Schedule, Stage
from ....te.tensor import IterVar, Tensor
from ....topi.winograd import points_of
from ...common.workload import OperatorWorkload
from ..core import Core
from ..processor import Processor
from .base import CpuTemplate
from .tiles import MAX_BLOCKS

#: The fewest tiles that a group should have, as each group reads all weights.
GROUP_TILES = 12
#: How many rows before their use weights are prefetched: hundreds of cycles, and across the ends of
#: pages, where the processor's own prefetching stops.
WEIGHTS_AHEAD = 32


class WinogradTiles(CpuTemplate):
    """Groups of ``group`` rows of tiles; products in register tiles of ``blocks`` of channels by
    ``rows`` by ``columns`` of tiles; weights are prefetched ``ahead`` rows before their use.
    """

    name = "winograd"
    ops = (BlockedWinograd,)

    def space(self, workload: OperatorWorkload) -> Space:
        sizes = _sizes(workload)
        groups = [r for r in range(1, sizes.rows + 1) if sizes.rows % r == 0]
        most = self.processor.sums
        knobs: dict[str, Sequence[KnobValue]] = {
            "group": groups,
            "blocks": [m for m in range(1, 5) if sizes.blocks % m == 0],
            "rows": range(1, min(sizes.rows, most) + 1),
            "columns": range(1, min(sizes.columns, most) + 1),
            "ahead": preferring(WEIGHTS_AHEAD, (8, 16, 32, 64)),
        }
        return Space(knobs, lambda k: _misfit(self.processor, k))

    def plan(self, workload: OperatorWorkload, fixed: Knobs) -> Plan | Refusal:
        sizes = _sizes(workload)
        group = int(fixed.get("group", _rows_of_group(sizes, self.processor.core)))
        blocks, rows, columns = matrix_tile(sizes.blocks, group, sizes.columns, self.processor)
        tile = {"group": group, "blocks": blocks, "rows": rows, "columns": columns}
        knobs = {**tile, "ahead": WEIGHTS_AHEAD, **fixed}
        if reason := self.space(workload).refuse(knobs):
            return Refusal(reason)
        return Plan(knobs, self.predict(workload, knobs))

    def predict(self, workload: OperatorWorkload, knobs: Knobs) -> int:
        """Cycles of the products alone."""
        sizes = _sizes(workload)
        group = int(knobs["group"])
        tile = tuple(int(knobs[name]) for name in ("blocks", "rows", "columns"))
        step = tile_cycles(self.processor.core, group, sizes.columns, *tile)
        groups = sizes.images * sizes.rows // group
        return round(step * groups * sizes.blocks * sizes.channels * points_of(sizes.size) ** 2)

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        """Schedule the expression of ``winograd_sums`` with its border and its epilogue."""
        stages = {stage.name: stage for stage in schedule.stages}
        tiles, products = stages["tiles"], stages["products"]
        op = workload.op
        assert isinstance(op, BlockedWinograd)
        around = _schedule_results(op.size, int(knobs["group"]), stages)
        if around is not None:
            for stage in (tiles, products):
                stage.compute_at(stages["out"], around)
        _schedule_tiles(tiles, stages["image_rows"])
        _schedule_products(schedule, products.tensor, knobs)
        if "bordered" in stages:
            border = stages["bordered"]
            border.compute_at(tiles, tiles.tensor.axes[4])  # a row of tiles stays in the cache
            border.vectorize(border.tensor.axes[-1])


@dataclass(frozen=True)
class _Sizes:
    """Tiles of ``size`` x ``size`` results: rows and columns of them for an image; blocks of output
    channels, input channels and channels in a block."""

    size: int
    images: int
    rows: int
    columns: int
    blocks: int
    channels: int
    lanes: int


def _sizes(workload: OperatorWorkload) -> _Sizes:
    op = workload.op
    assert isinstance(op, BlockedWinograd)
    (images, blocks, height, width, lanes), _ = workload.result
    weight, _ = workload.operands[1]
    rows, columns = -(-height // op.size), -(-width // op.size)
    return _Sizes(op.size, images, rows, columns, blocks, weight[3] * weight[4], lanes)


def _misfit(processor: Processor, knobs: Knobs) -> str:
    """Why a register tile is not legal, or an empty string."""
    blocks, rows, columns = (int(knobs[name]) for name in ("blocks", "rows", "columns"))
    if rows > int(knobs["group"]):
        return f"knob rows: expected at most group, {knobs['group']}, got {rows}"
    sums = blocks * rows * columns
    if sums > processor.sums or sums + blocks >= processor.registers:
        return f"{sums} sums need as many registers of {processor.sums}"
    return ""


def _rows_of_group(sizes: _Sizes, core: Core) -> int:
    """Rows of tiles in a group. Groups are equal, so that threads can share them: the largest whose
    ``tiles`` and ``products`` stay in the second-level cache, else the smallest with enough tiles,
    else all rows in one group."""
    rows, columns, lanes = sizes.rows, sizes.columns, sizes.lanes
    channels = -(-sizes.channels // lanes) + sizes.blocks
    row_bytes = 4 * points_of(sizes.size) ** 2 * channels * lanes * columns
    enough = [r for r in range(1, rows + 1) if rows % r == 0 and r * columns >= GROUP_TILES]
    near = [r for r in enough if r * row_bytes <= core.l2_bytes]
    return max(near) if near else min(enough, default=rows)


def _schedule_results(size: int, group: int, stages: dict[str, Stage]) -> IterVar | None:
    """Schedule the results, a tile at a time; return the loop over groups, if there are several."""
    out, half = stages["out"], stages["result_rows"]
    stages["acc"].compute_inline()
    n, ob, oh, ow, o = out.tensor.axes
    h, r = out.split(oh, size)
    h_outer, h_inner = out.split(h, group)
    w, c = out.split(ow, size)
    out.reorder(n, h_outer, ob, h_inner, w, r, c, o)
    groups = h_outer if n.extent * h_outer.extent > 1 else None
    out.parallel(max(n, h_outer, key=lambda axis: axis.extent) if groups else ob)
    _as_vectors(out, (r, c), o)
    half.compute_at(out, w)
    r, j, n, ob, h, w, o = half.tensor.axes
    half.reorder(j, r)
    _as_vectors(half, (r,), o)
    return groups


def _schedule_tiles(tiles: Stage, half: Stage) -> None:
    i, j, n, c, h, w, lanes = tiles.tensor.axes
    tiles.reorder(n, c, h, w, i, j)
    tiles.parallel(c)
    _as_vectors(tiles, (j,), lanes)
    half.compute_at(tiles, w)
    i, n, c, h, x, lanes = half.tensor.axes
    half.reorder(x, i)
    _as_vectors(half, (i,), lanes)


def _schedule_products(schedule: Schedule, products: Tensor, knobs: Knobs) -> None:
    sums = schedule.cache_write(products, "global")
    out, acc = schedule[products], schedule[sums]
    i, j, n, ob, h, w, o = products.axes
    ob_outer, ob_inner = out.split(ob, int(knobs["blocks"]))
    h_outer, h_inner = out.split(h, int(knobs["rows"]))
    w_outer, w_inner = out.split(w, int(knobs["columns"]))
    out.reorder(i, j, n, ob_outer, h_outer, w_outer, h_inner, w_inner, ob_inner)
    out.parallel(out.fuse(i, j))
    _as_vectors(out, (h_inner, w_inner, ob_inner), o)
    acc.compute_at(out, w_outer)
    *_, ob, h, w, o = sums.axes
    ic, ici = acc.reduce_axes
    acc.reorder(ic, ici, h, w, ob, o)
    _as_vectors(acc, (h, w, ob), o)
    weight = acc.reads()[-1].source
    acc.prefetch(weight, ici, int(knobs["ahead"]))
    for axis in (ic, ici):
        acc.pragma(axis, "keep_loop")


def _as_vectors(stage: Stage, unrolled: tuple[IterVar, ...], lanes: IterVar) -> None:
    for axis in unrolled:
        stage.unroll(axis)
    stage.vectorize(lanes)
    stage.pragma(lanes, "contract")


def matrix_tile(blocks: int, rows: int, columns: int, processor: Processor) -> tuple[int, int, int]:
    """Blocks of channels, rows and columns of tiles that are computed together: those with the
    fewest cycles."""
    most = processor.sums
    tiles = [
        (m, r, c)
        for m in range(1, min(blocks, MAX_BLOCKS) + 1) if blocks % m == 0
        for r in range(1, min(rows, most) + 1)
        for c in range(1, min(columns, most // (m * r)) + 1)
        if m * r * c + m < processor.registers  # and one element of a tile
    ]  # fmt: skip
    return min(tiles, key=lambda tile: (tile_cycles(processor.core, rows, columns, *tile), tile))


def tile_cycles(core: Core, rows: int, columns: int, m: int, r: int, c: int) -> float:
    """Cycles of a step of the reduction for all tiles and one block, in register tiles of ``m``
    blocks by ``r`` rows by ``c`` columns, counted as those of direct convolutions are."""
    steps = [
        min(r, rows - first) * min(c, columns - left)
        for first in range(0, rows, r)
        for left in range(0, columns, c)
    ]
    return sum(core.step_cycles(m * s, core.latency_cycles, s, m) + 1 for s in steps) / m
