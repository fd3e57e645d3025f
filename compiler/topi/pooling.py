"""Reductions over windows of an image [N, C, D1, ..., Dn], and where their largest element is."""

from __future__ import annotations

import math

from ..te.expr import Const, Expr, Reduce, all_of, maximum, minimum, select
from ..te.tensor import Tensor, min_of
from .elements import Index, Shape, over
from .reduction import neutral
from .windows import reach, spanned_image, tap_axes, window_counts, window_place


def pool(
    kind: str,
    x: Tensor,
    kernel: Shape,
    strides: Shape,
    pads: Shape,
    dilations: Shape,
    dtype: str | None = None,
    name: str = "acc",
) -> Tensor:
    """Sum or maximum ("+", "max") over windows; places outside the image do not count. Elements are
    converted to ``dtype`` first, if one is given.
    """
    counts = window_counts(x.shape[2:], kernel, strides, pads, dilations)
    spans = reach(counts, kernel, strides, dilations)
    image = spanned_image(x, pads, neutral(kind, x.dtype), spans)
    taps = tap_axes(kernel)

    def rule(index: Index) -> Expr:
        source = window_place(index[2:], taps, strides, dilations)
        element: Expr = image[(*index[:2], *source)]
        return Reduce(kind, element if dtype is None else element.astype(dtype), taps)

    return over((*x.shape[:2], *counts), rule, name)


def covered(place: Expr, kernel: int, stride: int, pad: int, size: int) -> Expr:
    """How many elements of a window at ``place`` lie inside the image, along one dimension."""
    first = place * stride - pad
    return minimum(first + kernel, size) - maximum(first, 0)


def mean_of(
    total: Expr,
    place: Index,
    kernel: Shape,
    strides: Shape,
    pads: Shape,
    size: Shape,
    count_include_pad: bool,
) -> Expr:
    """A window's sum divided by the number of its elements; those of the border are only counted
    with ``count_include_pad``.
    """
    if count_include_pad or not any(pads):
        return total / Const(float(math.prod(kernel)), total.dtype)
    counts = [covered(place[d], kernel[d], strides[d], pads[d], size[d]) for d in range(2)]
    return total / (counts[0] * counts[1]).astype(total.dtype)


def pool_places(
    x: Tensor,
    kernel: Shape,
    strides: Shape,
    pads: Shape,
    dilations: Shape,
    column_major: bool = False,
) -> Tensor:
    """int64 index, in the whole row-major tensor, of the first largest element of each window;
    ``column_major``: the spatial part of the index counts the first dimension fastest.
    """
    best = pool("max", x, kernel, strides, pads, dilations, name="best")
    taps, rank, total = tap_axes(kernel), len(kernel), math.prod(x.shape)

    def rule(index: Index) -> Expr:
        reached = window_place(index[2:], taps, strides, dilations)
        place = [p - pads[d] for d, p in enumerate(reached)]
        source = [*index[:2], *place]
        position = index[0] * x.shape[1] + index[1]
        for dim in range(rank):
            position = position * x.shape[dim + 2] + place[dim]
        inside = all_of(
            *(c for d in range(2, rank + 2) for c in (source[d] >= 0, source[d] < x.shape[d]))
        )
        is_best = select(inside, x[tuple(source)].equal(best[index]), Const(False, "bool"))
        return min_of(select(is_best, position.astype("int64"), Const(total - 1, "int64")), taps)

    if not column_major:
        return over(best.shape, rule)
    rows = over(best.shape, rule, "rows")

    def turned(index: Index) -> Expr:
        position, places = rows[index], []
        for size in reversed(x.shape[2:]):
            places.append(position % size)
            position = position // size
        for size, place in zip(reversed(x.shape[2:]), places, strict=True):
            position = position * size + place
        return position

    return over(best.shape, turned)
