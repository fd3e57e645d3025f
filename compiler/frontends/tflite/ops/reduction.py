"""Operators that reduce axes, and cumulative sums."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from ....graph.arithmetic.fixed_point import rescale
from ....graph.arithmetic.requant import Requant, tflite_params
from ....graph.ir import Tensor
from ....graph.ops.linear import MatMul
from ....graph.ops.pooling import QAvgPool
from ....graph.ops.reduction import ArgReduce
from ....te.expr import Const, Expr, integer_range, select
from ..graph import QUANTISED, Call, Rows
from .convolution import image_shape
from .rules import int32, rescaled, saturated
from .weights import reduced

#: Elements of a product of integers: each is a node.
LONGEST_PRODUCT = 256
#: Elements on the axis of cumulative sums; their table of ones has the square of it.
LONGEST_SUM = 4096


def _axes(call: Call, rank: int) -> tuple[int, ...]:
    return tuple(sorted({call.axis(axis, rank) for axis in call.numbers(1, "axes")}))


def _reduce(call: Call, kind: str, value: Tensor) -> Tensor:
    """A tensor of the operand's shape, reduced along the operator's axes."""
    return call.reduce(kind, value, _axes(call, len(value.shape)), bool(call.option("KeepDims")))


def _sum(call: Call, *, mean: bool) -> None:
    """The sum, or the mean: of integers, the division is part of the multiplier."""
    value = call.tensor(0)
    count = math.prod(value.shape[axis] for axis in _axes(call, len(value.shape)))
    if value.dtype == "float32":
        total = _reduce(call, "+", value)
        call.define(call.map(lambda x: x / float(count), total) if mean else total)
        return
    (x, zero_x), (y, zero_y) = call.quant(call.operand(0)), call.quant(call.result)
    multiplier, shift = tflite_params(float(x) / float(y))
    if mean:
        multiplier, shift = _divided(multiplier, shift, count)
    total = _reduce(call, "+", call.cast(value, "int32"))

    def rule(v: Expr) -> Expr:
        made = rescaled(v - zero_x * count, multiplier, shift) + zero_y
        return saturated(made, *integer_range(value.dtype), value.dtype)

    call.define(call.map(rule, total))


def _divided(multiplier: int, shift: int, count: int) -> tuple[int, int]:
    """A multiplier and its shift, with a division by a count."""
    extra = min(count.bit_length() - 1, 32, 31 - shift)
    return (multiplier << extra) // count, shift + extra


def _mean_of_image(call: Call) -> None:
    """Over height and width; the division is part of the multiplier."""
    _, height, width, _ = image_shape(call)
    (x, zero), (y, zero_y) = call.quant(call.operand(0)), call.quant(call.result)
    pair = _divided(*tflite_params(float(x) / float(y)), height * width)
    factor, shift = (np.array([number], np.int32) for number in pair)
    requant = Requant(factor, shift, zero_y, rounding="tflite")
    op = QAvgPool((height, width), (1, 1), (0, 0, 0, 0), True, zero, requant)
    made = call.emit(op, call.tensor(0, "nchw"))
    if len(call.result.shape) == 4:
        call.define(made, "nchw")
    else:
        call.define(call.reshape(made, made.shape[:2]))


def _mean(call: Call) -> None:
    """Over height and width as a pooling, which the accelerator has; else in general."""
    axes = call.constant(1, "axes").reshape(-1)
    image = len(call.operand(0).shape) == 4 and sorted(int(v) % 4 for v in axes) == [1, 2]
    _mean_of_image(call) if image else _sum(call, mean=True)


def _reduced(kind: str, call: Call) -> None:
    """Numbers without a scale, or the largest or smallest of numbers with one."""
    if call.operand(0).dtype in QUANTISED:
        call.same_quant(call.operand(0))
    call.define(_reduce(call, kind, call.tensor(0)))


def _product(call: Call) -> None:
    """One element after the other, each product rescaled by a multiplier of 15 bits: the kernel's
    share of the scales for each of ``count`` elements."""
    value = call.tensor(0)
    shape, axes = value.shape, _axes(call, len(value.shape))
    kept = tuple(i for i in range(len(shape)) if i not in axes)
    count = math.prod(shape[i] for i in axes)
    if not 0 < count <= LONGEST_PRODUCT:
        raise call.refuse(f"expected products of up to {LONGEST_PRODUCT} elements, got {count}")
    (x, zero_x), (y, zero_y) = call.quant(call.operand(0)), call.quant(call.result)
    multiplier, shift = tflite_params(float(x) / float(y) ** (1 / count))
    down = 15 + shift
    if not 0 < down < 63:
        raise call.refuse("expected a result whose steps are not far finer or coarser")
    factor, half = int(reduced(np.int64(multiplier))), 1 << (down - 1)
    moved = call.transpose(value, (*kept, *axes))
    rows = call.reshape(moved, (math.prod(shape[i] for i in kept), count))

    def times(made: Expr, v: Expr) -> Expr:
        product = made.astype("int64") * (v.astype("int64") - zero_x)
        return ((product * factor + half) >> down).astype("int32")

    made = call.map(lambda v: v.astype("int32") - zero_x, call.part(rows, 1, 0, 1))
    for place in range(1, count):
        made = call.map(times, made, call.part(rows, 1, place, 1))
    stored = call.stored_type

    def rule(v: Expr) -> Expr:
        ended = (v.astype("int64") * factor + half) >> down
        return saturated(ended + zero_y, *integer_range(stored), stored)

    ones = bool(call.option("KeepDims"))
    final = tuple(1 if i in axes else n for i, n in enumerate(shape) if ones or i not in axes)
    call.define(call.map(rule, call.reshape(made, final)))


def _logical(kind: str, call: Call) -> None:
    """Whether the largest or the smallest of bools is true."""
    number = call.map(lambda x: select(x, Const(1), Const(0)), call.tensor(0))
    call.define(call.map(lambda x: x.equal(1), _reduce(call, kind, number)))


def _arg(kind: str, call: Call) -> None:
    """The first place of the largest or smallest element."""
    value = call.tensor(0)
    axis = call.axis(call.numbers(1, "axis")[0], len(value.shape))
    place = call.emit(ArgReduce(kind, axis, False, False), value)
    call.define(call.cast(place, call.result.dtype))


# ---- cumulative sums -----------------------------------------------------------------------------


def _cumulative(call: Call, value: Tensor) -> Tensor:
    """Sums of all elements up to each, as a product with a triangle of ones."""
    shape = value.shape
    axis = int(call.constant(1, "axis").reshape(-1)[0]) % len(shape)
    size, order = shape[axis], (*(i for i in range(len(shape)) if i != axis), axis)
    if size > LONGEST_SUM:
        raise call.refuse(f"expected up to {LONGEST_SUM} elements on the axis, got {size}")
    moved = call.transpose(value, order)
    rows = call.reshape(moved, (math.prod(shape) // size, size))
    ones = np.tri(size, size, -1 if call.option("Exclusive") else 0, value.dtype)
    sums = call.emit(MatMul(), rows, call.value(ones if call.option("Reverse") else ones.T))
    back = tuple(int(i) for i in np.argsort(order))
    return call.transpose(call.reshape(sums, moved.shape), back)


def _cumsum8(call: Call) -> None:
    (x, zero_x), (y, zero_y) = call.quant(call.operand(0)), call.quant(call.result)
    widest = 2 * float(x)
    lift, ending = tflite_params(float(x) / widest), tflite_params(widest / (2.0**20 * float(y)))
    lifted = call.map(lambda v: rescaled((int32(v) - zero_x) * (1 << 20), *lift), call.tensor(0))
    start = int(rescale(np.array(-zero_x << 20), *lift))  # the kernel's sums begin here

    def made(v: Expr) -> Expr:
        return saturated(rescaled(v + start, *ending) + zero_y, -128, 127, "int8")

    call.define(call.map(made, _cumulative(call, lifted)))


_NUMBERS = "float32 int8 uint8 int16 int32"
#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "ARG_MAX": {_NUMBERS: partial(_arg, "max")},
    "ARG_MIN": {_NUMBERS: partial(_arg, "min")},
    "CUMSUM": {
        "int8 uint8": _cumsum8,
        "float32 int32 int64": lambda call: call.define(_cumulative(call, call.tensor(0))),
    },
    "MEAN": {"int8 uint8": _mean, "float32 int16": partial(_sum, mean=True)},
    "REDUCE_ALL": {"bool": partial(_logical, "min")},
    "REDUCE_ANY": {"bool": partial(_logical, "max")},
    "REDUCE_MAX": {_NUMBERS: partial(_reduced, "max")},
    "REDUCE_MIN": {_NUMBERS: partial(_reduced, "min")},
    "REDUCE_PROD": {"float32 int32 int64": partial(_reduced, "*"), "int8 int16": _product},
    "SUM": {
        "float32 int8 uint8 int16": partial(_sum, mean=False),
        "int32 int64": partial(_reduced, "+"),
    },
}
