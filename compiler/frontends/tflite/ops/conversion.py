"""Conversions between types, and between real numbers and integers."""

from __future__ import annotations

import numpy as np

from ....graph.arithmetic.fixed_point import rescale
from ....graph.arithmetic.requant import tflite_params
from ....graph.ops.quantisation import Dequantize, Quant, QuantizeAway
from ....te.expr import Call as Function
from ....te.expr import Const, Expr, integer_range, maximum, minimum, select
from ..graph import ANY, Call, Reader, Rows, held_in
from .rules import (
    STORED,
    emit_map,
    emit_op,
    emit_table,
    int32,
    named,
    negated,
    rescaled,
    rounded,
    saturated,
    unary,
)

_FLOATS = ("float16", "float32")


def _cast(call: Call) -> None:
    """Conversion: floats are cut off towards zero and saturate, integers wrap."""
    source, target = call.operand(0).dtype, call.result.dtype
    kind = "int32" if target == "uint8" else held_in(target)

    def whole(x: Expr) -> Expr:
        low, high = (0, 255) if target == "uint8" else integer_range(target)
        found = select(x <= float(low), Const(low, kind), named("trunc", x).astype(kind))
        return select(x >= float(high + 1), Const(high, kind), found)

    def rule(x: Expr) -> Expr:
        if source == "uint8":  # the graph stores 128 less
            x = int32(x) + 128
        if target == "bool":
            return negated(x.equal(Const(0.0 if source in _FLOATS else 0, x.dtype)))
        if source == "bool":
            one, none = (1.0, 0.0) if target in _FLOATS else (1, 0)
            x = select(x, Const(one, kind), Const(none, kind))
        elif source in _FLOATS and target not in _FLOATS:
            x = whole(x)
        if target == "uint8":
            return ((int32(x) & 255) - 128).astype("int8")
        if target == "float16":
            return x.astype("float32").astype("float16").astype("float32")
        return x.astype(target)

    emit_map(call, rule, 1)


def _bitcast(dtype: str) -> Reader:
    return unary(lambda x: Function("reinterpret", (x,), dtype))


# ---- real numbers and integers -------------------------------------------------------------------


def _quantize(call: Call) -> None:
    """From and to 8 bits as tables and the accelerator have it, else in general."""
    bytes_ = ("int8", "uint8")
    plain = call.result.dtype in bytes_ and call.operand(0).dtype in ("float32", *bytes_)
    (_quantize8 if plain else _quantize_wide)(call)


def _quantize8(call: Call) -> None:
    source = call.operand(0)
    if source.dtype == "float32":
        scale, zero = call.quant(call.result)
        emit_op(call, QuantizeAway(float(scale), zero), 1)
        return
    (x, zero_x), (y, zero_y) = call.quant(source), call.quant(call.result)
    factors = tflite_params(float(x) / float(y))
    emit_table(call, rescale(STORED["int8"] - zero_x, *factors) + zero_y)


def _quantize_wide(call: Call) -> None:
    """From float32, int8, int16 or int32 to int16 or int32, and from int16 and int32 to int8."""
    source, target = call.operand(0), call.result
    zero, y = int(target.zero_point[0]), target.scale[0]
    dtype = "int8" if target.dtype == "uint8" else target.dtype
    zero -= 128 if target.dtype == "uint8" else 0
    lo, hi = integer_range(dtype)
    if source.dtype == "float32":

        def steps(x: Expr) -> Expr:
            whole = rounded(x / Const(float(y), "float32"))
            return saturated(whole.astype("int64") + zero, lo, hi, dtype)

        emit_map(call, steps, 1)
        return
    x, zero_x = source.scale[0], int(source.zero_point[0])
    zero_x -= 128 if source.dtype == "uint8" else 0
    factors = tflite_params(float(x) / float(y))

    def rule(value: Expr) -> Expr:
        made = rescaled(int32(value) - zero_x, *factors).astype("int64") + zero
        return saturated(made, lo, hi, dtype)

    emit_map(call, rule, 1)


def _dequantize(call: Call) -> None:
    """Integers as float32; a constant may have a scale for each channel."""
    source = call.operand(0)
    if source.data is None or source.scale.size == 1:
        scale, zero = call.quant(source)
        pair = np.array([scale], np.float32), np.array([zero], np.int32)
        emit_op(call, Dequantize(Quant(*pair, call.stored_type)), 1)
        return
    if not source.scale.size:
        raise call.refuse(f"{source} has no scale")
    shape = [-1 if axis == source.scaled_axis else 1 for axis in range(source.data.ndim)]
    centred = source.data.astype(np.int32) - source.zero_point.reshape(shape)
    call.define(call.value(centred.astype(np.float32) * source.scale.reshape(shape)))


def _fake_quant(call: Call) -> None:
    """The nearest of evenly spaced numbers, one of which is zero."""
    bits, low, high = (call.option(name) for name in ("NumBits", "Min", "Max"))
    least, most = int(bool(call.option("NarrowRange"))), (1 << bits) - 1
    if not (2 <= bits <= 16 and low <= 0 <= high and low < high and np.isfinite(high - low)):
        raise call.refuse(f"expected a range around 0 in 2 to 16 bits, got {low} to {high}")
    step = np.float32((np.float32(high) - np.float32(low)) / np.float32(most - least))
    zero = np.clip(np.float32(least) - np.float32(low) / step, least, most)
    zero = np.floor(zero + np.float32(0.5))
    ends = float((least - zero) * step), float((most - zero) * step)
    inverse = float(np.float32(1) / step)

    def rule(x: Expr) -> Expr:
        steps = (minimum(maximum(x, ends[0]), ends[1]) - ends[0]) * inverse
        return named("floor", steps + 0.5) * float(step) + ends[0]

    emit_map(call, rule, 1)


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "BITCAST": {"float32": _bitcast("int32"), "int32": _bitcast("float32")},
    "CAST": {ANY: _cast},
    "DEQUANTIZE": {
        "int8 uint8 int16": _dequantize,
        "float16": lambda call: call.define(call.tensor(0)),  # is float32 in the graph
    },
    "FAKE_QUANT": {"float32": _fake_quant},
    "QUANTIZE": {ANY: _quantize},
}
