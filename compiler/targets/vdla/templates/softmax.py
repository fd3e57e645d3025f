"""Softmax along the positions of an image, with a mask or without, on the vector unit of a
configuration whose table has values of 16 bits.

Keys are entries and queries are channels, so that the maximum and the sum of a row are reductions
of the vector unit. One chain of operators inverts the sums of several blocks of channels.

With a mask, every block of queries has keys of its own that it sees, so that the loops of one block
are not those of the next: ``masked_softmax_loops`` writes them out. Keys that no query of a block
sees take no work but the store of the zero point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from .....isa.params import HwParams
from .....isa.timing import PARAM_ITERATIONS, VECTOR_DEPTH
from ....choose.space import Knobs, KnobValue, Refusal
from ....graph.ir import Graph, Node
from ....graph.ops.group_matmul import POSITIONS
from ....graph.ops.normalisation import Row
from ....graph.ops.softmax import (
    MOST_KEYS,
    MOST_ROOM,
    PRODUCT_BITS,
    QTableSoftmax,
    first_inverse,
    newton,
    newton_steps,
    sums,
)
from ....te import Expr, Schedule, Tensor, compute, create_schedule, minimum, placeholder
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from .. import expressions as E
from ..attention_mask import VisibleKeys, find_visible_keys
from ..cost.tiling import INSN_CYCLES, even_sizes, read_cycles, row_cycles
from ..machine import Budget, Context, Machine, vector_loops
from .base import Tiled, Track, WithinBudget, blocked_shape, uniform_parameters
from .concat_slice import is_column
from .masked_softmax_loops import (
    APART,
    PARTS,
    Loops,
    MaskedSoftmaxWorkload,
    count_scores,
    group_tiles,
)

#: Entries of tmp for each block: maximum, sum, inverse and limit, which stay; parts of the last of
#: Newton's steps beside the inverses of all.
STAYING, CHAIN_PARTS = 4, 10
#: Operators of one of Newton's steps, and of the last one.
STEP_OPS, LAST_OPS = 5, 8


@dataclass(frozen=True)
class SoftmaxWorkload(WithinBudget):
    """Rows along ``places`` of ``channel_blocks`` blocks of channels; ``room`` as of the
    operator."""

    channel_blocks: int
    places: int
    room: int
    context: Context
    epilogue: E.Epilogue = field(compare=False)


class Softmax(Tiled[SoftmaxWorkload]):
    """Maximum, sum of exponentials and inverse of ``blocks`` blocks of channels at a time; then
    exponentials times inverses of ``places`` at a time. There are no virtual threads: the parts of
    the inverses would all live in tmp at the same time."""

    name = "softmax"
    ops = (QTableSoftmax,)
    track = Track.VECTOR
    table_bytes = 2

    @property
    def share(self) -> Fraction:
        """More rows at a time are fewer chains. Transpositions run beside it, which need little."""
        return Fraction(5, 8)

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        refused = _refuse_rows(graph, node, self.machine.params)
        return refused or "on the vector unit, by its table and Newton's steps"

    def workload(self, graph: Graph, node: Node, context: Context) -> SoftmaxWorkload:
        op = node.op_as(QTableSoftmax)
        channel_blocks, positions, _ = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        return SoftmaxWorkload(
            channel_blocks, positions, op.room, context, E.Epilogue(op.zero_point)
        )

    def sizes(self, workload: SoftmaxWorkload) -> Mapping[str, Sequence[KnobValue]]:
        return {
            "blocks": even_sizes(workload.channel_blocks),
            "positions": even_sizes(workload.places),
        }

    def needs(self, workload: SoftmaxWorkload, knobs: Knobs) -> Mapping[str, int]:
        blocks, positions = int(knobs["blocks"]), int(knobs["positions"])
        return _needs(workload.places, workload.room, blocks, positions, self.machine.params)

    def predict(self, workload: SoftmaxWorkload, knobs: Knobs) -> int:
        """As for a row of vectors, whose passes are those over all positions; and the chains."""
        w = workload
        blocks, positions = int(knobs["blocks"]), int(knobs["positions"])
        tiles = -(-w.channel_blocks // blocks)
        entries, passes = w.channel_blocks * w.places, 4 + bool(w.room)
        size = blocks * positions
        row = row_cycles(entries, size, passes, 1, 2, self.machine)
        chain = STEP_OPS * newton_steps(w.places) + LAST_OPS
        return row + tiles * chain * (INSN_CYCLES + blocks)

    def schedule(self, workload: SoftmaxWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: x, the table (int32 [entries of par, block]), par ([1, 3, block]), out. The
        multiplier in par is negative, as the inverses are."""
        params, w = self.machine.params, workload
        shape = (w.channel_blocks, w.places, 1, params.batch, params.block)
        x = placeholder(shape, "int8", "x")
        table = E.LookupTable(params)
        par = placeholder((1, E.REQUANT_ENTRIES, params.block), "int32", "param")

        def look_up(most: Expr, element: Expr) -> Expr:
            return table.difference(element.astype("int32"), most)

        most, total = sums(x, 1, look_up)
        chain = Chain(total)
        inverse = chain.inverse(w.places, w.room)
        exponential = compute(shape, lambda *at: look_up(most[_row(at)], x[at]), "exponential")
        limited, limits = exponential, []
        if w.room:
            limit = compute(total.shape, lambda *at: total[at] >> w.room, "limit")
            limited = compute(
                shape, lambda *at: minimum(exponential[at], limit[_row(at)]), "limited"
            )
            limits = [limit]
        product = compute(shape, lambda *at: limited[at] * inverse[_row(at)], "product")
        out = E.requantized(product, par, w.epilogue, per_channel=False)
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        s[product].compute_inline()
        x_tile = s.cache_read(x, "inp", [most, total, exponential])
        # The table and the parameters stay on chip from the start.
        s.cache_read(table.words, "par", [total, exponential])
        s.cache_read(par, "par", [local])
        (channels, positions), _ = E.split_tiles(
            s[out], (int(knobs["blocks"]), int(knobs["positions"])), (0, 1)
        )
        rows = dict.fromkeys((most, total, inverse, *limits), "tmp")
        E.attach(s, {x_tile: "inp"} | rows, s[out], channels)
        for sums_of_rows in (most, total):
            [key] = sums_of_rows.reduce_axes
            s[sums_of_rows].reorder(key, *sums_of_rows.axes)
        chain.schedule(s, int(knobs["blocks"]))
        E.attach(s, {exponential: "tmp", limited: "tmp", local: "out"}, s[out], positions)
        # The next tile is loaded, if there is room for it, and the one before stored, meanwhile.
        s[local].double_buffer()
        if _tiles_in_inp(w.places, int(knobs["blocks"]), params) > 1:
            s[x_tile].double_buffer()
        else:  # each chunk is loaded where one has been used
            chunk, _ = s[x_tile].split(x_tile.axes[1], int(knobs["positions"]))
            s[x_tile].reorder(chunk, x_tile.axes[0])
            s[x_tile].unroll(chunk)
        return lower(s, [x, table.words, par, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        assert isinstance(node.op, QTableSoftmax)
        return softmax_constants(node.op, self.machine)


class MaskedSoftmax(Tiled[MaskedSoftmaxWorkload]):
    """Maximum, sum of exponentials and inverse of ``blocks`` blocks of channels at a time; then
    exponentials times inverses of ``places`` at a time, of all blocks of a tile that see the same
    keys."""

    name = "masked softmax"
    ops = (QTableSoftmax,)
    track = Track.VECTOR
    table_bytes = 2

    def handles(self, graph: Graph, node: Node) -> bool:
        return len(node.inputs) == 2

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        assert isinstance(node.op, QTableSoftmax)
        params, (x, mask) = self.machine.params, graph.operands(node)
        if mask.data is None and node.op.groups == 1:
            return Refusal("a softmax whose mask is computed, and is no image of one matrix")
        keys = x.shape[node.op.axis]
        if keys <= longest_row(params) and prod(x.shape) // keys % params.block == 0:
            _, rows = self._spans(graph, node)
            if rows is not None and len(rows) > (most := most_mask_rows(params)):
                return Refusal(f"masks of {len(rows)} different rows; there is room for {most}")
        if refused := _refuse_rows(graph, node, params):
            return refused
        return "on the vector unit, by its table and Newton's steps, without keys that are masked"

    def _spans(self, graph: Graph, node: Node) -> tuple[tuple[VisibleKeys, ...], np.ndarray | None]:
        """What each block of rows sees, and the rows of masks; None if these are computed, and so
        decide about all keys."""
        assert isinstance(node.op, QTableSoftmax)
        x, mask = graph.operands(node)
        if mask.data is None:
            blocks, keys = mask.shape[1] // self.machine.params.block, x.shape[node.op.axis]
            spans = tuple(VisibleKeys(0, keys, n * keys) for n in range(blocks))
            return spans * node.op.groups, None
        visible = np.moveaxis(np.broadcast_to(mask.data, x.shape), node.op.axis, -1)
        return find_visible_keys(visible.reshape(-1, visible.shape[-1]), self.machine.params.block)

    def workload(self, graph: Graph, node: Node, context: Context) -> MaskedSoftmaxWorkload:
        op = node.op_as(QTableSoftmax)
        _, positions, _ = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        spans, rows = self._spans(graph, node)
        epilogue, is_computed = E.Epilogue(op.zero_point), rows is None
        count = len(set(spans)) * positions if rows is None else len(rows)
        return MaskedSoftmaxWorkload(
            positions, spans, count, is_computed, op.room, context, epilogue
        )

    def sizes(self, workload: MaskedSoftmaxWorkload) -> Mapping[str, Sequence[KnobValue]]:
        return {
            "blocks": even_sizes(len(workload.spans)),
            "positions": even_sizes(max(span.bound for span in workload.spans)),
        }

    def needs(self, workload: MaskedSoftmaxWorkload, knobs: Knobs) -> Mapping[str, int]:
        """Some blocks at a time are multiplied at some positions at a time."""
        w, blocks, positions = workload, int(knobs["blocks"]), int(knobs["positions"])
        tiles = group_tiles(w.spans, blocks)
        size, slots = min(blocks, len(w.spans)), 1 + (len(tiles) > 1)
        chunk = positions * max(g.count for groups in tiles for g in groups)
        # Maximum, inverse and limit stay. Exponentials of a chunk are summed up beside the sums and
        # parts of them; then there are steps of the chain; at last, exponentials become results.
        # A computed mask is made for a chunk.
        staying, (apart, of_inp) = size * (2 + bool(w.room)), (0, 0)
        if w.is_computed:
            apart, of_inp = positions, w.rows
        return {
            "inp": slots * max(map(count_scores, tiles)) + of_inp,
            "tmp": staying + max(2 * size + chunk + apart, size * (1 + PARTS)),
            "out": (2 + w.hides_keys) * chunk,
            "par": E.REQUANT_ENTRIES + self.machine.params.table_entries + w.rows - of_inp,
        }

    def predict(self, workload: MaskedSoftmaxWorkload, knobs: Knobs) -> int:
        """Passes of the vector unit: each waits for the first result of the one before;
        and the load of the first scores, and the stores if they take longer."""
        w, positions = workload, int(knobs["positions"])
        tiles, cycles = group_tiles(w.spans, int(knobs["blocks"])), 0

        def passes(entries: int, count: int) -> int:
            return count * max(entries + INSN_CYCLES, VECTOR_DEPTH + 1)

        for groups in tiles:
            chain = STEP_OPS * newton_steps(w.places) + LAST_OPS + bool(w.room)
            cycles += passes(sum(g.count for g in groups), chain)
            for g in groups:
                cycles += passes(g.count * g.span.free, 2) if g.span.free else 0
                for chunk in g.chunks(positions, positions):
                    count = (8 if chunk.masked else 2) + bool(w.room)
                    cycles += passes(g.count * chunk.keys, count) + PARAM_ITERATIONS
                    cycles += passes(chunk.keys, 3) if w.is_computed else 0
        entries = [count_scores(groups) for groups in tiles]
        moved = sum(entries) + len(w.spans) * w.places
        entry_bytes = self.machine.params.entry_bytes("inp")
        first, bus = (read_cycles(n * entry_bytes, self.machine) for n in (entries[0], moved))
        return max(first + cycles, bus)

    def schedule(self, workload: MaskedSoftmaxWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: as those of :meth:`.softmax.Softmax.schedule`, with the rows of masks (int32
        [rows, block]), if there are any, before out."""
        blocks, positions = int(knobs["blocks"]), int(knobs["positions"])
        return Loops(workload, blocks, positions, self.machine.params).program(name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op = node.op_as(QTableSoftmax)
        found, (_, rows) = softmax_constants(op, self.machine), self._spans(graph, node)
        if rows is None or not len(rows):
            return found
        return {**found, "mask": np.where(rows, 0, APART).astype("<i4")}


def softmax_constants(op: QTableSoftmax, machine: Machine) -> dict[str, np.ndarray]:
    """The table and the parameters, whose multiplier is negative, as the inverses are."""
    multiplier, shift = int(op.requant.multiplier[0]), int(op.requant.shift[0])
    return {
        "table": op.exponentials.astype("<i2"),
        "requantisation": uniform_parameters(0, -multiplier, shift, machine),
    }


def _refuse_rows(graph: Graph, node: Node, params: HwParams) -> Refusal | None:
    """Why the vector unit does not compute a softmax of such rows."""
    shape, axis = graph[node.inputs[0]].shape, node.op_as(QTableSoftmax).axis
    if not (is_column(shape) and axis == POSITIONS):
        return Refusal("a softmax whose rows are not the places of an image")
    if shape[axis] > (longest := longest_row(params)):
        return Refusal(f"rows of {shape[axis]} elements; there is room for {longest}")
    if not vector_loops(shape[axis]):
        return Refusal(f"rows of {shape[axis]} elements, which are no product of two loops")
    return None


def longest_row(params: HwParams) -> int:
    """The most elements of a row that the vector unit computes a softmax of; 0 without a table of
    16 bits."""
    if params.vector_table < 2:
        return 0
    whole = Budget.whole(params)
    rows = range(1, MOST_KEYS + 1)
    return max((n for n in rows if not whole.lack(_needs(n, MOST_ROOM, 1, 1, params))), default=0)


def most_mask_rows(params: HwParams) -> int:
    """The most rows of masks that par has room for, beside the table and what requantises."""
    return max(0, params.par_depth - E.REQUANT_ENTRIES - params.table_entries)


def _needs(row: int, room: int, blocks: int, positions: int, params: HwParams) -> dict[str, int]:
    """Entries of the scratchpads for tiles of ``blocks`` rows of ``row`` positions; some of these
    are multiplied at a time."""
    # Maximum, sum, inverse and limit stay; the inverses of all steps wait for the last one's,
    # beside the parts of a step.
    chain = STAYING + newton_steps(row) + CHAIN_PARTS
    tile = STAYING + positions * (1 + bool(room))
    return {
        "inp": _tiles_in_inp(row, blocks, params) * blocks * row,
        "tmp": blocks * max(chain, tile),
        "out": 2 * blocks * positions,
        "par": E.REQUANT_ENTRIES + params.table_entries,
    }


def _tiles_in_inp(row: int, blocks: int, params: HwParams) -> int:
    """How many tiles ``inp`` holds: two, so that the next one is loaded meanwhile, or one where two
    of a single block do not fit."""
    return 1 if blocks == 1 and 2 * row > params.inp_depth else 2


class Chain:
    """Operators of one pass on the sums of rows. Each has a home: an operator behind it, while
    whose operands are computed it lives in tmp."""

    def __init__(self, total: Tensor):
        self.total = total
        self.homes: dict[Tensor, Tensor] = {}
        #: The latest operator; the sums, and the inverses that the steps begin with, which outlive
        #: their first readers.
        self.made, self.inverses = total, [total]

    def inverse(self, keys: int, room: int) -> Tensor:
        """``graph.ops.softmax.inverses`` of the sums."""
        total = Row.from_tensor(self.total, self.one_pass)
        inverse: Any = first_inverse(keys)
        for _ in range(newton_steps(keys)):
            inverse = newton(total, inverse)
            self.inverses.append(self.made)
        bits = PRODUCT_BITS - room
        rest = (total * inverse + (1 << PRODUCT_BITS)) * inverse
        refined = rest + (1 << (bits - 1)) >> bits
        _ = (inverse << room if room else inverse) + refined  # which is made last
        # An inverse lives until the next one is found.
        self.homes |= zip(self.inverses[1:], [*self.inverses[2:], self.made], strict=True)
        return self.made

    def one_pass(self, row: Row) -> Row:
        """A stage of the result of an operator."""
        self.made = compute(row.shape, row.rule, f"chain{len(self.homes)}")
        operands = (x for x in self.made.inputs if x not in self.inverses)
        self.homes |= dict.fromkeys(operands, self.made)
        return Row.from_tensor(self.made, row.each)

    def schedule(self, s: Schedule, blocks: int) -> None:
        """Compute each operator in its home, for all ``blocks`` of a tile at once."""
        loops = {}
        for tensor, home in self.homes.items():
            if home not in loops:
                loops[home], _ = s[home].split(home.axes[0], blocks)
            E.attach(s, {tensor: "tmp"}, s[home], loops[home])


def _row(at: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The row of an element."""
    return at[0], *at[2:]
