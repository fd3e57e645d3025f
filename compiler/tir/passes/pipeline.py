"""Buffers that a kernel fills ahead of the iterations that read them.

::

    for k in n:                               allocate s[3, ..]
      allocate s[..], 3 stages                for j in 2: s[j] = x[j]; copies started
      s = x[k]                                copies arrived but 1; barrier
      use(s)                          ->      for k in n:
                                                if k + 2 < n: s[(k + 2) % 3] = x[k + 2]
                                                copies started
                                                use(s[k % 3])
                                                copies arrived but 1; barrier

Boxes that a copy engine brings (``passes/bulk.py``) set a signal for each buffer when they arrive:
its phases are the rounds of the buffers. Where asynchronous products alone read them, a buffer is
filled again at the end of the iteration behind the one that read it, so that its products may go on
until then (``passes/asynchronous.py``).

A copy that is asynchronous (its loop has the pragma "async") is under way until ``copies arrived``
covers its group. A buffer of one stage that is filled so is waited for at once, with a barrier.
Other buffers keep their barriers to ``passes/barriers.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...te.errors import ScheduleError
from ...te.expr import Const, Expr, Read, Var, substitute, walk
from ..ir import (
    Allocate,
    Barrier,
    Buffer,
    CopiesArrived,
    CopiesStarted,
    For,
    If,
    Launch,
    PrimFunc,
    Region,
    Seq,
    SignalArrived,
    SignalExpects,
    SignalsReady,
    Stmt,
    index_copies,
    map_stmt,
    seq,
    stored_buffers,
    walk_stmt,
)
from .asynchronous import is_product
from .bulk import SIGNAL, bulk_call, is_bulk

#: The pragma of loops whose stores are asynchronous copies.
ASYNC = ("async", True)


def pipeline_loops(func: PrimFunc) -> PrimFunc:
    """Apply the pass to every launch.

    Raises
    ------
    ScheduleError
        Where buffers of one loop have different numbers of stages, or are filled from what the loop
        computes.
    """

    def on_stmt(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Launch):
            return None
        return replace(stmt, body=_visit(stmt.body, None, stmt.name))

    return replace(func, body=map_stmt(func.body, lambda expr: expr, on_stmt=on_stmt))


def _visit(stmt: Stmt, loop: For | None, name: str) -> Stmt:
    """The statement; ``loop`` is the loop whose whole body it is."""
    match stmt:
        case For():
            body = _visit(stmt.body, stmt, name)
            return body if body is not stmt.body and _holds(body, stmt) else replace(
                stmt, body=body
            )  # fmt: skip
        case Allocate():
            allocated, rest = _flat(stmt)
            ahead = [a for a in allocated if a.stages > 1 or _filled_async(a.buffer, rest)]
            if not ahead:
                return replace(stmt, body=_visit(stmt.body, None, name))
            inner = seq([_visit(s, None, name) for s in rest])
            rest = list(inner.stmts) if isinstance(inner, Seq) else [inner]
            return _pipelined(loop, allocated, ahead, rest, name)
        case Seq(stmts):
            return seq([_visit(s, None, name) for s in stmts])
        case If():
            return replace(stmt, body=_visit(stmt.body, None, name))
    return stmt


def _holds(body: Stmt, loop: For) -> bool:
    """Whether a body has the loop inside, in its new form."""
    return any(isinstance(s, For) and s.var is loop.var for s in walk_stmt(body))


def _flat(stmt: Stmt) -> tuple[list[Allocate], list[Stmt]]:
    """The buffers that are allocated at the beginning of a statement, and the statements behind."""
    match stmt:
        case Allocate(body=body):
            inner, rest = _flat(body)
            return [stmt, *inner], rest
        case Seq(stmts):
            parts = [_flat(s) for s in stmts]
            return [a for found, _ in parts for a in found], [s for _, r in parts for s in r]
    return [], [stmt]


def _filled_async(buffer: Buffer, stmts: Sequence[Stmt]) -> bool:
    loops = [s for stmt in stmts for s in walk_stmt(stmt)
             if isinstance(s, For) and (ASYNC in s.pragmas or is_bulk(s))]  # fmt: skip
    return any(buffer in stored_buffers(loop) for loop in loops)


def _pipelined(
    loop: For | None, allocated: list[Allocate], ahead: list[Allocate], stmts: list[Stmt], name: str
) -> Stmt:
    buffers = {a.buffer for a in ahead}
    fills = [s for s in stmts if stored_buffers(s) and stored_buffers(s) <= buffers]
    rest = [s for s in stmts if s not in fills]
    _check(fills, rest, ahead, name)
    stages = min(ahead[0].stages, loop.extent if loop is not None else 1)
    filling = _Filling(name, fills, stages, Const(0) if loop is None else loop.var)
    if stages == 1 or loop is None:
        arrived = [*filling.started, *filling.arrived(0), Barrier()] if filling.has_copies else []
        waits = [*arrived, *filling.signalled(Const(0))]
        inside = seq([*filling.brought(seq(fills), Const(0)), *waits, *rest])
        body = _allocated([replace(a, stages=1) for a in allocated], inside)
        if loop is None or filling.signals is None:
            return filling.ready(body)
        return filling.ready(replace(loop, body=body))
    kept = [a for a in allocated if a.buffer not in buffers]
    copies = {b: replace(b, shape=(stages, *b.shape)) for b in buffers}

    def filled(k: Expr) -> list[Stmt]:
        at = index_copies(_renamed(seq(fills), {loop.var: k}), copies, k % stages)
        return filling.brought(at, k % stages)

    first = Var(f"{loop.var.name}.first")
    begin = seq([*filled(first if stages > 2 else Const(0)), *filling.started])
    if stages > 2:
        begin = For(first, stages - 1, "serial", begin)
    arrived = filling.arrived(stages - 2)
    later = loop.var + (stages - 1)
    used = index_copies(_allocated(kept, seq(rest)), copies, loop.var % stages)
    guarded = [If(later < loop.extent, s) for s in filled(later)]
    waits = [*filling.started, *filling.signalled(loop.var % stages)]
    if not filling.has_copies and any(map(is_product, walk_stmt(used))):
        order = [*waits, used, Barrier(), *guarded]
    else:
        order = [*guarded, *waits, used, *arrived, Barrier()]
    again = replace(loop, body=seq(order))
    made = [Allocate(copies[a.buffer], Seq(())) for a in ahead]
    ended = [*arrived, Barrier()] if arrived else []
    return filling.ready(_allocated(made, seq([begin, *ended, again])))


class _Filling:
    """How the buffers of a loop are filled: by threads, by the copy engine, or by both. ``step`` is
    the iteration that reads."""

    def __init__(self, kernel: str, fills: Sequence[Stmt], stages: int, step: Expr):
        self.kernel, self.stages, self.step = kernel, stages, step
        bulk = [s for s in fills if is_bulk(s)]
        self.has_copies = len(bulk) < len(fills)
        self.signals: Buffer | None = None
        self.guards: list[Expr] = []
        if bulk:
            self.signals = Buffer("arrived", (stages,), SIGNAL, "shared")
            self.guards, _ = bulk_call(bulk[0], Region(self.signals, (Const(0),)), kernel)

    @property
    def started(self) -> list[Stmt]:
        """What closes a group of copies of threads."""
        return [CopiesStarted()] if self.has_copies else []

    def arrived(self, but: int) -> list[Stmt]:
        """The wait for all but so many groups of copies of threads."""
        return [CopiesArrived(but)] if self.has_copies else []

    def signalled(self, slot: Expr) -> list[Stmt]:
        """The wait for what the copy engine brings for this iteration."""
        if self.signals is None:
            return []
        return [SignalArrived(self.signals, slot, self.step // self.stages % 2)]

    def brought(self, filling: Stmt, slot: Expr) -> list[Stmt]:
        """The statements that fill buffers, with what the copy engine brings as instructions."""
        parts = filling.stmts if isinstance(filling, Seq) else (filling,)
        if self.signals is None:
            return list(parts)
        signal = Region(self.signals, (slot,))
        calls = [bulk_call(s, signal, self.kernel) for s in parts if is_bulk(s)]
        size = sum(call.intrinsic.size_bytes for _, call in calls)
        expects = _guarded(SignalExpects(self.signals, slot, size), self.guards)
        asked = [_guarded(call, guards) for guards, call in calls]
        return [*(s for s in parts if not is_bulk(s)), expects, *asked]

    def ready(self, body: Stmt) -> Stmt:
        """The statement with its signals, if it has any."""
        if self.signals is None:
            return body
        begin = [_guarded(SignalsReady(self.signals), self.guards), Barrier()]
        return Allocate(self.signals, seq([*begin, body]))


def _guarded(stmt: Stmt, guards: Sequence[Expr]) -> Stmt:
    for guard in reversed(guards):
        stmt = If(guard, stmt)
    return stmt


def _check(
    fills: Sequence[Stmt], rest: Sequence[Stmt], ahead: Sequence[Allocate], name: str
) -> None:
    buffers = ahead[0].buffer.name, ahead[-1].buffer.name
    if len({a.stages for a in ahead}) > 1:
        raise ScheduleError(
            f"kernel {name}: buffers {buffers[0]} and {buffers[1]} of one loop have different "
            "numbers of stages; expected the same"
        )
    computed = {b for s in rest for b in stored_buffers(s)}
    for stmt in fills:
        found = [e for s in walk_stmt(stmt) for e in _reads(s) if e.source in computed]
        if found:
            raise ScheduleError(
                f"kernel {name}: {buffers[0]} is filled ahead from {found[0].source.name}, which "
                "the same loop computes"
            )


def _reads(stmt: Stmt) -> list[Read]:
    found: list[Read] = []

    def on_expr(expr: Expr) -> Expr:
        found.extend(node for node in walk(expr) if isinstance(node, Read))
        return expr

    map_stmt(stmt, on_expr)
    return found


def _renamed(stmt: Stmt, values: dict[Var, Expr]) -> Stmt:
    """A copy of a statement with loops of its own, and these values of outer variables."""

    def on_stmt(inner: Stmt) -> Stmt | None:
        if not isinstance(inner, For):
            return None
        fresh = Var(inner.var.name)
        return replace(inner, var=fresh, body=_renamed(inner.body, values | {inner.var: fresh}))

    return map_stmt(stmt, lambda expr: substitute(expr, values), on_stmt=on_stmt)


def _allocated(allocated: Sequence[Allocate], body: Stmt) -> Stmt:
    for outer in reversed(allocated):
        body = replace(outer, body=body)
    return body
