"""Operators along an axis whose elements depend on each other's order: sums of all before, the
largest ones, reversed sequences; and operators whose results have as many elements as values say.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.movement import GatherElements, Identity, Pad, Slice
from ....te.expr import Const, Expr, select
from ...builder import Builder
from .call import Call, Outputs, Reader
from .elementwise import dtype_of


def _shifted(call: Call, x: Tensor, axis: int, count: int, fill: int) -> Tensor:
    """Shift the elements by ``count`` positions along an axis; ``fill`` takes the first ones."""
    rank = len(x.shape)
    kept = call.part(x, axis, 0, x.shape[axis] - count)
    spread = [0] * (2 * rank)
    spread[axis] = count
    return call.emit(Pad("constant", tuple(spread)), kept, call.value(fill, x.dtype))


def _reversed(call: Call, x: Tensor, axis: int) -> Tensor:
    starts = tuple(n - 1 if i == axis else 0 for i, n in enumerate(x.shape))
    steps = tuple(-1 if i == axis else 1 for i in range(len(x.shape)))
    return call.emit(Slice(starts, steps, x.shape), x)


def _cumulative(rule: Callable[[Expr, Expr], Expr], neutral: int, call: Call) -> Outputs:
    """The sum or product of all elements up to each: of 1, 2, 4, ... elements."""
    x = call.operand(0)
    axis = call.axis(int(call.scalar(1, "axis")), len(x.shape))
    backwards = call.integer("reverse", 0)
    y = _reversed(call, x, axis) if backwards else x
    if call.integer("exclusive", 0):
        y = _shifted(call, y, axis, 1, neutral)
    count = 1
    while count < x.shape[axis]:
        y = call.map(rule, y, _shifted(call, y, axis, count, neutral))
        count *= 2
    y = _reversed(call, y, axis) if backwards else y
    return call.emit(Identity(), y)


def _top_k(call: Call) -> Outputs:
    """The rank of an element is how many come before it; each is compared with all others."""
    x = call.operand(0)
    axis = call.axis(call.integer("axis", -1), len(x.shape))
    given = call.attributes.get("k")
    count = int(call.scalar(1, "k")) if given is None else int(given)
    size, rank = x.shape[axis], len(x.shape)
    if not 0 < count <= size:
        raise call.refuse(f"expected a k of 1 to {size}, got {count}")
    last = (*(i for i in range(rank) if i != axis), axis)
    moved = call.transpose(x, last)
    call.check_made((*moved.shape, size))
    one = call.reshape(moved, (*moved.shape, 1))
    other = call.reshape(moved, (*moved.shape[:-1], 1, size))
    places = np.arange(size)
    earlier = call.value(places.reshape(1, -1) < places.reshape(-1, 1))
    largest = call.integer("largest", 1)

    def before(a: Expr, b: Expr, first: Expr) -> Expr:
        ahead = a < b if largest else b < a
        return select(ahead | (a.equal(b) & first), Const(1, "int64"), Const(0, "int64"))

    ranks = call.reduce("+", call.map(before, one, other, earlier), (rank,), keepdims=False)
    column = call.reshape(ranks, (*moved.shape[:-1], 1, size))
    wanted = call.value(np.arange(count).reshape(-1, 1), "int64")
    own = call.value(places, "int64")
    hit = call.map(lambda r, w, i: select(r.equal(w), i, Const(0, "int64")), column, wanted, own)
    index = call.reduce("+", hit, (rank,), keepdims=False)
    back = tuple(int(i) for i in np.argsort(last))
    index = call.transpose(index, back)
    return call.emit(GatherElements(axis), x, index), index


def _reverse_sequence(call: Call) -> Outputs:
    x, lengths = call.operand(0), call.operand(1)
    time, batch = call.integer("time_axis", 0), call.integer("batch_axis", 1)
    if {time, batch} != {0, 1} or len(x.shape) < 2 or lengths.shape != (x.shape[batch],):
        raise call.refuse(
            f"expected time and batch on axes 0 and 1, and a length for each, got {time}, {batch}"
            f" and {lengths.type_text}"
        )
    return reversed_starts(call, x, lengths, time, batch)


def reversed_starts(call: Builder, x: Tensor, lengths: Tensor, time: int, batch: int) -> Tensor:
    """Reverse the first elements along ``time``: ``lengths`` of them, one length for each index
    along ``batch``."""
    steps = np.arange(x.shape[time]).reshape([-1 if i == time else 1 for i in range(len(x.shape))])
    column = call.reshape(lengths, tuple(n if i == batch else 1 for i, n in enumerate(x.shape)))
    everywhere = call.value(np.zeros(x.shape, bool))

    def place(t: Expr, length: Expr, _: Expr) -> Expr:
        end = length.astype("int64")
        return select(t < end, end - 1 - t, t)

    index = call.map(place, call.value(steps, "int64"), column, everywhere)
    return call.emit(GatherElements(time), x, index)


def _compress(call: Call) -> Outputs:
    x = call.operand(0)
    chosen = np.flatnonzero(call.constant(1, "condition"))
    if "axis" not in call.attributes:
        x, axis = call.reshape(x, (int(np.prod(x.shape, dtype=np.int64)),)), 0
    else:
        axis = call.axis(call.integer("axis", 0), len(x.shape))
    if chosen.size and chosen[-1] >= x.shape[axis]:
        raise call.refuse(f"the condition is longer than axis {axis} of {x.type_text}")
    return call.gather(x, chosen, axis)


def _non_zero(call: Call) -> Outputs:
    data = call.constant(0, "tensor, whose elements decide the result's shape")
    found = np.stack(np.nonzero(np.atleast_1d(data)))
    return call.emit(Identity(), call.value(found, "int64"))


def _unique(call: Call) -> Outputs:
    data = call.constant(0, "tensor, whose elements decide the result's shape")
    axis = call.integer("axis", 0) if "axis" in call.attributes else None
    if axis is not None:
        axis = call.axis(axis, data.ndim)
    found, first, inverse, counts = np.unique(
        data, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not call.integer("sorted", 1):
        order = np.argsort(first)
        found = np.take(found, order, 0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    numbers = (call.value(v, "int64") for v in (first, inverse, counts))
    values = call.value(found, str(data.dtype))
    return tuple(call.emit(Identity(), v) for v in (values, *numbers))


def _eye_like(call: Call) -> Outputs:
    x = call.operand(0)
    if len(x.shape) != 2:
        raise call.refuse(f"expected a matrix, got {x.type_text}")
    given = call.attributes.get("dtype")
    dtype = x.dtype if given is None else dtype_of(call, call.integer("dtype", 0))
    call.check_made(x.shape)
    return call.emit(Identity(), call.value(np.eye(*x.shape, k=call.integer("k", 0)), dtype))


READERS: dict[str, Reader] = {
    "Compress": _compress,
    "CumProd": partial(_cumulative, lambda a, b: a * b, 1),
    "CumSum": partial(_cumulative, lambda a, b: a + b, 0),
    "EyeLike": _eye_like,
    "NonZero": _non_zero,
    "ReverseSequence": _reverse_sequence,
    "TopK": _top_k,
    "Unique": _unique,
}
