"""The general operators (``graph/ops/general.py``) as tensor expressions.

Scalars are tensors of shape (1,) here. Borders are tested where an element is read; reductions are
stages of their own, so that a schedule can place them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...isa.errors import VdlaError
from ..graph.ops.blocked import BlockedOp
from ..graph.ops.general import (
    ArgReduce,
    Concat,
    Convolution,
    ConvolutionTranspose,
    Gather,
    GatherElements,
    Interpolate,
    Map,
    MatMul,
    Pad,
    Pool,
    PoolArg,
    Primitive,
    Reduce,
    Slice,
    Transpose,
)
from ..targets.cpu.blocked import blocked_expression
from ..te.expr import Const, Expr, all_of, maximum, minimum, select, substitute
from ..te.expr import Reduce as ReduceExpr
from ..te.tensor import IterVar, Tensor, compute, max_of, min_of, reduce_axis, sum_of

Shape = tuple[int, ...]
Index = tuple[Expr, ...]


def primitive(
    op: Primitive,
    inputs: Sequence[Tensor],
    shapes: Sequence[Shape],
    out: Shape,
    name: str = "out",
) -> Tensor:
    """The result of an operator on ``inputs``; ``shapes`` and ``out`` are the graph's, where
    scalars have rank 0."""
    x = inputs[0]
    match op:
        case Map():
            return _map(op, inputs, shapes, out)
        case Reduce():
            return _reduce(op, x, shapes[0], out)
        case ArgReduce():
            return _arg_reduce(op, x, shapes[0], out)
        case MatMul():
            return _matmul(inputs[0], inputs[1], shapes, out)
        case Convolution():
            return _convolution(op, inputs[0], inputs[1], out, name)
        case ConvolutionTranspose():
            return _convolution_transpose(op, inputs[0], inputs[1], out)
        case Pool():
            return _pool(op, x, out, name)
        case PoolArg():
            return _pool_arg(op, x, out)
        case Transpose(order):
            places = [order.index(axis) for axis in range(len(order))]
            return over(out, lambda i: x[tuple(i[p] for p in places) or (0,)])
        case Slice():
            return over(out, lambda i: _sliced(op, x, i))
        case Concat(axis):
            return _concat(axis, inputs, out)
        case Pad():
            return _pad(op, inputs, shapes[0], out)
        case Gather(axis):
            return _gather(axis, inputs[0], inputs[1], shapes, out)
        case GatherElements(axis):
            chosen = inputs[1]
            return over(
                out,
                lambda i: x[(*i[:axis], chosen[i].astype("int32") % x.shape[axis], *i[axis + 1 :])],
            )
        case Interpolate(axis):
            return _interpolate(axis, inputs[0], inputs[1], inputs[2], out)
        case BlockedOp():
            return blocked_expression(op, inputs)
    raise VdlaError(f"operator {type(op).__name__} has no tensor expression")


def over(shape: Shape, rule: Callable[[Index], Expr], name: str = "out") -> Tensor:
    """A tensor of any rank; a scalar's index is empty."""
    if not shape:
        return compute((1,), lambda _: rule(()), name)
    return compute(shape, lambda *index: rule(index), name)


def element(x: Tensor, shape: Shape, index: Index) -> Expr:
    """The element of a tensor that is broadcast to the index's rank."""
    if not shape:
        return x[0]
    mine = index[len(index) - len(shape) :]
    return x[tuple(Const(0) if n == 1 else i for i, n in zip(mine, shape, strict=True))]


def _map(op: Map, inputs: Sequence[Tensor], shapes: Sequence[Shape], out: Shape) -> Tensor:
    def rule(index: Index) -> Expr:
        elements = [element(x, shape, index) for x, shape in zip(inputs, shapes, strict=True)]
        return substitute(op.body, dict(zip(op.args, elements, strict=True)))

    return over(out, rule)


def _reduce(op: Reduce, x: Tensor, shape: Shape, out: Shape, name: str = "out") -> Tensor:
    if math.prod(shape) == 0 or not op.axes:
        neutral = ReduceExpr(op.kind, Const(0, x.dtype), ()).identity
        return over(out, lambda i: neutral if op.axes else x[i or (0,)])
    axes = {axis: reduce_axis(shape[axis], f"k{axis}") for axis in op.axes}

    def rule(index: Index) -> Expr:
        source = _with_axes(index, axes, len(shape), op.keepdims)
        return ReduceExpr(op.kind, x[source], tuple(axes.values()))

    return over(out, rule, name)


def _with_axes(index: Index, axes: dict[int, IterVar], rank: int, keepdims: bool) -> tuple:
    """The operand's index of a reduction: its axes at their places, the rest from ``index``."""
    if keepdims:
        return tuple(axes.get(dim, index[dim]) for dim in range(rank))
    rest = iter(index)
    return tuple(axes[dim] if dim in axes else next(rest) for dim in range(rank))


def _arg_reduce(op: ArgReduce, x: Tensor, shape: Shape, out: Shape) -> Tensor:
    size = shape[op.axis]
    best = _reduce(Reduce(op.kind, (op.axis,), op.keepdims), x, shape, out, "best")
    k = reduce_axis(size, "k")

    def rule(index: Index) -> Expr:
        element = x[_with_axes(index, {op.axis: k}, len(shape), op.keepdims)]
        found = element.equal(best[index or (0,)])
        place = select(found, k.var.astype("int64"), Const(0 if op.last else size - 1, "int64"))
        return max_of(place, k) if op.last else min_of(place, k)

    return over(out, rule)


def _matmul(a: Tensor, b: Tensor, shapes: Sequence[Shape], out: Shape) -> Tensor:
    left, right = shapes
    k = reduce_axis(left[-1], "k")

    def rule(index: Index) -> Expr:
        *batch, i, j = index
        lead = tuple(batch)
        first = _batched(lead, left[:-2])
        second = _batched(lead, right[:-2])
        return sum_of(a[(*first, i, k)] * b[(*second, k, j)], k)

    return over(out, rule)


def _batched(index: Index, shape: Shape) -> Index:
    mine = index[len(index) - len(shape) :]
    return tuple(Const(0) if n == 1 else i for i, n in zip(mine, shape, strict=True))


# ---- windows ------------------------------------------------------------------------------------


def _guarded(x: Tensor, index: Sequence[Expr], checked: Sequence[int], beyond: Expr) -> Expr:
    """An element, or ``beyond`` where the index leaves one of the ``checked`` dimensions."""
    conditions = [c for d in checked for c in (index[d] >= 0, index[d] < x.shape[d])]
    return select(all_of(*conditions), x[tuple(index)], beyond)


def _window(
    spatial: Index, axes: Sequence[IterVar], strides: Shape, pads: Shape, dilations: Shape
) -> list[Expr]:
    parts = zip(spatial, axes, strides, pads, dilations, strict=False)
    return [o * stride + k * dilation - pad for o, k, stride, pad, dilation in parts]


def _bordered(x: Tensor, pads: Shape, border: Expr, reach: Shape) -> tuple[Tensor, Shape]:
    """The operand within its border, if windows touch it, and the pads that remain: ``reach`` is
    the size that the windows span."""
    rank = len(x.shape) - 2
    if not any(pads):
        return x, pads
    size = (*x.shape[:2], *(max(n, 1) for n in reach))

    def rule(index: Index) -> Expr:
        source = [*index[:2], *(i - p for i, p in zip(index[2:], pads[:rank], strict=True))]
        checked = [d for d in range(2, rank + 2) if pads[d - 2] or size[d] > x.shape[d]]
        return _guarded(x, source, checked, border)

    return over(size, rule, "bordered"), (0,) * (2 * rank)


def _reach(out: Shape, kernel: Shape, strides: Shape, dilations: Shape) -> Shape:
    """Elements along every spatial dimension that windows span, border included."""
    parts = zip(out[2:], kernel, strides, dilations, strict=True)
    return tuple((n - 1) * s + (k - 1) * d + 1 for n, k, s, d in parts)


def _convolution(op: Convolution, x: Tensor, weight: Tensor, out: Shape, name: str) -> Tensor:
    per_group, kernel = weight.shape[1], weight.shape[2:]
    reach = _reach(out, kernel, op.strides, op.dilations)
    image, pads = _bordered(x, op.pads, Const(0, x.dtype), reach)
    ic = reduce_axis(per_group, "ic")
    ks = tuple(reduce_axis(n, f"k{i}") for i, n in enumerate(kernel))
    group_size = weight.shape[0] // op.groups

    def rule(index: Index) -> Expr:
        n, oc, *spatial = index
        first = oc // group_size * per_group if op.groups > 1 else 0
        place = _window(tuple(spatial), ks, op.strides, pads, op.dilations)
        return sum_of(image[(n, first + ic, *place)] * weight[(oc, ic, *ks)], (ic, *ks))

    return over(out, rule, name)


def _convolution_transpose(
    op: ConvolutionTranspose, x: Tensor, weight: Tensor, out: Shape
) -> Tensor:
    """Place ``o`` of the result gets what ``o + before = source * stride + tap * dilation`` says.

    With dilation 1, the places of one remainder by the stride are a convolution with every
    stride-th tap: these are computed side by side, as ``phases`` [stride..., N, place..., OC] from
    ``packed`` weights [stride..., C, tap..., OC/groups], so that neighbours are channels.
    """
    rank = len(op.strides)
    per_group, kernel = weight.shape[1], weight.shape[2:]
    if max(op.dilations) > 1:
        kernel, weight = _dilated(weight, op.dilations)
    channels = x.shape[1] // op.groups
    taps = tuple(-(-k // s) for k, s in zip(kernel, op.strides, strict=True))
    counts = tuple(
        (n - 1 + b) // s + 1 for n, b, s in zip(out[2:], op.before, op.strides, strict=True)
    )
    packed = _packed_taps(weight, op.strides, taps)
    pads = tuple(t - 1 for t in taps) + tuple(
        max(c - n, 0) for c, n in zip(counts, x.shape[2:], strict=True)
    )
    size = tuple(t - 1 + c for t, c in zip(taps, counts, strict=True))
    image, _ = _bordered(x, pads, Const(0, x.dtype), size)
    ic = reduce_axis(channels, "ic")
    js = tuple(reduce_axis(n, f"j{i}") for i, n in enumerate(taps))

    def phase(index: Index) -> Expr:
        remainders, n, places, oc = index[:rank], index[rank], index[rank + 1 : -1], index[-1]
        channel = oc // per_group * channels + ic if op.groups > 1 else ic.var
        source = [q + (t - 1) - j for q, t, j in zip(places, taps, js, strict=True)]
        tap = packed[(*remainders, channel, *js, oc % per_group if op.groups > 1 else oc)]
        return sum_of(image[(n, channel, *source)] * tap, (ic, *js))

    phases = over((*op.strides, out[0], *counts, out[1]), phase, "phases")

    def rule(index: Index) -> Expr:
        reached = [o + b for o, b in zip(index[2:], op.before, strict=True)]
        remainders = [r % s for r, s in zip(reached, op.strides, strict=True)]
        places = [r // s for r, s in zip(reached, op.strides, strict=True)]
        return phases[(*remainders, index[0], *places, index[1])]

    return over(out, rule)


def _dilated(weight: Tensor, dilations: Shape) -> tuple[Shape, Tensor]:
    """Taps apart, with zeros between them; and the kernel's size then."""
    kernel = tuple((k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True))

    def rule(index: Index) -> Expr:
        parts = list(zip(index[2:], dilations, strict=True))
        at_tap = all_of(*((i % d).equal(0) for i, d in parts))
        return select(
            at_tap, weight[(*index[:2], *(i // d for i, d in parts))], Const(0, weight.dtype)
        )

    return kernel, over((*weight.shape[:2], *kernel), rule, "dilated")


def _packed_taps(weight: Tensor, strides: Shape, taps: Shape) -> Tensor:
    """Weights [C, OC, kernel...] as [stride..., C, tap..., OC]: tap j of a phase is the kernel's
    element ``phase + j * stride``, zero beyond its end."""
    rank = len(strides)
    channels, out_channels, *kernel = weight.shape

    def rule(index: Index) -> Expr:
        phase, channel, js, oc = index[:rank], index[rank], index[rank + 1 : -1], index[-1]
        places = [p + j * s for p, j, s in zip(phase, js, strides, strict=True)]
        grown = [d + 2 for d in range(rank) if kernel[d] < taps[d] * strides[d]]
        return _guarded(weight, [channel, oc, *places], grown, Const(0, weight.dtype))

    return over((*strides, channels, *taps, out_channels), rule, "packed")


def _pool(op: Pool, x: Tensor, out: Shape, name: str) -> Tensor:
    neutral = ReduceExpr(op.kind, Const(0, x.dtype), ()).identity
    reach = _reach(out, op.kernel, op.strides, op.dilations)
    image, pads = _bordered(x, op.pads, neutral, reach)
    ks = tuple(reduce_axis(n, f"k{i}") for i, n in enumerate(op.kernel))

    def rule(index: Index) -> Expr:
        place = _window(index[2:], ks, op.strides, pads, op.dilations)
        return ReduceExpr(op.kind, image[(*index[:2], *place)], ks)

    return over(out, rule, name)


def _pool_arg(op: PoolArg, x: Tensor, out: Shape) -> Tensor:
    pool = op.pool
    best = _pool(pool, x, out, "best")
    ks = tuple(reduce_axis(n, f"k{i}") for i, n in enumerate(pool.kernel))
    rank, total = len(ks), math.prod(x.shape)

    def rule(index: Index) -> Expr:
        place = _window(index[2:], ks, pool.strides, pool.pads, pool.dilations)
        source = [*index[:2], *place]
        position = index[0] * x.shape[1] + index[1]
        for dim in range(rank):
            position = position * x.shape[dim + 2] + place[dim]
        inside = all_of(
            *(c for d in range(2, rank + 2) for c in (source[d] >= 0, source[d] < x.shape[d]))
        )
        is_best = select(inside, x[tuple(source)].equal(best[index]), Const(False, "bool"))
        return min_of(select(is_best, position.astype("int64"), Const(total - 1, "int64")), ks)

    if not op.column_major:
        return over(out, rule)
    rows = over(out, rule, "rows")

    def turned(index: Index) -> Expr:
        position, places = rows[index], []
        for size in reversed(x.shape[2:]):
            places.append(position % size)
            position = position // size
        for size, place in zip(reversed(x.shape[2:]), places, strict=True):
            position = position * size + place
        return position

    return over(out, turned)


# ---- data movement ------------------------------------------------------------------------------


def _sliced(op: Slice, x: Tensor, index: Index) -> Expr:
    parts = zip(index, op.starts, op.steps, strict=True)
    return x[tuple(i * step + start for i, start, step in parts) or (0,)]


def _concat(axis: int, inputs: Sequence[Tensor], out: Shape) -> Tensor:
    def rule(index: Index) -> Expr:
        result: Expr = Const(0, inputs[0].dtype)
        offset = 0
        for x in inputs:
            source = [*index[:axis], index[axis] - offset, *index[axis + 1 :]]
            result = _guarded_or(x, source, axis, result)
            offset += x.shape[axis]
        return result

    return over(out, rule)


def _guarded_or(x: Tensor, source: list[Expr], axis: int, otherwise: Expr) -> Expr:
    return _guarded(x, source, (axis,), otherwise)


def _pad(op: Pad, inputs: Sequence[Tensor], shape: Shape, out: Shape) -> Tensor:
    x, before = inputs[0], op.pads[: len(shape)]

    def rule(index: Index) -> Expr:
        if not shape:
            return x[0]
        source = [i - b for i, b in zip(index, before, strict=True)]
        if op.mode == "constant":
            padded = [d for d, n in enumerate(shape) if out[d] > n or before[d]]
            return _guarded(x, source, padded, inputs[1][0])
        return x[tuple(_repeated(op.mode, i, n) for i, n in zip(source, shape, strict=True))]

    return over(out, rule)


def _repeated(mode: str, index: Expr, size: int) -> Expr:
    """An index beyond either end as one inside."""
    match mode:
        case "edge":
            return minimum(maximum(index, 0), size - 1)
        case "wrap":
            return index % size
    period = max(2 * (size - 1), 1)
    inside = index % period
    return minimum(inside, minimum(period - inside, size - 1))


def _gather(axis: int, x: Tensor, indices: Tensor, shapes: Sequence[Shape], out: Shape) -> Tensor:
    rank = len(shapes[1])

    def rule(index: Index) -> Expr:
        chosen = indices[index[axis : axis + rank] or (0,)].astype("int32") % x.shape[axis]
        return x[(*index[:axis], chosen, *index[axis + rank :])]

    return over(out, rule)


def _interpolate(axis: int, x: Tensor, taps: Tensor, weights: Tensor, out: Shape) -> Tensor:
    t = reduce_axis(taps.shape[1], "t")

    def rule(index: Index) -> Expr:
        tap = taps[index[axis], t].astype("int32") % x.shape[axis]
        element = x[(*index[:axis], tap, *index[axis + 1 :])]
        return sum_of(weights[index[axis], t] * element, t)

    return over(out, rule)
