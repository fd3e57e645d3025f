"""Loops that are vectorized, as single accesses of 4, 8 or 16 bytes where the layout allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...te import expr as E
from ...te.affine import affine
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
    source: E.Read | None
    exists: E.Expr | None
    guard: E.Expr | None


def find_vector(loop: For) -> Vector | None:
    """The store of a vectorized loop at once; None where its elements are not side by side, or may
    begin between multiples of their size."""
    store, guard = loop.body, None
    while isinstance(store, If):
        cond = _of_all(store.cond, loop)
        guard = cond if guard is None else E.binary("&", guard, cond)
        store = store.body
    if not isinstance(store, Store) or (guard is not None and _moves(guard, loop.var)):
        return None
    size = loop.extent * E.bits_of(store.buffer.dtype) // 8 if store.buffer.dtype != "bool" else 0
    if size not in VECTORS or not _is_whole(store.buffer, store.indices, loop):
        return None
    exists, value = E.or_zero(store.value)
    exists = None if exists is None else _of_all(exists, loop)
    is_sure = exists is None or not _moves(exists, loop.var)
    if isinstance(value, E.Read) and is_sure and _is_whole(value.source, value.indices, loop):
        return Vector(store, size, value, exists, guard)
    if store.buffer.scope != "global":
        return None
    return Vector(store, size, None, None, guard)


def find_copy(store: Store) -> Vector | None:
    """A store of one element of 4 or 8 bytes as a copy; None where it stores anything else."""
    size = E.bits_of(store.buffer.dtype) // 8 if store.buffer.dtype != "bool" else 0
    exists, value = E.or_zero(store.value)
    if size not in VECTORS or not isinstance(value, E.Read):
        return None
    return Vector(store, size, value, exists, None)


def find_loads(vector: Vector, loop: For) -> list[E.Read]:
    """What a computed vector reads in any case, elements side by side, each once."""
    found: list[E.Read] = []

    def visit(expr: E.Expr) -> None:
        match expr:
            case E.Select(cond):
                visit(cond)
                return
            case E.Read(source, indices):
                size = loop.extent * E.bits_of(source.dtype) // 8
                is_vector = size in VECTORS and source.dtype != "bool"
                if is_vector and _is_whole(source, indices, loop) and expr not in found:
                    found.append(expr)
        for child in E.children(expr):
            visit(child)

    if vector.source is None:
        visit(vector.store.value)
    return [read for read in found if read.source.scope == "global"]


def _is_whole(buffer: Buffer, indices: Sequence[E.Expr], loop: For) -> bool:
    """Whether a loop goes through elements side by side, of which the first one is aligned."""
    if buffer.scope not in _ALIGNED:
        return False
    total: E.Expr = E.Const(0)
    for index, stride in zip(indices, buffer.strides, strict=True):
        if index.dtype != "int32":
            return False
        total = total + index * stride
    form = affine(total)
    steps = form.coefficients
    if steps.pop(loop.var, 0) != 1 or any(_moves(term, loop.var) for term in steps):
        return False
    return not any(n % loop.extent for n in (form.constant, *steps.values()))


def _of_all(cond: E.Expr, loop: For) -> E.Expr:
    """A condition without the loop's variable, where all iterations or none fulfil it: bounds that
    are multiples of the loop's extent."""
    match cond:
        case E.Binary("&", a, b):
            return E.binary("&", _of_all(a, loop), _of_all(b, loop))
        case E.Binary("<", a, b) if a.dtype == "int32":
            form = affine(b - a)
            steps = form.coefficients
            whole = steps.pop(loop.var, 0) == -1 and not any(_moves(t, loop.var) for t in steps)
            if whole and not any(n % loop.extent for n in (form.constant, *steps.values())):
                return E.substitute(cond, {loop.var: E.Const(0)})
    return cond


def _moves(term: E.Expr, var: E.Var) -> bool:
    return any(node is var for node in E.walk(term))
