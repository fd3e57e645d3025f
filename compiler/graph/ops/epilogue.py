"""The end of an operator: a bias and bounds, or requantisation; and the products that end so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ... import topi
from ...te.expr import Expr
from ...te.tensor import Tensor, compute, placeholder
from ..arithmetic.requant import Requant
from .base import Bounded, Expression, Fusion, Op, Shape, Type, clip, expect, expect_dtypes, int32


def bounded(acc: Tensor, lo: float, hi: float, bias: Sequence[Tensor] = ()) -> Tensor:
    """``clip(acc + bias, lo, hi)``; the bias, if there is one, lies along axis 1."""

    def rule(*index: Expr) -> Expr:
        total = acc[index] + bias[0][index[1]] if bias else acc[index]
        return topi.clip_between(total, lo, hi)

    return compute(acc.shape, rule, "out")


def requantized(
    acc: Tensor, requant: Requant, inputs: Sequence[Tensor], bias: Tensor | None = None
) -> Expression:
    """The expression of an operator on ``inputs`` that requantises ``acc + bias`` to int8."""
    multiplier = placeholder(requant.multiplier.shape, "int32", "multiplier")
    shift = placeholder(requant.shift.shape, "int32", "shift")
    epilogue = (requant.zero_point, requant.lo, requant.hi, requant.rounding)
    out = topi.requantize(acc, multiplier, shift, *epilogue, bias=bias)
    values = (requant.multiplier, requant.shift)
    return Expression(out, (*inputs, multiplier, shift), values)


class Product(Op):
    """Base of products of an operand and a weight, plus a bias along axis 1."""

    #: Dimensions of the operand and of the weight.
    rank: ClassVar[int] = 4

    fusion = Fusion.REDUCTION

    def _shape(self, x: Shape, weight: Shape) -> Shape:
        """The result's shape; raises :class:`~.base.Misfit`."""
        raise NotImplementedError

    def _sums(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The sums of products, in the dtype of the factors."""
        raise NotImplementedError

    def _acc(self, x: Tensor, weight: Tensor) -> Tensor:
        """The sums of products as a tensor expression."""
        raise NotImplementedError

    def _with_bias_shape(self, x: Shape, weight: Shape, bias: Sequence[Shape]) -> Shape:
        expect(len(x) == self.rank, f"a {self.rank}-dimensional input and weight")
        shape = self._shape(x, weight)
        expect(list(bias) in ([], [shape[1:2]]), f"a bias [{shape[1]}]")
        return shape


def _along_channels(bias: np.ndarray, rank: int) -> np.ndarray:
    return bias.reshape(-1, *[1] * (rank - 2))


class FloatProduct(Bounded, Product):
    """Base of ``clip(product + bias, lo, hi)`` of float32; the bias is optional."""

    def infer(self, *types: Type) -> Type:
        x, weight, *bias = expect_dtypes(types, *["float32"] * min(max(len(types), 2), 3))
        return self._with_bias_shape(x, weight, bias), "float32"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, *bias = args
        y = self._sums(x, weight)
        return clip(y + _along_channels(bias[0], y.ndim) if bias else y, self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, *bias = inputs
        return Expression(bounded(self._acc(x, weight), self.lo, self.hi, bias), tuple(inputs))


class IntegerProduct(Product):
    """Base of ``requant(product of x - x_zero_point, plus bias)``: x int8; sums wrap to int32."""

    x_zero_point: int
    requant: Requant

    #: Dtypes of weights. One less its zero point may be int16.
    weights: ClassVar[Sequence[str]] = ("int8", "int16")

    def infer(self, *types: Type) -> Type:
        given = types[1][1] if len(types) > 1 else ""
        dtype = given if given in self.weights else "int8"
        x, weight, bias = expect_dtypes(types, "int8", dtype, "int32")
        return self._with_bias_shape(x, weight, [bias]), "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, bias = args
        acc = self._sums(x.astype(np.int64) - self.x_zero_point, weight.astype(np.int64))
        return self.requant.apply(int32(acc + _along_channels(bias, acc.ndim)))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, bias = inputs
        return requantized(self._acc(x, weight), self.requant, inputs, bias)
