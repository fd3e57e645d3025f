"""Reductions, soft maxima and normalisations."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from .....isa.errors import VdlaError
from ....graph.ir import Tensor
from .call import Call, Reader, Value


def _axes(call: Call, rank: int) -> tuple[int, ...]:
    """The axes of ``dim``: all if there are none."""
    given = call["dim"]
    axes = [given] if isinstance(given, int) else given or range(rank)
    return tuple(sorted({axis % rank for axis in axes})) if rank else ()


def _reduction(kind: str, call: Call) -> Value:
    x = call.tensor(call["self"], call.dtype)
    return reduced(call, kind, x, _axes(call, len(x.shape)), bool(call["keepdim"]))


def reduced(call: Call, kind: str, x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """One ONNX reduction; a scalar is returned as it is."""
    if not x.shape:
        return x
    return call.onnx(kind, x, call.integers(axes), keepdims=int(keepdims))


def _mean(call: Call) -> Value:
    """The mean over all places of an image is the pooling that the quantised flow knows."""
    x = call.tensor(call["self"], call.dtype)
    axes = _axes(call, len(x.shape))
    if len(x.shape) == 4 and axes == (2, 3):
        return call.reshape(call.onnx("GlobalAveragePool", x), call.shape)
    return reduced(call, "ReduceMean", x, axes, bool(call["keepdim"]))


def _any(kind: str, call: Call) -> Value:
    """Whether any or every element is not 0."""
    x = call.tensor(call.tensor(call["self"], "bool"), "uint8")
    axes = _axes(call, len(x.shape))
    return call.tensor(reduced(call, kind, x, axes, bool(call["keepdim"])), "bool")


def _arg(kind: str, call: Call) -> Value:
    x, keep = call["self"], bool(call["keepdim"])
    if call["dim"] is None:
        x = call.reshape(x, (math.prod(x.shape),))
        return call.reshape(call.onnx(kind, x, axis=0, keepdims=0), call.shape)
    return call.onnx(kind, x, axis=call["dim"], keepdims=int(keep))


def _extreme(kind: str, call: Call) -> Value:
    """``max`` and ``min``: of everything, or along an axis, then with the places."""
    x = call["self"]
    value = reduced(call, f"Reduce{kind}", x, _axes(call, len(x.shape)), bool(call["keepdim"]))
    if len(call.results) == 1:
        return value
    place = call.onnx(f"Arg{kind}", x, axis=call["dim"], keepdims=int(call["keepdim"]))
    return value, place


def _vector_norm(call: Call) -> Value:
    """(sum of |x|^ord)^(1/ord); the limits of that for the orders infinity, -infinity and 0."""
    order = float(call["ord"])
    x = call.tensor(call["self"], call.dtype)
    axes, keep = _axes(call, len(x.shape)), bool(call["keepdim"])
    if order == 0:
        nonzero = call.tensor(call.tensor(x, "bool"), call.dtype)
        return reduced(call, "ReduceSum", nonzero, axes, keep)
    magnitude = call.onnx("Abs", x)
    if math.isinf(order):
        return reduced(call, "ReduceMax" if order > 0 else "ReduceMin", magnitude, axes, keep)
    if order == 1:
        return reduced(call, "ReduceSum", magnitude, axes, keep)
    if order == 2:
        return call.onnx("Sqrt", reduced(call, "ReduceSum", call.onnx("Mul", x, x), axes, keep))
    powers = call.onnx("Pow", magnitude, call.constant(order, x.dtype))
    total = reduced(call, "ReduceSum", powers, axes, keep)
    return call.onnx("Pow", total, call.constant(1 / order, x.dtype))


def _variance(call: Call) -> Tensor:
    x = call["self"]
    axes = _axes(call, len(x.shape))
    correction = 1 if call["correction"] is None else call["correction"]
    if "unbiased" in call.arguments:
        correction = int(call["unbiased"])
    count = math.prod(x.shape[a] for a in axes) - correction
    if count <= 0:
        raise VdlaError(f"expected more than {correction} elements to take a variance of")
    rest = call.onnx("Sub", x, reduced(call, "ReduceMean", x, axes, keepdims=True))
    squares = call.onnx("Mul", rest, rest)
    total = reduced(call, "ReduceSum", squares, axes, bool(call["keepdim"]))
    return call.onnx("Div", total, call.constant(count, x.dtype))


def _variance_and_mean(call: Call) -> Value:
    x = call["self"]
    axes = _axes(call, len(x.shape))
    return _variance(call), reduced(call, "ReduceMean", x, axes, bool(call["keepdim"]))


def _soft(kind: str, call: Call) -> Value:
    x = call.tensor(call["self"], call.dtype)
    return call.onnx(kind, x, axis=call["dim"]) if x.shape else call.onnx(kind, x)


# ---- normalisations ----


def _or_filled(call: Call, value: Any, fill: int, channels: int) -> Tensor:
    return call.constant(np.full(channels, fill), call.dtype) if value is None else value


def _scale_and_bias(call: Call, channels: int) -> list[Tensor]:
    return [
        _or_filled(call, call[name], fill, channels) for name, fill in (("weight", 1), ("bias", 0))
    ]


def _training(call: Call) -> Value:
    raise VdlaError("expected a model for inference, got training; call eval() before export")


def _batch_norm(call: Call) -> Value:
    if call["training"]:
        return _training(call)
    x = call["input"]
    scale, bias = _scale_and_bias(call, x.shape[1])
    epsilon = float(call["eps"])
    mean, variance = call["running_mean"], call["running_var"]
    y = call.onnx("BatchNormalization", x, scale, bias, mean, variance, epsilon=epsilon)
    return y if len(call.results) == 1 else (y, *[None] * (len(call.results) - 1))


def _instance_norm(call: Call) -> Value:
    """Batch normalisation by the batch's own statistics, which for one image is instance
    normalisation.
    """
    x = call["input"]
    images = x.shape[0]
    scale, bias = _scale_and_bias(call, x.shape[1])
    if images != 1:
        return _training(call)
    y = call.onnx("InstanceNormalization", x, scale, bias, epsilon=float(call["eps"]))
    return (y, *[None] * (len(call.results) - 1))


def _layer_norm(call: Call) -> Value:
    x, axes = call["input"], len(call["normalized_shape"])
    scale = call["weight"]
    if scale is None:
        scale = call.constant(np.ones(x.shape[-axes:]), call.dtype)
    bias = [] if call["bias"] is None else [call["bias"]]
    y = call.onnx("LayerNormalization", x, scale, *bias, axis=-axes, epsilon=float(call["eps"]))
    return y if len(call.results) == 1 else (y, *[None] * (len(call.results) - 1))


def _group_norm(call: Call) -> Value:
    x, groups = call["input"], call["group"]
    scale, bias = _scale_and_bias(call, x.shape[1])
    attributes = {"num_groups": groups, "epsilon": float(call["eps"])}
    y = call.onnx("GroupNormalization", x, scale, bias, **attributes)
    return (y, *[None] * (len(call.results) - 1))


READERS: dict[str, Reader] = {
    "aten._log_softmax": partial(_soft, "LogSoftmax"),
    "aten._native_batch_norm_legit": _instance_norm,
    "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten._native_batch_norm_legit_functional": _training,
    "aten._softmax": partial(_soft, "Softmax"),
    "aten.all": partial(_any, "ReduceMin"),
    "aten.amax": partial(_reduction, "ReduceMax"),
    "aten.amin": partial(_reduction, "ReduceMin"),
    "aten.any": partial(_any, "ReduceMax"),
    "aten.argmax": partial(_arg, "ArgMax"),
    "aten.argmin": partial(_arg, "ArgMin"),
    "aten.batch_norm": _batch_norm,
    "aten.layer_norm": _layer_norm,
    "aten.linalg_vector_norm": _vector_norm,
    "aten.log_softmax": partial(_soft, "LogSoftmax"),
    "aten.max": partial(_extreme, "Max"),
    "aten.mean": _mean,
    "aten.min": partial(_extreme, "Min"),
    "aten.native_group_norm": _group_norm,
    "aten.native_layer_norm": _layer_norm,
    "aten.prod": partial(_reduction, "ReduceProd"),
    "aten.softmax": partial(_soft, "Softmax"),
    "aten.sum": partial(_reduction, "ReduceSum"),
    "aten.var": _variance,
    "aten.var_mean": _variance_and_mean,
}
