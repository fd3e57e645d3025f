"""Loops that are vectorized, as single accesses of 4, 8 or 16 bytes where the layout allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...te.affine import affine
from ...te.expr import (
    Binary,
    Const,
    Expr,
    Read,
    Select,
    Var,
    binary,
    bits_of,
    children,
    or_zero,
    substitute,
    walk,
)
from ...tir.ir import Buffer, For, If, Store
from .warp_functions import VECTORS

#: Memories whose buffers begin at multiples of 16 bytes.
_ALIGNED = ("global", "shared", "local")


@dataclass(frozen=True, eq=False)
class Vector:
    """A loop as one store of ``size`` bytes. Where it copies, ``source`` is what it reads, and
    ``exists``, if there is one, the condition on which that exists; else zeros are stored. It
    happens where ``guard`` holds, if there is one."""

    store: Store
    size: int
    source: Read | None
    exists: Expr | None
    guard: Expr | None


def vector_of(loop: For) -> Vector | None:
    """The store of a vectorized loop at once; None where its elements are not side by side, or may
    begin between multiples of their size."""
    store, guard = loop.body, None
    while isinstance(store, If):
        cond = _of_all(store.cond, loop)
        guard = cond if guard is None else binary("&", guard, cond)
        store = store.body
    if not isinstance(store, Store) or (guard is not None and _moves(guard, loop.var)):
        return None
    size = loop.extent * bits_of(store.buffer.dtype) // 8 if store.buffer.dtype != "bool" else 0
    if size not in VECTORS or not _is_whole(store.buffer, store.indices, loop):
        return None
    exists, value = or_zero(store.value)
    exists = None if exists is None else _of_all(exists, loop)
    is_sure = exists is None or not _moves(exists, loop.var)
    if isinstance(value, Read) and is_sure and _is_whole(value.source, value.indices, loop):
        return Vector(store, size, value, exists, guard)
    if store.buffer.scope != "global":
        return None
    return Vector(store, size, None, None, guard)


def copy_of(store: Store) -> Vector | None:
    """A store of one element of 4 or 8 bytes as a copy; None where it stores anything else."""
    size = bits_of(store.buffer.dtype) // 8 if store.buffer.dtype != "bool" else 0
    exists, value = or_zero(store.value)
    if size not in VECTORS or not isinstance(value, Read):
        return None
    return Vector(store, size, value, exists, None)


def loads_of(vector: Vector, loop: For) -> list[Read]:
    """What a computed vector reads in any case, elements side by side, each once."""
    found: list[Read] = []

    def visit(expr: Expr) -> None:
        match expr:
            case Select(cond):
                visit(cond)
                return
            case Read(source, indices):
                size = loop.extent * bits_of(source.dtype) // 8
                is_vector = size in VECTORS and source.dtype != "bool"
                if is_vector and _is_whole(source, indices, loop) and expr not in found:
                    found.append(expr)
        for child in children(expr):
            visit(child)

    if vector.source is None:
        visit(vector.store.value)
    return [read for read in found if read.source.scope == "global"]


def _is_whole(buffer: Buffer, indices: Sequence[Expr], loop: For) -> bool:
    """Whether a loop goes through elements side by side, of which the first one is aligned."""
    if buffer.scope not in _ALIGNED:
        return False
    total: Expr = Const(0)
    for index, stride in zip(indices, buffer.strides, strict=True):
        if index.dtype != "int32":
            return False
        total = total + index * stride
    form = affine(total)
    steps = form.coefficients
    if steps.pop(loop.var, 0) != 1 or any(_moves(term, loop.var) for term in steps):
        return False
    return not any(n % loop.extent for n in (form.constant, *steps.values()))


def _of_all(cond: Expr, loop: For) -> Expr:
    """A condition without the loop's variable, where all iterations or none fulfil it: bounds that
    are multiples of the loop's extent."""
    match cond:
        case Binary("&", a, b):
            return binary("&", _of_all(a, loop), _of_all(b, loop))
        case Binary("<", a, b) if a.dtype == "int32":
            form = affine(b - a)
            steps = form.coefficients
            whole = steps.pop(loop.var, 0) == -1 and not any(_moves(t, loop.var) for t in steps)
            if whole and not any(n % loop.extent for n in (form.constant, *steps.values())):
                return substitute(cond, {loop.var: Const(0)})
    return cond


def _moves(term: Expr, var: Var) -> bool:
    return any(node is var for node in walk(term))
