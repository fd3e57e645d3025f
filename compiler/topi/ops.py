"""Operators of the graph as tensor expressions over NCHW tensors.

:func:`expression` turns a node into a tensor and its placeholders: the node's inputs in order, then
the attributes that are arrays (multiplier and shift; scale and zero point) with their values. The
arithmetic is the graph's, bit for bit (``graph/ops/integer.py``, ``graph/interpret.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...isa.errors import VdlaError
from ..graph.arithmetic.requant import INT8_MIN, Requant
from ..graph.ir import Graph, Node
from ..graph.ir import Tensor as GraphTensor
from ..graph.ops.general import ConvolutionTranspose, Primitive
from ..graph.ops.integer import (
    Dequantize,
    Op,
    Pads,
    Pair,
    QAdd,
    QAvgPool,
    QConv2d,
    QConvTranspose2d,
    QDense,
    QMaxPool,
    Quant,
    Quantize,
    Reshape,
)
from ..te.expr import Call, Const, Expr, all_of, integer_range, select
from ..te.tensor import (
    IterVar,
    Tensor,
    clip,
    compute,
    max_of,
    placeholder,
    reduce_axis,
    sum_of,
)
from .floats import float_operator
from .primitives import primitive

FLOAT32 = "float32"
#: The intrinsic of each rounding of a :class:`Requant`.
RESCALE = {"even": "requantize", "tflite": "requantize_tflite"}


@dataclass(frozen=True)
class Expression:
    """An operator: the tensor it computes, its placeholders (the node's inputs in order, then
    attributes that are arrays) and the values of those attributes.
    """

    output: Tensor
    args: tuple[Tensor, ...]
    attributes: tuple[np.ndarray, ...] = ()


def expression(graph: Graph, node: Node) -> Expression:
    """The expression of a node.

    Raises
    ------
    VdlaError
        When the operator or a dtype has none, naming the node.
    """
    try:
        inputs = [_placeholder(t) for t in graph.operands(node)]
        if isinstance(node.op, Primitive):
            shapes = [t.shape for t in graph.operands(node)]
            output = primitive(node.op, inputs, shapes, graph.result(node).shape)
            return Expression(output, tuple(inputs))
        found = float_operator(node.op, inputs, [t.shape for t in graph.operands(node)])
        return Expression(found, tuple(inputs)) if found else _build(node.op, inputs)
    except VdlaError as error:
        raise VdlaError(f"node {node.name!r}: {error}") from error


def _placeholder(tensor: GraphTensor) -> Tensor:
    """A scalar has one element here; nothing reads the one of an empty tensor."""
    shape = tuple(max(size, 1) for size in tensor.shape) or (1,)
    return placeholder(shape, tensor.dtype, tensor.name)


def _build(op: Op, inputs: list[Tensor]) -> Expression:
    match op, inputs:
        case QConv2d(), [x, weight, bias]:
            return qconv2d(x, weight, bias, op)
        case QConvTranspose2d(), [x, weight, bias]:
            return qconv2d_transpose(x, weight, bias, op)
        case QDense(), [x, weight, bias]:
            return qdense(x, weight, bias, op)
        case QAdd(), [a, b]:
            return qadd(a, b, op)
        case QMaxPool(), [x]:
            return qmaxpool(x, op)
        case QAvgPool(), [x]:
            return qavgpool(x, op)
        case Quantize(), [x]:
            return quantize(x, op.quant)
        case Dequantize(), [x]:
            return dequantize(x, op.quant)
        case Reshape(), [x]:
            return reshape(x, op.shape)
    raise VdlaError(f"operator {type(op).__name__} has no loop program; quantise the model to int8")


# ---- integer operators ---------------------------------------------------------------------------


def qconv2d(x: Tensor, weight: Tensor, bias: Tensor, op: QConv2d) -> Expression:
    """:class:`QConv2d` with any groups and dilations.

    The stages are ``shifted`` (int16, ``x - x_zero_point`` inside a border of zeros), ``acc``
    (int32) and ``out``.
    """
    shifted = _shifted(x, op.pads, op.x_zero_point)
    channels, per_group, *kernel = weight.shape
    height, width = _window_counts(shifted, (kernel[0], kernel[1]), op.strides, op.dilations)
    group_size = channels // op.groups
    (sh, sw), (dh, dw) = op.strides, op.dilations
    ic, kh, kw = _reduce_axes(ic=per_group, kh=kernel[0], kw=kernel[1])

    def rule(n: Expr, oc: Expr, oh: Expr, ow: Expr) -> Expr:
        first = oc // group_size * per_group if op.groups > 1 else 0
        element = shifted[n, first + ic, oh * sh + kh * dh, ow * sw + kw * dw]
        return sum_of(_product(element, weight[oc, ic, kh, kw]), (ic, kh, kw))

    acc = compute((x.shape[0], channels, height, width), rule, "acc")
    return _requantized(acc, op.requant, (x, weight, bias), bias)


def qconv2d_transpose(x: Tensor, weight: Tensor, bias: Tensor, op: QConvTranspose2d) -> Expression:
    """:class:`QConvTranspose2d`: the general operator on ``shifted`` and ``wide``, both int32."""
    shifted = compute(x.shape, lambda *i: x[i].astype("int32") - op.x_zero_point, "shifted")
    wide = compute(weight.shape, lambda *i: weight[i].astype("int32"), "wide")
    spread = ConvolutionTranspose(op.strides, op.before, (1, 1), 1, op.size)
    shape = (x.shape[0], weight.shape[1], *op.size)
    acc = primitive(spread, [shifted, wide], [x.shape, weight.shape], shape)
    return _requantized(acc, op.requant, (x, weight, bias), bias)


def qdense(x: Tensor, weight: Tensor, bias: Tensor, op: QDense) -> Expression:
    """:class:`QDense`: stages ``shifted`` (int16), ``acc`` (int32) and ``out``."""
    shifted = compute(x.shape, lambda n, k: x[n, k].astype("int16") - op.x_zero_point, "shifted")
    (k,) = _reduce_axes(k=x.shape[1])
    acc = compute(
        (x.shape[0], weight.shape[0]),
        lambda n, oc: sum_of(_product(shifted[n, k], weight[oc, k]), k),
        "acc",
    )
    return _requantized(acc, op.requant, (x, weight, bias), bias)


def qadd(a: Tensor, b: Tensor, op: QAdd) -> Expression:
    """:class:`QAdd` over tensors of any rank."""
    a_flat, b_flat = (placeholder((math.prod(t.shape),), t.dtype, t.name) for t in (a, b))

    def rule(i: Expr) -> Expr:
        first, second = a_flat[i].astype("int32"), b_flat[i].astype("int32")
        total = first * op.mult_a + second * op.mult_b + op.const
        scaled = Call("rescale", (total, Const(1), Const(op.shift)), "int32")
        return clip(scaled + op.zero_point, op.lo, op.hi).astype("int8")

    return Expression(compute(a_flat.shape, rule, "out"), (a_flat, b_flat))


def qmaxpool(x: Tensor, op: QMaxPool) -> Expression:
    """:class:`QMaxPool`: stages ``padded`` (if there is padding), ``most`` and ``out``."""
    padded = _bordered(x, op.pads, lambda e: e, INT8_MIN, "padded") if any(op.pads) else x
    height, width = _window_counts(padded, op.kernel, op.strides)
    (sh, sw), (kh, kw) = op.strides, _reduce_axes(kh=op.kernel[0], kw=op.kernel[1])
    most = compute(
        (*x.shape[:2], height, width),
        lambda n, c, oh, ow: max_of(padded[n, c, oh * sh + kh, ow * sw + kw], (kh, kw)),
        "most",
    )
    out = compute(most.shape, lambda n, c, oh, ow: clip(most[n, c, oh, ow], op.lo, op.hi), "out")
    return Expression(out, (x,))


def qavgpool(x: Tensor, op: QAvgPool) -> Expression:
    """:class:`QAvgPool`: stages ``shifted`` (int16), ``acc`` (int32) and ``out``."""
    shifted = _shifted(x, op.pads, op.x_zero_point)
    height, width = _window_counts(shifted, op.kernel, op.strides)
    (sh, sw), (kh, kw) = op.strides, _reduce_axes(kh=op.kernel[0], kw=op.kernel[1])

    def rule(n: Expr, c: Expr, oh: Expr, ow: Expr) -> Expr:
        element = shifted[n, c, oh * sh + kh, ow * sw + kw]
        return sum_of(element.astype("int32"), (kh, kw))

    acc = compute((*x.shape[:2], height, width), rule, "acc")
    return _requantized(acc, op.requant, (x,), None)


# ---- between float32 and int8, and shapes -------------------------------------------------------


def quantize(x: Tensor, quant: Quant) -> Expression:
    """:class:`Quantize` of float32 to int8 or uint8. Bounds apply before the conversion, in
    float32: beyond 2**24, where adding the zero point would round, the result is a bound anyway.
    """
    if quant.dtype not in ("int8", "uint8"):
        raise VdlaError(f"Quantize expected to int8 or uint8, got {quant.dtype!r}")
    low, high = integer_range(quant.dtype)
    scale, zero = _quant_placeholders(quant)

    def rule(*index: Expr) -> Expr:
        steps = Call("round", (x[index] / _along(scale, quant, index),), "float32")
        stored = steps + _along(zero, quant, index).astype("float32")
        return clip(stored, float(low), float(high)).astype(quant.dtype)

    return _elementwise(x, rule, (scale, zero), quant)


def dequantize(x: Tensor, quant: Quant) -> Expression:
    """:class:`Dequantize` of int8, uint8 or int32 to float32."""
    scale, zero = _quant_placeholders(quant)

    def rule(*index: Expr) -> Expr:
        shifted = x[index].astype("int64") - _along(zero, quant, index).astype("int64")
        return shifted.astype("float32") * _along(scale, quant, index)

    return _elementwise(x, rule, (scale, zero), quant)


def reshape(x: Tensor, shape: tuple[int, ...]) -> Expression:
    """:class:`Reshape`, as a copy (``targets/cpu/graph_code.py`` needs none: it renames)."""

    def rule(*index: Expr) -> Expr:
        position: Expr = Const(0)
        for axis, extent in zip(index, shape, strict=True):
            position = position * extent + axis
        source = []
        for extent in reversed(x.shape):
            source.append(position % extent if source or len(x.shape) > 1 else position)
            position = position // extent
        return x[tuple(reversed(source))]

    return Expression(compute(shape, rule, "out"), (x,))


# ---- parts --------------------------------------------------------------------------------------


def _reduce_axes(**extents: int) -> tuple[IterVar, ...]:
    return tuple(reduce_axis(extent, name) for name, extent in extents.items())


def _window_counts(
    padded: Tensor, kernel: Pair, strides: Pair, dilations: Pair = (1, 1)
) -> tuple[int, ...]:
    """Output height and width of windows over a tensor that has its border."""
    sizes = zip(padded.shape[2:], kernel, strides, dilations, strict=True)
    return tuple((size - (k - 1) * d - 1) // stride + 1 for size, k, stride, d in sizes)


def _bordered(
    x: Tensor, pads: Pads, inside: Callable[[Expr], Expr], border: int, name: str
) -> Tensor:
    """``inside`` of each element, within a border."""
    n_images, channels, height, width = x.shape
    top, left, bottom, right = pads

    def rule(n: Expr, c: Expr, y: Expr, x_: Expr) -> Expr:
        element = inside(x[n, c, y - top, x_ - left])
        conditions = []
        if top or bottom:
            conditions += [y >= top, y < top + height]
        if left or right:
            conditions += [x_ >= left, x_ < left + width]
        return select(all_of(*conditions), element, Const(border, element.dtype))

    return compute((n_images, channels, top + height + bottom, left + width + right), rule, name)


def _shifted(x: Tensor, pads: Pads, zero_point: int) -> Tensor:
    """``x - zero_point`` as int16, zero in the border: 9 bits, which int16 arithmetic likes."""
    return _bordered(x, pads, lambda e: e.astype("int16") - zero_point, 0, "shifted")


def _product(a: Expr, b: Expr) -> Expr:
    return a.astype("int32") * b.astype("int32")


def _requantized(
    acc: Tensor, requant: Requant, args: tuple[Tensor, ...], bias: Tensor | None
) -> Expression:
    """``clip(requantize(acc + bias) + zero_point)`` as int8, channels along axis 1. In int64: the
    result of a large scale does not fit int32 before it is clipped.
    """
    multiplier = placeholder(requant.multiplier.shape, "int32", "multiplier")
    shift = placeholder(requant.shift.shape, "int32", "shift")

    def rule(*index: Expr) -> Expr:
        channel = index[1] if multiplier.shape[0] > 1 else Const(0)
        total = acc[index] + bias[index[1]] if bias is not None else acc[index]
        factors = (total, multiplier[channel], shift[channel])
        scaled = Call(RESCALE[requant.rounding], factors, "int64")
        return clip(scaled + requant.zero_point, requant.lo, requant.hi).astype("int8")

    out = compute(acc.shape, rule, "out")
    return Expression(out, (*args, multiplier, shift), (requant.multiplier, requant.shift))


def _elementwise(
    x: Tensor, rule: Callable[..., Expr], placeholders: tuple[Tensor, ...], quant: Quant
) -> Expression:
    out = compute(x.shape, rule, "out")
    scale = quant.scale.reshape(-1).astype(np.float32)
    zero = quant.zero_point.reshape(-1).astype(np.int32)
    return Expression(out, (x, *placeholders), (scale, zero))


def _quant_placeholders(quant: Quant) -> tuple[Tensor, Tensor]:
    return (
        placeholder((quant.scale.size,), FLOAT32, "scale"),
        placeholder((quant.zero_point.size,), "int32", "zero"),
    )


def _along(values: Tensor, quant: Quant, index: tuple[Expr, ...]) -> Expr:
    """The scale or zero point of an element."""
    return values[0 if quant.axis is None or values.shape[0] == 1 else index[quant.axis]]
