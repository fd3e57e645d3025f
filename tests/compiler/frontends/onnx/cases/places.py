"""Operators that write to places, order elements, or read between them."""

from __future__ import annotations

import math

import numpy as np

from .draw import Draw, Maker, Operand, Sample, constant, dtypes_of

#: Reductions of scattered updates; without one, no place is named twice.
JOINS = ("none", "add", "mul", "max", "min")


def _numbers(d: Draw, kind: str) -> str:
    return d.choice([t for t in dtypes_of(kind) if t != "bool"])


def _scattered(d: Draw) -> tuple[str, str]:
    """A reduction, and a dtype for it."""
    return d.choice(JOINS), d.choice(("float32", "float32", "int32", "int64", "float64"))


def _unique_places(d: Draw, count: int, size: int) -> np.ndarray:
    return d.rng.choice(size, count, replace=False)


def _gather_nd(d: Draw) -> Sample:
    shape = d.shape(1, 4)
    batch = d.integer(0, len(shape) - 1)
    depth = d.integer(1, len(shape) - batch)
    sizes = (*shape[:batch], *d.shape(0, 2, 3))
    columns = [d.rng.integers(-n, n, sizes) for n in shape[batch : batch + depth]]
    indices = d.operand(np.stack(columns, -1), "int64")
    x = d.value(shape, d.dtype("GatherND"))
    return Sample("GatherND", [x, indices], {"batch_dims": batch})


def _scatter_nd(d: Draw) -> Sample:
    join, dtype = _scattered(d)
    shape = d.shape(1, 4, 4)
    depth = d.integer(1, len(shape))
    size = math.prod(shape[:depth])
    count = d.integer(1, min(size, 5))
    if join == "none":
        places = _unique_places(d, count, size)
    else:
        places = d.rng.integers(0, size, count)
    indices = np.stack(np.unravel_index(places, shape[:depth]), -1)
    indices -= d.rng.integers(0, 2, indices.shape) * np.array(shape[:depth])
    updates = d.value((count, *shape[depth:]), dtype)
    operands = [d.value(shape, dtype), d.weight(indices, "int64"), updates]
    return Sample("ScatterND", operands, {"reduction": join})


def _scatter_elements(d: Draw, kind: str = "ScatterElements") -> Sample:
    join, dtype = _scattered(d)
    join = "none" if kind == "Scatter" else join
    shape = d.shape(1, 3, 4)
    axis = d.integer(0, len(shape) - 1)
    inner = [d.integer(1, n) for n in shape]
    if join == "none":
        whole = np.argsort(d.rng.uniform(size=shape), axis)
        indices = whole[tuple(slice(0, n) for n in inner)]
    else:
        inner[axis] = d.integer(1, 6)
        indices = d.rng.integers(-shape[axis], shape[axis], inner)
    updates = d.value(indices.shape, dtype)
    operands = [d.value(shape, dtype), d.weight(indices, "int64"), updates]
    attributes = {"axis": axis} if kind == "Scatter" else {"axis": axis, "reduction": join}
    opset = 10 if kind == "Scatter" else 18
    return Sample(kind, operands, attributes, opset=opset)


def _max_unpool(d: Draw) -> Sample:
    """Maxima of windows that do not overlap, each anywhere in its window."""
    kernel, size = (d.integer(1, 3), d.integer(1, 3)), (d.integer(1, 4), d.integer(1, 4))
    n, c = d.integer(1, 2), d.integer(1, 3)
    whole = (n, c, size[0] * kernel[0], size[1] * kernel[1])
    places = np.arange(math.prod(whole)).reshape(n, c, size[0], kernel[0], size[1], kernel[1])
    windows = places.transpose(0, 1, 2, 4, 3, 5).reshape(n, c, *size, -1)
    chosen = d.rng.integers(0, windows.shape[-1], (*windows.shape[:-1], 1))
    indices = np.take_along_axis(windows, chosen, -1)[..., 0]
    operands = [d.value((n, c, *size)), d.operand(indices, "int64")]
    return Sample("MaxUnpool", operands, {"kernel_shape": kernel, "strides": kernel})


def _col2im(d: Draw) -> Sample:
    image, kernel = (d.integer(4, 7), d.integer(4, 7)), (d.integer(1, 3), d.integer(1, 3))
    steps, pads = (d.integer(1, 2), d.integer(1, 2)), [d.integer(0, 2) for _ in range(4)]
    dilations = (1, 1)
    counts = [(image[i] + pads[i] + pads[i + 2] - kernel[i]) // steps[i] + 1 for i in range(2)]
    x = d.value((d.integer(1, 2), d.integer(1, 3) * math.prod(kernel), math.prod(counts)))
    attributes = {"strides": steps, "pads": pads, "dilations": dilations}
    return Sample("Col2Im", [x, constant(image), constant(kernel)], attributes)


def _cum_sum(d: Draw) -> Sample:
    x = d.value(d.shape(1, 4), _numbers(d, "CumSum"))
    axis = constant(d.axis(x.array.ndim), d.choice(("int32", "int64")))
    attributes = {"exclusive": d.integer(0, 1), "reverse": d.integer(0, 1)}
    return Sample("CumSum", [x, axis], attributes)


def _top_k(d: Draw) -> Sample:
    shape = d.shape(1, 3)
    axis = d.axis(len(shape))
    x = d.value(shape, d.choice(("float32", "float64", "int64", "int32")))
    count = constant([d.integer(1, shape[axis])])
    return Sample("TopK", [x, count], {"axis": axis, "largest": d.integer(0, 1)}, outputs=2)


def _reverse_sequence(d: Draw) -> Sample:
    shape, time = d.shape(2, 4), d.integer(0, 1)
    lengths = d.rng.integers(1, shape[time] + 1, shape[1 - time])
    x = d.value(shape, d.dtype("ReverseSequence"))
    attributes = {"time_axis": time, "batch_axis": 1 - time}
    return Sample("ReverseSequence", [x, d.operand(lengths, "int64")], attributes)


def _compress(d: Draw) -> Sample:
    shape = d.shape(1, 3)
    attributes = {"axis": d.axis(len(shape))} if d.flag() else {}
    size = shape[attributes["axis"]] if attributes else math.prod(shape)
    chosen = d.rng.integers(0, 2, d.integer(1, size)).astype(bool)
    chosen[d.integer(0, len(chosen) - 1)] = True
    x = d.value(shape, d.dtype("Compress"))
    return Sample("Compress", [x, constant(chosen, "bool")], attributes)


def _known(d: Draw) -> Operand:
    """A constant some of whose elements are equal, and some 0."""
    dtype = d.choice(("float32", "int64"))
    return constant(d.rng.integers(-1, 3, d.shape(1, 3)).astype(dtype), dtype)


def _non_zero(d: Draw) -> Sample:
    x = _known(d)
    x.array.reshape(-1)[0] = 1
    return Sample("NonZero", [x])


def _unique(d: Draw) -> Sample:
    x = _known(d)
    attributes = {"axis": d.axis(x.array.ndim)} if d.flag() else {}
    return Sample("Unique", [x], attributes | {"sorted": d.integer(0, 1)}, outputs=4)


def _eye_like(d: Draw) -> Sample:
    x = d.value(d.shape(2, 2), d.choice(("float32", "int64", "float64", "int32")))
    return Sample("EyeLike", [x], {"k": d.integer(-3, 3)})


def _grid_sample(d: Draw) -> Sample:
    rank = 2
    x = d.array((d.integer(1, 2), d.integer(1, 3), *[d.integer(2, 6) for _ in range(rank)]))
    grid = d.rng.uniform(-1.3, 1.3, (x.shape[0], d.integer(1, 4), d.integer(1, 4), rank))
    attributes = {
        "mode": d.choice(("linear", "nearest", "cubic")),
        "padding_mode": d.choice(("zeros", "border", "reflection")),
        "align_corners": d.integer(0, 1),
    }
    return Sample("GridSample", [d.operand(x), d.operand(grid, "float32")], attributes, opset=20)


EQUATIONS = (
    "ij,jk->ik", "bij,bjk->bik", "ij->ji", "ii->i", "ij->", "i,i", "ij,ij->i", "bhid,bhjd->bhij",
    "...ij,...jk->...ik", "i,j->ij", "ij,jk,kl->il", "abc->cb", "bii->bi", "ij,kj",
)  # fmt: skip


def _einsum(d: Draw) -> Sample:
    equation = d.choice(EQUATIONS)
    sizes: dict[str, int] = {}
    operands = []
    for term in equation.partition("->")[0].split(","):
        shape = []
        if "..." in term:
            shape += [sizes.setdefault(f".{i}", d.integer(1, 3)) for i in range(2)]
        shape += [sizes.setdefault(c, d.integer(1, 5)) for c in term.replace("...", "")]
        operands.append(d.value(shape))
    return Sample("Einsum", operands, {"equation": equation})


MAKERS: dict[str, Maker] = {
    "Col2Im": _col2im,
    "Compress": _compress,
    "CumSum": _cum_sum,
    "Einsum": _einsum,
    "EyeLike": _eye_like,
    "GatherND": _gather_nd,
    "GridSample": _grid_sample,
    "MaxUnpool": _max_unpool,
    "NonZero": _non_zero,
    "ReverseSequence": _reverse_sequence,
    "Scatter": lambda d: _scatter_elements(d, "Scatter"),
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TopK": _top_k,
    "Unique": _unique,
}
