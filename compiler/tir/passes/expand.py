"""Turn tensor intrinsics back into loops, for a target without the instruction.

::

    gemm.update(acc[i], inp[i], wgt[0])     ->      for o in 2: for k in 2:
                                                      acc[i, o] = acc[i, o] + inp[i, k] * wgt[o, k]
"""

from __future__ import annotations

from dataclasses import replace

from ...te.expr import Const, Expr, Read, Reduce, Var, rewrite, substitute
from ...te.intrinsic import TensorIntrin
from ...te.tensor import Tensor
from ..ir import For, PrimFunc, Region, Stmt, Store, TensorCall, map_stmt


def expand_intrinsics(func: PrimFunc, native: frozenset[TensorIntrin] = frozenset()) -> PrimFunc:
    """Replace every tensor call by the loops of its declared behaviour, except calls of intrinsics
    that are ``native`` to the target."""

    def on_stmt(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, TensorCall) and stmt.intrinsic not in native:
            return expand_call(stmt)
        return None

    return replace(func, body=map_stmt(func.body, lambda expr: expr, on_stmt=on_stmt))


def expand_call(call: TensorCall) -> Stmt:
    """The loops of one call, with variables of their own. The innermost loop is vectorized if it
    runs over results."""
    behaviour = call.intrinsic.behaviour
    body = behaviour.body
    reduces = isinstance(body, Reduce) and call.variant != "init"
    axes = (*behaviour.axes, *(behaviour.reduce_axes if reduces else ()))
    loops = [axis for axis in axes if axis.extent > 1]
    fresh: dict[Var, Expr] = {axis.var: Const(0) for axis in axes}
    fresh |= {axis.var: Var(axis.name) for axis in loops}
    regions = dict(zip(call.intrinsic.operands, call.inputs, strict=False))
    target = _element(call.output, tuple(fresh[axis.var] for axis in behaviour.axes))
    if call.variant == "init":
        value: Expr = body.identity
    else:
        value = _on_regions(substitute(body.body if reduces else body, fresh), regions)
        value = body.combine(target, value) if reduces else value
    stmt: Stmt = Store(target.source, target.indices, value)
    kind = "vectorized" if loops and loops[-1].kind == "data" else "serial"
    for axis in reversed(loops):
        var = fresh[axis.var]
        assert isinstance(var, Var)
        stmt, kind = For(var, axis.extent, kind, stmt), "serial"
    return stmt


def _element(region: Region, indices: tuple[Expr, ...]) -> Read:
    """The element at indices relative to a region, in the buffer's last dimensions."""
    lead = len(region.start) - len(indices)
    moved = (start + index for start, index in zip(region.start[lead:], indices, strict=True))
    return Read(region.buffer, (*region.start[:lead], *moved))


def _on_regions(expr: Expr, regions: dict[Tensor, Region]) -> Expr:
    def leaf(node: Expr) -> Expr | None:
        if isinstance(node, Read) and node.source in regions:
            return _element(regions[node.source], node.indices)
        return None

    return rewrite(expr, leaf)
