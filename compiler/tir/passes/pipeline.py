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
from ...te.expr import Const, Expr, Var
from .. import ir as T
from .asynchronous import is_product
from .bulk import SIGNAL, bulk_call, is_bulk

#: The pragma of loops whose stores are asynchronous copies.
ASYNC = ("async", True)


def pipeline_loops(func: T.PrimFunc) -> T.PrimFunc:
    """Apply the pass to every launch.

    Raises
    ------
    ScheduleError
        Where buffers of one loop have different numbers of stages, or are filled from what the loop
        computes.
    """
    return T.map_launches(func, lambda launch: _visit(launch.body, None, launch.name))


def _visit(stmt: T.Stmt, loop: T.For | None, name: str) -> T.Stmt:
    """The statement; ``loop`` is the loop whose whole body it is."""
    match stmt:
        case T.For():
            body = _visit(stmt.body, stmt, name)
            return body if body is not stmt.body and _holds(body, stmt) else replace(
                stmt, body=body
            )  # fmt: skip
        case T.Allocate():
            allocated, rest = T.hoist(stmt)
            ahead = [a for a in allocated if a.stages > 1 or _filled_async(a.buffer, rest)]
            if not ahead:
                return replace(stmt, body=_visit(stmt.body, None, name))
            inner = T.seq([_visit(s, None, name) for s in rest])
            rest = list(inner.stmts) if isinstance(inner, T.Seq) else [inner]
            return _pipelined(loop, allocated, ahead, rest, name)
    return T.map_parts(stmt, lambda part: _visit(part, None, name))


def _holds(body: T.Stmt, loop: T.For) -> bool:
    """Whether a body has the loop inside, in its new form."""
    return any(isinstance(s, T.For) and s.var is loop.var for s in T.walk_stmt(body))


def _filled_async(buffer: T.Buffer, stmts: Sequence[T.Stmt]) -> bool:
    loops = [s for stmt in stmts for s in T.walk_stmt(stmt)
             if isinstance(s, T.For) and (ASYNC in s.pragmas or is_bulk(s))]  # fmt: skip
    return any(buffer in T.stored_buffers(loop) for loop in loops)


def _pipelined(
    loop: T.For | None,
    allocated: list[T.Allocate],
    ahead: list[T.Allocate],
    stmts: list[T.Stmt],
    name: str,
) -> T.Stmt:
    buffers = {a.buffer for a in ahead}
    fills = [s for s in stmts if T.stored_buffers(s) and T.stored_buffers(s) <= buffers]
    rest = [s for s in stmts if s not in fills]
    _check(fills, rest, ahead, name)
    stages = min(ahead[0].stages, loop.extent if loop is not None else 1)
    filling = _Filling(name, fills, stages, Const(0) if loop is None else loop.var)
    if stages == 1 or loop is None:
        arrived = [*filling.started, *filling.arrived(0), T.Barrier()] if filling.has_copies else []
        waits = [*arrived, *filling.signalled(Const(0))]
        inside = T.seq([*filling.brought(T.seq(fills), Const(0)), *waits, *rest])
        body = T.allocated([replace(a, stages=1) for a in allocated], inside)
        if loop is None or filling.signals is None:
            return filling.ready(body)
        return filling.ready(replace(loop, body=body))
    kept = [a for a in allocated if a.buffer not in buffers]
    copies = {b: replace(b, shape=(stages, *b.shape)) for b in buffers}

    def filled(k: Expr) -> list[T.Stmt]:
        at = T.index_copies(T.renamed(T.seq(fills), {loop.var: k}), copies, k % stages)
        return filling.brought(at, k % stages)

    first = Var(f"{loop.var.name}.first")
    begin = T.seq([*filled(first if stages > 2 else Const(0)), *filling.started])
    if stages > 2:
        begin = T.For(first, stages - 1, "serial", begin)
    arrived = filling.arrived(stages - 2)
    later = loop.var + (stages - 1)
    used = T.index_copies(T.allocated(kept, T.seq(rest)), copies, loop.var % stages)
    guarded = [T.If(later < loop.extent, s) for s in filled(later)]
    waits = [*filling.started, *filling.signalled(loop.var % stages)]
    if not filling.has_copies and any(map(is_product, T.walk_stmt(used))):
        order = [*waits, used, T.Barrier(), *guarded]
    else:
        order = [*guarded, *waits, used, *arrived, T.Barrier()]
    again = replace(loop, body=T.seq(order))
    made = [T.Allocate(copies[a.buffer], T.Seq(())) for a in ahead]
    ended = [*arrived, T.Barrier()] if arrived else []
    return filling.ready(T.allocated(made, T.seq([begin, *ended, again])))


class _Filling:
    """How the buffers of a loop are filled: by threads, by the copy engine, or by both. ``step`` is
    the iteration that reads."""

    def __init__(self, kernel: str, fills: Sequence[T.Stmt], stages: int, step: Expr):
        self.kernel, self.stages, self.step = kernel, stages, step
        bulk = [s for s in fills if is_bulk(s)]
        self.has_copies = len(bulk) < len(fills)
        self.signals: T.Buffer | None = None
        self.guards: list[Expr] = []
        if bulk:
            self.signals = T.Buffer("arrived", (stages,), SIGNAL, "shared")
            self.guards, _ = bulk_call(bulk[0], T.Region(self.signals, (Const(0),)), kernel)

    @property
    def started(self) -> list[T.Stmt]:
        """What closes a group of copies of threads."""
        return [T.CopiesStarted()] if self.has_copies else []

    def arrived(self, but: int) -> list[T.Stmt]:
        """The wait for all but so many groups of copies of threads."""
        return [T.CopiesArrived(but)] if self.has_copies else []

    def signalled(self, slot: Expr) -> list[T.Stmt]:
        """The wait for what the copy engine brings for this iteration."""
        if self.signals is None:
            return []
        return [T.SignalArrived(self.signals, slot, self.step // self.stages % 2)]

    def brought(self, filling: T.Stmt, slot: Expr) -> list[T.Stmt]:
        """The statements that fill buffers, with what the copy engine brings as instructions."""
        parts = filling.stmts if isinstance(filling, T.Seq) else (filling,)
        if self.signals is None:
            return list(parts)
        signal = T.Region(self.signals, (slot,))
        calls = [bulk_call(s, signal, self.kernel) for s in parts if is_bulk(s)]
        size = sum(call.intrinsic.size_bytes for _, call in calls)
        expects = T.guarded(T.SignalExpects(self.signals, slot, size), self.guards)
        asked = [T.guarded(call, guards) for guards, call in calls]
        return [*(s for s in parts if not is_bulk(s)), expects, *asked]

    def ready(self, body: T.Stmt) -> T.Stmt:
        """The statement with its signals, if it has any."""
        if self.signals is None:
            return body
        begin = [T.guarded(T.SignalsReady(self.signals), self.guards), T.Barrier()]
        return T.Allocate(self.signals, T.seq([*begin, body]))


def _check(
    fills: Sequence[T.Stmt], rest: Sequence[T.Stmt], ahead: Sequence[T.Allocate], name: str
) -> None:
    buffers = ahead[0].buffer.name, ahead[-1].buffer.name
    if len({a.stages for a in ahead}) > 1:
        raise ScheduleError(
            f"kernel {name}: buffers {buffers[0]} and {buffers[1]} of one loop have different "
            "numbers of stages; expected the same"
        )
    computed = {b for s in rest for b in T.stored_buffers(s)}
    for stmt in fills:
        found = [read for read in T.find_reads(stmt) if read.source in computed]
        if found:
            raise ScheduleError(
                f"kernel {name}: {buffers[0]} is filled ahead from {found[0].source.name}, which "
                "the same loop computes"
            )
