"""Operators that move elements to other places."""

from __future__ import annotations

from collections.abc import Sequence

from ..te.expr import Const, Expr, all_of, maximum, minimum, select
from ..te.tensor import Tensor, compute, reduce_axis, sum_of
from .elements import Index, Shape, over


def transpose(x: Tensor, order: Sequence[int], shape: Shape | None = None) -> Tensor:
    """Dimension i of the result is dimension ``order[i]`` of ``x``; ``shape`` is the graph's."""
    shape = x.shape if shape is None else shape
    places = [order.index(axis) for axis in range(len(order))]
    out = tuple(shape[axis] for axis in order)
    return over(out, lambda i: x[tuple(i[p] for p in places) or (0,)])


def reshape(x: Tensor, shape: Shape) -> Tensor:
    """The same elements in the same order with another shape, as a copy."""

    def rule(index: Index) -> Expr:
        position: Expr = Const(0)
        for axis, extent in zip(index, shape, strict=True):
            position = position * extent + axis
        source = []
        for extent in reversed(x.shape):
            source.append(position % extent if source or len(x.shape) > 1 else position)
            position = position // extent
        return x[tuple(reversed(source))]

    return over(shape, rule)


def strided_slice(x: Tensor, starts: Sequence[int], steps: Sequence[int], shape: Shape) -> Tensor:
    """Element i of each dimension is element ``start + i * step``; steps may be negative."""

    def rule(index: Index) -> Expr:
        parts = zip(index, starts, steps, strict=True)
        return x[tuple(i * step + start for i, start, step in parts) or (0,)]

    return over(shape, rule)


def concat(inputs: Sequence[Tensor], axis: int) -> Tensor:
    """The inputs one after another along an axis."""
    first = inputs[0]
    size = sum(x.shape[axis] for x in inputs)

    def rule(index: Index) -> Expr:
        result: Expr = Const(0, first.dtype)
        start = 0
        for x in inputs:
            place = index[axis] - start
            inside = all_of(place >= 0, place < x.shape[axis])
            result = select(inside, x[(*index[:axis], place, *index[axis + 1 :])], result)
            start += x.shape[axis]
        return result

    return over((*first.shape[:axis], size, *first.shape[axis + 1 :]), rule)


def pad(x: Tensor, mode: str, before: Sequence[int], out: Shape, value: Tensor | None) -> Tensor:
    """``x`` with a border, ``before`` elements at each dimension's beginning. The border's ``mode``
    is "constant" (the scalar ``value``), "edge", "reflect" or "wrap".
    """
    size = x.shape

    def rule(index: Index) -> Expr:
        if not out:
            return x[0]
        source = [i - b for i, b in zip(index, before, strict=True)]
        if value is None:
            return x[tuple(_repeated(mode, i, n) for i, n in zip(source, size, strict=True))]
        inside = [
            condition
            for d, n in enumerate(size) if out[d] > n or before[d]
            for condition in (source[d] >= 0, source[d] < n)
        ]  # fmt: skip
        return select(all_of(*inside), x[tuple(source)], value[0])

    return over(out, rule)


def _repeated(mode: str, index: Expr, size: int) -> Expr:
    """The index inside whose element is repeated at an index beyond either end."""
    match mode:
        case "edge":
            return minimum(maximum(index, 0), size - 1)
        case "wrap":
            return index % size
    period = max(2 * (size - 1), 1)
    inside = index % period
    return minimum(inside, minimum(period - inside, size - 1))


def gather(x: Tensor, indices: Tensor, axis: int, shape: Shape, chosen: Shape) -> Tensor:
    """Along an axis of ``x``, the elements that ``indices`` name; ``shape`` and ``chosen`` are
    their graph shapes. Indices wrap, so that nothing beyond ``x`` is read.
    """
    rank = len(chosen)

    def rule(index: Index) -> Expr:
        place = indices[index[axis : axis + rank] or (0,)].astype("int32") % x.shape[axis]
        return x[(*index[:axis], place, *index[axis + rank :])]

    return over((*shape[:axis], *chosen, *shape[axis + 1 :]), rule)


def gather_elements(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """For every place of ``indices``, the element of ``x`` at that place, but with the number that
    ``indices`` has there as its index along ``axis``; numbers wrap.
    """

    def rule(index: Index) -> Expr:
        place = indices[index].astype("int32") % x.shape[axis]
        return x[(*index[:axis], place, *index[axis + 1 :])]

    return over(indices.shape, rule)


def interpolate(x: Tensor, taps: Tensor, weights: Tensor, axis: int) -> Tensor:
    """Along an axis, ``y[i] = sum over t of weights[i, t] * x[taps[i, t]]``."""
    t = reduce_axis(taps.shape[1], "t")

    def rule(*index: Expr) -> Expr:
        tap = taps[index[axis], t].astype("int32") % x.shape[axis]
        element = x[(*index[:axis], tap, *index[axis + 1 :])]
        return sum_of(weights[index[axis], t] * element, t)

    return compute((*x.shape[:axis], taps.shape[0], *x.shape[axis + 1 :]), rule, "out")
