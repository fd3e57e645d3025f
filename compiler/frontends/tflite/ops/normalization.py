"""Operators that divide by a norm: of rows, or of neighbouring channels."""

from __future__ import annotations

import numpy as np

from ....graph.ops.integer import leading_zeros
from ....graph.ops.movement import Concat
from ....te.expr import Const, Expr, maximum, select
from ....te.tensor import clip
from ..graph import Call, Rows
from .elementwise import HALF_SQRT_2, THREE_HALVES
from .rules import named, narrowed, reduce_rows, rescaled


def _norm(call: Call) -> None:
    if call.activation() != (-np.inf, np.inf):
        raise call.refuse("fused activations are not supported")
    value = call.tensor(0)
    squares = call.map(lambda x: x * x, value)
    total = reduce_rows(call, "+", squares)

    def rule(x: Expr, acc: Expr) -> Expr:
        return x / maximum(named("sqrt", acc), 1e-6)

    call.define(call.map(rule, value, total))


# ---- integers: Newton's method in fixed point ----------------------------------------------------


def _times_power(x: Expr, count: int) -> Expr:
    """``x * 2**count``, saturated to int32."""
    return narrowed(x.astype("int64") * (1 << count))


def _pairs(x: Expr) -> Expr:
    """Half the bits by which a sum is shifted to the left."""
    return ((leading_zeros(x) - 1) >> 1) - 1


def _newton(x: Expr, half: Expr) -> Expr:
    cube = _times_power(rescaled(rescaled(x, x, 0), x, 0), 6)
    return _times_power(rescaled(x, THREE_HALVES, 0) - rescaled(half, cube, 0), 3)


def _norm8(call: Call) -> None:
    """As ``elementwise.inverse_roots``, a node for each step. The kernel of int8 multiplies by 128
    with the root's power of two, that of uint8 before it, so the two round differently."""
    lift = 7 if call.operand(0).dtype == "uint8" else 0
    zero = call.quant(call.operand(0))[1]
    value = call.tensor(0)
    if value.shape[-1] > 1 << 12:
        raise call.refuse(f"expected rows of up to 4096, got {value.shape[-1]}")
    wide = call.map(lambda x: x.astype("int32") - zero, value)
    squares = call.map(lambda x: x * x, wide)
    total = reduce_rows(call, "+", squares)
    positive = call.map(lambda t: maximum(t, 2), total)

    def halved(t: Expr) -> Expr:
        lifted = (t << (_pairs(t) * 2)) >> 1
        return (lifted + 1) >> 1

    half = call.map(halved, positive)
    root = call.map(lambda t: Const(1 << 28) + t * 0, positive)
    for _ in range(5):
        root = call.map(_newton, root, half)

    def rule(x: Expr, r: Expr, t: Expr) -> Expr:
        shift = Const(11) - _pairs(maximum(t, 2))
        factor = rescaled(r, HALF_SQRT_2, 0) << maximum(Const(0) - shift, 0)
        one = t <= 1
        factor = select(one, Const((1 << 31) - 1), factor)
        count = select(one, Const(0), maximum(shift, 0)) - (7 - lift)
        return clip(rescaled(x << lift, factor, count), -128, 127).astype("int8")

    call.define(call.map(rule, wide, root, total))


# ---- of neighbours -------------------------------------------------------------------------------


def _response(call: Call) -> None:
    """``x * (bias + alpha * sum of squares of the nearest channels) ** -beta``."""
    value = call.tensor(0)
    shape, radius = value.shape, int(call.option("Radius"))
    squares, last = call.map(lambda x: x * x, value), len(shape) - 1
    if not 0 <= radius < 1 << 10:
        raise call.refuse(f"expected a radius from 0 to 1023, got {radius}")
    zeros = call.value(np.zeros((*shape[:last], 1), np.float32))
    padded, near = call.emit(Concat(last), squares, zeros), []
    for shift in range(-radius, radius + 1):
        if abs(shift) < shape[last]:
            near.append(call.gather(padded, _moved(shape[last], shift), last))
    total = near[0]
    for other in near[1:]:
        total = call.map(lambda a, b: a + b, total, other)
    bias, alpha, beta = (float(call.option(name)) for name in ("Bias", "Alpha", "Beta"))

    def rule(x: Expr, acc: Expr) -> Expr:
        return x * named("pow", acc * alpha + bias, Const(-beta, "float32"))

    call.define(call.map(rule, value, total))


def _moved(size: int, shift: int) -> np.ndarray:
    """Places ``shift`` further on; ``size`` where there is none."""
    places = np.arange(size) + shift
    return np.where((places < 0) | (places >= size), size, places)


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "L2_NORMALIZATION": {"float32": _norm, "int8 uint8": _norm8},
    "LOCAL_RESPONSE_NORMALIZATION": {"float32": _response},
}
