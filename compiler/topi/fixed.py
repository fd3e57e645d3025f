"""TensorFlow Lite's integer operators and movements of elements (``graph/ops/fixed_point.py``) as
tensor expressions; the counterpart of ``topi/ops.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...isa.errors import VdlaError
from ..graph.arithmetic.fixed_point import INT32_MAX, NEG_32_OVER_17, PLUS_48_OVER_17
from ..graph.arithmetic.requant import INT8_MAX, INT8_MIN, Requant
from ..graph.ir import Graph, Node
from ..graph.ops.fixed_point import (
    ADD_SHIFT,
    SOFTMAX_SUM_BITS,
    Concat,
    FixedOp,
    Pad,
    QAddFixed,
    QAvgPoolValid,
    QMul,
    QSoftmax,
    QTable,
    QuantizeAway,
    Recentre,
    Transpose,
)
from ..graph.ops.integer import Op
from ..targets.vdla.passes.pack_windows import PackWindows
from ..targets.vdla.passes.reshape_blocks import BlockReshape
from ..te.expr import Call, Const, Expr, all_of, select
from ..te.tensor import Tensor, clip, compute, max_of, placeholder, sum_of
from .ops import Expression, _bordered, _reduce_axes, _shifted, _window_counts


def fixed_expression(graph: Graph, node: Node) -> Expression:
    """The expression of a :class:`FixedOp` node: its inputs, then attributes that are arrays."""
    assert isinstance(node.op, FixedOp)
    # uint8 is read as int8: only Recentre has such an operand, and it changes the highest bit.
    inputs = [
        placeholder(t.shape or (1,), "int8" if t.dtype == "uint8" else t.dtype, t.name)
        for t in graph.operands(node)
    ]
    return _build(node.op, inputs, graph.result(node).shape)


def _build(op: Op, inputs: list[Tensor], shape: tuple[int, ...]) -> Expression:
    match op:
        case QAddFixed():
            return _pairwise(inputs, shape, lambda a, b: _sum(op, a, b))
        case QMul():
            return _pairwise(inputs, shape, lambda a, b: _product(op, a, b))
        case QAvgPoolValid():
            return _average(op, inputs[0])
        case QTable():
            return _table(op, inputs[0])
        case QSoftmax():
            return _softmax(op, inputs[0])
        case QuantizeAway():
            return _quantize(op, inputs[0])
        case Transpose():
            return _transpose(op, inputs[0])
        case Pad():
            return _pad(op, inputs[0], shape)
        case Concat():
            return _concat(op, inputs, shape)
        case PackWindows():
            return _pack_windows(op, inputs[0], shape)
        case BlockReshape():
            return _block_reshape(op, inputs[0])
        case Recentre():
            x = _flat(inputs[0])
            return Expression(
                compute(x.shape, lambda i: x[i] + Const(INT8_MIN, "int8"), "out"), (x,)
            )
    raise VdlaError(f"operator {type(op).__name__} has no loop program")


# ---- element by element --------------------------------------------------------------------------


def _flat(x: Tensor) -> Tensor:
    return placeholder((math.prod(x.shape),), x.dtype, x.name)


def _pairwise(
    inputs: list[Tensor], shape: tuple[int, ...], rule: Callable[[Expr, Expr], Expr]
) -> Expression:
    """``rule`` of two operands with broadcasting; one loop where both have the result's shape."""
    if all(x.shape == shape for x in inputs):
        inputs, shape = [_flat(x) for x in inputs], (math.prod(shape),)

    def element(x: Tensor, index: tuple[Expr, ...]) -> Expr:
        own = index[len(index) - len(x.shape) :]
        return x[tuple(Const(0) if n == 1 else i for n, i in zip(x.shape, own, strict=True))]

    out = compute(shape or (1,), lambda *i: rule(*(element(x, i) for x in inputs)), "out")
    return Expression(out, tuple(inputs))


def _rescaled(value: Expr, multiplier: Expr | int, shift: Expr | int) -> Expr:
    """int32 to int32 by TensorFlow Lite's double rounding."""
    factors = (Const(v) if isinstance(v, int) else v for v in (multiplier, shift))
    return Call("requantize_tflite", (value, *factors), "int64").astype("int32")


def _finished(total: Expr, requant: Requant) -> Expr:
    scaled = _rescaled(total, int(requant.multiplier[0]), int(requant.shift[0]))
    wide = scaled.astype("int64") + requant.zero_point
    return clip(wide, requant.lo, requant.hi).astype("int8")


def _sum(op: QAddFixed, a: Expr, b: Expr) -> Expr:
    def lifted(x: Expr, zero: int, multiplier: int, shift: int) -> Expr:
        return _rescaled((x.astype("int32") - zero) * (1 << ADD_SHIFT), multiplier, shift)

    left = lifted(a, op.zero_a, op.mult_a, op.shift_a)
    right = lifted(b, op.zero_b, op.mult_b, op.shift_b)
    return _finished(left - right if op.subtract else left + right, op.requant)


def _product(op: QMul, a: Expr, b: Expr) -> Expr:
    left, right = a.astype("int32") - op.zero_a, b.astype("int32") - op.zero_b
    return _finished(left * right, op.requant)


def _table(op: QTable, x: Tensor) -> Expression:
    x, table = _flat(x), placeholder((256,), "int8", "table")
    out = compute(x.shape, lambda i: table[(x[i].astype("int32") - INT8_MIN) % 256], "out")
    return Expression(out, (x, table), (op.table,))


def _quantize(op: QuantizeAway, x: Tensor) -> Expression:
    x = _flat(x)

    def rule(i: Expr) -> Expr:
        exact = x[i] / Const(float(np.float32(op.scale)), "float32")
        even = Call("round", (exact,), "float32")
        # Half to even is half away, but where it went towards zero: half a step is left there.
        up = select(all_of(exact > 0.0, (exact - even).equal(0.5)), 1.0, 0.0)
        down = select(all_of(exact < 0.0, (even - exact).equal(0.5)), 1.0, 0.0)
        stored = even + up - down + float(op.zero_point)
        return clip(stored, float(INT8_MIN), float(INT8_MAX)).astype("int8")

    return Expression(compute(x.shape, rule, "out"), (x,))


# ---- pooling and softmax -------------------------------------------------------------------------


def _average(op: QAvgPoolValid, x: Tensor) -> Expression:
    """Stages ``shifted`` (int16, zero outside), ``acc`` (int32) and ``out``."""
    padded = _shifted(x, op.pads, op.zero_point)
    height, width = _window_counts(padded, op.kernel, op.strides)
    (sh, sw), (kh, kw) = op.strides, _reduce_axes(kh=op.kernel[0], kw=op.kernel[1])

    def total(n: Expr, c: Expr, oh: Expr, ow: Expr) -> Expr:
        return sum_of(padded[n, c, oh * sh + kh, ow * sw + kw].astype("int32"), (kh, kw))

    acc = compute((*x.shape[:2], height, width), total, "acc")
    divisors = op.divisors((x.shape[2], x.shape[3]))
    multiplier = placeholder((height, width), "int32", "multiplier")
    shift = placeholder((height, width), "int32", "shift")

    def mean(n: Expr, c: Expr, oh: Expr, ow: Expr) -> Expr:
        scale = (acc[n, c, oh, ow], multiplier[oh, ow], shift[oh, ow])
        centred = Call("requantize", scale, "int32") + op.zero_point
        return clip(centred, op.lo, op.hi).astype("int8")

    out = compute(acc.shape, mean, "out")
    return Expression(out, (x, multiplier, shift), divisors)


def _softmax(op: QSoftmax, x: Tensor) -> Expression:
    """Stages ``most``, ``exponential``, ``total``, ``headroom``, ``inverse0`` to ``inverse3`` and
    ``out`` over rows; the arithmetic of ``QSoftmax`` and ``fixed_point.reciprocal_of_one_plus``.
    """
    *outer, width = x.shape
    x = placeholder((math.prod(outer), width), x.dtype, x.name)
    table = placeholder((256,), "int32", "exponentials")
    rows = (x.shape[0],)
    (k,) = _reduce_axes(k=width)
    most = compute(rows, lambda r: max_of(x[r, k], k), "most")
    exponential = compute(
        x.shape, lambda r, c: table[(most[r].astype("int32") - x[r, c].astype("int32")) % 256],
        "exponential",
    )  # fmt: skip
    half = 1 << (SOFTMAX_SUM_BITS - 1)
    (k,) = _reduce_axes(k=width)
    total = compute(
        rows,
        lambda r: sum_of((exponential[r, k] // 2 + half // 2) >> (SOFTMAX_SUM_BITS - 1), k),
        "total",
    )
    headroom = compute(rows, lambda r: _headroom(total[r]), "headroom")
    inverse = _inverse(total, headroom)

    def rule(r: Expr, c: Expr) -> Expr:
        high = _rescaled(exponential[r, c], inverse[r], 0).astype("int64")
        count = Const(35, "int64") - headroom[r].astype("int64")
        rounded = (high + (Const(1, "int64") << (count - 1))) >> count
        return clip(rounded + INT8_MIN, INT8_MIN, INT8_MAX).astype("int8")

    out = compute(x.shape, rule, "out")
    return Expression(out, (x, table), (op.exponentials,))


def _headroom(value: Expr) -> Expr:
    """Leading zeros of a positive int32."""
    zeros: Expr = Const(31)
    for bit in range(1, 31):
        zeros = zeros - select(Const(1 << bit) <= value, Const(1), Const(0))
    return zeros


def _inverse(total: Tensor, headroom: Tensor) -> Tensor:
    """``reciprocal_of_one_plus`` of the sums without their highest bit."""

    def denominator(r: Expr) -> Expr:
        fraction = (total[r].astype("int64") << headroom[r].astype("int64")) - (1 << 31)
        return ((fraction + (INT32_MAX + 1)) >> 1).astype("int32")

    halves = compute(total.shape, denominator, "denominator")
    inverse = compute(
        total.shape, lambda r: _rescaled(halves[r], NEG_32_OVER_17, 0) + PLUS_48_OVER_17, "inverse0"
    )
    for step in range(1, 4):
        inverse = _newton(halves, inverse, f"inverse{step}")
    last = inverse
    return compute(total.shape, lambda r: _doubled(last[r], 1), "inverse")


def _newton(halves: Tensor, x: Tensor, name: str) -> Tensor:
    def rule(r: Expr) -> Expr:
        rest = Const(1 << 29) - _rescaled(halves[r], x[r], 0)
        return x[r] + _doubled(_rescaled(x[r], rest, 0), 2)

    return compute(x.shape, rule, name)


def _doubled(x: Expr, times: int) -> Expr:
    """``x * 2**times``, saturated to int32."""
    wide = x.astype("int64") * (1 << times)
    return clip(wide, -INT32_MAX - 1, INT32_MAX).astype("int32")


# ---- elements change places ----------------------------------------------------------------------


def _pack_windows(op: PackWindows, x: Tensor, shape: tuple[int, ...]) -> Expression:
    padded = _bordered(x, op.pads, lambda e: e, op.fill, "padded")
    (kh, kw), (sh, sw) = op.kernel, op.strides

    def rule(n: Expr, k: Expr, oh: Expr, ow: Expr) -> Expr:
        row, col = k // kw % kh, k % kw
        return padded[n, k // (kh * kw), oh * sh + row, ow * sw + col]

    return Expression(compute(shape, rule, "out"), (x,))


def _transpose(op: Transpose, x: Tensor) -> Expression:
    places = np.argsort(op.perm)
    shape = tuple(x.shape[axis] for axis in op.perm)
    out = compute(shape, lambda *i: x[tuple(i[place] for place in places)], "out")
    return Expression(out, (x,))


def _pad(op: Pad, x: Tensor, shape: tuple[int, ...]) -> Expression:
    def rule(*index: Expr) -> Expr:
        conditions = []
        for i, before, size, after in zip(index, op.before, x.shape, op.after, strict=True):
            conditions += [i >= before] if before else []
            conditions += [i < before + size] if after else []
        element = x[tuple(i - b for i, b in zip(index, op.before, strict=True))]
        return select(all_of(*conditions), element, Const(op.value, x.dtype))

    return Expression(compute(shape, rule, "out"), (x,))


def _concat(op: Concat, inputs: list[Tensor], shape: tuple[int, ...]) -> Expression:
    def rule(*index: Expr) -> Expr:
        axis = op.axis
        start, value = 0, Const(0, inputs[0].dtype)
        for x in inputs:
            stop = start + x.shape[axis]
            element = x[(*index[:axis], index[axis] - start, *index[axis + 1 :])]
            value = select(all_of(index[axis] >= start, index[axis] < stop), element, value)
            start = stop
        return value

    return Expression(compute(shape, rule, "out"), tuple(inputs))


def _block_reshape(op: BlockReshape, x: Tensor) -> Expression:
    block = op.block

    def flattened(n: Expr, k: Expr) -> Expr:
        _, _, height, width = x.shape
        place = k // block
        channel = place // (height * width) * block + k % block
        return x[n, channel, place // width % height, place % width]

    def unfolded(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        _, _, height, width = op.shape
        return x[n, ((c // block * height + h) * width + w) * block + c % block]

    rule = flattened if len(x.shape) == 4 else unfolded
    return Expression(compute(op.shape, rule, "out"), (x,))
