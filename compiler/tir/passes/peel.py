"""Peel off the last iteration of a loop where a guard can fail only in that iteration.

::

    for o in 4:                                 for o in 3:
      unrolled for i in 14:                       unrolled for i in 14:
        if o*14 + i < 55: a[o*14 + i] = ...         a[o*14 + i] = ...
                                         ->     unrolled for i in 14:
                                                  if 3*14 + i < 55: a[3*14 + i] = ...

The copies of the unrolled loop then have no guards: in the last iteration, their outcome is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...te.affine import prove
from ...te.expr import Const, Expr, Var, walk
from ..ir import Allocate, For, If, PrimFunc, Seq, Stmt, seq, substatements
from .unroll import copy_with

Ranges = Mapping[Expr, tuple[int, int]]


def peel_tails(func: PrimFunc) -> PrimFunc:
    """Peel serial and parallel loops around unrolled ones, innermost first."""
    return replace(func, body=_visit(func.body, {}))


def _visit(stmt: Stmt, ranges: Ranges) -> Stmt:
    match stmt:
        case For():
            inside = {**ranges, stmt.var: (0, stmt.extent - 1)}
            loop = replace(stmt, body=_visit(stmt.body, inside))
            if loop.kind not in ("serial", "parallel") or loop.extent < 2:
                return loop
            return _peel(loop, ranges)
        case If() | Allocate():
            return replace(stmt, body=_visit(stmt.body, ranges))
        case Seq(stmts):
            return seq([_visit(s, ranges) for s in stmts])
    return stmt


def _peel(loop: For, ranges: Ranges) -> Stmt:
    """The loop as it is; or, where guards hold in all iterations but the last, those iterations
    without the guards, and then the last iteration.
    """
    before = {**ranges, loop.var: (0, loop.extent - 2)}
    removable = [g for g, inner in _tail_guards(loop) if prove(g.cond, {**before, **inner})]
    if not removable:
        return loop
    first = _without(loop.body, removable)
    last = copy_with(loop.body, {loop.var: Const(loop.extent - 1)})
    return seq([replace(loop, extent=loop.extent - 1, body=first), last])


def _tail_guards(loop: For) -> Iterator[tuple[If, Ranges]]:
    """Guards in the loop that depend on it and on an unrolled loop inside, with the ranges of the
    loops between."""

    def visit(stmt: Stmt, ranges: Ranges, unrolled: frozenset[Var]) -> Iterator[tuple[If, Ranges]]:
        if isinstance(stmt, If):
            names = {node for node in walk(stmt.cond) if isinstance(node, Var)}
            if loop.var in names and names & unrolled:
                yield stmt, ranges
        if isinstance(stmt, For):
            ranges = {**ranges, stmt.var: (0, stmt.extent - 1)}
            unrolled |= {stmt.var} if stmt.kind == "unrolled" else set()
        for child in substatements(stmt):
            yield from visit(child, ranges, unrolled)

    return visit(loop.body, {}, frozenset())


def _without(stmt: Stmt, guards: list[If]) -> Stmt:
    match stmt:
        case If() if any(stmt is guard for guard in guards):
            return _without(stmt.body, guards)
        case For() | If() | Allocate():
            return replace(stmt, body=_without(stmt.body, guards))
        case Seq(stmts):
            return seq([_without(s, guards) for s in stmts])
    return stmt
