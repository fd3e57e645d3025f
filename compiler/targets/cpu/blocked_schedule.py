"""Schedules of operators on blocks of channels (``blocked.py``): tiles in vector registers.

A convolution keeps a tile of results, some places of a row by some blocks of channels, in vector
registers over the whole reduction::

    for n, blocks of output, oh, tiles of ow:
        acc[ow in tile, block, 16] = 0                      registers
        for blocks of input, kh, kw, 16 channels of one:
            acc[...] += x[one element, to all lanes] * w[a vector]     unrolled
        y[...] = clip(acc + bias + residual)

so that an element loaded serves a vector of products for every block, and a vector of weights for
every place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...graph.ops.base import Op
from ...graph.ops.blocked import (
    BlockedConv2d,
    BlockedConvTranspose2d,
    BlockedDepthwise,
    BlockedDotConv2d,
    BlockedPool,
    BlockedQConv2d,
    PackedDense,
)
from ...graph.ops.layout import FromBlocks, ToBlocks
from ...te.schedule import Schedule, Stage
from ...te.tensor import IterVar, Tensor
from .micro_kernels import DOT, DOT_EACH

#: Vector registers by values in one (AVX-512 has 32, AVX2 and SSE 16), and those of them that may
#: hold results; the others hold weights, and an element of the image where no instruction reads it
#: from memory to all lanes. Of many registers few hold results, so that the processor finishes a
#: tile while it computes the products of the next, of which it sees what its window holds.
REGISTERS = {16: 32, 8: 16, 4: 16}
ACCUMULATORS = {16: 14, 8: 12, 4: 12}
#: Those that hold sums of products of four, to finish which takes more instructions.
DOT_ACCUMULATORS = 8
#: Registers that a step needs besides: a product of integers, and the element that it is made of.
SCRATCH = {"float32": 0, "int32": 2}
#: Cycles until the sum of a product can be added to.
LATENCY_CYCLES = 4
#: Blocks of channels that share an element of the image. Four would save loads, but the weights of
#: four blocks of a large layer do not fit the second-level cache, and pass by again for each row.
MAX_BLOCKS = 2
#: Vectors of results of a dense layer for one row.
DENSE_TILE = 8
#: Lanes of so few channels that rows of all of them are read at once.
FEW_LANES = 4
#: What stays in the second-level cache while something else passes by.
CACHE_BYTES = 384 << 10


#: Operators that are scheduled here.
BLOCKED = (
    BlockedConv2d,
    BlockedConvTranspose2d,
    BlockedDepthwise,
    BlockedDotConv2d,
    BlockedPool,
    BlockedQConv2d,
    FromBlocks,
    PackedDense,
    ToBlocks,
)


def schedule_blocked(op: Op, schedule: Schedule, output: Tensor) -> None:
    """Schedule the expression of :func:`blocked_expression`."""
    match op:
        case BlockedConv2d() | BlockedQConv2d(depthwise=False) | BlockedDotConv2d(depthwise=False):
            _schedule_conv(schedule, output)
        case BlockedConvTranspose2d():
            phases = _stage(schedule, "phases")
            assert phases is not None
            _schedule_conv(schedule, phases.tensor)
            schedule[output].vectorize(output.axes[-1])
        case BlockedDepthwise() | BlockedQConv2d() | BlockedDotConv2d() | BlockedPool():
            _schedule_windows(schedule, output)
        case PackedDense():
            _schedule_dense(schedule, output)
        case ToBlocks(block) if block <= FEW_LANES:  # rows side by side, which LLVM interleaves
            schedule[output].unroll(output.axes[-1])
        case ToBlocks():  # a row of a channel after another's: one stream of reads
            *_, width, lane = output.axes
            schedule[output].reorder(lane, width)
            _keep_outer_loops(schedule[output])
        case FromBlocks():  # rows of one block's channels: the block stays in the nearest cache
            stage = schedule[output]
            _, channel, height, width = output.axes
            _, lane = stage.split(channel, schedule.stages[0].tensor.shape[-1])
            stage.reorder(height, lane, width)
            _keep_outer_loops(stage)


def _stage(schedule: Schedule, name: str) -> Stage | None:
    return next((stage for stage in schedule.stages if stage.name == name), None)


def _schedule_conv(schedule: Schedule, output: Tensor) -> None:
    out, acc = schedule[output], _stage(schedule, "acc")
    assert acc is not None
    *lead, ob, oh, ow, o = output.axes
    sizes = ob.extent, ow.extent, o.extent
    blocks, width = register_tile(*sizes, _most_sums(acc, o.extent), SCRATCH[acc.tensor.dtype])
    ob_outer, ob_inner = out.split(ob, blocks)
    ow_outer, ow_inner = out.split(ow, width)
    image, weight = (read.source for read in acc.reads()[-2:])
    keeps_image = _keeps_image(image, weight, ob.extent // blocks, oh.extent)
    around = (ob_outer, oh) if keeps_image else (oh, ob_outer)
    out.reorder(*lead, *around, ow_outer, ob_inner, ow_inner, o)
    out.parallel(around[0])
    _keep_loops(out, (*lead, *around, ow_outer))
    _in_registers(out, (ob_inner, ow_inner), o)
    acc.compute_at(out, ow_outer)
    *_, ob, oh, ow, o = acc.tensor.axes
    for tap in _sums_in_registers(acc, (ow, ob), o):  # an element serves all blocks at once
        acc.pragma(tap, "keep_loop")  # what the tile leaves of the registers is for one step
    border = _schedule_border(schedule)
    if border is not None:
        _keep_outer_loops(border)


def _adds_dots(acc: Stage) -> bool:
    """Whether sums are of products of four."""
    return [read.dtype for read in acc.reads()[-2:]] == ["uint8", "int8"]


def _most_sums(acc: Stage, lanes: int) -> int:
    """Vectors of sums in a tile, at most."""
    return DOT_ACCUMULATORS if _adds_dots(acc) else ACCUMULATORS[lanes]


def _sums_in_registers(acc: Stage, tile: Sequence[IterVar], lanes: IterVar) -> list[IterVar]:
    """A tile of sums, vectors of products or of products of four; returns the loops around it."""
    *taps, last = acc.tensor.reduce_axes
    if _adds_dots(acc):
        acc.reorder(*taps, *tile, lanes, last)
        for axis in tile:
            acc.unroll(axis)
        acc.tensorize(lanes, DOT_EACH if len(taps) == 2 else DOT)
        return taps
    acc.reorder(*taps, last, *tile, lanes)
    _in_registers(acc, tile, lanes)
    acc.pragma(lanes, "contract")
    return [*taps, last]


def _schedule_windows(schedule: Schedule, output: Tensor) -> None:
    """Each channel by itself: a tile of places of a row in registers, the window unrolled."""
    out, acc = schedule[output], _stage(schedule, "acc")
    assert acc is not None
    n, cb, oh, ow, c = output.axes
    _, width = register_tile(1, ow.extent, c.extent, _most_sums(acc, c.extent))
    ow_outer, ow_inner = out.split(ow, width)
    _in_registers(out, (ow_inner,), c)
    _keep_loops(out, (n, cb, oh, ow_outer))
    out.parallel(cb)
    acc.compute_at(out, ow_outer)
    *_, ow, c = acc.tensor.axes
    _sums_in_registers(acc, (ow,), c)
    border = _schedule_border(schedule)
    if border is not None:
        border.compute_at(out, cb)  # the border of one block of channels stays in the cache


def _schedule_dense(schedule: Schedule, output: Tensor) -> None:
    done, acc = _stage(schedule, "blocks"), _stage(schedule, "acc")
    assert done is not None and acc is not None
    n, ob, o = done.tensor.axes
    rows, blocks = register_tile(n.extent, ob.extent, o.extent, ACCUMULATORS[o.extent])
    ob_outer, ob_inner = done.split(ob, min(blocks, DENSE_TILE))
    n_outer, n_inner = done.split(n, rows)
    done.reorder(ob_outer, n_outer, ob_inner, n_inner, o)
    done.parallel(ob_outer)
    _in_registers(done, (ob_inner, n_inner), o)
    acc.compute_at(done, n_outer)
    n, ob, o = acc.tensor.axes
    _sums_in_registers(acc, (ob, n), o)


def _in_registers(stage: Stage, unrolled: Sequence[IterVar], lanes: IterVar) -> None:
    for axis in unrolled:
        stage.unroll(axis)
    stage.vectorize(lanes)


def _keep_outer_loops(stage: Stage) -> None:
    """What waits for memory is no faster for more code, which only takes longer to compile."""
    _keep_loops(stage, stage.leaves[:-1])


def _keep_loops(stage: Stage, axes: Sequence[IterVar]) -> None:
    """Whole tiles are long enough: LLVM shall not copy them, too."""
    for axis in axes:
        stage.pragma(axis, "keep_loop")


def _schedule_border(schedule: Schedule) -> Stage | None:
    border = _stage(schedule, "bordered")
    if border is not None:
        border.parallel(
            next((a for a in border.tensor.axes if a.extent > 1), border.tensor.axes[0])
        )
        border.vectorize(border.tensor.axes[-1])
    return border


def register_tile(
    blocks: int, width: int, lanes: int, most: int, scratch: int = 0
) -> tuple[int, int]:
    """Blocks of channels and places of a row that are computed together, at ``most`` so many.

    The fewest cycles for a row at one product of vectors a cycle, where a product takes
    ``LATENCY_CYCLES`` and a step of the reduction one more; then the fewest blocks, or the most
    where an element takes a register that they share.
    """

    def cycles(m: int, w: int) -> float:
        steps = [min(w, width - first) for first in range(0, width, w)]
        return sum(max(m * s, LATENCY_CYCLES) + 1 for s in steps) / m

    tiles = [
        (m, w)
        for m in range(1, min(blocks, MAX_BLOCKS) + 1) if blocks % m == 0
        for w in range(1, min(width, most // m) + 1)
        if m * w + m + scratch <= REGISTERS[lanes]
    ]  # fmt: skip
    return min(tiles, key=lambda tile: (cycles(*tile), -tile[0] if scratch else tile[0], tile))


def _keeps_image(image: Tensor, weight: Tensor, groups: int, rows: int) -> bool:
    """Whether ``groups`` of blocks of output are the outer loop: the image passes by for each of
    them, else all weights for each of ``rows``. What fits the cache may pass by for nothing."""
    image_bytes, weight_bytes = 4 * math.prod(image.shape[1:]), 4 * math.prod(weight.shape)
    image_traffic = image_bytes * groups if image_bytes > CACHE_BYTES else 0
    weight_traffic = weight_bytes * rows if weight_bytes > CACHE_BYTES else 0
    return image_traffic <= weight_traffic
