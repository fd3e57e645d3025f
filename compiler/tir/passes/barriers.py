"""Barriers between statements of a kernel that must not overtake each other.

::

    for k:                              for k:
      s[t] = x[k, t]            ->        s[t] = x[k, t]
      y = y + s[0]                        barrier
                                          y = y + s[0]
                                          barrier

Two accesses to a buffer that the threads of a block share conflict if one of them stores, unless
each thread has elements of its own. A barrier goes right before a statement that conflicts with one
since the last barrier, and to the end of a loop whose last statements conflict with its first ones.
All guards are on single statements (``passes/launch.py``), so that every thread gets to every
barrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from ...te.affine import affine
from ...te.expr import Binary, Const, Expr, Read, Var, walk
from .. import ir as T
from .bulk import BulkIntrin
from .launch import ThreadModel


def insert_barriers(func: T.PrimFunc, model: ThreadModel) -> T.PrimFunc:
    """Insert the barriers that every launch needs. A kernel of one thread a block needs none."""

    def with_barriers(launch: T.Launch) -> T.Stmt:
        body = launch.body
        return _Barriers(launch, model).visit(body, (), {}).stmt if launch.block else body

    return T.map_launches(func, with_barriers)


@dataclass(frozen=True, eq=False)
class _Access:
    """An access, the guards around it, and the extents of the loops around it. ``box`` is how many
    elements it touches along each dimension. What threads do ``together``, as one instruction, has
    a guard that the first of them does it; which of them touches which element is not known. What
    the copy engine stores is ``awaited``: its readers wait for a signal."""

    buffer: T.Buffer
    indices: tuple[Expr, ...]
    box: tuple[int, ...]
    writes: bool
    guards: tuple[Expr, ...]
    loops: Mapping[Var, int]
    together: bool = False
    awaited: bool = False


@dataclass(frozen=True)
class _Synced:
    """A statement with its barriers; its accesses before the first and after the last barrier,
    which are all of them if it has none."""

    stmt: T.Stmt
    head: tuple[_Access, ...]
    tail: tuple[_Access, ...]
    waits: bool


class _Barriers:
    """Inserts the barriers of one launch."""

    def __init__(self, launch: T.Launch, model: ThreadModel):
        self.launch, self.model = launch, model

    def visit(self, stmt: T.Stmt, guards: tuple[Expr, ...], loops: Mapping[Var, int]) -> _Synced:
        match stmt:
            case T.Seq(stmts):
                return self.sequence([self.visit(s, guards, loops) for s in stmts])
            case T.For():
                body = self.visit(stmt.body, guards, {**loops, stmt.var: stmt.extent})
                if stmt.extent > 1 and self.conflict(body.tail, body.head, across=True):
                    again = T.seq([body.stmt, T.Barrier()])
                    return _Synced(replace(stmt, body=again), body.head, (), True)
                return replace(body, stmt=replace(stmt, body=body.stmt))
            case T.Allocate():
                body = self.visit(stmt.body, guards, loops)
                return replace(body, stmt=replace(stmt, body=body.stmt))
            case T.If(cond, body):
                found = self.visit(body, (*guards, cond), loops)
                assert not found.waits  # guards are on single statements
                return replace(found, stmt=stmt)
            case T.Barrier():
                return _Synced(stmt, (), (), True)
        if isinstance(stmt, T.TensorCall):
            together = stmt.intrinsic.collective
            guards += tuple(t.var.equal(Const(0)) for t in self.launch.block if t.axis in together)
        shared = tuple(
            access
            for access in _accesses(stmt, guards, loops)
            if self.model.is_block_shared(access.buffer)
        )
        return _Synced(stmt, shared, shared, False)

    def sequence(self, parts: list[_Synced]) -> _Synced:
        stmts: list[T.Stmt] = []
        head: tuple[_Access, ...] = ()
        since: tuple[_Access, ...] = ()
        waits = False
        for part in parts:
            if self.conflict(since, part.head):
                stmts.append(T.Barrier())
                since, waits = (), True
            if not waits:
                head += part.head
            since = part.tail if part.waits else since + part.tail
            waits |= part.waits
            stmts.append(part.stmt)
        return _Synced(T.seq(stmts) if stmts else T.Seq(()), head, since, waits)

    # ---- conflicts ----

    def conflict(
        self, earlier: tuple[_Access, ...], later: tuple[_Access, ...], across: bool = False
    ) -> bool:
        """Whether any of the ``later`` accesses must wait for one of the ``earlier`` ones, which
        may be of other iterations (``across``)."""
        return any(
            a.buffer is b.buffer
            and (a.writes or b.writes)
            and not (a.awaited and not b.writes)
            and not self.apart(a, b)
            and (across or not _in_other_copies(a, b))
            for a, b in product(earlier, later)
        )

    def apart(self, a: _Access, b: _Access) -> bool:
        """Whether two different threads never touch the same element by these accesses."""
        if (a.together, a.together and a.writes) != (b.together, b.together and b.writes):
            return False
        pinned = _pinned(a.guards)
        if pinned != _pinned(b.guards):
            return False
        free = {
            t.var: max(_bound(t.var, t.extent, guards) for guards in (a.guards, b.guards))
            for t in self.launch.block
            if t.var not in pinned
        }
        for places in (_dimensions, _flat):
            forms = [
                (self.form(i, a, n, free), self.form(j, b, m, free))
                for (i, n), (j, m) in zip(places(a), places(b), strict=True)
            ]
            told: set[_Digits] = set()
            for one, other in forms:
                if one is not None and other is not None:
                    told |= _told_apart(one, other)
            if all(_is_told(var, extent, told) for var, extent in free.items()):
                return True
        return False

    def form(self, index: Expr, access: _Access, box: int, free: Mapping[Var, int]) -> _Form | None:
        """None for an index that is not affine in loops and threads."""
        grid = {t.var for t in self.launch.grid}
        pinned = {t.var for t in self.launch.block} - free.keys()
        form = affine(index)
        found = _Form({}, {}, {1: box} if box > 1 else {}, form.constant)
        for term, coefficient in form.terms:
            part = _find_digits(term, free)
            if part is not None:
                found.block[part] = coefficient
            elif not isinstance(term, Var):
                return None
            elif term in pinned:
                continue
            elif term in grid:
                found.grid[term] = coefficient
            else:
                steps = found.loops.get(abs(coefficient), 1)
                found.loops[abs(coefficient)] = steps + access.loops[term] - 1
        return found


@dataclass(frozen=True)
class _Form:
    """An index: coefficients of parts of the block's threads' indices, and of the grid's threads;
    for every coefficient of loops, how many steps they take; a constant."""

    block: dict[_Digits, int]
    grid: dict[Var, int]
    loops: dict[int, int]
    constant: int


@dataclass(frozen=True)
class _Digits:
    """A part of a thread's index: ``var // low % (high // low)``; the whole index with 1 and its
    extent."""

    var: Var
    low: int
    high: int

    @property
    def extent(self) -> int:
        """How many values it has."""
        return -(-self.high // self.low)


def _find_digits(term: Expr, extents: Mapping[Var, int]) -> _Digits | None:
    """The part of a thread's index that a term of quotients and remainders is."""
    match term:
        case Var() if term in extents:
            return _Digits(term, 1, extents[term])
        case Binary("//" | "%" as op, a, Const(n)):
            found = _find_digits(a, extents)
            if found is None:
                return None
            edge = found.low * int(n)
            if edge >= found.high:
                return found if op == "%" else replace(found, low=found.high)
            if op == "//":
                whole = found.high == extents[found.var] or not found.high % edge
                return replace(found, low=edge) if whole else None
            return replace(found, high=edge)
    return None


def _is_told(var: Var, extent: int, told: set[_Digits]) -> bool:
    """Whether parts of a thread's index among these are all of it."""
    reached = 1
    for part in sorted((t for t in told if t.var is var), key=lambda t: t.low):
        if part.low <= reached:
            reached = max(reached, part.high)
    return reached >= extent


def _told_apart(a: _Form, b: _Form) -> set[_Digits]:
    """The parts of thread indices that are equal wherever two indices are equal.

    Like digits of a number: a coefficient that is greater than all that smaller ones add up to
    tells how far apart its variables are.
    """
    if (a.block, a.grid) != (b.block, b.grid):
        return set()
    digits: list[tuple[int, int, _Digits | None]] = [
        (abs(c), part.extent, part) for part, c in a.block.items()
    ]
    for step in {*a.loops, *b.loops}:
        digits.append((step, max(a.loops.get(step, 1), b.loops.get(step, 1)), None))
    found: set[_Digits] = set()
    span = abs(a.constant - b.constant)
    for coefficient, extent, part in sorted(digits, key=lambda digit: digit[0]):
        if part is not None and coefficient > span:
            found.add(part)
        span += coefficient * (extent - 1)
    return found if span < 2**62 else set()


def _in_other_copies(a: _Access, b: _Access) -> bool:
    """Whether two accesses of one iteration go to different copies of a buffer: their indices are
    different remainders of the same number, as ``b[(k + 1) % 3]`` and ``b[k % 3]``."""
    for one, other in zip(a.indices, b.indices, strict=True):
        match one, other:
            case Binary("%", x, Const(n)), Binary("%", y, Const(m)) if n == m:
                distance = affine(x - y)
                if not distance.terms and distance.constant % n:
                    return True
    return False


def _pinned(guards: tuple[Expr, ...]) -> set[Var]:
    """Thread indices that a guard fixes to 0."""
    found: set[Var] = set()
    for guard in guards:
        match guard:
            case Binary("==", Var() as var, Const(0)):
                found.add(var)
    return found


def _bound(var: Var, extent: int, guards: tuple[Expr, ...]) -> int:
    """How many values of a thread index are within guards."""
    for guard in guards:
        match guard:
            case Binary("<", Var() as found, Const(most)) if found is var:
                extent = min(extent, int(most))
    return extent


def _dimensions(use: _Access) -> list[tuple[Expr, int]]:
    return list(zip(use.indices, use.box, strict=True))


def _flat(use: _Access) -> list[tuple[Expr, int]]:
    """The place in the buffer as one index."""
    strides = use.buffer.strides
    total: Expr = Const(0)
    for index, stride in zip(use.indices, strides, strict=True):
        total = total + index * stride
    size = 1 + sum((n - 1) * stride for n, stride in zip(use.box, strides, strict=True))
    return [(total, size)]


def _accesses(
    stmt: T.Stmt, guards: tuple[Expr, ...], loops: Mapping[Var, int]
) -> Iterator[_Access]:
    """What a single statement touches."""
    match stmt:
        case T.Store(buffer, indices, value):
            yield _Access(buffer, indices, (1,) * len(indices), True, guards, loops)
            for expr in (*indices, value, *guards):
                for node in walk(expr):
                    if isinstance(node, Read):
                        box = (1,) * len(node.indices)
                        yield _Access(node.source, node.indices, box, False, guards, loops)
        case T.TensorCall(intrinsic, variant, output, inputs):
            shapes = [t.shape for t in (intrinsic.behaviour, *intrinsic.operands)]
            regions = [(output, shapes[0], True), *zip(inputs, shapes[1:], [False] * len(inputs))]  # noqa: B905
            if variant == "update":
                regions.append((output, shapes[0], False))
            for region, shape, writes in regions:
                box = (1,) * (len(region.start) - len(shape)) + shape
                together = bool(intrinsic.collective)
                awaited = writes and isinstance(intrinsic, BulkIntrin)
                yield _Access(
                    region.buffer, region.start, box, writes, guards, loops, together, awaited
                )
