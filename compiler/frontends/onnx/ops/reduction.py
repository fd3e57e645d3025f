"""Reductions, soft maxima and normalisations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.movement import Identity
from ....graph.ops.pooling import Pool
from ....graph.ops.reduction import ArgReduce
from ....te.expr import Expr, select
from .call import Call, Outputs, Reader
from .elementwise import absolute, divide, function, number


def _axes(call: Call, x: Tensor) -> tuple[int, ...] | None:
    """The axes to reduce. If none are given: all axes, or None where the operator does nothing."""
    rank = len(x.shape)
    axes = call.integers_of(1, "axes")
    if not axes:
        return None if call.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({call.axis(a, rank) for a in axes}))


def _reduction(
    kind: str,
    call: Call,
    *,
    before: Callable[[Expr], Expr] | None = None,
    after: Callable[[Expr, int], Expr] | None = None,
) -> Outputs:
    """``after`` also gets the number of elements."""
    x = call.operand(0)
    axes = _axes(call, x)
    given = x.dtype
    if x.dtype == "bool":
        x = call.cast(x, "uint8")
    if before is not None:
        x = call.map(before, x)
    if axes is not None:
        x = call.reduce(kind, x, axes, bool(call.integer("keepdims", 1)))
    count = math.prod(call.operand(0).shape[a] for a in axes or ())
    if after is _mean and not count:
        raise call.refuse("the mean of no elements is undefined")
    if after is not None:
        finish = after
        x = call.map(lambda v: finish(v, count), x)
    return call.cast(x, given) if x.dtype != given else call.emit(Identity(), x)


def _mean(x: Expr, count: int) -> Expr:
    return divide(x, number(count, x))


def _log_sum_exp(call: Call) -> Outputs:
    x = call.operand(0)
    axes = _axes(call, x) or ()
    keepdims = bool(call.integer("keepdims", 1))
    most = call.reduce("max", x, axes)
    shifted = call.map(lambda v, m: function("exp", v - m), x, most)
    total = call.reduce("+", shifted, axes)
    y = call.map(lambda s, m: function("log", s) + m, total, most)
    shape = tuple(n for i, n in enumerate(y.shape) if keepdims or i not in axes)
    return call.reshape(y, shape)


def _arg(kind: str, call: Call) -> Outputs:
    x = call.operand(0)
    axis = call.axis(call.integer("axis", 0), len(x.shape))
    last = bool(call.integer("select_last_index", 0))
    return call.emit(ArgReduce(kind, axis, bool(call.integer("keepdims", 1)), last), x)


def _soft(call: Call, *, logarithm: bool) -> Outputs:
    """Softmax and its logarithm; before operator set 13, over all axes from ``axis`` on."""
    x = call.operand(0)
    rank = len(x.shape)
    old = call.opset < 13
    axis = call.axis(call.integer("axis", 1 if old else -1), rank)
    axes = tuple(range(axis, rank)) if old else (axis,)
    most = call.reduce("max", x, axes)
    if logarithm:
        shifted = call.map(lambda v, m: v - m, x, most)
        total = call.reduce("+", call.map(lambda v: function("exp", v), shifted), axes)
        return call.map(lambda v, s: v - function("log", s), shifted, total)
    powers = call.map(lambda v, m: function("exp", v - m), x, most)
    return call.map(lambda p, s: p / s, powers, call.reduce("+", powers, axes))


# ---- normalisations ----


def moments(call: Call, x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and variance over axes, which stay as size 1."""
    count = math.prod(x.shape[a] for a in axes)
    mean = call.map(lambda s: s / number(count, s), call.reduce("+", x, axes))
    squares = call.map(lambda v, m: (v - m) * (v - m), x, mean)
    return mean, call.map(lambda s: s / number(count, s), call.reduce("+", squares, axes))


def _channels(call: Call, values: Tensor, rank: int) -> Tensor:
    """One value per channel, to broadcast against [N, C, ...]; or one per element of an image,
    where the attribute ``spatial`` of operator sets before 9 is 0."""
    if not call.integer("spatial", 1):
        return values
    return call.reshape(values, (*values.shape, *[1] * (rank - 2)))


def _batch_norm(call: Call) -> Outputs:
    x = call.operand(0)
    rank = len(x.shape)
    if rank < 2:
        raise call.refuse(f"expected [N, C, ...], got {x.type_text}")
    epsilon = call.number("epsilon", 1e-5)
    scale, bias, mean, variance = (_channels(call, call.operand(i), rank) for i in range(1, 5))
    outputs: list[Tensor | None] = []
    if call.integer("training_mode", 0):
        momentum = call.number("momentum", 0.9)
        axes = (0, *range(2, rank))
        current = moments(call, x, axes)
        for i, (old, new) in enumerate(zip((mean, variance), current, strict=True)):
            flat = call.reshape(call.reshape(new, new.shape[1:]), old.shape)
            mixed = call.map(
                lambda a, b: a * number(momentum, a) + b * number(1 - momentum, b), old, flat
            )
            outputs.append(call.reshape(mixed, call.operand(3 + i).shape))
        mean, variance = current
    elif len(call.outputs) > 1:
        raise call.refuse("more than one output is for training, which is not asked for")
    return _normalised(call, epsilon, x, scale, bias, mean, variance), *outputs


def _normalised(call: Call, epsilon: float, *operands: Tensor) -> Tensor:
    """By a scale, a bias, a mean and a variance, which broadcast to the first operand."""
    return call.map(lambda v, s, b, m, var: (v - m) / _root(var, epsilon) * s + b, *operands)


def _layer_norm(call: Call) -> Outputs:
    x, scale, bias = call.operand(0), call.operand(1), call.optional(2)
    epsilon = call.number("epsilon", 1e-5)
    axis = call.axis(call.integer("axis", -1), len(x.shape))
    mean, variance = moments(call, x, tuple(range(axis, len(x.shape))))
    inverse = call.map(lambda v: 1 / _root(v, epsilon), variance)
    y = call.map(lambda v, m, i, s: (v - m) * i * s, x, mean, inverse, scale)
    if bias is not None:
        y = call.map(lambda v, b: v + b, y, bias)
    return y, mean, inverse


def _root(variance: Expr, epsilon: float) -> Expr:
    return function("sqrt", variance + number(epsilon, variance))


def _rms_norm(call: Call) -> Outputs:
    x, scale = call.operand(0), call.operand(1)
    epsilon = call.number("epsilon", 1e-5)
    axis = call.axis(call.integer("axis", -1), len(x.shape))
    axes = tuple(range(axis, len(x.shape)))
    count = math.prod(x.shape[a] for a in axes)
    squares = call.reduce("+", call.map(lambda v: v * v, x), axes)
    root = call.map(lambda s: _root(s / number(count, s), epsilon), squares)
    return call.map(lambda v, r, s: v / r * s, x, root, scale)


def _instance_norm(call: Call) -> Outputs:
    x = call.operand(0)
    rank, epsilon = len(x.shape), call.number("epsilon", 1e-5)
    scale, bias = (_channels(call, call.operand(i), rank) for i in (1, 2))
    mean, variance = moments(call, x, tuple(range(2, rank)))
    return _normalised(call, epsilon, x, scale, bias, mean, variance)


def _hardmax(call: Call) -> Outputs:
    """1 at the first largest element; before operator set 13, of all axes from ``axis`` on."""
    x = call.operand(0)
    rank, old = len(x.shape), call.opset < 13
    axis = call.axis(call.integer("axis", 1 if old else -1), rank)
    flat = call.reshape(x, (*x.shape[:axis], math.prod(x.shape[axis:]))) if old else x
    place = call.emit(ArgReduce("max", axis, keepdims=True, last=False), flat)
    places = np.arange(flat.shape[axis]).reshape(-1, *[1] * (len(flat.shape) - 1 - axis))

    def rule(best: Expr, mine: Expr) -> Expr:
        return best.equal(mine).astype(x.dtype)

    return call.reshape(call.map(rule, place, call.value(places, "int64")), x.shape)


def _lrn(call: Call) -> Outputs:
    """Divided by a power of the sum of squares over neighbouring channels."""
    x = call.operand(0)
    size = call.integer("size", 0)
    alpha, beta, bias = (
        call.number(n, d) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    if size < 1 or len(x.shape) < 3:
        raise call.refuse(f"expected a size >= 1 and [N, C, D1, ...], got {size} {x.type_text}")
    squares = call.map(lambda v: v * v, x)
    image = call.reshape(squares, (x.shape[0], 1, x.shape[1], math.prod(x.shape[2:])))
    pads = ((size - 1) // 2, 0, size // 2, 0)
    total = call.emit(Pool("+", (size, 1), (1, 1), pads, (1, 1)), image)
    return call.map(
        lambda v, s: v / function("pow", s * (alpha / size) + bias, number(beta, s)),
        x, call.reshape(total, x.shape),
    )  # fmt: skip


def _lp_norm(call: Call) -> Outputs:
    """Divided by the norm along an axis; zeros stay."""
    x, p = call.operand(0), call.integer("p", 2)
    axis = call.axis(call.integer("axis", -1), len(x.shape))
    if p not in (1, 2):
        raise call.refuse(f"expected p of 1 or 2, got {p!r}")
    powers = call.map(absolute if p == 1 else lambda v: v * v, x)
    total = call.reduce("+", powers, (axis,))

    def rule(v: Expr, s: Expr) -> Expr:
        norm = s if p == 1 else function("sqrt", s)
        return select(s.equal(number(0, s)), number(0, s), v / norm)

    return call.map(rule, x, total)


READERS: dict[str, Reader] = {
    "ArgMax": partial(_arg, "max"),
    "ArgMin": partial(_arg, "min"),
    "BatchNormalization": _batch_norm,
    "Hardmax": _hardmax,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": partial(_soft, logarithm=True),
    "LpNormalization": _lp_norm,
    "RMSNormalization": _rms_norm,
    "ReduceL1": partial(_reduction, "+", before=absolute),
    "ReduceL2": partial(
        _reduction, "+", before=lambda x: x * x, after=lambda x, _: function("sqrt", x)
    ),
    "ReduceLogSum": partial(_reduction, "+", after=lambda x, _: function("log", x)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": partial(_reduction, "max"),
    "ReduceMean": partial(_reduction, "+", after=_mean),
    "ReduceMin": partial(_reduction, "min"),
    "ReduceProd": partial(_reduction, "*"),
    "ReduceSum": partial(_reduction, "+"),
    "ReduceSumSquare": partial(_reduction, "+", before=lambda x: x * x),
    "Softmax": partial(_soft, logarithm=False),
}
