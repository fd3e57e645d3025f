"""Readers of TensorFlow Lite operators that move elements of any type, without computing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...graph.ir import Tensor
from ...graph.ops.movement import (
    Concat,
    Gather,
    Pad,
    Slice,
)
from ...te.expr import select
from .elementwise import numbers
from .file import FlatTensor
from .graph import Call, held_in

Reader = Callable[[Call], None]


def axis_of(call: Call, axis: int, rank: int) -> int:
    """An axis counted from the front."""
    if not -rank <= axis < rank:
        raise call.refuse(f"expected an axis from {-rank} to {rank - 1}, got {axis}")
    return axis % rank


def _plain(call: Call, position: int = 0) -> Tensor:
    return call.tensor(position)


def _finish(
    call: Call, value: Tensor, shape: Sequence[int], result: FlatTensor | None = None
) -> None:
    """A value as the result, in another shape."""
    call.define(call.reshape(value, tuple(shape)), result=result)


def _taken(
    call: Call, value: Tensor, axis: int, places: Sequence[int] | np.ndarray, label: str
) -> Tensor:
    """The elements of some places of an axis."""
    indices = call.value(np.asarray(places, np.int64))
    return call.emit(Gather(axis), value, indices)


# ---- slices --------------------------------------------------------------------------------------


def _cut(
    call: Call, value: Tensor, starts: Sequence[int], shape: Sequence[int], result: FlatTensor
) -> None:
    op = Slice(tuple(starts), (1,) * len(starts), tuple(shape))
    call.define(call.emit(op, value), result=result)


def _from(call: Call, value: Tensor, axis: int, begins: Tensor, entry: int, size: int) -> Tensor:
    """As many elements of an axis, from the computed begin in the place ``entry`` of a list on."""
    begin = call.emit(Slice((entry,), (1,), (1,)), begins)
    steps = call.value(np.arange(size, dtype=np.int32))
    places = call.map(lambda b, s: b.astype("int32") + s, begin, steps)
    return call.emit(Gather(axis), value, places)


def _slice(call: Call) -> None:
    value = _plain(call)
    whole, sizes = value.shape, numbers(call, 2, "size")
    known = call.operand(1).data is not None
    starts = numbers(call, 1, "begin") if known else [0] * math.prod(call.operand(1).shape)
    if not len(whole) == len(starts) == len(sizes):
        raise call.refuse(f"expected begins and sizes of {len(whole)} dimensions")
    if not known:
        if min(sizes) < 0:
            raise call.refuse("expected constant sizes of a slice whose begin is computed, got -1")
        for axis, size in enumerate(sizes):
            if size != whole[axis]:
                value = _from(call, value, axis, _plain(call, 1), axis, size)
        call.define(value)
        return
    sizes = [n - at if size < 0 else size for n, at, size in zip(whole, starts, sizes, strict=True)]
    _cut(call, value, starts, sizes, call.result)


def _entries(call: Call, count: int, rank: int) -> dict[int, int]:
    """Which begin, end and stride belongs to each dimension of the operand. An ellipsis stands for
    as many dimensions as are left, a new axis for none."""
    ellipses, added = (
        call.option("EllipsisMask"),
        call.option("NewAxisMask") & ~call.option("EllipsisMask"),
    )
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
    value = _plain(call)
    shape, strides = value.shape, numbers(call, 3, "strides")
    counts, entries = list(shape), _entries(call, len(strides), len(shape))
    whole = call.option("BeginMask") & call.option("EndMask")
    for axis, i in entries.items():
        if call.option("ShrinkAxisMask") >> i & 1:
            value, counts[axis] = _from(call, value, axis, _plain(call, 1), i, 1), 1
        elif not whole >> i & 1 or strides[i] != 1:
            raise call.refuse(
                f"expected a constant begin and end in dimension {axis}: they decide a shape"
            )
    _finish(call, value, _after_slice(call, counts, entries, len(strides)))


def _strided_slice(call: Call) -> None:
    if call.operand(1).data is None or call.operand(2).data is None:
        _computed_slice(call)
        return
    value = _plain(call)
    shape = value.shape
    begin, end, strides = (
        numbers(call, p, w) for p, w in ((1, "begin"), (2, "end"), (3, "strides"))
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
    _finish(call, cut, _after_slice(call, counts, entries, len(begin)))


def _after_slice(
    call: Call, counts: Sequence[int], entries: dict[int, int], count: int
) -> list[int]:
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
    return [*made, *counts[axis:]]


def _split(call: Call, position: int, axis_position: int) -> None:
    value = _plain(call, position)
    shape = value.shape
    axis = axis_of(call, numbers(call, axis_position, "axis")[0], len(shape))
    count, at = len(call.results), 0
    sizes = numbers(call, 1, "sizes") if position == 0 else [shape[axis] // count] * count
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = shape[axis] - sum(sizes) - 1
    if len(sizes) != count or sum(sizes) != shape[axis]:
        raise call.refuse(f"expected {count} parts of {shape[axis]} elements together, got {sizes}")
    for size, result in zip(sizes, call.results, strict=True):
        starts = tuple(at if i == axis else 0 for i in range(len(shape)))
        part = tuple(size if i == axis else n for i, n in enumerate(shape))
        _cut(call, value, starts, part, result)
        at += size


def _unpack(call: Call) -> None:
    value = _plain(call)
    shape = value.shape
    axis = axis_of(call, call.option("Axis"), len(shape))
    if len(call.results) != shape[axis]:
        raise call.refuse(f"expected {shape[axis]} results, got {len(call.results)}")
    for place, result in enumerate(call.results):
        starts = tuple(place if i == axis else 0 for i in range(len(shape)))
        one = tuple(1 if i == axis else n for i, n in enumerate(shape))
        part = call.emit(Slice(starts, (1,) * len(shape), one), value)
        _finish(call, part, (*shape[:axis], *shape[axis + 1 :]), result)


def _pack(call: Call) -> None:
    rank = len(call.result.shape)
    axis = axis_of(call, call.option("Axis"), rank)
    parts = []
    for position in range(len(call.operator.inputs)):
        value = _plain(call, position)
        shape = list(value.shape)
        shape.insert(axis, 1)
        parts.append(call.reshape(value, tuple(shape)))
    call.define(call.emit(Concat(axis), *tuple(parts)))


# ---- gathers -------------------------------------------------------------------------------------


def _gather(call: Call) -> None:
    value, indices = _plain(call), _plain(call, 1)
    shape, table = value.shape, indices.shape
    axis, batch = axis_of(call, call.option("Axis"), len(shape)), call.option("BatchDims")
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
    _finish(call, found, (*shape[:axis], *table[batch:], *shape[axis + 1 :]))


def _gather_nd(call: Call) -> None:
    value, indices = _plain(call), _plain(call, 1)
    shape, table = value.shape, indices.shape
    depth = table[-1]
    if not 1 <= depth <= len(shape):
        raise call.refuse(f"expected indices of up to {len(shape)} dimensions, got {depth}")
    flat = call.reshape(value, (math.prod(shape[:depth]), *shape[depth:]))
    places = flat_places(call, indices, shape[:depth])
    places = call.reshape(places, table[:-1])
    call.define(call.emit(Gather(0), flat, places))


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
    call.define(call.emit(Gather(0), _plain(call, 1), _plain(call, 0)))


# ---- blocks --------------------------------------------------------------------------------------


def _depth_and_space(to_depth: bool) -> Reader:
    def read(call: Call) -> None:
        value, size = _plain(call), call.option("BlockSize")
        if len(value.shape) != 4 or size < 1:
            raise call.refuse(f"expected an image and a block of at least 1, got {size}")
        n, h, w, c = value.shape
        if to_depth:
            parts, order = (n, h // size, size, w // size, size, c), (0, 1, 3, 2, 4, 5)
            made = (n, h // size, w // size, c * size**2)
        else:
            parts, order = (n, h, w, size, size, c // size**2), (0, 1, 3, 2, 4, 5)
            made = (n, h * size, w * size, c // size**2)
        if math.prod(parts) != n * h * w * c:
            raise call.refuse(f"blocks of {size} do not divide the image {[n, h, w, c]}")
        split = call.reshape(value, parts)
        _finish(call, call.transpose(split, order), made)

    return read


def _zero(call: Call) -> Tensor:
    """The scalar that pads: 0, or the zero point."""
    source = call.operand(0)
    stored = held_in(source.dtype)
    zero = call.quant(source)[1] if source.scale.size and stored in ("int8", "int16") else 0
    return call.value(np.array(zero, stored))


def _space_to_batch(call: Call) -> None:
    value, blocks = _plain(call), numbers(call, 1, "block shape")
    spread = numbers(call, 2, "padding")
    shape, rank = value.shape, len(blocks)
    before = [0, *spread[0::2], *[0] * (len(shape) - 1 - rank)]
    after = [0, *spread[1::2], *[0] * (len(shape) - 1 - rank)]
    padded = call.emit(Pad("constant", (*before, *after)), value, _zero(call))
    whole = padded.shape
    parts: list[int] = [whole[0]]
    for size, block in zip(whole[1:], blocks, strict=False):
        parts += [size // block, block]
    parts += whole[1 + rank :]
    split = call.reshape(padded, tuple(parts))
    inner = [2 + 2 * i for i in range(rank)]
    outer = [1 + 2 * i for i in range(rank)]
    rest = range(1 + 2 * rank, len(parts))
    moved = call.transpose(split, (*inner, 0, *outer, *rest))
    smaller = [parts[i] for i in outer]
    _finish(call, moved, (whole[0] * math.prod(blocks), *smaller, *whole[1 + rank :]))


def _batch_to_space(call: Call) -> None:
    value, blocks = _plain(call), numbers(call, 1, "block shape")
    crops = numbers(call, 2, "crops")
    shape, rank = value.shape, len(blocks)
    batch = shape[0] // math.prod(blocks)
    split = call.reshape(value, (*blocks, batch, *shape[1:]))
    order = [rank]
    for i in range(rank):
        order += [rank + 1 + i, i]
    order += range(2 * rank + 1, rank + len(shape))
    moved = call.transpose(split, tuple(order))
    joined = tuple(size * block for size, block in zip(shape[1:], blocks, strict=False))
    whole = call.reshape(moved, (batch, *joined, *shape[1 + rank :]))
    starts = (0, *crops[0::2], *[0] * (len(shape) - 1 - rank))
    ends = (0, *crops[1::2], *[0] * (len(shape) - 1 - rank))
    made = [n - a - b for n, a, b in zip(whole.shape, starts, ends, strict=True)]
    _cut(call, whole, starts, made, call.result)


# ---- others --------------------------------------------------------------------------------------


def _mirror_pad(call: Call) -> None:
    value, spread = _plain(call), numbers(call, 1, "padding")
    shape, symmetric = value.shape, call.option("Mode") == 1
    for axis, size in enumerate(shape):
        before, after = spread[2 * axis], spread[2 * axis + 1]
        if before or after:
            places = np.pad(
                np.arange(size), (before, after), "symmetric" if symmetric else "reflect"
            )
            value = _taken(call, value, axis, places.tolist(), f"padded{axis}")
    _finish(call, value, value.shape)


def _expanded(call: Call, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor repeated to a shape by NumPy's rules."""
    given = value.shape
    given = (1,) * (len(shape) - len(given)) + given
    value = call.reshape(value, given)
    for axis, (have, want) in enumerate(zip(given, shape, strict=True)):
        if have != want:
            value = _taken(call, value, axis, np.zeros(want, np.int64), f"repeated{axis}")
    return value


def _broadcast_to(call: Call) -> None:
    shape = _wanted(call, 1)
    _finish(call, _expanded(call, _plain(call), shape), shape)


def _fill(call: Call) -> None:
    shape = _wanted(call, 0)
    _finish(call, _expanded(call, _plain(call, 1), shape), shape)


def _wanted(call: Call, position: int) -> tuple[int, ...]:
    """The result's shape as an operand has it, or as the file says for the compiled batch."""
    if -1 not in call.result.signature or call.operand(position).data is None:
        return call.importer.shape(call.result)
    return tuple(numbers(call, position, "shape"))


def _known(call: Call, data: Sequence[int]) -> None:
    """A result that is known when the model is compiled."""
    known = np.asarray(data, call.result.dtype)
    call.define(call.value(known))


def _shape(call: Call) -> None:
    _known(call, call.importer.shape(call.operand(0)))


def _broadcast_args(call: Call) -> None:
    shapes = [tuple(numbers(call, p, "shape")) for p in (0, 1)]
    try:
        _known(call, np.broadcast_shapes(*shapes))
    except ValueError:
        raise call.refuse(f"expected shapes that broadcast, got {shapes}") from None


def _reverse(call: Call) -> None:
    value, axes = _plain(call), numbers(call, 1, "axes")
    rank = len(value.shape)
    turned = {axis_of(call, axis, rank) for axis in axes}
    shape = value.shape
    starts = tuple(n - 1 if i in turned else 0 for i, n in enumerate(shape))
    steps = tuple(-1 if i in turned else 1 for i in range(rank))
    call.define(call.emit(Slice(starts, steps, shape), value))


def same(call: Call) -> None:
    """The operand itself; a sparse constant is dense since it was read."""
    call.define(_plain(call))


def _update_slice(call: Call) -> None:
    """The operand with another tensor in the place that begins at constant indices."""
    value, update, starts = _plain(call), _plain(call, 1), numbers(call, 2, "start indices")
    shape, part = value.shape, update.shape
    starts = [min(max(at, 0), n - m) for at, n, m in zip(starts, shape, part, strict=True)]
    before = tuple(starts)
    after = tuple(n - m - at for n, m, at in zip(shape, part, starts, strict=True))
    inside = np.zeros(shape, np.bool_)
    inside[tuple(slice(at, at + m) for at, m in zip(starts, part, strict=True))] = True
    stored = value.dtype
    zero = call.value(np.zeros((), stored))
    widened = call.emit(Pad("constant", (*before, *after)), update, zero)
    condition = call.value(inside)
    call.define(call.map(select, condition, widened, value))


def _resize_nearest(call: Call) -> None:
    value, sizes = _plain(call), numbers(call, 1, "size")
    align, half = call.option("AlignCorners"), call.option("HalfPixelCenters")
    for axis, made in zip((1, 2), sizes, strict=True):
        size = value.shape[axis]
        scale = np.float32(size) / np.float32(made)
        if align and made > 1:
            scale = np.float32(size - 1) / np.float32(made - 1)
        places = (np.arange(made, dtype=np.float32) + np.float32(0.5 if half else 0)) * scale
        # The kernel rounds half away from zero; no place is negative.
        steps = np.floor(places + np.float32(0.5)) if align else np.floor(places)
        inside = np.clip(steps.astype(np.int64), 0, size - 1).tolist()
        value = _taken(call, value, axis, inside, f"resized{axis}")
    _finish(call, value, value.shape)


#: One row per operator, for every type.
READERS: dict[str, Reader] = {
    "BATCH_TO_SPACE_ND": _batch_to_space,
    "BROADCAST_ARGS": _broadcast_args,
    "BROADCAST_TO": _broadcast_to,
    "DEPTH_TO_SPACE": _depth_and_space(to_depth=False),
    "DYNAMIC_UPDATE_SLICE": _update_slice,
    "EMBEDDING_LOOKUP": _embedding_lookup,
    "FILL": _fill,
    "GATHER": _gather,
    "GATHER_ND": _gather_nd,
    "MIRROR_PAD": _mirror_pad,
    "PACK": _pack,
    "RESIZE_NEAREST_NEIGHBOR": _resize_nearest,
    "REVERSE_V2": _reverse,
    "SHAPE": _shape,
    "SLICE": _slice,
    "SPACE_TO_BATCH_ND": _space_to_batch,
    "SPACE_TO_DEPTH": _depth_and_space(to_depth=True),
    "SPLIT": lambda call: _split(call, 1, 0),
    "SPLIT_V": lambda call: _split(call, 0, 2),
    "STRIDED_SLICE": _strided_slice,
    "UNPACK": _unpack,
}
