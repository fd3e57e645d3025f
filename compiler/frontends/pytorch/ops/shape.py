"""Operators that move elements."""

from __future__ import annotations

import math

import numpy as np

from .....isa.errors import VdlaError
from ....graph.ir import Tensor
from .call import Call, Reader, Value


def _reshape(call: Call) -> Value:
    """The same elements in the result's shape, which torch has computed."""
    return call.reshape(call["self"], call.shape)


def _expand(call: Call) -> Value:
    if call["self"].shape == call.shape:
        return call["self"]
    return call.onnx("Expand", call["self"], call.integers(call.shape))


def _permute(call: Call) -> Value:
    rank = len(call.shape)
    return call.onnx("Transpose", call["self"], perm=[d % rank for d in call["dims"]])


def _transpose(call: Call) -> Value:
    rank = len(call.shape)
    order = list(range(rank))
    if rank > 1:
        a, b = (0, 1) if call["dim0"] is None else (call["dim0"] % rank, call["dim1"] % rank)
        order[a], order[b] = order[b], order[a]
    return call.onnx("Transpose", call["self"], perm=order)


def _cat(call: Call) -> Value:
    """An empty vector among the operands, which torch allows for history's sake, adds nothing."""
    parts = [call.tensor(t, call.dtype) for t in call["tensors"] if t.shape != (0,)]
    if not parts:
        return call["tensors"][0]
    axis = call["dim"] % len(call.shape)
    return parts[0] if len(parts) == 1 else call.onnx("Concat", *parts, axis=axis)


def _places(call: Call, size: int) -> tuple[int, int, int]:
    """Start, end and step of a slice; negative ones count from the end, all are cut to the size."""
    return slice(call["start"], call["end"], call["step"]).indices(size)


def _slice(call: Call) -> Value:
    x = call["self"]
    axis = call["dim"] % len(x.shape)
    start, end, step = _places(call, x.shape[axis])
    return call.part(x, axis, start, max(start, end), step)


def _select(call: Call) -> Value:
    x = call["self"]
    axis = call["dim"] % len(x.shape)
    index = call["index"] % x.shape[axis]
    return call.reshape(call.part(x, axis, index, index + 1), call.shape)


def _split(call: Call) -> Value:
    x = call["self"]
    axis = call["dim"] % len(x.shape)
    ends = np.cumsum([shape[axis] for shape, _ in call.results]).tolist()
    return tuple(
        call.part(x, axis, start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)
    )


def _unbind(call: Call) -> Value:
    x = call["self"]
    axis = call["dim"] % len(x.shape)
    return tuple(
        call.reshape(call.part(x, axis, i, i + 1), shape)
        for i, (shape, _) in enumerate(call.results)
    )


def _replaced(call: Call, x: Tensor, axis: int, start: int, end: int, source: Tensor) -> Tensor:
    """``x`` with the elements from start to before end along an axis replaced."""
    size = x.shape[axis]
    pieces = [call.part(x, axis, 0, start)] if start else []
    pieces.append(source)
    pieces += [call.part(x, axis, end, size)] if end < size else []
    return source if len(pieces) == 1 else call.onnx("Concat", *pieces, axis=axis)


def _slice_scatter(call: Call) -> Value:
    x, axis = call["self"], call["dim"] % len(call.shape)
    start, end, step = _places(call, x.shape[axis])
    if step != 1:
        raise VdlaError(f"supported is step = 1, got {step!r}")
    return _replaced(call, x, axis, start, max(start, end), call.tensor(call["src"], call.dtype))


def _select_scatter(call: Call) -> Value:
    x, axis = call["self"], call["dim"] % len(call.shape)
    index = call["index"] % x.shape[axis]
    shape = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
    source = call.reshape(call.tensor(call["src"], call.dtype), shape)
    return _replaced(call, x, axis, index, index + 1, source)


def _flip(call: Call) -> Value:
    y = call["self"]
    rank = len(y.shape)
    least = np.iinfo(np.int64).min
    for axis in (d % rank for d in call["dims"]):
        y = call.onnx("Slice", y, *(call.integers([v]) for v in (-1, least, axis, -1)))
    return y


def _repeat(call: Call) -> Value:
    repeats = call["repeats"]
    x = call["self"]
    x = call.reshape(x, (*[1] * (len(repeats) - len(x.shape)), *x.shape))
    return call.onnx("Tile", x, call.integers(repeats))


def _index_select(call: Call) -> Value:
    y = call.onnx("Gather", call["self"], call["index"], axis=call["dim"])
    return call.reshape(y, call.shape)


def _index_copy(call: Call) -> Value:
    """Slices along an axis are replaced, as the rows of a cache."""
    x, source, axis = call["self"], call["source"], call["dim"]
    behind = len(x.shape) - 1 - axis % len(x.shape)
    index = call.reshape(call["index"], (call["index"].shape[0], *[1] * behind))
    places = call.onnx("Expand", index, call.integers(source.shape))
    return call.onnx("ScatterElements", x, places, source, axis=axis)


def _unfold(call: Call) -> Value:
    """Windows along an axis; the places in each are a last axis."""
    x, size = call["self"], call["size"]
    rank = len(x.shape)
    axis = call["dimension"] % rank
    first = np.arange(call.shape[axis])[:, None] * call["step"]
    y = call.onnx("Gather", x, call.constant(first + np.arange(size), "int64"), axis=axis)
    order = [d for d in range(rank + 1) if d != axis + 1] + [axis + 1]
    return call.onnx("Transpose", y, perm=order)


def _index(call: Call) -> Value:
    """Indices of one axis, or of adjacent axes, which are flattened into one."""
    x, indices = call["self"], call["indices"]
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if any(indices[axis].dtype == "bool" for axis in axes):
        raise VdlaError("indexing by truth values makes a shape that depends on them")
    if axes != list(range(axes[0], axes[-1] + 1)):
        raise VdlaError(f"supported are indices of adjacent axes, got those of {axes}")
    sizes = x.shape[axes[0] : axes[-1] + 1]
    flat = None
    for axis, size in zip(axes, sizes, strict=True):
        place = call.tensor(indices[axis], "int64")
        if len(axes) > 1:  # flattened, an index must count from the start
            place = call.onnx("Mod", place, call.constant(size, "int64"))
        if flat is not None:
            flat = call.onnx("Add", call.onnx("Mul", flat, call.constant(size, "int64")), place)
        else:
            flat = place
    merged = (*x.shape[: axes[0]], math.prod(sizes), *x.shape[axes[-1] + 1 :])
    return call.onnx("Gather", call.reshape(x, merged), flat, axis=axes[0])


READERS: dict[str, Reader] = {
    "aten._unsafe_view": _reshape,
    "aten.cat": _cat,
    "aten.copy": lambda call: call.onnx(
        "Expand", call.tensor(call["src"], call.dtype), call.integers(call.shape)
    ),
    "aten.embedding": lambda call: call.onnx("Gather", call["weight"], call["indices"], axis=0),
    "aten.expand": _expand,
    "aten.flatten": _reshape,
    "aten.flip": _flip,
    "aten.gather": lambda call: call.onnx(
        "GatherElements", call["self"], call["index"], axis=call["dim"]
    ),
    "aten.index": _index,
    "aten.index_copy": _index_copy,
    "aten.index_select": _index_select,
    "aten.permute": _permute,
    "aten.repeat": _repeat,
    "aten.reshape": _reshape,
    "aten.select": _select,
    "aten.select_scatter": _select_scatter,
    "aten.slice": _slice,
    "aten.slice_scatter": _slice_scatter,
    "aten.split": _split,
    "aten.split_with_sizes": _split,
    "aten.squeeze": _reshape,
    "aten.t": _transpose,
    "aten.transpose": _transpose,
    "aten.unbind": _unbind,
    "aten.unfold": _unfold,
    "aten.unsqueeze": _reshape,
    "aten.view": _reshape,
}
