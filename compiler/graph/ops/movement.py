"""Operators that move elements of any dtype to other positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ... import topi
from ...te.expr import FLOAT_DTYPES, INT_DTYPES, Expr
from ...te.tensor import Tensor
from .base import Elementwise, Expression, Fusion, Op, Shape, Type, expect, one_dtype, operands


@dataclass(frozen=True)
class Identity(Elementwise):
    """The input itself."""

    fusion = Fusion.ALIAS
    moves = True

    def infer(self, *types: Type) -> Type:
        [only] = operands(types, 1)
        return only

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return args[0]

    def element(self, x: Expr) -> Expr:
        return x


@dataclass(frozen=True)
class Reshape(Op):
    """The same elements in the same order with another shape."""

    shape: Shape

    fusion = Fusion.ALIAS
    moves = True

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = operands(types, 1)
        as_many = min(self.shape, default=1) >= 0 and math.prod(self.shape) == math.prod(shape)
        expect(as_many, f"as many elements as {list(self.shape)}")
        return self.shape, dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return args[0].reshape(self.shape)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        return Expression(topi.reshape(inputs[0], self.shape), tuple(inputs))


@dataclass(frozen=True)
class Transpose(Op):
    """Dimension i of the result is dimension ``order[i]`` of the operand."""

    order: tuple[int, ...]

    moves = True

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = operands(types, 1)
        expect(sorted(self.order) == list(range(len(shape))), f"an order of {len(shape)} axes")
        return tuple(shape[axis] for axis in self.order), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(args[0].transpose(self.order)).reshape(
            [args[0].shape[axis] for axis in self.order]
        )

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        return Expression(topi.transpose(inputs[0], self.order, shapes[0]), tuple(inputs))


@dataclass(frozen=True)
class Slice(Op):
    """Element i of each dimension is element ``start + i * step`` of the operand; steps may be
    negative."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]
    shape: Shape

    moves = True

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = operands(types, 1)
        ranks = {len(self.starts), len(self.steps), len(self.shape), len(shape)}
        expect(len(ranks) == 1, f"starts, steps and a shape of {len(shape)} dimensions")
        for start, step, count, size in zip(
            self.starts, self.steps, self.shape, shape, strict=True
        ):
            last = start + (count - 1) * step
            inside = count == 0 or (0 <= start < size and 0 <= last < size)
            expect(inside, f"indices inside {list(shape)}")
        return self.shape, dtype

    def find_together(self, shape: Shape) -> int | None:
        """Where the result begins, in elements of an operand of this shape, if it consists of
        elements that follow one another there; else None."""
        cut = [axis for axis, size in enumerate(shape) if size != self.shape[axis]]
        axis = cut[0] if cut else 0
        alone = all(size == 1 for size in shape[:axis]) and len(cut) <= 1
        steps = [step for step, size in zip(self.steps, self.shape, strict=True) if size > 1]
        if not alone or 0 in self.shape or any(step != 1 for step in steps):
            return None
        return self.starts[axis] * math.prod(shape[axis + 1 :]) if cut else 0

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        parts = zip(self.starts, self.steps, self.shape, strict=True)
        positions = [start + step * np.arange(count) for start, step, count in parts]
        return args[0][np.ix_(*positions)] if positions else args[0]

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        out = topi.strided_slice(inputs[0], self.starts, self.steps, self.shape)
        return Expression(out, tuple(inputs))


@dataclass(frozen=True)
class Concat(Op):
    """The operands one after another along an axis."""

    axis: int

    computes = False

    def infer(self, *types: Type) -> Type:
        expect(len(types) > 0, "operands")
        dtype = one_dtype(types)
        axis, first = self.axis, types[0][0]
        expect(0 <= axis < len(first), f"an axis below {len(first)}")
        rests = {(s[:axis], s[axis + 1 :]) for s, _ in types}
        expect(len(rests) == 1, f"shapes that are equal but in axis {axis}")
        return (*first[:axis], sum(s[axis] for s, _ in types), *first[axis + 1 :]), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return np.concatenate(args, axis=self.axis)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        filled = [x for x, shape in zip(inputs, shapes, strict=True) if 0 not in shape]
        return Expression(topi.concat(filled or inputs, self.axis), tuple(inputs))


@dataclass(frozen=True)
class ReplaceEnd(Op):
    """The first operand with its last elements along an axis replaced by the second operand."""

    axis: int

    computes = False

    def infer(self, *types: Type) -> Type:
        (whole, _), (part, _) = operands(types, 2)
        dtype, axis = one_dtype(types), self.axis
        expect(0 <= axis < len(whole) == len(part), f"an axis below {len(whole)}")
        alike = (whole[:axis], whole[axis + 1 :]) == (part[:axis], part[axis + 1 :])
        expect(alike and part[axis] <= whole[axis], f"a part of {list(whole)} along axis {axis}")
        return whole, dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        whole, part = args
        kept = whole.shape[self.axis] - part.shape[self.axis]
        return np.concatenate([whole.take(range(kept), self.axis), part], self.axis)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        (whole, part), axis = shapes, self.axis
        kept = (*whole[:axis], whole[axis] - part[axis], *whole[axis + 1 :])
        if not kept[axis]:
            return Expression(topi.concat([inputs[1]], axis), tuple(inputs))
        first = topi.strided_slice(inputs[0], (0,) * len(whole), (1,) * len(whole), kept)
        return Expression(topi.concat([first, inputs[1]], axis), tuple(inputs))


@dataclass(frozen=True)
class Pad(Op):
    """The first operand with a border: "constant" (the second operand), "edge", "reflect" or
    "wrap". ``pads`` lists the padding before every dimension, then the padding after every
    dimension; negative padding cuts elements off."""

    mode: str
    pads: tuple[int, ...]

    computes = False

    def infer(self, *types: Type) -> Type:
        shape, dtype = types[0]
        expect(len(self.pads) == 2 * len(shape), f"pads of {len(shape)} dimensions")
        if self.mode == "constant":
            expect(len(types) == 2 and types[1] == ((), dtype), f"a scalar {dtype} to pad with")
        else:
            expect(len(types) == 1, "one operand")
            known = self.mode in ("edge", "reflect", "wrap") and math.prod(shape) > 0
            expect(known, "elements to repeat")
        result = tuple(b + n + a for b, n, a in zip(self.before, shape, self.after, strict=True))
        expect(min(result, default=1) >= 0, "pads that leave no negative size")
        return result, dtype

    @property
    def before(self) -> tuple[int, ...]:
        """Elements at the beginning of every dimension."""
        return self.pads[: len(self.pads) // 2]

    @property
    def after(self) -> tuple[int, ...]:
        """Elements at the end of every dimension."""
        return self.pads[len(self.pads) // 2 :]

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x = args[0]
        positions = [
            np.arange(-before, size + after)
            for before, size, after in zip(self.before, x.shape, self.after, strict=True)
        ]
        if not positions:
            return x
        if self.mode != "constant":
            inside = [_repeated(self.mode, p, n) for p, n in zip(positions, x.shape, strict=True)]
            return x[np.ix_(*inside)]
        result = np.full([len(p) for p in positions], args[1], x.dtype)
        kept = [(p >= 0) & (p < n) for p, n in zip(positions, x.shape, strict=True)]
        sources = [p[k] for p, k in zip(positions, kept, strict=True)]
        result[np.ix_(*kept)] = x[np.ix_(*sources)]
        return result

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        (shape, *_), value = shapes, inputs[1] if self.mode == "constant" else None
        out = tuple(b + n + a for b, n, a in zip(self.before, shape, self.after, strict=True))
        if value is not None and 0 in shape:
            return Expression(topi.over(out, lambda _: value[0]), tuple(inputs))
        return Expression(topi.pad(inputs[0], self.mode, self.before, out, value), tuple(inputs))


def _repeated(mode: str, place: np.ndarray, size: int) -> np.ndarray:
    """The positions inside whose elements are repeated at positions beyond either end."""
    match mode:
        case "edge":
            return np.clip(place, 0, size - 1)
        case "wrap":
            return place % size
    period = max(2 * (size - 1), 1)
    inside = place % period
    return np.minimum(inside, np.minimum(period - inside, size - 1))


@dataclass(frozen=True)
class Gather(Op):
    """Along an axis of the first operand, the elements that the second names; negative indices
    count from the end, and indices wrap, so that no memory beyond the operand is read."""

    axis: int

    moves = True

    def infer(self, *types: Type) -> Type:
        (shape, dtype), (indices, index_dtype) = operands(types, 2)
        expect(index_dtype in INT_DTYPES, "integer indices")
        expect(self.axis < len(shape), f"an axis below {len(shape)}")
        expect(shape[self.axis] > 0 or math.prod(indices) == 0, "elements to gather")
        return (*shape[: self.axis], *indices, *shape[self.axis + 1 :]), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, indices = args
        return np.take(x, _wrapped(indices, x.shape[self.axis]), axis=self.axis)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        out = topi.gather(inputs[0], inputs[1], self.axis, shapes[0], shapes[1])
        return Expression(out, tuple(inputs))


def _wrapped(indices: np.ndarray, size: int) -> np.ndarray:
    """Indices as int32 numbers modulo the size, as the expressions have them."""
    return indices.astype(np.int32).astype(np.int64) % max(size, 1)


@dataclass(frozen=True)
class GatherElements(Op):
    """For every index of the second operand, the element of the first at that index, but with the
    number that the second operand has there as its index along ``axis``; numbers are as in
    :class:`Gather`."""

    axis: int

    computes = False

    def infer(self, *types: Type) -> Type:
        (shape, dtype), (indices, index_dtype) = operands(types, 2)
        expect(index_dtype in INT_DTYPES, "integer indices")
        axis = self.axis
        inside = len(shape) == len(indices) and all(
            i <= n for d, (i, n) in enumerate(zip(indices, shape, strict=True)) if d != axis
        )
        expect(inside and axis < len(shape), f"indices inside the shape but in axis {axis}")
        expect(shape[axis] > 0 or math.prod(indices) == 0, "elements to gather")
        return indices, dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, indices = args
        positions: list[np.ndarray] = list(np.indices(indices.shape, sparse=True))
        positions[self.axis] = _wrapped(indices, x.shape[self.axis])
        return x[tuple(positions)]

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        return Expression(topi.gather_elements(inputs[0], inputs[1], self.axis), tuple(inputs))


@dataclass(frozen=True)
class Interpolate(Op):
    """Along an axis, weighted sums of elements: ``y[i] = sum over t of weights[i, t] *
    x[taps[i, t]]``. Taps are int64, weights have x's dtype; both are [size, T]."""

    axis: int

    def infer(self, *types: Type) -> Type:
        (shape, dtype), (taps, taps_dtype), (weights, weights_dtype) = operands(types, 3)
        expect(taps_dtype == "int64" and weights_dtype == dtype, "int64 taps and weights of x's")
        expect(dtype in FLOAT_DTYPES, "floats to interpolate")
        expect(len(taps) == 2 and taps == weights, "as many taps as weights")
        return (*shape[: self.axis], taps[0], *shape[self.axis + 1 :]), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, taps, weights = args
        seen = np.take(x, _wrapped(taps, x.shape[self.axis]), axis=self.axis).astype(np.float64)
        after = [1] * (x.ndim - 1 - self.axis)
        return (seen * weights.reshape(*weights.shape, *after)).sum(self.axis + 1).astype(x.dtype)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        return Expression(
            topi.interpolate(inputs[0], inputs[1], inputs[2], self.axis), tuple(inputs)
        )
