"""Operators on blocks of channels (``graph/ops/blocked/``): tiles in vector registers.

A convolution keeps a tile of results, some positions of a row by some blocks of channels, in vector
registers over the whole reduction::

    for n, blocks of output, oh, tiles of ow:
        acc[ow in tile, block, 16] = 0                      registers
        for blocks of input, kh, kw, 16 channels of one:
            acc[...] += x[one element, to all lanes] * w[a vector]     unrolled
        y[...] = clip(acc + bias + residual)

So each loaded element serves all blocks of the tile, and each loaded vector of weights serves all
its positions.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from ....choose.space import Knobs, KnobValue, Refusal, Space
from ....choose.template import Plan
from ....graph.ir import Graph, Node
from ....graph.ops.blocked.convolution import BlockedConv2d, BlockedDepthwise
from ....graph.ops.blocked.dense import DOT_WIDTH, PackColumns, PackedDense
from ....graph.ops.blocked.four_bits import GROUP, FourBitRows
from ....graph.ops.blocked.integer import BlockedDotConv2d, BlockedQConv2d
from ....graph.ops.blocked.pooling import BlockedPool
from ....graph.ops.blocked.transposed import BlockedConvTranspose2d, transposed_pads
from ....graph.ops.blocked.windows import Windowed, count_groups
from ....graph.ops.layout import FromBlocks, Interleave, ToBlocks
from ....te.intrinsic import TensorIntrin
from ....te.schedule import Schedule, Stage
from ....te.tensor import IterVar, Tensor
from ...common.workload import OperatorWorkload
from ..core import LINE_BYTES, Core
from ..llvm_vector import fits_vectors
from ..micro_kernels import DOT, DOT_EACH, DOT_FOUR_BITS
from ..processor import Processor
from .base import CpuTemplate

#: Of an element of float32, or of four of int8, which are added at once.
FOUR_BYTES = 4
#: Additional registers of a step: for a product of integers, and for its element of the image.
SCRATCH = {"float32": 0, "int32": 2}
#: Cycles in which a vector of int32 sums is rescaled to int8.
RESCALE_CYCLES = 4
#: Blocks of channels that share an element of the image. Four would save loads, but the weights of
#: four blocks of a large layer do not fit the second-level cache, and each row reads them again.
MAX_BLOCKS = 2
#: Vectors of results of a dense layer for one row.
DENSE_TILE = 8
#: In blocks of at most so many channels, a row of each channel is read at the same time.
FEW_LANES = 4


@dataclass(frozen=True)
class Loads:
    """What a step of the reduction loads for a tile: for each block a vector of ``vector_bytes`` of
    weights, and for each position ``element_bytes`` of the image, at a distance of
    ``distance_bytes`` from the position before."""

    vector_bytes: int
    element_bytes: int
    distance_bytes: int

    def far_bytes(self, blocks: int, width: int, steps: int, core: Core) -> int:
        """Bytes that come from the second-level cache. Weights that fit the nearest cache stay
        there. So do the lines of the image until their last element was read, unless they share
        so few sets that they drive each other out."""
        weight_bytes = blocks * self.vector_bytes
        if weight_bytes * steps <= core.l1_bytes // 2:
            weight_bytes = 0
        sets = core.l1_way_bytes // math.gcd(self.distance_bytes, core.l1_way_bytes)
        crowded = -(-width // sets) >= core.l1_bytes // core.l1_way_bytes
        return weight_bytes + width * (LINE_BYTES if crowded else self.element_bytes)


@dataclass(frozen=True)
class _Tiled:
    """The results that are cut into tiles: ``blocks`` of channels, ``width`` positions of a row. Of
    ``registers``, ``most`` may hold sums, and a step needs ``scratch`` more. The reduction has
    ``steps`` steps for each row of each block; there are ``rows`` rows. ``latency_cycles`` is that
    of the core's products, ``finish_cycles`` those in which a finished sum becomes a result.
    ``loads`` is what a step loads, where that decides how fast it is.
    """

    blocks: int
    width: int
    registers: int
    most: int
    scratch: int
    steps: int
    rows: int
    core: Core
    latency_cycles: int
    finish_cycles: int = 0
    loads: Loads | None = None

    def misfit(self, blocks: int, width: int) -> str:
        """Why ``blocks`` by ``width`` sums do not fit the registers, or an empty string."""
        if blocks * width > self.most:
            return f"{blocks} x {width} sums need {blocks * width} registers of {self.most}"
        held = min(blocks, width)  # operands of one side; those of the other come one by one
        used = blocks * width + held + max(self.scratch, held > 1)
        if used > self.registers:
            return f"{blocks} x {width} sums need {used} registers of {self.registers}"
        return ""

    def row_cycles(self, blocks: int, positions: int) -> float:
        """Cycles of a step of the reduction for a row of one block, in tiles of ``blocks`` by
        ``positions``, and what is left of them: each tile takes one cycle more than its step, and
        its part of the end.
        """
        found = 0.0
        for (m, times), (w, more) in product(
            _parts(self.blocks, blocks), _parts(self.width, positions)
        ):
            found += times * more * (self._step_cycles(m, w) + 1 + self._end(m, w))
        return found / self.blocks

    def _end(self, blocks: int, width: int) -> float:
        """Cycles to finish the sums of a tile, for each step of it. While a core finishes the sums
        in a quarter of its registers it begins the next tile; it waits for those of more."""
        waited = max(0, blocks * width - self.registers // 4)
        return self.finish_cycles * waited / self.steps

    def _far_bytes(self, blocks: int, width: int) -> int:
        """Bytes of a step that come from the second-level cache."""
        return self.loads.far_bytes(blocks, width, self.steps, self.core) if self.loads else 0

    def _step_cycles(self, blocks: int, width: int) -> float:
        operands = (width, blocks) if self.loads else (0, 0)
        return self.core.step_cycles(
            blocks * width, self.latency_cycles, *operands, self._far_bytes(blocks, width)
        )

    def far_bytes_per_cycle(self, blocks: int, width: int) -> float:
        """Bytes that a tile reads from the second-level cache in a cycle."""
        return self._far_bytes(blocks, width) / self._step_cycles(blocks, width)

    def cycles(self, blocks: int, width: int) -> int:
        """The cycles that the cost model predicts."""
        return round(self.row_cycles(blocks, width) * self.blocks * self.rows * self.steps)


def _parts(extent: int, size: int) -> list[tuple[int, int]]:
    """An extent in parts of a size, and what is left: sizes, each with the number of such parts."""
    whole, left = divmod(extent, size)
    return [(part, count) for part, count in ((size, whole), (left, 1)) if part and count]


class _RegisterTiles(CpuTemplate):
    """Base: tiles of some blocks by some positions stay in vector registers."""

    #: The knobs of a tile's blocks and positions; a tile without such a knob has one.
    names: ClassVar[tuple[str, str]] = ("blocks", "width")
    #: Blocks that the plan gives a tile at most.
    most_blocks: ClassVar[int] = MAX_BLOCKS

    @abstractmethod
    def tiled(self, workload: OperatorWorkload) -> _Tiled:
        """What is cut into tiles."""

    @abstractmethod
    def knobs(self, tiled: _Tiled) -> dict[str, Sequence[KnobValue]]:
        """Legal values of each knob."""

    def rest(self, workload: OperatorWorkload, tiled: _Tiled, blocks: int) -> Knobs:
        """The knobs beside those of a tile of so many blocks."""
        return {}

    def space(self, workload: OperatorWorkload) -> Space:
        tiled = self.tiled(workload)
        return Space(self.knobs(tiled), lambda k: tiled.misfit(*self._tile(k)))

    def plan(self, workload: OperatorWorkload, fixed: Knobs) -> Plan | Refusal:
        tiled, space = self.tiled(workload), self.space(workload)
        legal = [
            [n for n in map(int, space.knobs.get(name, (1,))) if n == fixed.get(name, n)]
            for name in self.names
        ]
        most = int(fixed.get(self.names[0], self.most_blocks))
        tiles = [(m, w) for m, w in product(*legal) if m <= most and not tiled.misfit(m, w)]
        if not tiles:
            least = {name: values[0] for name, values in space.knobs.items()}
            return Refusal(space.refuse(least | dict(fixed)))
        tile = _best_tile(tiled, tiles)
        found = {**self.rest(workload, tiled, tile[0]), **fixed, **dict(zip(self.names, tile))}  # noqa: B905
        knobs = {name: found[name] for name in space.knobs}
        return Plan(knobs, tiled.cycles(*tile))

    def predict(self, workload: OperatorWorkload, knobs: Knobs) -> int:
        return self.tiled(workload).cycles(*self._tile(knobs))

    def _tile(self, knobs: Knobs) -> tuple[int, int]:
        blocks, positions = (int(knobs.get(name, 1)) for name in self.names)
        return blocks, positions


class DirectTiles(_RegisterTiles):
    """A convolution: a tile of ``blocks`` of channels by ``width`` positions of a row stays in
    vector registers over the whole reduction. The ``outer`` loop is over groups of blocks, each of
    which reads the whole image, or over rows, each of which reads all weights.
    """

    name = "direct"
    ops = (BlockedConv2d, BlockedQConv2d, BlockedDotConv2d, BlockedConvTranspose2d)

    def handles(self, graph: Graph, node: Node) -> bool:
        return not getattr(node.op, "depthwise", False)

    def tiled(self, workload: OperatorWorkload) -> _Tiled:
        return _tiled(workload, self.processor)

    def knobs(self, tiled: _Tiled) -> dict[str, Sequence[KnobValue]]:
        return {
            "blocks": [m for m in range(1, 5) if tiled.blocks % m == 0],
            "width": range(1, tiled.width + 1),
            "outer": ("blocks", "rows"),
        }

    def rest(self, workload: OperatorWorkload, tiled: _Tiled, blocks: int) -> Knobs:
        near_bytes = self.processor.core.near_bytes
        return {"outer": _outer(workload, tiled.blocks // blocks, near_bytes)}

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        output = schedule.outputs[0]
        if isinstance(workload.op, BlockedConvTranspose2d):
            _schedule_conv(schedule, _stage(schedule, "phases").tensor, knobs)
            schedule[output].vectorize(output.axes[-1])
        else:
            _schedule_conv(schedule, output, knobs)


class WindowTiles(_RegisterTiles):
    """Windows over each channel by itself: ``width`` positions of a row in registers, the window
    unrolled."""

    name = "channel windows"
    ops = (BlockedDepthwise, BlockedQConv2d, BlockedDotConv2d, BlockedPool)

    def tiled(self, workload: OperatorWorkload) -> _Tiled:
        return _tiled_window(workload, self.processor)

    def knobs(self, tiled: _Tiled) -> dict[str, Sequence[KnobValue]]:
        return {"width": range(1, tiled.width + 1)}

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        _schedule_windows(schedule, schedule.outputs[0], int(knobs["width"]))


class DenseTiles(_RegisterTiles):
    """Products of the rows of a matrix with weights: ``rows`` by ``blocks`` vectors of results in
    registers."""

    name = "packed dense"
    ops = (PackedDense,)
    names = ("blocks", "rows")
    most_blocks = DENSE_TILE

    def tiled(self, workload: OperatorWorkload) -> _Tiled:
        return _tiled_dense(workload, self.processor)

    def knobs(self, tiled: _Tiled) -> dict[str, Sequence[KnobValue]]:
        return {
            "rows": range(1, min(tiled.most, tiled.width) + 1),
            "blocks": range(1, min(DENSE_TILE, tiled.blocks) + 1),
        }

    def far_bytes_per_cycle(self, workload: OperatorWorkload, knobs: Knobs) -> float:
        """Bytes that a tile reads from the second-level cache in a predicted cycle."""
        return self.tiled(workload).far_bytes_per_cycle(*self._tile(knobs))

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        _schedule_dense(schedule, int(knobs["rows"]), int(knobs["blocks"]))


class BlockLayout(CpuTemplate):
    """Elements into blocks of channels or columns, and back; images that take turns."""

    name = "block layout"
    ops = (ToBlocks, FromBlocks, PackColumns, Interleave)

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        output = schedule.outputs[0]
        match workload.op:
            case ToBlocks(block) if block <= FEW_LANES:  # rows side by side: LLVM interleaves them
                schedule[output].unroll(output.axes[-1])
            case ToBlocks(last=True):
                _keep_outer_loops(schedule[output])
            case ToBlocks():  # a row of a channel after another's: one stream of reads
                *_, width, lane = output.axes
                schedule[output].reorder(lane, width)
                _keep_outer_loops(schedule[output])
            case PackColumns():
                stage = schedule[output]
                *_, depth, lane = output.axes
                if _reads_in_order(stage, lane):
                    stage.vectorize(lane)
                else:  # a row of the operand after another
                    stage.reorder(lane, depth)
                _keep_loops(stage, stage.leaves[:-2])
            case Interleave(rows, columns):
                stage, (_, _, height, width, *lane) = schedule[output], output.axes
                outer, turns = stage.split(height, rows)
                inner, others = stage.split(width, columns)
                stage.reorder(outer, turns, others, inner)
                for axis in (turns, others):
                    stage.unroll(axis)
                _keep_loops(stage, stage.leaves[:-2])
                for axis in lane:
                    stage.vectorize(axis)
            case FromBlocks(last=True):
                stage, block = schedule[output], schedule.stages[0].tensor.shape[-1]
                stage.split(output.axes[-1], block)
                _keep_loops(stage, stage.leaves[:-2])
            case FromBlocks():  # rows of one block's channels: the block stays in the nearest cache
                stage = schedule[output]
                _, channel, height, width = output.axes
                _, lane = stage.split(channel, schedule.stages[0].tensor.shape[-1])
                stage.reorder(height, lane, width)
                _keep_outer_loops(stage)


# ---- results that are cut into tiles -------------------------------------------------------------


def _tiled(workload: OperatorWorkload, processor: Processor) -> _Tiled:
    """The results of a convolution that sums over channels."""
    (x, element), (weight, kind) = workload.operands[:2]
    (images, blocks, height, width, lanes), _ = workload.result
    op = workload.op
    assert isinstance(op, Windowed | BlockedConvTranspose2d)
    dots = isinstance(op, BlockedDotConv2d)
    if isinstance(op, FourBitRows):
        return _tiled_four_bits(workload, processor)
    scratch = SCRATCH["int32" if isinstance(op, BlockedQConv2d) else "float32"]
    if dots:
        scratch = SCRATCH["int32"]
    steps = math.prod(weight) // (weight[0] * lanes)
    rows = images * height
    if isinstance(op, BlockedConvTranspose2d):
        phases = weight[:2]
        steps = math.prod(weight[3:7])
        height, width = (-(-n // s) for n, s in zip(op.size, phases, strict=True))
        rows = images * height * math.prod(phases)
    else:  # the blocks of a tile read the same elements, so they are of one group
        groups = count_groups(workload.operands[0][0], weight)
        blocks, rows = blocks // groups, rows * groups
    together, element_bytes = DOT_WIDTH if dots else 1, np.dtype(element).itemsize
    column = 1 if isinstance(op, BlockedConvTranspose2d) else op.strides[1]
    loads = Loads(
        together * lanes * np.dtype(kind).itemsize, together * element_bytes,
        column * x[-1] * element_bytes,
    )  # fmt: skip
    return _Tiled(
        blocks, width, processor.registers, processor.sums, scratch, steps // together, rows,
        processor.core, _latency_cycles(processor, dots), RESCALE_CYCLES if dots else 0, loads,
    )  # fmt: skip


def _tiled_four_bits(workload: OperatorWorkload, processor: Processor) -> _Tiled:
    """The results of rows by weights of 4 bits: a step has a group of channels."""
    (*_, width, _), _ = workload.operands[0]
    (blocks, groups, pairs, lanes, four), _ = workload.operands[1]
    loads = Loads((pairs * four + 1) * lanes, GROUP, groups * GROUP)
    scratch = SCRATCH["int32"] + 1  # the sum of a group
    return _Tiled(
        blocks, width, processor.registers, processor.sums, scratch, groups, 1, processor.core,
        _latency_cycles(processor, True), RESCALE_CYCLES, loads,
    )  # fmt: skip


def _tiled_window(workload: OperatorWorkload, processor: Processor) -> _Tiled:
    """The results of windows over each channel by itself."""
    (images, blocks, height, width, lanes), _ = workload.result
    op = workload.op
    if isinstance(op, BlockedPool):
        kernel, stride = op.pool.kernel, op.pool.strides[1]
        steps = math.prod(kernel)
    else:
        assert isinstance(op, Windowed)
        (weight, _) = workload.operands[1]
        kernel, stride = op.kernel(weight), op.strides[1]
        steps = math.prod(weight) // (weight[0] * lanes)
    # The taps of a row share its elements: in registers with the sums, each is loaded once.
    shared = (processor.registers - 1 - kernel[1] + stride) // (1 + stride)
    rows, dots = images * height * blocks, isinstance(op, BlockedDotConv2d)
    return _Tiled(
        1, width, processor.registers, max(1, min(processor.sums, shared)), 0, steps, rows,
        processor.core, _latency_cycles(processor, dots), RESCALE_CYCLES if dots else 0,
    )  # fmt: skip


def _tiled_dense(workload: OperatorWorkload, processor: Processor) -> _Tiled:
    """The results of a dense layer: blocks are vectors of results, positions rows of the matrix."""
    (x, _), (weight, _), *_ = workload.operands
    lead, dots = x[:-2], workload.operands[0][1] == "uint8"
    vectors, depth, lanes = weight[len(lead) :][:3]
    scratch = SCRATCH["int32" if dots else "float32"]
    loads = Loads(FOUR_BYTES * lanes, FOUR_BYTES, x[-1] * (1 if dots else FOUR_BYTES))
    return _Tiled(
        vectors, x[-2], processor.registers, processor.sums, scratch, depth, math.prod(lead),
        processor.core, _latency_cycles(processor, dots), loads=loads,
    )  # fmt: skip


def _latency_cycles(processor: Processor, dots: bool) -> int:
    """Of a product, or of four ``dots``."""
    return processor.core.dot_latency_cycles if dots else processor.core.latency_cycles


def _outer(workload: OperatorWorkload, groups: int, cache_bytes: int) -> str:
    """The outer loop: over ``groups`` of blocks, each of which reads the whole image, or over rows,
    each of which reads all weights; whichever reads less. Data that fits the cache, of which
    ``cache_bytes`` are free, costs nothing to read again. Threads share the blocks of a single row.
    """
    image_bytes, weight_bytes = (4 * n for n in _sizes(workload))
    rows = _tiled_rows(workload)
    if rows == 1:
        return "blocks"
    image_traffic = image_bytes * groups if image_bytes > cache_bytes else 0
    weight_traffic = weight_bytes * rows if weight_bytes > cache_bytes else 0
    return "blocks" if image_traffic <= weight_traffic else "rows"


def _tiled_rows(workload: OperatorWorkload) -> int:
    """Rows of results, of one phase where there are several."""
    height, op = workload.result[0][2], workload.op
    if isinstance(op, BlockedConvTranspose2d):
        (weight, _) = workload.operands[1]
        return -(-op.size[0] // weight[0])
    return height


def _sizes(workload: OperatorWorkload) -> tuple[int, int]:
    """Elements of an image with its border, and of the weights."""
    (x, _), (weight, _), *_ = workload.operands
    op = workload.op
    if isinstance(op, BlockedConvTranspose2d):
        pads = transposed_pads(op, x, weight)
    else:
        assert isinstance(op, BlockedConv2d | BlockedQConv2d | BlockedDotConv2d)
        pads = op.pads
    top, left, bottom, right = pads
    image = (x[1], top + x[2] + bottom, left + x[3] + right, *x[4:])
    return math.prod(image), math.prod(weight)


# ---- schedules -----------------------------------------------------------------------------------


def _stage(schedule: Schedule, name: str) -> Stage:
    return next(stage for stage in schedule.stages if stage.name == name)


def _schedule_conv(schedule: Schedule, output: Tensor, knobs: Knobs) -> None:
    out, acc = schedule[output], _stage(schedule, "acc")
    *lead, ob, oh, ow, o = output.axes
    blocks, width = int(knobs["blocks"]), int(knobs["width"])
    ob_outer, ob_inner = out.split(ob, blocks)
    ow_outer, ow_inner = out.split(ow, width)
    around = (ob_outer, oh) if knobs["outer"] == "blocks" else (oh, ob_outer)
    out.reorder(*lead, *around, ow_outer, ob_inner, ow_inner, o)
    out.parallel(around[0])
    _keep_loops(out, (*lead, *around, ow_outer))
    _in_registers(out, (ob_inner, ow_inner), o)
    acc.compute_at(out, ow_outer)
    *_, ob, oh, ow, o = acc.tensor.axes
    for tap in _sums_in_registers(acc, _held_last({ow: width, ob: blocks}), o):
        acc.pragma(tap, "keep_loop")  # registers that hold no sums are enough for one step only
    border = _schedule_border(schedule)
    if border is not None:
        _keep_outer_loops(border)


def _held_last(tile: Mapping[IterVar, int]) -> tuple[IterVar, ...]:
    """The axes of a tile, given their sizes, in the order in which a step goes through them. The
    operands along the last one stay in registers for the whole step, so that is the shortest."""
    return tuple(sorted(tile, key=lambda axis: -tile[axis]))


def _find_dot(acc: Stage) -> tuple[TensorIntrin, int] | None:
    """What a step adds several products with, if so, and over how many reduction axes."""
    match [read.dtype for read in acc.reads()]:
        case [*_, "uint8", "uint8", "uint8"]:
            return DOT_FOUR_BITS, 3
        case [*_, "uint8", "int8"]:
            return DOT_EACH if len(acc.tensor.reduce_axes) == 3 else DOT, 1
    return None


def _sums_in_registers(acc: Stage, tile: Sequence[IterVar], lanes: IterVar) -> list[IterVar]:
    """Keep a tile of sums in registers, to which a step adds vectors of products, one or four at
    once. Returns the loops around the tile.
    """
    axes = acc.tensor.reduce_axes
    if (found := _find_dot(acc)) is not None:
        dot, count = found
        taps = [*axes[:-count]]
        acc.cover(lanes, lanes.extent)  # an instruction has all lanes, whoever reads them
        acc.reorder(*taps, *tile, lanes, *axes[-count:])
        for axis in tile:
            acc.unroll(axis)
        acc.tensorize(lanes, dot)
        return taps
    *taps, last = axes
    acc.reorder(*taps, last, *tile, lanes)
    _in_registers(acc, tile, lanes)
    acc.pragma(lanes, "contract")
    return [*taps, last]


def _schedule_windows(schedule: Schedule, output: Tensor, width: int) -> None:
    """Each channel by itself: a tile of positions of a row in registers, the window unrolled."""
    out, acc = schedule[output], _stage(schedule, "acc")
    n, cb, oh, ow, c = output.axes
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


def _schedule_dense(schedule: Schedule, rows: int, blocks: int) -> None:
    out, done, acc = (_stage(schedule, name) for name in ("out", "blocks", "acc"))
    *lead, n, o = out.tensor.axes
    ob, lane = out.split(o, acc.tensor.shape[-1])
    ob_outer, ob_inner = out.split(ob, blocks)
    n_outer, n_inner = out.split(n, rows)
    out.reorder(*lead, ob_outer, n_outer, ob_inner, n_inner, lane)
    out.parallel(next((axis for axis in lead if axis.extent > 1), ob_outer))
    _keep_loops(out, (*lead, ob_outer, n_outer))
    _in_registers(out, (ob_inner, n_inner), lane)
    for stage in (done, acc):
        stage.compute_at(out, n_outer)
    *_, n, ob, o = done.tensor.axes
    _in_registers(done, (ob, n), o)
    *_, n, ob, o = acc.tensor.axes
    _sums_in_registers(acc, _held_last({n: rows, ob: blocks}), o)


def _in_registers(stage: Stage, unrolled: Sequence[IterVar], lanes: IterVar) -> None:
    for axis in unrolled:
        stage.unroll(axis)
    stage.vectorize(lanes)


def _reads_in_order(stage: Stage, lanes: IterVar) -> bool:
    """Whether vectors can compute a stage along an axis."""
    return stage.body is not None and fits_vectors(stage.body, lanes.var)


def _keep_outer_loops(stage: Stage) -> None:
    """Keep LLVM from unrolling the outer loops of a stage that waits for memory: that would make it
    no faster, only longer to compile.
    """
    _keep_loops(stage, stage.leaves[:-1])


def _keep_loops(stage: Stage, axes: Sequence[IterVar]) -> None:
    """Keep LLVM from unrolling loops over whole tiles, whose code is long enough."""
    for axis in axes:
        stage.pragma(axis, "keep_loop")


def _schedule_border(schedule: Schedule) -> Stage | None:
    border = next((stage for stage in schedule.stages if stage.name == "bordered"), None)
    if border is not None:
        border.parallel(
            next((a for a in border.tensor.axes if a.extent > 1), border.tensor.axes[0])
        )
        border.vectorize(border.tensor.axes[-1])
    return border


def _best_tile(tiled: _Tiled, tiles: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The blocks of channels and positions of a row in a tile: those of the fewest cycles; of
    several, the fewest blocks, or the most where the blocks share a register that holds an element.
    """
    share = -1 if tiled.scratch else 1
    return min(tiles, key=lambda t: (round(tiled.row_cycles(*t), 9), share * t[0], t))
