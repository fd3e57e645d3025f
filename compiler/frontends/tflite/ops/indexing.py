"""Operators that take elements from other places, or put them there: by indices, by rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ....graph.arithmetic.requant import OFFSET
from ....graph.ir import Tensor
from ....graph.ops.movement import Gather, Slice
from ....te.expr import Const, select
from ...onnx.ops.ordering import reversed_starts
from ..graph import ANY, Call, Rows

#: Pairs of elements that are compared to find the largest ones.
MAX_PAIRS = 1 << 26


# ---- gathers -------------------------------------------------------------------------------------


def _gather(call: Call) -> None:
    value, indices = call.tensor(0), call.tensor(1)
    shape, table = value.shape, indices.shape
    axis, batch = call.axis(call.option("Axis"), len(shape)), call.option("BatchDims")
    batch += len(table) if batch < 0 else 0
    if not batch:
        call.define(call.emit(Gather(axis), value, indices))
        return
    if not 0 < batch <= axis or table[:batch] != shape[:batch]:
        raise call.refuse(f"expected {batch} batch dimensions of both before axis {axis}")
    _gather_in_batches(call, value, indices, axis, batch)


def _gather_in_batches(call: Call, value: Tensor, indices: Tensor, axis: int, batch: int) -> None:
    """Each batch has its own indices: rows of all batches are gathered at once."""
    shape, table = value.shape, indices.shape
    count, outer, inner = (
        math.prod(shape[:batch]), math.prod(shape[batch:axis]), math.prod(shape[axis + 1 :])
    )  # fmt: skip
    size, taken = shape[axis], math.prod(table[batch:])
    blocks = call.reshape(value, (count, outer, size, inner))
    rows = call.transpose(blocks, (0, 2, 1, 3))
    rows = call.reshape(rows, (count * size, outer, inner))
    flat = call.reshape(indices, (count, taken))
    first = call.value((np.arange(count, dtype=np.int32) * size)[:, None])
    flat = call.map(lambda i, b: i.astype("int32") + b, flat, first)
    found = call.emit(Gather(0), rows, flat)
    found = call.transpose(found, (0, 2, 1, 3))
    call.define(call.reshape(found, (*shape[:axis], *table[batch:], *shape[axis + 1 :])))


def _gather_nd(call: Call) -> None:
    call.define(call.onnx("GatherND", call.tensor(0), call.tensor(1))[0])


def flat_places(call: Call, indices: Tensor, shape: Sequence[int]) -> Tensor:
    """Indices [..., rank] of a shape as places in its flattened form, int32 [...], in one row."""
    table, place = indices.shape, None
    for axis in range(len(shape)):
        starts = (0,) * (len(table) - 1) + (axis,)
        column = call.emit(Slice(starts, (1,) * len(table), (*table[:-1], 1)), indices)
        stride = math.prod(shape[axis + 1 :])
        scaled = call.map(lambda x, s=stride: x.astype("int32") * s, column)
        place = scaled if place is None else call.map(lambda a, b: a + b, place, scaled)
    assert place is not None
    return call.reshape(place, (math.prod(table[:-1]),))


def _embedding_lookup(call: Call) -> None:
    if call.operand(1).dtype != call.result.dtype:
        raise call.refuse("tables of another type than the result's are not supported")
    call.define(call.emit(Gather(0), call.tensor(1), call.tensor(0)))


def _reverse_sequence(call: Call) -> None:
    """The first elements of each sequence in reverse, as many as operand 1 says."""
    value, lengths = call.tensor(0), call.tensor(1)
    shape = value.shape
    along = call.axis(call.option("SeqDim"), len(shape))
    batch = call.axis(call.option("BatchDim"), len(shape))
    if along == batch or lengths.shape != (shape[batch],):
        raise call.refuse(f"expected {shape[batch]} lengths along another axis")
    call.define(reversed_starts(call, value, lengths, along, batch))


# ---- scattering ----------------------------------------------------------------------------------


def _nothing(join: str, dtype: str) -> float | int:
    """What a place without elements has."""
    if join in ("+", "*"):
        return int(join == "*")
    if dtype.startswith("float"):
        limits = np.finfo(dtype)
        return float(limits.min if join == "max" else limits.max)
    whole = np.iinfo(dtype)
    return int(whole.min if join == "max" else whole.max)


def _scattered(call: Call, places: Tensor, updates: Tensor, count: int, join: str) -> Tensor:
    """Rows [count, size] of updates [M, size] at ``places`` [M]; several of one place join in their
    order, by + * min or max."""
    (number, size), dtype = updates.shape, updates.dtype
    if count * number * size > MAX_PAIRS:
        raise call.refuse(f"expected up to {MAX_PAIRS} pairs of places and updates")
    stored = "int32" if dtype in ("bool", "int8", "int16") else dtype
    nothing = Const(_nothing(join, stored), stored)
    wide = call.reshape(updates, (1, number, size))
    if dtype == "bool":
        wide = call.map(lambda x: select(x, Const(1), Const(0)), wide)
    wide = call.cast(wide, stored)
    spread = call.reshape(places, (1, number, 1))
    own = call.value(np.arange(count, dtype=np.int32).reshape(count, 1, 1))
    chosen = call.map(lambda v, at, place: select(at.equal(place), v, nothing), wide, own, spread)
    made = call.reduce(join, chosen, (1,), False)
    if dtype == "bool":
        return call.map(lambda x: x > 0, made)
    return call.cast(made, dtype)


def _scatter_nd(call: Call) -> None:
    """Sums of the elements that indices send to the same place; zeros elsewhere."""
    indices, updates = call.tensor(0), call.tensor(1)
    shape, table = call.numbers(2, "shape"), indices.shape
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
    made = _scattered(call, places, rows, math.prod(shape[:depth]), "+")
    if unsigned:
        made = call.map(lambda x: (x - OFFSET).astype("int8"), made)
    call.define(call.reshape(made, tuple(shape)))


def _segments(join: str, sorted_: bool, call: Call) -> None:
    """Rows joined by the segment that each belongs to."""
    value, segments = call.tensor(0), call.tensor(1)
    shape = value.shape
    rank = len(segments.shape)
    if sorted_:
        count = max(call.numbers(1, "segments"), default=-1) + 1
    else:
        count = call.numbers(2, "number of segments")[0]
    if segments.shape != shape[:rank] or not rank or count < 1:
        raise call.refuse(f"expected segments of the rows of {list(shape)}")
    rows = call.reshape(value, (math.prod(shape[:rank]), math.prod(shape[rank:])))
    places = call.reshape(segments, (math.prod(shape[:rank]),))
    made = _scattered(call, places, rows, count, join)
    call.define(call.reshape(made, (count, *shape[rank:])))


# ---- diagonals -----------------------------------------------------------------------------------


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
    rows = call.gather(rows, np.minimum(np.arange(width), size - 1), len(rows.shape) - 1)
    wide = call.reshape(rows, (*rows.shape[:-1], 1, width))
    inside = call.value(np.eye(height, width, dtype=bool))
    call.define(call.map(select, inside, wide, value))


# ---- places and ranks ----------------------------------------------------------------------------


def _one_hot(call: Call) -> None:
    """Values where a place is an index, others elsewhere."""
    depth = int(call.constant(1, "depth").reshape(-1)[0])
    indices = call.tensor(0)
    shape = indices.shape
    axis = call.axis(call.option("Axis"), len(shape) + 1)
    raised = (*shape[:axis], 1, *shape[axis:])
    indices = call.reshape(indices, raised)
    places = np.arange(depth, dtype=call.operand(0).dtype)
    places = places.reshape([depth if i == axis else 1 for i in range(len(raised))])
    values = (call.reshape(call.tensor(position), ()) for position in (2, 3))
    rule = lambda i, place, on, off: select(i.equal(place), on, off)  # noqa: E731
    call.define(call.map(rule, indices, call.value(places), *values))


def _top_k(call: Call) -> None:
    value, count = call.tensor(0), int(call.constant(1, "k").reshape(-1)[0])
    size = value.shape[-1]
    if not 0 < count <= size or math.prod(value.shape) * size > MAX_PAIRS or len(call.results) != 2:
        raise call.refuse(f"expected a k of 1 to {size}, and up to {MAX_PAIRS} pairs of elements")
    found, index = call.onnx("TopK", value, k=count)
    for made, result in zip((found, call.cast(index, "int32")), call.results, strict=True):
        call.define(made, result=result)


_NUMBERS = "float32 int32 int64"
#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "EMBEDDING_LOOKUP": {ANY: _embedding_lookup},
    "GATHER": {ANY: _gather},
    "GATHER_ND": {ANY: _gather_nd},
    "MATRIX_DIAG": {ANY: _diagonal},
    "MATRIX_SET_DIAG": {ANY: _set_diagonal},
    "ONE_HOT": {"int32 int64": _one_hot},
    "REVERSE_SEQUENCE": {ANY: _reverse_sequence},
    "SCATTER_ND": {"int32 int64": _scatter_nd},
    "SEGMENT_SUM": {_NUMBERS: partial(_segments, "+", True)},
    "TOPK_V2": {ANY: _top_k},
    "UNSORTED_SEGMENT_MAX": {_NUMBERS: partial(_segments, "max", False)},
    "UNSORTED_SEGMENT_MIN": {_NUMBERS: partial(_segments, "min", False)},
    "UNSORTED_SEGMENT_PROD": {_NUMBERS: partial(_segments, "*", False)},
    "UNSORTED_SEGMENT_SUM": {_NUMBERS: partial(_segments, "+", False)},
}
