"""Virtual threads: interleave the iterations of ``vthread`` loops into one stream.

::

    vthread for v in 2:                 allocate b[2, n]
      allocate b[n]                     for k:
      for k: load(b); gemm(b)     ->      load(b[0]); gemm(b[0])
                                          load(b[1]); gemm(b[1])

Every buffer allocated inside gets one copy per thread (a new leading dimension). Loops around
several statements are shared by the threads, which take turns inside them: each executes all
statements up to the next shared loop at once. So an instruction of one thread in a unit's queue
never waits behind an instruction that another thread cannot execute yet. Thread-dependent guards
move onto the statements that they guard.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ...te.expr import Const, Expr, Var, substitute
from ..ir import (
    Allocate,
    Buffer,
    For,
    If,
    PrimFunc,
    Seq,
    Stmt,
    index_copies,
    map_stmt,
    seq,
    used_buffers,
    walk_stmt,
)


def interleave_vthreads(func: PrimFunc, serial: Collection[str] = ()) -> PrimFunc:
    """Replace all ``vthread`` loops; other statements stay as they are.

    ``serial`` names memories that one unit alone reads and writes, in order. In them, a buffer
    that lives within one thread's turn has no copies: the threads use it one after the other.
    """
    return replace(func, body=_visit(func.body, serial))


def _visit(stmt: Stmt, serial: Collection[str]) -> Stmt:
    match stmt:
        case For(kind="vthread"):
            body = _visit(stmt.body, serial)
            return _Interleaver(stmt.var, stmt.extent, serial).spread(body, [])
        case For() | If() | Allocate():
            return replace(stmt, body=_visit(stmt.body, serial))
        case Seq(stmts):
            return seq([_visit(s, serial) for s in stmts])
    return stmt


class _Interleaver:
    """Spreads one virtual thread loop over its body."""

    def __init__(self, var: Var, extent: int, serial: Collection[str]):
        self.var, self.extent, self.serial = var, extent, serial
        self.copies: dict[Buffer, Buffer] = {}

    def spread(self, stmt: Stmt, guards: list[Expr]) -> Stmt:
        """The statement for all threads; ``guards`` depend on the thread."""
        if not any(_is_shared_loop(s) for s in walk_stmt(stmt)):
            return self.turns(stmt, guards)
        match stmt:
            case Allocate(buffer=buffer, body=body):
                nearer = _around_its_uses(stmt) if buffer.scope in self.serial else stmt
                if nearer is not stmt:
                    return self.spread(nearer, guards)
                return Allocate(self.copy(buffer), self.spread(body, guards))
            case If():
                return self.spread(stmt.body, [*guards, stmt.cond])
            case For():
                return replace(stmt, body=self.spread(stmt.body, guards))
        assert isinstance(stmt, Seq)
        parts: list[Stmt] = []
        straight: list[Stmt] = []
        for part in stmt.stmts:
            if any(_is_shared_loop(s) for s in walk_stmt(part)):
                parts += [self.turns(seq(straight), guards)] if straight else []
                parts.append(self.spread(part, guards))
                straight = []
            else:
                straight.append(part)
        return seq(parts + ([self.turns(seq(straight), guards)] if straight else []))

    def turns(self, stmt: Stmt, guards: list[Expr]) -> Stmt:
        """A statement without a shared loop for one thread after the other. The copies of a buffer
        live as long as all threads' statements."""
        buffers: list[Buffer] = []
        stmt = self.hoist(stmt, buffers)
        for guard in reversed(guards):
            stmt = If(guard, stmt)
        whole = seq([self.thread(stmt, Const(v)) for v in range(self.extent)])
        for buffer in reversed(buffers):
            whole = Allocate(buffer, whole)
        return whole

    def hoist(self, stmt: Stmt, buffers: list[Buffer]) -> Stmt:
        """The statement without its allocations; their copies are appended to ``buffers``."""
        match stmt:
            case Allocate(buffer=buffer, body=body):
                own = buffer.scope not in self.serial
                buffers.append(self.copy(buffer) if own else buffer)
                return self.hoist(body, buffers)
            case Seq(stmts):
                return seq([self.hoist(s, buffers) for s in stmts])
            case For() | If():
                return replace(stmt, body=self.hoist(stmt.body, buffers))
        return stmt

    def copy(self, buffer: Buffer) -> Buffer:
        """The buffer with one copy for each thread."""
        self.copies[buffer] = replace(buffer, shape=(self.extent, *buffer.shape))
        return self.copies[buffer]

    def thread(self, stmt: Stmt, index: Const) -> Stmt:
        """One thread's copy of a statement, with loop variables of its own."""
        values: dict[Var, Expr] = {self.var: index}

        def renamed(node: Stmt) -> Stmt | None:
            if not isinstance(node, For):
                return None
            var = values[node.var] = Var(node.var.name)
            return replace(node, var=var, body=copied(node.body))

        def copied(node: Stmt) -> Stmt:
            return map_stmt(node, lambda expr: substitute(expr, values), on_stmt=renamed)

        return index_copies(copied(stmt), self.copies, index)


def _around_its_uses(allocate: Allocate) -> Stmt:
    """The statement with the allocation around those statements alone that use the buffer; itself
    where these are all."""
    buffer, body = allocate.buffer, allocate.body
    match body:
        case Allocate():
            outside = replace(allocate, body=body.body)
            nearer = _around_its_uses(outside)
            return allocate if nearer is outside else replace(body, body=nearer)
        case Seq(stmts):
            using = [place for place, stmt in enumerate(stmts) if buffer in used_buffers(stmt)]
            if using and using[-1] - using[0] + 1 < len(stmts):
                first, last = using[0], using[-1] + 1
                inner = replace(allocate, body=seq(list(stmts[first:last])))
                return seq([*stmts[:first], inner, *stmts[last:]])
    return allocate


def _is_shared_loop(stmt: Stmt) -> bool:
    """Whether a loop holds several statements, so that threads take turns inside it. An unrolled
    loop is not shared: it will become a row of statements."""
    return (
        isinstance(stmt, For)
        and stmt.kind != "unrolled"
        and any(isinstance(s, Seq | Allocate) for s in walk_stmt(stmt.body))
    )
