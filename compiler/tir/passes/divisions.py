"""Quotients and remainders whose values the extents of loops decide.

::

    for o in 19: for i in 16:                          for o in 19: for i in 16:
      y[o*16 + i] = x[o + i // 16, i % 16]      ->       y[o*16 + i] = x[o, i]

So that indices are sums of loops again, which code generators can make vectors of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...te.affine import interval, is_of_loops, simplify_index
from ...te.expr import Binary, Const, Expr, rewrite
from ..ir import For, PrimFunc, Stmt, map_stmt

Ranges = Mapping[Expr, tuple[int, int]]


def simplify_divisions(func: PrimFunc) -> PrimFunc:
    """Simplify divisions of sums of loops by constants."""
    return replace(func, body=_visit(func.body, {}))


def _visit(stmt: Stmt, ranges: Ranges) -> Stmt:
    def on_stmt(inner: Stmt) -> Stmt | None:
        if not isinstance(inner, For):
            return None
        inside = {**ranges, inner.var: (0, inner.extent - 1)}
        return replace(inner, body=_visit(inner.body, inside))

    return map_stmt(stmt, lambda expr: _simplified(expr, ranges), on_stmt=on_stmt)


def _simplified(expr: Expr, ranges: Ranges) -> Expr:
    def leaf(node: Expr) -> Expr | None:
        match node:
            case Binary("//" | "%", a, Const(divisor)) if divisor > 0 and is_of_loops(node):
                found = interval(a, ranges)
                if found is not None and found[0] // divisor == found[1] // divisor:
                    quotient = found[0] // divisor
                    value = Const(quotient) if node.op == "//" else a - quotient * divisor
                    return simplify_index(value)
        return None

    return rewrite(expr, leaf)
