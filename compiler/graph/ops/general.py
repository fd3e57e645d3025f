"""General operators, of any rank and dtype: what every other operator of a model is made of.

Importers write a model's operators as a few of these; each has one meaning, a tensor expression in
``topi/primitives.py``. Spatial operators take [N, C, D1, ..., Dn]; ``pads`` and ``Pad`` list what
precedes every dimension, then what follows it. A ``Map``'s arithmetic is part of the node itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...te.expr import FLOAT_DTYPES, INT_DTYPES, Expr, Var
from .integer import Op

Shape = tuple[int, ...]
Type = tuple[Shape, str]


class Misfit(Exception):
    """The operands do not fit: what was expected."""


class Primitive(Op):
    """Base of the general operators."""

    def infer(self, *types: Type) -> Type:
        """Shape and dtype of the result; raises :class:`Misfit`, saying what was expected."""
        raise NotImplementedError


def broadcast(*shapes: Shape) -> Shape:
    """The common shape, by NumPy's rules; sizes may be 0."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wanted = {size for size in sizes if size != 1}
        if len(wanted) > 1:
            raise Misfit("shapes that broadcast")
        result.append(wanted.pop() if wanted else 1)
    return tuple(result)


def _expect(condition: bool, expected: str) -> None:
    if not condition:
        raise Misfit(expected)


def _same_dtype(types: Sequence[Type]) -> str:
    _expect(len({dtype for _, dtype in types}) == 1, "operands of one dtype")
    return types[0][1]


@dataclass(frozen=True, eq=False)
class Map(Primitive):
    """``body`` for every element, where ``args`` stand for the operands' elements (broadcast).

    ``label`` names the operator that it was made of.
    """

    label: str
    args: tuple[Var, ...]
    body: Expr

    def infer(self, *types: Type) -> Type:
        wanted = tuple(arg.dtype for arg in self.args)
        _expect(tuple(dtype for _, dtype in types) == wanted, f"operands {', '.join(wanted)}")
        return broadcast(*(shape for shape, _ in types)), self.body.dtype


@dataclass(frozen=True)
class Reduce(Primitive):
    """Sum, product, minimum or maximum (``kind`` "+", "*", "min", "max") over ``axes``, which keep
    size 1 if ``keepdims``."""

    kind: str
    axes: tuple[int, ...]
    keepdims: bool

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = types
        _expect(set(self.axes) <= set(range(len(shape))), f"axes {list(self.axes)}")
        _expect(dtype != "bool", "numbers")
        return _reduced(shape, self.axes, self.keepdims), dtype


@dataclass(frozen=True)
class ArgReduce(Primitive):
    """int64 index of the smallest or largest element ("min", "max") along an axis; the first of
    equal ones, or the last."""

    kind: str
    axis: int
    keepdims: bool
    last: bool

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = types
        _expect(self.axis < len(shape) and shape[self.axis] > 0, f"elements on axis {self.axis}")
        _expect(dtype != "bool", "numbers")
        return _reduced(shape, (self.axis,), self.keepdims), "int64"


def _reduced(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    return tuple(
        1 if axis in axes else size
        for axis, size in enumerate(shape)
        if keepdims or axis not in axes
    )


@dataclass(frozen=True)
class MatMul(Primitive):
    """Matrix product over the last two dimensions, the others broadcast; integers wrap."""

    def infer(self, *types: Type) -> Type:
        (a, _), (b, _) = types
        dtype = _same_dtype(types)
        _expect(dtype != "bool", "numbers")
        matrices = len(a) >= 2 and len(b) >= 2
        _expect(matrices and a[-1:] == b[-2:-1], "matrices that can be multiplied")
        return (*broadcast(a[:-2], b[:-2]), *a[-2:-1], *b[-1:]), dtype


@dataclass(frozen=True)
class Convolution(Primitive):
    """x [N, C, ...], weight [OC, C/groups, ...]; elements beyond the border are 0."""

    strides: Shape
    pads: Shape
    dilations: Shape
    groups: int

    def infer(self, *types: Type) -> Type:
        (x, _), (weight, _) = types
        dtype = _same_dtype(types)
        _expect(len(x) == len(weight) >= 3, "an image and a weight of one rank, at least 3")
        groups = self.groups
        fits = groups >= 1 and x[1] == weight[1] * groups and weight[0] % groups == 0
        _expect(fits, f"channels that divide into {groups} groups")
        size = windows(x[2:], weight[2:], self.strides, self.pads, self.dilations)
        return (x[0], weight[0], *size), dtype


@dataclass(frozen=True)
class ConvolutionTranspose(Primitive):
    """x [N, C, ...], weight [C, OC/groups, ...]: each element spreads over a window of the result,
    of spatial shape ``size``, whose first ``before`` places are cut off."""

    strides: Shape
    before: Shape
    dilations: Shape
    groups: int
    size: Shape

    def infer(self, *types: Type) -> Type:
        (x, _), (weight, _) = types
        dtype = _same_dtype(types)
        _expect(len(x) == len(weight) >= 3, "an image and a weight of one rank, at least 3")
        fits = self.groups >= 1 and x[1] == weight[0] and x[1] % self.groups == 0
        _expect(fits, f"channels that divide into {self.groups} groups")
        _expect(len(self.size) == len(x) - 2 and min(self.size) >= 1, "a result with elements")
        return (x[0], weight[1] * self.groups, *self.size), dtype


@dataclass(frozen=True)
class Pool(Primitive):
    """Sum or maximum ("+", "max") over windows; what lies beyond the border does not count."""

    kind: str
    kernel: Shape
    strides: Shape
    pads: Shape
    dilations: Shape

    def infer(self, *types: Type) -> Type:
        [(x, dtype)] = types
        _expect(len(x) == len(self.kernel) + 2, f"rank {len(self.kernel) + 2}")
        return (*x[:2], *windows(x[2:], self.kernel, self.strides, self.pads, self.dilations)), (
            dtype
        )


@dataclass(frozen=True)
class PoolArg(Primitive):
    """int64 index, in the whole row-major tensor, of the first largest element of each window.

    ``column_major``: the spatial part of the index counts the first dimension fastest; which of
    equal elements is the first, the row-major order says all the same.
    """

    pool: Pool
    column_major: bool = False

    def infer(self, *types: Type) -> Type:
        return self.pool.infer(*types)[0], "int64"


def windows(
    size: Shape, kernel: Shape, strides: Shape, pads: Shape, dilations: Shape
) -> tuple[int, ...]:
    """Positions of a window along every dimension."""
    rank = len(size)
    _expect(
        len(kernel) == len(strides) == len(dilations) == rank and len(pads) == 2 * rank,
        f"kernel, strides, dilations and pads of {rank} dimensions",
    )
    _expect(min(*kernel, *strides, *dilations) >= 1, "kernel, strides and dilations >= 1")
    counts = tuple(
        (size[i] + pads[i] + pads[i + rank] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1
        for i in range(rank)
    )
    _expect(min(counts) >= 1, f"an image that holds the window {list(kernel)}")
    return counts


@dataclass(frozen=True)
class Transpose(Primitive):
    """Dimension i of the result is dimension ``order[i]`` of the operand."""

    order: tuple[int, ...]

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = types
        _expect(sorted(self.order) == list(range(len(shape))), f"an order of {len(shape)} axes")
        return tuple(shape[axis] for axis in self.order), dtype


@dataclass(frozen=True)
class Slice(Primitive):
    """Element i of each dimension is element ``start + i * step`` of the operand; steps may be
    negative."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]
    shape: Shape

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = types
        ranks = {len(self.starts), len(self.steps), len(self.shape), len(shape)}
        _expect(len(ranks) == 1, f"starts, steps and a shape of {len(shape)} dimensions")
        for start, step, count, size in zip(
            self.starts, self.steps, self.shape, shape, strict=True
        ):
            last = start + (count - 1) * step
            inside = count == 0 or (0 <= start < size and 0 <= last < size)
            _expect(inside, f"indices inside {list(shape)}")
        return self.shape, dtype


@dataclass(frozen=True)
class Concat(Primitive):
    """The operands one after another along an axis."""

    axis: int

    def infer(self, *types: Type) -> Type:
        dtype = _same_dtype(types)
        axis, first = self.axis, types[0][0]
        _expect(0 <= axis < len(first), f"an axis below {len(first)}")
        rests = {(s[:axis], s[axis + 1 :]) for s, _ in types}
        _expect(len(rests) == 1, f"shapes that are equal but in axis {axis}")
        return (*first[:axis], sum(s[axis] for s, _ in types), *first[axis + 1 :]), dtype


@dataclass(frozen=True)
class Pad(Primitive):
    """The first operand in a border: "constant" (of the second operand), "edge", "reflect" or
    "wrap". Negative pads cut off."""

    mode: str
    pads: tuple[int, ...]

    def infer(self, *types: Type) -> Type:
        shape, dtype = types[0]
        _expect(len(self.pads) == 2 * len(shape), f"pads of {len(shape)} dimensions")
        before, after = self.pads[: len(shape)], self.pads[len(shape) :]
        if self.mode == "constant":
            _expect(len(types) == 2 and types[1] == ((), dtype), f"a scalar {dtype} to pad with")
        else:
            _expect(len(types) == 1, "one operand")
            known = self.mode in ("edge", "reflect", "wrap") and math.prod(shape) > 0
            _expect(known, "elements to repeat")
        result = tuple(b + n + a for b, n, a in zip(before, shape, after, strict=True))
        _expect(min(result, default=1) >= 0, "pads that leave no negative size")
        return result, dtype


@dataclass(frozen=True)
class Gather(Primitive):
    """Along an axis of the first operand, the elements that the second names; negative indices
    count from the end, and indices wrap, so that no memory beyond the operand is read."""

    axis: int

    def infer(self, *types: Type) -> Type:
        (shape, dtype), (indices, index_dtype) = types
        _expect(index_dtype in INT_DTYPES, "integer indices")
        _expect(self.axis < len(shape), f"an axis below {len(shape)}")
        _expect(shape[self.axis] > 0 or math.prod(indices) == 0, "elements to gather")
        return (*shape[: self.axis], *indices, *shape[self.axis + 1 :]), dtype


@dataclass(frozen=True)
class GatherElements(Primitive):
    """For every place of the second operand, the element of the first whose index along the axis
    is the number there, and elsewhere the place's; numbers as in :class:`Gather`."""

    axis: int

    def infer(self, *types: Type) -> Type:
        (shape, dtype), (indices, index_dtype) = types
        _expect(index_dtype in INT_DTYPES, "integer indices")
        axis = self.axis
        inside = len(shape) == len(indices) and all(
            i <= n for d, (i, n) in enumerate(zip(indices, shape, strict=True)) if d != axis
        )
        _expect(inside and axis < len(shape), f"indices inside the shape but in axis {axis}")
        _expect(shape[axis] > 0 or math.prod(indices) == 0, "elements to gather")
        return indices, dtype


@dataclass(frozen=True)
class Interpolate(Primitive):
    """Along an axis, weighted sums of elements: ``y[i] = sum over t of weights[i, t] *
    x[taps[i, t]]``; taps int64 and weights of x's dtype, both [size, T]."""

    axis: int

    def infer(self, *types: Type) -> Type:
        (shape, dtype), (taps, taps_dtype), (weights, weights_dtype) = types
        _expect(taps_dtype == "int64" and weights_dtype == dtype, "int64 taps and weights of x's")
        _expect(dtype in FLOAT_DTYPES, "floats to interpolate")
        _expect(len(taps) == 2 and taps == weights, "as many taps as weights")
        return (*shape[: self.axis], taps[0], *shape[self.axis + 1 :]), dtype
