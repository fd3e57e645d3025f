"""Readers of TensorFlow Lite operators that normalise rows along the last axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...graph.ops.integer import leading_zeros
from ...graph.ops.linear import MatMul
from ...graph.ops.movement import Reshape, Transpose
from ...graph.ops.reduction import Reduce
from ...te.expr import Call as Function
from ...te.expr import Const, Expr, maximum, select
from ...te.tensor import clip
from .functions import HALF_SQRT_2, THREE_HALVES
from .geometry import activation
from .graph import Call
from .mapping import map_of, rescaled, step_map

Reader = Callable[[Call], None]
#: Elements on the axis of cumulative sums; their table of ones has the square of it.
LONGEST_SUM = 4096


def _last(call: Call, value: str) -> tuple[int, ...]:
    return (len(call.shape_of(value)) - 1,)


def _named(name: str, x: Expr) -> Expr:
    return Function(name, (x,), x.dtype)


def _log_softmax(call: Call) -> None:
    value = call.value(0, "plain")
    most = call.step("most", Reduce("max", _last(call, value), True), value)
    power = step_map(call, "power", lambda x, m: _named("exp", x - m), value, most)
    total = call.step("total", Reduce("+", _last(call, value), True), power)
    operands = (value, most, total)
    rule = lambda x, m, t: x - m - _named("log", t)  # noqa: E731
    call.emit(map_of(call, "LogSoftmax", rule, *operands), operands, "plain")


def _norm(call: Call) -> None:
    if activation(call) != (-np.inf, np.inf):
        raise call.refuse("fused activations are not supported")
    value = call.value(0, "plain")
    squares = step_map(call, "squares", lambda x: x * x, value)
    total = call.step("total", Reduce("+", _last(call, value), True), squares)

    def rule(x: Expr, acc: Expr) -> Expr:
        return x / maximum(_named("sqrt", acc), 1e-6)

    call.emit(map_of(call, "L2Normalization", rule, value, total), (value, total), "plain")


# ---- integers: Newton's method in fixed point ----------------------------------------------------


def _times_power(x: Expr, count: int) -> Expr:
    """``x * 2**count``, saturated to int32."""
    wide = x.astype("int64") * (1 << count)
    return clip(wide, -(1 << 31), (1 << 31) - 1).astype("int32")


def _pairs(x: Expr) -> Expr:
    """Half the bits by which a sum is shifted to the left."""
    return ((leading_zeros(x) - 1) >> 1) - 1


def _newton(x: Expr, half: Expr) -> Expr:
    cube = _times_power(rescaled(rescaled(x, x, 0), x, 0), 6)
    return _times_power(rescaled(x, THREE_HALVES, 0) - rescaled(half, cube, 0), 3)


def _norm8(call: Call) -> None:
    """As ``functions.inverse_roots``, a node for each step. The kernel of int8 multiplies by 128
    with the root's power of two, that of uint8 before it, so the two round differently."""
    lift = 7 if call.operand(0).dtype == "uint8" else 0
    zero = call.quant(call.operand(0))[1]
    value = call.value(0, "plain")
    if call.shape_of(value)[-1] > 1 << 12:
        raise call.refuse(f"expected rows of up to 4096, got {call.shape_of(value)[-1]}")
    wide = step_map(call, "wide", lambda x: x.astype("int32") - zero, value)
    squares = step_map(call, "squares", lambda x: x * x, wide)
    total = call.step("total", Reduce("+", _last(call, value), True), squares)
    positive = step_map(call, "positive", lambda t: maximum(t, 2), total)

    def halved(t: Expr) -> Expr:
        lifted = (t << (_pairs(t) * 2)) >> 1
        return (lifted + 1) >> 1

    half = step_map(call, "half", halved, positive)
    root = step_map(call, "root", lambda t: Const(1 << 28) + t * 0, positive)
    for _ in range(5):
        root = step_map(call, "root", _newton, root, half)

    def rule(x: Expr, r: Expr, t: Expr) -> Expr:
        shift = Const(11) - _pairs(maximum(t, 2))
        factor = rescaled(r, HALF_SQRT_2, 0) << maximum(Const(0) - shift, 0)
        one = t <= 1
        factor = select(one, Const((1 << 31) - 1), factor)
        count = select(one, Const(0), maximum(shift, 0)) - (7 - lift)
        return clip(rescaled(x << lift, factor, count), -128, 127).astype("int8")

    operands = (wide, root, total)
    call.emit(map_of(call, "L2Normalization", rule, *operands), operands, "plain")


def _cumsum(call: Call) -> None:
    """Sums of all elements up to each, as a product with a triangle of ones."""
    value = call.value(0, "plain")
    order, rows = rows_along(call, value)
    ones = triangle(call, call.shape_of(rows)[1]).astype(call.operand(0).dtype)
    sums = call.step("sums", MatMul(), rows, call.constant_of("ones", ones))
    call.emit(Transpose(_inverse(order)), (unrowed(call, sums, value, order),), "plain")


def rows_along(call: Call, value: str) -> tuple[tuple[int, ...], str]:
    """The order of axes with the one of operand 1 last, and the tensor as rows along it."""
    shape = call.shape_of(value)
    axis = int(call.constant(1, "axis").reshape(-1)[0]) % len(shape)
    order = (*(i for i in range(len(shape)) if i != axis), axis)
    moved = call.step("moved", Transpose(order), value)
    size = shape[axis]
    return order, call.step("rows", Reshape((int(np.prod(shape)) // size, size)), moved)


def triangle(call: Call, size: int) -> np.ndarray:
    """Ones where element i is part of sum j."""
    if size > LONGEST_SUM:
        raise call.refuse(f"expected up to {LONGEST_SUM} elements on the axis, got {size}")
    ones = np.tri(size, size, -1 if call.option("Exclusive") else 0, np.int32)
    return np.ascontiguousarray(ones if call.option("Reverse") else ones.T)


def unrowed(call: Call, rows: str, like: str, order: tuple[int, ...]) -> str:
    """Rows in the shape of a tensor whose axes are in another order."""
    shape = call.shape_of(like)
    return call.step("split", Reshape(tuple(shape[i] for i in order)), rows)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argsort(order))


def back(call: Call, rows: str, like: str, order: tuple[int, ...]) -> str:
    """Rows as a tensor in its own order of axes."""
    return call.step("back", Transpose(_inverse(order)), unrowed(call, rows, like, order))


#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {
    "CUMSUM": dict.fromkeys(("float32", "int32", "int64"), _cumsum),
    "L2_NORMALIZATION": {"float32": _norm, "int8": _norm8},
    "LOG_SOFTMAX": {"float32": _log_softmax},
}
