"""ONNX's definition of quantised networks in exact numbers.

The definition is float operators between dequantisation and quantisation. In float32 their sums are
rounded, in an order that nobody defines, so a result next to a tie depends on who computes it. Here
float64 holds every product and sum of quantised numbers: what is left is the definition itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import helper, numpy_helper

from ..isa.errors import VdlaError

#: Numbers of steps that are so near to a tie are ties: float64 divides with an error of 1e-16, and
#: sums of float32 are wrong by 1e-5 of a step.
_TIE = 1e-9

#: An operator on arrays: its attributes, then its operands; absent ones are None.
Operator = Callable[..., np.ndarray]


def exact_answers(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The model's first output in float64, by the definitions of its operators.

    An input of float32 is quantised in float32: IEEE defines a single division.

    Raises
    ------
    VdlaError
        For an operator that has no exact form here.
    """
    values: dict[str, Any] = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    values |= {"": None} | dict(inputs)
    for node in model.graph.node:
        operator = _OPERATORS.get(node.op_type)
        if operator is None:
            raise VdlaError(
                f"{node.name}: expected one of {', '.join(_OPERATORS)}, got {node.op_type!r}"
            )
        settings = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        values[node.output[0]] = operator(settings, *(values[name] for name in node.input))
    return values[model.graph.output[0].name]


def _along(value: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Scales or zero points of an axis, to be broadcast."""
    return value.reshape([-1 if i == axis % rank else 1 for i in range(rank)] if value.ndim else ())


def _quantize(settings: Mapping[str, Any], x: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
    scale, zero = (_along(p, settings.get("axis", 1), x.ndim) for p in parameters)
    steps = x / scale.astype(x.dtype)
    if x.dtype == np.float64:
        halves = np.rint(2 * steps)
        steps = np.where(np.abs(2 * steps - halves) < _TIE, halves / 2, steps)
    limits = np.iinfo(zero.dtype)
    return np.clip(np.rint(steps) + zero, limits.min, limits.max).astype(zero.dtype)


def _dequantize(settings: Mapping[str, Any], x: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
    scale, *zero = (
        _along(p, settings.get("axis", 1), x.ndim).astype(np.float64) for p in parameters
    )
    return (x - (zero[0] if zero else 0.0)) * scale


def _conv(
    settings: Mapping[str, Any], x: np.ndarray, weights: np.ndarray, bias: np.ndarray | None = None
) -> np.ndarray:
    groups, (down, right) = settings.get("group", 1), settings.get("strides", (1, 1))
    windows = _windows(settings, x, weights.shape[2:], 0.0)[:, :, ::down, ::right]
    batch, channels, *places = windows.shape[:4]
    shape = (batch, groups, channels // groups, *windows.shape[2:])
    parts = weights.reshape(groups, -1, *weights.shape[1:])
    if channels == groups:  # an einsum of one channel a group is no product of matrices
        made = np.einsum("bgcyxhw,gochw->bgoyx", windows.reshape(shape), parts)
    else:
        rows = [
            np.tensordot(windows.reshape(shape)[:, g], parts[g], ((1, 4, 5), (1, 2, 3)))
            for g in range(groups)
        ]
        made = np.moveaxis(np.stack(rows, 1), -1, 2)
    made = made.reshape(batch, -1, *places)
    return made if bias is None else made + bias[:, None, None]


def _windows(
    settings: Mapping[str, Any], x: np.ndarray, kernel: tuple[int, ...], fill: float
) -> np.ndarray:
    """Every place's window of a padded image."""
    if set(settings.get("dilations", (1,))) != {1} or settings.get("ceil_mode"):
        raise VdlaError("expected windows without dilations, of places that are rounded down")
    top, left, bottom, right = settings.get("pads", (0, 0, 0, 0))
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    return sliding_window_view(padded, kernel, (2, 3))  # type: ignore[arg-type]


def _max_pool(settings: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    down, right = settings.get("strides", (1, 1))
    windows = _windows(settings, x, tuple(settings["kernel_shape"]), -np.inf)
    return windows[:, :, ::down, ::right].max(axis=(4, 5))


def _average_pool(settings: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    if any(settings.get("pads", ())):
        raise VdlaError("expected averages without padding")
    down, right = settings.get("strides", (1, 1))
    windows = _windows(settings, x, tuple(settings["kernel_shape"]), 0.0)
    return windows[:, :, ::down, ::right].mean(axis=(4, 5))


def _gemm(
    settings: Mapping[str, Any], x: np.ndarray, weights: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    return x @ (weights.T if settings.get("transB") else weights) + bias


def _hard_sigmoid(settings: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    return np.clip(settings.get("alpha", 0.2) * x + settings.get("beta", 0.5), 0.0, 1.0)


_OPERATORS: dict[str, Operator] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Conv": _conv,
    "Gemm": _gemm,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda _, x: x.mean(axis=(2, 3), keepdims=True),
    "Relu": lambda _, x: np.maximum(x, 0.0),
    "Clip": lambda _, x, lowest, highest: np.clip(x, lowest, highest),
    "HardSwish": lambda _, x: x * np.clip(x / 6 + 0.5, 0.0, 1.0),
    "HardSigmoid": _hard_sigmoid,
    "Add": lambda _, a, b: a + b,
    "Mul": lambda _, a, b: a * b,
    "Flatten": lambda _, x: x.reshape(x.shape[0], -1),
}
