"""Averages, maxima and norms of windows."""

from __future__ import annotations

from functools import partial

import numpy as np

from ....graph.arithmetic.requant import OFFSET, mean_requant
from ....graph.ir import Tensor
from ....graph.ops.base import Op, Pads, Pair
from ....graph.ops.pooling import AvgPool, MaxPool, Pool, QAvgPool, QAvgPoolValid, QMaxPool
from ....te.expr import Call as Function
from ....te.expr import Expr, select
from ....te.tensor import clip
from ..graph import Call, Rows
from .convolution import image_shape, window_geometry
from .rules import between, named, saturated

Window = tuple[Pair, Pair, Pads]


def _window(call: Call) -> Window:
    """Kernel, strides and pads."""
    image_shape(call)
    kernel = call.option("FilterHeight"), call.option("FilterWidth")
    if min(kernel) < 1:
        raise call.refuse(f"expected a window of at least 1x1, got {kernel!r}")
    strides, pads, _ = window_geometry(call, kernel, dilated=False)
    return kernel, strides, pads


def _pool_float(kind: type[AvgPool] | type[MaxPool], call: Call) -> None:
    lo, hi = call.activation()
    op = kind(*_window(call), lo=lo, hi=hi)
    call.define(call.emit(op, call.tensor(0, "nchw")), "nchw")


def _average8(call: Call) -> None:
    call.same_quant(call.operand(0))
    kernel, strides, pads = _window(call)
    lo, hi = call.bounds()
    # The mean is rounded away from the 0 of the stored type, so for uint8 it is always rounded up.
    zero = -OFFSET if call.operand(0).dtype == "uint8" else 0
    if any(pads):
        op: Op = QAvgPoolValid(kernel, strides, pads, zero, lo, hi)
    else:
        requant = mean_requant(kernel[0] * kernel[1], zero, lo, hi)
        op = QAvgPool(kernel, strides, pads, True, zero, requant)
    call.define(call.emit(op, call.tensor(0, "nchw")), "nchw")


def _sums(call: Call, value: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Sums over windows, and how many elements of the image each window has, [1, 1, H, W]."""
    op, ones = Pool("+", *window, (1, 1)), np.ones((1, 1, *image_shape(call)[1:3]), np.int32)
    return call.emit(op, value), call.value(op.evaluate(ones), value.dtype)


def _average16(call: Call) -> None:
    call.same_quant(call.operand(0))
    window, (lo, hi) = _window(call), call.bounds()
    value = call.map(lambda x: x.astype("int32"), call.tensor(0, "nchw"))

    def rule(acc: Expr, count: Expr) -> Expr:
        half = count >> 1
        nudged = select(acc > 0, acc + half, acc - half)
        return saturated(Function("divide", (nudged, count), "int32"), lo, hi, "int16")

    call.define(call.map(rule, *_sums(call, value, window)), "nchw")


def _max8(call: Call) -> None:
    call.same_quant(call.operand(0))
    op = QMaxPool(*_window(call), *call.bounds())
    call.define(call.emit(op, call.tensor(0, "nchw")), "nchw")


def _max16(call: Call) -> None:
    call.same_quant(call.operand(0))
    window, (lo, hi) = _window(call), call.bounds()
    most = call.emit(Pool("max", *window, (1, 1)), call.tensor(0, "nchw"))
    call.define(call.map(lambda x: clip(x, lo, hi), most), "nchw")


def _l2_pool(call: Call) -> None:
    squares = call.map(lambda x: x * x, call.tensor(0, "nchw"))
    rule = lambda acc, count: between(call, named("sqrt", acc / count))  # noqa: E731
    call.define(call.map(rule, *_sums(call, squares, _window(call))), "nchw")


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "AVERAGE_POOL_2D": {
        "int8 uint8": _average8, "float32": partial(_pool_float, AvgPool), "int16": _average16,
    },
    "L2_POOL_2D": {"float32": _l2_pool},
    "MAX_POOL_2D": {"int8 uint8": _max8, "float32": partial(_pool_float, MaxPool), "int16": _max16},
}  # fmt: skip
