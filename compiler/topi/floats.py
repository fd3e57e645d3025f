"""The float operators that the quantised flow knows, as tensor expressions.

They are general operators (``topi/primitives.py``) with a bias and bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..graph.ops.general import Convolution, ConvolutionTranspose, Pool, broadcast
from ..graph.ops.integer import (
    Add,
    AvgPool,
    Bounded,
    Clip,
    Conv2d,
    ConvTranspose2d,
    Dense,
    MaxPool,
    Op,
    Relu,
)
from ..te.expr import Const, Expr, maximum, minimum
from ..te.tensor import Tensor, compute, reduce_axis, sum_of
from .primitives import Shape, element, over, primitive


def float_operator(op: Op, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Tensor | None:
    """The result of a float operator; None for others."""
    match op, inputs:
        case Conv2d(), [x, weight, *bias]:
            size = Convolution(op.strides, op.pads, op.dilations, op.groups)
            out, _ = size.infer(*((t.shape, t.dtype) for t in (x, weight)))
            return _bounded(primitive(size, [x, weight], shapes, out, "acc"), op, bias, 1)
        case ConvTranspose2d(), [x, weight, *bias]:
            spread = ConvolutionTranspose(op.strides, op.before, (1, 1), 1, op.size)
            out, _ = spread.infer(*((t.shape, t.dtype) for t in (x, weight)))
            return _bounded(primitive(spread, [x, weight], shapes, out), op, bias, 1)
        case Dense(), [x, weight, *bias]:
            return _bounded(_dense(x, weight, op.transposed), op, bias, 1)
        case Add(), [a, b]:
            rule = lambda i: _clip(element(a, shapes[0], i) + element(b, shapes[1], i), op)  # noqa: E731
            return over(broadcast(*shapes), rule)
        case Relu(), [x]:
            return over(shapes[0], lambda i: maximum(x[i or (0,)], Const(0.0, x.dtype)))
        case Clip(), [x]:
            return over(shapes[0], lambda i: _clip(x[i or (0,)], op))
        case MaxPool(), [x]:
            return _bounded(_pool("max", op, x), op, [], 1)
        case AvgPool(), [x]:
            return _average(op, x)
    return None


def _clip(x: Expr, op: Bounded | Clip) -> Expr:
    if op.lo != -math.inf:
        x = maximum(x, Const(op.lo, x.dtype))
    return minimum(x, Const(op.hi, x.dtype)) if op.hi != math.inf else x


def _bounded(acc: Tensor, op: Bounded, bias: Sequence[Tensor], axis: int) -> Tensor:
    """``clip(acc + bias)``, the bias along an axis."""

    def rule(*index: Expr) -> Expr:
        total = acc[index] + bias[0][index[axis]] if bias else acc[index]
        return _clip(total, op)

    return compute(acc.shape, rule, "out")


def _dense(x: Tensor, weight: Tensor, transposed: bool) -> Tensor:
    k = reduce_axis(x.shape[1], "k")
    width = weight.shape[0 if transposed else 1]

    def rule(n: Expr, oc: Expr) -> Expr:
        return sum_of(x[n, k] * (weight[oc, k] if transposed else weight[k, oc]), k)

    return compute((x.shape[0], width), rule, "acc")


def _pool(kind: str, op: MaxPool | AvgPool, x: Tensor) -> Tensor:
    pool = Pool(kind, op.kernel, op.strides, op.pads, (1, 1))
    out, _ = pool.infer((x.shape, x.dtype))
    return primitive(pool, [x], [x.shape], out, "acc")


def _average(op: AvgPool, x: Tensor) -> Tensor:
    """Divided by the number of elements, which is a matter of the place at a border that does not
    count."""
    acc = _pool("+", op, x)
    full = op.kernel[0] * op.kernel[1]

    def covered(place: Expr, dim: int) -> Expr:
        first = place * op.strides[dim] - op.pads[dim]
        last = minimum(first + op.kernel[dim], x.shape[dim + 2])
        return last - maximum(first, 0)

    def rule(n: Expr, c: Expr, oh: Expr, ow: Expr) -> Expr:
        total = acc[n, c, oh, ow]
        if op.count_include_pad or not any(op.pads):
            return _clip(total / Const(float(full), x.dtype), op)
        return _clip(total / (covered(oh, 0) * covered(ow, 1)).astype(x.dtype), op)

    return compute(acc.shape, rule, "out")
