"""Convolutions, pooling and resizing."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from .....isa.errors import VdlaError
from ....graph.ir import Tensor
from .call import Call, Reader, Value
from .linear import along_axis


def _each(value: Any, rank: int) -> list[int]:
    """A number per spatial dimension; one stands for all."""
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * rank if len(numbers) == 1 else numbers


def _batched(call: Call, x: Tensor, rank: int) -> Tensor:
    """[N, C, D1, ...]: an image by itself becomes a batch of one."""
    return x if len(x.shape) == rank + 2 else call.reshape(x, (1, *x.shape))


def _convolution(call: Call) -> Value:
    weight, bias = call["weight"], call["bias"]
    rank = len(weight.shape) - 2
    x = _batched(call, call["input"], rank)
    padding = _each(call["padding"], rank)
    attributes: dict[str, Any] = {
        "strides": _each(call["stride"], rank),
        "dilations": _each(call["dilation"], rank),
        "pads": padding * 2,
        "group": call["groups"],
    }
    kind = "Conv"
    if call["transposed"]:
        kind = "ConvTranspose"
        attributes["output_padding"] = _each(call["output_padding"], rank)
    y = call.onnx(kind, x, weight, *([] if bias is None else [bias]), **attributes)
    return call.reshape(y, call.shape)


# ---- pooling ----


def _window(call: Call, rank: int) -> dict[str, Any]:
    kernel = _each(call["kernel_size"], rank)
    return {
        "kernel_shape": kernel,
        "strides": _each(call["stride"] or kernel, rank),
        "pads": _each(call["padding"], rank) * 2,
        "ceil_mode": int(bool(call["ceil_mode"])),
    }


def _max_pool(rank: int, call: Call) -> Value:
    """The places of the maxima, which torch counts plane by plane, are not computed."""
    x = _batched(call, call["self"], rank)
    y = call.onnx("MaxPool", x, **_window(call, rank), dilations=_each(call["dilation"], rank))
    y = call.reshape(y, call.shape)
    return y if len(call.results) == 1 else (y, None)


def _average_pool(rank: int, call: Call) -> Value:
    x, divisor = _batched(call, call["self"], rank), call["divisor_override"]
    window = _window(call, rank)
    include = call["count_include_pad"] or divisor is not None
    y = call.onnx("AveragePool", x, **window, count_include_pad=int(include))
    if divisor is not None:
        if window["ceil_mode"]:
            raise VdlaError(f"divisor_override = {divisor!r} with ceil_mode is not supported")
        factor = math.prod(window["kernel_shape"]) / divisor
        y = call.onnx("Mul", y, call.constant(factor, y.dtype))
    return call.reshape(y, call.shape)


def _adaptive_average_pool(rank: int, call: Call) -> Value:
    """Equal windows where the sizes divide, else a product with a matrix along each axis."""
    x = _batched(call, call["self"], rank)
    size, wanted = x.shape[2:], call.shape[-rank:]
    kernel = [n // w for n, w in zip(size, wanted, strict=True)]
    if all(n % w == 0 for n, w in zip(size, wanted, strict=True)):
        y = call.onnx("AveragePool", x, kernel_shape=kernel, strides=kernel)
    else:
        y = x
        for axis, sizes in enumerate(zip(size, wanted, strict=True), start=2):
            y = along_axis(call, y, axis, _averages(*sizes))
    return call.reshape(y, call.shape)


def _averages(size: int, wanted: int) -> np.ndarray:
    """[wanted, size]: row i averages from floor(i * size / wanted) to ceil((i + 1) * ...)."""
    weights = np.zeros((wanted, size))
    for i in range(wanted):
        first, last = i * size // wanted, -(-(i + 1) * size // wanted)
        weights[i, first:last] = 1 / (last - first)
    return weights


def _adaptive_max_pool(rank: int, call: Call) -> Value:
    x = _batched(call, call["self"], rank)
    size, wanted = x.shape[2:], call.shape[-rank:]
    if any(n % w for n, w in zip(size, wanted, strict=True)):
        raise VdlaError(f"expected a size that divides {list(size)}, got {list(wanted)}")
    kernel = [n // w for n, w in zip(size, wanted, strict=True)]
    y = call.onnx("MaxPool", x, kernel_shape=kernel, strides=kernel)
    return call.reshape(y, call.shape), None


# ---- resizing and padding ----


def _resize(mode: str, call: Call, *, exact: bool = False) -> Value:
    """Interpolation; ``exact`` is torch's nearest neighbour with half a place of offset."""
    x = call["self"] if call["self"] is not None else call["input"]
    corners = bool(call["align_corners"])
    if mode == "nearest":
        places = "half_pixel" if exact else "asymmetric"
    else:
        places = "align_corners" if corners else "pytorch_half_pixel"
    attributes = {
        "mode": mode, "coordinate_transformation_mode": places, "cubic_coeff_a": -0.75,
        "nearest_mode": "round_prefer_ceil" if exact else "floor",
    }  # fmt: skip
    given = call["scale_factors"] or [
        call[name] for name in ("scales", "scales_d", "scales_h", "scales_w") if call[name]
    ]
    factors = _each(given, len(x.shape) - 2) if given else []
    if factors and not corners:
        scales = call.constant([1, 1, *factors], "float32")
        return call.onnx("Resize", x, None, scales, **attributes)
    return call.onnx("Resize", x, None, None, call.integers(call.shape), **attributes)


def _pad(mode: str, call: Call) -> Value:
    """torch lists the last axis first: the padding before it, then the padding after it."""
    x = call["self"]
    given = call["pad"] if call["pad"] is not None else call["padding"]
    pairs = list(zip(given[::2], given[1::2], strict=True))[::-1]
    pairs = [(0, 0)] * (len(x.shape) - len(pairs)) + pairs
    pads = call.integers([before for before, _ in pairs] + [after for _, after in pairs])
    value = [call.constant(call["value"] or 0, x.dtype)] if mode == "constant" else []
    return call.onnx("Pad", x, pads, *value, mode=mode)


READERS: dict[str, Reader] = (
    {f"aten.reflection_pad{rank}d": partial(_pad, "reflect") for rank in (1, 2, 3)}
    | {f"aten.replication_pad{rank}d": partial(_pad, "edge") for rank in (1, 2, 3)}
    | {f"aten.avg_pool{rank}d": partial(_average_pool, rank) for rank in (1, 2, 3)}
    | {f"aten.max_pool{rank}d": partial(_max_pool, rank) for rank in (1, 2, 3)}
    | {f"aten.max_pool{rank}d_with_indices": partial(_max_pool, rank) for rank in (1, 2, 3)}
    | {
        f"aten.adaptive_avg_pool{rank}d": partial(_adaptive_average_pool, rank)
        for rank in (1, 2, 3)
    }
    | {f"aten._adaptive_avg_pool{rank}d": partial(_adaptive_average_pool, rank) for rank in (2, 3)}
    | {f"aten.adaptive_max_pool{rank}d": partial(_adaptive_max_pool, rank) for rank in (1, 2, 3)}
    | {f"aten.upsample_nearest{rank}d": partial(_resize, "nearest") for rank in (1, 2, 3)}
    | {
        f"aten._upsample_nearest_exact{rank}d": partial(_resize, "nearest", exact=True)
        for rank in (1, 2, 3)
    }
    | {
        "aten.constant_pad_nd": partial(_pad, "constant"),
        "aten.convolution": _convolution,
        "aten.upsample_bicubic2d": partial(_resize, "cubic"),
        "aten.upsample_bilinear2d": partial(_resize, "linear"),
        "aten.upsample_linear1d": partial(_resize, "linear"),
        "aten.upsample_trilinear3d": partial(_resize, "linear"),
    }
)
