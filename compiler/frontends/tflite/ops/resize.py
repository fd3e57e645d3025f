"""Images in another size, by their nearest elements or between two."""

from __future__ import annotations

import numpy as np

from ....graph.arithmetic.requant import OFFSET
from ....te.expr import Call as Function
from ....te.expr import Const, Expr, select
from ..graph import ANY, Call, Rows


def _resize_nearest(call: Call) -> None:
    value, sizes = call.tensor(0), call.numbers(1, "size")
    align, half = call.option("AlignCorners"), call.option("HalfPixelCenters")
    for axis, made in zip((1, 2), sizes, strict=True):
        size = value.shape[axis]
        places = np.arange(made, dtype=np.float32) + np.float32(0.5 if half else 0)
        places = places * _scale(size, made, align)
        # The kernel rounds half away from zero; no place is negative.
        steps = np.floor(places + np.float32(0.5)) if align else np.floor(places)
        value = call.gather(value, np.clip(steps.astype(np.int64), 0, size - 1), axis)
    call.define(value)


def _scale(size: int, made: int, align: int) -> np.float32:
    """How many elements of the image one of the result is apart from the next."""
    less = 1 if align and made > 1 else 0
    return np.float32(size - less) / np.float32(made - less)


def _resize_bilinear(call: Call) -> None:
    """Two taps along each axis; int8 and int16 with weights of 10 fraction bits. Of uint8, the
    kernel computes in floats, and rounds halves of what the file stores up."""
    value, unsigned = call.tensor(0), call.operand(0).dtype == "uint8"
    if unsigned:
        value = call.map(lambda v: v.astype("float32") + float(OFFSET), value)
    real = value.dtype == "float32"
    align, half = call.option("AlignCorners"), call.option("HalfPixelCenters")
    sizes = call.numbers(1, "size")
    taps, fractions = [], []
    for axis, made in ((1, sizes[0]), (2, sizes[1])):
        size = value.shape[axis]
        low, high, at = (_real_taps if real else _integer_taps)(size, made, align, half)
        taps.append((low, high))
        shape = (made, 1, 1) if axis == 1 else (made, 1)
        fractions.append(call.value(at.reshape(shape)))
    corners = []
    for row in taps[0]:
        rows = call.gather(value, row, 1)
        corners += [call.gather(rows, c, 2) for c in taps[1]]
    stored = value.dtype

    def blend(a: Expr, b: Expr, c: Expr, d: Expr, y: Expr, x: Expr) -> Expr:
        """The kernel's order: y0 x0, y1 x0, y0 x1, y1 x1."""
        if real:
            other_y, other_x = 1.0 - y, 1.0 - x
            made = a * other_y * other_x + c * y * other_x + b * other_y * x + d * y * x
            if unsigned:
                whole = Function("floor", (made + 0.5,), "float32").astype("int32")
                made = (whole - OFFSET).astype("int8")
            return made
        wide = [v.astype("int64") for v in (a, b, c, d)]
        other_y, other_x = Const(1 << 10, "int64") - y, Const(1 << 10, "int64") - x
        total = (
            wide[0] * other_y * other_x
            + wide[2] * y * other_x
            + wide[1] * other_y * x
            + wide[3] * y * x
        )
        nudged = total + select(total > 0, Const(1 << 19, "int64"), Const(-(1 << 19), "int64"))
        return Function("divide", (nudged, Const(1 << 20, "int64")), "int64").astype(stored)

    operands = (*corners, *fractions)
    call.define(call.map(blend, *operands))


def _real_taps(size: int, made: int, align: int, half: int) -> tuple[np.ndarray, ...]:
    scale, at = _scale(size, made, align), np.arange(made, dtype=np.float32)
    at = (at + np.float32(0.5)) * scale - np.float32(0.5) if half else at * scale
    low = np.maximum(np.floor(at), 0).astype(np.int64)
    high = np.minimum(np.ceil(at), size - 1).astype(np.int64)
    return low, high, (at - low.astype(np.float32)).astype(np.float32)


def _integer_taps(size: int, made: int, align: int, half: int) -> tuple[np.ndarray, ...]:
    less = 1 if align and made > 1 else 0
    scale = (((size - less) << 10) + (made - less) // 2) // (made - less)
    at = np.arange(made, dtype=np.int64) * scale
    at = at + scale // 2 - (1 << 9) if half else at
    cut = lambda v: np.where(v < 0, -((-v) >> 10), v >> 10)  # noqa: E731 - towards zero
    low = np.maximum(cut(at), 0)
    return low, np.minimum(cut(at + (1 << 10) - 1), size - 1), at - (low << 10)


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "RESIZE_BILINEAR": {"float32 int8 uint8 int16": _resize_bilinear},
    "RESIZE_NEAREST_NEIGHBOR": {ANY: _resize_nearest},
}
