"""The loop program of a softmax with a mask, written out group by group of blocks.

Where some queries of a block see a key and others do not, a row of the mask is an entry of ``par``.
It has 0 where a query sees a key, else what is more than scores can differ by, and as the amount of
a shift leaves nothing of an exponential. A mask that is computed comes as an image of int8; such
entries are made of it for some keys at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from .....isa.params import HwParams
from ....graph.arithmetic.requant import INT8_MIN
from ....graph.ops.softmax import MASKED, VISIBLE, first_inverse, newton, newton_steps, refined
from ....te.affine import simplify_index
from ....te.expr import Binary, Const, Expr, Read, Var, cast, maximum, minimum, substitute
from ....tir.ir import Allocate, Buffer, For, PrimFunc, Stmt, Store, seq
from ....topi.quantisation import clipped, rescale
from ..attention_mask import VisibleKeys
from ..expressions import REQUANT_ENTRIES, Epilogue, lookup_difference
from ..machine import Context
from .base import WithinBudget

#: What a mask subtracts from masked scores.
APART = MASKED - VISIBLE
#: Buffers for the parts of a step of the chain.
PARTS = 2
ZERO = Const(0)

#: Indices of a batch and a channel in an entry.
Lane = tuple[Expr, ...]
#: The value for a block of a group, a key of a chunk, and a lane.
Rule = Callable[[Expr, Expr, Lane], Expr]
Combine = Callable[[Expr, Expr], Expr]


@dataclass(frozen=True)
class MaskedSoftmaxWorkload(WithinBudget):
    """Rows along ``places`` of a block of channels for each of ``spans``, with ``rows`` rows of
    masks, which are in ``inp`` if the mask ``is_computed``; ``room`` as of the operator."""

    places: int
    spans: tuple[VisibleKeys, ...]
    rows: int
    is_computed: bool
    room: int
    context: Context
    epilogue: Epilogue = field(compare=False)

    @property
    def hides_keys(self) -> bool:
        """Whether there are keys that no query of a block sees."""
        return any(span.bound < self.places for span in self.spans)


@dataclass(frozen=True)
class Group:
    """Blocks of a tile with the same visible keys: ``count`` of them, each ``stride`` behind the
    one before. The first is ``block`` of the image and ``row`` of the tile. Their scores begin at
    entry ``base`` of the tile's scores."""

    span: VisibleKeys
    tile: int
    block: int
    row: int
    stride: int
    count: int
    base: int

    def chunks(self, free: int, masked: int) -> Iterator[Chunk]:
        """Chunks of at most ``free`` keys that all queries see; then chunks of at most ``masked``
        keys that the mask has rows for."""
        for begin in range(0, self.span.free, free):
            yield Chunk(self, begin, min(free, self.span.free - begin), False)
        for begin in range(self.span.free, self.span.bound, masked):
            yield Chunk(self, begin, min(masked, self.span.bound - begin), True)


@dataclass(frozen=True)
class Chunk:
    """``keys`` keys of a group, from ``begin`` on, and whether they are ``masked`` for some
    queries."""

    group: Group
    begin: int
    keys: int
    masked: bool = False

    def at(self, i: Expr, k: Expr) -> Expr:
        """The entry of a block and a key in a buffer of the chunk."""
        return i * self.keys + k


Tile = list[Group]


@lru_cache(maxsize=256)
def group_tiles(spans: tuple[VisibleKeys, ...], blocks: int) -> list[Tile]:
    """The groups of each tile of ``blocks`` blocks."""
    tiles = []
    for first in range(0, len(spans), blocks):
        mine, groups, base = spans[first : first + blocks], [], 0
        for span in dict.fromkeys(mine):
            for run in _runs([row for row, other in enumerate(mine) if other == span]):
                row, stride = run[0], run[1] - run[0] if len(run) > 1 else 1
                group = Group(span, len(tiles), first + row, row, stride, len(run), base)
                groups.append(group)
                base += group.count * span.bound
        tiles.append(groups)
    return tiles


def _runs(rows: Sequence[int]) -> list[list[int]]:
    """Increasing numbers in runs, within which they are equidistant."""
    runs: list[list[int]] = []
    for row in rows:
        last = runs[-1] if runs else []
        if not last or (len(last) > 1 and row - last[-1] != last[1] - last[0]):
            runs.append([row])
        else:
            last.append(row)
    return runs


def count_scores(tile: Tile) -> int:
    """Entries of the scores of a tile that some query sees."""
    return sum(g.count * g.span.bound for g in tile)


class Loops:
    """Writes the loop program, in which ``blocks`` blocks are a tile, and ``positions`` of it are
    multiplied at a time. Every statement is
    a nest over blocks of a group, keys of a chunk, and lanes."""

    def __init__(self, w: MaskedSoftmaxWorkload, blocks: int, positions: int, params: HwParams):
        tiles = group_tiles(w.spans, blocks)
        self.image, self.tiles, self.positions, self.params = w, tiles, positions, params
        self.entry = (params.batch, params.block)
        self.size = max(sum(g.count for g in tile) for tile in tiles)
        self.count = max(g.count for tile in tiles for g in tile)
        shape = (len(w.spans), w.places, 1, *self.entry)
        self.x, self.out = (Buffer(name, shape, "int8") for name in ("x", "out"))
        constants = {
            "table": (params.table_entries, params.block),
            "param": (1, REQUANT_ENTRIES, params.block),
        }
        if w.rows and not w.is_computed:
            constants["mask"] = (w.rows, params.block)
        self.constants = {
            Buffer(name, shape, "int32"): Buffer(f"{name}.par", shape, "int32", "par")
            for name, shape in constants.items()
        }
        self.table, self.param, *self.masks = self.constants.values()
        self.given: dict[Buffer, Buffer] = {}
        if w.is_computed:
            rows = (w.rows, *self.entry)
            self.given[Buffer("mask", rows, "int8")] = Buffer("mask.inp", rows, "int8", "inp")
        # The scores of the next tile are loaded meanwhile.
        most = max(map(count_scores, tiles)), *self.entry
        self.scores = [Buffer(f"x.inp{n}", most, "int8", "inp") for n in range(min(2, len(tiles)))]
        chunk = self.count * positions, *self.entry
        *self.results, self.blank = (
            Buffer(name, chunk, "int8", "out") for name in ("out.even", "out.odd", "blank")
        )
        self.most, self.inverse, self.limit, self.total = (
            self.row_buffer(name) for name in ("most", "inverse", "limit", "total")
        )
        self.written = 0

    def row_buffer(self, name: str) -> Buffer:
        """A buffer of an entry for each block of a tile."""
        return Buffer(name, (self.size, *self.entry), "int32", "tmp")

    def chunk_buffer(self, name: str) -> Buffer:
        """A buffer of an entry for each block of a group and each key of a chunk."""
        return Buffer(name, (self.count * self.positions, *self.entry), "int32", "tmp")

    def program(self, name: str) -> PrimFunc:
        """All tiles, behind the constants."""
        loads = [
            self.nest(a.shape, lambda *at, a=a, b=b: Store(b, at, Read(a, at)))
            for a, b in {**self.constants, **self.given}.items()
        ]
        local = (*self.constants.values(), *self.given.values(), *self.scores, *self.results)
        local = (*local, *([self.blank] if self.image.hides_keys else []))
        body = _allocated(local, [*loads, *(s for tile in self.tiles for s in self.tile(tile))])
        return PrimFunc(name, (self.x, *self.given, *self.constants, self.out), body)

    def tile(self, tile: Tile) -> list[Stmt]:
        """Maxima, sums and inverses of all blocks of a tile, then their results."""
        sums = [*map(self.loaded, tile), self.maxima(tile), self.sums(tile)]
        size, room = sum(g.count for g in tile), self.image.room
        sums.append(self.chain(size))
        if room:
            sums.append(self.rows(self.limit, size, lambda at: Read(self.total, at) >> room))
        staying = (self.most, self.inverse, *([self.limit] if room else []))
        results = [*self.blanks(tile), self.products(tile)]
        return [_allocated(staying, [_allocated((self.total,), sums), *results])]

    # ---- values ----

    def loaded(self, g: Group) -> Stmt:
        """The scores that some query sees, into ``inp``."""
        whole = Chunk(g, 0, g.span.bound)
        return self.each(
            whole, self.score_buffer(g), lambda i, k: g.base + whole.at(i, k),
            lambda i, k, lane: Read(self.x, (g.block + i * g.stride, k, ZERO, *lane)),
        )  # fmt: skip

    def score_buffer(self, g: Group) -> Buffer:
        """The buffer of a tile's scores."""
        return self.scores[g.tile % len(self.scores)]

    def score(self, p: Chunk) -> Rule:
        """A score, int32."""
        g = p.group
        first, scores = g.base + p.begin, self.score_buffer(g)
        return lambda i, k, lane: cast("int32", Read(scores, (first + i * g.span.bound + k, *lane)))

    def read_block(self, buffer: Buffer, p: Chunk) -> Rule:
        """What a buffer has for a block."""
        g = p.group
        return lambda i, k, lane: Read(buffer, (g.row + i * g.stride, *lane))

    def read_key(self, buffer: Buffer, p: Chunk) -> Rule:
        """What a buffer has for a block and a key."""
        return lambda i, k, lane: Read(buffer, (p.at(i, k), *lane))

    def mask(self, p: Chunk, apart: Buffer | None) -> Rule:
        """What the mask has for a key; ``apart`` has it if the mask is computed."""
        if apart is not None:
            return lambda i, k, lane: Read(apart, (k, *lane))
        [masks], span = self.masks, p.group.span
        row = span.row + p.begin - span.free
        return lambda i, k, lane: Read(masks, (row + k, lane[-1]))

    def apart(self) -> Buffer | None:
        """A buffer for what a computed mask subtracts, an entry for each key of a chunk."""
        if not self.image.is_computed:
            return None
        return Buffer("apart", (self.positions, *self.entry), "int32", "tmp")

    def subtracted(self, p: Chunk, apart: Buffer | None) -> list[Stmt]:
        """What a computed mask subtracts for the keys of a chunk: 0 where it shows one."""
        if apart is None or not p.masked:
            return []
        [given] = self.given.values()
        first = p.group.span.row + p.begin
        made = self.nest(
            (p.keys, *self.entry),
            lambda k, *lane: Store(
                apart, (k, *lane), cast("int32", Read(given, (first + k, *lane))) - VISIBLE
            ),
        )
        return [made]

    def exponential(self, p: Chunk) -> Rule:
        """What the table has for a score."""
        score, most = self.score(p), self.read_block(self.most, p)

        def word(*at: Expr) -> Expr:
            return Read(self.table, tuple(map(simplify_index, at)))

        return lambda *at: lookup_difference(score(*at), most(*at), word, self.params.block)

    def exponentials(self, p: Chunk, into: Buffer, apart: Buffer | None) -> list[Stmt]:
        """The exponentials of the scores of a chunk: 0 where the mask hides them."""
        stmts = [self.each(p, into, p.at, self.exponential(p))]
        if p.masked:
            found, mask = self.read_key(into, p), self.mask(p, apart)
            stmts.append(self.each(p, into, p.at, lambda *at: found(*at) >> mask(*at)))
        return [*self.subtracted(p, apart), *stmts]

    # ---- what is done with them ----

    def maxima(self, tile: Tile) -> Stmt:
        """The greatest score that each query sees."""
        seen, partial = self.chunk_buffer("seen"), self.row_buffer("partial")
        stmts, apart = list[Stmt](), self.apart()
        for p in self.chunks(tile):
            rule = score = self.score(p)
            if p.masked:
                mask, rule = self.mask(p, apart), self.read_key(seen, p)
                stmts += self.subtracted(p, apart)
                stmts.append(self.each(p, seen, p.at, lambda *at, a=score, b=mask: a(*at) - b(*at)))
            stmts += self.folded(p, self.most, partial, INT8_MIN, maximum, rule)
        return _allocated((seen, partial, *([apart] if apart else [])), stmts)

    def sums(self, tile: Tile) -> Stmt:
        """The sum of the exponentials of the scores that each query sees."""
        found, partial = self.chunk_buffer("exponentials"), self.row_buffer("partial")
        stmts, apart = list[Stmt](), self.apart()
        for p in self.chunks(tile):
            rule = self.exponential(p)
            if p.masked:
                rule = self.read_key(found, p)
                stmts += self.exponentials(p, found, apart)
            stmts += self.folded(p, self.total, partial, 0, lambda a, b: a + b, rule)
        return _allocated((found, partial, *([apart] if apart else [])), stmts)

    def chunks(self, tile: Tile) -> Iterator[Chunk]:
        """The keys that are reduced at a time."""
        for g in tile:
            yield from g.chunks(max(1, g.span.free), self.positions)

    def folded(
        self, p: Chunk, into: Buffer, partial: Buffer, start: int, combine: Combine, rule: Rule
    ) -> list[Stmt]:
        """``combine`` the values of all keys of a chunk, with those of the chunks before it."""
        target = into if p.begin == 0 else partial
        now, before = self.read_block(target, p), self.read_block(into, p)
        one, g = Chunk(p.group, p.begin, 1), p.group

        def row(i: Expr, _: Expr) -> Expr:
            return g.row + i * g.stride

        stmts = [
            self.each(one, target, row, lambda *at: Const(start)),
            self.each(p, target, row, lambda *at: combine(now(*at), rule(*at))),
        ]
        if p.begin:
            stmts.append(self.each(one, into, row, lambda *at: combine(now(*at), before(*at))))
        return stmts

    def chain(self, size: int) -> Stmt:
        """The inverses of the sums of all blocks, a pass for each operator."""
        buffers = tuple(self.row_buffer(f"part{n}") for n in range(PARTS))
        at = tuple(Var(f"at{n}") for n in range(1 + len(self.entry)))
        total, inverse, *parts = (Read(b, at) for b in (self.total, self.inverse, *buffers))
        first = newton(total, Const(first_inverse(self.image.places)))
        again = [newton(total, inverse)] * (newton_steps(self.image.places) - 1)
        stmts = [
            self.rows(
                into.source, size,
                lambda now, e=e: substitute(e, dict(zip(at, now, strict=True))),
            )
            for formula in (first, *again, refined(total, inverse, self.image.room))
            for into, e in _one_by_one(formula, inverse, parts)
        ]  # fmt: skip
        return _allocated(buffers, stmts)

    def products(self, tile: Tile) -> Stmt:
        """Exponentials times inverses, to DRAM."""
        values = self.chunk_buffer("exponentials")
        stmts, apart = list[Stmt](), self.apart()
        for p in (p for g in tile for p in g.chunks(self.positions, self.positions)):
            stmts += self.exponentials(p, values, apart)
            e = self.read_key(values, p)
            if self.image.room:
                limit = self.read_block(self.limit, p)  # first, as the values are no reduction
                stmts.append(
                    self.each(p, values, p.at, lambda *at, e=e, b=limit: minimum(b(*at), e(*at)))
                )
            local = self.results[self.written % len(self.results)]
            self.written += 1
            inverse = self.read_block(self.inverse, p)
            stmts += [
                self.each(
                    p, local, p.at,
                    lambda *at, a=e, b=inverse: self.requantised(a(*at) * b(*at), at[-1]),
                ),
                self.stored(local, p),
            ]  # fmt: skip
        return _allocated((values, *([apart] if apart else [])), stmts)

    def blanks(self, tile: Tile) -> list[Stmt]:
        """The zero point for keys that no query sees, to DRAM."""
        end = self.image.places
        hidden = [
            Chunk(g, begin, min(self.positions, end - begin))
            for g in tile
            for begin in range(g.span.bound, end, self.positions)
        ]
        if not hidden:
            return []
        # Inverses are negative.
        blank = self.nest(
            self.blank.shape,
            lambda n, *lane: Store(
                self.blank, (n, *lane),
                self.requantised(maximum(Read(self.inverse, (ZERO, *lane)), 0), lane),
            ),
        )  # fmt: skip
        return [blank, *(self.stored(self.blank, p) for p in hidden)]

    def requantised(self, value: Expr, lane: Lane) -> Expr:
        """An element of the result."""
        epilogue = self.image.epilogue
        bias, multiplier, shift = (
            Read(self.param, (ZERO, Const(n), lane[-1])) for n in range(REQUANT_ENTRIES)
        )
        scaled = rescale(value + bias, multiplier, shift, epilogue.rounding)
        return clipped(scaled, epilogue.zero_point, epilogue.lo, epilogue.hi)

    def stored(self, local: Buffer, p: Chunk) -> Stmt:
        """Results to DRAM."""
        g = p.group
        return self.nest(
            (g.count, p.keys, *self.entry),
            lambda i, k, *lane: Store(
                self.out, (g.block + i * g.stride, p.begin + k, ZERO, *lane),
                Read(local, (p.at(i, k), *lane)),
            ),
        )  # fmt: skip

    # ---- statements ----

    def rows(self, into: Buffer, size: int, formula: Callable[[Lane], Expr]) -> Stmt:
        """An entry for each block of a tile."""
        return self.nest((size, *self.entry), lambda *at: Store(into, at, formula(at)))

    def each(self, p: Chunk, into: Buffer, index: Callable[[Expr, Expr], Expr], rule: Rule) -> Stmt:
        """An entry for each block and each key of a chunk, at its ``index``."""
        return self.nest(
            (p.group.count, p.keys, *self.entry),
            lambda i, k, *lane: Store(into, (index(i, k), *lane), rule(i, k, lane)),
        )

    @staticmethod
    def nest(extents: Sequence[int], store: Callable[..., Store]) -> Stmt:
        """Loops around a statement, which is made of their variables."""
        loops = [(Var(f"i{n}"), extent) for n, extent in enumerate(extents)]
        body: Stmt = store(*(var if extent > 1 else ZERO for var, extent in loops))
        for var, extent in reversed(loops):
            body = For(var, extent, "serial", body) if extent > 1 else body
        return body


def _one_by_one(expr: Expr, into: Read, parts: Sequence[Read]) -> list[tuple[Read, Expr]]:
    """The operators of an expression in order, each with where its result goes: the last one
    ``into``, others to ``parts``, which take turns."""
    assert isinstance(expr, Binary)
    operands, spare, steps = [expr.a, expr.b], [*parts], []
    for n in sorted((0, 1), key=lambda n: -_operators(operands[n])):
        if isinstance(operands[n], Binary):
            part = spare.pop(0)
            # Its operands may use its buffer until its own operator.
            steps += _one_by_one(operands[n], part, [*spare, part])
            operands[n] = part
    return [*steps, (into, Binary(expr.op, operands[0], operands[1], "int32"))]


def _operators(expr: Expr) -> int:
    """How many operators an expression has."""
    return 1 + _operators(expr.a) + _operators(expr.b) if isinstance(expr, Binary) else 0


def _allocated(buffers: Sequence[Buffer], stmts: Sequence[Stmt]) -> Stmt:
    """Statements during which buffers exist."""
    body = seq(list(stmts))
    for buffer in reversed(buffers):
        body = Allocate(buffer, body)
    return body
