"""Buffers that are used one after the other share memory.

::

    allocate a: a = f(x)                  allocate a: a = f(x)
      allocate b: b = g(a)        ->        allocate b: b = g(a)
        allocate c: c = h(b)                  a = h(b)
          y = c                                 y = a

A buffer takes the place of an earlier one of its shape, type and memory that no statement reads any
more; or of one whose elements are read for the last time where its own are written, each for the
element in its place. It is for long chains of small steps, such as Newton's.
"""

from __future__ import annotations

from dataclasses import replace

from ...te.expr import Expr, Read, rewrite, walk
from .. import ir as T
from ..printer import expr_text


def share_buffers(func: T.PrimFunc, scope: str, in_place: bool = False) -> T.PrimFunc:
    """Let buffers of a memory share entries where they live one after the other, within each
    sequence of statements that they are allocated in. Double buffers keep theirs. With
    ``in_place``, elements may replace those that they are made of."""
    return replace(func, body=_visit(func.body, scope, in_place))


def _visit(stmt: T.Stmt, scope: str, in_place: bool) -> T.Stmt:
    if isinstance(stmt, T.Seq | T.Allocate):
        allocated, stmts = T.hoist(stmt)
        visited = [_visit(s, scope, in_place) for s in stmts]
        return _shared(allocated, visited, scope, in_place)
    return T.map_parts(stmt, lambda part: _visit(part, scope, in_place))


def _shared(allocated: list[T.Allocate], stmts: list[T.Stmt], scope: str, in_place: bool) -> T.Stmt:
    """The sequence with fewer buffers."""
    used = [T.used_buffers(s) for s in stmts]
    last = {b: index for index, buffers in enumerate(used) for b in buffers}
    mine = {
        a.buffer for a in allocated
        if a.buffer.scope == scope and not a.double and a.stages == 1
    }  # fmt: skip
    places: dict[T.Buffer, T.Buffer] = {}
    free: list[T.Buffer] = []
    for index, buffers in enumerate(used):
        for buffer in buffers:
            if buffer not in mine or buffer in places:
                continue
            found = next((f for f in free if _alike(f, buffer)), None)
            if found is not None:
                free.remove(found)
            ending = [b for b in buffers if in_place and b in places and last[b] == index]
            replaced = (
                b for b in ending if _alike(b, buffer) and _replaces(stmts[index], b, buffer)
            )
            if found is None and (own := next(replaced, None)) is not None:
                found = places[own]
                last[own] = len(stmts)
            places[buffer] = found or buffer
        free += [places[b] for b in buffers if b in mine and last[b] == index]
    body = T.seq([_renamed(s, places) for s in stmts])
    return T.allocated([a for a in allocated if places.get(a.buffer, a.buffer) is a.buffer], body)


def _alike(one: T.Buffer, other: T.Buffer) -> bool:
    """Whether a buffer has the shape and type of another one of its memory."""
    return (one.shape, one.dtype, one.strides) == (other.shape, other.dtype, other.strides)


def _replaces(stmt: T.Stmt, read: T.Buffer, written: T.Buffer) -> bool:
    """Whether a statement reads of a buffer only the element in the place that it writes."""
    stores = [inner for inner in T.walk_stmt(stmt) if isinstance(inner, T.Store | T.TensorCall)]
    match stores:
        case [T.Store(buffer, indices, value)] if buffer is written:
            texts = [*map(expr_text, indices)]
            return all(
                [*map(expr_text, node.indices)] == texts
                for node in walk(value) if isinstance(node, Read) and node.source is read
            )  # fmt: skip
    return False


def _renamed(stmt: T.Stmt, places: dict[T.Buffer, T.Buffer]) -> T.Stmt:
    """The statement with other buffers."""

    def on_expr(expr: Expr) -> Expr:
        def leaf(node: Expr) -> Expr | None:
            if isinstance(node, Read) and node.source in places:
                return Read(places[node.source], tuple(map(on_expr, node.indices)))
            return None

        return rewrite(expr, leaf)

    return T.map_stmt(stmt, on_expr, lambda buffer: places.get(buffer, buffer))
