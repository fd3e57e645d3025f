"""What readers of element-wise operators share: nodes of expressions, and tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ... import topi
from ...graph.ops.movement import Gather
from ...te.expr import Expr, integer_range, maximum, minimum
from ...te.tensor import clip
from .geometry import activation
from .graph import Call

Rule = Callable[..., Expr]
#: Values of all elements of an integer type, for tables of functions.
STORED = {
    dtype: np.arange(integer_range(dtype)[0], integer_range(dtype)[1] + 1)
    for dtype in ("int8", "int16")
}


def layout_of(call: Call, positions: tuple[int, ...]) -> str:
    """``nchw`` if an operand is an image that exists in this layout and all computed operands are
    images, else ``plain``."""
    computed = [p for p in positions if call.operand(p).data is None]
    images = all(len(call.operand(p).shape) == 4 for p in computed)
    found = any("nchw" in call.layouts(p) for p in computed)
    return "nchw" if found and images and len(call.result.shape) == 4 else "plain"


def emit_map(call: Call, rule: Rule, count: int) -> None:
    """The operator's result as ``rule`` of the elements of its first ``count`` operands."""
    positions = tuple(range(count))
    layout = layout_of(call, positions)
    values = tuple(call.tensor(p, layout) for p in positions)
    call.define(call.map(rule, *values), layout)


def rescaled(x: Expr, multiplier: Expr | int, shift: Expr | int) -> Expr:
    """int32 to int32 by TensorFlow Lite's double rounding."""
    return topi.rescale(x, multiplier, shift, "tflite").astype("int32")


def saturated(x: Expr, lo: int, hi: int, dtype: str) -> Expr:
    """An integer between bounds, as an element of a type."""
    return clip(x, lo, hi).astype(dtype)


def between(call: Call, x: Expr) -> Expr:
    """A float after the fused activation."""
    lo, hi = activation(call)
    x = x if lo == -np.inf else maximum(x, lo)
    return x if hi == np.inf else minimum(x, hi)


def stored_type(call: Call) -> str:
    """The integer type that holds the first operand in the graph."""
    dtype = call.operand(0).dtype
    return "int8" if dtype == "uint8" else dtype


def emit_table(call: Call, values: np.ndarray) -> None:
    """A function of one int16 by its 65,536 results, not yet clamped."""
    table = np.clip(values, *integer_range("int16")).astype(np.int16)
    layout = layout_of(call, (0,))
    x = call.tensor(0, layout)
    index = call.map(lambda v: v.astype("int32") + (1 << 15), x)
    call.define(call.emit(Gather(0), call.value(table), index), layout)


def emit_pair_table(call: Call, function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
    """A function of two int8 by its 65,536 results, not yet clamped."""
    values = function(*np.meshgrid(STORED["int8"], STORED["int8"], indexing="ij"))
    table = np.clip(values, -128, 127).astype(np.int8).reshape(-1)
    layout = layout_of(call, (0, 1))
    pair = (call.tensor(0, layout), call.tensor(1, layout))

    def place(a: Expr, b: Expr) -> Expr:
        return (a.astype("int32") + 128) * 256 + (b.astype("int32") + 128)

    index = call.map(place, *pair)
    call.define(call.emit(Gather(0), call.value(table), index), layout)
