"""Schedule of Winograd's convolution (``topi/winograd.py``)."""

from __future__ import annotations

import math

from ..graph.blocked_ops import BlockedWinograd
from ..te.schedule import Schedule, Stage
from ..te.tensor import Tensor
from .blocked_schedule import (
    ACCUMULATORS,
    LATENCY_CYCLES,
    MAX_BLOCKS,
    REGISTERS,
)


def schedule_winograd(op: BlockedWinograd, schedule: Schedule, output: Tensor) -> None:
    stages = {stage.name: stage for stage in schedule.stages}
    products = stages["products"].tensor
    _schedule_products(schedule, products)
    _schedule_tiles(stages)
    _schedule_results(op.size, schedule, output)


def _schedule_tiles(stages: dict[str, Stage]) -> None:
    if "bordered" in stages:
        border = stages["bordered"]
        border.parallel(border.tensor.axes[1])
        border.vectorize(border.tensor.axes[-1])
    tiles, half = stages["tiles"], stages["image_rows"]
    i, j, n, c, h, w, k = tiles.tensor.axes
    tiles.reorder(n, c, h, w, i, j, k)
    tiles.parallel(c)
    tiles.unroll(j)
    tiles.vectorize(k)
    tiles.pragma(k, "contract")
    half.compute_at(tiles, w)
    i, n, c, h, x, k = half.tensor.axes
    half.reorder(n, c, h, x, i, k)
    half.unroll(i)
    half.vectorize(k)
    half.pragma(k, "contract")


def _schedule_products(schedule: Schedule, products: Tensor) -> None:
    sums = schedule.cache_write(products, "global")
    out, acc = schedule[products], schedule[sums]
    i, j, n, ob, h, w, o = products.axes
    blocks, rows, columns = matrix_tile(ob.extent, h.extent, w.extent, o.extent)
    ob_outer, ob_inner = out.split(ob, blocks)
    h_outer, h_inner = out.split(h, rows)
    w_outer, w_inner = out.split(w, columns)
    out.reorder(i, j, n, ob_outer, h_outer, w_outer, h_inner, w_inner, ob_inner, o)
    out.parallel(out.fuse(i, j))
    for axis in (h_inner, w_inner, ob_inner):
        out.unroll(axis)
    out.vectorize(o)
    acc.compute_at(out, w_outer)
    _, _, _, ob, h, w, o = sums.axes
    ic, ici = acc.reduce_axes
    acc.reorder(ic, ici, h, w, ob, o)
    for axis in (h, w, ob):
        acc.unroll(axis)
    acc.vectorize(o)
    acc.pragma(o, "contract")
    acc.pragma(ic, "keep_loop")
    acc.pragma(ici, "keep_loop")


def _schedule_results(size: int, schedule: Schedule, output: Tensor) -> None:
    stages = {stage.name: stage for stage in schedule.stages}
    out, acc, half = stages["out"], stages["acc"], stages["result_rows"]
    acc.compute_inline()
    n, ob, oh, ow, o = output.axes
    h, r = out.split(oh, size)
    w, c = out.split(ow, size)
    out.reorder(n, ob, h, w, r, c, o)
    out.parallel(ob)
    out.unroll(c)
    out.unroll(r)
    out.vectorize(o)
    out.pragma(o, "contract")
    half.compute_at(out, w)
    r, j, n, ob, h, w, o = half.tensor.axes
    half.reorder(n, ob, h, w, j, r, o)
    half.unroll(r)
    half.vectorize(o)
    half.pragma(o, "contract")


def matrix_tile(blocks: int, rows: int, columns: int, lanes: int) -> tuple[int, int, int]:
    """Blocks of channels, rows and columns of tiles that are computed together: those with the
    fewest cycles, as ``register_tile`` counts them."""

    def cycles(m: int, r: int, c: int) -> float:
        steps = [
            min(r, rows - first) * min(c, columns - left)
            for first in range(0, rows, r)
            for left in range(0, columns, c)
        ]
        return sum(max(m * s, LATENCY_CYCLES) + 1 for s in steps) / m

    tiles = [
        (m, r, c)
        for m in range(1, min(blocks, MAX_BLOCKS) + 1) if blocks % m == 0
        for r in range(1, min(rows, ACCUMULATORS[lanes]) + 1)
        for c in range(1, min(columns, ACCUMULATORS[lanes] // (m * r)) + 1)
        if m * r * c + m <= REGISTERS[lanes]
    ]  # fmt: skip
    return min(tiles, key=lambda tile: (cycles(*tile), tile))
