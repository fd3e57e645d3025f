"""Readers of TensorFlow Lite operators of two or more operands, element by element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...graph.arithmetic.fixed_point import high_mul, reciprocal_of_one_plus, rescale
from ...graph.arithmetic.requant import tflite_params
from ...graph.ops.quantisation import Dequantize, Quant
from ...te.expr import Call as Function
from ...te.expr import Const, Expr, binary, integer_range, maximum, minimum, select
from . import operators
from .elementwise import bounds_of, same_quant
from .graph import Call, held_in
from .mapping import (
    between,
    emit_map,
    emit_pair_table,
    layout_of,
    rescaled,
    saturated,
    stored_type,
)

Reader = Callable[[Call], None]
Pair = Callable[[Expr, Expr], Expr]


def _int32(x: Expr) -> Expr:
    return x.astype("int32")


def _negated(x: Expr) -> Expr:
    return x.equal(Const(False, "bool"))


def _pair(rule: Pair) -> Reader:
    return lambda call: emit_map(call, rule, 2)


def _fused(rule: Pair) -> Reader:
    """A float operator with a fused activation."""
    return lambda call: emit_map(call, lambda a, b: between(call, rule(a, b)), 2)


def _named(name: str, *args: Expr) -> Expr:
    return Function(name, args, args[0].dtype)


def _floor_mod(a: Expr, b: Expr) -> Expr:
    rest = _named("remainder", a, b)
    zero = Const(0.0 if a.dtype == "float32" else 0, a.dtype)
    other = select(rest.equal(zero), zero, select((rest < zero).equal(b < zero), zero, b))
    return rest + other


# ---- quantised -----------------------------------------------------------------------------------


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
                rescaled((_int32(x) - zero_x) * (1 << left_shift), multiplier, shift)
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
        product = (_int32(left) - zero_a) * (_int32(right) - zero_b)
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
        difference = rescaled((_int32(left) - zero_a) * (1 << lift), *first) - rescaled(
            (_int32(right) - zero_b) * (1 << lift), *second
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
        centred = _int32(value) - zero_x
        low = rescaled(centred * (_int32(slope) - zero_alpha), *below)
        made = select(centred >= 0, rescaled(centred, *above), low)
        return saturated(made + zero, *integer_range(stored_type(call)), stored_type(call))

    emit_map(call, rule, 2)


# ---- comparisons ---------------------------------------------------------------------------------

_COMPARISONS: dict[str, Pair] = {
    "EQUAL": lambda a, b: a.equal(b),
    "GREATER": lambda a, b: a > b,
    "GREATER_EQUAL": lambda a, b: a >= b,
    "LESS": lambda a, b: a < b,
    "LESS_EQUAL": lambda a, b: a <= b,
    "NOT_EQUAL": lambda a, b: _negated(a.equal(b)),
}


def _compare_quantised(rule: Pair) -> Reader:
    """Comparison of integers with scales: both sides lifted by 8 bits and rescaled."""

    def read(call: Call) -> None:
        pairs = [call.quant(call.operand(p)) for p in (0, 1)]
        sides = [(zero, *tflite_params(float(scale))) for scale, zero in pairs]

        def lifted(x: Expr, zero: int, multiplier: int, shift: int) -> Expr:
            return rescaled((_int32(x) - zero) * (1 << 8), multiplier, shift)

        def compared(a: Expr, b: Expr) -> Expr:
            return rule(lifted(a, *sides[0]), lifted(b, *sides[1]))

        emit_map(call, compared, 2)

    return read


def compare(kind: str) -> dict[str, Reader]:
    """The readers of a comparison, by type."""
    rule = _COMPARISONS[kind]
    plain, lifted = _pair(rule), _compare_quantised(rule)
    found = {"float32": plain, "int32": plain, "int64": plain, "int8": lifted, "uint8": lifted}
    return {**found, "bool": plain} if kind in ("EQUAL", "NOT_EQUAL") else found


# ---- others --------------------------------------------------------------------------------------


def _logical(op: str) -> Reader:
    return _pair(lambda a, b: binary(op, a, b))


def select_v2(call: Call) -> None:
    """One of two tensors, element by element; the first operand is the condition."""
    if call.operand(0).dtype != "bool":
        raise call.refuse(f"expected a condition of bool, got {call.operand(0).dtype}")
    if call.operand(1).dtype in ("int8", "uint8", "int16") and call.operand(1).scale.size:
        for position in (1, 2):
            same_quant(call, call.operand(position))
    emit_map(call, lambda c, a, b: select(c, a, b), 3)


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
            found = found + rescaled((_int32(term) - zero_x) * (1 << 20), *lift)
        return saturated(rescaled(found, *ending) + zero, -128, 127, "int8")

    emit_map(call, quantised, count)


_FLOATS = ("float16", "float32")


def cast(call: Call) -> None:
    """Conversion: floats are cut off towards zero and saturate, integers wrap."""
    source, target = call.operand(0).dtype, call.result.dtype
    kind = "int32" if target == "uint8" else held_in(target)

    def whole(x: Expr) -> Expr:
        low, high = (0, 255) if target == "uint8" else integer_range(target)
        found = select(x <= float(low), Const(low, kind), _named("trunc", x).astype(kind))
        return select(x >= float(high + 1), Const(high, kind), found)

    def rule(x: Expr) -> Expr:
        if source == "uint8":  # the graph stores 128 less
            x = _int32(x) + 128
        if target == "bool":
            return _negated(x.equal(Const(0.0 if source in _FLOATS else 0, x.dtype)))
        if source == "bool":
            one, none = (1.0, 0.0) if target in _FLOATS else (1, 0)
            x = select(x, Const(one, kind), Const(none, kind))
        elif source in _FLOATS and target not in _FLOATS:
            x = whole(x)
        if target == "uint8":
            return ((_int32(x) & 255) - 128).astype("int8")
        if target == "float16":
            return x.astype("float32").astype("float16").astype("float32")
        return x.astype(target)

    emit_map(call, rule, 1)


def quantize16(call: Call) -> None:
    """From float32, int8, int16 or int32 to int16 or int32, and from int16 and int32 to int8."""
    source, target = call.operand(0), call.result
    zero, y = int(target.zero_point[0]), target.scale[0]
    dtype = "int8" if target.dtype == "uint8" else target.dtype
    zero -= 128 if target.dtype == "uint8" else 0
    lo, hi = integer_range(dtype)
    if source.dtype == "float32":

        def steps(x: Expr) -> Expr:
            exact = x / Const(float(y), "float32")
            whole = _named("trunc", exact)
            rest = exact - whole
            up = select(rest >= 0.5, 1.0, 0.0) - select(rest <= -0.5, 1.0, 0.0)
            return saturated((whole + up).astype("int64") + zero, lo, hi, dtype)

        emit_map(call, steps, 1)
        return
    x, zero_x = source.scale[0], int(source.zero_point[0])
    zero_x -= 128 if source.dtype == "uint8" else 0
    factors = tflite_params(float(x) / float(y))

    def rule(value: Expr) -> Expr:
        made = rescaled(_int32(value) - zero_x, *factors).astype("int64") + zero
        return saturated(made, lo, hi, dtype)

    emit_map(call, rule, 1)


def dequantize16(call: Call) -> None:
    """int16 or int32 to float32."""
    source, layout = call.operand(0), layout_of(call, (0,))
    meaning = Quant(source.scale, source.zero_point.astype(np.int32), source.dtype)
    call.define(call.emit(Dequantize(meaning), call.tensor(0, layout)), layout)


def widened(call: Call) -> None:
    """A float16 tensor as float32, which holds it in the graph already."""
    call.define(call.tensor(0))


def dequantize8(call: Call) -> None:
    """8 bits to float32; a constant may have a scale for each channel."""
    source = call.operand(0)
    if source.data is None or source.scale.size == 1:
        operators.READERS["DEQUANTIZE"](call)
        return
    if not source.scale.size:
        raise call.refuse(f"{source} has no scale")
    shape = [-1 if axis == source.axis else 1 for axis in range(source.data.ndim)]
    centred = source.data.astype(np.int32) - source.zero_point.reshape(shape)
    data = centred.astype(np.float32) * source.scale.reshape(shape)
    call.define(call.value(data.astype(np.float32)))


_MAX, _MIN = _extreme(maximum), _extreme(minimum)
#: Readers by operator and by the first operand's type, besides those of ``operators.py``.
TYPED: dict[str, dict[str, Reader]] = {
    "ADD": {"int16": _add(), "int32": _pair(lambda a, b: a + b)},
    "DIV": {"float32": _fused(lambda a, b: a / b), "int8": _div,
            "int32": _pair(lambda a, b: _named("divide", a, b))},
    "FLOOR_DIV": {"float32": _pair(lambda a, b: _named("floor", a / b))},
    "FLOOR_MOD": {"float32": _pair(_floor_mod)},
    "LOGICAL_AND": {"bool": _logical("&")},
    "LOGICAL_NOT": {"bool": lambda call: emit_map(call, _negated, 1)},
    "LOGICAL_OR": {"bool": _logical("|")},
    "MAXIMUM": dict.fromkeys(("float32", "int8", "int16", "int32", "int64"), _MAX),
    "MINIMUM": dict.fromkeys(("float32", "int8", "int16", "int32", "int64"), _MIN),
    "MUL": {"float32": _fused(lambda a, b: a * b), "int16": _mul,
            "int32": _pair(lambda a, b: a * b)},
    "PRELU": {"float32": _pair(lambda x, slope: select(x >= 0.0, x, x * slope)), "int8": _prelu},
    "SQUARED_DIFFERENCE": {
        "float32": _pair(lambda a, b: (a - b) * (a - b)),
        "int32": _pair(lambda a, b: (a - b) * (a - b)),
        "int8": _squared_difference,
        "int16": _squared_difference,
    },
    "SUB": {"float32": _fused(lambda a, b: a - b), "int16": _add(subtract=True),
            "int32": _pair(lambda a, b: a - b)},
    **{kind: compare(kind) for kind in _COMPARISONS},
}  # fmt: skip
