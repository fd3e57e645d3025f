"""Operators that move elements of any type: other shapes, other orders, borders, copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ....graph.arithmetic.requant import OFFSET
from ....graph.ops.movement import Concat, Pad
from ..graph import ANY, QUANTISED, TO_NCHW, Call, Rows, held_in
from .indexing import MAX_PAIRS
from .rules import known, operands_of
from .slicing import cut

# ---- shapes --------------------------------------------------------------------------------------


def _reshape(call: Call) -> None:
    """Where an image becomes rows, these may stay in NCHW order, as layout ``flat``."""
    importer, layouts = call.importer, call.layouts(0)
    shape = new_shape(call, importer.shape(call.operand(0)))
    if "plain" not in layouts and "nchw" in layouts and len(shape) == 2:
        image = call.tensor(0, "nchw")
        if image.shape[0] == shape[0]:
            flat = "plain" if 1 in (image.shape[1], math.prod(image.shape[2:])) else "flat"
            call.define(call.reshape(image, shape), flat)
            return
    call.define(call.reshape(call.tensor(0), shape))


def new_shape(call: Call, before: tuple[int, ...]) -> tuple[int, ...]:
    """The result's shape as the file says it; if it says no more than a guess, as the operator
    computes it.
    """
    said = call.importer.shape(call.result)
    if -1 not in call.result.signature:
        return said
    match call.operator.kind:
        case "EXPAND_DIMS":
            axis = call.numbers(1, "axis")[0]
            axis += len(before) + 1 if axis < 0 else 0
            return (*before[:axis], 1, *before[axis:])
        case "SQUEEZE":
            gone = [i % len(before) for i in call.vector("SqueezeDims")] or range(len(before))
            return tuple(n for i, n in enumerate(before) if i not in gone or n != 1)
        case _:
            known = call.optional(1) is not None and call.operand(1).data is not None
            given = call.numbers(1, "shape") if known else call.vector("NewShape")
            return _filled(given, math.prod(before)) if given else said


def _filled(shape: Sequence[int], count: int) -> tuple[int, ...]:
    """A shape of ``count`` elements; -1 stands for one of its sizes."""
    rest = math.prod(n for n in shape if n != -1)
    return tuple(count // rest if n == -1 else int(n) for n in shape)


def _transpose(call: Call) -> None:
    perm, rank = call.numbers(1, "permutation"), len(call.operand(0).shape)
    perm = [axis + rank if axis < 0 else axis for axis in perm]
    if sorted(perm) != list(range(rank)):
        raise call.refuse(f"expected a permutation of {rank} dimensions, got {perm}")
    call.define(call.transpose(call.tensor(0), tuple(perm)))


def _broadcast_args(call: Call) -> None:
    shapes = [tuple(call.numbers(p, "shape")) for p in (0, 1)]
    try:
        known(call, np.broadcast_shapes(*shapes))
    except ValueError:
        raise call.refuse(f"expected shapes that broadcast, got {shapes}") from None


def _range(call: Call) -> None:
    first, limit, step = (call.constant(i, "range").reshape(-1)[0] for i in range(3))
    if not (step and np.isfinite([first, limit, step]).all()):
        raise call.refuse(f"expected a finite range with a step, got {first} to {limit} by {step}")
    count = math.ceil((float(limit) - float(first)) / float(step))
    if not 0 < count <= MAX_PAIRS:
        raise call.refuse(f"expected from 1 to {MAX_PAIRS} numbers, got {count}")
    known(call, np.arange(first, limit, step))


# ---- several tensors as one ----------------------------------------------------------------------


def _concatenation(call: Call) -> None:
    positions = tuple(range(len(call.operator.inputs)))
    if not positions or call.option("FusedActivationFunction") != 0:
        raise call.refuse("expected operands, and no fused activation")
    for position in positions:
        if call.operand(position).dtype in QUANTISED:
            call.same_quant(call.operand(position))
    rank = len(call.result.shape)
    axis = call.option("Axis")
    axis = axis + rank if axis < 0 else axis
    operands, layout = operands_of(call, len(positions))
    axis = TO_NCHW.index(axis) if layout == "nchw" and axis in TO_NCHW else axis
    call.define(call.emit(Concat(axis), *operands), layout)


def _pack(call: Call) -> None:
    rank = len(call.result.shape)
    axis = call.axis(call.option("Axis"), rank)
    parts = []
    for position in range(len(call.operator.inputs)):
        value = call.tensor(position)
        parts.append(call.reshape(value, (*value.shape[:axis], 1, *value.shape[axis:])))
    call.define(call.emit(Concat(axis), *parts))


# ---- borders -------------------------------------------------------------------------------------


def _pad(call: Call) -> None:
    source = call.operand(0)
    spread, rank = call.numbers(1, "padding"), len(source.shape)
    if len(spread) != 2 * rank or min(spread, default=0) < 0:
        raise call.refuse(f"expected {rank} pairs of sizes >= 0, got {spread}")
    quantised = source.dtype in QUANTISED
    value = call.quant(source)[1] if quantised else 0
    if quantised:
        call.same_quant(source)
    if call.optional(2) is not None:
        if quantised:
            call.same_quant(call.operand(2))
        value = call.constant(2, "value").reshape(-1)[0].item()
        value -= OFFSET if source.dtype == "uint8" else 0
    layout = "nchw" if rank == 4 else "plain"
    order = TO_NCHW if rank == 4 else range(rank)
    before, after = (tuple(spread[2 * axis + side] for axis in order) for side in (0, 1))
    border = call.importer.constant(f"{call.name}.value", np.array(value, held_in(source.dtype)))
    pad = Pad("constant", (*before, *after))
    call.define(call.emit(pad, call.tensor(0, layout), border), layout)


def _mirror_pad(call: Call) -> None:
    value, spread = call.tensor(0), call.numbers(1, "padding")
    mode = "symmetric" if call.option("Mode") == 1 else "reflect"
    for axis, size in enumerate(value.shape):
        before, after = spread[2 * axis], spread[2 * axis + 1]
        if before or after:
            value = call.gather(value, np.pad(np.arange(size), (before, after), mode), axis)
    call.define(value)


# ---- copies --------------------------------------------------------------------------------------


def _expanded(position: int, shape_position: int, call: Call) -> None:
    """An operand repeated by NumPy's rules to a shape that is another operand."""
    value, shape = call.tensor(position), _wanted(call, shape_position)
    value = call.reshape(value, (1,) * (len(shape) - len(value.shape)) + value.shape)
    for axis, (have, want) in enumerate(zip(value.shape, shape, strict=True)):
        if have != want:
            value = call.gather(value, np.zeros(want), axis)
    call.define(value)


def _wanted(call: Call, position: int) -> tuple[int, ...]:
    """The result's shape as an operand has it, or as the file says for the compiled batch."""
    if -1 not in call.result.signature or call.operand(position).data is None:
        return call.importer.shape(call.result)
    return tuple(call.numbers(position, "shape"))


def _tile(call: Call) -> None:
    counts = call.value(call.numbers(1, "multiples"), "int64")
    call.define(call.onnx("Tile", call.tensor(0), counts)[0])


# ---- blocks --------------------------------------------------------------------------------------


def _depth_and_space(call: Call, *, to_depth: bool) -> None:
    value, size = call.tensor(0), call.option("BlockSize")
    if len(value.shape) != 4 or size < 1:
        raise call.refuse(f"expected an image and a block of at least 1, got {size}")
    n, h, w, c = value.shape
    if to_depth:
        parts = (n, h // size, size, w // size, size, c)
        made = (n, h // size, w // size, c * size**2)
    else:
        parts = (n, h, w, size, size, c // size**2)
        made = (n, h * size, w * size, c // size**2)
    if math.prod(parts) != n * h * w * c:
        raise call.refuse(f"blocks of {size} do not divide the image {[n, h, w, c]}")
    moved = call.transpose(call.reshape(value, parts), (0, 1, 3, 2, 4, 5))
    call.define(call.reshape(moved, made))


def _space_to_batch(call: Call) -> None:
    value, blocks = call.tensor(0), call.numbers(1, "block shape")
    spread = call.numbers(2, "padding")
    shape, rank = value.shape, len(blocks)
    before = [0, *spread[0::2], *[0] * (len(shape) - 1 - rank)]
    after = [0, *spread[1::2], *[0] * (len(shape) - 1 - rank)]
    source = call.operand(0)
    zero = call.quant(source)[1] if source.scale.size and source.dtype in QUANTISED else 0
    border = call.value(zero, value.dtype)
    padded = call.emit(Pad("constant", (*before, *after)), value, border)
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
    call.define(call.reshape(moved, (whole[0] * math.prod(blocks), *smaller, *whole[1 + rank :])))


def _batch_to_space(call: Call) -> None:
    value, blocks = call.tensor(0), call.numbers(1, "block shape")
    crops = call.numbers(2, "crops")
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
    cut(call, whole, starts, made)


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "BATCH_TO_SPACE_ND": {ANY: _batch_to_space},
    "BROADCAST_ARGS": {ANY: _broadcast_args},
    "BROADCAST_TO": {ANY: partial(_expanded, 0, 1)},
    "CONCATENATION": {ANY: _concatenation},
    "DENSIFY": {ANY: lambda call: call.define(call.tensor(0))},  # dense since it was read
    "DEPTH_TO_SPACE": {ANY: partial(_depth_and_space, to_depth=False)},
    "EXPAND_DIMS": {ANY: _reshape},
    "FILL": {ANY: partial(_expanded, 1, 0)},
    "MIRROR_PAD": {ANY: _mirror_pad},
    "PACK": {ANY: _pack},
    "PAD": {ANY: _pad},
    "PADV2": {ANY: _pad},
    "RANGE": {"float32 int32 int64": _range},
    "RANK": {ANY: lambda call: known(call, len(call.operand(0).shape))},
    "RESHAPE": {ANY: _reshape},
    "SHAPE": {ANY: lambda call: known(call, call.importer.shape(call.operand(0)))},
    "SPACE_TO_BATCH_ND": {ANY: _space_to_batch},
    "SPACE_TO_DEPTH": {ANY: partial(_depth_and_space, to_depth=True)},
    "SQUEEZE": {ANY: _reshape},
    "TILE": {ANY: _tile},
    "TRANSPOSE": {ANY: _transpose},
}
