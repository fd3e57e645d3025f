"""Random nodes that move elements and change none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import numpy_helper

from .draw import Draw, Maker, Operand, Sample, constant


def _any(d: Draw, kind: str, low: int = 0, high: int = 4, operand: int = 0) -> Operand:
    return d.value(d.shape(low, high), d.dtype(kind, operand))


def _moved(d: Draw, kind: str, low: int = 0) -> tuple[Operand, tuple[int, ...]]:
    x = _any(d, kind, low)
    return x, x.array.shape


def _concat(d: Draw) -> Sample:
    dtype, shape = d.dtype("Concat"), [*d.shape(1)]
    axis = d.axis(len(shape))
    parts = []
    for _ in range(d.integer(1, 4)):
        shape[axis] = d.integer(1, 6)
        parts.append(d.value(shape, dtype))
    return Sample("Concat", parts, {"axis": axis})


def _split(d: Draw) -> Sample:
    x, shape = _moved(d, "Split", 1)
    axis = d.axis(len(shape))
    size = shape[axis]
    count = d.integer(1, min(3, size))
    if d.flag():
        if (count - 1) * -(-size // count) >= size:
            count = 1  # the last part would be empty
        return Sample("Split", [x], {"axis": axis, "num_outputs": count}, count)
    cuts = sorted(d.random.sample(range(1, size), count - 1))
    sizes = np.diff([0, *cuts, size])
    return Sample("Split", [x, constant(sizes)], {"axis": axis}, count)


def _constant_of_shape(d: Draw) -> Sample:
    value = d.array((1,), d.choice(("float32", "int64", "uint8", "bool", "int32", "float64")))
    attributes = {"value": numpy_helper.from_array(value)} if d.integer(0, 3) else {}
    return Sample("ConstantOfShape", [constant(d.shape())], attributes)


def _depth_to_space(d: Draw) -> Sample:
    block, dtype = d.integer(1, 3), d.dtype("DepthToSpace")
    n, c, h, w = (d.integer(1, 3) for _ in range(4))
    x = d.value((n, c * block * block, h, w), dtype)
    return Sample("DepthToSpace", [x], {"blocksize": block, "mode": d.choice(("DCR", "CRD"))})


def _space_to_depth(d: Draw) -> Sample:
    block, dtype = d.integer(1, 3), d.dtype("SpaceToDepth")
    n, c, h, w = (d.integer(1, 3) for _ in range(4))
    return Sample(
        "SpaceToDepth", [d.value((n, c, h * block, w * block), dtype)], {"blocksize": block}
    )


def _expand(d: Draw) -> Sample:
    """To a shape, which may say 1 where the operand has more."""
    dtype, shape = d.dtype("Expand"), d.shape()
    source = d.part_of(shape)
    padded = (1,) * (len(shape) - len(source)) + source
    wanted = [1 if n == m and d.flag() else n for n, m in zip(shape, padded, strict=True)]
    return Sample("Expand", [d.value(source, dtype), constant(wanted)])


def _flatten(d: Draw) -> Sample:
    x, shape = _moved(d, "Flatten", 1)
    return Sample("Flatten", [x], {"axis": d.integer(-len(shape), len(shape))})


def _gather(d: Draw) -> Sample:
    x, shape = _moved(d, "Gather", 1)
    axis = d.axis(len(shape))
    places = d.rng.integers(-shape[axis], shape[axis], d.shape(0, 2, 4))
    return Sample("Gather", [x, d.operand(places, d.choice(("int32", "int64")))], {"axis": axis})


def _gather_elements(d: Draw) -> Sample:
    x, shape = _moved(d, "GatherElements", 1)
    axis = d.axis(len(shape))
    sizes = [d.integer(1, n) for n in shape]
    sizes[axis] = d.integer(1, 6)
    places = d.rng.integers(-shape[axis], shape[axis], sizes)
    indices = d.operand(places, d.choice(("int32", "int64")))
    return Sample("GatherElements", [x, indices], {"axis": axis})


#: dtypes of indices, depth and values, for which ONNX Runtime has a kernel.
ONE_HOT = (
    ("int64", "int64", "int64"), ("int64", "int64", "float32"), ("float32", "float32", "float32"),
    ("int32", "int32", "float32"), ("int64", "float32", "int64"), ("int64", "int32", "float32"),
)  # fmt: skip


def _one_hot(d: Draw) -> Sample:
    """OneHot of indices inside and outside of the range."""
    dtypes, depth, shape = d.choice(ONE_HOT), d.integer(1, 6), d.shape(1, 3)
    places = d.operand(d.rng.integers(-depth - 1, depth + 2, shape), dtypes[0])
    operands = [places, constant(depth, dtypes[1]), d.value((2,), dtypes[2])]
    attributes = {"axis": d.axis(len(shape) + 1)} if d.flag() else {}
    return Sample("OneHot", operands, attributes)


def _trilu(d: Draw) -> Sample:
    x, _ = _moved(d, "Trilu", 2)
    operands = [x, constant(d.integer(-4, 4))][: d.integer(1, 2)]
    return Sample("Trilu", operands, {"upper": d.integer(0, 1)})


def _pad(d: Draw) -> Sample:
    x, shape = _moved(d, "Pad", 1)
    mode = d.choice(("constant", "edge", "reflect", "wrap"))
    axes = sorted(d.random.sample(range(len(shape)), d.integer(1, len(shape))))
    amounts = [_amount(d, mode, shape[a]) for a in (*axes, *axes)]
    given = [None, constant(axes)] if len(axes) < len(shape) or d.flag() else []
    if mode == "constant" and d.flag():
        value = d.operand(d.array((), str(x.array.dtype)))
        given = [value, *given[1:]]
    return Sample("Pad", [x, constant(amounts), *given], {"mode": mode})


def _amount(d: Draw, mode: str, size: int) -> int:
    """Elements that are added at one end. A negative number cuts elements off, but never all."""
    if mode == "constant" and d.integer(0, 3) == 0:
        return -d.integer(0, (size - 1) // 2)
    return d.integer(0, min(3, size - 1) if mode == "reflect" else min(3, size))


def _range(d: Draw) -> Sample:
    dtype = d.dtype("Range")
    start, delta = d.integer(-9, 9), d.choice((1, 2, 3, -1, -2))
    numbers = np.array([start, start + delta * d.integer(0, 9) - (d.integer(0, 1)), delta])
    scale = 0.5 if dtype[0] == "f" else 1
    return Sample("Range", [constant(n * scale, dtype) for n in numbers])


def _reshape(d: Draw) -> Sample:
    x, shape = _moved(d, "Reshape", 0)
    size, sizes = math.prod(shape), []
    while size > 1 and len(sizes) < 4:
        divisor = d.choice([n for n in range(1, size + 1) if size % n == 0])
        sizes.append(divisor)
        size //= divisor
    sizes += [size] * (size > 1 or d.flag())
    if sizes and d.flag():
        sizes[d.integer(0, len(sizes) - 1)] = -1
    kept = [0 if i < len(shape) and n == shape[i] and d.flag() else n for i, n in enumerate(sizes)]
    return Sample("Reshape", [x, constant(kept)])


def _shape(d: Draw) -> Sample:
    ends = {name: d.integer(-5, 5) for name in ("start", "end") if d.flag()}
    return Sample("Shape", [_any(d, "Shape")], ends)


def _size(d: Draw) -> Sample:
    return Sample("Size", [_any(d, "Size")])


def _slice(d: Draw) -> Sample:
    """With something left along every axis."""
    x, shape = _moved(d, "Slice", 1)
    axes = d.random.sample(range(len(shape)), d.integer(1, len(shape)))
    rows: list[list[int]] = []
    for axis in axes:
        step = d.choice((1, 1, 2, 3, -1, -2))
        start, end = d.integer(-8, 8), d.choice((d.integer(-8, 8), 2**31, -(2**31)))
        if not len(range(*slice(start, end, step).indices(shape[axis]))):
            start, end, step = 0, shape[axis], 1
        rows.append([start, end, axis - len(shape) * d.integer(0, 1), step])
    columns = [constant(column, d.choice(("int64",))) for column in zip(*rows, strict=True)]
    return Sample("Slice", [x, *columns[: 4 if d.flag() or any(r[3] != 1 for r in rows) else 3]])


def _squeeze(d: Draw) -> Sample:
    shape = [1 if d.flag() else d.integer(1, 4) for _ in range(d.integer(1, 5))]
    ones = [i for i, n in enumerate(shape) if n == 1]
    x = d.value(shape, d.dtype("Squeeze"))
    if not ones or d.integer(0, 3) == 0:
        return Sample("Squeeze", [x])
    axes = [
        a - len(shape) * d.integer(0, 1) for a in d.random.sample(ones, d.integer(1, len(ones)))
    ]
    return Sample("Squeeze", [x, constant(axes)])


def _unsqueeze(d: Draw) -> Sample:
    x, shape = _moved(d, "Unsqueeze")
    count = d.integer(1, 3)
    rank = len(shape) + count
    axes = [a - rank * d.integer(0, 1) for a in d.random.sample(range(rank), count)]
    return Sample("Unsqueeze", [x, constant(axes)])


def _tile(d: Draw) -> Sample:
    x, shape = _moved(d, "Tile", 1)
    return Sample("Tile", [x, constant([d.integer(1, 3) for _ in shape])])


def _transpose(d: Draw) -> Sample:
    x, shape = _moved(d, "Transpose")
    attributes: dict[str, Any] = {}
    if d.integer(0, 3):
        attributes["perm"] = [int(i) for i in d.rng.permutation(len(shape))]
    return Sample("Transpose", [x], attributes if shape else {})


MAKERS: dict[str, Maker] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
