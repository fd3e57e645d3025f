"""Readers of products, pools and softmax of int16 activations, and of products of two activations.

Sums are int64 where the file's bias is int64, else int32; both are rescaled as the kernels do it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tflite

from ...graph.arithmetic.fixed_point import rescale
from ...graph.arithmetic.requant import OFFSET, tflite_params
from ...graph.ir import Tensor
from ...graph.ops.base import Op
from ...graph.ops.convolution import (
    Convolution,
    ConvolutionTranspose,
    ConvTranspose2d,
    QConvTranspose2d,
)
from ...graph.ops.integer import leading_zeros
from ...graph.ops.linear import MatMul
from ...graph.ops.movement import Gather
from ...graph.ops.pooling import Pool
from ...te.expr import Call as Function
from ...te.expr import Const, Expr, maximum, minimum, select
from ...te.tensor import clip
from . import hybrid
from .elementwise import bounds_of, numbers, same_quant
from .floats import _bias as float_bias
from .floats import _weight as float_weight
from .functions import interpolated16, precise
from .geometry import (
    activation,
    image_shape,
    matrix_shape,
    rows_of,
    window,
    window_geometry,
)
from .graph import Call
from .mapping import between, saturated, stored_type
from .operators import _bias as bias8
from .operators import _products as products
from .operators import _requant as requant8
from .operators import _weight as weight8

Reader = Callable[[Call], None]


# ---- sums of products ----------------------------------------------------------------------------


def _accumulator(call: Call, bias_position: int) -> str:
    """The type of sums: the bias's, or int64 without one."""
    bias = call.optional(bias_position)
    if bias is None:
        return "int64"
    if bias.dtype not in ("int32", "int64"):
        raise call.refuse(f"supported biases are int32 and int64, got {bias.dtype} of {bias}")
    return bias.dtype


def reduced(multiplier: np.ndarray) -> np.ndarray:
    """Multipliers of 31 fraction bits with 15, for sums of int64."""
    narrow = (multiplier.astype(np.int64) + (1 << 15)) >> 16
    return np.where(multiplier < 0x7FFF0000, narrow, 0x7FFF)


def scaled(acc: Expr, factor: Expr, count: Expr) -> Expr:
    """A sum by a multiplier and a shift: of int64 by one of 15 bits, of int32 with the double
    rounding; int64."""
    if acc.dtype == "int64":
        half = Const(1, "int64") << (count - 1)
        return (acc * factor + half) >> count
    return Function("requantize_tflite", (acc, factor, count), "int64")


def _emit_sum(
    call: Call,
    total: Tensor,
    scales: np.ndarray,
    bias_position: int,
    shape: tuple[int, ...],
    layout: str,
) -> None:
    """Bias, scale, zero point and bounds of a sum whose channels lie along the one axis of
    ``shape`` that is not 1."""
    wide = total.dtype
    channels = int(np.prod(shape))
    pairs = [tflite_params(float(s)) for s in np.broadcast_to(products(call, scales), channels)]
    multiplier, shift = (np.array(column) for column in zip(*pairs, strict=True))
    tensor = call.optional(bias_position)
    values = np.zeros(channels, wide)
    if tensor is not None:
        values = call.constant(bias_position, "bias").reshape(-1)
        if values.size != channels:
            raise call.refuse(f"expected a bias of {channels} elements, got {values.size}")
    multiplier = reduced(multiplier) if wide == "int64" else multiplier
    shift = shift + 15 if wide == "int64" else shift
    operands = tuple(
        call.value(np.asarray(data, wide).reshape(shape))
        for name, data in (("bias", values), ("multiplier", multiplier), ("shift", shift))
    )
    zero = call.quant(call.result)[1]
    lo, hi = bounds_of(call)

    def rule(acc: Expr, bias: Expr, factor: Expr, count: Expr) -> Expr:
        made = scaled(acc + bias, factor, count)
        return saturated(made + zero, lo, hi, stored_type(call))

    call.define(call.map(rule, total, *operands), layout)


def _widened(call: Call, position: int, layout: str, dtype: str) -> Tensor:
    zero = call.quant(call.operand(position))[1]
    value = call.tensor(position, layout)
    return call.map(lambda x: x.astype(dtype) - zero, value)


def _convolved(call: Call, depthwise: bool) -> None:
    channels, dtype = image_shape(call)[3], _accumulator(call, 2)
    weight, scales = weight8(call, channel_axis=3 if depthwise else 0)
    if weight.ndim != 4:
        raise call.refuse(f"expected a weight of 4 dimensions, got {list(weight.shape)}")
    weight = weight.transpose((3, 0, 1, 2) if depthwise else (0, 3, 1, 2))
    if channels % weight.shape[1] or weight.shape[0] % (channels // weight.shape[1]):
        raise call.refuse(f"weight {list(weight.shape)} does not fit {channels} channels")
    geometry = window_geometry(call, (weight.shape[2], weight.shape[3]))
    stored = call.value(weight.astype(dtype))
    op = Convolution(*geometry, channels // weight.shape[1])
    total = call.emit(op, _widened(call, 0, "nchw", dtype), stored)
    _emit_sum(call, total, scales, 2, (1, weight.shape[0], 1, 1), "nchw")


def _dense(call: Call) -> None:
    weight, scales = weight8(call, channel_axis=0)
    dtype, width = _accumulator(call, 2), weight.shape[-1]
    x = _widened(call, 0, "plain", dtype)
    count = int(np.prod(x.shape))
    if weight.ndim != 2 or count % width:
        raise call.refuse(f"weight {list(weight.shape)} does not fit {count} elements")
    rows = call.reshape(x, (count // width, width))
    stored = call.value(np.ascontiguousarray(weight.T.astype(dtype)))
    total = call.emit(MatMul(), rows, stored)
    whole = call.reshape(total, matrix_shape(call, weight.shape[0]))
    shape = (*[1] * (len(whole.shape) - 1), weight.shape[0])
    _emit_sum(call, whole, scales, 2, shape, "plain")


def dense_of_computed(call: Call) -> None:
    """A dense layer whose weights are computed, so that it is a product of two matrices."""
    real = call.operand(0).dtype == "float32"
    x, weight = (call.tensor(i) if real else _widened(call, i, "plain", "int32") for i in (0, 1))
    if len(weight.shape) != 2 or call.operand(1).scale.size > 1:
        raise call.refuse(f"expected a matrix with one scale, got {call.operand(1)}")
    units, width = weight.shape
    turned = call.transpose(weight, (1, 0))
    total = call.emit(MatMul(), rows_of(call, x, width), turned)
    shape = matrix_shape(call, units)
    whole = call.reshape(total, shape)
    if not real:
        _emit_sum(call, whole, call.operand(1).scale, 2, (*[1] * (len(shape) - 1), units), "plain")
        return
    operands = (whole, *float_bias(call, 2))
    rule = lambda x, *b: between(call, x + b[0] if b else x * 1.0)  # noqa: E731
    call.define(call.map(rule, *operands))


def _transposed_geometry(call: Call, kernel: tuple[int, int]) -> tuple[tuple, tuple, tuple]:
    """Strides, what is cut off before, and the size of the result."""
    strides = (call.option("StrideH"), call.option("StrideW"))
    size = tuple(numbers(call, 0, "shape")[1:3])
    if min(strides) < 1:
        raise call.refuse(f"expected strides of at least 1, got {strides}")
    if call.option("Padding") == tflite.Padding.VALID:
        return strides, (0, 0), size
    before = tuple(
        max((-(-n // s) - 1) * s + k - n, 0) // 2
        for n, s, k in zip(size, strides, kernel, strict=True)
    )
    return strides, before, size


def _transpose_conv(call: Call) -> None:
    """Operand 0 is the result's shape, 1 the weight, 2 the image, 3 the bias."""
    moved = call.reordered(2, 1, 3)
    if hybrid.is_hybrid(moved):
        _hybrid_transpose_conv(call, moved)
        return
    if moved.operand(0).dtype == "float32":
        weight = float_weight(moved)
        strides, before, size = _transposed_geometry(call, weight.shape[1:3])
        op: Op = ConvTranspose2d(strides, before, size, *activation(call))
        stored = call.value(np.ascontiguousarray(weight.transpose(3, 0, 1, 2)))
        operands = (moved.tensor(0, "nchw"), stored, *float_bias(moved, 2))
        call.define(call.emit(op, *operands), "nchw")
        return
    weight, scales = weight8(moved, channel_axis=0)
    strides, before, size = _transposed_geometry(call, weight.shape[1:3])
    weight, channels = np.ascontiguousarray(weight.transpose(3, 0, 1, 2)), weight.shape[0]
    if stored_type(moved) == "int8" and weight.dtype == np.int8:
        zero = moved.quant(moved.operand(0))[1]
        op = QConvTranspose2d(strides, before, size, zero, requant8(moved, scales))
        stored = call.value(weight)
        operands = (moved.tensor(0, "nchw"), stored, bias8(moved, 2, channels))
        call.define(call.emit(op, *operands), "nchw")
        return
    dtype = _accumulator(moved, 2)
    op = ConvolutionTranspose(strides, before, (1, 1), 1, size)
    stored = call.value(weight.astype(dtype))
    total = call.emit(op, _widened(moved, 0, "nchw", dtype), stored)
    _emit_sum(moved, total, scales, 2, (1, channels, 1, 1), "nchw")


def _hybrid_transpose_conv(call: Call, moved: Call) -> None:
    """Of float32 with weights of int8: as other convolutions, always with a zero point."""
    weight, scales = weight8(moved, channel_axis=0)
    if weight.ndim != 4:
        raise call.refuse(f"expected a weight of 4 dimensions, got {list(weight.shape)}")
    strides, before, size = _transposed_geometry(call, weight.shape[1:3])
    stored = call.value(weight.transpose(3, 0, 1, 2).astype(np.int32, order="C"))
    whole, scale = hybrid.quantised(call, moved.tensor(0, "nchw"), (1, 2, 3), asymmetric=True)
    op = ConvolutionTranspose(strides, before, (1, 1), 1, size)
    hybrid.emit_sum(moved, call.emit(op, whole, stored), scale, scales, single=False)


def _batch_matmul(call: Call) -> None:
    if hybrid.is_hybrid(call):
        hybrid.matrices(call)
        return
    dtype = "int64" if stored_type(call) == "int16" else "int32"
    sides = []
    for position, turned in ((0, call.option("AdjX")), (1, call.option("AdjY"))):
        value = (
            call.tensor(position)
            if call.operand(0).dtype == "float32"
            else _widened(call, position, "plain", dtype)
        )
        rank = len(value.shape)
        if turned:
            order = (*range(rank - 2), rank - 1, rank - 2)
            value = call.transpose(value, order)
        sides.append(value)
    if call.operand(0).dtype == "float32":
        call.define(call.emit(MatMul(), sides[0], sides[1]))
        return
    total = call.emit(MatMul(), *sides)
    scale = call.quant(call.operand(1))[0]
    shape = (1,) * len(total.shape)
    _emit_sum(call, total, np.array([scale]), len(call.operator.inputs), shape, "plain")


# ---- pools ---------------------------------------------------------------------------------------


def _counts(call: Call, kernel: tuple, strides: tuple, pads: tuple) -> np.ndarray:
    """Elements of the image in every window, [1, 1, H, W]."""
    ones = np.ones((1, 1, *image_shape(call)[1:3]), np.int32)
    return Pool("+", kernel, strides, pads, (1, 1)).evaluate(ones)


def _average(call: Call) -> None:
    same_quant(call, call.operand(0))
    kernel, strides, pads = window(call)
    lo, hi = bounds_of(call)
    value = call.map(lambda x: x.astype("int32"), call.tensor(0, "nchw"))
    total = call.emit(Pool("+", kernel, strides, pads, (1, 1)), value)
    counts = call.value(_counts(call, kernel, strides, pads).astype(np.int32))

    def rule(acc: Expr, count: Expr) -> Expr:
        half = count >> 1
        nudged = select(acc > 0, acc + half, acc - half)
        return saturated(Function("divide", (nudged, count), "int32"), lo, hi, "int16")

    call.define(call.map(rule, total, counts), "nchw")


def _maximum(call: Call) -> None:
    same_quant(call, call.operand(0))
    kernel, strides, pads = window(call)
    lo, hi = bounds_of(call)
    most = call.emit(Pool("max", kernel, strides, pads, (1, 1)), call.tensor(0, "nchw"))
    call.define(call.map(lambda x: clip(x, lo, hi), most), "nchw")


def _l2_pool(call: Call) -> None:
    kernel, strides, pads = window(call)
    lo, hi = activation(call)
    squares = call.map(lambda x: x * x, call.tensor(0, "nchw"))
    total = call.emit(Pool("+", kernel, strides, pads, (1, 1)), squares)
    counts = call.value(_counts(call, kernel, strides, pads).astype(np.float32))

    def rule(acc: Expr, count: Expr) -> Expr:
        root = Function("sqrt", (acc / count,), "float32")
        root = root if lo == -np.inf else maximum(root, lo)
        return root if hi == np.inf else minimum(root, hi)

    call.define(call.map(rule, total, counts), "nchw")


# ---- softmax of int16 ----------------------------------------------------------------------------


def _softmax(call: Call) -> None:
    x, _ = call.quant(call.operand(0))
    y, zero = call.quant(call.result)
    if zero or abs(float(y) * 32768 - 1) > 1e-3:
        raise call.refuse(f"expected a result of scale 2**-15 and zero point 0, got {y!r}, {zero}")
    factors = tflite_params(float(x) * float(call.option("Beta")) / (10.0 / 65535.0))
    exponentials = interpolated16(precise(np.exp), -10.0, 0.0, 32768.0)
    inverses = interpolated16(lambda v: np.float32(1) / (np.float32(1) + v), 0.0, 1.0, 32768.0)
    below = np.clip(rescale(-np.arange(65536), *factors) + 32767, -32768, 32767)
    value = call.tensor(0)
    axes = (len(value.shape) - 1,)
    most = call.reduce("max", value, axes)
    under = call.map(lambda m, v: m.astype("int32") - v.astype("int32"), most, value)
    table = call.value(exponentials[below + 32768].astype(np.int32))
    power = call.emit(Gather(0), table, under)
    total = call.reduce("+", power, axes)

    def place(acc: Expr) -> Expr:
        lifted = acc.astype("int64") << (leading_zeros(acc).astype("int64") - 1)
        return clip(((lifted + (1 << 13)) >> 14) - (1 << 16), 0, 65535).astype("int32")

    index = call.map(place, total)
    second = call.value(inverses.astype(np.int32))
    inverse = call.emit(Gather(0), second, index)

    def rule(e: Expr, factor: Expr, acc: Expr) -> Expr:
        count = (Const(31) - leading_zeros(acc)).astype("int64")
        product = e.astype("int64") * factor.astype("int64")
        made = (product + (Const(1, "int64") << (count - 1))) >> count
        return clip(made, 0, 32767).astype("int16")

    call.define(call.map(rule, power, inverse, total))


# ---- images --------------------------------------------------------------------------------------


def _resize_bilinear(call: Call) -> None:
    """Two taps along each axis; int8 and int16 with weights of 10 fraction bits. Of uint8, the
    kernel computes in floats, and rounds halves of what the file stores up."""
    value, unsigned = call.tensor(0), call.operand(0).dtype == "uint8"
    if unsigned:
        value = call.map(lambda v: v.astype("float32") + float(OFFSET), value)
    real = value.dtype == "float32"
    align, half = call.option("AlignCorners"), call.option("HalfPixelCenters")
    sizes = numbers(call, 1, "size")
    taps, fractions = [], []
    for axis, made in ((1, sizes[0]), (2, sizes[1])):
        size = value.shape[axis]
        low, high, at = (_real_taps if real else _integer_taps)(size, made, align, half)
        taps.append((low, high))
        shape = (made, 1, 1) if axis == 1 else (made, 1)
        fractions.append(call.value(at.reshape(shape)))
    corners = []
    for row in taps[0]:
        rows = call.gather(value, row, 1)
        corners += [call.gather(rows, c, 2) for c in taps[1]]
    stored = value.dtype

    def blend(a: Expr, b: Expr, c: Expr, d: Expr, y: Expr, x: Expr) -> Expr:
        """The kernel's order: y0 x0, y1 x0, y0 x1, y1 x1."""
        if real:
            other_y, other_x = 1.0 - y, 1.0 - x
            made = a * other_y * other_x + c * y * other_x + b * other_y * x + d * y * x
            if unsigned:
                whole = Function("floor", (made + 0.5,), "float32").astype("int32")
                made = (whole - OFFSET).astype("int8")
            return made
        wide = [v.astype("int64") for v in (a, b, c, d)]
        other_y, other_x = Const(1 << 10, "int64") - y, Const(1 << 10, "int64") - x
        total = (
            wide[0] * other_y * other_x
            + wide[2] * y * other_x
            + wide[1] * other_y * x
            + wide[3] * y * x
        )
        nudged = total + select(total > 0, Const(1 << 19, "int64"), Const(-(1 << 19), "int64"))
        return Function("divide", (nudged, Const(1 << 20, "int64")), "int64").astype(stored)

    operands = (*corners, *fractions)
    call.define(call.map(blend, *operands))


def _real_taps(size: int, made: int, align: int, half: int) -> tuple[np.ndarray, ...]:
    scale = np.float32(size) / np.float32(made)
    if align and made > 1:
        scale = np.float32(size - 1) / np.float32(made - 1)
    at = np.arange(made, dtype=np.float32)
    at = (at + np.float32(0.5)) * scale - np.float32(0.5) if half else at * scale
    low = np.maximum(np.floor(at), 0).astype(np.int64)
    high = np.minimum(np.ceil(at), size - 1).astype(np.int64)
    return low, high, (at - low.astype(np.float32)).astype(np.float32)


def _integer_taps(size: int, made: int, align: int, half: int) -> tuple[np.ndarray, ...]:
    scale = ((size << 10) + made // 2) // made
    if align and made > 1:
        scale = (((size - 1) << 10) + (made - 1) // 2) // (made - 1)
    at = np.arange(made, dtype=np.int64) * scale
    at = at + scale // 2 - (1 << 9) if half else at
    cut = lambda v: np.where(v < 0, -((-v) >> 10), v >> 10)  # noqa: E731 - towards zero
    low = np.maximum(cut(at), 0)
    return low, np.minimum(cut(at + (1 << 10) - 1), size - 1), at - (low << 10)


#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {
    "AVERAGE_POOL_2D": {"int16": _average},
    "BATCH_MATMUL": dict.fromkeys(("float32", "int8", "int16"), _batch_matmul),
    "CONV_2D": {"int16": lambda call: _convolved(call, depthwise=False)},
    "DEPTHWISE_CONV_2D": {"int16": lambda call: _convolved(call, depthwise=True)},
    "FULLY_CONNECTED": {"int16": _dense},
    "L2_POOL_2D": {"float32": _l2_pool},
    "MAX_POOL_2D": {"int16": _maximum},
    "RESIZE_BILINEAR": dict.fromkeys(("float32", "int8", "uint8", "int16"), _resize_bilinear),
    "SOFTMAX": {"int16": _softmax},
    "TRANSPOSE_CONV": {"int32": _transpose_conv},
}
