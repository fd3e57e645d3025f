"""Products of few rows with matrices that lie as other operators left them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...te.expr import Call, Const, Expr
from ...te.tensor import Tensor, clip, compute, reduce_axis, sum_of
from ..arithmetic.requant import MULTIPLIER_BITS
from .base import Expression, Shape, Type, expect, expect_dtypes
from .linear import QMatMul


@dataclass(frozen=True, eq=False)
class QSharedMatMul(QMatMul):
    """:class:`~.linear.QMatMul` of a [H, M, K] and b [H / ``readers``, K, N], or, ``transposed``,
    [H / ``readers``, N, K]: each matrix of b is a factor of ``readers`` matrices of a that follow
    each other. The result is [H, M, N]."""

    readers: int
    transposed: bool

    def infer(self, *types: Type) -> Type:
        a, b = expect_dtypes(types, "int8", "int8")
        expect(len(a) == len(b) == 3 and a[0] == b[0] * self.readers, "matrices, and their readers")
        depth, columns = b[:0:-1] if self.transposed else b[1:]
        expect(a[2] == depth, "matrices that can be multiplied")
        return (*a[:2], columns), "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        a, b = args
        b = b.swapaxes(1, 2) if self.transposed else b
        return super().evaluate(a, b.repeat(self.readers, 0))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """Differences are int16: their products are added in pairs."""
        (a, b), requant = inputs, self.requant
        k = reduce_axis(a.shape[2], "k")
        (multiplier,), (shift,) = requant.multiplier, requant.shift
        fits = shift > MULTIPLIER_BITS  # a scale below a half: int32 holds results
        name, dtype = ("rescale", "int32") if fits else ("requantize", "int64")
        factors = Const(int(multiplier), "int32"), Const(int(shift), "int32")

        def less(element: Expr, zero: int) -> Expr:
            return (element.astype("int16") - zero).astype("int32")

        def products(h: Expr, m: Expr, n: Expr) -> Expr:
            head = h // self.readers if self.readers > 1 else h
            other = b[head, n, k] if self.transposed else b[head, k, n]
            return sum_of(less(a[h, m, k], self.a_zero_point) * less(other, self.b_zero_point), k)

        acc = compute((*a.shape[:2], b.shape[1 if self.transposed else 2]), products, "acc")

        def rule(*index: Expr) -> Expr:
            scaled = Call(name, (acc[index], *factors), dtype) + requant.zero_point
            return clip(scaled, requant.lo, requant.hi).astype("int8")

        return Expression(compute(acc.shape, rule, "out"), tuple(inputs))

    def macs(self, *shapes: Shape) -> int:
        a, b = shapes
        return a[0] * a[1] * b[1] * b[2]
