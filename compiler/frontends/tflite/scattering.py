"""Readers of operators that put elements to other places: by indices, in reverse, on a diagonal."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...graph.arithmetic.requant import OFFSET
from ...graph.ir import Tensor
from ...graph.ops.movement import Gather, GatherElements
from ...te.expr import Const, Expr, maximum, minimum, select
from .beyond import MAX_PAIRS
from .elementwise import numbers
from .graph import Call
from .moves import axis_of, flat_places

Reader = Callable[[Call], None]
#: How several elements of one place are joined, and what a place has that gets none.
_Join = tuple[str, Callable[[Expr, Expr], Expr]]
_ADD: _Join = ("+", lambda a, b: a + b)
_MOST: _Join = ("max", maximum)
_LEAST: _Join = ("min", minimum)
_TIMES: _Join = ("*", lambda a, b: a * b)


def _nothing(join: str, dtype: str) -> float | int:
    """What a place without elements has."""
    if join in ("+", "*"):
        return int(join == "*")
    if dtype.startswith("float"):
        limits = np.finfo(dtype)
        return float(limits.min if join == "max" else limits.max)
    whole = np.iinfo(dtype)
    return int(whole.min if join == "max" else whole.max)


def _scattered(call: Call, places: Tensor, updates: Tensor, count: int, join: _Join) -> Tensor:
    """Rows [count, size] of updates [M, size] at ``places`` [M]; several join in their order."""
    (number, size), dtype = updates.shape, updates.dtype
    if count * number * size > MAX_PAIRS:
        raise call.refuse(f"expected up to {MAX_PAIRS} pairs of places and updates")
    kind, _ = join
    stored = "int32" if dtype in ("bool", "int8", "int16") else dtype
    nothing = Const(_nothing(kind, stored), stored)
    wide = call.reshape(updates, (1, number, size))
    if dtype != stored:
        wide = call.map(_number(dtype), wide)
    spread = call.reshape(places, (1, number, 1))
    own = call.value(np.arange(count, dtype=np.int32).reshape(count, 1, 1))
    chosen = call.map(lambda v, at, place: select(at.equal(place), v, nothing), wide, own, spread)
    made = call.reduce(kind, chosen, (1,), False)
    if dtype == "bool":
        return call.map(lambda x: x > 0, made)
    return made if dtype == stored else call.map(lambda x: x.astype(dtype), made)


def _number(dtype: str) -> Callable[[Expr], Expr]:
    if dtype == "bool":
        return lambda x: select(x, Const(1), Const(0))
    return lambda x: x.astype("int32")


def _scatter_nd(call: Call) -> None:
    """Sums of the elements that indices send to the same place; zeros elsewhere."""
    indices, updates = call.tensor(0), call.tensor(1)
    shape, table = numbers(call, 2, "shape"), indices.shape
    depth = table[-1] if table else 0
    expected = (*table[:-1], *shape[depth:])
    if not 1 <= depth <= len(shape) or updates.shape != expected:
        raise call.refuse(f"expected updates {list(expected)}, got {list(updates.shape)}")
    places = flat_places(call, indices, shape[:depth])
    size = math.prod(shape[depth:])
    rows = call.reshape(updates, (math.prod(table[:-1]), size))
    unsigned = call.operand(1).dtype == "uint8"
    if unsigned:  # the file's zero is the graph's -128
        rows = call.map(lambda x: x.astype("int32") + OFFSET, rows)
    made = _scattered(call, places, rows, math.prod(shape[:depth]), _ADD)
    if unsigned:
        made = call.map(lambda x: (x - OFFSET).astype("int8"), made)
    call.define(call.reshape(made, tuple(shape)))


def _segments(join: _Join, sorted_: bool) -> Reader:
    """Rows joined by the segment that each belongs to."""

    def read(call: Call) -> None:
        value, segments = call.tensor(0), call.tensor(1)
        shape = value.shape
        rank = len(segments.shape)
        if sorted_:
            known = numbers(call, 1, "segments")
            count = max(known, default=-1) + 1
        else:
            count = numbers(call, 2, "number of segments")[0]
        if segments.shape != shape[:rank] or not rank or count < 1:
            raise call.refuse(f"expected segments of the rows of {list(shape)}")
        rows = call.reshape(value, (math.prod(shape[:rank]), math.prod(shape[rank:])))
        places = call.reshape(segments, (math.prod(shape[:rank]),))
        made = _scattered(call, places, rows, count, join)
        call.define(call.reshape(made, (count, *shape[rank:])))

    return read


def _reverse_sequence(call: Call) -> None:
    """The first elements of each sequence in reverse, as many as operand 1 says."""
    value, lengths = call.tensor(0), call.tensor(1)
    shape = value.shape
    along = axis_of(call, call.option("SeqDim"), len(shape))
    batch = axis_of(call, call.option("BatchDim"), len(shape))
    if along == batch or lengths.shape != (shape[batch],):
        raise call.refuse(f"expected {shape[batch]} lengths along another axis")
    column = call.reshape(lengths, tuple(n if i == batch else 1 for i, n in enumerate(shape)))
    places = np.arange(shape[along], dtype=np.int32)
    places = places.reshape([-1 if i == along else 1 for i in range(len(shape))])
    whole = np.ascontiguousarray(np.broadcast_to(places, shape))

    def rule(place: Expr, length: Expr) -> Expr:
        count = length.astype("int32")
        return select(place < count, count - 1 - place, place)

    index = call.map(rule, call.value(whole), column)
    call.define(call.emit(GatherElements(along), value, index))


def _diagonal(call: Call) -> None:
    """Rows on the diagonals of matrices of zeros."""
    value = call.tensor(0)
    size = value.shape[-1]
    inside = call.value(np.eye(size, dtype=bool))
    wide = call.reshape(value, (*value.shape[:-1], 1, size))
    # The kernel puts bytes of 0 beside it, also where a number has a zero point.
    zero = -OFFSET if call.operand(0).dtype == "uint8" else 0
    nothing = Const(zero, value.dtype)
    rule = lambda c, x: select(c, x, nothing)  # noqa: E731
    call.define(call.map(rule, inside, wide))


def _set_diagonal(call: Call) -> None:
    """Matrices with rows on their diagonals."""
    value, rows = call.tensor(0), call.tensor(1)
    *_, height, width = value.shape
    size = min(height, width)
    if rows.shape[-1] != size:
        raise call.refuse(f"expected rows of {size}, got {list(rows.shape)}")
    places = call.value(np.minimum(np.arange(width), size - 1))
    rows = call.emit(Gather(len(rows.shape) - 1), rows, places)
    wide = call.reshape(rows, (*rows.shape[:-1], 1, width))
    inside = call.value(np.eye(height, width, dtype=bool))
    operands = (inside, wide, value)
    call.define(call.map(select, *operands))


def _of(types: tuple[str, ...], reader: Reader) -> dict[str, Reader]:
    return dict.fromkeys(types, reader)


_NUMBERS = ("float32", "int32", "int64")
#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {
    "MATRIX_DIAG": {"any": _diagonal},
    "MATRIX_SET_DIAG": {"any": _set_diagonal},
    "REVERSE_SEQUENCE": {"any": _reverse_sequence},
    "SCATTER_ND": _of(("int32", "int64"), _scatter_nd),
    "SEGMENT_SUM": _of(_NUMBERS, _segments(_ADD, True)),
    "UNSORTED_SEGMENT_MAX": _of(_NUMBERS, _segments(_MOST, False)),
    "UNSORTED_SEGMENT_MIN": _of(_NUMBERS, _segments(_LEAST, False)),
    "UNSORTED_SEGMENT_PROD": _of(_NUMBERS, _segments(_TIMES, False)),
    "UNSORTED_SEGMENT_SUM": _of(_NUMBERS, _segments(_ADD, False)),
}
