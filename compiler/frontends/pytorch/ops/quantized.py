"""Conversions between floats and integers, as PyTorch's quantisation flow (PT2E) writes them."""

from __future__ import annotations

import numpy as np

from .....isa.errors import VdlaError
from ....graph.ir import Tensor
from .call import Call, Reader, Value

STORED = ("int8", "uint8", "int16", "uint16")


def _parameter(call: Call, name: str, dtype: str) -> Tensor:
    """A scale or zero point, given as a number or a tensor; a single number becomes a scalar."""
    value = call[name]
    if isinstance(value, Tensor) and value.data is None:
        value = call.tensor(value, dtype)
        return call.reshape(value, ()) if value.shape == (1,) else value
    data = np.asarray(value.data if isinstance(value, Tensor) else value)
    limits = np.iinfo(dtype) if dtype.startswith(("int", "uint")) else None
    if limits and not ((data >= limits.min) & (data <= limits.max)).all():
        raise VdlaError(f"expected {name} of {dtype}, got {data.min()} to {data.max()}")
    return call.constant(data.reshape(()) if data.size == 1 else data, dtype)


def _quantize(call: Call) -> Value:
    """torch multiplies by the scale's reciprocal; ONNX divides, which may round differently."""
    parameters, axis = _parameters(call, call.dtype)
    y = call.onnx("QuantizeLinear", call["input"], *parameters, **axis)
    low, high = call["quant_min"], call["quant_max"]
    limits = np.iinfo(call.dtype)
    if (low, high) == (limits.min, limits.max):
        return y
    return call.onnx("Clip", y, call.constant(low, y.dtype), call.constant(high, y.dtype))


def _dequantize(call: Call) -> Value:
    x = call["input"]
    parameters, axis = _parameters(call, x.dtype)
    y = call.onnx("DequantizeLinear", x, *parameters, **axis)
    return call.tensor(y, call.dtype)


def _parameters(call: Call, dtype: str) -> tuple[list[Tensor], dict[str, int]]:
    """Scale and zero point, and the axis that they belong to."""
    if call["dtype"] not in (*STORED, "int32"):
        raise VdlaError(f"supported are {', '.join(STORED)}, got {call['dtype']}")
    if "axis" not in call.arguments:
        names = ("scale", "zero_point")
        return [_parameter(call, n, d) for n, d in zip(names, ("float32", dtype), strict=True)], {}
    scales = _parameter(call, "scales", "float32")
    if call["zero_points"] is None:
        return [scales, call.constant(np.zeros(scales.shape), dtype)], {"axis": call["axis"]}
    return [scales, _parameter(call, "zero_points", dtype)], {"axis": call["axis"]}


READERS: dict[str, Reader] = {
    "quantized_decomposed.dequantize_per_channel": _dequantize,
    "quantized_decomposed.dequantize_per_tensor": _dequantize,
    "quantized_decomposed.quantize_per_channel": _quantize,
    "quantized_decomposed.quantize_per_tensor": _quantize,
}
