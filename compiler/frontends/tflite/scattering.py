"""Readers of operators that put elements to other places: by indices, in reverse, on a diagonal."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...graph.arithmetic.requant import OFFSET
from ...graph.ops.movement import Gather, GatherElements, Reshape
from ...graph.ops.reduction import Reduce
from ...te.expr import Const, Expr, maximum, minimum, select
from .beyond import MAX_PAIRS
from .elementwise import numbers
from .graph import Call
from .mapping import map_of, step_map
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


def _scattered(call: Call, places: str, updates: str, count: int, join: _Join) -> str:
    """Rows [count, size] of updates [M, size] at ``places`` [M]; several join in their order."""
    (number, size), dtype = call.shape_of(updates), call.importer.tensors[updates].dtype
    if count * number * size > MAX_PAIRS:
        raise call.refuse(f"expected up to {MAX_PAIRS} pairs of places and updates")
    kind, _ = join
    stored = "int32" if dtype in ("bool", "int8", "int16") else dtype
    nothing = Const(_nothing(kind, stored), stored)
    wide = call.step("updates", Reshape((1, number, size)), updates)
    if dtype != stored:
        wide = step_map(call, "wide", _number(dtype), wide)
    spread = call.step("places", Reshape((1, number, 1)), places)
    own = call.constant_of("own", np.arange(count, dtype=np.int32).reshape(count, 1, 1))
    chosen = step_map(
        call, "chosen", lambda v, at, place: select(at.equal(place), v, nothing), wide, own, spread
    )
    made = call.step("rows", Reduce(kind, (1,), False), chosen)
    if dtype == "bool":
        return step_map(call, "flags", lambda x: x > 0, made)
    return made if dtype == stored else step_map(call, "narrow", lambda x: x.astype(dtype), made)


def _number(dtype: str) -> Callable[[Expr], Expr]:
    if dtype == "bool":
        return lambda x: select(x, Const(1), Const(0))
    return lambda x: x.astype("int32")


def _scatter_nd(call: Call) -> None:
    """Sums of the elements that indices send to the same place; zeros elsewhere."""
    indices, updates = call.value(0, "plain"), call.value(1, "plain")
    shape, table = numbers(call, 2, "shape"), call.shape_of(indices)
    depth = table[-1] if table else 0
    expected = (*table[:-1], *shape[depth:])
    if not 1 <= depth <= len(shape) or call.shape_of(updates) != expected:
        raise call.refuse(f"expected updates {list(expected)}, got {list(call.shape_of(updates))}")
    places = flat_places(call, indices, shape[:depth])
    size = math.prod(shape[depth:])
    rows = call.step("given", Reshape((math.prod(table[:-1]), size)), updates)
    unsigned = call.operand(1).dtype == "uint8"
    if unsigned:  # the file's zero is the graph's -128
        rows = step_map(call, "file's", lambda x: x.astype("int32") + OFFSET, rows)
    made = _scattered(call, places, rows, math.prod(shape[:depth]), _ADD)
    if unsigned:
        made = step_map(call, "graph's", lambda x: (x - OFFSET).astype("int8"), made)
    call.emit(Reshape(tuple(shape)), (made,), "plain")


def _segments(join: _Join, sorted_: bool) -> Reader:
    """Rows joined by the segment that each belongs to."""

    def read(call: Call) -> None:
        value, segments = call.value(0, "plain"), call.value(1, "plain")
        shape = call.shape_of(value)
        rank = len(call.shape_of(segments))
        if sorted_:
            known = numbers(call, 1, "segments")
            count = max(known, default=-1) + 1
        else:
            count = numbers(call, 2, "number of segments")[0]
        if call.shape_of(segments) != shape[:rank] or not rank or count < 1:
            raise call.refuse(f"expected segments of the rows of {list(shape)}")
        rows = call.step("rows", Reshape((math.prod(shape[:rank]), math.prod(shape[rank:]))), value)
        places = call.step("flat", Reshape((math.prod(shape[:rank]),)), segments)
        made = _scattered(call, places, rows, count, join)
        call.emit(Reshape((count, *shape[rank:])), (made,), "plain")

    return read


def _reverse_sequence(call: Call) -> None:
    """The first elements of each sequence in reverse, as many as operand 1 says."""
    value, lengths = call.value(0, "plain"), call.value(1, "plain")
    shape = call.shape_of(value)
    along = axis_of(call, call.option("SeqDim"), len(shape))
    batch = axis_of(call, call.option("BatchDim"), len(shape))
    if along == batch or call.shape_of(lengths) != (shape[batch],):
        raise call.refuse(f"expected {shape[batch]} lengths along another axis")
    column = call.step(
        "lengths", Reshape(tuple(n if i == batch else 1 for i, n in enumerate(shape))), lengths
    )
    places = np.arange(shape[along], dtype=np.int32)
    places = places.reshape([-1 if i == along else 1 for i in range(len(shape))])
    whole = np.ascontiguousarray(np.broadcast_to(places, shape))

    def rule(place: Expr, length: Expr) -> Expr:
        count = length.astype("int32")
        return select(place < count, count - 1 - place, place)

    index = step_map(call, "index", rule, call.constant_of("places", whole), column)
    call.emit(GatherElements(along), (value, index), "plain")


def _diagonal(call: Call) -> None:
    """Rows on the diagonals of matrices of zeros."""
    value = call.value(0, "plain")
    size = call.shape_of(value)[-1]
    inside = call.constant_of("inside", np.eye(size, dtype=bool))
    wide = call.step("wide", Reshape((*call.shape_of(value)[:-1], 1, size)), value)
    # The kernel puts bytes of 0 beside it, also where a number has a zero point.
    zero = -OFFSET if call.operand(0).dtype == "uint8" else 0
    nothing = Const(zero, call.importer.tensors[value].dtype)
    rule = lambda c, x: select(c, x, nothing)  # noqa: E731
    call.emit(map_of(call, "Diagonal", rule, inside, wide), (inside, wide), "plain")


def _set_diagonal(call: Call) -> None:
    """Matrices with rows on their diagonals."""
    value, rows = call.value(0, "plain"), call.value(1, "plain")
    *_, height, width = call.shape_of(value)
    size = min(height, width)
    if call.shape_of(rows)[-1] != size:
        raise call.refuse(f"expected rows of {size}, got {list(call.shape_of(rows))}")
    places = call.constant_of("places", np.minimum(np.arange(width), size - 1))
    rows = call.step("rows", Gather(len(call.shape_of(rows)) - 1), rows, places)
    wide = call.step("wide", Reshape((*call.shape_of(rows)[:-1], 1, width)), rows)
    inside = call.constant_of("inside", np.eye(height, width, dtype=bool))
    operands = (inside, wide, value)
    call.emit(map_of(call, "Diagonal", select, *operands), operands, "plain")


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
