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
from ..ir import (
    Allocate,
    Barrier,
    Buffer,
    For,
    If,
    Launch,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    TensorCall,
    map_stmt,
    seq,
)
from .bulk import BulkIntrin
from .launch import ThreadModel


def insert_barriers(func: PrimFunc, model: ThreadModel) -> PrimFunc:
    """Insert the barriers that every launch needs. A kernel of one thread a block needs none."""

    def on_stmt(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Launch) or not stmt.block:
            return None
        return replace(stmt, body=_Barriers(stmt, model).visit(stmt.body, (), {}).stmt)

    return replace(func, body=map_stmt(func.body, lambda expr: expr, on_stmt=on_stmt))


@dataclass(frozen=True, eq=False)
class _Access:
    """An access, the guards around it, and the extents of the loops around it. ``box`` is how many
    elements it touches along each dimension. What threads do ``together``, as one instruction, has
    a guard that the first of them does it; which of them touches which element is not known. What
    the copy engine stores is ``awaited``: its readers wait for a signal."""

    buffer: Buffer
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

    stmt: Stmt
    head: tuple[_Access, ...]
    tail: tuple[_Access, ...]
    waits: bool


class _Barriers:
    """Inserts the barriers of one launch."""

    def __init__(self, launch: Launch, model: ThreadModel):
        self.launch, self.model = launch, model

    def visit(self, stmt: Stmt, guards: tuple[Expr, ...], loops: Mapping[Var, int]) -> _Synced:
        match stmt:
            case Seq(stmts):
                return self.sequence([self.visit(s, guards, loops) for s in stmts])
            case For():
                body = self.visit(stmt.body, guards, {**loops, stmt.var: stmt.extent})
                if stmt.extent > 1 and self.conflict(body.tail, body.head, across=True):
                    again = seq([body.stmt, Barrier()])
                    return _Synced(replace(stmt, body=again), body.head, (), True)
                return replace(body, stmt=replace(stmt, body=body.stmt))
            case Allocate():
                body = self.visit(stmt.body, guards, loops)
                return replace(body, stmt=replace(stmt, body=body.stmt))
            case If(cond, body):
                found = self.visit(body, (*guards, cond), loops)
                assert not found.waits  # guards are on single statements
                return replace(found, stmt=stmt)
            case Barrier():
                return _Synced(stmt, (), (), True)
        if isinstance(stmt, TensorCall):
            together = stmt.intrinsic.collective
            guards += tuple(t.var.equal(Const(0)) for t in self.launch.block if t.axis in together)
        shared = tuple(
            access
            for access in _accesses(stmt, guards, loops)
            if self.model.is_block_shared(access.buffer)
        )
        return _Synced(stmt, shared, shared, False)

    def sequence(self, parts: list[_Synced]) -> _Synced:
        stmts: list[Stmt] = []
        head: tuple[_Access, ...] = ()
        since: tuple[_Access, ...] = ()
        waits = False
        for part in parts:
            if self.conflict(since, part.head):
                stmts.append(Barrier())
                since, waits = (), True
            if not waits:
                head += part.head
            since = part.tail if part.waits else since + part.tail
            waits |= part.waits
            stmts.append(part.stmt)
        return _Synced(seq(stmts) if stmts else Seq(()), head, since, waits)

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
        free = {t.var: t.extent for t in self.launch.block if t.var not in pinned}
        for places in (_dimensions, _flat):
            forms = [
                (self.form(i, a, n, pinned), self.form(j, b, m, pinned))
                for (i, n), (j, m) in zip(places(a), places(b), strict=True)
            ]
            told: set[Expr] = set()
            for one, other in forms:
                if one is not None and other is not None:
                    told |= _told_apart(one, other, free)
            if all(_is_told(var, told) for var, extent in free.items() if extent > 1):
                return True
        return False

    def form(self, index: Expr, access: _Access, box: int, pinned: set[Var]) -> _Form | None:
        """None for an index that is not affine in loops and threads."""
        block, grid = ({t.var for t in ts} for ts in (self.launch.block, self.launch.grid))
        form = affine(index)
        found = _Form({}, {}, {1: box} if box > 1 else {}, form.constant)
        for term, coefficient in form.terms:
            if not isinstance(term, Var):
                if _part_of(term) not in block - pinned:
                    return None
                found.block[term] = coefficient
                continue
            if term in pinned:
                continue
            if term in grid:
                found.grid[term] = coefficient
            elif term in block:
                found.block[term] = coefficient
            else:
                steps = found.loops.get(abs(coefficient), 1)
                found.loops[abs(coefficient)] = steps + access.loops[term] - 1
        return found


@dataclass(frozen=True)
class _Form:
    """An index: coefficients of the block's threads, or of quotients and remainders of them, and of
    the grid's threads; for every coefficient of loops, how many steps they take; a constant."""

    block: dict[Expr, int]
    grid: dict[Var, int]
    loops: dict[int, int]
    constant: int


def _part_of(term: Expr) -> Expr | None:
    """The variable of which a term is the quotient or the remainder by a constant."""
    match term:
        case Binary("//" | "%", Var() as var, Const()):
            return var
    return None


def _extent_of(term: Expr, extents: Mapping[Var, int]) -> int:
    """How many values a thread index, its quotient or its remainder has."""
    match term:
        case Var():
            return extents[term]
        case Binary("//", Var() as var, Const(n)):
            return -(-extents[var] // n)
        case Binary("%", Var() as var, Const(n)):
            return min(extents[var], n)
    raise AssertionError(f"{term!r} is no part of a thread index")


def _is_told(var: Var, told: set[Expr]) -> bool:
    """Whether a thread index is among these, or its quotient and its remainder by a number."""
    quotients = [t for t in told if isinstance(t, Binary) and t.op == "//" and t.a is var]
    return var in told or any(Binary("%", var, q.b, var.dtype) in told for q in quotients)


def _told_apart(a: _Form, b: _Form, extents: Mapping[Var, int]) -> set[Expr]:
    """The thread indices, or parts of them, that are equal wherever two indices are equal.

    Like digits of a number: a coefficient that is greater than all that smaller ones add up to
    tells how far apart its variables are.
    """
    if (a.block, a.grid) != (b.block, b.grid):
        return set()
    digits: list[tuple[int, int, Expr | None]] = [
        (abs(c), _extent_of(term, extents), term) for term, c in a.block.items()
    ]
    for step in {*a.loops, *b.loops}:
        digits.append((step, max(a.loops.get(step, 1), b.loops.get(step, 1)), None))
    found: set[Expr] = set()
    span = abs(a.constant - b.constant)
    for coefficient, extent, var in sorted(digits, key=lambda digit: digit[0]):
        if var is not None and coefficient > span:
            found.add(var)
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


def _accesses(stmt: Stmt, guards: tuple[Expr, ...], loops: Mapping[Var, int]) -> Iterator[_Access]:
    """What a single statement touches."""
    match stmt:
        case Store(buffer, indices, value):
            yield _Access(buffer, indices, (1,) * len(indices), True, guards, loops)
            for expr in (*indices, value, *guards):
                for node in walk(expr):
                    if isinstance(node, Read):
                        box = (1,) * len(node.indices)
                        yield _Access(node.source, node.indices, box, False, guards, loops)
        case TensorCall(intrinsic, variant, output, inputs):
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
