"""What readers of several families share: rules of elements, and ways to the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .... import topi
from ....graph.ir import Tensor
from ....graph.ops.base import Op
from ....graph.ops.integer import QTable
from ....graph.ops.movement import Gather, Identity
from ....te.expr import Call as Function
from ....te.expr import Const, Expr, integer_range, maximum, minimum, select
from ....te.tensor import clip
from ..graph import Call, Reader

Rule = Callable[..., Expr]
#: Values of all elements of an integer type, for tables of functions.
STORED = {
    dtype: np.arange(integer_range(dtype)[0], integer_range(dtype)[1] + 1)
    for dtype in ("int8", "int16")
}


# ---- rules of elements ---------------------------------------------------------------------------


def named(name: str, *args: Expr) -> Expr:
    """A function of the expression language, of the operands' type."""
    return Function(name, args, args[0].dtype)


def zero(x: Expr) -> Expr:
    """Zero, of an element's type."""
    return Const(0.0 if x.dtype.startswith("float") else 0, x.dtype)


def one(x: Expr) -> Expr:
    """One, of an element's type."""
    return Const(1.0 if x.dtype.startswith("float") else 1, x.dtype)


def int32(x: Expr) -> Expr:
    """An element as int32."""
    return x.astype("int32")


def negated(x: Expr) -> Expr:
    """Logical not."""
    return x.equal(Const(False, "bool"))


def rounded(x: Expr) -> Expr:
    """The nearest whole number, half away from zero."""
    whole = Function("trunc", (x,), "float32")
    rest = x - whole
    return whole + select(rest >= 0.5, 1.0, 0.0) - select(rest <= -0.5, 1.0, 0.0)


def rescaled(x: Expr, multiplier: Expr | int, shift: Expr | int) -> Expr:
    """int32 to int32 by TensorFlow Lite's double rounding."""
    return topi.rescale(x, multiplier, shift, "tflite").astype("int32")


def saturated(x: Expr, lo: int, hi: int, dtype: str) -> Expr:
    """An integer between bounds, as an element of a type."""
    return clip(x, lo, hi).astype(dtype)


def clipped(x: Expr, lo: float, hi: float) -> Expr:
    """A float between bounds, which may be infinite."""
    x = x if lo == -np.inf else maximum(x, lo)
    return x if hi == np.inf else minimum(x, hi)


def narrowed(x: Expr) -> Expr:
    """int64 saturated to int32."""
    return clip(x, -(1 << 31), (1 << 31) - 1).astype("int32")


def between(call: Call, x: Expr) -> Expr:
    """A float after the fused activation."""
    return clipped(x, *call.activation())


# ---- results -------------------------------------------------------------------------------------


def layout_of(call: Call, positions: tuple[int, ...]) -> str:
    """``nchw`` if an operand is an image that exists in this layout and all computed operands are
    images, else ``plain``."""
    computed = [p for p in positions if call.operand(p).data is None]
    images = all(len(call.operand(p).shape) == 4 for p in computed)
    found = any("nchw" in call.layouts(p) for p in computed)
    return "nchw" if found and images and len(call.result.shape) == 4 else "plain"


def operands_of(call: Call, count: int) -> tuple[list[Tensor], str]:
    """The first operands in a layout that suits all, and the layout."""
    layout = layout_of(call, tuple(range(count)))
    return [call.tensor(p, layout) for p in range(count)], layout


def swapped(call: Call, value: Tensor) -> Tensor:
    """A tensor with its last two axes exchanged."""
    rank = len(value.shape)
    return call.transpose(value, (*range(rank - 2), rank - 1, rank - 2))


def reduce_rows(call: Call, kind: str, value: Tensor) -> Tensor:
    """A tensor reduced along its last axis, which stays as 1."""
    return call.reduce(kind, value, (len(value.shape) - 1,))


def emit_map(call: Call, rule: Rule, count: int) -> None:
    """The operator's result as ``rule`` of the elements of its first ``count`` operands."""
    operands, layout = operands_of(call, count)
    call.define(call.map(rule, *operands), layout)


def emit_op(call: Call, op: Op, count: int) -> None:
    """The operator's result by an operator of the graph on its first ``count`` operands."""
    operands, layout = operands_of(call, count)
    call.define(call.emit(op, *operands), layout)


def unary(rule: Callable[[Expr], Expr]) -> Reader:
    """A reader by a rule of the elements of one operand."""
    return lambda call: emit_map(call, rule, 1)


def pair(rule: Callable[[Expr, Expr], Expr]) -> Reader:
    """A reader by a rule of the elements of two operands."""
    return lambda call: emit_map(call, rule, 2)


def emit_table(call: Call, values: np.ndarray) -> None:
    """A function of one integer by the results of all its values, not yet clamped."""
    dtype = call.stored_type
    table = np.clip(values, *integer_range(dtype)).astype(dtype)
    if dtype == "int8":
        emit_op(call, Identity() if np.array_equal(table, STORED[dtype]) else QTable(table), 1)
        return
    [x], layout = operands_of(call, 1)
    index = call.map(lambda v: v.astype("int32") + (1 << 15), x)
    call.define(call.emit(Gather(0), call.value(table), index), layout)


def onnx(kind: str, count: int = 1, **attributes: Any) -> Reader:
    """A reader by ONNX's reader of an operator that computes the same to the bit."""

    def read(call: Call) -> None:
        operands, layout = operands_of(call, count)
        call.define(call.onnx(kind, *operands, **attributes)[0], layout)

    return read


def emit_pair_table(call: Call, function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
    """A function of two int8 by its 65,536 results, not yet clamped."""
    values = function(*np.meshgrid(STORED["int8"], STORED["int8"], indexing="ij"))
    table = np.clip(values, -128, 127).astype(np.int8).reshape(-1)
    operands, layout = operands_of(call, 2)

    def place(a: Expr, b: Expr) -> Expr:
        return (a.astype("int32") + 128) * 256 + (b.astype("int32") + 128)

    index = call.map(place, *operands)
    call.define(call.emit(Gather(0), call.value(table), index), layout)


def known(call: Call, data: object) -> None:
    """A result that is known when the model is compiled."""
    call.define(call.value(np.asarray(data, call.result.dtype)))
