"""Operators of two or more operands, element by element: arithmetic, comparisons, choices."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....graph.arithmetic.fixed_point import high_mul, reciprocal_of_one_plus, rescale
from ....graph.arithmetic.requant import tflite_params, tflite_requant
from ....graph.ops.elementwise import Add
from ....graph.ops.integer import QAddFixed, QMul
from ....te.expr import Call as Function
from ....te.expr import Const, Expr, binary, integer_range, maximum, minimum, select
from ..graph import ANY, Call, Reader, Rows
from .rules import (
    activation,
    between,
    bounds_of,
    emit_map,
    emit_pair_table,
    int32,
    layout_of,
    named,
    negated,
    one,
    pair,
    rescaled,
    same_quant,
    saturated,
    stored_type,
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


def _floor_mod_whole(a: Expr, b: Expr) -> Expr:
    return a - _floor_div(a, b) * b


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


def _add_float(call: Call) -> None:
    layout = layout_of(call, (0, 1))
    operands = (call.tensor(0, layout), call.tensor(1, layout))
    call.define(call.emit(Add(*activation(call)), *operands), layout)


# ---- integers that mean real numbers -------------------------------------------------------------


def _add8(call: Call, subtract: bool = False) -> None:
    (a, zero_a), (b, zero_b) = (call.quant(call.operand(p)) for p in (0, 1))
    y, zero = call.quant(call.result)
    widest = 2 * float(max(a, b))
    mult_a, shift_a = tflite_params(float(a) / widest)
    mult_b, shift_b = tflite_params(float(b) / widest)
    scale = np.array([widest / (2.0**20 * float(y))])
    requant = tflite_requant(scale, zero, *bounds_of(call))
    op = QAddFixed(zero_a, zero_b, mult_a, shift_a, mult_b, shift_b, subtract, requant)
    layout = layout_of(call, (0, 1))
    call.define(call.emit(op, call.tensor(0, layout), call.tensor(1, layout)), layout)


def _mul8(call: Call) -> None:
    (a, zero_a), (b, zero_b) = (call.quant(call.operand(p)) for p in (0, 1))
    y, zero = call.quant(call.result)
    requant = tflite_requant(np.array([float(a * b / y)]), zero, *bounds_of(call))
    layout = layout_of(call, (0, 1))
    operands = (call.tensor(0, layout), call.tensor(1, layout))
    call.define(call.emit(QMul(zero_a, zero_b, requant), *operands), layout)


def _add(subtract: bool = False, left_shift: int = 15) -> Reader:
    """Sum or difference of int16: both sides lifted, rescaled, combined and rescaled again."""

    def read(call: Call) -> None:
        (a, zero_a), (b, zero_b) = (call.quant(call.operand(p)) for p in (0, 1))
        y, zero = call.quant(call.result)
        widest = 2 * float(max(a, b))
        sides = [
            (zero_a, *tflite_params(float(a) / widest)),
            (zero_b, *tflite_params(float(b) / widest)),
        ]
        ending = tflite_params(widest / (float(1 << left_shift) * float(y)))
        lo, hi = bounds_of(call)

        def rule(*operands: Expr) -> Expr:
            lifted = [
                rescaled((int32(x) - zero_x) * (1 << left_shift), multiplier, shift)
                for x, (zero_x, multiplier, shift) in zip(operands, sides, strict=True)
            ]
            total = lifted[0] - lifted[1] if subtract else lifted[0] + lifted[1]
            return saturated(rescaled(total, *ending) + zero, lo, hi, stored_type(call))

        emit_map(call, rule, 2)

    return read


def _mul(call: Call) -> None:
    (a, zero_a), (b, zero_b) = (call.quant(call.operand(p)) for p in (0, 1))
    y, zero = call.quant(call.result)
    ending = tflite_params(float(a) * float(b) / float(y))
    lo, hi = bounds_of(call)

    def rule(left: Expr, right: Expr) -> Expr:
        product = (int32(left) - zero_a) * (int32(right) - zero_b)
        return saturated(rescaled(product, *ending) + zero, lo, hi, stored_type(call))

    emit_map(call, rule, 2)


def _squared_difference(call: Call) -> None:
    (a, zero_a), (b, zero_b) = (call.quant(call.operand(p)) for p in (0, 1))
    y, zero = call.quant(call.result)
    lift = 7 if stored_type(call) == "int8" else 0
    widest = 2.0 * float(max(a, b))
    first, second = tflite_params(float(a) / widest), tflite_params(float(b) / widest)
    ending = tflite_params(widest * widest / (float(1 << (2 * lift)) * float(y)))

    def rule(left: Expr, right: Expr) -> Expr:
        difference = rescaled((int32(left) - zero_a) * (1 << lift), *first) - rescaled(
            (int32(right) - zero_b) * (1 << lift), *second
        )
        made = rescaled(difference * difference, *ending) + zero
        return saturated(made, *integer_range(stored_type(call)), stored_type(call))

    emit_map(call, rule, 2)


def _extreme(function: Callable[[Expr, Expr], Expr]) -> Reader:
    def read(call: Call) -> None:
        if call.operand(0).dtype in ("int8", "uint8", "int16"):
            for position in (0, 1):
                same_quant(call, call.operand(position))
        emit_map(call, function, 2)

    return read


def _div(call: Call) -> None:
    (a, zero_a), (b, zero_b) = (call.quant(call.operand(p)) for p in (0, 1))
    y, zero = call.quant(call.result)
    multiplier, shift = tflite_params(float(a) / (float(b) * float(y)))
    lo, hi = bounds_of(call)

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
    (x, zero_x), (alpha, zero_alpha) = (call.quant(call.operand(p)) for p in (0, 1))
    y, zero = call.quant(call.result)
    above = tflite_params(float(x) / float(y))
    below = tflite_params(float(x) * float(alpha) / float(y))

    def rule(value: Expr, slope: Expr) -> Expr:
        centred = int32(value) - zero_x
        low = rescaled(centred * (int32(slope) - zero_alpha), *below)
        made = select(centred >= 0, rescaled(centred, *above), low)
        return saturated(made + zero, *integer_range(stored_type(call)), stored_type(call))

    emit_map(call, rule, 2)


def add_n(call: Call) -> None:
    """The sum of all operands."""
    count = len(call.operator.inputs)
    if call.operand(0).dtype == "float32":

        def total(*terms: Expr) -> Expr:
            found = terms[0]
            for term in terms[1:]:
                found = found + term
            return found

        emit_map(call, total, count)
        return
    quants = [call.quant(call.operand(p)) for p in range(count)]
    y, zero = call.quant(call.result)
    if any(quant != quants[0] for quant in quants):
        raise call.refuse("expected operands of one scale and zero point")
    x, zero_x = quants[0]
    widest = 2 * float(x)
    lift, ending = tflite_params(float(x) / widest), tflite_params(widest / (2.0**20 * float(y)))

    def quantised(*terms: Expr) -> Expr:
        found: Expr = Const(0)
        for term in terms:
            found = found + rescaled((int32(term) - zero_x) * (1 << 20), *lift)
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


def _compare_quantised(rule: Pair) -> Reader:
    """Comparison of integers with scales: both sides lifted by 8 bits and rescaled."""

    def read(call: Call) -> None:
        pairs = [call.quant(call.operand(p)) for p in (0, 1)]
        sides = [(zero, *tflite_params(float(scale))) for scale, zero in pairs]

        def lifted(x: Expr, zero: int, multiplier: int, shift: int) -> Expr:
            return rescaled((int32(x) - zero) * (1 << 8), multiplier, shift)

        def compared(a: Expr, b: Expr) -> Expr:
            return rule(lifted(a, *sides[0]), lifted(b, *sides[1]))

        emit_map(call, compared, 2)

    return read


def compare(kind: str) -> dict[str, Reader]:
    """The readers of a comparison, by type."""
    rule = _COMPARISONS[kind]
    plain, lifted = pair(rule), _compare_quantised(rule)
    found = {"float32": plain, "int32": plain, "int64": plain, "int8": lifted, "uint8": lifted}
    return {**found, "bool": plain} if kind in ("EQUAL", "NOT_EQUAL") else found


def _logical(op: str) -> Reader:
    return pair(lambda a, b: binary(op, a, b))


def select_v2(call: Call) -> None:
    """One of two tensors, element by element; the first operand is the condition."""
    if call.operand(0).dtype != "bool":
        raise call.refuse(f"expected a condition of bool, got {call.operand(0).dtype}")
    if call.operand(1).dtype in ("int8", "uint8", "int16") and call.operand(1).scale.size:
        for position in (1, 2):
            same_quant(call, call.operand(position))
    emit_map(call, lambda c, a, b: select(c, a, b), 3)


def _select(call: Call) -> None:
    """As SELECT_V2, or whole rows by a condition of rank 1."""
    condition, result = call.operand(0), call.result
    if condition.dtype != "bool":
        raise call.refuse(f"expected a condition of bool, got {condition.dtype}")
    if call.operand(1).scale.size:
        for position in (1, 2):
            same_quant(call, call.operand(position))
    flags, rank = call.tensor(0), len(result.shape)
    if len(flags.shape) == 1 and rank > 1:
        flags = call.reshape(flags, (*flags.shape, *(1,) * (rank - 1)))
    values = (flags, call.tensor(1), call.tensor(2))
    call.define(call.map(select, *values))


_BITS = "int8 int16 int32 uint32"
#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "ADD": {"int8 uint8": _add8, "float32": _add_float, "int16": _add(),
            "int32 int64": pair(lambda a, b: a + b)},
    "ADD_N": {ANY: add_n},
    "ATAN2": {"float32": pair(_angle)},
    "BITWISE_XOR": {_BITS: pair(lambda a, b: (a | b) - (a & b))},
    "DIV": {"float32": _fused(lambda a, b: a / b), "int8 uint8": _div,
            "int32 int64": pair(lambda a, b: named("divide", a, b))},
    "FLOOR_DIV": {"float32": pair(lambda a, b: named("floor", a / b)),
                  "int32 int64": pair(_floor_div)},
    "FLOOR_MOD": {"float32": pair(_floor_mod), "int32 int64": pair(_floor_mod_whole)},
    "LOGICAL_AND": {"bool": _logical("&")},
    "LOGICAL_OR": {"bool": _logical("|")},
    "MAXIMUM": {"float32 int8 uint8 int16 int32 int64": _extreme(maximum)},
    "MINIMUM": {"float32 int8 uint8 int16 int32 int64": _extreme(minimum)},
    "MUL": {"int8 uint8": _mul8, "float32": _fused(lambda a, b: a * b), "int16": _mul,
            "int32 int64": pair(lambda a, b: a * b)},
    "POW": {"float32": pair(lambda a, b: named("pow", a, b)), "int32": pair(_whole_power)},
    "PRELU": {"float32": pair(lambda x, slope: select(x >= 0.0, x, x * slope)),
              "int8 uint8": _prelu},
    "RIGHT_SHIFT": {_BITS: pair(_shift)},
    "SELECT": {ANY: _select},
    "SELECT_V2": {ANY: select_v2},
    "SQUARED_DIFFERENCE": {"float32 int32": pair(lambda a, b: (a - b) * (a - b)),
                           "int8 uint8 int16": _squared_difference},
    "SUB": {"int8 uint8": lambda call: _add8(call, subtract=True),
            "float32": _fused(lambda a, b: a - b), "int16": _add(subtract=True),
            "int32 int64": pair(lambda a, b: a - b)},
    **{kind: compare(kind) for kind in _COMPARISONS},
}  # fmt: skip
