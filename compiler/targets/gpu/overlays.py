"""Where buffers lie in a block's shared memory: one over others that are used no more.

::

    for k: products(sums, left, right)      for k: products(sums, left, right)
    staged = sums                     ->    barrier
    barrier                                 staged = sums   # lies over left and right
    out = staged                            barrier
                                            out = staged

This is done where the buffers together need more than a kernel has without asking: then fewer bytes
mean larger tiles, or more blocks on a multiprocessor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ...tir import ir as T
from ...tir.passes.bulk import SIGNAL
from .scopes import SHARED_ALIGN, SHARED_BYTES, element_bytes, element_count

#: Statements that wait for what may still use a buffer.
WAITS = (T.CopiesArrived, T.ProductsArrived, T.SignalArrived)
Pair = tuple[T.Buffer, T.Buffer]


@dataclass(frozen=True)
class SharedMemory:
    """Where the buffers of a kernel in shared memory begin, in bytes, and how many these are in
    all. ``overlaid``: whether some lie over others."""

    places: dict[T.Buffer, int]
    size_bytes: int
    overlaid: bool = False


def shared_memory(launch: T.Launch) -> SharedMemory:
    """The places of a kernel's buffers in shared memory. Those that are aligned most come first."""
    held = sorted(_held(launch), key=lambda buffer: not buffer.swizzled)
    apart = SharedMemory(*_placed(held, ()))
    if apart.size_bytes <= SHARED_BYTES:
        return apart
    stmts = T.hoist(launch.body)[1]
    separated = [pair for pair, at in _following(stmts, held) if _parts(stmts, *at)]
    places, size = _placed(held, separated)
    return SharedMemory(places, size, size < apart.size_bytes)


def part_buffers(func: T.PrimFunc) -> T.PrimFunc:
    """A barrier between the last use of a buffer and the first one of another, where the second
    could then lie over the first one, and a kernel's buffers together need more than it has."""

    def parted(launch: T.Launch) -> T.Stmt:
        held = _held(launch)
        if _placed(held, ())[1] <= SHARED_BYTES:
            return launch.body
        _, stmts = T.hoist(launch.body)
        late = {at[1] for _, at in _following(stmts, held) if not _parts(stmts, *at)}
        return _with_barriers(launch.body, [stmts[n] for n in late])

    return T.map_launches(func, parted)


def find_alignment(buffer: T.Buffer) -> int:
    """Bytes at a multiple of which a buffer begins."""
    return SHARED_ALIGN if buffer.swizzled else 16


def _held(launch: T.Launch) -> list[T.Buffer]:
    return [s.buffer for s in T.walk_stmt(launch.body)
            if isinstance(s, T.Allocate) and s.buffer.scope == "shared"]  # fmt: skip


def _placed(
    held: Sequence[T.Buffer], separated: Collection[Pair]
) -> tuple[dict[T.Buffer, int], int]:
    """The lowest places at which buffers overlap those alone that they are ``separated`` from, and
    where the last one ends."""
    places, ends = dict[T.Buffer, int](), dict[T.Buffer, int]()
    for buffer in held:
        others = [b for b in places if not {(b, buffer), (buffer, b)} & {*separated}]
        align = find_alignment(buffer)
        size = element_count(buffer) * element_bytes(buffer.dtype)
        starts = sorted({-(-end // align) * align for end in (0, *(ends[b] for b in others))})
        places[buffer] = start = next(
            start for start in starts
            if all(ends[b] <= start or start + size <= places[b] for b in others)
        )  # fmt: skip
        ends[buffer] = start + size
    return places, max(ends.values(), default=0)


def _following(
    stmts: Sequence[T.Stmt], held: Sequence[T.Buffer]
) -> Iterator[tuple[Pair, tuple[int, int]]]:
    """Pairs of buffers where the last use of the first comes before any use of the second, with the
    numbers of these two statements. A statement that waits counts as a use of every buffer that was
    used before it. Signals are left out: they have places of their own."""
    first, last = dict[T.Buffer, int](), dict[T.Buffer, int]()
    for number, stmt in enumerate(stmts):
        used = [*first] if isinstance(stmt, WAITS) else T.used_buffers(stmt)
        for buffer in used:
            first.setdefault(buffer, number)
            last[buffer] = number
    known = [b for b in held if b in first and b.dtype != SIGNAL]
    for a in known:
        yield from (((a, b), (last[a], first[b])) for b in known if last[a] < first[b])


def _parts(stmts: Sequence[T.Stmt], last: int, first: int) -> bool:
    """Whether a barrier follows a statement, before another one begins."""
    return any(map(_ends_with_barrier, stmts[last:first]))


def _ends_with_barrier(stmt: T.Stmt) -> bool:
    if isinstance(stmt, T.For):
        return _ends_with_barrier(T.hoist(stmt.body)[1][-1])
    return isinstance(stmt, T.Barrier)


def _with_barriers(stmt: T.Stmt, later: Sequence[T.Stmt]) -> T.Stmt:
    """The statement with a barrier before each of ``later``."""
    if isinstance(stmt, T.Seq | T.Allocate):
        return T.map_parts(stmt, lambda part: _with_barriers(part, later))
    return T.seq([T.Barrier(), stmt]) if any(stmt is s for s in later) else stmt
