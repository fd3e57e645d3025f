"""Layer normalisation of the positions of an image, in two operators; RMS normalisation, too.

The first one finds the factor and the offset of each position. A position's channels are added up
by the tensor core: 16 positions, read as weights, times ones are their sums, and times the identity
matrix the positions in lanes, whose squares the vector unit looks up and adds up. So both sums, and
all that follows from them, are one entry for 16 positions. The result is their digits of 7 and 8
bits.

The second one brings the digits of a position into all lanes, as products with matrices that have
one column of ones, and computes ``requantize(x * factor + offset)``; of a tensor in two int8, with
what its second one adds to the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .....isa.params import HwParams
from .....runtime.layout import blocks, pack_parameters
from ....choose.space import Knobs, KnobValue
from ....graph.ir import Graph, Node
from ....graph.ops.base import Shape
from ....graph.ops.normalisation import (
    DIGIT_WEIGHTS,
    DIGITS,
    MOST_WIDTH,
    PAIR_BITS,
    VALUES,
    Numbers,
    QNormalise,
    Row,
    RowDigits,
    Steps,
    digits,
    normaliser,
    roots,
)
from ....te.expr import Expr, select
from ....te.schedule import create_schedule
from ....te.tensor import Tensor, clip, compute, placeholder, reduce_axis, sum_of
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ....tir.passes.share_buffers import share_buffers
from ....tir.passes.unroll import unroll_loops
from .. import expressions as E
from ..cost.tiling import INSN_CYCLES, even_sizes, read_cycles, row_cycles
from ..machine import Budget, Context, Machine
from .base import Tiled, Track, WithinBudget, tile_bytes
from .matmul import tile_step, transposed_tiles, weight_tiles

#: Entries of tmp for each block of positions: the most values of the chain that live at one time.
LIVE = 9
#: Operators of the chain: each waits for the one before.
CHAIN_OPS, WAIT_CYCLES = 100, 16


@dataclass(frozen=True)
class RowDigitsWorkload(WithinBudget):
    """Digits of ``places``, in ``tiles`` blocks, of ``channel_blocks`` blocks of channels."""

    channel_blocks: int
    places: int
    tiles: int
    context: Context
    numbers: Numbers = field(compare=False)


class RowFactors(Tiled[RowDigitsWorkload]):
    """Sums of ``tiles`` blocks of positions at a time, and one chain of operators for all of
    them."""

    name = "row digits"
    ops = (RowDigits,)
    track = Track.TENSOR
    other_track = Track.VECTOR
    operand_as_weights = 0
    says = "sums on the tensor core and by a table, Newton's steps on the vector unit"

    def workload(self, graph: Graph, node: Node, context: Context) -> RowDigitsWorkload:
        op, [x], params = node.op_as(RowDigits), graph.operands(node), self.machine.params
        sizes = blocks(x.shape[1], params), x.shape[2], blocks(x.shape[2], params)
        return RowDigitsWorkload(*sizes, context, op.numbers)

    def sizes(self, workload: RowDigitsWorkload) -> Mapping[str, Sequence[KnobValue]]:
        return {"tiles": even_sizes(workload.tiles)}

    def needs(self, workload: RowDigitsWorkload, knobs: Knobs) -> Mapping[str, int]:
        return _digits_needs(workload.channel_blocks, int(knobs["tiles"]), self.machine.params)

    def predict(self, workload: RowDigitsWorkload, knobs: Knobs) -> int:
        """A tile's chain begins when its positions are there and summed; the next tile's positions
        are loaded meanwhile."""
        w, tiles, params = workload, int(knobs["tiles"]), self.machine.params
        rows = w.channel_blocks * tiles * params.block
        load = read_cycles(rows * params.entry_bytes("inp"), self.machine)
        chain = rows + CHAIN_OPS * (WAIT_CYCLES + tiles)
        return load + -(-w.tiles // tiles) * max(load, chain)

    def schedule(self, workload: RowDigitsWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: x, read as weights; the identity matrix and a row of ones; tables of squares
        and of roots (int32 [entries of par, block]); out, [digits][tiles]. A last tile that reaches
        beyond the positions finds digits that nothing reads."""
        params, w, block = self.machine.params, workload, self.machine.params.block
        x = placeholder((tile_bytes(w.channel_blocks, w.places, block),), "int8", "image")
        unit = placeholder((block, 1, block), "int8", "identity")
        one = placeholder((1, block), "int8", "one")
        tables = [E.LookupTable(params, name) for name in ("squares", "roots")]
        tiles = weight_tiles(x, 1, w.tiles, w.channel_blocks, w.places, block)
        cb, ci = reduce_axis(w.channel_blocks, "cb"), reduce_axis(block, "ci")
        total = compute(
            (w.tiles, 1, block),
            lambda t, b, i: E.dot(one[b, ci], tiles[0, t, cb, 0, 0, i, ci], (cb, ci)),
            "total",
        )
        turned = transposed_tiles(tiles, unit)
        k, e = reduce_axis(w.channel_blocks, "k"), reduce_axis(block, "e")
        squares = compute(
            (w.tiles, 1, block),
            lambda t, b, i: sum_of(tables[0].int32(turned[0, t, k, e, b, i]), (k, e)),
            "squares_sum",
        )
        chain = _Chain(tables[1])
        out = _side_by_side(chain.digits(total, squares, w.numbers))
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        # What is constant stays on chip from the start.
        s.cache_read(unit, "inp", [turned])
        # Around 0, the sums of elements do not matter.
        summed = [total] if w.numbers.centre != 0 else []
        for tensor in summed:
            s.cache_read(one, "inp", [tensor])
        s.cache_read(tables[0].words, "par", [squares])
        s.cache_read(tables[1].words, "par", chain.lookers)
        [tile], _ = E.split_tiles(s[out], (int(knobs["tiles"]),), (1,))
        scopes = {tiles: "wgt", squares: "tmp"} | dict.fromkeys(summed, "acc")
        E.attach(s, scopes, s[out], tile)
        for stage in chain.stages:
            E.attach(s, {stage: "tmp"}, s[out], tile)
        s[local].compute_at(s[out], tile)
        s[local].unroll(local.axes[0])
        s[tiles].double_buffer()
        s[squares].reorder(squares.axes[0], k, e, *squares.axes[1:])
        E.attach(s, {turned: "acc"}, s[squares], squares.axes[0])
        s[turned].double_buffer()
        for tensor in (*summed, turned):
            E.schedule_sums(s, tensor, params)
        func = lower(s, [x, unit, one, *(table.words for table in tables), out], name)
        return share_buffers(unroll_loops(func), "tmp")

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        block = self.machine.params.block
        return {
            "identity": np.eye(block, dtype=np.int8),
            "one": np.ones((1, block), np.int8),
            "squares": (np.arange(256).astype(np.int8).astype(np.int32) ** 2).astype("<i2"),
            "roots": roots().astype("<i2"),
        }


def _digits_needs(channel_blocks: int, tiles: int, params: HwParams) -> dict[str, int]:
    """Entries of the scratchpads for sums of ``tiles`` blocks of positions at a time."""
    return {
        "inp": params.block + 1,
        "wgt": 2 * tiles * channel_blocks,
        "acc": tiles + 2 * channel_blocks * params.block,
        "tmp": LIVE * tiles,
        "out": VALUES * DIGITS * tiles,
        "par": 2 * params.table_entries,
        "uop": 2 * tiles * channel_blocks,
    }


def _side_by_side(parts: list[Row]) -> Tensor:
    """Values of int32 [tiles, batch, block] as int8 [parts, tiles, 1, batch, block]."""
    tiles, batch, block = parts[0].shape

    def rule(p: Expr, t: Expr, y: Expr, b: Expr, i: Expr) -> Expr:
        values = [clip(part.rule(t, b, i), -128, 127).astype("int8") for part in parts]
        chosen = values[-1]
        for number in reversed(range(len(values) - 1)):
            chosen = select(p < number + 1, values[number], chosen)
        return chosen

    return compute((len(parts), tiles, 1, batch, block), rule, "out")


class _Chain:
    """Operators of one pass on a value of each lane."""

    def __init__(self, table: E.LookupTable):
        self.stages: list[Tensor] = []
        #: Stages that look up values.
        self.lookers: list[Tensor] = []
        self.table = table

    def digits(self, total: Tensor, squares: Tensor, numbers: Numbers) -> list[Row]:
        """The digits of the factor and of the offset of rows with these sums."""
        by = Steps(Row.least, self.look_up, lambda value: value)  # shifts take 5 bits anyway
        sums = Row.from_tensor(total, self.one_pass), Row.from_tensor(squares, self.one_pass)
        values = normaliser(sums[0], sums[1], numbers, by)
        return [digit for value in values for digit in digits(value)]

    def look_up(self, index: Row) -> Row:
        """The values of the table."""
        found = index.map_values(self.table.int32)
        self.lookers.append(self.stages[-1])
        return found

    def one_pass(self, row: Row) -> Row:
        """A stage of the result of an operator."""
        self.stages.append(compute(row.shape, row.rule, f"chain{len(self.stages)}"))
        return Row.from_tensor(self.stages[-1], row.each)


@dataclass(frozen=True)
class NormaliseWorkload(WithinBudget):
    """``channel_blocks`` times ``places``, in ``tiles`` blocks, of an image."""

    channel_blocks: int
    places: int
    tiles: int
    context: Context
    epilogue: E.Epilogue = field(compare=False)
    low_bits: int | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> int:
        """How many images are read."""
        return 1 if self.low_bits is None else 2


class Normalise(Tiled[NormaliseWorkload]):
    """``requantize(x * factor + offset)`` of ``channel_blocks`` of ``tiles`` blocks of positions at
    a time. The parameters of channels stay on chip if they are ``resident``, or are loaded with
    each tile."""

    name = "normalise"
    ops = (QNormalise,)
    track = Track.TENSOR
    other_track = Track.VECTOR
    says = "on the vector unit, its factors spread to all lanes by the tensor core"

    def workload(self, graph: Graph, node: Node, context: Context) -> NormaliseWorkload:
        op, x, params = node.op_as(QNormalise), graph[node.inputs[0]], self.machine.params
        sizes = blocks(x.shape[1], params), x.shape[2], blocks(x.shape[2], params)
        epilogue = E.Epilogue(op.norm.zero_point)
        return NormaliseWorkload(*sizes, context, epilogue, low_bits=op.norm.low_bits)

    def sizes(self, workload: NormaliseWorkload) -> Mapping[str, Sequence[KnobValue]]:
        return {
            "tiles": even_sizes(workload.tiles),
            "channel_blocks": even_sizes(workload.channel_blocks),
            "resident": (0, 1),
        }

    def needs(self, workload: NormaliseWorkload, knobs: Knobs) -> Mapping[str, int]:
        tiles, some = int(knobs["tiles"]), int(knobs["channel_blocks"])
        held = workload.channel_blocks if knobs["resident"] else some
        return _normalise_needs(tiles, some, held, self.machine.params, workload.inputs)

    def predict(self, workload: NormaliseWorkload, knobs: Knobs) -> int:
        """As for a row of vectors, whose passes are two; and the values of each tile."""
        w, params = workload, self.machine.params
        tiles, some = int(knobs["tiles"]), int(knobs["channel_blocks"])
        entries, size = w.channel_blocks * w.places, tiles * some * params.block
        steps = -(-w.tiles // tiles)
        passes = 2 if w.low_bits is None else 5
        row = row_cycles(entries, size, passes, w.inputs, 2, self.machine)
        # Each block of channels has a PARAM and an instruction of its own.
        row += steps * w.channel_blocks * INSN_CYCLES
        row += steps * 2 * VALUES * (INSN_CYCLES + tiles * params.block)
        par_bytes = w.channel_blocks * E.REQUANT_ENTRIES * params.entry_bytes("par")
        read_bytes = w.inputs * entries * params.entry_bytes("inp")
        read_bytes += par_bytes * (1 if knobs["resident"] else steps)
        return max(row, read_cycles(read_bytes, self.machine))

    def schedule(self, workload: NormaliseWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: x, perhaps in two int8; digits, [VALUES * DIGITS][tiles]; for each weight of
        a digit and each lane a matrix whose result is that lane's digit, in all lanes; par
        ([channel blocks, 3, block]); out."""
        params, w, block = self.machine.params, workload, self.machine.params.block
        shape = (w.channel_blocks, w.places, 1, block)
        images = [placeholder(shape, "int8", name) for name in ("x", "low")[: w.inputs]]
        found = placeholder((VALUES, 2, 2, w.tiles, 1, block), "int8", "digits")
        spreading = placeholder((2, block, block, block), "int8", "spreading")
        par = placeholder((w.channel_blocks, E.REQUANT_ENTRIES, block), "int32", "param")
        d, ci = reduce_axis(2, "d"), reduce_axis(block, "ci")
        pairs = compute(
            (VALUES, 2, w.tiles, block, 1, block),
            lambda v, p, t, r, b, i: E.dot(
                found[v, p, d, t, b, ci], spreading[d, r, i, ci], (d, ci)
            ),
            "pairs",
        )
        size = (VALUES, *pairs.shape[2:])
        high = compute(size, lambda *at: pairs[(at[0], 1, *at[1:])] << PAIR_BITS, "high")
        value = compute(size, lambda *at: pairs[(at[0], 0, *at[1:])] - high[at], "value")

        def read_position(number: int, at: tuple[Expr, ...]) -> Expr:
            _, p, b, i = at
            return value[number, p // block, p % block, b, i]

        def times_factor(x: Tensor) -> Tensor:
            rule = lambda *at: x[at].astype("int32") * read_position(0, at)  # noqa: E731
            return compute(shape, rule, f"{x.name}_scaled")

        scaled = [times_factor(x) for x in images]
        total, parts = scaled[0], [*scaled]
        if (bits := w.low_bits) is not None:
            high_part, low_part = scaled
            shifted = compute(shape, lambda *at: low_part[at] >> bits, "shifted")
            total = compute(shape, lambda *at: high_part[at] + shifted[at], "total")
            parts += [shifted, total]
        out = E.requantized(total, par, w.epilogue, addend=lambda at: read_position(1, at))
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        held = [s.cache_read(x, "inp", [y]) for x, y in zip(images, scaled, strict=True)]
        par_tile = s.cache_read(par, "par", [local])
        digit_tile = s.cache_read(found, "inp", [pairs])
        s.cache_read(spreading, "wgt", [pairs])  # it stays on chip from the start
        sizes = (int(knobs["tiles"]) * block, int(knobs["channel_blocks"]))
        (positions, channels), _ = E.split_tiles(s[out], sizes, (1, 0))
        E.attach(s, {digit_tile: "inp", pairs: "acc", value: "tmp"}, s[out], positions)
        E.attach(s, {high: "tmp"}, s[value], value.axes[0])
        tiles = dict.fromkeys(held, "inp") | dict.fromkeys(parts, "tmp") | {local: "out"}
        if not knobs["resident"]:
            tiles[par_tile] = "par"
        E.attach(s, tiles, s[out], channels)
        for tensor in (*held, local, digit_tile, pairs):
            s[tensor].double_buffer()
        if not knobs["resident"]:
            s[par_tile].double_buffer()
        E.schedule_sums(s, pairs, params)
        return lower(s, [*images, found, spreading, par, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op, params = node.op_as(QNormalise), self.machine.params
        column = np.eye(params.block, dtype=np.int8)[:, None].repeat(params.block, axis=1)
        spreading = np.stack([column * np.int8(weight) for weight in DIGIT_WEIGHTS])
        bias, multiplier, shift = op.norm.parameters
        return {
            "spreading": spreading,
            "requantisation": pack_parameters(bias, multiplier, shift, params),
        }


def _normalise_needs(
    tiles: int, some: int, held: int, params: HwParams, inputs: int
) -> dict[str, int]:
    """Entries of the scratchpads for ``some`` blocks of channels of ``tiles`` blocks of positions
    of so many ``inputs``, and the parameters of ``held`` blocks of channels."""
    rows, block = tiles * params.block, params.block
    copies = 1 if held > some else 2
    return {
        "inp": inputs * 2 * some * rows + 2 * 2 * VALUES * 2 * tiles,
        "wgt": 2 * block,
        "acc": 2 * 2 * VALUES * rows,
        "tmp": VALUES * rows + (1 if inputs == 1 else 4) * some * rows,
        "out": 2 * some * rows,
        "par": copies * E.REQUANT_ENTRIES * held,
        "uop": 2 * 2 * VALUES * rows,
    }


def most_norm_channels(params: HwParams) -> int:
    """The most channels of an image whose positions are normalised; 0 without a table of 16
    bits."""
    if params.vector_table < 2 or params.batch > 1:
        return 0
    whole = Budget.whole(params)
    if whole.lack(_normalise_needs(1, 1, 1, params, 2)):
        return 0
    counts = range(1, MOST_WIDTH // params.block + 1)
    fits = (n for n in counts if not whole.lack(_digits_needs(n, 1, params)))
    return params.block * max(fits, default=0)


def normalised_by_host(shape: Shape, axis: int, machine: Machine) -> str:
    """Why the host computes a layer normalisation of a tensor."""
    params, width = machine.params, shape[axis]
    if params.vector_table < 2:
        return "a layer normalisation, which needs vector_table = 2"
    if params.batch > 1:
        return f"places as weights, which have no batch; the core has {params.batch}"
    if width > (most := most_norm_channels(params)):
        return f"a normalisation of {width} channels; there is room for {most}"
    if width % params.block:
        return f"channels in whole blocks of {params.block}, got {width}"
    if shape[-2] % (step := tile_step(params)):
        return f"a multiple of {step} places, which are read as tiles of weights, got {shape[-2]}"
    return "a normalisation of what is no image of the accelerator"
