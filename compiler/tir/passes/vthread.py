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

from ...te.expr import Const, Expr, Var
from .. import ir as T


def interleave_vthreads(func: T.PrimFunc, serial: Collection[str] = ()) -> T.PrimFunc:
    """Replace all ``vthread`` loops; other statements stay as they are.

    ``serial`` names memories that one unit alone reads and writes, in order. In them, a buffer
    that lives within one thread's turn has no copies: the threads use it one after the other.
    """
    return replace(func, body=_visit(func.body, serial))


def _visit(stmt: T.Stmt, serial: Collection[str]) -> T.Stmt:
    if isinstance(stmt, T.For) and stmt.kind == "vthread":
        body = _visit(stmt.body, serial)
        return _Interleaver(stmt.var, stmt.extent, serial).spread(body, [])
    return T.map_parts(stmt, lambda part: _visit(part, serial))


class _Interleaver:
    """Spreads one virtual thread loop over its body."""

    def __init__(self, var: Var, extent: int, serial: Collection[str]):
        self.var, self.extent, self.serial = var, extent, serial
        self.copies: dict[T.Buffer, T.Buffer] = {}

    def spread(self, stmt: T.Stmt, guards: list[Expr]) -> T.Stmt:
        """The statement for all threads; ``guards`` depend on the thread."""
        if not any(_is_shared_loop(s) for s in T.walk_stmt(stmt)):
            return self.turns(stmt, guards)
        match stmt:
            case T.Allocate(buffer=buffer, body=body):
                nearer = _around_its_uses(stmt) if buffer.scope in self.serial else stmt
                if nearer is not stmt:
                    return self.spread(nearer, guards)
                return T.Allocate(self.copy(buffer), self.spread(body, guards))
            case T.If():
                return self.spread(stmt.body, [*guards, stmt.cond])
            case T.For():
                return replace(stmt, body=self.spread(stmt.body, guards))
        assert isinstance(stmt, T.Seq)
        parts: list[T.Stmt] = []
        straight: list[T.Stmt] = []
        for part in stmt.stmts:
            if any(_is_shared_loop(s) for s in T.walk_stmt(part)):
                parts += [self.turns(T.seq(straight), guards)] if straight else []
                parts.append(self.spread(part, guards))
                straight = []
            else:
                straight.append(part)
        return T.seq(parts + ([self.turns(T.seq(straight), guards)] if straight else []))

    def turns(self, stmt: T.Stmt, guards: list[Expr]) -> T.Stmt:
        """A statement without a shared loop for one thread after the other. The copies of a buffer
        live as long as all threads' statements."""
        buffers: list[T.Buffer] = []
        stmt = T.guarded(self.hoist(stmt, buffers), guards)
        whole = T.seq([self.thread(stmt, Const(v)) for v in range(self.extent)])
        for buffer in reversed(buffers):
            whole = T.Allocate(buffer, whole)
        return whole

    def hoist(self, stmt: T.Stmt, buffers: list[T.Buffer]) -> T.Stmt:
        """The statement without its allocations; their copies are appended to ``buffers``."""
        if isinstance(stmt, T.Allocate):
            own = stmt.buffer.scope not in self.serial
            buffers.append(self.copy(stmt.buffer) if own else stmt.buffer)
            return self.hoist(stmt.body, buffers)
        return T.map_parts(stmt, lambda part: self.hoist(part, buffers))

    def copy(self, buffer: T.Buffer) -> T.Buffer:
        """The buffer with one copy for each thread."""
        self.copies[buffer] = replace(buffer, shape=(self.extent, *buffer.shape))
        return self.copies[buffer]

    def thread(self, stmt: T.Stmt, index: Const) -> T.Stmt:
        """One thread's copy of a statement, with loop variables of its own."""
        return T.index_copies(T.renamed(stmt, {self.var: index}), self.copies, index)


def _around_its_uses(allocate: T.Allocate) -> T.Stmt:
    """The statement with the allocation around those statements alone that use the buffer; itself
    where these are all."""
    buffer, body = allocate.buffer, allocate.body
    match body:
        case T.Allocate():
            outside = replace(allocate, body=body.body)
            nearer = _around_its_uses(outside)
            return allocate if nearer is outside else replace(body, body=nearer)
        case T.Seq(stmts):
            using = [place for place, stmt in enumerate(stmts) if buffer in T.used_buffers(stmt)]
            if using and using[-1] - using[0] + 1 < len(stmts):
                first, last = using[0], using[-1] + 1
                inner = replace(allocate, body=T.seq(list(stmts[first:last])))
                return T.seq([*stmts[:first], inner, *stmts[last:]])
    return allocate


def _is_shared_loop(stmt: T.Stmt) -> bool:
    """Whether a loop holds several statements, so that threads take turns inside it. An unrolled
    loop is not shared: it will become a row of statements."""
    return (
        isinstance(stmt, T.For)
        and stmt.kind != "unrolled"
        and any(isinstance(s, T.Seq | T.Allocate) for s in T.walk_stmt(stmt.body))
    )
