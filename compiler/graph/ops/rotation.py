"""Rotary position embedding on int8 tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...te.expr import Const, Expr
from ...te.tensor import Tensor, compute
from ..arithmetic.requant import Requant
from .base import Expression, Op, Shape, Type, expect, expect_dtypes
from .integer import finished


@dataclass(frozen=True, eq=False)
class QRotate(Op):
    """Rotary position embedding (Su et al. 2021) of heads along an axis, in halves: x, cos, sin
    int8 to int8 of x's shape.

    A head has ``width`` elements along ``axis``, and x has any number of heads there; cos and sin
    have one, and broadcast to x along the other axes. With h = ``width`` / 2::

        acc[k] = (x[k] - zero) * cos[k] + (x[(k + h) mod width] - zero) * sin[k]
        y[k] = requant(acc[k])

    so the first half of ``sin`` holds negative sines. ``requant`` has shape [1].
    """

    axis: int
    width: int
    zero: int
    requant: Requant

    def infer(self, *types: Type) -> Type:
        x, cos, sin = expect_dtypes(types, "int8", "int8", "int8")
        axis, width = self.axis, self.width
        expect(axis < len(x) and x[axis] % width == 0, f"heads of {width} along axis {axis}")
        expect(cos == sin and len(cos) <= len(x), "cos and sin of one shape, and at most x's rank")
        full = _of_rank(cos, len(x))
        wanted = [(width,) if d == axis else (1, n) for d, n in enumerate(x)]
        fits = all(size in legal for size, legal in zip(full, wanted, strict=True))
        expect(fits, f"cos and sin that broadcast to x, with {width} along axis {axis}")
        return x, "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, cos, sin = args
        axis, width, shape = self.axis, self.width, x.shape
        heads = (*shape[:axis], shape[axis] // width, width, *shape[axis + 1 :])
        centred = x.astype(np.int64).reshape(heads) - self.zero
        other = np.roll(centred, -(width // 2), axis=axis + 1)
        cos, sin = (
            np.expand_dims(part.astype(np.int64).reshape(_of_rank(part.shape, x.ndim)), axis)
            for part in (cos, sin)
        )
        acc = (centred * cos + other * sin).astype(np.int32)
        return self.requant.apply(acc.reshape(-1, 1)).reshape(shape)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, cos, sin = inputs
        axis, width = self.axis, self.width

        def rule(*at: Expr) -> Expr:
            def element(tensor: Tensor, place: Expr) -> Expr:
                index = [place if d == axis else i for d, i in enumerate(at)]
                index = index[len(index) - len(tensor.shape) :]
                sizes = zip(index, tensor.shape, strict=True)
                return tensor[tuple(i if n > 1 else Const(0) for i, n in sizes)].astype("int32")

            k = at[axis] % width
            partner = at[axis] // width * width + (k + width // 2) % width
            straight = (element(x, at[axis]) - self.zero) * element(cos, k)
            crossed = (element(x, partner) - self.zero) * element(sin, k)
            return finished(straight + crossed, self.requant)

        return Expression(compute(x.shape, rule, "out"), tuple(inputs))


def _of_rank(shape: Shape, rank: int) -> Shape:
    """A shape with sizes of 1 before it."""
    return (1,) * (rank - len(shape)) + tuple(shape)
