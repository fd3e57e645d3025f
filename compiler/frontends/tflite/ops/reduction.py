"""Operators that reduce axes, and cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....graph.arithmetic.fixed_point import rescale
from ....graph.arithmetic.requant import Requant, tflite_params
from ....graph.ir import Tensor
from ....graph.ops.linear import MatMul
from ....graph.ops.pooling import QAvgPool
from ....graph.ops.reduction import ArgReduce
from ....te.expr import Const, Expr, integer_range, select
from ..graph import QUANTISED, Call, Reader, Rows
from .convolution import image_shape
from .detection import column
from .elementwise import narrow
from .rules import axis_of, numbers, rescaled, same_quant, saturated, stored_type

#: Elements of a product of integers: each is a node.
LONGEST_PRODUCT = 256
#: Elements on the axis of cumulative sums; their table of ones has the square of it.
LONGEST_SUM = 4096


def _axes(call: Call, rank: int) -> tuple[int, ...]:
    return tuple(sorted({axis_of(call, axis, rank) for axis in numbers(call, 1, "axes")}))


def _total(call: Call, value: Tensor, axes: tuple[int, ...]) -> Tensor:
    return call.reduce("+", value, axes, bool(call.option("KeepDims")))


def _emit(call: Call, rule: Callable[[Expr], Expr], value: Tensor) -> None:
    call.define(call.map(rule, value))


def sum_or_mean(mean: bool) -> Reader:
    """The sum, or the mean: of integers, the division is part of the multiplier."""

    def read(call: Call) -> None:
        value = call.tensor(0)
        shape = value.shape
        axes = _axes(call, len(shape))
        count = math.prod(shape[axis] for axis in axes)
        if call.operand(0).dtype == "float32":
            total = _total(call, value, axes)
            _emit(call, lambda x: x / float(count) if mean else x * 1.0, total)
            return
        (x, zero_x), (y, zero_y) = call.quant(call.operand(0)), call.quant(call.result)
        multiplier, shift = tflite_params(float(x) / float(y))
        if mean:
            extra = min(count.bit_length() - 1, 32, 31 - shift)
            multiplier, shift = (multiplier << extra) // count, shift + extra
        wide = call.map(lambda v: v.astype("int32"), value)
        total, stored = _total(call, wide, axes), stored_type(call)

        def rule(v: Expr) -> Expr:
            made = rescaled(v - zero_x * count, multiplier, shift) + zero_y
            return saturated(made, *integer_range(stored), stored)

        _emit(call, rule, total)

    return read


def _mean_of_image(call: Call) -> None:
    """Over height and width; the division is part of the multiplier."""
    _, height, width, _ = image_shape(call)
    axes = sorted(int(v) % 4 for v in call.constant(1, "list of dimensions").reshape(-1))
    if axes != [1, 2]:
        raise call.refuse(f"supported is the mean over dimensions [1, 2], got {axes}")
    (x, zero), (y, zero_y) = call.quant(call.operand(0)), call.quant(call.result)
    count = height * width
    multiplier, shift = tflite_params(float(x) / float(y))
    extra = min(count.bit_length() - 1, 31 - shift)
    scaled = np.array([(multiplier << extra) // count], np.int32)
    op = QAvgPool(
        (height, width),
        (1, 1),
        (0, 0, 0, 0),
        True,
        zero,
        Requant(scaled, np.array([shift + extra], np.int32), zero_y, rounding="tflite"),
    )
    image = (call.tensor(0, "nchw"),)
    if len(call.result.shape) == 4:
        call.define(call.emit(op, *image), "nchw")
        return
    name = call.emit(op, *image)
    call.define(call.reshape(name, name.shape[:2]))


def _mean(call: Call) -> None:
    """Over height and width as a pooling, which the accelerator has; else in general."""
    axes = call.constant(1, "axes").reshape(-1)
    image = len(call.operand(0).shape) == 4 and sorted(int(v) % 4 for v in axes) == [1, 2]
    (_mean_of_image if image else sum_or_mean(mean=True))(call)


def _reduced(kind: str) -> Reader:
    """Numbers without a scale, or the largest or smallest of numbers with one."""

    def read(call: Call) -> None:
        if call.operand(0).dtype in QUANTISED:
            same_quant(call, call.operand(0))
        value = call.tensor(0)
        axes = _axes(call, len(value.shape))
        call.define(call.reduce(kind, value, axes, bool(call.option("KeepDims"))))

    return read


def _product(call: Call) -> None:
    """One element after the other, each product rescaled by a multiplier of 15 bits: the kernel's
    share of the scales for each of ``count`` elements."""
    value = call.tensor(0)
    shape = value.shape
    axes = _axes(call, len(shape))
    kept = tuple(i for i in range(len(shape)) if i not in axes)
    count = math.prod(shape[i] for i in axes)
    if not 0 < count <= LONGEST_PRODUCT:
        raise call.refuse(f"expected products of up to {LONGEST_PRODUCT} elements, got {count}")
    (x, zero_x), (y, zero_y) = call.quant(call.operand(0)), call.quant(call.result)
    multiplier, shift = tflite_params(float(x) / float(y) ** (1 / count))
    down = 15 + shift
    if not 0 < down < 63:
        raise call.refuse("expected a result whose steps are not far finer or coarser")
    factor, half = narrow(multiplier), 1 << (down - 1)
    moved = call.transpose(value, (*kept, *axes))
    rows = call.reshape(moved, (math.prod(shape[i] for i in kept), count))

    def times(made: Expr, v: Expr) -> Expr:
        product = made.astype("int64") * (v.astype("int64") - zero_x)
        return ((product * factor + half) >> down).astype("int32")

    made = call.map(lambda v: v.astype("int32") - zero_x, column(call, rows, 0))
    for place in range(1, count):
        made = call.map(times, made, column(call, rows, place))
    final, stored = _reduced_shape(call, shape, axes), stored_type(call)

    def rule(v: Expr) -> Expr:
        ended = (v.astype("int64") * factor + half) >> down
        return saturated(ended + zero_y, *integer_range(stored), stored)

    _emit(call, rule, call.reshape(made, final))


def _reduced_shape(call: Call, shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape after a reduction, with ones for the axes that are kept."""
    ones = bool(call.option("KeepDims"))
    return tuple(1 if i in axes else n for i, n in enumerate(shape) if ones or i not in axes)


def _logical(kind: str) -> Reader:
    """Whether the largest or the smallest of bools is true."""

    def read(call: Call) -> None:
        value = call.tensor(0)
        axes = _axes(call, len(value.shape))
        number = call.map(lambda x: select(x, Const(1), Const(0)), value)
        found = call.reduce(kind, number, axes, bool(call.option("KeepDims")))
        _emit(call, lambda x: x.equal(1), found)

    return read


def _arg(kind: str) -> Reader:
    """The first place of the largest or smallest element."""

    def read(call: Call) -> None:
        value = call.tensor(0)
        axis = axis_of(call, numbers(call, 1, "axis")[0], len(value.shape))
        place = call.emit(ArgReduce(kind, axis, False, False), value)
        _emit(call, lambda x: x.astype(call.result.dtype), place)

    return read


# ---- cumulative sums -----------------------------------------------------------------------------


def _cumsum(call: Call) -> None:
    """Sums of all elements up to each, as a product with a triangle of ones."""
    value = call.tensor(0)
    order, rows = rows_along(call, value)
    ones = triangle(call, rows.shape[1]).astype(call.operand(0).dtype)
    sums = call.emit(MatMul(), rows, call.value(ones))
    call.define(call.transpose(unrowed(call, sums, value, order), _inverse(order)))


def _cumsum8(call: Call) -> None:
    """Sums of all elements up to each, as a product with a triangle of ones."""
    value = call.tensor(0)
    (x, zero_x), (y, zero_y) = call.quant(call.operand(0)), call.quant(call.result)
    widest = 2 * float(x)
    lift, ending = tflite_params(float(x) / widest), tflite_params(widest / (2.0**20 * float(y)))
    lifted = call.map(lambda v: rescaled((v.astype("int32") - zero_x) * (1 << 20), *lift), value)
    order, rows = rows_along(call, lifted)
    ones = call.value(triangle(call, rows.shape[1]))
    sums = back(call, call.emit(MatMul(), rows, ones), lifted, order)
    start = int(rescale(np.array(-zero_x << 20), *lift))  # the kernel's sums begin here

    def made(v: Expr) -> Expr:
        return saturated(rescaled(v + start, *ending) + zero_y, -128, 127, "int8")

    _emit(call, made, sums)


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


_NUMBERS = "float32 int8 uint8 int16 int32"
#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "ARG_MAX": {_NUMBERS: _arg("max")},
    "ARG_MIN": {_NUMBERS: _arg("min")},
    "CUMSUM": {"int8 uint8": _cumsum8, "float32 int32 int64": _cumsum},
    "MEAN": {"int8 uint8": _mean, "float32 int16": sum_or_mean(mean=True)},
    "REDUCE_ALL": {"bool": _logical("min")},
    "REDUCE_ANY": {"bool": _logical("max")},
    "REDUCE_MAX": {_NUMBERS: _reduced("max")},
    "REDUCE_MIN": {_NUMBERS: _reduced("min")},
    "REDUCE_PROD": {"float32 int32 int64": _reduced("*"), "int8 int16": _product},
    "SUM": {"float32 int8 uint8 int16": sum_or_mean(mean=False), "int32 int64": _reduced("+")},
}
