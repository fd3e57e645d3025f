"""The static checker of kernels: races between threads, and barriers that not all threads reach.

It executes no program and trusts no pass. Between two barriers, an element that one thread stores
to and another one touches is a race. Blocks never wait for each other, so that the same holds for
the threads of all blocks from the beginning of a launch to its end.

Mostly the indices prove that no two threads touch the same element (``disjoint.py``). Where they do
not, the checker lists for every thread the elements that each statement touches, for all values of
the loops around it.

``passes/barriers.py`` inserts barriers by whole buffers; the two share no code.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

from ..te import expr as E
from ..te.errors import ScheduleError
from . import ir as T
from .disjoint import Touched, are_disjoint
from .passes.bulk import BulkIntrin
from .passes.launch import ThreadModel
from .printer import expr_text


def check_threads(func: T.PrimFunc, model: ThreadModel) -> None:
    """Return if no launch of a program has a race or a barrier that some threads do not reach.

    Raises
    ------
    ScheduleError
        Naming the kernel, the buffer, the statements, and two threads.
    """
    for stmt in T.walk_stmt(func.body):
        if isinstance(stmt, T.Launch):
            _Checker(stmt, model).check()


@dataclass(frozen=True)
class _Access:
    """Elements of a buffer that a statement touches, by index: ``free`` are the loops that run
    between the same two barriers, ``facts`` what holds where it happens. Threads along the axes of
    ``together`` do it as one instruction: which of them touches which element is not known, so that
    it is no thread's own. What the copy engine stores is ``awaited``: what follows it waits for a
    signal (``arrivals.py`` checks that), so that only what precedes it can clash."""

    buffer: T.Buffer
    indices: tuple[E.Expr, ...]
    box: tuple[int, ...]
    writes: bool
    text: str
    free: Mapping[E.Var, int] = field(default_factory=dict)
    facts: tuple[E.Expr, ...] = ()
    together: tuple[str, ...] = ()
    awaited: bool = False

    def at(self, values: Mapping[E.Var, E.Expr]) -> _Access:
        """The access where variables have these values."""
        indices = tuple(E.substitute(i, values) for i in self.indices)
        return replace(
            self, indices=indices, facts=tuple(E.substitute(f, values) for f in self.facts)
        )

    def where_any(self, variables: Collection[E.Var]) -> _Access:
        """The access without the facts that depend on variables."""
        parts = (part for fact in self.facts for part in E.conjuncts(fact))
        return replace(self, facts=tuple(part for part in parts if not _has(part, variables)))


#: Elements that are listed at most, all threads together: a few gigabytes.
MOST_LISTED = 1 << 28
#: Accesses between two barriers.
_Row = list[_Access]


class _Checker:
    def __init__(self, launch: T.Launch, model: ThreadModel):
        self.launch, self.model = launch, model
        self.block_vars = {t.var for t in launch.block}

    def error(self, what: str) -> ScheduleError:
        return ScheduleError(f"kernel {self.launch.name}: {what}")

    def check(self) -> None:
        for row in self.rows(self.launch.body, {}):
            self.compare(row, {})
        self.compare_blocks()

    # ---- rows of accesses between barriers ----

    def rows(self, stmt: T.Stmt, uniform: dict[E.Var, int]) -> list[_Row]:
        """What happens before the first barrier of a statement, between two barriers, and after the
        last one. ``uniform`` are loops around it with barriers inside, so that all threads are in
        the same iteration. What lies wholly inside a loop is compared at once.
        """
        match stmt:
            case T.Seq(stmts):
                return reduce(_behind, (self.rows(s, uniform) for s in stmts), [[]])
            case T.Allocate():
                return self.rows(stmt.body, uniform)
            case T.Barrier():
                return [[], []]
            case T.If(cond, body):
                return self.guarded(cond, body, uniform)
            case T.For():
                return self.looped(stmt, uniform)
        return [list(_accesses(stmt))]

    def guarded(self, cond: E.Expr, body: T.Stmt, uniform: dict[E.Var, int]) -> list[_Row]:
        if any(isinstance(s, T.Barrier) for s in T.walk_stmt(body)):
            raise self.error(
                f"a barrier where not all threads are: only those with {expr_text(cond)}"
            )
        for stmt in T.walk_stmt(body):
            if isinstance(stmt, T.TensorCall) and self.divides(cond, stmt.intrinsic.collective):
                raise self.error(
                    f"{stmt.intrinsic.name} where not all threads of "
                    f"{', '.join(stmt.intrinsic.collective)} are: only those with {expr_text(cond)}"
                )
        [row] = self.rows(body, uniform)
        read = list(_reads(cond, expr_text(cond)))
        return [[*read, *(replace(a, facts=(cond, *a.facts)) for a in row)]]

    def divides(self, cond: E.Expr, axes: Sequence[str]) -> bool:
        """Whether a condition may differ between threads along some axes."""
        lanes = {t.var for t in self.launch.block if t.axis in axes}
        return bool(axes) and any(isinstance(n, E.Read) or n in lanes for n in E.walk(cond))

    def looped(self, loop: T.For, uniform: dict[E.Var, int]) -> list[_Row]:
        inside = {**uniform, loop.var: loop.extent}
        found = self.rows(loop.body, inside)
        if len(found) == 1:
            free = {loop.var: loop.extent}
            return [[replace(a, free={**free, **a.free}) for a in found[0]]]
        for row in found[1:-1]:
            self.compare(row, inside)
        first, last = found[0], found[-1]
        if loop.extent > 1:
            following: dict[E.Var, E.Expr] = {loop.var: loop.var + 1}
            self.compare([*last, *(a.at(following) for a in first)],
                         {**uniform, loop.var: loop.extent - 1})  # fmt: skip
        begin: dict[E.Var, E.Expr] = {loop.var: E.Const(0)}
        end: dict[E.Var, E.Expr] = {loop.var: E.Const(loop.extent - 1)}
        return [[a.at(begin) for a in first], [a.at(end) for a in last]]

    # ---- comparison ----

    def compare(self, row: _Row, uniform: dict[E.Var, int]) -> None:
        """Compare the accesses of one block's threads between two barriers."""
        for buffer, accesses in _by_buffer(row):
            if self.model.is_block_shared(buffer):
                plain = [a for a in accesses if not a.awaited]
                self.compare_threads(buffer, plain, self.launch.block, uniform)
                for number, access in enumerate(accesses):
                    if access.awaited:
                        before = [a for a in accesses[:number] if not a.awaited]
                        self.compare_threads(buffer, [*before, access], self.launch.block, uniform)

    def compare_blocks(self) -> None:
        """Compare what the blocks do to buffers that they share, barriers or not."""
        blocks = {t.axis for t in self.launch.grid}
        found: _Row = []
        _all_accesses(self.launch.body, (), {}, found)
        for buffer, accesses in _by_buffer(found):
            if blocks & set(self.model.scopes[buffer.scope].shared_by):
                grid = self.launch.grid
                free = {t.var: t.extent for t in self.launch.block}
                accesses = [replace(a, free={**free, **a.free}) for a in accesses]
                self.compare_threads(buffer, accesses, grid, {})

    def compare_threads(
        self, buffer: T.Buffer, accesses: _Row, threads: Sequence[Any], uniform: dict[E.Var, int]
    ) -> None:
        """Compare the elements that different values of ``threads`` touch. All other thread indices
        and the ``uniform`` loops have the same value in both.

        Elements are listed only where nothing proves them disjoint. Variables of ``same`` that no
        index has, but guards, are tried only where there is a clash without these guards.
        """
        others = {t.var: t.extent for t in self.launch.threads if t not in threads}
        same = {v: n for v, n in {**others, **uniform}.items()
                if not any(v in a.free for a in accesses) and _occurs(v, accesses)}  # fmt: skip
        if self.are_disjoint(accesses, threads, same):
            return
        indexing = {v: n for v, n in same.items() if any(_has(i, (v,)) for i in _indices(accesses))}
        guards = same.keys() - indexing.keys()
        if guards:
            wider = [a.where_any(guards) for a in accesses]
            if self.clash(buffer, wider, threads, indexing) is None:
                return
        error = self.clash(buffer, accesses, threads, same)
        if error is not None:
            raise error

    def are_disjoint(
        self, accesses: _Row, threads: Sequence[Any], same: Mapping[E.Var, int]
    ) -> bool:
        """Whether a proof finds that no two threads touch the same element."""
        around = {**same, **{t.var: t.extent for t in threads}}
        touched = [Touched(a.indices, a.box, {**around, **a.free}, a.facts) for a in accesses]
        is_threads_own = not any(t.axis in a.together for a in accesses for t in threads)
        return is_threads_own and are_disjoint(touched, [t.var for t in threads], same)

    def clash(
        self, buffer: T.Buffer, accesses: _Row, threads: Sequence[Any], same: Mapping[E.Var, int]
    ) -> ScheduleError | None:
        """The first clash of two threads, by all elements that they touch for all values of
        ``same``."""
        size = buffer.shape[0] * buffer.strides[0]
        count = size * math.prod(same.values())
        self.check_count(buffer, count)
        last = np.full(count, -1, np.int64)
        for access in sorted(accesses, key=lambda a: not a.writes):
            who, where = self.elements(access, threads, same, size)
            before = last[where]
            error = self.refusal((before != -1) & (before != who), who, before, access)
            if error is None and access.writes:
                last[where] = who
                error = self.refusal(last[where] != who, who, last[where], access)
            if error is not None:
                return error
        return None

    def check_count(self, buffer: T.Buffer, count: int) -> None:
        """Raise an error where there are too many elements to list."""
        if count > MOST_LISTED:
            raise self.error(
                f"cannot tell whether threads race on {buffer.name} in {buffer.scope}: nothing "
                f"proves their elements disjoint, and {count} are too many to list"
            )

    def refusal(
        self, clash: np.ndarray, who: np.ndarray, other: np.ndarray, access: _Access
    ) -> ScheduleError | None:
        """The error for the first clash of thread ``who`` with the ``other``."""
        if not clash.any():
            return None
        at = int(np.argmax(clash))
        return self.error(
            f"race on {access.buffer.name} in {access.buffer.scope}: {access.text!r} by "
            f"{self.named(int(who[at]))}, and a store by {self.named(int(other[at]))}, without "
            "a barrier between"
        )

    def named(self, number: int) -> str:
        """A thread, or the warp that it is the first of, by the number that :meth:`elements`
        gives."""
        count = int(np.prod([t.extent for t in self.launch.block]))
        is_warp = number >= count and any(
            isinstance(s, T.TensorCall) and s.intrinsic.collective
            for s in T.walk_stmt(self.launch.body)
        )
        return f"the warp of thread {number % count}" if is_warp else f"thread {number}"

    def elements(
        self, access: _Access, threads: Sequence[Any], same: Mapping[E.Var, int], size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Threads and the elements that they touch, in two arrays; elements are numbered through
        all values of ``same``.
        """
        box = {E.Var(f"box{d}"): n for d, n in enumerate(access.box) if n > 1}
        lift = iter(box)
        indices = [i + next(lift) if n > 1 else i
                   for i, n in zip(access.indices, access.box, strict=True)]  # fmt: skip
        used = {n for e in (*indices, *access.facts) for n in E.walk(e) if isinstance(n, E.Var)}
        free = {v: n for v, n in {**access.free, **box}.items() if v in used}
        by = {t.var: 1 if t.axis in access.together else t.extent for t in threads}
        order = [*same.items(), *by.items(), *free.items()]
        env = {
            var: np.arange(extent, dtype=np.int64).reshape(
                [-1 if d == place else 1 for d in range(len(order))]
            )
            for place, (var, extent) in enumerate(order)
        }
        shape = tuple(extent for _, extent in order)
        self.check_count(access.buffer, math.prod(shape))
        place: Any = np.int64(0)
        for var, extent in same.items():
            place = place * extent + env[var]
        place = place * size
        for index, stride in zip(indices, access.buffer.strides, strict=True):
            found = _value(index, env)
            if found is None:
                raise self.error(
                    f"cannot tell which elements of {access.buffer.name} {access.text!r} touches"
                )
            place = place + found * stride
        who: Any = np.int64(0)
        for t in threads:
            who = who * t.extent + env[t.var]
        if any(t.axis in access.together for t in threads):
            # Numbers beyond those of single threads. Stores of a warp do not disturb each other.
            count = int(np.prod([t.extent for t in threads]))
            who = who + (2 if access.writes else 1) * count
        holds = np.broadcast_to(np.True_, shape)
        for fact in access.facts:
            known = _value(fact, env)
            if known is not None:
                holds = holds & known
        whole = (np.broadcast_to(a, shape)[holds] for a in (who, place))
        found_who, found_place = whole
        return found_who, found_place


def _behind(rows: list[_Row], following: list[_Row]) -> list[_Row]:
    """Rows of two statements, one after the other: no barrier is between them."""
    return [*rows[:-1], [*rows[-1], *following[0]], *following[1:]]


def _by_buffer(row: _Row) -> Iterator[tuple[T.Buffer, _Row]]:
    """Accesses to each buffer that is stored to."""
    groups: dict[T.Buffer, _Row] = {}
    for access in row:
        groups.setdefault(access.buffer, []).append(access)
    for buffer, accesses in groups.items():
        if any(access.writes for access in accesses):
            yield buffer, accesses


def _indices(accesses: _Row) -> Iterator[E.Expr]:
    return (index for access in accesses for index in access.indices)


def _occurs(var: E.Var, accesses: _Row) -> bool:
    return any(_has(e, (var,)) for a in accesses for e in (*a.indices, *a.facts))


def _has(expr: E.Expr, variables: Collection[E.Var]) -> bool:
    """Whether one of the variables occurs in an expression."""
    return any(node in variables for node in E.walk(expr))


def _all_accesses(
    stmt: T.Stmt, facts: tuple[E.Expr, ...], free: dict[E.Var, int], found: _Row
) -> None:
    """All accesses of a kernel, whatever barriers there are."""
    match stmt:
        case T.Seq(stmts):
            for inner in stmts:
                _all_accesses(inner, facts, free, found)
        case T.Allocate():
            _all_accesses(stmt.body, facts, free, found)
        case T.If(cond, body):
            found += [replace(a, facts=facts, free=free) for a in _reads(cond, expr_text(cond))]
            _all_accesses(body, (*facts, cond), free, found)
        case T.For():
            _all_accesses(stmt.body, facts, {**free, stmt.var: stmt.extent}, found)
        case T.Store() | T.TensorCall():
            found += [replace(a, facts=(*facts, *a.facts), free=free) for a in _accesses(stmt)]


def _accesses(stmt: T.Stmt) -> Iterator[_Access]:
    """What a single statement touches: its reads first, then its store."""
    match stmt:
        case T.Store(buffer, indices, value):
            text = f"{expr_text(E.Read(buffer, indices))} = {expr_text(value)}"
            for expr in (*indices, value):
                yield from _reads(expr, text)
            yield _Access(buffer, indices, (1,) * len(indices), True, text)
        case T.TensorCall(intrinsic, variant, output, inputs):
            for region, tensor in zip(inputs, intrinsic.operands, strict=False):
                yield _region(region, tensor.shape, False, intrinsic)
            if variant == "update":
                yield _region(output, intrinsic.behaviour.shape, False, intrinsic)
            made = _region(output, intrinsic.behaviour.shape, True, intrinsic)
            yield replace(made, awaited=isinstance(intrinsic, BulkIntrin))


def _region(region: Any, shape: tuple[int, ...], writes: bool, intrinsic: Any) -> _Access:
    box = (1,) * (len(region.start) - len(shape)) + tuple(shape)
    together = intrinsic.collective
    return _Access(region.buffer, region.start, box, writes, intrinsic.name, together=together)


def _reads(expr: E.Expr, text: str) -> Iterator[_Access]:
    """Reads of an expression, with the conditions of the selects around them."""
    match expr:
        case E.Select(cond, a, b):
            yield from _reads(cond, text)
            yield from (replace(r, facts=(cond, *r.facts)) for r in _reads(a, text))
            yield from _reads(b, text)
            return
        case E.Read(source, indices):
            yield _Access(source, indices, (1,) * len(indices), False, text)
    for child in E.children(expr):
        yield from _reads(child, text)


_OPERATORS = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.remainder,
    "<": np.less, "<=": np.less_equal, "==": np.equal, "&": np.bitwise_and, "|": np.bitwise_or,
    "min": np.minimum, "max": np.maximum, ">>": np.right_shift, "<<": np.left_shift,
}  # fmt: skip


def _value(expr: E.Expr, env: Mapping[Any, np.ndarray]) -> Any:
    """Values of an index or condition for all values of its variables; None if it depends on
    memory."""
    match expr:
        case E.Var():
            return env[expr]
        case E.Const(value):
            return np.bool_(value) if expr.dtype == "bool" else np.int64(value)
        case E.Binary(op, a, b) if op in _OPERATORS:
            left, right = _value(a, env), _value(b, env)
            return None if left is None or right is None else _OPERATORS[op](left, right)
        case E.Cast(_, a):
            return _value(a, env)
    return None
