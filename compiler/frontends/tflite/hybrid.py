"""Readers of float operators with weights of int8: activations are quantised while they run.

Each row of a dense layer, an SVDF or an LSTM, and each image of a convolution, has a scale of its
own. The products are summed as integers, and the sums become float32 again.
"""

from __future__ import annotations

import math

import numpy as np

from ...graph.ir import Tensor
from ...graph.ops.convolution import Convolution
from ...graph.ops.linear import MatMul
from ...te.expr import Call as Function
from ...te.expr import Const, Expr, maximum, minimum, select
from .floats import _bias as float_bias
from .geometry import image_shape, matrix_shape, window_geometry
from .graph import Call
from .mapping import between
from .operators import _weight as weight8


def is_hybrid(call: Call) -> bool:
    """Whether a float operator has weights of int8."""
    return call.operand(0).dtype == "float32" and call.operand(1).dtype in ("int8", "uint8")


def _rounded(x: Expr) -> Expr:
    """The nearest whole number, half away from zero."""
    whole = Function("trunc", (x,), "float32")
    rest = x - whole
    return whole + select(rest >= 0.5, 1.0, 0.0) - select(rest <= -0.5, 1.0, 0.0)


def quantised(
    call: Call, value: Tensor, axes: tuple[int, ...], asymmetric: bool
) -> tuple[Tensor, Tensor]:
    """Integers less their zero point, int32, and their scales, which have size 1 along ``axes``."""
    least = call.reduce("min", value, axes)
    most = call.reduce("max", value, axes)
    if not asymmetric:
        bound = call.map(lambda a, b: maximum(b, 0.0 - a), least, most)

        def symmetric(x: Expr, b: Expr) -> Expr:
            steps = _rounded(x * (127.0 / select(b <= 0.0, 1.0, b)))
            return minimum(maximum(steps, -127.0), 127.0).astype("int32")

        whole = call.map(symmetric, value, bound)
        return whole, call.map(lambda b: select(b <= 0.0, 1.0, b / 127.0), bound)

    def spread(a: Expr, b: Expr) -> tuple[Expr, Expr, Expr]:
        low, high = minimum(a, 0.0), maximum(b, 0.0)
        step = (high - low).astype("float64") / Const(255.0, "float64")
        step = select(step <= 0.0, Const(1.0, "float64"), step)
        return low.astype("float64"), high.astype("float64"), step

    def offset(a: Expr, b: Expr) -> Expr:
        low, high, step = spread(a, b)
        from_low, from_high = -128.0 - low / step, 127.0 - high / step
        nearer = 128.0 - low / step < 127.0 + high / step
        place = select(nearer, from_low, from_high)
        bounded = minimum(maximum(place, -128.0), 127.0).astype("float32")
        return select(high <= low, 0.0, _rounded(bounded))

    zero = call.map(offset, least, most)
    scale = call.map(lambda a, b: spread(a, b)[2].astype("float32"), least, most)

    def shifted(x: Expr, s: Expr, z: Expr) -> Expr:
        steps = minimum(maximum(z + _rounded(x * (1.0 / s)), -128.0), 127.0)
        return (steps - z).astype("int32")

    return call.map(shifted, value, scale, zero), scale


def dense(call: Call) -> None:
    """``bias + sum * (scale of the row * scale of the weights)``; each output may have its own."""
    weight, scales = weight8(call, channel_axis=0)
    value = call.tensor(0)
    count, width = math.prod(value.shape), weight.shape[-1]
    if weight.ndim != 2 or count % width:
        raise call.refuse(
            f"expected a weight matrix that fits {count} elements, got {list(weight.shape)}"
        )
    rows = call.reshape(value, (count // width, width))
    factors = np.broadcast_to(scales, (1, weight.shape[0]))
    sums = products(call, rows, stored_weight(call, weight.T, factors))
    bias = float_bias(call, 2)

    def rule(made: Expr, *bias: Expr) -> Expr:
        return between(call, bias[0] + made if bias else made)

    operands = (sums, *bias)
    made = call.map(rule, *operands)
    call.define(call.reshape(made, matrix_shape(call, weight.shape[0])))


def stored_weight(
    call: Call, weight: np.ndarray, scales: np.ndarray, name: str = "weight"
) -> tuple[Tensor, Tensor]:
    """Constants of weights int8 [K, N] and of their scales [1, N], for :func:`products`."""
    return (
        call.value(np.ascontiguousarray(weight.astype(np.int32))),
        call.value(scales.astype(np.float32)),
    )


def products(call: Call, rows: Tensor, weight: tuple[Tensor, Tensor]) -> Tensor:
    """Rows [M, K], quantised each by its own range, times a weight of :func:`stored_weight`:
    ``sum * (scale of the row * scale of the weights)``, float32 [M, N]."""
    whole, scale = quantised(call, rows, (1,), bool(call.option("AsymmetricQuantizeInputs")))
    total = call.emit(MatMul(), whole, weight[0])

    def rule(acc: Expr, s: Expr, factor: Expr) -> Expr:
        return acc.astype("float32") * (s * factor)

    return call.map(rule, total, scale, weight[1])


def matrices(call: Call) -> None:
    """A product of float matrices with int8 matrices of one scale; each row is quantised by its own
    range, as in a dense layer."""
    weight, scales = weight8(call, channel_axis=0)
    if weight.ndim < 2 or scales.size != 1:
        raise call.refuse(f"expected weights with one scale, got {call.operand(1)}")
    value = call.tensor(0)
    rank = len(value.shape)
    if call.option("AdjX"):
        value = call.transpose(value, (*range(rank - 2), rank - 1, rank - 2))
    weight = (weight.swapaxes(-1, -2) if call.option("AdjY") else weight).astype(np.int32, "C")
    asymmetric = bool(call.option("AsymmetricQuantizeInputs"))
    whole, scale = quantised(call, value, (rank - 1,), asymmetric)
    total = call.emit(MatMul(), whole, call.value(weight))
    factor = float(scales[0])

    def rule(acc: Expr, s: Expr) -> Expr:
        return acc.astype("float32") * (s * factor)

    call.define(call.map(rule, total, scale))


def convolution(call: Call, depthwise: bool) -> None:
    """``sum * scale of the channel * scale of the image + bias``."""
    channels = image_shape(call)[3]
    weight, scales = weight8(call, channel_axis=3 if depthwise else 0)
    if weight.ndim != 4:
        raise call.refuse(f"expected a weight of 4 dimensions, got {list(weight.shape)}")
    weight = weight.transpose((3, 0, 1, 2) if depthwise else (0, 3, 1, 2))
    made, each = weight.shape[:2]
    if channels % each or made % (channels // each):
        raise call.refuse(f"weight {list(weight.shape)} does not fit {channels} channels")
    geometry = window_geometry(call, (weight.shape[2], weight.shape[3]))
    single = scales.size == 1 and not depthwise
    whole, scale = quantised(call, call.tensor(0, "nchw"), (1, 2, 3), not single)
    stored = call.value(np.ascontiguousarray(weight.astype(np.int32)))
    total = call.emit(Convolution(*geometry, channels // each), whole, stored)
    emit_sum(call, total, scale, scales, single or depthwise)


def emit_sum(call: Call, total: Tensor, scale: Tensor, scales: np.ndarray, single: bool) -> None:
    """Sums of a convolution as real numbers. Whether the two scales are multiplied first
    (``single``) decides the last bits."""
    made = total.shape[1]
    shape = (1, made, 1, 1)
    factors = call.value(np.broadcast_to(scales, made).reshape(shape))
    biases = [call.reshape(name, shape) for name in float_bias(call, 2)]

    def rule(acc: Expr, s: Expr, factor: Expr, *bias: Expr) -> Expr:
        real = acc.astype("float32")
        found = real * (s * factor) if single else real * factor * s
        return between(call, found + bias[0] if bias else found)

    operands = (total, scale, factors, *biases)
    call.define(call.map(rule, *operands), "nchw")
