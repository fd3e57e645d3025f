"""Softmax and its logarithm."""

from __future__ import annotations

import math

import numpy as np

from ....graph.arithmetic.fixed_point import divide_by_pot, exp_on_negative_values, rescale
from ....graph.arithmetic.requant import INT8_MIN, OFFSET, tflite_params
from ....graph.ir import Tensor
from ....graph.ops.integer import (
    SOFTMAX_LIMIT,
    SOFTMAX_SUM_BITS,
    QSoftmax,
    leading_zeros,
)
from ....graph.ops.movement import Gather
from ....te.expr import Const, Expr, maximum, minimum, select
from ....te.tensor import clip
from ..graph import Call, Rows
from .elementwise import interpolated16, precise
from .rules import named, narrowed, reduce_rows, rescaled

INT16_MIN = -(1 << 15)


def _softmax_float(call: Call) -> None:
    """exp(beta * (x - max)) over their sum, along the last axis."""
    source, beta = call.tensor(0), float(call.option("Beta"))
    most = reduce_rows(call, "max", source)
    powers = call.map(lambda a, b: named("exp", (a - b) * beta), source, most)
    call.define(call.map(lambda a, b: a / b, powers, reduce_rows(call, "+", powers)))


def _softmax8(call: Call) -> None:
    scale, _ = call.quant(call.operand(0))
    out, zero = call.quant(call.result)
    op = QSoftmax(float(call.option("Beta")) * float(scale))
    if call.result.dtype == "int16":
        _softmax8_to_16(call, op)
        return
    if zero != INT8_MIN or not math.isclose(out, 1 / 256, rel_tol=1e-3):
        raise call.refuse(
            f"expected a result of scale 1/256 from the lowest value on, got scale {out!r} and"
            f" zero point {zero + (OFFSET if call.result.dtype == 'uint8' else 0)}"
        )
    call.define(call.emit(op, call.tensor(0)))


def _softmax8_to_16(call: Call, op: QSoftmax) -> None:
    """As :class:`QSoftmax`, with 16 bits of the quotient instead of 8."""
    out, zero = call.quant(call.result)
    if zero != INT16_MIN or not math.isclose(out, 1 / 65536, rel_tol=1e-3):
        raise call.refuse(
            f"expected a result of scale 1/65536 and zero point {INT16_MIN}, got {out!r}, {zero}"
        )
    value = call.tensor(0)
    if value.shape[-1] > SOFTMAX_LIMIT:
        raise call.refuse(f"expected rows of at most {SOFTMAX_LIMIT}, got {value.shape[-1]}")
    most = reduce_rows(call, "max", value)
    index = call.map(lambda m, v: m.astype("int32") - v.astype("int32"), most, value)
    power = call.emit(Gather(0), call.value(op.exponentials), index)
    parts = divide_by_pot(op.exponentials.astype(np.int64), SOFTMAX_SUM_BITS).astype(np.int32)
    total = reduce_rows(call, "+", call.emit(Gather(0), call.value(parts), index))
    fraction = call.map(
        lambda z: ((_wide(z) << _wide(leading_zeros(z))) - (1 << 31)).astype("int32"), total
    )

    def rule(e: Expr, inverse: Expr, z: Expr) -> Expr:
        count = Const(27, "int64") - _wide(leading_zeros(z))
        made = (_wide(_times(e, inverse)) + (Const(1, "int64") << (count - 1))) >> count
        return clip(made + INT16_MIN, INT16_MIN, -INT16_MIN - 1).astype("int16")

    call.define(call.map(rule, power, _reciprocal(call, fraction), total))


def _softmax16(call: Call) -> None:
    x, _ = call.quant(call.operand(0))
    y, zero = call.quant(call.result)
    if zero or abs(float(y) * 32768 - 1) > 1e-3:
        raise call.refuse(f"expected a result of scale 2**-15 and zero point 0, got {y!r}, {zero}")
    factors = tflite_params(float(x) * float(call.option("Beta")) / (10.0 / 65535.0))
    exponentials = interpolated16(precise(np.exp), -10.0, 0.0, 32768.0)
    inverses = interpolated16(lambda v: np.float32(1) / (np.float32(1) + v), 0.0, 1.0, 32768.0)
    below = np.clip(rescale(-np.arange(65536), *factors) + 32767, -32768, 32767)
    value = call.tensor(0)
    most = reduce_rows(call, "max", value)
    under = call.map(lambda m, v: m.astype("int32") - v.astype("int32"), most, value)
    table = call.value(exponentials[below + 32768].astype(np.int32))
    power = call.emit(Gather(0), table, under)
    total = reduce_rows(call, "+", power)

    def place(acc: Expr) -> Expr:
        lifted = acc.astype("int64") << (leading_zeros(acc).astype("int64") - 1)
        return clip(((lifted + (1 << 13)) >> 14) - (1 << 16), 0, 65535).astype("int32")

    inverse = call.emit(Gather(0), call.value(inverses.astype(np.int32)), call.map(place, total))

    def rule(e: Expr, factor: Expr, acc: Expr) -> Expr:
        count = (Const(31) - leading_zeros(acc)).astype("int64")
        product = e.astype("int64") * factor.astype("int64")
        made = (product + (Const(1, "int64") << (count - 1))) >> count
        return clip(made, 0, 32767).astype("int16")

    call.define(call.map(rule, power, inverse, total))


# ---- the logarithm of int8: a number of Q(n) has n bits before the binary point and 31 - n behind


#: Bits before the point of differences, of sums of exponentials, and of the result.
_DIFFERENCE, _SUM, _RESULT = 5, 12, 4
_LOG_2, _ROOT_HALF, _FOURTH_ROOT_HALF = 1488522236, 1518500250, 1805811301  # in Q(0)
#: Coefficients of the quotient of polynomials that is the logarithm near 1, in Q(0).
_NUMERATOR, _SQUARE, _WHOLE, _LINEAR = 117049297, 127690142, 1057819769, 638450708
_PLUS_48_OVER_17, _NEG_32_OVER_17 = 1515870810, -1010580540
#: A quarter in Q(6), which the powers of two of the logarithm are in.
_POWERS, _QUARTER = 6, 1 << 23


def _times(a: Expr, b: Expr | int) -> Expr:
    return rescaled(a, b, 0)


def _wide(x: Expr) -> Expr:
    return x.astype("int64")


def _shifted(x: Expr, count: Expr) -> Expr:
    """``x * 2**count``, saturated; count >= 0."""
    return narrowed(_wide(x) << _wide(count))


def _divided(x: Expr, count: int) -> Expr:
    """``x / 2**count`` rounded half away from zero."""
    negative = select(x < 0, Const(1, x.dtype), Const(0, x.dtype))
    mask = (1 << count) - 1
    up = select((x & mask) > ((mask >> 1) + negative), Const(1, x.dtype), Const(0, x.dtype))
    return (x >> count) + up


def _reciprocal(call: Call, value: Tensor) -> Tensor:
    """1 / (1 + x) in Q(0) of 0 <= x < 1: three steps of Newton and Raphson."""
    half = call.map(lambda x: ((_wide(x) + (1 << 31)) >> 1).astype("int32"), value)
    found = call.map(lambda h: _times(h, _NEG_32_OVER_17) + _PLUS_48_OVER_17, half)
    for _ in range(3):

        def better(x: Expr, h: Expr) -> Expr:
            rest = Const(1 << 29) - _times(h, x)
            return x + _shifted(_times(x, rest), Const(2))

        found = call.map(better, found, half)
    return call.map(lambda x: _shifted(x, Const(1)), found)


def _logarithm(call: Call, total: Tensor) -> Tensor:
    """The logarithm in Q(5) of sums of at least 1 in Q(12). Two ways to write a sum as a power of
    two and a rest are tried, of which the one with the smaller rest counts."""

    def first(z: Expr) -> tuple[Expr, Expr]:
        zeros = leading_zeros(z)
        rest = _shifted(_times(_shifted(z, zeros - 1), _ROOT_HALF), Const(1))
        return rest, narrowed(_wide(Const(_SUM) - zeros) * (1 << 25) + _QUARTER)

    def second(z: Expr, b: Expr) -> tuple[Expr, Expr]:
        zeros = leading_zeros(b) - 1
        return _shifted(z, zeros), narrowed(_wide(Const(_SUM) - zeros) * (1 << 25) - _QUARTER)

    lower = call.map(lambda z: _times(z, _ROOT_HALF), total)
    firsts = [call.map(lambda z, i=i: first(z)[i], total) for i in (0, 1)]
    seconds = [call.map(lambda z, b, i=i: second(z, b)[i], total, lower) for i in (0, 1)]
    rest = call.map(minimum, firsts[0], seconds[0])
    power = call.map(maximum, firsts[1], seconds[1])
    middle = call.map(lambda r: ((_wide(r) + _FOURTH_ROOT_HALF + 1) >> 1).astype("int32"), rest)
    away = call.map(lambda r: (r - _FOURTH_ROOT_HALF) * 2, rest)
    square = call.map(lambda q: _times(q, q), away)

    def top(q: Expr, r: Expr, s: Expr) -> Expr:
        return _times(q, r) + _times(_times(q, s), _NUMERATOR)

    def bottom(p: Expr, q: Expr, s: Expr) -> Expr:
        return _times(p, q + _WHOLE + _times(s, _SQUARE)) + _times(q, _LINEAR)

    numerator = call.map(top, away, rest, square)
    inverse = _reciprocal(call, call.map(bottom, middle, away, square))

    def joined(power: Expr, n: Expr, i: Expr) -> Expr:
        whole = _times(power, _LOG_2) + _times(_divided(n, _POWERS), i)
        return _shifted(whole, Const(_POWERS - _DIFFERENCE))

    return call.map(joined, power, numerator, inverse)


def _log_softmax8(call: Call) -> None:
    """Of int8; the result has the scale 1/16 and the zero point 127."""
    (x, _), (y, zero) = call.quant(call.operand(0)), call.quant(call.result)
    if float(y) != 1 / 16 or zero != 127:
        raise call.refuse(f"expected a result of scale 1/16 and zero point 127, got {y!r}, {zero}")
    fraction = 31 - _DIFFERENCE
    multiplier, shift = tflite_params(min(float(x) * (1 << fraction), float((1 << 31) - 1)))
    back = tflite_params(2.0 ** (31 + shift) / multiplier)
    least = -int(((1 << _DIFFERENCE) - 1) * 2.0**fraction / 2.0**-shift)
    below = np.arange(-255, 1)
    scaled = rescale(below, multiplier, shift)
    exponentials = divide_by_pot(exp_on_negative_values(np.where(below >= least, scaled, 0)), _SUM)
    exponentials = np.where(below >= least, exponentials, 0)
    value = call.tensor(0)
    most = reduce_rows(call, "max", value)

    def place(v: Expr, m: Expr) -> Expr:
        return v.astype("int32") - m.astype("int32") + 255

    index = call.map(place, value, most)
    table = call.value(exponentials.astype(np.int32))
    power = call.emit(Gather(0), table, index)
    total = reduce_rows(call, "+", power)
    logarithm = _logarithm(call, total)

    def limit(log: Expr) -> Expr:
        return maximum(rescaled((_wide(log) - (1 << 31)).astype("int32"), *back), least - 1)

    def rule(i: Expr, scaled: Expr, log: Expr, bound: Expr) -> Expr:
        made = _divided(_wide(scaled) - _wide(log), 31 - _DIFFERENCE - _RESULT)
        made = clip(made + 127, -128, 127).astype("int8")
        return select(i - 255 > bound, made, Const(-128, "int8"))

    differences = call.emit(Gather(0), call.value(scaled.astype(np.int32)), index)
    call.define(call.map(rule, index, differences, logarithm, call.map(limit, logarithm)))


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "LOG_SOFTMAX": {
        "float32": lambda call: call.define(call.onnx("LogSoftmax", call.tensor(0), axis=-1)[0]),
        "int8": _log_softmax8,
    },
    "SOFTMAX": {"int8 uint8": _softmax8, "float32": _softmax_float, "int16": _softmax16},
}
