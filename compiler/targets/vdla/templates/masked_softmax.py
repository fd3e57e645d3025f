"""Softmax along the places of an image with a mask, on the vector unit.

As :mod:`.softmax`, but every block of queries has keys of its own that it sees, so that the loops
of one block are not those of the next, and the loop program is written out. Keys that no query of a
block sees take no work but the store of the zero point. Where some queries see a key and others do
not, a row of the mask is an entry of ``par``: what it subtracts from a score is more than scores
can differ by, and as the amount of a shift it leaves nothing of an exponential.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np

from .....isa.params import HwParams
from .....isa.timing import PARAM_ITERATIONS, VECTOR_DEPTH
from ....choose.space import Knobs, Refusal, Space, Workload
from ....choose.template import Plan
from ....graph.arithmetic.requant import INT8_MIN
from ....graph.ir import Graph, Node
from ....graph.ops.softmax import QTableSoftmax, first_inverse, newton, refined, steps_of
from ....te.affine import simplify_index
from ....te.expr import Binary, Const, Expr, Read, Var, cast, maximum, minimum, substitute
from ....tir.ir import Allocate, Buffer, For, PrimFunc, Stmt, Store, seq
from ....topi.quantisation import clipped, rescale
from ..machine import Context
from ..parts import REQUANT_ENTRIES, Ending, difference_looked_up
from ..planner import INSN_CYCLES, even_sizes, read_cycles
from ..spans import Span, spans_of
from .base import AcceleratorTemplate, Track, image_of
from .softmax import LAST_OPS, PLACES, STEP_OPS, longest_row, softmax_constants

#: What the mask subtracts from scores that it does not keep: more than 255, by which they can
#: differ, and 31 modulo 32, which is how the vector unit takes the amount of a shift.
APART = 8 * 32 + 31
#: Parts of a step of the chain.
PARTS = 2

#: Indices of a batch and a channel in an entry.
Lane = tuple[Expr, Expr]
#: The value for a block of a group, a key, and a lane.
Rule = Callable[[Expr, Expr, Lane], Expr]


@dataclass(frozen=True)
class MaskedSoftmaxWorkload(Workload):
    """Rows along ``places`` of a block of channels for each of ``spans``, with so many ``rows`` of
    masks; ``room`` as of the operator."""

    places: int
    spans: tuple[Span, ...]
    rows: int
    room: int
    context: Context
    ending: Ending = field(compare=False)


@dataclass(frozen=True)
class Group:
    """Blocks of a tile with one span: ``count`` of them from ``first`` on, each ``stride`` behind
    the one before. Their scores begin at entry ``base``."""

    span: Span
    first: int
    stride: int
    count: int
    base: int

    def block(self, i: Expr) -> Expr:
        """The block of the tile that is number ``i`` of the group."""
        return self.first + i * self.stride

    def chunks(self, places: int, masked: bool) -> Iterator[tuple[int, int]]:
        """The first key, and how many there are, of parts of at most so many keys that all queries
        see; or of those that the mask has rows for."""
        free, bound, _ = self.span
        begin, end = (free, bound) if masked else (0, free)
        for first in range(begin, end, places):
            yield first, min(places, end - first)


class MaskedSoftmax(AcceleratorTemplate[MaskedSoftmaxWorkload]):
    """Maximum, sum of exponentials and inverse of ``blocks`` blocks of channels at a time; then
    exponentials times inverses of ``places`` at a time, of all blocks of a tile that see the same
    keys."""

    name = "masked softmax"
    ops = (QTableSoftmax,)
    track = Track.VECTOR

    def handles(self, graph: Graph, node: Node) -> bool:
        return len(node.inputs) == 2

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        assert isinstance(node.op, QTableSoftmax)
        params, (x, mask) = self.machine.params, graph.operands(node)
        if params.vector_table < 2:
            return Refusal("a softmax, which needs vector_table = 2")
        if mask.data is None:
            return Refusal("a softmax whose mask is computed")
        if (keys := x.shape[node.op.axis]) > (longest := longest_row(params)):
            return Refusal(f"rows of {keys} elements; there is room for {longest}")
        if prod(x.shape) // keys % params.block == 0:
            _, rows = self._spans(graph, node)
            if len(rows) > (most := most_mask_rows(params)):
                return Refusal(f"masks of {len(rows)} different rows; there is room for {most}")
        if not (len(x.shape) == 4 and x.shape[0] == x.shape[3] == 1 and node.op.axis == PLACES):
            return Refusal("a softmax whose rows are not the places of an image")
        return "on the vector unit, by its table and Newton's steps, without keys that are masked"

    def _spans(self, graph: Graph, node: Node) -> tuple[tuple[Span, ...], np.ndarray]:
        """What each block of rows sees, and the rows of masks."""
        assert isinstance(node.op, QTableSoftmax)
        x, mask = graph.operands(node)
        assert mask.data is not None
        kept = np.moveaxis(np.broadcast_to(mask.data, x.shape), node.op.axis, -1)
        return spans_of(kept.reshape(-1, kept.shape[-1]), self.machine.params.block)

    def workload(self, graph: Graph, node: Node, context: Context) -> MaskedSoftmaxWorkload:
        op = node.op
        assert isinstance(op, QTableSoftmax)
        _, places, _ = image_of(graph[node.inputs[0]].shape, self.machine)
        spans, rows = self._spans(graph, node)
        ending = Ending(op.zero_point)
        return MaskedSoftmaxWorkload(places, spans, len(rows), op.room, context, ending)

    def space(self, workload: MaskedSoftmaxWorkload) -> Space:
        knobs = {
            "blocks": even_sizes(len(workload.spans)),
            "places": even_sizes(max(span.bound for span in workload.spans)),
        }
        return Space(knobs, lambda chosen: self._misfit(workload, chosen))

    def _misfit(self, workload: MaskedSoftmaxWorkload, knobs: Knobs) -> str:
        """Which scratchpad is too small, or an empty string."""
        blocks, places = int(knobs["blocks"]), int(knobs["places"])
        needs = _needs(workload, blocks, places, self.machine.params)
        return workload.context.budget.lack(needs)

    def plan(self, workload: MaskedSoftmaxWorkload, fixed: Knobs) -> Plan | Refusal:
        return self.cheapest(workload, fixed)

    def predict(self, workload: MaskedSoftmaxWorkload, knobs: Knobs) -> int:
        """Passes of the vector unit, each of which waits for the first result of the one before;
        and the load of the first scores, and the stores if they take longer."""
        w, blocks, places = workload, int(knobs["blocks"]), int(knobs["places"])
        tiles = _tiles(w.spans, blocks)
        cycles = 0
        for groups in tiles:
            size = sum(g.count for g in groups)
            chain = STEP_OPS * steps_of(w.places) + LAST_OPS + bool(w.room)
            cycles += chain * max(size + INSN_CYCLES, VECTOR_DEPTH + 1)
            for g in groups:
                passes = [(g.count * g.span.free, 2)] if g.span.free else []
                for masked in (False, True):
                    for _, keys in g.chunks(places, masked):
                        passes.append((g.count * keys, 2 + 6 * masked + bool(w.room)))
                        cycles += PARAM_ITERATIONS
                cycles += sum(n * max(e + INSN_CYCLES, VECTOR_DEPTH + 1) for e, n in passes)
        entry_bytes = self.machine.params.entry_bytes("inp")
        entries = [sum(g.count * g.span.bound for g in groups) for groups in tiles]
        moved = sum(entries) + len(w.spans) * w.places
        first, bus = (read_cycles(n * entry_bytes, self.machine) for n in (entries[0], moved))
        return max(first + cycles, bus)

    def schedule(self, workload: MaskedSoftmaxWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: as those of :meth:`.softmax.Softmax.schedule`, with the rows of masks (int32
        [rows, block]), if there are any, before out."""
        return _Writer(workload, knobs, self.machine.params).program(name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op = node.op
        assert isinstance(op, QTableSoftmax)
        found, (_, rows) = softmax_constants(op, self.machine), self._spans(graph, node)
        masks = np.where(rows, 0, APART).astype("<i4")
        return {**found, "mask": masks} if len(rows) else found


def most_mask_rows(params: HwParams) -> int:
    """The most rows of masks that par has room for, beside the table and what requantises."""
    return max(0, params.par_depth - REQUANT_ENTRIES - params.table_entries)


@lru_cache(maxsize=256)
def _tiles(spans: tuple[Span, ...], blocks: int) -> list[list[Group]]:
    """The groups of each tile of so many blocks."""
    tiles = []
    for first in range(0, len(spans), blocks):
        runs: list[list[int]] = []
        mine = spans[first : first + blocks]
        for span in dict.fromkeys(mine):
            runs.append([])
            for block in (i for i, s in enumerate(mine) if s == span):
                if len(runs[-1]) > 1 and block - runs[-1][-1] != runs[-1][1] - runs[-1][0]:
                    runs.append([])
                runs[-1].append(block)
        groups, base = [], 0
        for run in runs:
            stride = run[1] - run[0] if len(run) > 1 else 1
            groups.append(Group(mine[run[0]], run[0], stride, len(run), base))
            base += len(run) * mine[run[0]].bound
        tiles.append(groups)
    return tiles


def _scores(groups: Sequence[Group]) -> int:
    """Entries of the scores of a tile that some query sees."""
    return sum(g.count * g.span.bound for g in groups)


def _needs(w: MaskedSoftmaxWorkload, blocks: int, places: int, params: HwParams) -> dict[str, int]:
    """Entries of the scratchpads for tiles of so many blocks, of which some places are multiplied
    at a time."""
    tiles = _tiles(w.spans, blocks)
    size, limit, slots = min(blocks, len(w.spans)), bool(w.room), 1 + (len(tiles) > 1)
    count = max(g.count for groups in tiles for g in groups)
    chunk = count * places
    # Maximum, inverse and limit stay. While exponentials are summed up, the sums and parts of them
    # are there besides; then, steps of the chain; at last, exponentials, masked and limited.
    staying = size * (2 + limit)
    summing, chain = size + count + 2 * chunk, size * (1 + PARTS)
    return {
        "inp": slots * max(map(_scores, tiles)),
        "tmp": staying + max(summing, chain, chunk * (2 + limit)),
        "out": 3 * chunk,
        "par": REQUANT_ENTRIES + params.table_entries + w.rows,
    }


class _Writer:
    """Writes the loop program. Every statement is a nest over blocks of a group, keys and lanes."""

    def __init__(self, workload: MaskedSoftmaxWorkload, knobs: Knobs, params: HwParams):
        self.w, self.params, self.places = workload, params, int(knobs["places"])
        self.tiles = _tiles(workload.spans, int(knobs["blocks"]))
        w, block = workload, params.block
        self.entry = (params.batch, block)
        self.size = max(sum(g.count for g in groups) for groups in self.tiles)
        self.count = max(g.count for groups in self.tiles for g in groups)
        image = (len(w.spans), w.places, 1, *self.entry)
        self.x, self.out = (Buffer(name, image, "int8") for name in ("x", "out"))
        constants = {
            "table": (params.table_entries, block),
            "param": (1, REQUANT_ENTRIES, block),
            "mask": (w.rows, block),
        }
        if not w.rows:
            del constants["mask"]
        self.stored = [Buffer(name, shape, "int32") for name, shape in constants.items()]
        self.constants = [Buffer(f"{b.name}.par", b.shape, "int32", "par") for b in self.stored]
        self.table, self.param, *masks = self.constants
        self.masks = masks
        scores = max(map(_scores, self.tiles))
        self.slots = [
            Buffer(f"x.inp{n}", (scores, *self.entry), "int8", "inp")
            for n in range(min(2, len(self.tiles)))
        ]
        self.results = [self.chunk_of(f"out.local{n}", "int8", "out") for n in range(2)]
        self.blank = self.chunk_of("blank", "int8", "out")
        self.most, self.inverse, self.limit, self.total = (
            self.rows_of(name, self.size) for name in ("most", "inverse", "limit", "total")
        )
        self.written = 0

    def rows_of(self, name: str, count: int) -> Buffer:
        """Entries of tmp."""
        return Buffer(name, (count, *self.entry), "int32", "tmp")

    def chunk_of(self, name: str, dtype: str = "int32", scope: str = "tmp") -> Buffer:
        """Entries for some keys of a group."""
        return Buffer(name, (self.count * self.places, *self.entry), dtype, scope)

    def program(self, name: str) -> PrimFunc:
        """All tiles, behind the constants."""
        loads = [
            self.nest((*stored.shape,), lambda *at, a=stored, b=local: Store(b, at, Read(a, at)))
            for stored, local in zip(self.stored, self.constants, strict=True)
        ]
        first, tiles = 0, []
        for number, groups in enumerate(self.tiles):
            tiles += self.tile(first, groups, self.slots[number % len(self.slots)])
            first += sum(g.count for g in groups)
        local = (*self.constants, *self.slots, *self.results, self.blank)
        body = _allocated(local, [*loads, *tiles])
        return PrimFunc(name, (self.x, *self.stored, self.out), body)

    def tile(self, first: int, groups: Sequence[Group], scores: Buffer) -> list[Stmt]:
        """The statements of a tile, whose blocks are those from ``first`` on."""
        stmts = [self.loaded(first, g, scores) for g in groups]
        size = sum(g.count for g in groups)
        sums = [*self.maxima(groups, scores), *self.sums(groups, scores)]
        chain = self.chain(size)
        if self.w.room:
            chain.append(self.row(self.limit, size, lambda at: Read(self.total, at) >> self.w.room))
        products = [s for g in groups for s in self.products(first, g, scores)]
        inside = [
            _allocated((self.total,), [*sums, *chain]),
            *self.blanks(first, groups),
            *products,
        ]
        kept = (self.most, self.inverse, *([self.limit] if self.w.room else []))
        return [*stmts, _allocated(kept, inside)]

    def loaded(self, first: int, g: Group, scores: Buffer) -> Stmt:
        """The scores that some query sees, into ``inp``."""
        return self.each(
            g.count, g.span.bound, scores, lambda i, k: g.base + i * g.span.bound + k,
            lambda i, k, lane: Read(self.x, (first + g.block(i), k, Const(0), *lane)),
        )  # fmt: skip

    def score(self, g: Group, scores: Buffer, begin: int) -> Rule:
        """A score, of a key from ``begin`` on."""
        return lambda i, k, lane: cast(
            "int32", Read(scores, (g.base + i * g.span.bound + begin + k, *lane))
        )

    def exponential(self, g: Group, scores: Buffer, begin: int) -> Rule:
        """What the table has for a score, of a key from ``begin`` on."""
        score, block = self.score(g, scores, begin), self.params.block

        def rule(i: Expr, k: Expr, lane: Lane) -> Expr:
            most = Read(self.most, (g.block(i), *lane))
            words = lambda *word: Read(self.table, tuple(map(simplify_index, word)))  # noqa: E731
            return difference_looked_up(score(i, k, lane), most, words, block)

        return rule

    def mask(self, g: Group, begin: int) -> Rule:
        """What the mask has for a key from ``begin`` on."""
        [masks], row = self.masks, g.span.row + begin - g.span.free
        return lambda i, k, lane: Read(masks, (row + k, lane[1]))

    def maxima(self, groups: Sequence[Group], scores: Buffer) -> list[Stmt]:
        """The greatest score that each query sees."""
        apart, part = self.chunk_of("apart"), self.rows_of("part", self.count)

        def masked(g: Group, begin: int, keys: int) -> list[Stmt]:
            score, mask = self.score(g, scores, begin), self.mask(g, begin)
            rule = lambda *at: score(*at) - mask(*at)  # noqa: E731
            return [self.each(g.count, keys, apart, lambda i, k: i * keys + k, rule)]

        found = [
            s for g in groups
            for s in self.folded(
                g, self.most, part, INT8_MIN, maximum, self.score(g, scores, 0), masked, apart
            )
        ]  # fmt: skip
        return [_allocated((apart, part), found)]

    def sums(self, groups: Sequence[Group], scores: Buffer) -> list[Stmt]:
        """The sum of the exponentials of the scores that each query sees."""
        looked, kept = self.chunk_of("looked_up"), self.chunk_of("kept")
        part = self.rows_of("part", self.count)

        def masked(g: Group, begin: int, keys: int) -> list[Stmt]:
            return self.masked_exponentials(g, scores, begin, keys, looked, kept)

        found = [
            s for g in groups
            for s in self.folded(
                g, self.total, part, 0, lambda a, b: a + b, self.exponential(g, scores, 0), masked,
                kept,
            )
        ]  # fmt: skip
        return [_allocated((looked, kept, part), found)]

    def masked_exponentials(
        self, g: Group, scores: Buffer, begin: int, keys: int, looked: Buffer, kept: Buffer
    ) -> list[Stmt]:
        """Exponentials of some keys into ``kept``, by way of ``looked``: 0 where the mask does not
        keep them."""
        place, mask = (lambda i, k: i * keys + k), self.mask(g, begin)
        exponential = self.exponential(g, scores, begin)
        return [
            self.each(g.count, keys, looked, place, exponential),
            self.each(
                g.count, keys, kept, place,
                lambda i, k, lane: Read(looked, (place(i, k), *lane)) >> mask(i, k, lane),
            ),
        ]  # fmt: skip

    def folded(
        self, g: Group, into: Buffer, part: Buffer, start: int,
        combine: Callable[[Expr, Expr], Expr], free: Rule,
        masked: Callable[[Group, int, int], list[Stmt]], values: Buffer,
    ) -> list[Stmt]:  # fmt: skip
        """What ``combine`` makes of all keys of each block, from ``start``: of ``free`` for those
        that all queries see, of what ``masked`` writes to ``values`` for others."""
        stmts: list[Stmt] = []
        mine, own = g.block, lambda i: i

        def fold(keys: int, rule: Rule, is_first: bool) -> None:
            target, place = (into, mine) if is_first else (part, own)
            nothing = Const(start)
            step: Rule = lambda i, k, lane: combine(  # noqa: E731
                Read(target, (place(i), *lane)), rule(i, k, lane)
            )
            stmts.append(self.each(g.count, 1, target, lambda i, _: place(i), lambda *_: nothing))
            stmts.append(self.each(g.count, keys, target, lambda i, _: place(i), step))
            if not is_first:
                both: Rule = lambda i, _, lane: combine(  # noqa: E731
                    Read(part, (i, *lane)), Read(into, (mine(i), *lane))
                )
                stmts.append(self.each(g.count, 1, into, lambda i, _: mine(i), both))

        if g.span.free:
            fold(g.span.free, free, True)
        for begin, keys in g.chunks(self.places, masked=True):
            stmts.extend(masked(g, begin, keys))
            rule: Rule = lambda i, k, lane, keys=keys: Read(values, (i * keys + k, *lane))  # noqa: E731
            fold(keys, rule, begin == 0)
        return stmts

    def chain(self, size: int) -> list[Stmt]:
        """The inverses of the sums of all blocks, a pass for each operator."""
        buffers = tuple(self.rows_of(f"part{n}", self.size) for n in range(PARTS))
        at = tuple(Var(f"at{n}") for n in range(1 + len(self.entry)))
        total, inverse, *parts = (Read(b, at) for b in (self.total, self.inverse, *buffers))
        steps = steps_of(self.w.places)
        before: list[Expr] = [Const(first_inverse(self.w.places)), *[inverse] * steps]
        formulas = [newton(total, value) for value in before[:-1]]
        formulas.append(refined(total, before[-1], self.w.room))
        stmts = [
            self.row(into.source, size, lambda now, e=e: substitute(e, dict(zip(at, now))))  # noqa: B905
            for formula in formulas
            for into, e in _one_by_one(formula, inverse, parts)
        ]
        return [_allocated(buffers, stmts)]

    def products(self, first: int, g: Group, scores: Buffer) -> list[Stmt]:
        """Exponentials times inverses, to DRAM."""
        looked, kept, limited = [self.chunk_of(name) for name in ("exponential", "kept", "limited")]
        stmts: list[Stmt] = []
        for masked in (False, True):
            for begin, keys in g.chunks(self.places, masked):
                place = lambda i, k, keys=keys: i * keys + k  # noqa: E731
                found = looked
                if masked:
                    stmts += self.masked_exponentials(g, scores, begin, keys, looked, kept)
                    found = kept
                else:
                    rule = self.exponential(g, scores, begin)
                    stmts.append(self.each(g.count, keys, looked, place, rule))
                if self.w.room:
                    rule = lambda i, k, lane, e=found, place=place: minimum(  # noqa: E731
                        Read(e, (place(i, k), *lane)), Read(self.limit, (g.block(i), *lane))
                    )
                    stmts.append(self.each(g.count, keys, limited, place, rule))
                    found = limited
                local = self.results[self.written % len(self.results)]
                self.written += 1
                rule = lambda i, k, lane, e=found, place=place: self.requantised(  # noqa: E731
                    Read(e, (place(i, k), *lane)) * Read(self.inverse, (g.block(i), *lane)), lane
                )
                stmts.append(self.each(g.count, keys, local, place, rule))
                stmts.append(self.stored_from(local, first, g, begin, keys))
        used = (looked, *([kept] if self.masks else []), *([limited] if self.w.room else []))
        return [_allocated(used, stmts)] if stmts else []

    def blanks(self, first: int, groups: Sequence[Group]) -> list[Stmt]:
        """The zero point for keys that no query sees, to DRAM."""
        hidden = [
            (g, begin) for g in groups for begin in range(g.span.bound, self.w.places, self.places)
        ]
        if not hidden:
            return []
        # Inverses are negative.
        none = self.each(
            1, self.blank.shape[0], self.blank, lambda i, k: k,
            lambda i, k, lane: self.requantised(
                maximum(Read(self.inverse, (Const(0), *lane)), 0), lane
            ),
        )  # fmt: skip
        stores = [
            self.stored_from(self.blank, first, g, begin, min(self.places, self.w.places - begin))
            for g, begin in hidden
        ]
        return [none, *stores]

    def requantised(self, value: Expr, lane: Lane) -> Expr:
        """An element of the result."""
        ending = self.w.ending
        bias, multiplier, shift = (
            Read(self.param, (Const(0), Const(n), lane[1])) for n in range(REQUANT_ENTRIES)
        )
        scaled = rescale(value + bias, multiplier, shift, ending.rounding)
        return clipped(scaled, ending.zero_point, ending.lo, ending.hi)

    def stored_from(self, local: Buffer, first: int, g: Group, begin: int, keys: int) -> Stmt:
        """Results of some keys of a group, from ``local`` to DRAM."""
        return self.nest(
            (g.count, keys, *self.entry),
            lambda i, k, *lane: Store(
                self.out, (first + g.block(i), begin + k, Const(0), *lane),
                Read(local, (i * keys + k, *lane)),
            ),
        )  # fmt: skip

    def row(self, into: Buffer, size: int, formula: Callable[[tuple[Expr, ...]], Expr]) -> Stmt:
        """An entry for each block of a tile."""
        return self.nest((size, *self.entry), lambda *at: Store(into, at, formula(at)))

    def each(
        self, count: int, keys: int, into: Buffer, place: Callable[[Expr, Expr], Expr], rule: Rule
    ) -> Stmt:
        """An entry of ``into`` for each block of a group and each of some keys."""
        return self.nest(
            (count, keys, *self.entry),
            lambda i, k, *lane: Store(into, (place(i, k), *lane), rule(i, k, lane)),
        )

    @staticmethod
    def nest(extents: Sequence[int], store: Callable[..., Store]) -> Stmt:
        """Loops around a statement, which is made of their variables."""
        variables = [Var(f"i{n}") for n in range(len(extents))]
        body: Stmt = store(
            *(v if e > 1 else Const(0) for v, e in zip(variables, extents, strict=True))
        )
        for variable, extent in reversed(list(zip(variables, extents, strict=True))):
            body = For(variable, extent, "serial", body) if extent > 1 else body
        return body


def _one_by_one(expr: Expr, into: Read, parts: Sequence[Read]) -> list[tuple[Read, Expr]]:
    """The operators of an expression in order, each with where its result goes: the last one
    ``into``, others to ``parts``, which take turns."""
    assert isinstance(expr, Binary)
    operands, spare, steps = [expr.a, expr.b], [*parts], []
    for n in sorted((0, 1), key=lambda n: -_operators(operands[n])):
        if isinstance(operands[n], Binary):
            part = spare.pop(0)
            # What it is made of may take its place, until its own operator.
            steps += _one_by_one(operands[n], part, [*spare, part])
            operands[n] = part
    return [*steps, (into, Binary(expr.op, *operands, "int32"))]


def _operators(expr: Expr) -> int:
    """How many operators an expression has."""
    return 1 + _operators(expr.a) + _operators(expr.b) if isinstance(expr, Binary) else 0


def _allocated(buffers: Sequence[Buffer], stmts: Sequence[Stmt]) -> Stmt:
    """Statements during which buffers exist."""
    body = seq(list(stmts))
    for buffer in reversed(buffers):
        body = Allocate(buffer, body)
    return body
