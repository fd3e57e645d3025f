"""Readers of operators that TensorFlow Lite has and TensorFlow Lite Micro does not.

They compute what TensorFlow Lite's reference kernels define. Those of quantised numbers only move
them; arithmetic is of float32, and of integers without a scale as shapes need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...graph.ir import Tensor
from ...graph.ops.movement import Concat, Gather
from ...te.expr import Call as Function
from ...te.expr import Const, Expr, maximum, minimum, select
from .elementwise import clipped8, numbers, same_quant
from .graph import Call
from .mapping import emit_map
from .moves import axis_of

Reader = Callable[[Call], None]
#: Pairs of elements that are compared to find the largest ones.
MAX_PAIRS = 1 << 26
#: sqrt(1/2), and sqrt(2 / pi) of the approximation of GELU by the hyperbolic tangent.
_ROOT_HALF, _ROOT_2_PI = math.sqrt(0.5), math.sqrt(2.0 / math.pi)


def _named(name: str, *args: Expr) -> Expr:
    return Function(name, args, args[0].dtype)


def _zero(x: Expr) -> Expr:
    return Const(0.0 if x.dtype.startswith("float") else 0, x.dtype)


def _one(x: Expr) -> Expr:
    return Const(1.0 if x.dtype.startswith("float") else 1, x.dtype)


# ---- element by element --------------------------------------------------------------------------


def _unary(rule: Callable[[Expr], Expr]) -> Reader:
    return lambda call: emit_map(call, rule, 1)


def _pair(rule: Callable[[Expr, Expr], Expr]) -> Reader:
    return lambda call: emit_map(call, rule, 2)


def _whole_power(x: Expr, power: Expr) -> Expr:
    """By squares. From 32 on, only whether the power is odd matters: other results than those of
    -1, 0 and 1 do not fit. The kernel stops at powers below 0."""
    few = select(power < 32, maximum(power, 0), (power & 1) + 32)
    made, square = _one(x), x
    for bit in range(6):
        made = select(((few >> bit) & 1) > 0, made * square, made)
        square = square * square
    return made


def _sign(x: Expr) -> Expr:
    return select(x > _zero(x), _one(x), select(x < _zero(x), _zero(x) - _one(x), _zero(x)))


def _gelu(call: Call) -> None:
    def exact(x: Expr) -> Expr:
        return 0.5 * x * (1.0 + _named("erf", x * _ROOT_HALF))

    def near(x: Expr) -> Expr:
        return 0.5 * x * (1.0 + _named("tanh", _ROOT_2_PI * (x + 0.044715 * x * x * x)))

    emit_map(call, near if call.option("Approximate") else exact, 1)


def _floor_div(a: Expr, b: Expr) -> Expr:
    quotient, rest = _named("divide", a, b), _named("remainder", a, b)
    differ = (rest < _zero(rest)).equal(b < _zero(b)).equal(Const(False, "bool"))
    inexact = rest.equal(_zero(rest)).equal(Const(False, "bool"))
    return select(inexact & differ, quotient - _one(quotient), quotient)


def _floor_mod(a: Expr, b: Expr) -> Expr:
    return a - _floor_div(a, b) * b


def _shift(x: Expr, count: Expr) -> Expr:
    bits = 8 * np.dtype(x.dtype).itemsize
    return x >> minimum(maximum(count, _zero(count)), Const(bits - 1, count.dtype))


def _bitcast(dtype: str) -> Reader:
    return _unary(lambda x: Function("reinterpret", (x,), dtype))


def _angle(y: Expr, x: Expr) -> Expr:
    """The angle of a point, from -pi to pi, in float64 and rounded once."""
    below, left = (Function("reinterpret", (v,), "int32") < 0 for v in (y, x))
    high, wide = (
        select(side, _zero(v) - v, v).astype("float64") for side, v in ((below, y), (left, x))
    )
    same = select(wide.equal(Const(0.0, "float64")), _zero(wide), _one(wide))
    steep = select(high.equal(wide), same, high / wide)
    angle = _named("atan", steep)
    angle = select(left, Const(math.pi, "float64") - angle, angle)
    return select(below, Const(0.0, "float64") - angle, angle).astype("float32")


def _select(call: Call) -> None:
    """As SELECT_V2, or whole rows by a condition of rank 1."""
    condition, result = call.operand(0), call.result
    if condition.dtype != "bool":
        raise call.refuse(f"expected a condition of bool, got {condition.dtype}")
    if call.operand(1).scale.size:
        for position in (1, 2):
            same_quant(call, call.operand(position))
    flags, rank = call.tensor(0), len(result.shape)
    if len(flags.shape) == 1 and rank > 1:
        flags = call.reshape(flags, (*flags.shape, *(1,) * (rank - 1)))
    values = (flags, call.tensor(1), call.tensor(2))
    call.define(call.map(select, *values))


# ---- moves, and what is known when the model is read ---------------------------------------------


def _tile(call: Call) -> None:
    value, counts = call.tensor(0), numbers(call, 1, "multiples")
    shape = value.shape
    if len(counts) != len(shape):
        raise call.refuse(f"expected {len(shape)} multiples, got {len(counts)}")
    for axis, before in enumerate(shape):
        if counts[axis] > 1:
            places = call.value(np.tile(np.arange(before), counts[axis]))
            value = call.emit(Gather(axis), value, places)
    call.define(value)


def _known(call: Call, data: object) -> None:
    made = np.asarray(data, call.result.dtype)
    call.define(call.value(made))


def _range(call: Call) -> None:
    first, limit, step = (call.constant(i, "range").reshape(-1)[0] for i in range(3))
    if not (step and np.isfinite([first, limit, step]).all()):
        raise call.refuse(f"expected a finite range with a step, got {first} to {limit} by {step}")
    count = math.ceil((float(limit) - float(first)) / float(step))
    if not 0 < count <= MAX_PAIRS:
        raise call.refuse(f"expected from 1 to {MAX_PAIRS} numbers, got {count}")
    _known(call, np.arange(first, limit, step))


def _one_hot(call: Call) -> None:
    """Values where a place is an index, others elsewhere."""
    depth = int(call.constant(1, "depth").reshape(-1)[0])
    indices = call.tensor(0)
    shape = indices.shape
    axis = axis_of(call, call.option("Axis"), len(shape) + 1)
    raised = (*shape[:axis], 1, *shape[axis:])
    indices = call.reshape(indices, raised)
    places = np.arange(depth, dtype=call.operand(0).dtype)
    places = places.reshape([depth if i == axis else 1 for i in range(len(raised))])
    values = (indices, call.value(places), *map(_scalar(call), (2, 3)))
    rule = lambda i, place, on, off: select(i.equal(place), on, off)  # noqa: E731
    call.define(call.map(rule, *values))


def _scalar(call: Call) -> Callable[[int], Tensor]:
    return lambda position: call.reshape(call.tensor(position), ())


# ---- of neighbours and ranks ---------------------------------------------------------------------


def _response(call: Call) -> None:
    """``x * (bias + alpha * sum of squares of the nearest channels) ** -beta``."""
    value = call.tensor(0)
    shape, radius = value.shape, int(call.option("Radius"))
    squares, last = call.map(lambda x: x * x, value), len(shape) - 1
    if not 0 <= radius < 1 << 10:
        raise call.refuse(f"expected a radius from 0 to 1023, got {radius}")
    zeros = call.value(np.zeros((*shape[:last], 1), np.float32))
    padded, near = call.emit(Concat(last), squares, zeros), []
    for shift in range(-radius, radius + 1):
        if abs(shift) < shape[last]:
            near.append(call.gather(padded, _moved(shape[last], shift), last))
    total = near[0]
    for other in near[1:]:
        total = call.map(lambda a, b: a + b, total, other)
    bias, alpha, beta = (float(call.option(name)) for name in ("Bias", "Alpha", "Beta"))

    def rule(x: Expr, acc: Expr) -> Expr:
        return x * _named("pow", acc * alpha + bias, Const(-beta, "float32"))

    call.define(call.map(rule, value, total))


def _moved(size: int, shift: int) -> np.ndarray:
    """Places ``shift`` further on; ``size`` where there is none."""
    places = np.arange(size) + shift
    return np.where((places < 0) | (places >= size), size, places)


def _top_k(call: Call) -> None:
    """The rank of an element is how many come before it; each is compared with all others."""
    value, count = call.tensor(0), int(call.constant(1, "k").reshape(-1)[0])
    *outer, size = value.shape
    rows = math.prod(outer)
    if not 0 < count <= size or rows * size * size > MAX_PAIRS or len(call.results) != 2:
        raise call.refuse(f"expected a k of 1 to {size}, and up to {MAX_PAIRS} pairs of elements")
    places = np.arange(size)
    earlier = call.value((places < places[:, None])[None])
    one = call.reshape(value, (rows, size, 1))
    other = call.reshape(value, (rows, 1, size))

    def before(a: Expr, b: Expr, first: Expr) -> Expr:
        return select((a < b) | (a.equal(b) & first), Const(1), Const(0))

    ahead = call.map(before, one, other, earlier)
    ranks = call.reduce("+", ahead, (2,), False)
    ranks = call.reshape(ranks, (rows, 1, size))
    wanted = call.value(np.arange(count, dtype=np.int32)[:, None])
    own = call.value(places.astype(np.int32))
    hit = call.map(lambda r, w, i: select(r.equal(w), i, 0), ranks, wanted, own)
    index = call.reduce("+", hit, (2,), False)
    base = call.value((np.arange(rows) * size).reshape(rows, 1))
    flat = call.map(lambda i, b: i.astype("int64") + b, index, base)
    whole = call.reshape(value, (rows * size,))
    found = call.emit(Gather(0), whole, flat)
    for made, result in zip((found, index), call.results, strict=True):
        call.define(call.reshape(made, (*outer, count)), result=result)


def _fake_quant(call: Call) -> None:
    """The nearest of evenly spaced numbers, one of which is zero."""
    bits, low, high = (call.option(name) for name in ("NumBits", "Min", "Max"))
    least, most = int(bool(call.option("NarrowRange"))), (1 << bits) - 1
    if not (2 <= bits <= 16 and low <= 0 <= high and low < high and np.isfinite(high - low)):
        raise call.refuse(f"expected a range around 0 in 2 to 16 bits, got {low} to {high}")
    step = np.float32((np.float32(high) - np.float32(low)) / np.float32(most - least))
    zero = np.clip(np.float32(least) - np.float32(low) / step, least, most)
    zero = np.floor(zero + np.float32(0.5))
    ends = float((least - zero) * step), float((most - zero) * step)
    inverse = float(np.float32(1) / step)

    def rule(x: Expr) -> Expr:
        steps = (minimum(maximum(x, ends[0]), ends[1]) - ends[0]) * inverse
        return _named("floor", steps + 0.5) * float(step) + ends[0]

    emit_map(call, rule, 1)


def _clipped(low: float, high: float) -> Reader:
    return _unary(lambda x: minimum(maximum(x, low), high))


_WHOLE = ("int32", "int64")
_BYTES = ("int8", "uint8")
_BITS = ("int8", "int16", "int32", "uint32")
_PLAIN = ("float32", *_WHOLE)


def _of(types: tuple[str, ...], reader: Reader) -> dict[str, Reader]:
    return dict.fromkeys(types, reader)


#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {
    "ABS": _of(_WHOLE, _unary(lambda x: maximum(x, _zero(x) - x))),
    "ATAN2": {"float32": _pair(_angle)},
    "BITCAST": {"float32": _bitcast("int32"), "int32": _bitcast("float32")},
    "BITWISE_XOR": _of(_BITS, _pair(lambda a, b: (a | b) - (a & b))),
    "ADD": _of(("int64",), _pair(lambda a, b: a + b)),
    "DIV": _of(("int64",), _pair(lambda a, b: _named("divide", a, b))),
    "FLOOR_DIV": _of(_WHOLE, _pair(_floor_div)),
    "FLOOR_MOD": _of(_WHOLE, _pair(_floor_mod)),
    "FAKE_QUANT": {"float32": _fake_quant},
    "GELU": {"float32": _gelu},
    "LOCAL_RESPONSE_NORMALIZATION": {"float32": _response},
    "MUL": _of(("int64",), _pair(lambda a, b: a * b)),
    "NEG": _of(_WHOLE, _unary(lambda x: _zero(x) - x)),
    "ONE_HOT": _of(_WHOLE, _one_hot),
    "POW": {
        "float32": _pair(lambda a, b: _named("pow", a, b)),
        "int32": _pair(_whole_power),
    },
    "RANGE": _of(_PLAIN, _range),
    "RANK": {"any": lambda call: _known(call, len(call.operand(0).shape))},
    "RELU_0_TO_1": {"float32": _clipped(0.0, 1.0), **_of(_BYTES, clipped8(0.0, 1.0))},
    "RELU_N1_TO_1": {"float32": _clipped(-1.0, 1.0), **_of(_BYTES, clipped8(-1.0, 1.0))},
    "RIGHT_SHIFT": _of(_BITS, _pair(_shift)),
    "SELECT": {"any": _select},
    "SIGN": _of(_PLAIN, _unary(_sign)),
    "SQUARE": _of(_WHOLE, _unary(lambda x: x * x)),
    "SUB": _of(("int64",), _pair(lambda a, b: a - b)),
    "TILE": {"any": _tile},
    "TOPK_V2": {"any": _top_k},
}
