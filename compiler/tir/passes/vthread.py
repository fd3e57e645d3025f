"""Virtual threads: interleave the iterations of ``vthread`` loops, statement by statement, into one
stream.

::

    vthread for v in 2:                 allocate b[2, n]
      allocate b[n]                     for k: load(b[0]); load(b[1])
      for k: load(b); gemm(b)     ->           gemm(b[0]); gemm(b[1])

Every buffer allocated inside gets one copy per thread (a new leading dimension). Loops around
several statements are shared by the threads; a nest around a single statement is replicated.
Thread-dependent guards move onto the statements that they guard.
"""

from __future__ import annotations

from dataclasses import replace

from ...te.expr import Const, Expr, Read, Var, rewrite, substitute
from ..ir import (
    Allocate,
    Buffer,
    For,
    If,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
    TensorCall,
    map_stmt,
    seq,
    walk_stmt,
)


def interleave_vthreads(func: PrimFunc) -> PrimFunc:
    """Replace all ``vthread`` loops; other statements stay as they are."""
    return replace(func, body=_visit(func.body))


def _visit(stmt: Stmt) -> Stmt:
    match stmt:
        case For(kind="vthread"):
            return _Interleaver(stmt.var, stmt.extent).spread(_visit(stmt.body), [])
        case For() | If() | Allocate():
            return replace(stmt, body=_visit(stmt.body))
        case Seq(stmts):
            return seq([_visit(s) for s in stmts])
    return stmt


class _Interleaver:
    """Spreads one virtual thread loop over its body."""

    def __init__(self, var: Var, extent: int):
        self.var, self.extent = var, extent
        self.copies: dict[Buffer, Buffer] = {}

    def spread(self, stmt: Stmt, guards: list[Expr]) -> Stmt:
        """The statement for all threads, thread by thread for each innermost statement; ``guards``
        depend on the thread.
        """
        if isinstance(stmt, Allocate):
            shape = (self.extent, *stmt.buffer.shape)
            self.copies[stmt.buffer] = Buffer(
                stmt.buffer.name, shape, stmt.buffer.dtype, stmt.buffer.scope
            )
            return Allocate(self.copies[stmt.buffer], self.spread(stmt.body, guards))
        if isinstance(stmt, Seq):
            return seq([self.spread(s, guards) for s in stmt.stmts])
        if _is_shared(stmt):
            if isinstance(stmt, If):
                return self.spread(stmt.body, [*guards, stmt.cond])
            assert isinstance(stmt, For)
            return replace(stmt, body=self.spread(stmt.body, guards))
        for guard in reversed(guards):
            stmt = If(guard, stmt)
        return seq([self.thread(stmt, Const(v)) for v in range(self.extent)])

    def thread(self, stmt: Stmt, index: Const) -> Stmt:
        """One thread's copy of a statement, with loop variables of its own."""
        values: dict[Var, Expr] = {self.var: index}
        values |= {s.var: Var(s.var.name) for s in walk_stmt(stmt) if isinstance(s, For)}

        def on_expr(expr: Expr) -> Expr:
            def leaf(node: Expr) -> Expr | None:
                if isinstance(node, Read) and node.source in self.copies:
                    return Read(self.copies[node.source], (index, *node.indices))
                return None

            return rewrite(substitute(expr, values), leaf)

        renamed = map_stmt(stmt, on_expr)
        return self._retarget(renamed, index, values)

    def _retarget(self, stmt: Stmt, index: Const, values: dict[Var, Expr]) -> Stmt:
        def region(r: Region) -> Region:
            if r.buffer in self.copies:
                return Region(self.copies[r.buffer], (index, *r.start))
            return r

        match stmt:
            case For():
                var = values.get(stmt.var, stmt.var)
                assert isinstance(var, Var)
                return replace(stmt, var=var, body=self._retarget(stmt.body, index, values))
            case If():
                return replace(stmt, body=self._retarget(stmt.body, index, values))
            case Store() if stmt.buffer in self.copies:
                return Store(self.copies[stmt.buffer], (index, *stmt.indices), stmt.value)
            case TensorCall():
                inputs = tuple(region(r) for r in stmt.inputs)
                return replace(stmt, output=region(stmt.output), inputs=inputs)
        return stmt


def _is_shared(stmt: Stmt) -> bool:
    """Whether a loop or guard holds several statements, so that threads take turns inside it."""
    return isinstance(stmt, For | If) and any(
        isinstance(s, Seq | Allocate) for s in walk_stmt(stmt.body)
    )
