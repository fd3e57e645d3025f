"""Operators of two or more operands, element by element: arithmetic, comparisons, choices."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial, reduce

import numpy as np

from ....graph.arithmetic.fixed_point import high_mul, reciprocal_of_one_plus, rescale
from ....graph.arithmetic.requant import tflite_params, tflite_requant
from ....graph.ops.elementwise import Add
from ....graph.ops.integer import QAddFixed, QMul
from ....te.expr import Call as Function
from ....te.expr import Const, Expr, integer_range, maximum, minimum, select
from ..graph import ANY, QUANTISED, Call, Reader, Rows
from .rules import (
    between,
    emit_map,
    emit_op,
    emit_pair_table,
    int32,
    named,
    negated,
    one,
    onnx,
    pair,
    rescaled,
    saturated,
    zero,
)

Pair = Callable[[Expr, Expr], Expr]


# ---- floats and plain integers -------------------------------------------------------------------


def _fused(rule: Pair) -> Reader:
    """A float operator with a fused activation."""
    return lambda call: emit_map(call, lambda a, b: between(call, rule(a, b)), 2)


def _floor_mod(a: Expr, b: Expr) -> Expr:
    rest = named("remainder", a, b)
    zero = Const(0.0 if a.dtype == "float32" else 0, a.dtype)
    other = select(rest.equal(zero), zero, select((rest < zero).equal(b < zero), zero, b))
    return rest + other


def _floor_div(a: Expr, b: Expr) -> Expr:
    quotient, rest = named("divide", a, b), named("remainder", a, b)
    differ = (rest < zero(rest)).equal(b < zero(b)).equal(Const(False, "bool"))
    inexact = rest.equal(zero(rest)).equal(Const(False, "bool"))
    return select(inexact & differ, quotient - one(quotient), quotient)


def _whole_power(x: Expr, power: Expr) -> Expr:
    """By squares. From 32 on, only whether the power is odd matters: other results than those of
    -1, 0 and 1 do not fit. The kernel stops at powers below 0."""
    few = select(power < 32, maximum(power, 0), (power & 1) + 32)
    made, square = one(x), x
    for bit in range(6):
        made = select(((few >> bit) & 1) > 0, made * square, made)
        square = square * square
    return made


def _shift(x: Expr, count: Expr) -> Expr:
    bits = 8 * np.dtype(x.dtype).itemsize
    return x >> minimum(maximum(count, zero(count)), Const(bits - 1, count.dtype))


def _angle(y: Expr, x: Expr) -> Expr:
    """The angle of a point, from -pi to pi, in float64 and rounded once."""
    below, left = (Function("reinterpret", (v,), "int32") < 0 for v in (y, x))
    high, wide = (
        select(side, zero(v) - v, v).astype("float64") for side, v in ((below, y), (left, x))
    )
    same = select(wide.equal(Const(0.0, "float64")), zero(wide), one(wide))
    steep = select(high.equal(wide), same, high / wide)
    angle = named("atan", steep)
    angle = select(left, Const(math.pi, "float64") - angle, angle)
    return select(below, Const(0.0, "float64") - angle, angle).astype("float32")


# ---- integers that mean real numbers -------------------------------------------------------------


def _quants(call: Call) -> tuple[tuple[np.float32, int], ...]:
    """Scales and zero points of two operands and the result."""
    return tuple(call.quant(t) for t in (call.operand(0), call.operand(1), call.result))


def _lifted(x: Expr, zero: int, lift: int, factors: tuple[int, int]) -> Expr:
    """An integer less its zero point, lifted by some bits and rescaled."""
    return rescaled((int32(x) - zero) * (1 << lift), *factors)


def _sum(call: Call, *, subtract: bool) -> None:
    """Sum or difference: both sides lifted, rescaled, combined and rescaled again."""
    (a, zero_a), (b, zero_b), (y, zero) = _quants(call)
    dtype, widest = call.stored_type, 2 * float(max(a, b))
    lift = 20 if dtype == "int8" else 15
    first, second = tflite_params(float(a) / widest), tflite_params(float(b) / widest)
    scale, (lo, hi) = widest / (float(1 << lift) * float(y)), call.bounds()
    if dtype == "int8":
        requant = tflite_requant(np.array([scale]), zero, lo, hi)
        emit_op(call, QAddFixed(zero_a, zero_b, *first, *second, subtract, requant), 2)
        return
    ending = tflite_params(scale)

    def rule(left: Expr, right: Expr) -> Expr:
        left, right = _lifted(left, zero_a, lift, first), _lifted(right, zero_b, lift, second)
        total = left - right if subtract else left + right
        return saturated(rescaled(total, *ending) + zero, lo, hi, dtype)

    emit_map(call, rule, 2)


def _product8(call: Call) -> None:
    (a, zero_a), (b, zero_b), (y, zero) = _quants(call)
    requant = tflite_requant(np.array([float(a * b / y)]), zero, *call.bounds())
    emit_op(call, QMul(zero_a, zero_b, requant), 2)


def _product16(call: Call) -> None:
    (a, zero_a), (b, zero_b), (y, zero) = _quants(call)
    ending, (lo, hi) = tflite_params(float(a) * float(b) / float(y)), call.bounds()

    def rule(left: Expr, right: Expr) -> Expr:
        product = (int32(left) - zero_a) * (int32(right) - zero_b)
        return saturated(rescaled(product, *ending) + zero, lo, hi, "int16")

    emit_map(call, rule, 2)


def _squared_difference(call: Call) -> None:
    (a, zero_a), (b, zero_b), (y, zero) = _quants(call)
    dtype, widest = call.stored_type, 2.0 * float(max(a, b))
    lift = 7 if dtype == "int8" else 0
    first, second = tflite_params(float(a) / widest), tflite_params(float(b) / widest)
    ending = tflite_params(widest * widest / (float(1 << (2 * lift)) * float(y)))

    def rule(left: Expr, right: Expr) -> Expr:
        apart = _lifted(left, zero_a, lift, first) - _lifted(right, zero_b, lift, second)
        return saturated(rescaled(apart * apart, *ending) + zero, *integer_range(dtype), dtype)

    emit_map(call, rule, 2)


def _extreme(function: Callable[[Expr, Expr], Expr], call: Call) -> None:
    if call.operand(0).dtype in QUANTISED:
        for position in (0, 1):
            call.same_quant(call.operand(position))
    emit_map(call, function, 2)


def _div(call: Call) -> None:
    (a, zero_a), (b, zero_b), (y, zero) = _quants(call)
    multiplier, shift = tflite_params(float(a) / (float(b) * float(y)))
    lo, hi = call.bounds()

    def quotients(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        top, bottom = left - zero_a, right - zero_b
        top, bottom = np.where(bottom < 0, -top, top), np.abs(bottom)
        bottom = np.where(bottom == 0, 1, bottom)
        zeros = 32 - np.frexp(bottom.astype(np.float64))[1].astype(np.int64)
        inverse = reciprocal_of_one_plus((bottom << zeros) - (1 << 31))
        headroom = np.where(top == 0, 31, 31 - np.frexp(_magnitude(top))[1].astype(np.int64))
        unscaled = high_mul(top << headroom, inverse)
        total = shift + (31 - zeros) + headroom
        found = rescale(unscaled, multiplier, np.clip(total, -31, 31))
        # Beyond 31 bits the kernel's shift takes the count modulo 32, and it rounds up from 0 on.
        high = high_mul(unscaled, multiplier)
        beyond = (high >> (total & 31)) + (high >= 0)
        return np.clip(np.where(total > 31, beyond, found) + zero, lo, hi)

    emit_pair_table(call, quotients)


def _magnitude(x: np.ndarray) -> np.ndarray:
    """What has as many bits before the sign's repetitions end: x, or ~x below zero."""
    return np.where(x < 0, ~x, x).astype(np.float64)


def _prelu(call: Call) -> None:
    (x, zero_x), (alpha, zero_alpha), (y, zero) = _quants(call)
    above = tflite_params(float(x) / float(y))
    below = tflite_params(float(x) * float(alpha) / float(y))

    def rule(value: Expr, slope: Expr) -> Expr:
        centred = int32(value) - zero_x
        low = rescaled(centred * (int32(slope) - zero_alpha), *below)
        made = select(centred >= 0, rescaled(centred, *above), low)
        return saturated(made + zero, *integer_range(call.stored_type), call.stored_type)

    emit_map(call, rule, 2)


def _add_n(call: Call) -> None:
    """The sum of all operands."""
    count = len(call.operator.inputs)
    if call.operand(0).dtype == "float32":
        emit_map(call, lambda *terms: reduce(operator.add, terms), count)
        return
    (x, zero_x), *others = [call.quant(call.operand(p)) for p in range(count)]
    y, zero = call.quant(call.result)
    if any(quant != (x, zero_x) for quant in others):
        raise call.refuse("expected operands of one scale and zero point")
    widest = 2 * float(x)
    lift, ending = tflite_params(float(x) / widest), tflite_params(widest / (2.0**20 * float(y)))

    def quantised(*terms: Expr) -> Expr:
        found = reduce(operator.add, (_lifted(term, zero_x, 20, lift) for term in terms))
        return saturated(rescaled(found, *ending) + zero, -128, 127, "int8")

    emit_map(call, quantised, count)


# ---- comparisons and choices ---------------------------------------------------------------------

_COMPARISONS: dict[str, Pair] = {
    "EQUAL": lambda a, b: a.equal(b),
    "GREATER": lambda a, b: a > b,
    "GREATER_EQUAL": lambda a, b: a >= b,
    "LESS": lambda a, b: a < b,
    "LESS_EQUAL": lambda a, b: a <= b,
    "NOT_EQUAL": lambda a, b: negated(a.equal(b)),
}


def _compared(rule: Pair, call: Call) -> None:
    """Comparison of integers with scales: both sides lifted by 8 bits and rescaled."""
    (a, zero_a), (b, zero_b) = (call.quant(call.operand(p)) for p in (0, 1))
    first, second = tflite_params(float(a)), tflite_params(float(b))

    def compared(left: Expr, right: Expr) -> Expr:
        return rule(_lifted(left, zero_a, 8, first), _lifted(right, zero_b, 8, second))

    emit_map(call, compared, 2)


def _compare(kind: str) -> dict[str, Reader]:
    """The readers of a comparison, by types."""
    rule, plain = _COMPARISONS[kind], "float32 int32 int64"
    plain += " bool" if kind in ("EQUAL", "NOT_EQUAL") else ""
    return {plain: pair(rule), "int8 uint8": partial(_compared, rule)}


def _select(call: Call) -> None:
    """One of two tensors, element by element, by a condition; SELECT also takes whole rows."""
    condition, rank = call.operand(0), len(call.result.shape)
    if condition.dtype != "bool":
        raise call.refuse(f"expected a condition of bool, got {condition.dtype}")
    if call.operand(1).dtype in QUANTISED and call.operand(1).scale.size:
        for position in (1, 2):
            call.same_quant(call.operand(position))
    flags = call.tensor(0)
    if call.kind == "SELECT" and len(flags.shape) == 1 and rank > 1:
        flags = call.reshape(flags, (*flags.shape, *(1,) * (rank - 1)))
        call.define(call.map(select, flags, call.tensor(1), call.tensor(2)))
    else:
        emit_map(call, select, 3)


_BITS = "int8 int16 int32 uint32"
#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "ADD": {
        "int8 uint8 int16": partial(_sum, subtract=False),
        "float32": lambda call: emit_op(call, Add(*call.activation()), 2),
        "int32 int64": onnx("Add", 2),
    },
    "ADD_N": {ANY: _add_n},
    "ATAN2": {"float32": pair(_angle)},
    "BITWISE_XOR": {_BITS: onnx("BitwiseXor", 2)},
    "DIV": {
        "float32": _fused(lambda a, b: a / b), "int8 uint8": _div, "int32 int64": onnx("Div", 2),
    },
    "FLOOR_DIV": {
        "float32": pair(lambda a, b: named("floor", a / b)), "int32 int64": pair(_floor_div),
    },
    "FLOOR_MOD": {
        "float32": pair(_floor_mod), "int32 int64": pair(lambda a, b: a - _floor_div(a, b) * b),
    },
    "LOGICAL_AND": {"bool": onnx("And", 2)},
    "LOGICAL_OR": {"bool": onnx("Or", 2)},
    "MAXIMUM": {"float32 int8 uint8 int16 int32 int64": partial(_extreme, maximum)},
    "MINIMUM": {"float32 int8 uint8 int16 int32 int64": partial(_extreme, minimum)},
    "MUL": {
        "int8 uint8": _product8, "float32": _fused(lambda a, b: a * b), "int16": _product16,
        "int32 int64": onnx("Mul", 2),
    },
    "POW": {"float32": onnx("Pow", 2), "int32": pair(_whole_power)},
    "PRELU": {"float32": onnx("PRelu", 2), "int8 uint8": _prelu},
    "RIGHT_SHIFT": {_BITS: pair(_shift)},
    "SELECT": {ANY: _select},
    "SELECT_V2": {ANY: _select},
    "SQUARED_DIFFERENCE": {
        "float32 int32": pair(lambda a, b: (a - b) * (a - b)),
        "int8 uint8 int16": _squared_difference,
    },
    "SUB": {
        "int8 uint8 int16": partial(_sum, subtract=True),
        "float32": _fused(lambda a, b: a - b), "int32 int64": onnx("Sub", 2),
    },
    **{kind: _compare(kind) for kind in _COMPARISONS},
}  # fmt: skip
