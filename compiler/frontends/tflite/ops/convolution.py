"""Convolutions and transposed convolutions, over images and over volumes."""

from __future__ import annotations

import numpy as np
import tflite

from ....graph.ir import Tensor
from ....graph.ops.base import Pads, Pair
from ....graph.ops.convolution import (
    Conv2d,
    Convolution,
    ConvolutionTranspose,
    ConvTranspose2d,
    QConv2d,
    QConvTranspose2d,
)
from ....te.expr import Expr
from ..graph import Call, Rows
from .rules import between
from .weights import (
    accumulator,
    bias8,
    emit_sum,
    float_bias,
    is_hybrid,
    quantised,
    requant8,
    weight_of,
    widened,
)

# ---- windows -------------------------------------------------------------------------------------
#: Pixels from end to end of a window; more is a damaged file.
MAX_REACH = 1 << 14
Sizes = tuple[int, ...]


def image_shape(call: Call) -> Sizes:
    """The shape [N,H,W,C] of the first operand."""
    shape = call.operand(0).shape
    if len(shape) != 4:
        raise call.refuse(f"expected an image [N,H,W,C], got {call.operand(0)} {list(shape)}")
    return shape


def window_geometry(call: Call, kernel: Sizes, dilated: bool = True) -> tuple[Pair, Pads, Pair]:
    """Strides, pads and dilations of a window over an image."""
    sh, sw = _each(call, "strides", "Stride{}", "HW")
    dh, dw = _each(call, "dilations", "Dilation{}Factor", "HW") if dilated else (1, 1)
    pads = _pads(call, call.operand(0).shape[1:3], kernel, (sh, sw), (dh, dw))
    return (sh, sw), (pads[0], pads[1], pads[2], pads[3]), (dh, dw)


def _each(call: Call, what: str, option: str, axes: str) -> Sizes:
    """An option of each dimension, such as ``Stride{}``."""
    found = tuple(call.option(option.format(axis)) for axis in axes)
    if min(found) < 1:
        raise call.refuse(f"expected {what} of at least 1, got {found!r}")
    return found


def _pads(call: Call, sizes: Sizes, kernel: Sizes, strides: Sizes, dilations: Sizes) -> Sizes:
    """The padding before every dimension, then the padding after every one."""
    mode = call.option("Padding")
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    if max(reach) > MAX_REACH:
        raise call.refuse(f"expected a window within {MAX_REACH} pixels, got one of {reach}")
    if mode not in (tflite.Padding.VALID, tflite.Padding.SAME):
        raise call.refuse(f"expected padding SAME or VALID, got {mode!r}")
    totals = _totals(call, sizes, reach, strides)
    return (*(n // 2 for n in totals), *(n - n // 2 for n in totals))


def _totals(call: Call, sizes: Sizes, reach: Sizes, strides: Sizes) -> Sizes:
    """How much padding each dimension has."""
    if call.option("Padding") == tflite.Padding.VALID:
        return (0,) * len(sizes)
    windows = zip(sizes, reach, strides, strict=True)
    return tuple(max((-(-n // s) - 1) * s + r - n, 0) for n, r, s in windows)


# ---- images --------------------------------------------------------------------------------------


def _filters(call: Call) -> tuple[np.ndarray, np.ndarray, tuple[Pair, Pads, Pair, int]]:
    """The weight OIHW and its scales, of float32 none; strides, pads, dilations and groups."""
    depthwise, channels = _is_depthwise(call), image_shape(call)[3]
    weight, scales = weight_of(call, channel_axis=3 if depthwise else 0)
    if weight.ndim != 4:
        raise call.refuse(f"expected a weight of 4 dimensions, got {list(weight.shape)}")
    made, each = (weight.shape[3], 1) if depthwise else (weight.shape[0], weight.shape[3])
    if channels % each or made % (channels // each) or (depthwise and weight.shape[0] != 1):
        raise call.refuse(f"weight {list(weight.shape)} does not fit {channels} channels")
    weight = weight.transpose((3, 0, 1, 2) if depthwise else (0, 3, 1, 2))
    return weight, scales, (*window_geometry(call, weight.shape[2:]), channels // each)


def _is_depthwise(call: Call) -> bool:
    return call.kind == "DEPTHWISE_CONV_2D"


def _stored(call: Call, weight: np.ndarray) -> Tensor:
    """The weight as a constant, which all operators that read it share."""
    return call.importer.constant(f"{call.importer.label(call.operand(1))}.oihw", weight)


def _conv_float(call: Call) -> None:
    if is_hybrid(call):
        _conv_hybrid(call)
        return
    weight, _, window = _filters(call)
    operands = (call.tensor(0, "nchw"), _stored(call, weight), *float_bias(call, 2))
    call.define(call.emit(Conv2d(*window, *call.activation()), *operands), "nchw")


def _conv8(call: Call) -> None:
    weight, scales, window = _filters(call)
    op = QConv2d(*window, call.quant(call.operand(0))[1], requant8(call, scales))
    operands = (call.tensor(0, "nchw"), _stored(call, weight), bias8(call, 2, weight.shape[0]))
    call.define(call.emit(op, *operands), "nchw")


def _conv16(call: Call) -> None:
    dtype, (weight, scales, window) = accumulator(call, 2), _filters(call)
    operands = widened(call, 0, "nchw", dtype), call.value(weight.astype(dtype))
    total = call.emit(Convolution(*window), *operands)
    emit_sum(call, total, scales, 2, (1, weight.shape[0], 1, 1), "nchw")


def _conv_hybrid(call: Call) -> None:
    """``sum * scale of the channel * scale of the image + bias``."""
    weight, scales, window = _filters(call)
    single = scales.size == 1 and not _is_depthwise(call)
    whole, scale = quantised(call, call.tensor(0, "nchw"), (1, 2, 3), not single)
    total = call.emit(Convolution(*window), whole, call.value(weight.astype(np.int32)))
    _emit_hybrid(call, total, scale, scales, single or _is_depthwise(call))


def _emit_hybrid(
    call: Call, total: Tensor, scale: Tensor, scales: np.ndarray, single: bool
) -> None:
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

    call.define(call.map(rule, total, scale, factors, *biases), "nchw")


# ---- transposed ----------------------------------------------------------------------------------


def _transpose_conv(call: Call) -> None:
    """Operand 0 is the result's shape, 1 the weight, 2 the image, 3 the bias."""
    moved = call.reordered(2, 1, 3)
    weight, scales = weight_of(moved, channel_axis=0)
    if weight.ndim != 4:
        raise call.refuse(f"expected a weight of 4 dimensions, got {list(weight.shape)}")
    sh, sw = _each(call, "strides", "Stride{}", "HW")
    height, width = _transposed_size(call, moved, weight.shape[1:3], (sh, sw))
    top, left = _totals(call, (height, width), weight.shape[1:3], (sh, sw))
    window = (sh, sw), (top // 2, left // 2), (height, width)
    general = ConvolutionTranspose(*window[:2], (1, 1), 1, window[2])
    weight, channels = weight.transpose(3, 0, 1, 2), weight.shape[0]
    image, stored = moved.tensor(0, "nchw"), moved.stored_type
    if is_hybrid(moved):  # as other convolutions, always with a zero point
        whole, scale = quantised(call, image, (1, 2, 3), asymmetric=True)
        total = call.emit(general, whole, call.value(weight.astype(np.int32)))
        _emit_hybrid(moved, total, scale, scales, single=False)
    elif stored == "float32":
        operands = (image, call.value(weight), *float_bias(moved, 2))
        call.define(call.emit(ConvTranspose2d(*window, *call.activation()), *operands), "nchw")
    elif stored == "int8" and weight.dtype == np.int8:
        zero = moved.quant(moved.operand(0))[1]
        op = QConvTranspose2d(*window, zero, requant8(moved, scales))
        operands = (image, call.value(weight), bias8(moved, 2, channels))
        call.define(call.emit(op, *operands), "nchw")
    else:
        dtype = accumulator(moved, 2)
        operands = widened(moved, 0, "nchw", dtype), call.value(weight.astype(dtype))
        total = call.emit(general, *operands)
        emit_sum(moved, total, scales, 2, (1, channels, 1, 1), "nchw")


def _transposed_size(call: Call, moved: Call, kernel: Sizes, strides: Sizes) -> Sizes:
    """The size of a transposed convolution's result: the constant in operand 0. A computed one is
    what TensorFlow's layers compute from the image, and so must the file say."""
    if call.operand(0).data is not None:
        return tuple(call.numbers(0, "shape")[1:3])
    extra = [max(k - s, 0) for k, s in zip(kernel, strides, strict=True)]
    if call.option("Padding") == tflite.Padding.SAME:
        extra = [0, 0]
    image = image_shape(moved)[1:3]
    return tuple(n * s + e for n, s, e in zip(image, strides, extra, strict=True))


# ---- volumes -------------------------------------------------------------------------------------

_TO_FRONT, _TO_BACK = (0, 4, 1, 2, 3), (0, 2, 3, 4, 1)


def _volume(call: Call, position: int) -> tuple[Tensor, np.ndarray, Sizes, Sizes, Sizes]:
    """The image with its channels first, the weight with its last axes first; strides, dilations
    and how far a window reaches."""
    value, weight = call.tensor(position), call.constant(1, "weight")
    if len(value.shape) != 5 or weight.ndim != 5 or weight.dtype != np.float32:
        raise call.refuse(
            f"expected [N,D,H,W,C] and a weight float32 of 5 dimensions, got"
            f" {list(value.shape)} and {weight.dtype}{list(weight.shape)}"
        )
    strides = _each(call, "strides and dilations", "Stride{}", "DHW")
    dilations = _each(call, "strides and dilations", "Dilation{}Factor", "DHW")
    value = call.transpose(value, _TO_FRONT)
    return value, weight.transpose(4, 3, 0, 1, 2), strides, dilations, weight.shape[:3]


def _emit_volume(call: Call, total: Tensor, bias: int) -> None:
    """The sums with bias and activation, channels last again."""
    channels = total.shape[1]
    operands = [call.transpose(total, _TO_BACK)]
    if call.optional(bias) is not None:
        data = call.constant(bias, "bias")
        if data.dtype != np.float32 or data.shape != (channels,):
            raise call.refuse(f"expected a bias float32[{channels}], got {call.operand(bias)}")
        operands.append(call.value(data))

    def rule(x: Expr, *b: Expr) -> Expr:
        return between(call, x + b[0] if b else x * 1.0)

    call.define(call.map(rule, *operands))


def _conv_volume(call: Call) -> None:
    value, weight, strides, dilations, kernel = _volume(call, 0)
    pads = _pads(call, value.shape[2:], kernel, strides, dilations)
    groups, rest = divmod(value.shape[1], weight.shape[1])
    if rest or not groups:
        raise call.refuse(f"weight {list(weight.shape)} does not fit {value.shape[1]}")
    total = call.emit(Convolution(strides, pads, dilations, groups), value, call.value(weight))
    _emit_volume(call, total, 2)


def _transpose_conv_volume(call: Call) -> None:
    """Operand 0 is the result's shape, 1 the weight [D, H, W, results, operands], 2 the image."""
    value, weight, strides, dilations, kernel = _volume(call, 2)
    size = tuple(call.numbers(0, "shape")[1:4])
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    before = tuple(n // 2 for n in _totals(call, size, reach, strides))
    op = ConvolutionTranspose(strides, before, dilations, 1, size)
    _emit_volume(call, call.emit(op, value, call.value(weight)), 3)


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "CONV_2D": {"int8 uint8": _conv8, "float32": _conv_float, "int16": _conv16},
    "CONV_3D": {"float32": _conv_volume},
    "CONV_3D_TRANSPOSE": {"int32": _transpose_conv_volume},
    "DEPTHWISE_CONV_2D": {"int8 uint8": _conv8, "float32": _conv_float, "int16": _conv16},
    "TRANSPOSE_CONV": {"int32": _transpose_conv},
}
