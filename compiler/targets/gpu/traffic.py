"""What a kernel moves, counted without running it: bytes of main memory, how well the threads of a
warp share its sectors, conflicts of banks of shared memory, and barriers.

Bytes and barriers are exact: every guard is evaluated for all threads and iterations. Sectors and
conflicts are those of the first block's warps in the first iteration of each loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from ...te import expr as E
from ...te.numpy_values import values_of
from ...tir import ir as T
from ...tir.passes.bulk import BulkIntrin
from .scopes import LANES, WARP, element_bytes
from .tensor_cores import ROWS, WarpIntrin
from .vectors import find_loads, find_vector

#: Bytes that main memory moves at once, of one bank of shared memory, and banks.
SECTOR_BYTES, BANK_BYTES, BANKS = 32, 4, 32


@dataclass(frozen=True)
class Access:
    """An access of a warp: ``size`` bytes for each thread at element ``index`` of a buffer.
    ``loops`` are the extents of the loops around it, ``facts`` what holds where it happens.
    ``rows`` are the threads whose accesses go to shared memory at the same time."""

    buffer: T.Buffer
    index: E.Expr
    size: int
    writes: bool
    loops: Mapping[E.Var, int] = field(default_factory=dict)
    facts: tuple[E.Expr, ...] = ()
    rows: int = WARP


@dataclass(frozen=True)
class Traffic:
    """What one kernel does.

    Attributes
    ----------
    barriers : how often its blocks wait, all blocks together
    bytes_read, bytes_written : of main memory, by all threads
    sectors : for each buffer in main memory, sectors that a warp's access touches, relative to as
        many as its bytes need; 1 is best
    conflicts : for each buffer in shared memory, "read" and "written" apart, how many words of one
        bank a warp's access waits for, at worst; 1 is best
    """

    barriers: int
    bytes_read: int
    bytes_written: int
    sectors: dict[str, float]
    conflicts: dict[str, int]


def count_traffic(launch: T.Launch) -> Traffic:
    """Count what a kernel does."""
    accesses = list(_accesses(launch.body, launch, {}, ()))
    extents = {t.var: t.extent for t in launch.threads}
    moved = {True: 0, False: 0}
    sectors: dict[str, float] = {}
    conflicts: dict[str, int] = {}
    for access in accesses:
        name = access.buffer.name
        if access.buffer.scope == "global":
            moved[access.writes] += access.size * _times(access, extents)
            sectors[name] = max(sectors.get(name, 0.0), _sectors(access, launch))
        elif access.buffer.scope == "shared":
            name += " written" if access.writes else " read"
            conflicts[name] = max(conflicts.get(name, 0), _conflicts(access, launch))
    blocks = prod(t.extent for t in launch.grid)
    barriers = barriers_in(launch.body) * blocks
    return Traffic(barriers, moved[False], moved[True], sectors, conflicts)


def barriers_in(stmt: T.Stmt) -> int:
    """How often a block waits in a statement."""
    match stmt:
        case T.Barrier():
            return 1
        case T.For():
            return stmt.extent * barriers_in(stmt.body)
    return sum(barriers_in(inner) for inner in T.substatements(stmt))


# ---- accesses ----------------------------------------------------------------------------------


def _accesses(
    stmt: T.Stmt, launch: T.Launch, loops: Mapping[E.Var, int], facts: tuple[E.Expr, ...]
) -> Iterator[Access]:
    match stmt:
        case T.Seq(stmts):
            for inner in stmts:
                yield from _accesses(inner, launch, loops, facts)
        case T.Allocate(body=body):
            yield from _accesses(body, launch, loops, facts)
        case T.If(cond, body):
            yield from _reads(cond, loops, facts)
            yield from _accesses(body, launch, loops, (*facts, cond))
        case T.For():
            vector = find_vector(stmt) if stmt.kind == "vectorized" else None
            inside = {**loops, stmt.var: stmt.extent}
            if vector is None:
                yield from _accesses(stmt.body, launch, inside, facts)
                return
            facts = facts if vector.guard is None else (*facts, vector.guard)
            if vector.source is None:
                loads = find_loads(vector, stmt)
                for read in loads:
                    access = _access(read.source, read.indices, False, loops, facts)
                    size = element_bytes(read.source.dtype) * stmt.extent
                    yield replace(_first(access, stmt.var), size=size)

                def loaded(expr: E.Expr, loads: list[E.Read] = loads) -> E.Expr | None:
                    return E.Const(0, expr.dtype) if expr in loads else None

                yield from _reads(E.rewrite(vector.store.value, loaded), inside, facts)
            else:
                exists = () if vector.exists is None else (vector.exists,)
                read = _access(vector.source.source, vector.source.indices, False, loops, facts)
                yield replace(_first(read, stmt.var), size=vector.size, facts=(*facts, *exists))
            store = _access(vector.store.buffer, vector.store.indices, True, loops, facts)
            yield replace(_first(store, stmt.var), size=vector.size)
        case T.Store(buffer, indices, value):
            for expr in (*indices, value):
                yield from _reads(expr, loops, facts)
            yield _access(buffer, indices, True, loops, facts)
        case T.TensorCall(BulkIntrin() as intrinsic, _, _, (source, _)):
            yield _boxed(intrinsic.operands[0].shape, source, loops, facts)
        case T.TensorCall(WarpIntrin() as intrinsic, _, output, inputs):
            lane = next(t.var for t in launch.block if t.axis in LANES)
            for region in inputs:
                if region.buffer.scope == "shared":
                    yield from _loaded(intrinsic, region, lane, loops, facts)
            if output.buffer.scope == "shared":
                yield from _stored(output, lane, loops, facts)


def _access(
    buffer: T.Buffer,
    indices: tuple[E.Expr, ...],
    writes: bool,
    loops: Mapping[E.Var, int],
    facts: tuple[E.Expr, ...],
) -> Access:
    total: E.Expr = E.Const(0)
    for index, stride in zip(indices, buffer.strides, strict=True):
        total = total + (index if index.dtype == "int32" else E.Cast("int32", index)) * stride
    return Access(buffer, total, element_bytes(buffer.dtype), writes, loops, facts)


def _first(access: Access, var: E.Var) -> Access:
    """The access in the first iteration of a vectorized loop."""
    return replace(access, index=E.substitute(access.index, {var: E.Const(0)}))


def _reads(expr: E.Expr, loops: Mapping[E.Var, int], facts: tuple[E.Expr, ...]) -> Iterator[Access]:
    """Reads of an expression; of a select, those of the side that is taken."""
    match expr:
        case E.Select(cond, a, b):
            yield from _reads(cond, loops, facts)
            yield from _reads(a, loops, (*facts, cond))
            yield from _reads(b, loops, (*facts, cond.equal(E.Const(False, "bool"))))
            return
        case E.Read(source, indices):
            yield _access(source, indices, False, loops, facts)
    for child in E.children(expr):
        yield from _reads(child, loops, facts)


def _boxed(
    box: tuple[int, ...], source: T.Region, loops: Mapping[E.Var, int], facts: tuple[E.Expr, ...]
) -> Access:
    """What the copy engine reads: pieces of 16 bytes, as far as they are inside the tensor."""
    buffer, count = source.buffer, 16 // element_bytes(source.buffer.dtype)
    indices, steps = list(source.start), dict(loops)
    for d, extent in enumerate(box):
        is_last = d == len(box) - 1
        step = E.Var(f"box{d}")
        steps[step] = extent // count if is_last else extent
        indices[d] = indices[d] + step * (count if is_last else 1)
        facts = (*facts, indices[d] < buffer.shape[d])
    return replace(_access(buffer, tuple(indices), False, steps, facts), size=16)


def _loaded(
    intrinsic: WarpIntrin, region: T.Region, lane: E.Var, loops: Mapping[E.Var, int], facts: Any
) -> Iterator[Access]:
    """The rows of 16 bytes that ``ldmatrix`` reads, or the tensor cores, eight at a time."""
    count = 16 // element_bytes(region.buffer.dtype)
    is_a = intrinsic.function.endswith("_a")
    row, column = (lane % 16, lane // 16) if is_a else (lane % 8, lane // 8 % 2)
    access = _access(region.buffer, region.start, False, loops, facts)
    index = access.index + row * region.buffer.strides[-2] + column * count
    yield replace(access, index=index, size=16, rows=8)


def _stored(
    region: T.Region, lane: E.Var, loops: Mapping[E.Var, int], facts: tuple[E.Expr, ...]
) -> Iterator[Access]:
    """The pairs of sums that a thread stores, half a warp at a time."""
    access = _access(region.buffer, region.start, True, loops, facts)
    row = lane // WARP * ROWS + lane % WARP // 4
    index = access.index + row * region.buffer.strides[-2] + lane % 4 * 2
    yield replace(access, index=index, size=8, rows=16)


# ---- counting ----------------------------------------------------------------------------------


def _times(access: Access, extents: Mapping[E.Var, int]) -> int:
    """How often an access happens: in how many threads and iterations all its facts hold."""
    everything = {**extents, **access.loops}
    facts = [f for f in access.facts if not any(isinstance(n, E.Read) for n in E.walk(f))]
    parts = [part for fact in facts for part in E.conjuncts(fact)]
    used = {n for part in parts for n in E.walk(part) if isinstance(n, E.Var)}
    free = prod(n for var, n in everything.items() if var not in used)
    return free * prod(_times_together(group, everything) for group in _apart(parts))


def _apart(facts: list[E.Expr]) -> list[list[E.Expr]]:
    """Groups of facts that have no variable in common with each other."""
    groups: list[tuple[set[E.Var], list[E.Expr]]] = []
    for fact in facts:
        mine, members = {n for n in E.walk(fact) if isinstance(n, E.Var)}, [fact]
        others = []
        for group in groups:
            if group[0] & mine:
                mine, members = mine | group[0], [*group[1], *members]
            else:
                others.append(group)
        groups = [*others, (mine, members)]
    return [members for _, members in groups]


def _times_together(facts: list[E.Expr], extents: Mapping[E.Var, int]) -> int:
    """For how many values of their variables all of some facts hold. Where they are the same for
    every so many values of a variable, these are evaluated only once."""
    used = {n for fact in facts for n in E.walk(fact) if isinstance(n, E.Var)}
    periods = {v: _period(facts, v, n) for v, n in extents.items() if v in used}
    env = _grid(periods)
    holds = np.ones(list(periods.values()), bool)
    for fact in facts:
        holds = holds & values_of(fact, env)
    whole = [var for var, period in periods.items() if period == extents[var]]
    count: Any = holds.sum(axis=tuple(d for d, var in enumerate(periods) if var in whole))
    for var, period in periods.items():
        if var not in whole:
            again = extents[var] // period + (np.arange(period) < extents[var] % period)
            count = np.tensordot(again, count, 1)
    return int(count)


def _period(facts: list[E.Expr], var: E.Var, extent: int) -> int:
    """The least number of values of a variable after which facts are as before; else the extent."""
    divisors = {n: n.b.value for fact in facts for n in E.walk(fact)
                if isinstance(n, E.Binary) and n.op in ("//", "%") and isinstance(n.b, E.Const)
                }  # fmt: skip
    whole = prod(divisors.values())
    return next(
        (
            period
            for period in range(1, min(extent, whole + 1))
            if whole % period == 0 and all(_change(fact, var, period) == 0 for fact in facts)
        ),
        extent,
    )


def _change(expr: E.Expr, var: E.Var, step: int) -> int | None:
    """By how much an expression grows, whatever its value, where a variable grows by a step; None
    where that is not known."""
    if expr is var:
        return step
    if not any(n is var for n in E.walk(expr)):
        return 0
    match expr:
        case E.Binary(op, a, b):
            left, right = _change(a, var, step), _change(b, var, step)
            if left is None or right is None:
                return None
            match op, b:
                case "+", _:
                    return left + right
                case "-", _:
                    return left - right
                case "*", E.Const(int(factor)):
                    return left * factor
                case "//", E.Const(int(divisor)) if divisor > 0 and left % divisor == 0:
                    return left // divisor
                case "%", E.Const(int(divisor)) if divisor > 0 and left % divisor == 0:
                    return 0
                case (("<" | "<=" | "=="), _) if left == right:
                    return 0
    return None


def _grid(extents: Mapping[E.Var, int]) -> dict[E.Var, np.ndarray]:
    """All combinations of variables, as arrays that broadcast."""
    return {
        var: np.arange(extent, dtype=np.int32).reshape(
            [-1 if d == place else 1 for d in range(len(extents))]
        )
        for place, (var, extent) in enumerate(extents.items())
    }


def _addresses(access: Access, launch: T.Launch) -> list[np.ndarray]:
    """For each warp of a block, the bytes at which its threads begin, those alone that take part,
    in rows that move at once."""
    threads = prod(t.extent for t in launch.block)
    number = np.arange(threads, dtype=np.int32)
    known: dict[E.Var, np.ndarray] = {t.var: np.int32(0) for t in launch.grid}  # type: ignore[misc]
    known |= {var: np.int32(0) for var in access.loops}  # type: ignore[misc]
    for thread in sorted(launch.block, key=lambda t: t.axis):
        known[thread.var] = number % thread.extent
        number = number // thread.extent
    takes = np.ones(threads, bool)
    for fact in (*access.facts, access.index):
        if any(isinstance(n, E.Read) for n in E.walk(fact)):
            return []
    for fact in access.facts:
        takes = takes & values_of(fact, known)
    index = np.broadcast_to(values_of(access.index, known), threads)
    index = index.astype(np.int64)
    index = index ^ (index >> 3 & access.buffer.swizzle_mask)
    places = index * element_bytes(access.buffer.dtype)
    rows = min(access.rows, WARP * BANK_BYTES // max(access.size, BANK_BYTES))
    return [
        part
        for first in range(0, threads, rows)
        if (part := places[first : first + rows][takes[first : first + rows]]).size
    ]


def _sectors(access: Access, launch: T.Launch) -> float:
    """Sectors that a warp touches, over those that its bytes fill; the worst warp."""
    worst = 1.0
    for places in _addresses(replace(access, rows=WARP), launch):
        ends = places + access.size - 1
        touched = {*(places // SECTOR_BYTES).tolist(), *(ends // SECTOR_BYTES).tolist()}
        distinct = np.unique(places).size * access.size
        worst = max(worst, len(touched) / -(-distinct // SECTOR_BYTES))
    return worst


def _conflicts(access: Access, launch: T.Launch) -> int:
    """Different words of one bank that the threads of a row need; the worst row."""
    worst = 1
    for places in _addresses(access, launch):
        offsets = np.arange(0, max(access.size, BANK_BYTES), BANK_BYTES)
        words = np.unique((places[:, None] + offsets) // BANK_BYTES)
        worst = max(worst, int(np.bincount(words % BANKS).max()))
    return worst
