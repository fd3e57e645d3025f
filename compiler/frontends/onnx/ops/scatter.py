"""Operators that write elements to places that indices name, and GatherND, which reads there.

Tensors are rows, and places are row numbers. Where the places are constant, the result is gathered;
else every row of the result is compared with every place.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.movement import Concat, Gather, GatherElements
from ....te.expr import Const, Expr, maximum, minimum, select
from ....topi.reduction import neutral
from .call import Call, Outputs, Reader, ValueNeeded

Rule = Callable[[Expr, Expr], Expr]
#: How an update joins what is there: by ONNX's name, the rule and the reduction of several.
_JOINS: dict[str, tuple[Rule, str]] = {
    "add": (lambda a, b: a + b, "+"),
    "mul": (lambda a, b: a * b, "*"),
    "max": (maximum, "max"),
    "min": (minimum, "min"),
}


def _known(call: Call, tensor: Tensor) -> np.ndarray | None:
    try:
        return call.value_of(tensor, "index")
    except ValueNeeded:
        return None


def _places(call: Call, indices: Tensor, shape: tuple[int, ...], batch: Tensor | None) -> Tensor:
    """Row numbers of indices [..., K] into dimensions of these sizes, [...]; ``batch`` is added."""
    size = math.prod(shape)
    known = _known(call, indices)
    if known is not None:
        limits = np.array(shape)
        if ((known < -limits) | (known >= limits)).any():
            raise call.refuse(f"expected indices inside {list(shape)}")
    total = None
    for axis, n in enumerate(shape):
        column = call.part(indices, len(indices.shape) - 1, axis, 1)
        column = call.reshape(column, indices.shape[:-1])
        stride = math.prod(shape[axis + 1 :])

        def scaled(v: Expr, n: int = n, stride: int = stride) -> Expr:
            wide = v.astype("int64")
            return select(wide < 0, wide + n, wide) * stride

        part = call.map(scaled, column, label="Place")
        total = part if total is None else call.map(lambda a, b: a + b, total, part, label="Place")
    if total is None:
        total = call.value(np.zeros(indices.shape[:-1]), "int64")
    if batch is not None:
        total = call.map(lambda a, b: a + b * size, total, batch, label="Place")
    return total


def _flat(call: Call, x: Tensor) -> Tensor:
    return call.reshape(x, (math.prod(x.shape),))


def scattered(call: Call, rows: Tensor, updates: Tensor, places: Tensor, join: str) -> Tensor:
    """Rows [N, ...] with updates [M, ...] at ``places`` [M]; of several, the last one counts, or
    they join by "add", "mul", "max" or "min"."""
    if join not in ("none", *_JOINS):
        raise call.refuse(f"expected a reduction none, {', '.join(_JOINS)}, got {join!r}")
    if not places.shape[0]:
        return rows
    known = _known(call, places)
    if known is not None:
        return _gathered(call, rows, updates, known, join)
    count, number = rows.shape[0], places.shape[0]
    call.check_made((count, number, *(rows.shape[1:] if join != "none" else ())))
    own = call.value(np.arange(count).reshape(-1, 1), "int64")
    if join == "none":
        order = call.value(np.arange(1, number + 1), "int64")
        hit = call.map(
            lambda place, at, n: select(place.equal(at), n, Const(0, "int64")), places, own, order
        )
        last = call.reduce("max", hit, (1,))
        source = call.map(lambda n, at: select(n > 0, n + (count - 1), at), last, own)
        both = call.emit(Concat(0), rows, updates)
        return call.emit(Gather(0), both, call.reshape(source, (count,)))
    rule, kind = _JOINS[join]
    rank = len(rows.shape)
    spread = call.reshape(places, (1, number, *[1] * (rank - 1)))
    column = call.reshape(own, (count, 1, *[1] * (rank - 1)))
    nothing = neutral(kind, updates.dtype)
    chosen = call.map(
        lambda at, place, value: select(at.equal(place), value, nothing),
        column,
        spread,
        call.reshape(updates, (1, *updates.shape)),
    )
    return call.map(rule, rows, call.reduce(kind, chosen, (1,), keepdims=False), label="Scatter")


def _gathered(call: Call, rows: Tensor, updates: Tensor, places: np.ndarray, join: str) -> Tensor:
    count = rows.shape[0]
    if join == "none":
        source = np.arange(count)
        source[places] = count + np.arange(places.size)
        return call.gather(call.emit(Concat(0), rows, updates), source, 0)
    rule, _ = _JOINS[join]
    seen = np.zeros(count, np.int64)
    turns = np.zeros(places.size, np.int64)
    for m, place in enumerate(places):
        turns[m] = seen[place]
        seen[place] += 1
    for turn in range(int(turns.max()) + 1):
        chosen = np.flatnonzero(turns == turn)
        source, hit = np.zeros(count, np.int64), np.zeros(count, bool)
        source[places[chosen]], hit[places[chosen]] = chosen, True
        value = call.gather(updates, source, 0)
        where = call.value(hit.reshape(-1, *[1] * (len(rows.shape) - 1)))
        rows = call.map(
            lambda a, b, h: select(h, rule(a, b), a), rows, value, where, label="Scatter"
        )
    return rows


def _scatter_nd(call: Call) -> Outputs:
    x, indices, updates = (call.operand(i) for i in range(3))
    depth = indices.shape[-1] if indices.shape else 0
    expected = (*indices.shape[:-1], *x.shape[depth:])
    if not indices.shape or depth > len(x.shape) or updates.shape != expected:
        raise call.refuse(f"expected updates {list(expected)}, got {list(updates.shape)}")
    places = _flat(call, _places(call, indices, x.shape[:depth], None))
    rows = call.reshape(x, (math.prod(x.shape[:depth]), *x.shape[depth:]))
    given = call.reshape(updates, (places.shape[0], *x.shape[depth:]))
    made = scattered(call, rows, given, places, call.text("reduction", "none"))
    return call.reshape(made, x.shape)


def _scatter_elements(call: Call) -> Outputs:
    x, indices, updates = (call.operand(i) for i in range(3))
    axis = call.axis(call.integer("axis", 0), len(x.shape))
    inside = len(indices.shape) == len(x.shape) and all(
        a <= b for i, (a, b) in enumerate(zip(indices.shape, x.shape, strict=True)) if i != axis
    )
    if indices.shape != updates.shape or not inside or not x.shape:
        raise call.refuse(
            f"expected indices and updates of one shape inside {list(x.shape)} but in axis {axis},"
            f" got {list(indices.shape)} and {list(updates.shape)}"
        )
    grid = np.indices(indices.shape)
    strides = [math.prod(x.shape[i + 1 :]) for i in range(len(x.shape))]
    base = sum(grid[i] * stride for i, stride in enumerate(strides) if i != axis)
    column = call.reshape(indices, (*indices.shape, 1))
    along = _places(call, column, (x.shape[axis],), None)
    offset = call.value(np.broadcast_to(base, indices.shape), "int64")
    places = call.map(lambda a, b: a * strides[axis] + b, along, offset, label="Place")
    made = scattered(
        call, _flat(call, x), _flat(call, updates), _flat(call, places),
        call.text("reduction", "none"),
    )  # fmt: skip
    return call.reshape(made, x.shape)


def _gather_nd(call: Call) -> Outputs:
    x, indices = call.operand(0), call.operand(1)
    batch = call.integer("batch_dims", 0)
    depth = indices.shape[-1] if indices.shape else 0
    if not (0 <= batch < len(indices.shape) and batch + depth <= len(x.shape)):
        raise call.refuse(f"indices {list(indices.shape)} do not fit {list(x.shape)}")
    outer = math.prod(x.shape[:batch])
    shape = x.shape[batch : batch + depth]
    spread = (*x.shape[:batch], *[1] * (len(indices.shape) - 1 - batch))
    numbers = np.arange(outer).reshape(spread)
    first = call.value(numbers, "int64") if batch else None
    places = _places(call, indices, shape, first)
    rows = call.reshape(x, (outer * math.prod(shape), *x.shape[batch + depth :]))
    return call.emit(Gather(0), rows, places)


def _max_unpool(call: Call) -> Outputs:
    """Operand 1 has the places of the maxima in the flattened tensor that was pooled."""
    x, indices = call.operand(0), call.operand(1)
    kernel = call.attributes.get("kernel_shape", [])
    rank = len(x.shape) - 2
    if len(kernel) != rank:
        raise call.refuse(f"expected a kernel of {rank} dimensions, got {kernel}")
    strides, pads = call.integers("strides", (1,) * rank), call.integers("pads", (0,) * 2 * rank)
    call.check_made(indices.shape)
    sizes = [
        (n - 1) * s - pads[i] - pads[i + rank] + k
        for i, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    pooled = (*x.shape[:2], *sizes)
    shape = tuple(call.integers_of(2, "output shape") or pooled)
    if len(shape) != len(x.shape) or shape[:2] != x.shape[:2]:
        raise call.refuse(f"expected an output shape {list(x.shape[:2])} and {rank} sizes")
    call.check_made(shape)
    numbers = np.arange(math.prod(pooled)).reshape(pooled)
    moved = _flat(call, indices)
    if shape != pooled:
        inside = tuple(slice(0, min(a, b)) for a, b in zip(pooled, shape, strict=True))
        target = np.full(pooled, math.prod(shape))  # outside: nothing is written
        target[inside] = np.arange(math.prod(shape)).reshape(shape)[inside]
        moved = call.emit(Gather(0), call.value(target.reshape(numbers.size), "int64"), moved)
    zeros = call.value(np.zeros(math.prod(shape), x.dtype))
    return call.reshape(scattered(call, zeros, _flat(call, x), moved, "none"), shape)


def _col2im(call: Call) -> Outputs:
    x = call.operand(0)
    image = call.integers_of(1, "image shape") or []
    kernel, rank = call.integers_of(2, "block shape") or [], len(image)
    if len(kernel) != rank or min((*image, *kernel, 1)) < 1:
        raise call.refuse(f"expected an image and a block of as many sizes, got {image}, {kernel}")
    strides, dilations = (call.integers(n, (1,) * rank) for n in ("strides", "dilations"))
    pads = call.integers("pads", (0,) * 2 * rank)
    if min((*strides, *dilations, 1)) < 1 or min(pads, default=0) < 0:
        raise call.refuse(f"expected strides and dilations of at least 1, got {strides}, {pads}")
    padded = [n + pads[i] + pads[i + rank] for i, n in enumerate(image)]
    counts = [
        (n - ((k - 1) * d + 1)) // s + 1
        for n, k, d, s in zip(padded, kernel, dilations, strides, strict=True)
    ]
    taps, blocks = math.prod(kernel), math.prod(counts)
    call.check_made((*padded, taps))
    call.check_made(counts)
    if len(x.shape) != 3 or x.shape[1] % taps or x.shape[2] != blocks:
        raise call.refuse(f"expected [N, a multiple of {taps}, {blocks}], got {x.type_text}")
    channels = x.shape[0] * x.shape[1] // taps
    tap = np.indices(kernel).reshape(rank, taps, 1)
    block = np.indices(counts).reshape(rank, 1, blocks)
    at = [block[i] * strides[i] + tap[i] * dilations[i] for i in range(rank)]
    places = np.ravel_multi_index(at, padded).reshape(-1)
    rows = call.transpose(call.reshape(x, (channels, taps * blocks)), (1, 0))
    zeros = call.value(np.zeros((math.prod(padded), channels), x.dtype))
    made = _gathered(call, zeros, rows, places, "add")
    whole = call.reshape(call.transpose(made, (1, 0)), (channels, *padded))
    for i, n in enumerate(image):
        whole = call.part(whole, i + 1, pads[i], n)
    return call.reshape(whole, (x.shape[0], x.shape[1] // taps, *image))


def _tensor_scatter(call: Call) -> Outputs:
    """Rows of a cache that begin at each image's own place are replaced."""
    cache, update, first = call.operand(0), call.operand(1), call.optional(2)
    rank = len(cache.shape)
    axis = call.axis(call.integer("axis", -2), rank)
    mode = call.text("mode", "linear")
    fits = len(update.shape) == rank > 1 and axis > 0 and mode in ("linear", "circular")
    others = [a == b for i, (a, b) in enumerate(zip(cache.shape, update.shape)) if i != axis]  # noqa: B905
    if not fits or not all(others) or not 0 < update.shape[axis] <= cache.shape[axis]:
        raise call.refuse(
            f"expected an update that fits the cache but in axis {axis}, got {update.type_text} and"
            f" {cache.type_text}"
        )
    call.check_made(cache.shape)
    size, count, batch = cache.shape[axis], update.shape[axis], cache.shape[0]
    if first is None:
        first = call.value(np.zeros(batch), "int64")
    if first.shape != (batch,):
        raise call.refuse(f"expected {batch} places, got {first.type_text}")
    first = call.reshape(first, (batch, *[1] * (rank - 1)))
    shape = [size if i == axis else 1 for i in range(rank)]
    own = call.value(np.arange(size).reshape(shape), "int64")

    def source(at: Expr, i: Expr) -> Expr:
        place = i - at
        return select(place < 0, place + size, place) if mode == "circular" else place

    place = call.map(source, first, own, label="Place")
    moved = update
    if count > 1:
        everywhere = call.value(np.zeros(cache.shape, bool))
        index = call.map(
            lambda p, _: minimum(maximum(p, Const(0, "int64")), Const(count - 1, "int64")),
            place, everywhere,
        )  # fmt: skip
        moved = call.emit(GatherElements(axis), update, index)
    return call.map(
        lambda p, new, old: select((p < 0) | (Const(count - 1, "int64") < p), old, new),
        place, moved, cache,
    )  # fmt: skip


READERS: dict[str, Reader] = {
    "TensorScatter": _tensor_scatter,
    "Col2Im": _col2im,
    "GatherND": _gather_nd,
    "MaxUnpool": _max_unpool,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
