"""Small TensorFlow Lite models, one or a few operators each, with inputs.

Numbers come from a formula, so that the files are the same everywhere; what TensorFlow Lite's
reference kernels compute for them is in ``golden/tflite_operators.npz``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tflite

from .tflite_builder import TfliteBuilder

Case = tuple[bytes, list[np.ndarray]]
CASES: dict[str, Callable[[], Case]] = {}

SAME, VALID = tflite.Padding.SAME, tflite.Padding.VALID
RELU, RELU6, RELU1 = (
    tflite.ActivationFunctionType.RELU,
    tflite.ActivationFunctionType.RELU6,
    tflite.ActivationFunctionType.RELU_N1_TO_1,
)


def case(name: str, **options: Any) -> Callable[[Any], Any]:
    """Register a model under a name, with options of its maker."""

    def register(function: Callable[..., Case]) -> Callable[..., Case]:
        CASES[name] = lambda: function(**options)
        return function

    return register


def values(shape: Sequence[int], seed: int, dtype: str = "int8", low: int = -128, high: int = 127):
    """Integers spread over low..high, without a visible pattern."""
    count = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(seed * 7919 + 1)
    mixed = count * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    spread = (mixed >> np.uint64(33)).astype(np.int64) % (high - low + 1) + low
    return spread.reshape(shape).astype(dtype)


def activation(shape: Sequence[int], seed: int, dtype: str = "int8") -> np.ndarray:
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    return values(shape, seed, dtype, low, high)


def zero_of(dtype: str, zero: int) -> list[int]:
    """A zero point for int8, moved for uint8."""
    return [zero + 128 if dtype == "uint8" else zero]


def scales(count: int, seed: int) -> list[float]:
    return [float(np.float32(v / 1e5)) for v in values([count], seed, "int64", 100, 1500)]


def convolution(
    kind: str = "CONV_2D",
    shape: Sequence[int] = (1, 9, 8, 6),
    channels: int = 10,
    kernel: tuple[int, int] = (3, 3),
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    padding: int = SAME,
    fused: int = 0,
    per_channel: bool = True,
    bias: bool = True,
    groups: int = 1,
    dtype: str = "int8",
    weight_zero: int = 0,
) -> Case:
    b = TfliteBuilder()
    depthwise = kind == "DEPTHWISE_CONV_2D"
    batch, height, width, inputs = shape
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = [
        -(-n // s) if padding == SAME else -(-(n - r + 1) // s)
        for n, r, s in zip((height, width), reach, stride, strict=True)
    ]
    weight_shape = (1, *kernel, channels) if depthwise else (channels, *kernel, inputs // groups)
    data = (
        activation(weight_shape, 2, dtype)
        if dtype == "uint8"
        else values(weight_shape, 2, low=-127)
    )
    x = b.tensor(shape, dtype, [0.031], zero_of(dtype, -7))
    weight_scale = scales(channels if per_channel else 1, 3)
    weight_zeros = [weight_zero] * len(weight_scale)
    w = b.tensor(weight_shape, dtype, weight_scale, weight_zeros, 3 if depthwise else 0, data)
    operands = [x, w]
    if bias:
        stored = values([channels], 4, "int32", -4000, 4000)
        bias_scale = [float(np.float32(0.031) * np.float32(s)) for s in weight_scale]
        operands.append(b.tensor([channels], "int32", bias_scale, [0] * len(bias_scale), 0, stored))
    y = b.tensor((batch, *size, channels), dtype, [0.21], zero_of(dtype, 9))
    table = "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions"
    more = {"DepthMultiplier": channels // inputs} if depthwise else {}
    b.operator(
        kind, operands, [y], table, Padding=padding, StrideH=stride[0], StrideW=stride[1],
        FusedActivationFunction=fused, DilationHFactor=dilation[0], DilationWFactor=dilation[1],
        **more,
    )  # fmt: skip
    return b.file([x], [y]), [activation(shape, 1, dtype)]


DEPTHWISE = {"kind": "DEPTHWISE_CONV_2D", "channels": 6}
UINT8 = {"dtype": "uint8", "per_channel": False, "weight_zero": 120}
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "conv": {},
    "conv_strided_relu6": {"stride": (2, 3), "fused": RELU6},
    "conv_valid_relu": {"padding": VALID, "stride": (2, 2), "fused": RELU, "kernel": (4, 3)},
    "conv_dilated": {"dilation": (2, 3), "padding": VALID, "kernel": (3, 2)},
    "conv_dilated_same": {"dilation": (2, 2), "padding": SAME},
    "conv_pointwise": {"kernel": (1, 1), "channels": 17},
    "conv_per_tensor_batch": {"per_channel": False, "shape": (3, 5, 5, 6), "fused": RELU1},
    "conv_grouped": {"groups": 3, "channels": 12},
    "conv_uint8": UINT8,
    "conv_uint8_pointwise": {**UINT8, "kernel": (1, 1), "weight_zero": 131},
    "depthwise": DEPTHWISE,
    "depthwise_multiplied": {**DEPTHWISE, "channels": 18, "fused": RELU6, "stride": (2, 2)},
    "depthwise_dilated": {**DEPTHWISE, "dilation": (2, 2), "padding": VALID},
    "depthwise_uint8": {**DEPTHWISE, **UINT8},
}
for _name, _options in CONVOLUTIONS.items():
    case(_name, **_options)(convolution)


def dense(
    shape: Sequence[int] = (4, 40),
    width: int = 40,
    channels: int = 11,
    bias: bool = True,
    fused: int = 0,
    dtype: str = "int8",
    weight_zero: int = 0,
    keep: bool = False,
) -> Case:
    b = TfliteBuilder()
    x = b.tensor(shape, dtype, [0.031], zero_of(dtype, -7))
    data = activation([channels, width], 2, dtype)
    w = b.tensor([channels, width], dtype, [0.0071], [weight_zero], 0, data)
    operands = [x, w]
    if bias:
        stored = values([channels], 4, "int32", -4000, 4000)
        operands.append(b.tensor([channels], "int32", [0.031 * 0.0071], [0], 0, stored))
    rows = [int(np.prod(shape)) // width]
    y = b.tensor([*(shape[:-1] if keep else rows), channels], dtype, [0.3], zero_of(dtype, -20))
    b.operator(
        "FULLY_CONNECTED", operands, [y], "FullyConnectedOptions",
        FusedActivationFunction=fused, KeepNumDims=keep,
    )  # fmt: skip
    return b.file([x], [y]), [activation(shape, 1, dtype)]


case("dense_relu", fused=RELU)(dense)
case("dense_image_no_bias", shape=(2, 3, 4, 5), width=60, bias=False)(dense)
case("dense_keeps_dimensions", shape=(2, 3, 40), keep=True)(dense)
case("dense_uint8", dtype="uint8", weight_zero=117)(dense)


def pairwise(
    kind: str = "ADD",
    a: tuple[float, int] = (0.031, -7),
    b: tuple[float, int] = (0.052, 11),
    y: tuple[float, int] = (0.061, 3),
    shape: Sequence[int] = (2, 5, 4, 6),
    second: Sequence[int] | None = None,
    constant: bool = False,
    fused: int = 0,
    dtype: str = "int8",
) -> Case:
    m = TfliteBuilder()
    second = shape if second is None else second
    other = activation(second, 2, dtype)
    left = m.tensor(shape, dtype, [a[0]], zero_of(dtype, a[1]))
    right = m.tensor(second, dtype, [b[0]], zero_of(dtype, b[1]), 0, other if constant else None)
    result = m.tensor(
        np.broadcast_shapes(tuple(shape), tuple(second)), dtype, [y[0]], zero_of(dtype, y[1])
    )
    table = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions"}[kind]
    m.operator(kind, [left, right], [result], table, FusedActivationFunction=fused)
    inputs = [activation(shape, 1, dtype)]
    if constant:
        return m.file([left], [result]), inputs
    return m.file([left, right], [result]), [*inputs, other]


case("add")(pairwise)
case("add_relu", fused=RELU, y=(0.05, -128))(pairwise)
#: Scales as training leaves them; round ones have exact ties.
case("add_trained", a=(0.0393935, 4), b=(0.1041949, -128), y=(0.0509456, -128))(pairwise)
case("add_ties", a=(0.5, 3), b=(0.5, -4), y=(1.0, 5))(pairwise)
case("add_scalar_constant", second=(1,), constant=True)(pairwise)
case("add_channel_constant", second=(6,), constant=True, fused=RELU6)(pairwise)
case("add_uint8", dtype="uint8")(pairwise)
case("sub", kind="SUB")(pairwise)
case("sub_broadcast", kind="SUB", second=(2, 1, 1, 6))(pairwise)


def pool(
    kind: str,
    shape: Sequence[int] = (2, 9, 8, 6),
    kernel: tuple[int, int] = (3, 2),
    stride: tuple[int, int] = (2, 2),
    padding: int = VALID,
    fused: int = 0,
    dtype: str = "int8",
) -> Case:
    b = TfliteBuilder()
    x = b.tensor(shape, dtype, [0.031], zero_of(dtype, -7))
    size = [
        -(-n // s) if padding == SAME else -(-(n - k + 1) // s)
        for n, k, s in zip(shape[1:3], kernel, stride, strict=True)
    ]
    y = b.tensor((shape[0], *size, shape[3]), dtype, [0.031], zero_of(dtype, -7))
    b.operator(
        kind, [x], [y], "Pool2DOptions", Padding=padding, StrideH=stride[0], StrideW=stride[1],
        FilterHeight=kernel[0], FilterWidth=kernel[1], FusedActivationFunction=fused,
    )  # fmt: skip
    return b.file([x], [y]), [activation(shape, 1, dtype)]


for _kind in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
    _label = _kind.lower()[:-3]
    case(f"{_label}", kind=_kind)(pool)
    case(f"{_label}_same", kind=_kind, padding=SAME, kernel=(4, 3), stride=(1, 2))(pool)
    case(f"{_label}_same_relu6", kind=_kind, padding=SAME, kernel=(3, 3), fused=RELU6)(pool)
    case(f"{_label}_uint8", kind=_kind, dtype="uint8", padding=SAME)(pool)
case("average_pool_whole", kind="AVERAGE_POOL_2D", kernel=(9, 8), stride=(9, 8))(pool)


def softmax(
    shape: Sequence[int] = (5, 12), scale: float = 0.1, beta: float = 1.0, dtype: str = "int8"
) -> Case:
    b = TfliteBuilder()
    x = b.tensor(shape, dtype, [scale], zero_of(dtype, 14))
    y = b.tensor(shape, dtype, [1 / 256], zero_of(dtype, -128))
    b.operator("SOFTMAX", [x], [y], "SoftmaxOptions", Beta=beta)
    return b.file([x], [y]), [activation(shape, 1, dtype)]


case("softmax")(softmax)
case("softmax_flat", scale=0.004, shape=(3, 40))(softmax)
case("softmax_steep", scale=0.7, beta=0.5)(softmax)
case("softmax_image", shape=(1, 3, 4, 7), scale=0.02)(softmax)
case("softmax_uint8", dtype="uint8")(softmax)
case("mul", kind="MUL", y=(0.02, 3))(pairwise)
case("mul_broadcast_relu6", kind="MUL", second=(2, 1, 1, 6), fused=RELU6, y=(0.03, -128))(pairwise)
case("mul_uint8", kind="MUL", dtype="uint8", y=(0.017, 0))(pairwise)


def unary(
    kind: str,
    x: tuple[float, int] = (0.031, -7),
    y: tuple[float, int] = (0.031, -7),
    shape: Sequence[int] = (2, 128),
    dtype: str = "int8",
    result: str = "",
    table: str = "",
    **options: float,
) -> Case:
    b = TfliteBuilder()
    quant_x, quant_y = ([scale] if scale else [] for scale, _ in (x, y))
    source = b.tensor(shape, dtype, quant_x, zero_of(dtype, x[1]))
    result = result or dtype
    made = b.tensor(shape, result, quant_y, zero_of(result, y[1]))
    b.operator(kind, [source], [made], table, **options)
    if dtype == "float32":
        data = (values(shape, 1, "float32", -500, 500) / 64).astype(np.float32)
    else:
        data = (np.arange(np.prod(shape)) % 256).reshape(shape).astype(np.uint8).view(dtype)
    return b.file([source], [made]), [data]


F = "float32"
case("relu", kind="RELU", y=(0.027, -100))(unary)
case("relu6", kind="RELU6", y=(0.05, -20))(unary)
case("relu6_uint8", kind="RELU6", y=(0.05, -20), dtype="uint8")(unary)
case("leaky_relu", kind="LEAKY_RELU", y=(0.021, 4), table="LeakyReluOptions", Alpha=0.13)(unary)
case("logistic", kind="LOGISTIC", y=(1 / 256, -128))(unary)
case("logistic_uint8", kind="LOGISTIC", y=(1 / 256, -128), dtype="uint8")(unary)
case("tanh", kind="TANH", y=(1 / 128, 0))(unary)
case("tanh_uint8", kind="TANH", y=(1 / 128, 0), dtype="uint8")(unary)
case("requantize", kind="QUANTIZE", y=(0.044, 5))(unary)
case("requantize_uint8", kind="QUANTIZE", x=(0.5, 3), y=(0.5, 3), dtype="uint8", result="int8")(
    unary
)
case("requantize_to_uint8", kind="QUANTIZE", y=(0.013, 8), result="uint8")(unary)
case("quantize", kind="QUANTIZE", x=(0, 0), y=(1 / 16, 5), dtype=F, result="int8")(unary)
case("quantize_uint8", kind="QUANTIZE", x=(0, 0), y=(0.07, 5), dtype="float32", result="uint8")(
    unary
)
case("dequantize", kind="DEQUANTIZE", y=(0, 0), result=F)(unary)
case("dequantize_uint8", kind="DEQUANTIZE", y=(0, 0), dtype="uint8", result=F)(unary)


def mean(
    axes: Sequence[int] = (1, 2),
    keep: bool = False,
    y: tuple[float, int] = (0.031, -7),
    shape: Sequence[int] = (2, 5, 7, 6),
    dtype: str = "int8",
) -> Case:
    b = TfliteBuilder()
    x = b.tensor(shape, dtype, [0.031], zero_of(dtype, -7))
    over = b.tensor([len(axes)], "int32", data=np.array(axes, np.int32))
    left = [1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes]
    made = b.tensor(left, dtype, [y[0]], zero_of(dtype, y[1]))
    b.operator("MEAN", [x, over], [made], "ReducerOptions", KeepDims=keep)
    data = activation(shape, 1, dtype)
    data[0, ..., :3] = data[0, ..., :3] // 2 + (20 if dtype == "int8" else 100)
    return b.file([x], [made]), [data]


case("mean")(mean)
case("mean_even", shape=(2, 4, 4, 6), keep=True)(mean)
case("mean_rescaled", y=(0.0123, 20))(mean)
case("mean_rescaled_kept", y=(0.0123, 20), keep=True, shape=(2, 4, 6, 6))(mean)
case("mean_uint8", dtype="uint8", keep=True)(mean)
case("mean_uint8_rescaled", dtype="uint8", y=(0.0123, 20))(mean)


def pad(kind: str = "PAD", dtype: str = "int8", fill: int | None = None) -> Case:
    b = TfliteBuilder()
    quant = [0.031], zero_of(dtype, -7)
    x = b.tensor((1, 4, 5, 3), dtype, *quant)
    spread = np.array([[0, 0], [1, 2], [0, 3], [0, 0]], np.int32)
    operands = [x, b.tensor(spread.shape, "int32", data=spread)]
    if fill is not None:
        operands.append(b.tensor([1], dtype, *quant, data=np.array([fill], dtype)))
    y = b.tensor((1, 7, 8, 3), dtype, *quant)
    b.operator(kind, operands, [y])
    return b.file([x], [y]), [activation((1, 4, 5, 3), 1, dtype)]


case("pad")(pad)
case("pad_uint8", dtype="uint8")(pad)
case("pad_value", kind="PADV2", fill=33)(pad)


def concat(axis: int = 3, dtype: str = "int8") -> Case:
    b = TfliteBuilder()
    quant = [0.031], zero_of(dtype, -7)
    shapes = [[2, 3, 4, 5], [2, 3, 4, 5], [2, 3, 4, 5]]
    for shape, extra in zip(shapes, (0, 2, 3), strict=True):
        shape[axis] += extra
    operands = [b.tensor(shape, dtype, *quant) for shape in shapes]
    whole = list(shapes[0])
    whole[axis] = sum(shape[axis] for shape in shapes)
    y = b.tensor(whole, dtype, *quant)
    b.operator("CONCATENATION", operands, [y], "ConcatenationOptions", Axis=axis)
    return b.file(operands, [y]), [activation(s, i, dtype) for i, s in enumerate(shapes)]


case("concatenation")(concat)
case("concatenation_rows", axis=1, dtype="uint8")(concat)


def transpose(perm: Sequence[int] = (0, 3, 1, 2)) -> Case:
    b = TfliteBuilder()
    shape = (2, 3, 4, 5)
    x = b.tensor(shape, "int8", [0.1], [0])
    order = b.tensor([4], "int32", data=np.array(perm, np.int32))
    y = b.tensor([shape[p] for p in perm], "int8", [0.1], [0])
    b.operator("TRANSPOSE", [x, order], [y])
    return b.file([x], [y]), [activation(shape, 1)]


case("transpose")(transpose)
case("transpose_rows", perm=(2, 0, 3, 1))(transpose)


@case("inverted_residual")
@case("inverted_residual_nchw", transposed=True)
def inverted_residual(transposed: bool = False) -> Case:
    """MobileNetV2's block with an explicit pad, a mean, a dense layer; float at both ends."""
    b = TfliteBuilder()
    quant = [0.031], [-7]
    image, wide = (1, 8, 8, 8), (1, 8, 8, 24)
    first = (1, 8, 8, 8)
    x = b.tensor(first, "float32")
    q = b.tensor(first, "int8", *quant)
    b.operator("QUANTIZE", [x], [q])
    if transposed:
        order = b.tensor([4], "int32", data=np.array([0, 2, 3, 1], np.int32))
        moved = b.tensor(image, "int8", *quant)
        b.operator("TRANSPOSE", [q, order], [moved])
        q = moved

    def weights(shape: Sequence[int], axis: int, count: int, seed: int) -> list[int]:
        w = b.tensor(shape, "int8", scales(count, seed), [0] * count, axis, values(shape, seed))
        bias = values([count], seed + 1, "int32", -3000, 3000)
        return [w, b.tensor([count], "int32", [0.001], [0], 0, bias)]

    def conv(
        kind: str, source: int, result: int, operands: list[int], fused: int, pad: int
    ) -> None:
        table = "Conv2DOptions" if kind == "CONV_2D" else "DepthwiseConv2DOptions"
        more = {} if kind == "CONV_2D" else {"DepthMultiplier": 1}
        b.operator(
            kind, [source, *operands], [result], table, Padding=pad, StrideH=1, StrideW=1,
            FusedActivationFunction=fused, DilationHFactor=1, DilationWFactor=1, **more,
        )  # fmt: skip

    expanded = b.tensor(wide, "int8", [0.0235], [-128])
    conv("CONV_2D", q, expanded, weights((24, 1, 1, 8), 0, 24, 11), RELU6, SAME)
    spread = np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32)
    padded = b.tensor((1, 10, 10, 24), "int8", [0.0235], [-128])
    b.operator("PAD", [expanded, b.tensor((4, 2), "int32", data=spread)], [padded])
    deep = b.tensor(wide, "int8", [0.0235], [-128])
    conv("DEPTHWISE_CONV_2D", padded, deep, weights((1, 3, 3, 24), 3, 24, 21), RELU6, VALID)
    narrow = b.tensor(image, "int8", [0.09], [4])
    conv("CONV_2D", deep, narrow, weights((8, 1, 1, 24), 0, 8, 31), 0, SAME)
    total = b.tensor(image, "int8", [0.1], [2])
    b.operator("ADD", [q, narrow], [total], "AddOptions", FusedActivationFunction=0)
    over = b.tensor([2], "int32", data=np.array([1, 2], np.int32))
    average = b.tensor((1, 8), "int8", [0.05], [3])
    b.operator("MEAN", [total, over], [average], "ReducerOptions", KeepDims=False)
    logits = b.tensor((1, 5), "int8", [0.07], [-3])
    w = b.tensor((5, 8), "int8", [0.01], [0], 0, values((5, 8), 41))
    bias = b.tensor([5], "int32", [0.0005], [0], 0, values([5], 42, "int32", -900, 900))
    b.operator(
        "FULLY_CONNECTED", [average, w, bias], [logits], "FullyConnectedOptions",
        FusedActivationFunction=0,
    )  # fmt: skip
    result = b.tensor((1, 5), "float32")
    b.operator("DEQUANTIZE", [logits], [result])
    data = (values(first, 5, "float32", -400, 400) / 100).astype(np.float32)
    return b.file([x], [result]), [data]


@case("float_network")
def float_network() -> Case:
    """Every operator that has a float form, in a row."""
    b = TfliteBuilder()
    image = (1, 6, 6, 4)

    def tensor(shape: Sequence[int]) -> int:
        return b.tensor(shape, F)

    def constant(shape: Sequence[int], seed: int) -> int:
        return b.tensor(shape, F, data=(values(shape, seed, F) / 300).astype(np.float32))

    def unary_step(kind: str, source: int, shape: Sequence[int] = image) -> int:
        y = tensor(shape)
        b.operator(kind, [source], [y])
        return y

    strides = {"StrideH": 1, "StrideW": 1}
    dilations = {"DilationHFactor": 1, "DilationWFactor": 1}
    x, conv, deep, total = (tensor(image) for _ in range(4))
    operands = [x, constant((4, 3, 3, 4), 2), constant([4], 3)]
    relu6 = {"FusedActivationFunction": RELU6, "Padding": SAME, **strides}
    b.operator("CONV_2D", operands, [conv], "Conv2DOptions", **relu6, **dilations)
    operands = [conv, constant((1, 3, 3, 4), 4), constant([4], 5)]
    table, plain = "DepthwiseConv2DOptions", {"Padding": SAME, **strides, **dilations}
    b.operator("DEPTHWISE_CONV_2D", operands, [deep], table, **plain, DepthMultiplier=1)
    b.operator("ADD", [conv, deep], [total], "AddOptions", FusedActivationFunction=0)
    source = unary_step("TANH", unary_step("LOGISTIC", unary_step("RELU", total)))
    for kind in ("MAX_POOL_2D", "AVERAGE_POOL_2D"):
        pooled = tensor(image)
        kernel = {"FilterHeight": 3, "FilterWidth": 2}
        b.operator(kind, [source], [pooled], "Pool2DOptions", Padding=SAME, **strides, **kernel)
        source = pooled
    logits, y = tensor((1, 7)), tensor((1, 7))
    operands = [unary_step("RELU6", source), constant((7, 144), 6), constant([7], 7)]
    b.operator("FULLY_CONNECTED", operands, [logits], "FullyConnectedOptions")
    b.operator("SOFTMAX", [logits], [y], "SoftmaxOptions", Beta=0.7)
    return b.file([x], [y]), [(values(image, 8, F, -500, 500) / 200).astype(np.float32)]
