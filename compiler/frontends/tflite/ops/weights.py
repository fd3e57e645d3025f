"""What convolutions and dense layers share: weights, biases, and what becomes of their sums.

Sums of int16 activations are int64 where the file's bias is int64, else int32. Float activations
with weights of int8 are quantised while they run: each row of a dense layer, an SVDF or an LSTM,
and each image of a convolution, has a scale of its own.
"""

from __future__ import annotations

import numpy as np

from ....graph.arithmetic.requant import INT8_MAX, INT8_MIN, Requant, tflite_params, tflite_requant
from ....graph.ir import Tensor
from ....graph.ops.linear import MatMul
from ....te.expr import Call as Function
from ....te.expr import Const, Expr, maximum, minimum, select
from ..graph import Call
from .rules import rounded, saturated

# ---- floats --------------------------------------------------------------------------------------


def float_bias(call: Call, position: int) -> tuple[Tensor, ...]:
    """The name of the bias, if there is one."""
    tensor = call.optional(position)
    if tensor is None:
        return ()
    data = call.constant(position, "bias").reshape(-1)
    return (call.importer.constant(call.importer.label(tensor), data),)


def float_weight(call: Call) -> np.ndarray:
    """The weight of a float operator."""
    data = call.constant(1, "weight")
    if data.dtype != np.float32:
        raise call.refuse(f"supported weights of a float operator are float32, got {data.dtype}")
    return data


def weight_of(call: Call, channel_axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The weight and its scales, of float32 none."""
    if call.operand(0).dtype != "float32" or is_hybrid(call):
        return weight8(call, channel_axis)
    return float_weight(call), np.zeros(0, np.float32)


# ---- integers of 8 bits --------------------------------------------------------------------------


def bias8(call: Call, position: int, channels: int) -> Tensor:
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


def weight8(call: Call, channel_axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The weight less its zero point, and its scales: one, or one per channel.

    The weight is int8, or int16 where int8 does not hold all values.
    """
    tensor, data = call.operand(1), call.constant(1, "weight")
    if tensor.dtype not in ("int8", "uint8"):
        raise call.refuse(f"supported weights are int8 and uint8, got {tensor.dtype} of {tensor}")
    if tensor.scale.size == 0:
        raise call.refuse(f"weight {tensor} has no scale; the model is not quantised")
    if tensor.scale.size > 1 and tensor.scaled_axis != channel_axis:
        raise call.refuse(
            f"weight {tensor} is scaled along dimension {tensor.scaled_axis}, not {channel_axis}"
        )
    shape = [1] * data.ndim
    if tensor.scale.size > 1:
        shape[tensor.scaled_axis] = -1
    centred = data.astype(np.int64) - tensor.zero_point.reshape(shape)
    fits = centred.min() >= INT8_MIN and centred.max() <= INT8_MAX
    return centred.astype(np.int8 if fits else np.int16), tensor.scale


def factors(call: Call, scales: np.ndarray) -> np.ndarray:
    """Real factors from sums of products to the result, float64 [C] or [1].

    Where all channels share one scale, the kernels multiply in float32, except in convolutions of
    int8.
    """
    (x, _), (y, _) = call.quant(call.operand(0)), call.quant(call.result)
    single = call.operand(0).dtype == "uint8" or call.operator.kind == "FULLY_CONNECTED"
    if single and scales.size == 1:
        return (x * scales).astype(np.float64) / np.float64(y)
    return np.float64(x) * scales.astype(np.float64) / np.float64(y)


def requant8(call: Call, scales: np.ndarray) -> Requant:
    """How sums of products become the result."""
    return tflite_requant(factors(call, scales), call.quant(call.result)[1], *call.bounds())


# ---- sums of int16 activations -------------------------------------------------------------------


def accumulator(call: Call, bias_position: int) -> str:
    """The type of sums: the bias's, or int64 without one."""
    bias = call.optional(bias_position)
    if bias is None:
        return "int64"
    if bias.dtype not in ("int32", "int64"):
        raise call.refuse(f"supported biases are int32 and int64, got {bias.dtype} of {bias}")
    return bias.dtype


def reduced(multiplier: np.ndarray | np.int64) -> np.ndarray:
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


def multipliers(real: np.ndarray, wide: str) -> tuple[np.ndarray, np.ndarray]:
    """Multipliers and shifts by which :func:`scaled` takes real factors, for sums of a type."""
    pairs = [tflite_params(float(factor)) for factor in real]
    multiplier, shift = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    return (reduced(multiplier), shift + 15) if wide == "int64" else (multiplier, shift)


def emit_sum(
    call: Call,
    total: Tensor,
    scales: np.ndarray,
    bias_position: int,
    shape: tuple[int, ...],
    layout: str,
) -> None:
    """Bias, scale, zero point and bounds of a sum whose channels lie along the one axis of
    ``shape`` that is not 1."""
    wide, channels = total.dtype, int(np.prod(shape))
    bias = np.zeros(channels, wide)
    if call.optional(bias_position) is not None:
        bias = call.constant(bias_position, "bias").reshape(-1)
        if bias.size != channels:
            raise call.refuse(f"expected a bias of {channels} elements, got {bias.size}")
    pair = multipliers(np.broadcast_to(factors(call, scales), channels), wide)
    operands = (call.value(data.reshape(shape), wide) for data in (bias, *pair))
    zero, (lo, hi) = call.quant(call.result)[1], call.bounds()

    def rule(acc: Expr, bias: Expr, factor: Expr, count: Expr) -> Expr:
        made = scaled(acc + bias, factor, count)
        return saturated(made + zero, lo, hi, call.stored_type)

    call.define(call.map(rule, total, *operands), layout)


def widened(call: Call, position: int, layout: str, dtype: str) -> Tensor:
    """An operand's integers less their zero point, in a type for sums."""
    zero = call.quant(call.operand(position))[1]
    return call.map(lambda x: x.astype(dtype) - zero, call.tensor(position, layout))


# ---- floats with weights of int8 -----------------------------------------------------------------


def is_hybrid(call: Call) -> bool:
    """Whether a float operator has weights of int8."""
    return call.operand(0).dtype == "float32" and call.operand(1).dtype in ("int8", "uint8")


def quantised(
    call: Call, value: Tensor, axes: tuple[int, ...], asymmetric: bool
) -> tuple[Tensor, Tensor]:
    """Integers less their zero point, int32, and their scales, which have size 1 along ``axes``."""
    least = call.reduce("min", value, axes)
    most = call.reduce("max", value, axes)
    if not asymmetric:
        bound = call.map(lambda a, b: maximum(b, 0.0 - a), least, most)

        def symmetric(x: Expr, b: Expr) -> Expr:
            steps = rounded(x * (127.0 / select(b <= 0.0, 1.0, b)))
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
        return select(high <= low, 0.0, rounded(bounded))

    zero = call.map(offset, least, most)
    scale = call.map(lambda a, b: spread(a, b)[2].astype("float32"), least, most)

    def shifted(x: Expr, s: Expr, z: Expr) -> Expr:
        steps = minimum(maximum(z + rounded(x * (1.0 / s)), -128.0), 127.0)
        return (steps - z).astype("int32")

    return call.map(shifted, value, scale, zero), scale


def stored_weight(call: Call, weight: np.ndarray, scales: np.ndarray) -> tuple[Tensor, Tensor]:
    """Constants of weights int8 [..., K, N] and of their scales [1, N], for :func:`products`."""
    return call.value(weight, "int32"), call.value(scales, "float32")


def products(call: Call, rows: Tensor, weight: tuple[Tensor, Tensor]) -> Tensor:
    """Rows [..., M, K], quantised each by its own range, times a weight of :func:`stored_weight`:
    ``sum * (scale of the row * scale of the weights)``, float32 [..., M, N]."""
    asymmetric = bool(call.option("AsymmetricQuantizeInputs"))
    whole, scale = quantised(call, rows, (len(rows.shape) - 1,), asymmetric)
    total = call.emit(MatMul(), whole, weight[0])

    def rule(acc: Expr, s: Expr, factor: Expr) -> Expr:
        return acc.astype("float32") * (s * factor)

    return call.map(rule, total, scale, weight[1])
