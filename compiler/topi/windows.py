"""Windows that move over images: their number of places, and the border that they reach into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..te.expr import Expr, all_of, select
from ..te.tensor import IterVar, Tensor, compute, reduce_axis
from .elements import Index, Shape


def positions(size: int, kernel: int, stride: int = 1, pad: int = 0, dilation: int = 1) -> int:
    """Number of places of a window along a dimension of ``size`` elements and ``pad`` more, at both
    ends together; less than 1 if the window does not fit.
    """
    return (size + pad - (kernel - 1) * dilation - 1) // stride + 1


def window_counts(
    size: Shape, kernel: Shape, strides: Shape, pads: Shape, dilations: Shape
) -> tuple[int, ...]:
    """:func:`positions` along every dimension; ``pads`` lists the padding before every dimension,
    then the padding after every dimension.
    """
    rank = len(size)
    return tuple(
        positions(size[d], kernel[d], strides[d], pads[d] + pads[d + rank], dilations[d])
        for d in range(rank)
    )


@dataclass(frozen=True)
class Border:
    """A dimension with ``before`` more elements at its beginning and ``size`` in all, of which
    every ``step``-th is kept.
    """

    before: int
    size: int
    step: int = 1


def bordered(
    x: Tensor,
    borders: Mapping[int, Border],
    value: Expr,
    inside: Callable[[Expr], Expr] = lambda element: element,
    name: str = "bordered",
) -> Tensor:
    """``inside`` of each element of ``x``, and ``value`` around them.

    ::

        y[.., i, ..] = inside(x[.., i * step - before, ..]) if that is an element, else value
    """
    shape = [-(-borders[d].size // borders[d].step) if d in borders else n
             for d, n in enumerate(x.shape)]  # fmt: skip

    def rule(index: Index) -> Expr:
        source: list[Expr] = list(index)
        conditions = []
        for d, border in borders.items():
            place = index[d] * border.step
            if border.before > 0:
                conditions.append(place >= border.before)
            if border.size > border.before + x.shape[d]:
                conditions.append(place < border.before + x.shape[d])
            source[d] = place - border.before
        found = inside(x[tuple(source)])
        return select(all_of(*conditions), found, value) if conditions else found

    return compute(tuple(shape), lambda *index: rule(index), name)


def padded_image(
    x: Tensor,
    pads: Sequence[int],
    value: Expr,
    name: str = "bordered",
    inside: Callable[[Expr], Expr] | None = None,
) -> Tensor:
    """:func:`bordered` for the dimensions from 2 on, with ``pads`` before every dimension, then
    after every dimension; ``x`` itself where there is nothing to do.
    """
    if not any(pads) and inside is None:
        return x
    rank = len(pads) // 2
    borders = {
        d + 2: Border(pads[d], pads[d] + x.shape[d + 2] + pads[d + rank]) for d in range(rank)
    }
    return bordered(x, borders, value, inside or (lambda element: element), name)


def reach(counts: Shape, kernel: Shape, strides: Shape, dilations: Shape) -> Shape:
    """Elements along every dimension that ``counts`` windows span, border included."""
    parts = zip(counts, kernel, strides, dilations, strict=True)
    return tuple((n - 1) * s + (k - 1) * d + 1 for n, k, s, d in parts)


def spanned_image(x: Tensor, pads: Shape, value: Expr, spans: Shape) -> Tensor:
    """An image with its border, as far as windows that span ``spans`` elements read it; ``x``
    itself where there is no border.
    """
    if not any(pads):
        return x
    borders = {d + 2: Border(pads[d], max(n, 1)) for d, n in enumerate(spans)}
    return bordered(x, borders, value)


def window_place(
    place: Index, taps: Sequence[IterVar], strides: Shape, dilations: Shape
) -> list[Expr]:
    """The element of an image with its border that a tap of the window at ``place`` reads."""
    parts = zip(place, taps, strides, dilations, strict=True)
    return [o * stride + k * dilation for o, k, stride, dilation in parts]


def tap_axes(kernel: Shape) -> tuple[IterVar, ...]:
    """A reduction axis for every dimension of a kernel."""
    return tuple(reduce_axis(n, f"k{i}") for i, n in enumerate(kernel))
