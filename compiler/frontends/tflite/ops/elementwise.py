"""Operators of one operand, element by element: activations and functions.

A function of integers of 8 or 16 bits becomes a table of its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from ....graph.arithmetic.fixed_point import (
    INT32_MAX,
    divide_by_pot,
    high_mul,
    rescale,
    saturating_shift,
)
from ....graph.arithmetic.requant import tflite_params
from ....te.expr import Const, Expr, maximum, minimum, select
from ..graph import ANY, Call, Reader, Rows, steps_of
from .rules import STORED, emit_map, emit_table, named, one, onnx, unary, zero
from .weights import reduced

#: A function of an array of float32.
Real = Callable[[np.ndarray], np.ndarray]


# ---- floats: what ONNX's readers do not compute to the bit ---------------------------------------


def _precise(name: str) -> Reader:
    """A function of the C library: computed in float64, it rounds as the library does."""
    return unary(lambda x: named(name, x.astype("float64")).astype("float32"))


def _expm1(x: Expr) -> Expr:
    wide = x.astype("float64")
    small = named("tanh", wide * 0.5)  # exp(x) - 1 without cancellation
    return (small * 2.0 / (Const(1.0, "float64") - small)).astype("float32")


def _leaky(call: Call) -> None:
    alpha = float(np.float32(call.option("Alpha")))
    emit_map(call, lambda x: select(x > 0.0, x, x * alpha), 1)


def _sign(x: Expr) -> Expr:
    return select(x > zero(x), one(x), select(x < zero(x), zero(x) - one(x), zero(x)))


def _gelu_float(call: Call) -> None:
    onnx("Gelu", approximate=b"tanh" if call.option("Approximate") else b"none")(call)


# ---- integers: rescaled --------------------------------------------------------------------------


def _centred(call: Call) -> tuple[np.ndarray, np.float32, np.float32, int]:
    """Every stored value less its zero point; the scales; the result's zero point."""
    (x, zero_x), (y, zero_y) = call.quant(call.operand(0)), call.quant(call.result)
    return STORED[call.stored_type] - zero_x, x, y, zero_y


def _abs(call: Call) -> None:
    values, x, y, zero = _centred(call)
    values = np.abs(values)
    if x != y:
        values = rescale(values, *tflite_params(float(x / y)))
    emit_table(call, values + zero)


def _leaky_relu(call: Call) -> None:
    values, x, y, zero = _centred(call)
    alpha = float(np.float32(call.option("Alpha")))
    if not math.isfinite(alpha) or alpha < 0:
        raise call.refuse(f"expected a slope of at least 0, got {alpha!r}")
    above = rescale(values, *tflite_params(float(x) / float(y)))
    below = rescale(values, *tflite_params(float(x) * alpha / float(y)))
    emit_table(call, np.where(values >= 0, above, below) + zero)


def _clipped(real_lo: float, real_hi: float, call: Call) -> None:
    """Integers that are clipped to two real numbers, of which the upper may be infinite."""
    values, x, y, zero = _centred(call)
    factor = float(x / y) if call.stored_type == "int8" else float(x) / float(y)
    lo, hi = (zero + steps_of(real, y) for real in (real_lo, real_hi))
    made = rescale(values, *tflite_params(factor)) + zero
    emit_table(call, np.clip(made, lo, max(hi, lo)))


# ---- integers: reciprocal square roots -----------------------------------------------------------


_SQRT_BITS = 20
THREE_HALVES = (1 << 28) + (1 << 27)  # in Q3
HALF_SQRT_2 = 1518500250  # in Q0


def inverse_roots(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """TensorFlow Lite's multipliers and shifts to the right of ``1 / sqrt(values)``, of integers of
    at least 1 and below 2**29: five steps of Newton's method."""
    zeros = 32 - np.frexp(values.astype(np.float64))[1].astype(np.int64)
    pairs = (zeros - 1) // 2 - 1
    half = divide_by_pot((values.astype(np.int64) << (2 * pairs)) >> 1, 1)
    x = np.full(values.shape, 1 << 28, np.int64)  # 1 in Q3
    for _ in range(5):
        cube = saturating_shift(high_mul(high_mul(x, x), x), 6)
        x = saturating_shift(high_mul(x, THREE_HALVES) - high_mul(half, cube), 3)
    multiplier, shift = high_mul(x, HALF_SQRT_2), 11 - pairs
    multiplier = multiplier << np.maximum(-shift, 0)
    one = values <= 1
    return np.where(one, INT32_MAX, multiplier), np.where(one, 0, np.maximum(shift, 0))


def _rsqrt(call: Call) -> None:
    values, x, y, zero = _centred(call)
    multiplier, shift = tflite_params(1.0 / (math.sqrt(x) * float(y)))  # the kernel's is float64
    inverses, shifts = inverse_roots(np.maximum(values, 1))
    data = rescale(np.ones_like(inverses), inverses, shifts - _SQRT_BITS)
    found = rescale(data, multiplier, shift + _SQRT_BITS) + zero
    emit_table(call, np.where(values > 0, found, STORED[call.stored_type][-1]))


def _sqrt(call: Call) -> None:
    """Float32 roots, truncated to whole steps. Below zero the kernel stops; the result is zero."""
    values, x, y, zero = _centred(call)
    roots = np.sqrt(x * np.maximum(values, 0).astype(np.float32))
    emit_table(call, np.trunc(roots / y).astype(np.int64) + zero)


# ---- integers: sigmoid and tanh of int16 ---------------------------------------------------------


#: Places where the kernels' table of sigmoid(i / 24) in 16 fraction bits is one above the nearest.
_ONE_MORE = (
    4, 8, 12, 14, 15, 16, 17, 19, 20, 21, 22, 25, 27, 28, 29, 30, 31, 33, 34, 35, 37, 39, 40, 41,
    43, 44, 45, 46, 49, 50, 54, 62, 63, 64, 66, 82, 86, 93, 100, 103, 112, 116, 135, 255,
)  # fmt: skip
_SIGMOIDS = np.rint(65536 / (1 + np.exp(-np.arange(257) / 24))).astype(np.int64)
_SIGMOIDS[list(_ONE_MORE)] += 1


def _table_steps(call: Call, powers: tuple[int, ...]) -> np.ndarray:
    """Every int16 in steps of 1 / (3 * 4096), as the kernels round it."""
    x, zero = call.quant(call.operand(0))
    made, zero_made = call.quant(call.result)
    if zero or zero_made or made != np.float32(2.0**-15):
        raise call.refuse(
            f"expected zero points 0 and a result of scale 2**-15, got {zero}, {zero_made} and"
            f" {float(made)!r}"
        )
    mantissa, exponent = math.frexp(float(x))
    left = 12 + exponent - 1
    if mantissa == 0.5 and left in powers:
        return STORED["int16"] * (3 << left)
    multiplier, shift = float(x) * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2.0 and shift <= 30:
        multiplier, shift = multiplier * 2, shift + 1
    half = 1 << (shift - 1) if shift else 0
    return (STORED["int16"] * int(multiplier) + half) >> shift


def _interpolated(steps: np.ndarray, bits: int) -> np.ndarray:
    """The table's function of absolute steps, with ``bits`` more fraction bits."""
    place = np.minimum(np.abs(steps) >> bits, 255)
    rest = np.abs(steps) & ((1 << bits) - 1)
    low, high = _SIGMOIDS[place], _SIGMOIDS[place + 1]
    return np.where(place >= 255, -1, (low << bits) + rest * (high - low))


def logistic16(steps: np.ndarray) -> np.ndarray:
    """The sigmoid of steps of 1 / (3 * 4096), in 15 fraction bits."""
    found = _interpolated(steps, 9)
    found = np.where(found < 0, 0x7FFF << 10, found)
    return np.where(steps >= 0, found + (1 << 9), (1 << 25) - found + (1 << 9) - 1) >> 10


def tanh16(steps: np.ndarray) -> np.ndarray:
    """The hyperbolic tangent of steps of 1 / (3 * 4096), in 15 fraction bits."""
    found, nudge = _interpolated(steps, 8), 1 << 7
    found = np.where(found < 0, 0xFFFF << 8, found)
    return np.where(steps >= 0, found - (1 << 23) + nudge, (1 << 23) - found + nudge - 1) >> 8


def _table16(function: Callable[[np.ndarray], np.ndarray], powers: tuple[int, ...]) -> Reader:
    return lambda call: emit_table(call, function(_table_steps(call, powers)))


# ---- integers: hard swish ------------------------------------------------------------------------


def _high16(a: np.ndarray, b: np.ndarray | int, rounding: bool = True) -> np.ndarray:
    """``a * b / 2**15`` of int16, saturated; to the nearest, or towards zero."""
    product = a.astype(np.int64) * b
    if rounding:
        product = product + np.where(product >= 0, 1 << 14, 1 - (1 << 14))
    return np.clip(np.sign(product) * (np.abs(product) >> 15), -(1 << 15), (1 << 15) - 1)


def _left16(x: np.ndarray, count: int) -> np.ndarray:
    return np.clip(x << count, -(1 << 15), (1 << 15) - 1)


def _hard_swish(call: Call) -> None:
    values, x, y, zero = _centred(call)
    fine = np.float32(1 / 128) * x
    multiplier, shift = tflite_params(float(fine / y))
    gate_multiplier, gate_shift = tflite_params(float(fine / np.float32(3.0 / 32768.0)))
    if shift < 0:
        raise call.refuse("expected a result whose steps are not far finer than the operand's")
    fine_values = (values << 7).astype(np.int16).astype(np.int64)
    made = _high16(fine_values, reduced(np.int64(multiplier)))
    gate = _left16(fine_values, -gate_shift - 1) if gate_shift < 0 else fine_values
    gate = _high16(gate, reduced(np.int64(gate_multiplier)))
    gate = _left16(gate, 1) if gate_shift < 0 else divide_by_pot(gate, gate_shift)
    gate = (gate + (1 << 15)) >> 1
    emit_table(call, divide_by_pot(_high16(gate, made, rounding=False), shift) + zero)


# ---- integers: float functions -------------------------------------------------------------------


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.expm1(x.astype(np.float64)), x).astype(np.float32)


def precise(function: Real) -> Real:
    """A function in float64, rounded to float32 once."""
    return lambda x: function(x.astype(np.float64)).astype(np.float32)


def _away(x: np.ndarray) -> np.ndarray:
    """Rounded half away from zero, in float32."""
    return (np.sign(x) * np.floor(np.abs(x) + np.float32(0.5))).astype(np.float32)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def interpolated16(function: Real, low: float, high: float, steps: float) -> np.ndarray:
    """A function of every int16, which stand for ``low`` to ``high``, by interpolation between 513
    places, as the kernels have it; its results have ``steps`` to 1."""
    step, factor = np.float32((high - low) / 512), np.float32(steps)
    places = (np.float32(low) + np.arange(513, dtype=np.float32) * step).astype(np.float32)
    exact = (function(places) * factor).astype(np.float32)
    middle = _away(function(places[:-1] + step / 2) * factor)
    between = _away((exact[1:] + _away(exact[:-1])) / np.float32(2))
    bias = _away((between - middle) / np.float32(2))
    found = np.append(_away(exact[:-1]) - bias, _away(exact[-1:]))
    knots = np.clip(found, -32768, 32767).astype(np.int64)
    values = np.arange(-32768, 32768)
    index, rest = 256 + (values >> 7), values & 0x7F
    return knots[index] + (((knots[index + 1] - knots[index]) * rest + 64) >> 7)


def _real8(function: Real, call: Call) -> None:
    """A real function in float32, rounded half away from zero."""
    values, x, y, zero = _centred(call)
    steps = function(x * values.astype(np.float32)) * (np.float32(1) / y)
    rounded = np.sign(steps) * np.floor(np.abs(steps).astype(np.float64) + 0.5)
    emit_table(call, rounded.astype(np.int64) + zero)


def _real16(function: Real, call: Call) -> None:
    (x, zero_x), (y, zero_y) = call.quant(call.operand(0)), call.quant(call.result)
    if zero_x or zero_y:
        raise call.refuse(f"expected zero points 0, got {zero_x} and {zero_y}")
    low, high = float(x * np.float32(-32768)), float(x * np.float32(32767))
    steps = np.float32(65536) / (y * np.float32(32767) - y * np.float32(-32768))
    emit_table(call, interpolated16(function, low, high, float(steps)))


def _gelu(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * v * (1 + math.erf(v * math.sqrt(0.5))) for v in x.reshape(-1)])


def _gelu_near(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu_of(made: Callable[[Real, Call], None], call: Call) -> None:
    made(precise(_gelu_near if call.option("Approximate") else _gelu), call)


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "ABS": {"float32 int32 int64": onnx("Abs"), "int8 uint8 int16": _abs},
    "CEIL": {"float32": onnx("Ceil")},
    "COS": {"float32": _precise("cos")},
    "ELU": {
        "float32": unary(lambda x: select(x < 0.0, _expm1(x), x)),
        "int8 uint8": partial(_real8, _elu),
    },
    "EXP": {
        "float32": _precise("exp"), "int8 uint8": partial(_real8, precise(np.exp)),
        "int16": partial(_real16, precise(np.exp)),
    },
    "FLOOR": {"float32": onnx("Floor")},
    "GELU": {
        "int8 uint8": partial(_gelu_of, _real8), "int16": partial(_gelu_of, _real16),
        "float32": _gelu_float,
    },
    "HARD_SWISH": {
        "float32": unary(lambda x: x * minimum(maximum(x + 3.0, 0.0), 6.0) / 6.0),
        "int8 uint8": _hard_swish,
    },
    "LEAKY_RELU": {"int8 uint8": _leaky_relu, "float32": _leaky, "int16": _leaky_relu},
    "LOG": {
        "float32": _precise("log"), "int8 uint8": partial(_real8, precise(np.log)),
        "int16": partial(_real16, precise(np.log)),
    },
    "LOGICAL_NOT": {"bool": onnx("Not")},
    "LOGISTIC": {
        "int8 uint8": partial(_real8, _sigmoid), "float32": onnx("Sigmoid"),
        "int16": _table16(logistic16, (0,)),
    },
    "NEG": {"float32 int32 int64": onnx("Neg")},
    "RELU": {"int8 uint8 int16": partial(_clipped, 0.0, math.inf), "float32": onnx("Relu")},
    "RELU6": {
        "int8 uint8 int16": partial(_clipped, 0.0, 6.0), "float32": onnx("Clip", min=0.0, max=6.0),
    },
    "RELU_0_TO_1": {
        "float32": onnx("Clip", min=0.0, max=1.0), "int8 uint8": partial(_clipped, 0.0, 1.0),
    },
    "RELU_N1_TO_1": {
        "float32": onnx("Clip", min=-1.0, max=1.0), "int8 uint8": partial(_clipped, -1.0, 1.0),
    },
    "ROUND": {"float32": onnx("Round")},
    "RSQRT": {"float32": unary(lambda x: 1.0 / named("sqrt", x)), "int8 uint8 int16": _rsqrt},
    "SIGN": {"float32 int32 int64": unary(_sign)},
    "SIN": {"float32": _precise("sin")},
    "SQRT": {"float32": onnx("Sqrt"), "int8 uint8 int16": _sqrt},
    "SQUARE": {"float32 int32 int64": unary(lambda x: x * x)},
    "TANH": {
        "int8 uint8": partial(_real8, np.tanh), "float32": onnx("Tanh"),
        "int16": _table16(tanh16, (0, 1)),
    },
    "ZEROS_LIKE": {ANY: unary(zero)},
}  # fmt: skip
