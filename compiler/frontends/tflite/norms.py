"""Readers of TensorFlow Lite operators that normalise rows along the last axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...graph.ir import Tensor
from ...graph.ops.integer import leading_zeros
from ...graph.ops.linear import MatMul
from ...te.expr import Call as Function
from ...te.expr import Const, Expr, maximum, select
from ...te.tensor import clip
from .functions import HALF_SQRT_2, THREE_HALVES
from .geometry import activation
from .graph import Call
from .mapping import rescaled

Reader = Callable[[Call], None]
#: Elements on the axis of cumulative sums; their table of ones has the square of it.
LONGEST_SUM = 4096


def _last(call: Call, value: Tensor) -> tuple[int, ...]:
    return (len(value.shape) - 1,)


def _named(name: str, x: Expr) -> Expr:
    return Function(name, (x,), x.dtype)


def _log_softmax(call: Call) -> None:
    value = call.tensor(0)
    most = call.reduce("max", value, _last(call, value))
    power = call.map(lambda x, m: _named("exp", x - m), value, most)
    total = call.reduce("+", power, _last(call, value))
    operands = (value, most, total)
    rule = lambda x, m, t: x - m - _named("log", t)  # noqa: E731
    call.define(call.map(rule, *operands))


def _norm(call: Call) -> None:
    if activation(call) != (-np.inf, np.inf):
        raise call.refuse("fused activations are not supported")
    value = call.tensor(0)
    squares = call.map(lambda x: x * x, value)
    total = call.reduce("+", squares, _last(call, value))

    def rule(x: Expr, acc: Expr) -> Expr:
        return x / maximum(_named("sqrt", acc), 1e-6)

    call.define(call.map(rule, value, total))


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
    value = call.tensor(0)
    if value.shape[-1] > 1 << 12:
        raise call.refuse(f"expected rows of up to 4096, got {value.shape[-1]}")
    wide = call.map(lambda x: x.astype("int32") - zero, value)
    squares = call.map(lambda x: x * x, wide)
    total = call.reduce("+", squares, _last(call, value))
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

    operands = (wide, root, total)
    call.define(call.map(rule, *operands))


def _cumsum(call: Call) -> None:
    """Sums of all elements up to each, as a product with a triangle of ones."""
    value = call.tensor(0)
    order, rows = rows_along(call, value)
    ones = triangle(call, rows.shape[1]).astype(call.operand(0).dtype)
    sums = call.emit(MatMul(), rows, call.value(ones))
    call.define(call.transpose(unrowed(call, sums, value, order), _inverse(order)))


def rows_along(call: Call, value: Tensor) -> tuple[tuple[int, ...], Tensor]:
    """The order of axes with the one of operand 1 last, and the tensor as rows along it."""
    shape = value.shape
    axis = int(call.constant(1, "axis").reshape(-1)[0]) % len(shape)
    order = (*(i for i in range(len(shape)) if i != axis), axis)
    moved = call.transpose(value, order)
    size = shape[axis]
    return order, call.reshape(moved, (int(np.prod(shape)) // size, size))


def triangle(call: Call, size: int) -> np.ndarray:
    """Ones where element i is part of sum j."""
    if size > LONGEST_SUM:
        raise call.refuse(f"expected up to {LONGEST_SUM} elements on the axis, got {size}")
    ones = np.tri(size, size, -1 if call.option("Exclusive") else 0, np.int32)
    return np.ascontiguousarray(ones if call.option("Reverse") else ones.T)


def unrowed(call: Call, rows: Tensor, like: Tensor, order: tuple[int, ...]) -> Tensor:
    """Rows in the shape of a tensor whose axes are in another order."""
    shape = like.shape
    return call.reshape(rows, tuple(shape[i] for i in order))


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argsort(order))


def back(call: Call, rows: Tensor, like: Tensor, order: tuple[int, ...]) -> Tensor:
    """Rows as a tensor in its own order of axes."""
    return call.transpose(unrowed(call, rows, like, order), _inverse(order))


#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {
    "CUMSUM": dict.fromkeys(("float32", "int32", "int64"), _cumsum),
    "L2_NORMALIZATION": {"float32": _norm, "int8": _norm8},
    "LOG_SOFTMAX": {"float32": _log_softmax},
}
