"""Peel off the last iteration of a loop where a guard can fail only in that iteration.

::

    for o in 4:                                 for o in 3:
      unrolled for i in 14:                       unrolled for i in 14:
        if o*14 + i < 55: a[o*14 + i] = ...         a[o*14 + i] = ...
                                         ->     unrolled for i in 14:
                                                  if 3*14 + i < 55: a[3*14 + i] = ...

The copies of the unrolled loop then have no guards: in the last iteration, their outcome is known.
The same for guards of a vectorized loop, which in the last iteration becomes shorter, and for
choices between its elements: it then is made of whole vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...te.affine import prove
from ...te.expr import Const, Expr, Select, Var, rewrite, walk
from ..ir import For, If, PrimFunc, Stmt, Store, map_parts, seq, substatements
from .unroll import copy_with

Ranges = Mapping[Expr, tuple[int, int]]


def peel_tails(func: PrimFunc) -> PrimFunc:
    """Peel serial and parallel loops around unrolled or vectorized ones, innermost first."""
    return replace(func, body=_visit(func.body, {}))


def _visit(stmt: Stmt, ranges: Ranges) -> Stmt:
    if not isinstance(stmt, For):
        return map_parts(stmt, lambda part: _visit(part, ranges))
    inside = {**ranges, stmt.var: (0, stmt.extent - 1)}
    loop = replace(stmt, body=_visit(stmt.body, inside))
    if loop.kind not in ("serial", "parallel") or loop.extent < 2:
        return loop
    return _peel(loop, ranges)


def _peel(loop: For, ranges: Ranges) -> Stmt:
    """The loop as it is; or, where guards hold in all iterations but the last, those iterations
    without the guards, and then the last iteration.
    """
    before = {**ranges, loop.var: (0, loop.extent - 2)}
    removable = {cond for cond, inner in _tail_guards(loop) if prove(cond, {**before, **inner})}
    if not removable:
        return loop
    first = _without(loop.body, removable)
    last = _shortened(copy_with(loop.body, {loop.var: Const(loop.extent - 1)}), ranges)
    return seq([replace(loop, extent=loop.extent - 1, body=first), last])


def _shortened(stmt: Stmt, ranges: Ranges) -> Stmt:
    """Vectorized loops without the last lanes, in which their guard never holds."""
    if isinstance(stmt, For) and stmt.kind == "vectorized" and isinstance(stmt.body, If):
        lanes = range(stmt.extent)
        holds = [prove(stmt.body.cond, {**ranges, stmt.var: (lane, lane)}) for lane in lanes]
        count = holds.count(True)
        if count and holds == [True] * count + [False] * (stmt.extent - count):
            return replace(stmt, extent=count, body=stmt.body.body)
    return map_parts(stmt, lambda part: _shortened(part, ranges))


def _tail_guards(loop: For) -> Iterator[tuple[Expr, Ranges]]:
    """Conditions in the loop that depend on it and on an unrolled or vectorized loop inside, or
    that choose an element of a vectorized loop, with the ranges of the loops between."""

    def depends(cond: Expr, inside: frozenset[Var]) -> bool:
        names = {node for node in walk(cond) if isinstance(node, Var)}
        return loop.var in names and bool(names & inside)

    def visit(
        stmt: Stmt, ranges: Ranges, unrolled: frozenset[Var], lanes: frozenset[Var]
    ) -> Iterator[tuple[Expr, Ranges]]:
        match stmt:
            case If(cond) if depends(cond, unrolled | lanes):
                yield cond, ranges
            case Store(_, _, value):
                for node in walk(value):
                    if isinstance(node, Select) and depends(node.cond, lanes):
                        yield node.cond, ranges
            case For(var):
                ranges = {**ranges, var: (0, stmt.extent - 1)}
                unrolled |= {var} if stmt.kind == "unrolled" else set()
                lanes |= {var} if stmt.kind == "vectorized" else set()
        for child in substatements(stmt):
            yield from visit(child, ranges, unrolled, lanes)

    return visit(loop.body, {}, frozenset(), frozenset())


def _without(stmt: Stmt, guards: set[Expr]) -> Stmt:
    match stmt:
        case If(cond) if cond in guards:
            return _without(stmt.body, guards)
        case Store(_, _, value):
            return replace(stmt, value=rewrite(value, lambda node: _chosen(node, guards)))
    return map_parts(stmt, lambda part: _without(part, guards))


def _chosen(node: Expr, guards: set[Expr]) -> Expr | None:
    """What a choice is where its condition holds; None where that is not known."""
    return node.a if isinstance(node, Select) and node.cond in guards else None
