"""Rows of operators that only move elements."""

from __future__ import annotations

import math

import numpy as np

from .draft import Case, Draft, Maker


def reshape(d: Draft) -> Case:
    shape, quant = d.shape(), d.quant()
    flat = (math.prod(shape),)
    return d.case(
        "RESHAPE",
        [d.x(shape, quant=quant), d.constant(flat)],
        [d.y(flat, quant=quant)],
        "ReshapeOptions",
    )


def expand_dims(d: Draft) -> Case:
    shape, quant = d.shape(d.size(1, 3)), d.quant()
    axis = d.size(-len(shape) - 1, len(shape))
    made = np.expand_dims(np.empty(shape), axis).shape
    return d.case(
        "EXPAND_DIMS", [d.x(shape, quant=quant), d.constant([axis])], [d.y(made, quant=quant)]
    )


def squeeze(d: Draft) -> Case:
    """Without a list of dimensions: all of size 1 go."""
    shape, quant = d.shape(4, 3), d.quant()
    kept = tuple(n for n in shape if n > 1)
    return d.case("SQUEEZE", [d.x(shape, quant=quant)], [d.y(kept, quant=quant)])


def transpose(d: Draft) -> Case:
    shape, quant = d.shape(), d.quant()
    order = [int(v) for v in d.rng.permutation(len(shape))]
    return d.case(
        "TRANSPOSE",
        [d.x(shape, quant=quant), d.constant(order)],
        [d.y([shape[p] for p in order], quant=quant)],
    )


def concatenation(d: Draft) -> Case:
    shape, quant = list(d.shape()), d.quant()
    axis = d.size(0, len(shape) - 1)
    parts = []
    for _ in range(d.size(2, 4)):
        part = list(shape)
        part[axis] = d.size(1, 5)
        parts.append(part)
    made = list(shape)
    made[axis] = sum(part[axis] for part in parts)
    operands = [d.x(part, quant=quant) for part in parts]
    given = axis if d.chance() else axis - len(shape)
    return d.case(
        "CONCATENATION", operands, [d.y(made, quant=quant)], "ConcatenationOptions", Axis=given
    )


def pad(kind: str) -> Maker:
    def make(d: Draft) -> Case:
        shape, quant = d.shape(d.size(1, 4)), d.quant()
        spread = d.rng.integers(0, 3, (len(shape), 2)).astype(np.int32)
        operands = [d.x(shape, quant=quant), d.constant(spread)]
        if kind == "PADV2":
            value = 2.5 if d.dtype == "float32" else 7
            operands.append(d.constant([value], d.dtype, quant))
        made = [n + a + b for n, (a, b) in zip(shape, spread.tolist(), strict=True)]
        return d.case(kind, operands, [d.y(made, quant=quant)])

    return make


def mirror_pad(d: Draft) -> Case:
    shape, quant = tuple(d.size(3, 6) for _ in range(d.size(1, 4))), d.quant()
    spread = d.rng.integers(0, 3, (len(shape), 2)).astype(np.int32)
    made = [n + a + b for n, (a, b) in zip(shape, spread.tolist(), strict=True)]
    operands = [d.x(shape, quant=quant), d.constant(spread)]
    return d.case(
        "MIRROR_PAD", operands, [d.y(made, quant=quant)], "MirrorPadOptions", Mode=d.size(0, 1)
    )


def slice_(d: Draft) -> Case:
    shape, quant = d.shape(), d.quant()
    begin = [d.size(0, n - 1) for n in shape]
    size = [d.size(1, n - b) for n, b in zip(shape, begin, strict=True)]
    given = [
        -1 if s == n - b and d.chance() else s for n, b, s in zip(shape, begin, size, strict=True)
    ]
    operands = [d.x(shape, quant=quant), d.constant(begin), d.constant(given)]
    return d.case("SLICE", operands, [d.y(size, quant=quant)])


def strided_slice(d: Draft) -> Case:
    shape, quant = d.shape(), d.quant()
    begin, end, strides, made = [], [], [], []
    masks = [d.size(0, 2 ** len(shape) - 1) for _ in range(2)]
    shrink = 0
    for axis, n in enumerate(shape):
        stride = int(d.rng.choice([1, 1, 2, -1]))
        low = d.size(0, n - 1)
        high = d.size(low + 1, n)
        first, last = (low, high) if stride > 0 else (high - 1, low - 1)
        if d.size(0, 4) == 0 and len(shape) > 1 and shrink.bit_count() < len(shape) - 1:
            shrink |= 1 << axis
            stride, first, last = 1, low, low + 1
            masks = [mask & ~(1 << axis) for mask in masks]
        elif last < 0:
            masks[1] |= 1 << axis
        view = slice(
            None if masks[0] >> axis & 1 else first, None if masks[1] >> axis & 1 else last, stride
        )
        count = len(range(*view.indices(n)))
        if not count:
            masks = [mask | 1 << axis for mask in masks]
            count = len(range(*slice(None, None, stride).indices(n)))
        begin.append(first - n if d.chance() and first else first)
        end.append(last)
        strides.append(stride)
        if not shrink >> axis & 1:
            made.append(count)
    operands = [d.x(shape, quant=quant), *(d.constant(v) for v in (begin, end, strides))]
    options = {"BeginMask": masks[0], "EndMask": masks[1], "ShrinkAxisMask": shrink}
    return d.case(
        "STRIDED_SLICE", operands, [d.y(made, quant=quant)], "StridedSliceOptions", **options
    )


def split(d: Draft) -> Case:
    shape, quant, count = list(d.shape()), d.quant(), d.size(2, 3)
    axis = d.size(0, len(shape) - 1)
    part = list(shape)
    shape[axis] *= count
    operands = [d.constant(np.int32(axis)), d.x(shape, quant=quant)]
    outputs = [d.y(part, quant=quant) for _ in range(count)]
    return d.case("SPLIT", operands, outputs, "SplitOptions", NumSplits=count)


def split_v(d: Draft) -> Case:
    shape, quant = list(d.shape()), d.quant()
    axis, parts = d.size(0, len(shape) - 1), [d.size(1, 4) for _ in range(d.size(2, 4))]
    shape[axis] = sum(parts)
    operands = [d.x(shape, quant=quant), d.constant(parts), d.constant(np.int32(axis))]
    outputs = [d.y([*shape[:axis], n, *shape[axis + 1 :]], quant=quant) for n in parts]
    return d.case("SPLIT_V", operands, outputs, "SplitVOptions", NumSplits=len(parts))


def pack(d: Draft) -> Case:
    shape, quant, count = d.shape(d.size(1, 3)), d.quant(), d.size(1, 4)
    axis = d.size(0, len(shape))
    made = [*shape[:axis], count, *shape[axis:]]
    operands = [d.x(shape, quant=quant) for _ in range(count)]
    return d.case(
        "PACK", operands, [d.y(made, quant=quant)], "PackOptions", Axis=axis, ValuesCount=count
    )


def unpack(d: Draft) -> Case:
    shape, quant = d.shape(d.size(2, 4), 4), d.quant()
    axis = d.size(0, len(shape) - 1)
    part = [*shape[:axis], *shape[axis + 1 :]]
    outputs = [d.y(part, quant=quant) for _ in range(shape[axis])]
    return d.case(
        "UNPACK", [d.x(shape, quant=quant)], outputs, "UnpackOptions", Axis=axis, Num=shape[axis]
    )


def gather(d: Draft) -> Case:
    shape, quant, indices = d.shape(d.size(1, 3)), d.quant(), d.shape(d.size(1, 2), 4)
    axis = d.size(0, len(shape) - 1)
    places = d.x(indices, "int32", low=0, high=shape[axis] - 1)
    made = [*shape[:axis], *indices, *shape[axis + 1 :]]
    operands = [places, d.x(shape, quant=quant)][::-1]
    return d.case("GATHER", operands, [d.y(made, quant=quant)], "GatherOptions", Axis=axis)


def gather_nd(d: Draft) -> Case:
    shape, quant = d.shape(d.size(1, 3)), d.quant()
    depth, rows = d.size(1, len(shape)), d.shape(d.size(1, 2), 4)
    table = np.stack([d.rng.integers(0, n, rows) for n in shape[:depth]], -1).astype(np.int32)
    operands = [d.x(shape, quant=quant), d.x(table.shape, "int32", values=table)]
    made = (*rows, *shape[depth:])
    return d.case("GATHER_ND", operands, [d.y(made, quant=quant)])


def embedding_lookup(d: Draft) -> Case:
    shape, quant = d.shape(2), d.quant()
    places = d.x((d.size(1, 5),), "int32", low=0, high=shape[0] - 1)
    table = d.constant(d.draw(shape, d.dtype, -100, 100), d.dtype, quant)
    return d.case(
        "EMBEDDING_LOOKUP", [places, table], [d.y((len(d.values[0]), shape[1]), quant=quant)]
    )


def depth_to_space(d: Draft) -> Case:
    n, h, w, c = d.shape(4, 4)
    block, quant = d.size(1, 3), d.quant()
    x = d.x((n, h, w, c * block**2), quant=quant)
    return d.case(
        "DEPTH_TO_SPACE",
        [x],
        [d.y((n, h * block, w * block, c), quant=quant)],
        "DepthToSpaceOptions",
        BlockSize=block,
    )


def space_to_depth(d: Draft) -> Case:
    n, h, w, c = d.shape(4, 4)
    block, quant = d.size(1, 3), d.quant()
    x = d.x((n, h * block, w * block, c), quant=quant)
    return d.case(
        "SPACE_TO_DEPTH",
        [x],
        [d.y((n, h, w, c * block**2), quant=quant)],
        "SpaceToDepthOptions",
        BlockSize=block,
    )


def space_to_batch(d: Draft) -> Case:
    """Without padding: TensorFlow Lite Micro pads with what it finds in memory."""
    quant = d.quant()
    n, c = d.size(1, 2), d.size(1, 4)
    blocks = [d.size(1, 3) for _ in range(2)]
    spread = [[0, 0], [0, 0]]
    size = []
    for axis in range(2):
        h = blocks[axis] * d.size(1, 3)
        spread[axis][1] = -(h + spread[axis][0]) % blocks[axis]
        size.append(h)
    whole = [h + sum(s) for h, s in zip(size, spread, strict=True)]
    made = (n * blocks[0] * blocks[1], whole[0] // blocks[0], whole[1] // blocks[1], c)
    operands = [d.x((n, *size, c), quant=quant), d.constant(blocks), d.constant(spread)]
    return d.case("SPACE_TO_BATCH_ND", operands, [d.y(made, quant=quant)])


def batch_to_space(d: Draft) -> Case:
    quant = d.quant()
    n, c = d.size(1, 2), d.size(1, 4)
    blocks = [d.size(1, 3) for _ in range(2)]
    size = [d.size(2, 4) for _ in range(2)]
    crops = [[d.size(0, 1), d.size(0, 0)] for _ in range(2)]
    made = (n, *(h * b - sum(s) for h, b, s in zip(size, blocks, crops, strict=True)), c)
    x = d.x((n * blocks[0] * blocks[1], *size, c), quant=quant)
    return d.case(
        "BATCH_TO_SPACE_ND", [x, d.constant(blocks), d.constant(crops)], [d.y(made, quant=quant)]
    )


def broadcast_to(d: Draft) -> Case:
    made, quant = d.shape(), d.quant()
    shape = tuple(n if d.chance() else 1 for n in made)[d.size(0, len(made) - 1) :]
    return d.case(
        "BROADCAST_TO", [d.x(shape, quant=quant), d.constant(made)], [d.y(made, quant=quant)]
    )


def broadcast_args(d: Draft) -> Case:
    made = d.shape()
    shapes = [[n if d.chance() else 1 for n in made] for _ in range(2)]
    result = np.broadcast_shapes(*map(tuple, shapes))
    y = d.builder.tensor((len(result),), "int32")
    return d.case("BROADCAST_ARGS", [d.constant(s) for s in shapes], [y])


def fill(d: Draft) -> Case:
    made, quant = d.shape(), d.quant()
    return d.case("FILL", [d.constant(made), d.x((), quant=quant)], [d.y(made, quant=quant)])


def shape_(d: Draft) -> Case:
    shape = d.shape()
    return d.case(
        "SHAPE", [d.x(shape)], [d.builder.tensor((len(shape),), "int32")], "ShapeOptions", OutType=2
    )


def reverse(d: Draft) -> Case:
    shape, quant = d.shape(), d.quant()
    axis = d.size(0, len(shape) - 1)
    return d.case(
        "REVERSE_V2", [d.x(shape, quant=quant), d.constant([axis])], [d.y(shape, quant=quant)]
    )


def update_slice(d: Draft) -> Case:
    shape, quant = d.shape(), d.quant()
    part = [d.size(1, n) for n in shape]
    starts = [d.size(-1, n) for n in shape]
    operands = [d.x(shape, quant=quant), d.x(part, quant=quant), d.constant(starts)]
    return d.case("DYNAMIC_UPDATE_SLICE", operands, [d.y(shape, quant=quant)])


def resize_nearest(d: Draft) -> Case:
    shape, quant = d.shape(4), d.quant()
    size = [d.size(1, 9), d.size(1, 9)]
    align, half = [(False, False), (True, False), (False, True)][d.size(0, 2)]
    made = (shape[0], *size, shape[3])
    options = {"AlignCorners": align, "HalfPixelCenters": half}
    operands = [d.x(shape, quant=quant), d.constant(size)]
    outputs = [d.y(made, quant=quant)]
    return d.case(
        "RESIZE_NEAREST_NEIGHBOR", operands, outputs, "ResizeNearestNeighborOptions", **options
    )


def in_bits(places: np.ndarray, width: int) -> np.ndarray:
    """Numbers of ``width`` bits one behind the other, the highest bit first; uint8."""
    bits = places.reshape(-1, 1) >> np.arange(width)[::-1] & 1
    return np.packbits(bits.astype(np.uint8))


def packed(d: Draft, pruned: bool) -> tuple[list[int], int]:
    """A compressed constant, as operands and a result: by places in tables, of which each channel
    has one, or as what is not zero."""
    shape, quantised = d.shape(), d.dtype in ("int8", "int16") and d.chance()
    axis = d.size(0, 1) * (len(shape) - 1)
    channels = shape[axis] if quantised else 1
    zeros = d.rng.integers(-128, 128, channels) * (pruned and d.dtype == "int8")
    header = np.zeros(16, np.uint8)
    header[[0, 1, 4]] = (2 if pruned else 0), 1, 1
    width, size = (1, 2) if pruned else (d.size(1, 7), 0)
    size = size or d.size(1, 1 << width)
    places = d.rng.integers(0, size, math.prod(shape))
    if not pruned:
        header[5:7] = (axis if quantised else 15) << 4 | width, size
    count = places.sum() if pruned else size * channels
    values = d.draw((int(count),), d.dtype, -100, 100)
    extra = np.concatenate([header, np.frombuffer(values.tobytes(), np.uint8)])
    operands = [d.constant(data, "uint8") for data in (in_bits(places, width), extra)]
    scale = {"scale": [0.1] * channels, "zero": zeros.tolist(), "axis": axis} if quantised else {}
    return operands, d.builder.tensor(shape, d.dtype, **scale)


def decode(d: Draft) -> Case:
    """Some compressed constants of both kinds."""
    found = [packed(d, d.chance()) for _ in range(d.size(2, 5))]
    made = [result for _, result in found]
    operands = [index for pair, _ in found for index in pair]
    d.builder.operator("TFLM_DECODE", operands, made)
    return Case(d.builder.file([], made), [], len(made))


ROWS: dict[str, Maker] = {
    "BATCH_TO_SPACE_ND": batch_to_space,
    "BROADCAST_ARGS": broadcast_args,
    "BROADCAST_TO": broadcast_to,
    "CONCATENATION": concatenation,
    "DEPTH_TO_SPACE": depth_to_space,
    "DYNAMIC_UPDATE_SLICE": update_slice,
    "EMBEDDING_LOOKUP": embedding_lookup,
    "EXPAND_DIMS": expand_dims,
    "FILL": fill,
    "GATHER": gather,
    "GATHER_ND": gather_nd,
    "MIRROR_PAD": mirror_pad,
    "PACK": pack,
    "PAD": pad("PAD"),
    "PADV2": pad("PADV2"),
    "RESHAPE": reshape,
    "RESIZE_NEAREST_NEIGHBOR": resize_nearest,
    "REVERSE_V2": reverse,
    "SHAPE": shape_,
    "SLICE": slice_,
    "SPACE_TO_BATCH_ND": space_to_batch,
    "SPACE_TO_DEPTH": space_to_depth,
    "SPLIT": split,
    "SPLIT_V": split_v,
    "SQUEEZE": squeeze,
    "STRIDED_SLICE": strided_slice,
    "TFLM_DECODE": decode,
    "TRANSPOSE": transpose,
    "UNPACK": unpack,
}
