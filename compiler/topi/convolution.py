"""Convolutions of images [N, C, D1, ..., Dn] of any rank, and transposed ones."""

from __future__ import annotations

from ..te.expr import Const, Expr, all_of, select
from ..te.tensor import Tensor, reduce_axis, sum_of
from .elements import Index, Shape, over
from .linear import product
from .windows import reach, spanned_image, tap_axes, window_counts, window_place


def convolution(
    x: Tensor,
    weight: Tensor,
    strides: Shape,
    pads: Shape,
    dilations: Shape,
    groups: int = 1,
    dtype: str | None = None,
) -> Tensor:
    """x [N, C, ...] and weight [OC, C/groups, ...]; the border is 0. Elements are converted to
    ``dtype`` and then multiplied and summed; without it, both operands must have one dtype.
    """
    per_group, kernel = weight.shape[1], weight.shape[2:]
    counts = window_counts(x.shape[2:], kernel, strides, pads, dilations)
    spans = reach(counts, kernel, strides, dilations)
    image = spanned_image(x, pads, Const(0, x.dtype), spans)
    ic, taps = reduce_axis(per_group, "ic"), tap_axes(kernel)
    group_size = weight.shape[0] // groups

    def rule(index: Index) -> Expr:
        n, oc, *place = index
        first = oc // group_size * per_group if groups > 1 else 0
        source = window_place(tuple(place), taps, strides, dilations)
        element, factor = image[(n, first + ic, *source)], weight[(oc, ic, *taps)]
        return sum_of(product(element, factor, dtype), (ic, *taps))

    return over((x.shape[0], weight.shape[0], *counts), rule, "acc")


def convolution_transpose(
    x: Tensor,
    weight: Tensor,
    strides: Shape,
    before: Shape,
    dilations: Shape,
    groups: int,
    size: Shape,
) -> Tensor:
    """x [N, C, ...], weight [C, OC/groups, ...]: place ``o`` of the result, whose spatial shape is
    ``size``, gets what ``o + before = source * stride + tap * dilation`` says.

    With dilation 1, the places with one remainder by the stride are the result of a convolution
    with every stride-th tap. These convolutions are computed side by side, as ``phases``
    [stride..., N, place..., OC] from ``packed`` weights [stride..., C, tap..., OC/groups]; channels
    are innermost.
    """
    rank = len(strides)
    per_group, kernel = weight.shape[1], weight.shape[2:]
    out = (x.shape[0], per_group * groups, *size)
    if max(dilations) > 1:
        kernel, weight = _dilated(weight, dilations)
    channels = x.shape[1] // groups
    taps = tuple(-(-k // s) for k, s in zip(kernel, strides, strict=True))
    counts = tuple((n - 1 + b) // s + 1 for n, b, s in zip(size, before, strides, strict=True))
    packed = _packed_taps(weight, strides, taps)
    pads = tuple(t - 1 for t in taps) + tuple(
        max(c - n, 0) for c, n in zip(counts, x.shape[2:], strict=True)
    )
    spans = tuple(t - 1 + c for t, c in zip(taps, counts, strict=True))
    image = spanned_image(x, pads, Const(0, x.dtype), spans)
    ic = reduce_axis(channels, "ic")
    js = tuple(reduce_axis(n, f"j{i}") for i, n in enumerate(taps))

    def phase(index: Index) -> Expr:
        remainders, n, places, oc = index[:rank], index[rank], index[rank + 1 : -1], index[-1]
        channel = oc // per_group * channels + ic if groups > 1 else ic.var
        source = [q + (t - 1) - j for q, t, j in zip(places, taps, js, strict=True)]
        tap = packed[(*remainders, channel, *js, oc % per_group if groups > 1 else oc)]
        return sum_of(image[(n, channel, *source)] * tap, (ic, *js))

    phases = over((*strides, out[0], *counts, out[1]), phase, "phases")

    def rule(index: Index) -> Expr:
        reached = [o + b for o, b in zip(index[2:], before, strict=True)]
        remainders = [r % s for r, s in zip(reached, strides, strict=True)]
        places = [r // s for r, s in zip(reached, strides, strict=True)]
        return phases[(*remainders, index[0], *places, index[1])]

    return over(out, rule)


def _dilated(weight: Tensor, dilations: Shape) -> tuple[Shape, Tensor]:
    """The size of a dilated kernel, and its weights with zeros between the taps."""
    kernel = tuple((k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True))

    def rule(index: Index) -> Expr:
        parts = list(zip(index[2:], dilations, strict=True))
        at_tap = all_of(*((i % d).equal(0) for i, d in parts))
        tap = weight[(*index[:2], *(i // d for i, d in parts))]
        return select(at_tap, tap, Const(0, weight.dtype))

    return kernel, over((*weight.shape[:2], *kernel), rule, "dilated")


def _packed_taps(weight: Tensor, strides: Shape, taps: Shape) -> Tensor:
    """Weights [C, OC, kernel...] as [stride..., C, tap..., OC]: tap j of a phase is the kernel's
    element ``phase + j * stride``, zero beyond its end."""
    rank = len(strides)
    channels, out_channels, *kernel = weight.shape

    def rule(index: Index) -> Expr:
        phase, channel, js, oc = index[:rank], index[rank], index[rank + 1 : -1], index[-1]
        places = [p + j * s for p, j, s in zip(phase, js, strides, strict=True)]
        beyond = [d for d in range(rank) if kernel[d] < taps[d] * strides[d]]
        inside = all_of(*(places[d] < kernel[d] for d in beyond))
        return select(inside, weight[(channel, oc, *places)], Const(0, weight.dtype))

    return over((*strides, channels, *taps, out_channels), rule, "packed")
