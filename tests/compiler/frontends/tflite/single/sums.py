"""Rows of operators that reduce axes, and of products, windows and images."""

from __future__ import annotations

import numpy as np

from .draft import Case, Draft, Maker

SAME, VALID = 0, 1


def reduction(kind: str, same: bool = False) -> Maker:
    """A reduction over random axes; ``same`` where both sides must have one scale."""

    def make(d: Draft) -> Case:
        shape, quant = d.shape(), d.quant()
        count = d.size(1, len(shape))
        axes = sorted(int(v) for v in d.rng.choice(len(shape), count, replace=False))
        keep = d.chance()
        made = [1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes]
        given = [axis - len(shape) if d.chance() else axis for axis in axes]
        y = d.y(made, quant=quant if same else None)
        operands = [d.x(shape, quant=quant), d.constant(given)]
        return d.case(kind, operands, [y], "ReducerOptions", KeepDims=keep)

    return make


def arg(kind: str) -> Maker:
    def make(d: Draft) -> Case:
        shape = d.shape()
        axis = d.size(0, len(shape) - 1)
        y = d.builder.tensor([*shape[:axis], *shape[axis + 1 :]], "int32")
        operands = [d.x(shape), d.constant([axis])]
        return d.case(kind, operands, [y], f"{kind.title().replace('_', '')}Options", OutputType=2)

    return make


def cumsum(d: Draft) -> Case:
    shape = d.shape()
    operands = [d.x(shape), d.constant(np.int32(d.size(0, len(shape) - 1)))]
    options = {"Exclusive": d.chance(), "Reverse": d.chance()}
    return d.case("CUMSUM", operands, [d.y(shape)], "CumsumOptions", **options)


def weights(d: Draft, shape: tuple[int, ...], axis: int) -> tuple[int, float]:
    """Weights of int8, or of float32, and their scale; of integers, one scale per channel."""
    if d.dtype == "float32":
        return d.constant(d.draw(shape, "float32", -1, 1), "float32"), 0.0
    data = d.draw(shape, "int8", -127, 127)
    count = shape[axis] if d.chance() else 1
    scale = np.exp(d.rng.uniform(-6, -4, count)).astype(np.float32)
    return d.builder.tensor(shape, "int8", scale.tolist(), [0] * count, axis, data), float(scale[0])


def bias(d: Draft, channels: int) -> list[int]:
    if d.chance():
        return []
    match d.dtype:
        case "float32":
            return [d.constant(d.draw((channels,), "float32", -1, 1), "float32")]
        case "int16":
            return [d.constant(d.draw((channels,), "int64", -(10**6), 10**6), "int64")]
    return [d.constant(d.draw((channels,), "int32", -9000, 9000), "int32")]


def window(
    d: Draft, kernel: tuple[int, int], size: tuple[int, int], dilate: bool
) -> tuple[dict, list]:
    """Options of a window, and the size of its result."""
    padding, made = d.size(0, 1), []
    strides = d.size(1, 2), d.size(1, 2)
    dilations = (d.size(1, 2), d.size(1, 2)) if dilate else (1, 1)
    for n, k, s, e in zip(size, kernel, strides, dilations, strict=True):
        reach = (k - 1) * e + 1
        made.append(-(-n // s) if padding == SAME else (n - reach) // s + 1)
    options = {"Padding": padding, "StrideH": strides[0], "StrideW": strides[1]}
    if dilate:
        options |= {"DilationHFactor": dilations[0], "DilationWFactor": dilations[1]}
    return options | {"FusedActivationFunction": d.size(0, 3)}, made


def conv(kind: str) -> Maker:
    def make(d: Draft) -> Case:
        n, h, w, c = d.size(1, 2), d.size(5, 8), d.size(5, 8), d.size(1, 5)
        kernel = d.size(1, 3), d.size(1, 3)
        options, made = window(d, kernel, (h, w), dilate=True)
        x = d.x((n, h, w, c), quant=d.quant())
        if kind == "CONV_2D":
            out = d.size(1, 5)
            weight, _ = weights(d, (out, *kernel, c), 0)
            table = "Conv2DOptions"
        else:
            times = d.size(1, 2)
            out, table = c * times, "DepthwiseConv2DOptions"
            weight, _ = weights(d, (1, *kernel, out), 3)
            options["DepthMultiplier"] = times
        y = d.y((n, *made, out), quant=result(d))
        return d.case(kind, [x, weight, *bias(d, out)], [y], table, **options)

    return make


def result(d: Draft) -> tuple[float, int] | None:
    """A scale that leaves sums of products inside the type, mostly."""
    quant = d.quant()
    return quant and (quant[0] * 8, quant[1])


def fully_connected(d: Draft) -> Case:
    rows, width, out = d.size(1, 4), d.size(1, 20), d.size(1, 6)
    data = d.draw((out, width), "int8", -127, 127)
    if d.dtype == "float32":
        weight = d.constant(d.draw((out, width), "float32", -1, 1), "float32")
    else:
        weight = d.builder.tensor((out, width), "int8", [0.01], [0], 0, data)
    operands = [d.x((rows, width)), weight, *(bias(d, out) or [-1])]
    options = {"FusedActivationFunction": d.size(0, 3)}
    y = d.y((rows, out), quant=result(d))
    return d.case("FULLY_CONNECTED", operands, [y], "FullyConnectedOptions", **options)


def batch_matmul(d: Draft) -> Case:
    batch, n, k, m = [d.size(1, 3)], d.size(1, 5), d.size(1, 9), d.size(1, 5)
    turned = d.chance(), d.chance()
    a = (*batch, k, n) if turned[0] else (*batch, n, k)
    b = (*batch, m, k) if turned[1] else (*batch, k, m)
    y = d.y((*batch, n, m), quant=result(d))
    options = {"AdjX": turned[0], "AdjY": turned[1]}
    return d.case("BATCH_MATMUL", [d.x(a), d.x(b)], [y], "BatchMatMulOptions", **options)


def transpose_conv(d: Draft) -> Case:
    n, h, w, c, out = d.size(1, 2), d.size(2, 5), d.size(2, 5), d.size(1, 4), d.size(1, 4)
    kernel, strides, padding = (
        (d.size(1, 3), d.size(1, 3)),
        (d.size(1, 3), d.size(1, 3)),
        d.size(0, 1),
    )
    made = [
        size * s if padding == SAME else (size - 1) * s + max(k, s)
        for size, k, s in zip((h, w), kernel, strides, strict=True)
    ]
    weight, _ = weights(d, (out, *kernel, c), 0)
    shape = d.constant([n, *made, out])
    operands = [shape, weight, d.x((n, h, w, c)), *bias(d, out)]
    options = {"Padding": padding, "StrideH": strides[0], "StrideW": strides[1]}
    y = d.y((n, *made, out), quant=result(d))
    return d.case("TRANSPOSE_CONV", operands, [y], "TransposeConvOptions", **options)


def pool(kind: str) -> Maker:
    def make(d: Draft) -> Case:
        n, h, w, c = d.size(1, 2), d.size(4, 8), d.size(4, 8), d.size(1, 5)
        kernel, quant = (d.size(1, 4), d.size(1, 4)), d.quant()
        options, made = window(d, kernel, (h, w), dilate=False)
        options |= {"FilterHeight": kernel[0], "FilterWidth": kernel[1]}
        y = d.y((n, *made, c), quant=quant)
        return d.case(kind, [d.x((n, h, w, c), quant=quant)], [y], "Pool2DOptions", **options)

    return make


def rows(kind: str, results: dict, table: str = "", **options: float) -> Maker:
    """An operator along the last axis, whose result has a fixed scale."""

    def make(d: Draft) -> Case:
        shape = d.shape(d.size(1, 3), 9)
        quant = d.quant()
        if d.dtype == "int16":
            quant = (quant[0] if quant else 1.0, 0)
        y = d.y(shape, quant=results.get(d.dtype))
        return d.case(kind, [d.x(shape, quant=quant)], [y], table, **options)

    return make


def resize_bilinear(d: Draft) -> Case:
    shape, quant = d.shape(4), d.quant()
    size = [d.size(1, 9), d.size(1, 9)]
    align, half = [(False, False), (True, False), (False, True)][d.size(0, 2)]
    operands = [d.x(shape, quant=quant), d.constant(size)]
    y = d.y((shape[0], *size, shape[3]), quant=quant)
    options = {"AlignCorners": align, "HalfPixelCenters": half}
    return d.case("RESIZE_BILINEAR", operands, [y], "ResizeBilinearOptions", **options)


ROWS: dict[str, Maker] = {
    "ARG_MAX": arg("ARG_MAX"),
    "ARG_MIN": arg("ARG_MIN"),
    "AVERAGE_POOL_2D": pool("AVERAGE_POOL_2D"),
    "BATCH_MATMUL": batch_matmul,
    "CONV_2D": conv("CONV_2D"),
    "CUMSUM": cumsum,
    "DEPTHWISE_CONV_2D": conv("DEPTHWISE_CONV_2D"),
    "FULLY_CONNECTED": fully_connected,
    "L2_NORMALIZATION": rows("L2_NORMALIZATION", {"int8": (1 / 128, 0)}, "L2NormOptions"),
    "L2_POOL_2D": pool("L2_POOL_2D"),
    "LOG_SOFTMAX": rows("LOG_SOFTMAX", {"int8": (16 / 256, 127)}, "LogSoftmaxOptions"),
    "MAX_POOL_2D": pool("MAX_POOL_2D"),
    "MEAN": reduction("MEAN"),
    "REDUCE_ALL": reduction("REDUCE_ALL"),
    "REDUCE_MAX": reduction("REDUCE_MAX", same=True),
    "REDUCE_MIN": reduction("REDUCE_MIN", same=True),
    "RESIZE_BILINEAR": resize_bilinear,
    "SOFTMAX": rows(
        "SOFTMAX", {"int8": (1 / 256, -128), "int16": (1 / 32768, 0)}, "SoftmaxOptions", Beta=1.0
    ),
    "SUM": reduction("SUM"),
    "TRANSPOSE_CONV": transpose_conv,
}
