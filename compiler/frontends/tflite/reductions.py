"""Readers of TensorFlow Lite operators that reduce axes, of all types."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...graph.arithmetic.fixed_point import rescale
from ...graph.arithmetic.requant import tflite_params
from ...graph.ir import Tensor
from ...graph.ops.linear import MatMul
from ...graph.ops.reduction import ArgReduce
from ...te.expr import Const, Expr, integer_range, select
from .detection import column
from .elementwise import numbers, same_quant
from .functions import narrow
from .graph import QUANTISED, Call
from .mapping import rescaled, saturated, stored_type
from .moves import axis_of
from .norms import back, rows_along, triangle

Reader = Callable[[Call], None]
#: Elements of a product of integers: each is a node.
LONGEST_PRODUCT = 256


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


def _cumsum(call: Call) -> None:
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


_PLAIN = ("float32", "int32", "int64")
_NUMBERS = ("float32", "int8", "uint8", "int16", "int32")
#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {
    "ARG_MAX": dict.fromkeys(_NUMBERS, _arg("max")),
    "ARG_MIN": dict.fromkeys(_NUMBERS, _arg("min")),
    "CUMSUM": {"int8": _cumsum},
    "MEAN": dict.fromkeys(("float32", "int8", "uint8", "int16"), sum_or_mean(mean=True)),
    "REDUCE_ALL": {"bool": _logical("min")},
    "REDUCE_ANY": {"bool": _logical("max")},
    "REDUCE_MAX": dict.fromkeys(_NUMBERS, _reduced("max")),
    "REDUCE_MIN": dict.fromkeys(_NUMBERS, _reduced("min")),
    "REDUCE_PROD": {
        **dict.fromkeys(_PLAIN, _reduced("*")),
        **dict.fromkeys(("int8", "int16"), _product),
    },
    "SUM": {
        **dict.fromkeys(("float32", "int8", "int16"), sum_or_mean(mean=False)),
        **dict.fromkeys(("int32", "int64"), _reduced("+")),
    },
}
