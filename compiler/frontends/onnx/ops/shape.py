"""Operators that move elements and change none: shapes, slices, gathers, borders."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

from ....graph.ir import Tensor
from ....graph.ops.movement import (
    Concat,
    Gather,
    GatherElements,
    Identity,
    Pad,
    Reshape,
    Slice,
    Transpose,
)
from ....te.expr import Const, Expr, select
from .call import Call, Outputs, Reader
from .elementwise import dtype_of


def _flatten(call: Call) -> Outputs:
    x = call.operand(0)
    axis = call.integer("axis", 1)
    if not -len(x.shape) <= axis <= len(x.shape):
        raise call.refuse(f"axis {axis!r} is outside {x.type_text}")
    axis = axis + len(x.shape) if axis < 0 else axis
    return call.emit(Reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))), x)


def _reshape(call: Call) -> Outputs:
    x = call.operand(0)
    keeps_zero = call.integer("allowzero", 0)
    wanted = call.integers_of(1, "shape")
    if wanted is None:
        raise call.refuse("expected a shape")
    copied = not keeps_zero and any(v == 0 and i >= len(x.shape) for i, v in enumerate(wanted))
    if copied or wanted.count(-1) > 1 or min(wanted, default=0) < -1:
        raise call.refuse(f"cannot reshape {x.type_text} to {wanted}")
    shape = [x.shape[i] if v == 0 and not keeps_zero else v for i, v in enumerate(wanted)]
    if -1 in shape:
        known = math.prod(v for v in shape if v != -1)
        shape[shape.index(-1)] = math.prod(x.shape) // known if known else 0
    return call.emit(Reshape(tuple(shape)), x)


def _squeeze(call: Call) -> Outputs:
    x = call.operand(0)
    axes = call.integers_of(1, "axes")
    rank = len(x.shape)
    if axes is None:
        axes = [i for i, n in enumerate(x.shape) if n == 1]
    drop = {call.axis(a, rank) for a in axes}
    if any(x.shape[a] != 1 for a in drop):
        raise call.refuse(f"axes {axes} of {x.type_text} are not all of size 1")
    return call.emit(Reshape(tuple(n for i, n in enumerate(x.shape) if i not in drop)), x)


def _unsqueeze(call: Call) -> Outputs:
    x = call.operand(0)
    axes = call.integers_of(1, "axes")
    if axes is None:
        raise call.refuse("expected axes")
    rank = len(x.shape) + len(axes)
    new = {call.axis(a, rank) for a in axes}
    if len(new) != len(axes):
        raise call.refuse(f"axes {axes} repeat")
    sizes = iter(x.shape)
    return call.emit(Reshape(tuple(1 if i in new else next(sizes) for i in range(rank))), x)


def _transpose(call: Call) -> Outputs:
    x = call.operand(0)
    rank = len(x.shape)
    order = call.integers("perm", tuple(reversed(range(rank))))
    return call.emit(Transpose(order), x)


def _depth_to_space(call: Call) -> Outputs:
    x, block, (n, channels, height, width) = _blocked(call)
    mode = call.text("mode", "DCR")
    if channels % (block * block) or mode not in ("DCR", "CRD"):
        raise call.refuse(
            f"expected mode DCR or CRD and blocks of channels, got {mode!r} and {x.type_text}"
        )
    depth = channels // (block * block)
    split = (block, block, depth) if mode == "DCR" else (depth, block, block)
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    apart = call.transpose(call.reshape(x, (n, *split, height, width)), order)
    return call.emit(Reshape((n, depth, height * block, width * block)), apart)


def _space_to_depth(call: Call) -> Outputs:
    x, block, (n, channels, height, width) = _blocked(call)
    mode = call.text("mode", "DCR")
    if height % block or width % block or mode not in ("DCR", "CRD"):
        raise call.refuse(
            f"expected mode DCR or CRD and an image in blocks of {block}, got {mode!r} and "
            f"{x.type_text}"
        )
    rows, cols = height // block, width // block
    split = call.reshape(x, (n, channels, rows, block, cols, block))
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    apart = call.transpose(split, order)
    return call.emit(Reshape((n, channels * block * block, rows, cols)), apart)


def _blocked(call: Call) -> tuple[Tensor, int, tuple[int, ...]]:
    """An image, the size of the blocks, and the image's shape."""
    x, block = call.operand(0), call.integer("blocksize", 0)
    if len(x.shape) != 4 or block < 1:
        raise call.refuse(f"expected an image and a blocksize >= 1, got {x.type_text}, {block!r}")
    return x, block, x.shape


def _concat(call: Call) -> Outputs:
    operands = call.all_operands()
    axis = call.axis(call.integer("axis", 1), len(operands[0].shape))
    full = [t for t in operands if t.shape != (0,) and t.shape[axis : axis + 1] != (0,)]
    first, *others = full or operands[:1]
    return call.emit(Concat(axis), first, *others) if others else first


def _split(call: Call) -> Outputs:
    x = call.operand(0)
    axis = call.axis(call.integer("axis", 0), len(x.shape))
    size = x.shape[axis]
    sizes = call.integers_of(1, "split")
    if sizes is None:
        count = call.integer("num_outputs", len(call.outputs))
        if count != len(call.outputs):
            raise call.refuse(f"expected {len(call.outputs)} as num_outputs, got {count!r}")
        each = -(-size // count)
        sizes = [min(each, size - i * each) for i in range(count)]
    if sum(sizes) != size or min(sizes) < 0 or len(sizes) != len(call.outputs):
        raise call.refuse(f"cannot split size {size} into {sizes}")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(
        call.part(x, axis, start, count) for start, count in zip(starts, sizes, strict=True)
    )


def _places(start: int, end: int, step: int, size: int) -> range:
    """The places of an axis that a slice takes. In ONNX, unlike Python, a first place before the
    axis is place 0 even where steps are negative.
    """
    lowest, highest = (0, size) if step > 0 else (-1, size - 1)
    start, end = (n + size if n < 0 else n for n in (start, end))
    end = min(max(end, lowest), highest)
    return range(min(max(start, 0), highest), end, step)


def _slice(call: Call) -> Outputs:
    x = call.operand(0)
    rank = len(x.shape)
    starts, ends = call.integers_of(1, "starts"), call.integers_of(2, "ends")
    if starts is None or ends is None:
        raise call.refuse("expected starts and ends")
    axes = call.integers_of(3, "axes") or list(range(len(starts)))
    steps = call.integers_of(4, "steps") or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise call.refuse(f"expected as many ends, axes and non-zero steps as starts {starts}")
    chosen = [range(n) for n in x.shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = call.axis(axis, rank)
        chosen[at] = _places(start, end, step, x.shape[at])
    shape = tuple(len(r) for r in chosen)
    first = tuple(r[0] if r else 0 for r in chosen)
    return call.emit(Slice(first, tuple(r.step for r in chosen), shape), x)


def _gather(call: Call) -> Outputs:
    x, indices = call.operand(0), call.operand(1)
    axis = call.axis(call.integer("axis", 0), len(x.shape))
    if indices.data is not None and indices.data.size:
        size = x.shape[axis]
        if indices.data.min() < -size or indices.data.max() >= size:
            raise call.refuse(f"indices reach beyond axis {axis} of {x.type_text}")
        places = indices.data.reshape(-1) % size
        step = int(places[1] - places[0]) if len(places) > 1 else 1
        if indices.data.ndim < 2 and step > 0 and (np.diff(places) == step).all():
            first, steps, shape = [0] * len(x.shape), [1] * len(x.shape), list(x.shape)
            first[axis], steps[axis], shape[axis] = int(places[0]), step, len(places)
            some = call.emit(Slice(tuple(first), tuple(steps), tuple(shape)), x)
            if indices.data.ndim == 0:
                some = call.reshape(some, (*shape[:axis], *shape[axis + 1 :]))
            return some
    return call.emit(Gather(axis), x, indices)


def _gather_elements(call: Call) -> Outputs:
    x = call.operand(0)
    axis = call.axis(call.integer("axis", 0), len(x.shape))
    return call.emit(GatherElements(axis), x, call.operand(1))


def _trilu(call: Call) -> Outputs:
    x = call.operand(0)
    if len(x.shape) < 2:
        raise call.refuse(f"expected matrices, got {x.type_text}")
    call.check_made(x.shape[-2:])
    k = 0 if call.optional(1) is None else int(call.scalar(1, "k"))
    ones = np.ones(x.shape[-2:], bool)
    kept = call.value(np.triu(ones, k) if call.integer("upper", 1) else np.tril(ones, k))
    return call.map(lambda v, keep: select(keep, v, Const(0, v.dtype)), x, kept)


def _one_hot(call: Call) -> Outputs:
    indices, values = call.operand(0), call.operand(2)
    depth = int(call.scalar(1, "depth"))
    call.check_made([max(depth, -1)])
    axis = call.axis(call.integer("axis", -1), len(indices.shape) + 1)
    column = call.reshape(indices, (*indices.shape[:axis], 1, *indices.shape[axis:]))
    places = np.arange(depth).reshape(-1, *[1] * (len(indices.shape) - axis))
    off, on = (call.reshape(call.part(values, 0, i, 1), ()) for i in range(2))

    def rule(index: Expr, place: Expr, low: Expr, high: Expr) -> Expr:
        whole = index.astype("int64")
        counted = select(whole < 0, whole + depth, whole)
        return select(counted.equal(place), high, low)

    return call.map(rule, column, call.value(places, "int64"), off, on)


def _pad(call: Call) -> Outputs:
    x = call.operand(0)
    rank = len(x.shape)
    pads = call.integers_of(1, "pads")
    if pads is None:
        raise call.refuse("expected pads")
    axes = call.integers_of(3, "axes")
    axes = list(range(rank)) if axes is None else [call.axis(a, rank) for a in axes]
    if len(pads) != 2 * len(axes):
        raise call.refuse(f"expected {2 * len(axes)} pads, got {pads}")
    spread = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        spread[axis], spread[axis + rank] = pads[i], pads[i + len(axes)]
    mode = call.text("mode", "constant")
    if mode != "constant":
        return call.emit(Pad(mode, tuple(spread)), x)
    value = call.optional(2)
    if value is None:
        value = call.value(call.number("value", 0.0), x.dtype)
    return call.emit(Pad(mode, tuple(spread)), x, call.reshape(value, ()))


def _expand(call: Call) -> Outputs:
    x = call.operand(0)
    shape = call.integers_of(1, "shape") or []
    call.check_made(shape)
    ones = call.value(np.zeros(shape, x.dtype))
    return call.map(lambda a, _: a, x, ones)


def _tile(call: Call) -> Outputs:
    x = call.operand(0)
    repeats = call.integers_of(1, "repeats") or []
    if len(repeats) != len(x.shape) or min(repeats, default=1) < 1:
        raise call.refuse(f"expected {len(x.shape)} repeats >= 1, got {repeats}")
    grown = [n * (r - 1) for n, r in zip(x.shape, repeats, strict=True)]
    return call.emit(Pad("wrap", (*(0 for _ in grown), *grown)), x)


def _shape(call: Call) -> Outputs:
    x = call.operand(0)
    rank = len(x.shape)
    part = slice(call.integer("start", 0), call.integer("end", rank))
    return call.emit(Identity(), call.value(x.shape[part], "int64"))


def _constant_of_shape(call: Call) -> Outputs:
    shape = call.integers_of(0, "shape") or []
    call.check_made(shape)
    filled = call.attributes.get("value")
    value: Tensor
    if filled is None:
        value = call.value(np.zeros(shape, np.float32))
    else:
        if not isinstance(filled, onnx.TensorProto) or math.prod(filled.dims) != 1:
            raise call.refuse("expected a value of one element")
        scalar = numpy_helper.to_array(filled)
        dtype_of(call, filled.data_type)
        value = call.value(np.full(shape, scalar.reshape(-1)[0], scalar.dtype))
    return call.emit(Identity(), value)


def _range(call: Call) -> Outputs:
    start, limit, delta = (call.scalar(i, n) for i, n in enumerate(("start", "limit", "delta")))
    if not delta:
        raise call.refuse("expected a delta other than 0")
    call.check_made([math.ceil(max(0, (limit - start) / delta))])
    return call.emit(Identity(), call.value(np.arange(start, limit, delta), call.operand(0).dtype))


READERS: dict[str, Reader] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "OneHot": _one_hot,
    "Trilu": _trilu,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": lambda call: call.emit(
        Identity(), call.value(math.prod(call.operand(0).shape), "int64")
    ),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
