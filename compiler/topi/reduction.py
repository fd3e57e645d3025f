"""Reductions over axes of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..te.expr import Const, Expr, Reduce, select
from ..te.tensor import IterVar, Tensor, max_of, min_of, reduce_axis
from .elements import Index, Shape, over


def neutral(kind: str, dtype: str) -> Const:
    """The neutral element of a reduction."""
    return Reduce(kind, Const(0, dtype), ()).identity


def reduce(
    kind: str,
    x: Tensor,
    axes: Sequence[int],
    keepdims: bool = False,
    shape: Shape | None = None,
    name: str = "out",
) -> Tensor:
    """Sum, product, minimum or maximum (``kind`` "+", "*", "min", "max") over axes, which keep
    size 1 if ``keepdims``; ``shape`` is that of ``x`` in the graph.
    """
    shape = x.shape if shape is None else shape
    out = reduced_shape(shape, axes, keepdims)
    if math.prod(shape) == 0 or not axes:
        start = neutral(kind, x.dtype)
        return over(out, lambda i: start if axes else x[i or (0,)])
    taps = {axis: reduce_axis(shape[axis], f"k{axis}") for axis in axes}

    def rule(index: Index) -> Expr:
        source = _with_axes(index, taps, len(shape), keepdims)
        return Reduce(kind, x[source], tuple(taps.values()))

    return over(out, rule, name)


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """The shape of a reduction over axes."""
    return tuple(
        1 if axis in axes else size
        for axis, size in enumerate(shape)
        if keepdims or axis not in axes
    )


def arg_reduce(
    kind: str, x: Tensor, axis: int, keepdims: bool = False, last: bool = False
) -> Tensor:
    """int64 index of the smallest or largest element ("min", "max") along an axis; the first of
    equal ones, or the last.
    """
    best = reduce(kind, x, (axis,), keepdims, name="best")
    size = x.shape[axis]
    k = reduce_axis(size, "k")

    def rule(index: Index) -> Expr:
        element = x[_with_axes(index, {axis: k}, len(x.shape), keepdims)]
        found = element.equal(best[index or (0,)])
        place = select(found, k.var.astype("int64"), Const(0 if last else size - 1, "int64"))
        return max_of(place, k) if last else min_of(place, k)

    return over(reduced_shape(x.shape, (axis,), keepdims), rule)


def _with_axes(index: Index, axes: dict[int, IterVar], rank: int, keepdims: bool) -> tuple:
    """The index of a reduction's operand: reduced ``axes`` at their places, the others from
    ``index``.
    """
    if keepdims:
        return tuple(axes.get(dim, index[dim]) for dim in range(rank))
    rest = iter(index)
    return tuple(axes[dim] if dim in axes else next(rest) for dim in range(rank))
