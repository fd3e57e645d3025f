"""Unrolled loops: one copy of the body per iteration.

::

    unrolled for i in 2: a[i] = f(i)      ->      a[0] = f(0); a[1] = f(1)

Loops of more than ``MAX_COPIES`` statements after unrolling stay loops, of the same kind.
"""

from __future__ import annotations

from dataclasses import replace

from ...te.affine import prove
from ...te.expr import Const, Expr, Var, substitute
from ..ir import Allocate, For, If, PrimFunc, Seq, Stmt, map_parts, map_stmt, seq, walk_stmt

#: Most leaf statements that one loop may become.
MAX_COPIES = 32


def unroll_loops(func: PrimFunc) -> PrimFunc:
    """Replace ``unrolled`` loops, innermost first."""
    return replace(func, body=_visit(func.body))


def _visit(stmt: Stmt) -> Stmt:
    match stmt:
        case For(kind="unrolled"):
            body = _visit(stmt.body)
            leaves = sum(not isinstance(s, For | If | Seq | Allocate) for s in walk_stmt(body))
            if leaves * stmt.extent > MAX_COPIES:
                return replace(stmt, body=body)
            return seq([copy_with(body, {stmt.var: Const(i)}) for i in range(stmt.extent)])
    return map_parts(stmt, _visit)


def copy_with(stmt: Stmt, values: dict[Var, Expr]) -> Stmt:
    """A copy of a statement with values in place of variables, and with loop variables of its own.
    Guards whose outcome the values decide are removed."""

    def on_stmt(inner: Stmt) -> Stmt | None:
        match inner:
            case For():
                var = Var(inner.var.name)
                return replace(
                    inner, var=var, body=copy_with(inner.body, values | {inner.var: var})
                )
            case If():
                cond = substitute(inner.cond, values)
                match prove(cond, {}):
                    case True:
                        return copy_with(inner.body, values)
                    case False:
                        return Seq(())
                return If(cond, copy_with(inner.body, values))
        return None

    return map_stmt(stmt, lambda expr: substitute(expr, values), on_stmt=on_stmt)
