"""Operators that take or replace a part of a tensor of any type."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.movement import Gather, Pad, Slice
from ....te.expr import select
from ..graph import ANY, Call, Rows


def cut(call: Call, value: Tensor, starts: Sequence[int], shape: Sequence[int]) -> None:
    """A part of a tensor as the result."""
    call.define(call.emit(Slice(tuple(starts), (1,) * len(starts), tuple(shape)), value))


def _from(call: Call, value: Tensor, axis: int, begins: Tensor, entry: int, size: int) -> Tensor:
    """As many elements of an axis, from the computed begin in the place ``entry`` of a list on."""
    begin = call.part(begins, 0, entry, 1)
    steps = call.value(np.arange(size, dtype=np.int32))
    places = call.map(lambda b, s: b.astype("int32") + s, begin, steps)
    return call.emit(Gather(axis), value, places)


def _slice(call: Call) -> None:
    value = call.tensor(0)
    whole, sizes = value.shape, call.numbers(2, "size")
    known = call.operand(1).data is not None
    starts = call.numbers(1, "begin") if known else [0] * math.prod(call.operand(1).shape)
    if not len(whole) == len(starts) == len(sizes):
        raise call.refuse(f"expected begins and sizes of {len(whole)} dimensions")
    if not known:
        if min(sizes) < 0:
            raise call.refuse("expected constant sizes of a slice whose begin is computed, got -1")
        for axis, size in enumerate(sizes):
            if size != whole[axis]:
                value = _from(call, value, axis, call.tensor(1), axis, size)
        call.define(value)
        return
    sizes = [n - at if size < 0 else size for n, at, size in zip(whole, starts, sizes, strict=True)]
    cut(call, value, starts, sizes)


# ---- slices with strides -------------------------------------------------------------------------


def _entries(call: Call, count: int, rank: int) -> dict[int, int]:
    """Which begin, end and stride belongs to each dimension of the operand. An ellipsis stands for
    as many dimensions as are left, a new axis for none."""
    ellipses = call.option("EllipsisMask")
    added = call.option("NewAxisMask") & ~ellipses
    places = [i for i in range(count) if not (ellipses | added) >> i & 1]
    if (ellipses & (1 << count) - 1).bit_count() > 1 or len(places) > rank:
        raise call.refuse(f"expected one ellipsis and up to {rank} dimensions besides")
    found, axis = {}, 0
    for i in range(count):
        if ellipses >> i & 1:
            axis += rank - len(places)
        elif i in places:
            found[axis] = i
            axis += 1
    return found


def _computed_slice(call: Call) -> None:
    """A slice with computed begins or ends, of one element or of all in each dimension."""
    value = call.tensor(0)
    shape, strides = value.shape, call.numbers(3, "strides")
    counts, entries = list(shape), _entries(call, len(strides), len(shape))
    whole = call.option("BeginMask") & call.option("EndMask")
    for axis, i in entries.items():
        if call.option("ShrinkAxisMask") >> i & 1:
            value, counts[axis] = _from(call, value, axis, call.tensor(1), i, 1), 1
        elif not whole >> i & 1 or strides[i] != 1:
            raise call.refuse(
                f"expected a constant begin and end in dimension {axis}: they decide a shape"
            )
    call.define(call.reshape(value, _after_slice(call, counts, entries, len(strides))))


def _strided_slice(call: Call) -> None:
    if call.operand(1).data is None or call.operand(2).data is None:
        _computed_slice(call)
        return
    value = call.tensor(0)
    shape = value.shape
    begin, end, strides = (
        call.numbers(p, w) for p, w in ((1, "begin"), (2, "end"), (3, "strides"))
    )
    if not len(begin) == len(end) == len(strides) or 0 in strides:
        raise call.refuse("expected as many begins as ends, and strides that are not 0")
    if call.option("Offset"):  # ends are counted from begins
        end = [a + b for a, b in zip(begin, end, strict=True)]
    entries = _entries(call, len(begin), len(shape))
    parts = []
    for axis, size in enumerate(shape):
        places, i = range(size), entries.get(axis)
        if i is not None and call.option("ShrinkAxisMask") >> i & 1:
            first = begin[i] + size if begin[i] < 0 else begin[i]
            places = range(first, first + 1) if 0 <= first < size else range(0)
        elif i is not None:
            first = None if call.option("BeginMask") >> i & 1 else begin[i]
            last = None if call.option("EndMask") >> i & 1 else end[i]
            places = range(*slice(first, last, strides[i]).indices(size))
        if not places:
            raise call.refuse(f"expected a slice with elements in dimension {axis}")
        parts.append((places[0], places.step, len(places)))
    starts, steps, counts = zip(*parts, strict=True)
    cut = call.emit(Slice(starts, steps, counts), value)
    call.define(call.reshape(cut, _after_slice(call, counts, entries, len(begin))))


def _after_slice(
    call: Call, counts: Sequence[int], entries: dict[int, int], count: int
) -> tuple[int, ...]:
    """The sizes of a slice without the dimensions that shrink, and with new ones."""
    ellipses, axis, made = call.option("EllipsisMask"), 0, []
    added, shrunk = call.option("NewAxisMask") & ~ellipses, call.option("ShrinkAxisMask")
    for i in range(count):
        if ellipses >> i & 1:
            skipped = len(counts) - len(entries)
            made += counts[axis : axis + skipped]
            axis += skipped
        elif added >> i & 1:
            made.append(1)
        else:
            made += [] if shrunk >> i & 1 else [counts[axis]]
            axis += 1
    return (*made, *counts[axis:])


# ---- parts of an axis ----------------------------------------------------------------------------


def _split(call: Call, position: int, axis_position: int) -> None:
    value = call.tensor(position)
    shape = value.shape
    axis = call.axis(call.numbers(axis_position, "axis")[0], len(shape))
    count, at = len(call.results), 0
    sizes = call.numbers(1, "sizes") if position == 0 else [shape[axis] // count] * count
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = shape[axis] - sum(sizes) - 1
    if len(sizes) != count or sum(sizes) != shape[axis]:
        raise call.refuse(f"expected {count} parts of {shape[axis]} elements together, got {sizes}")
    for size, result in zip(sizes, call.results, strict=True):
        call.define(call.part(value, axis, at, size), result=result)
        at += size


def _unpack(call: Call) -> None:
    value = call.tensor(0)
    shape = value.shape
    axis = call.axis(call.option("Axis"), len(shape))
    if len(call.results) != shape[axis]:
        raise call.refuse(f"expected {shape[axis]} results, got {len(call.results)}")
    for place, result in enumerate(call.results):
        part = call.part(value, axis, place, 1)
        call.define(call.reshape(part, (*shape[:axis], *shape[axis + 1 :])), result=result)


def _reverse(call: Call) -> None:
    value = call.tensor(0)
    shape = value.shape
    turned = {call.axis(axis, len(shape)) for axis in call.numbers(1, "axes")}
    starts = tuple(n - 1 if i in turned else 0 for i, n in enumerate(shape))
    steps = tuple(-1 if i in turned else 1 for i in range(len(shape)))
    call.define(call.emit(Slice(starts, steps, shape), value))


# ---- replaced parts ------------------------------------------------------------------------------


def _update_slice(call: Call) -> None:
    """The operand with another tensor in the place that begins at constant indices."""
    value, update, starts = call.tensor(0), call.tensor(1), call.numbers(2, "start indices")
    shape, part = value.shape, update.shape
    starts = [min(max(at, 0), n - m) for at, n, m in zip(starts, shape, part, strict=True)]
    before = tuple(starts)
    after = tuple(n - m - at for n, m, at in zip(shape, part, starts, strict=True))
    inside = np.zeros(shape, np.bool_)
    inside[tuple(slice(at, at + m) for at, m in zip(starts, part, strict=True))] = True
    pad = Pad("constant", (*before, *after))
    widened = call.emit(pad, update, call.value(0, value.dtype))
    call.define(call.map(select, call.value(inside), widened, value))


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "DYNAMIC_UPDATE_SLICE": {ANY: _update_slice},
    "REVERSE_V2": {ANY: _reverse},
    "SLICE": {ANY: _slice},
    "SPLIT": {ANY: lambda call: _split(call, 1, 0)},
    "SPLIT_V": {ANY: lambda call: _split(call, 0, 2)},
    "STRIDED_SLICE": {ANY: _strided_slice},
    "UNPACK": {ANY: _unpack},
}
