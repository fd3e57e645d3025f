"""How each TensorFlow Lite operator becomes a node: one reader per row of ``READERS``.

Scales are combined in the precision (float32 or float64) in which the reference kernels do it; the
last bit of a multiplier depends on that.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...graph.arithmetic.requant import (
    INT8_MAX,
    INT8_MIN,
    OFFSET,
    Requant,
    mean_requant,
    tflite_params,
    tflite_requant,
)
from ...graph.ir import Tensor
from ...graph.ops.base import Op
from ...graph.ops.convolution import QConv2d
from ...graph.ops.integer import QAddFixed, QMul, QSoftmax
from ...graph.ops.linear import QDense
from ...graph.ops.pooling import QAvgPool, QAvgPoolValid, QMaxPool
from . import elementwise as tflite_elementwise
from .elementwise import bounds_of, elementwise_layout, same_quant
from .geometry import dense_operands, emit_matrix, image_shape, window, window_geometry
from .graph import Call

# ---- shared by operators -------------------------------------------------------------------------


def _bias(call: Call, position: int, channels: int) -> Tensor:
    """The name of the int32 bias; zeros when there is none."""
    tensor = call.optional(position)
    if tensor is None:
        zeros = np.zeros(channels, np.int32)
        return call.importer.constant(f"{call.name}.no_bias", zeros)
    data = call.constant(position, "bias")
    if tensor.dtype != "int32" or data.size != channels:
        raise call.refuse(
            f"expected a bias int32[{channels}], got {tensor.dtype}{list(data.shape)} of {tensor}"
        )
    return call.importer.constant(call.importer.label(tensor), data.reshape(channels))


def _weight(call: Call, channel_axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The weight less its zero point, and its scales: one, or one per channel.

    The weight is int8, or int16 where int8 does not hold all values.
    """
    tensor, data = call.operand(1), call.constant(1, "weight")
    if tensor.dtype not in ("int8", "uint8"):
        raise call.refuse(f"supported weights are int8 and uint8, got {tensor.dtype} of {tensor}")
    if tensor.scale.size == 0:
        raise call.refuse(f"weight {tensor} has no scale; the model is not quantised")
    if tensor.scale.size > 1 and tensor.axis != channel_axis:
        raise call.refuse(
            f"weight {tensor} is scaled along dimension {tensor.axis}, not {channel_axis}"
        )
    shape = [1] * data.ndim
    if tensor.scale.size > 1:
        shape[tensor.axis] = -1
    centred = data.astype(np.int64) - tensor.zero_point.reshape(shape)
    fits = centred.min() >= INT8_MIN and centred.max() <= INT8_MAX
    return centred.astype(np.int8 if fits else np.int16), tensor.scale


def _products(call: Call, scales: np.ndarray) -> np.ndarray:
    """Real factors from sums of products to the result, float64 [C] or [1].

    Where all channels share one scale, the kernels multiply in float32, except in convolutions of
    int8.
    """
    (x, _), (y, _) = call.quant(call.operand(0)), call.quant(call.result)
    single = call.operand(0).dtype == "uint8" or call.operator.kind == "FULLY_CONNECTED"
    if single and scales.size == 1:
        return (x * scales).astype(np.float64) / np.float64(y)
    return np.float64(x) * scales.astype(np.float64) / np.float64(y)


def _requant(call: Call, scales: np.ndarray) -> Requant:
    return tflite_requant(_products(call, scales), call.quant(call.result)[1], *bounds_of(call))


# ---- convolutions and dense layers ---------------------------------------------------------------


def _conv(call: Call) -> None:
    channels = image_shape(call)[3]
    weight, scales = _weight(call, channel_axis=0)
    if weight.ndim != 4 or channels % weight.shape[3]:
        raise call.refuse(f"weight {list(weight.shape)} does not fit {channels} channels")
    _window_sum(call, weight.transpose(0, 3, 1, 2), scales, channels // weight.shape[3])


def _depthwise(call: Call) -> None:
    channels = image_shape(call)[3]
    weight, scales = _weight(call, channel_axis=3)
    if weight.ndim != 4 or weight.shape[0] != 1 or weight.shape[3] % channels:
        raise call.refuse(f"weight {list(weight.shape)} does not fit {channels} channels")
    _window_sum(call, weight.transpose(3, 0, 1, 2), scales, channels)


def _window_sum(call: Call, weight: np.ndarray, scales: np.ndarray, groups: int) -> None:
    """A convolution of OIHW weights in groups."""
    strides, pads, dilations = window_geometry(call, (weight.shape[2], weight.shape[3]))
    zero = call.quant(call.operand(0))[1]
    op = QConv2d(strides, pads, dilations, groups, zero, _requant(call, scales))
    stored = call.importer.constant(f"{call.importer.label(call.operand(1))}.oihw", weight)
    call.define(
        call.emit(op, call.tensor(0, "nchw"), stored, _bias(call, 2, weight.shape[0])), "nchw"
    )


def _dense(call: Call) -> None:
    weight, scales = _weight(call, channel_axis=0)
    op = QDense(call.quant(call.operand(0))[1], _requant(call, scales))
    emit_matrix(call, op, *dense_operands(call, weight), _bias(call, 2, weight.shape[0]))


# ---- element by element, pooling, softmax --------------------------------------------------------


def _add(call: Call, subtract: bool = False) -> None:
    (a, zero_a), (b, zero_b) = (call.quant(call.operand(p)) for p in (0, 1))
    y, zero = call.quant(call.result)
    widest = 2 * float(max(a, b))
    mult_a, shift_a = tflite_params(float(a) / widest)
    mult_b, shift_b = tflite_params(float(b) / widest)
    scale = np.array([widest / (2.0**20 * float(y))])
    requant = tflite_requant(scale, zero, *bounds_of(call))
    op = QAddFixed(zero_a, zero_b, mult_a, shift_a, mult_b, shift_b, subtract, requant)
    layout = elementwise_layout(call, (0, 1))
    call.define(call.emit(op, call.tensor(0, layout), call.tensor(1, layout)), layout)


def _mul(call: Call) -> None:
    (a, zero_a), (b, zero_b) = (call.quant(call.operand(p)) for p in (0, 1))
    y, zero = call.quant(call.result)
    requant = tflite_requant(np.array([float(a * b / y)]), zero, *bounds_of(call))
    layout = elementwise_layout(call, (0, 1))
    operands = (call.tensor(0, layout), call.tensor(1, layout))
    call.define(call.emit(QMul(zero_a, zero_b, requant), *operands), layout)


def _average_pool(call: Call) -> None:
    same_quant(call, call.operand(0))
    kernel, strides, pads = window(call)
    lo, hi = bounds_of(call)
    # The mean is rounded away from the 0 of the stored type, so for uint8 it is always rounded up.
    zero = -OFFSET if call.operand(0).dtype == "uint8" else 0
    if any(pads):
        op: Op = QAvgPoolValid(kernel, strides, pads, zero, lo, hi)
    else:
        requant = mean_requant(kernel[0] * kernel[1], zero, lo, hi)
        op = QAvgPool(kernel, strides, pads, True, zero, requant)
    call.define(call.emit(op, call.tensor(0, "nchw")), "nchw")


def _mean(call: Call) -> None:
    """Over height and width; the division is part of the multiplier."""
    _, height, width, _ = image_shape(call)
    axes = sorted(int(v) % 4 for v in call.constant(1, "list of dimensions").reshape(-1))
    if axes != [1, 2]:
        raise call.refuse(f"supported is the mean over dimensions [1, 2], got {axes}")
    (x, zero), (y, zero_y) = call.quant(call.operand(0)), call.quant(call.result)
    count = height * width
    multiplier, shift = tflite_params(float(x) / float(y))
    extra = min(count.bit_length() - 1, 31 - shift)
    scaled = np.array([(multiplier << extra) // count], np.int32)
    op = QAvgPool(
        (height, width),
        (1, 1),
        (0, 0, 0, 0),
        True,
        zero,
        Requant(scaled, np.array([shift + extra], np.int32), zero_y, rounding="tflite"),
    )
    image = (call.tensor(0, "nchw"),)
    if len(call.result.shape) == 4:
        call.define(call.emit(op, *image), "nchw")
        return
    name = call.emit(op, *image)
    call.define(call.reshape(name, name.shape[:2]))


def _max_pool(call: Call) -> None:
    same_quant(call, call.operand(0))
    call.define(
        call.emit(QMaxPool(*window(call), *bounds_of(call)), call.tensor(0, "nchw")), "nchw"
    )


def _softmax(call: Call) -> None:
    scale, _ = call.quant(call.operand(0))
    out, zero = call.quant(call.result)
    if zero != INT8_MIN or not math.isclose(out, 1 / 256, rel_tol=1e-3):
        raise call.refuse(
            f"expected a result of scale 1/256 from the lowest value on, got scale {out!r} and"
            f" zero point {zero + (OFFSET if call.result.dtype == 'uint8' else 0)}"
        )
    call.define(call.emit(QSoftmax(float(call.option("Beta")) * float(scale)), call.tensor(0)))


#: One row per TensorFlow Lite operator.
READERS: dict[str, Callable[[Call], None]] = {
    **tflite_elementwise.READERS,
    "ADD": _add,
    "AVERAGE_POOL_2D": _average_pool,
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise,
    "FULLY_CONNECTED": _dense,
    "MAX_POOL_2D": _max_pool,
    "MEAN": _mean,
    "MUL": _mul,
    "SOFTMAX": _softmax,
    "SUB": lambda call: _add(call, subtract=True),
}
