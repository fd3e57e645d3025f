"""Products of matrices: of any dtype, float with bias and bounds, and of int8."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ... import topi
from ...te.tensor import Tensor, compute
from ..arithmetic.requant import Requant
from ..arithmetic.windows import tensordot
from .base import (
    Expression,
    Fusion,
    Op,
    Shape,
    Type,
    broadcast,
    expect,
    expect_dtypes,
    int32,
    one_dtype,
)
from .epilogue import FloatProduct, IntegerProduct, Product, requantized


@dataclass(frozen=True)
class MatMul(Op):
    """Matrix product over the last two dimensions, the others broadcast; integers wrap."""

    fusion = Fusion.REDUCTION

    def factor_shapes(self, *shapes: Shape) -> Sequence[Shape]:
        """The shapes of both factors, whose last dimensions are those of matrices."""
        return shapes

    def infer(self, *types: Type) -> Type:
        expect(len(types) == 2, "two operands")
        (a, _), (b, _) = types
        dtype = one_dtype(types)
        expect(dtype != "bool", "numbers")
        matrices = len(a) >= 2 and len(b) >= 2
        expect(matrices and a[-1:] == b[-2:-1], "matrices that can be multiplied")
        return (*broadcast(a[:-2], b[:-2]), *a[-2:-1], *b[-1:]), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        a, b = args
        if a.dtype.kind == "f":
            return np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)
        if a.ndim == b.ndim == 2:
            return tensordot(a, b, ([1], [0]))
        return np.matmul(a.astype(np.int64), b.astype(np.int64)).astype(a.dtype)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        return Expression(topi.matmul(inputs[0], inputs[1], shapes), tuple(inputs))

    def macs(self, *shapes: Shape) -> int:
        a, b = shapes
        return math.prod(np.broadcast_shapes(a[:-2], b[:-2])) * a[-2] * a[-1] * b[-1]


@dataclass(frozen=True)
class TransposedMatMul(MatMul):
    """:class:`MatMul` of tensors in other orders: dimension i of a factor, or of the result, is
    dimension ``orders[0][i]`` of the first operand, ``orders[1][i]`` of the second one, or
    ``orders[2][i]`` of the product."""

    orders: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

    def factor_shapes(self, *shapes: Shape) -> Sequence[Shape]:
        found = zip(shapes, self.orders[:2], strict=True)
        return [tuple(shape[d] for d in order) for shape, order in found]

    def infer(self, *types: Type) -> Type:
        dtype = one_dtype(types)
        factors = self.factor_shapes(*(shape for shape, _ in types))
        shape, dtype = super().infer(*((shape, dtype) for shape in factors))
        return tuple(shape[d] for d in self.orders[2]), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return super().evaluate(*map(np.transpose, args, self.orders)).transpose(self.orders[2])

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        a, b = (topi.transpose(x, order) for x, order in zip(inputs, self.orders[:2], strict=True))
        made = topi.matmul(a, b, [a.shape, b.shape])
        return Expression(topi.transpose(made, self.orders[2]), tuple(inputs))

    def macs(self, *shapes: Shape) -> int:
        return super().macs(*self.factor_shapes(*shapes))


class _Dense(Product):
    """Base: the operand is a matrix [N,K], the weight [K,OC] or, ``transposed``, [OC,K]."""

    transposed: bool

    rank = 2

    def _shape(self, x: Shape, weight: Shape) -> Shape:
        weight = weight[::-1] if self.transposed else weight
        fits = len(weight) == 2 and x[1] == weight[0]
        expect(fits, "a matrix and a weight matrix of its width")
        return x[0], weight[1]

    def _sums(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return tensordot(x, weight, ([1], [1 if self.transposed else 0]))

    def _acc(self, x: Tensor, weight: Tensor) -> Tensor:
        return topi.dense(x, weight, self.transposed)

    def macs(self, *shapes: Shape) -> int:
        x, weight, *_ = shapes
        return x[0] * weight[0] * weight[1]


@dataclass(frozen=True)
class Dense(_Dense, FloatProduct):
    """Float ``x @ w + bias``: x [N,K], w [K,OC] or, ``transposed``, [OC,K]; clipped to lo..hi."""

    transposed: bool
    lo: float = -math.inf
    hi: float = math.inf


@dataclass(frozen=True, eq=False)
class QDense(_Dense, IntegerProduct):
    """x int8 [N,K], weight int8 [OC,K], bias int32 [OC] to int8 [N,OC].

    ``acc = bias[oc] + sum over k of (x[n, k] - x_zero_point) * weight[oc, k]`` in wrapping int32;
    ``y = requant(acc)``. A weight less its zero point may be int16.
    """

    x_zero_point: int
    requant: Requant

    transposed = True

    def _acc(self, x: Tensor, weight: Tensor) -> Tensor:
        shifted = compute(
            x.shape, lambda n, k: x[n, k].astype("int16") - self.x_zero_point, "shifted"
        )
        return topi.dense(shifted, weight, transposed=True, dtype="int32")


@dataclass(frozen=True, eq=False)
class QMatMul(Op):
    """Product of two int8 activations over their last two dimensions, the others broadcast.

    ``acc = sum over k of (a[.., i, k] - a_zero_point) * (b[.., k, j] - b_zero_point)`` in wrapping
    int32; ``y = requant(acc)`` as int8, with one parameter set for all elements.
    """

    a_zero_point: int
    b_zero_point: int
    requant: Requant

    fusion = Fusion.REDUCTION

    def infer(self, *types: Type) -> Type:
        a, b = expect_dtypes(types, "int8", "int8")
        return MatMul().infer((a, "int8"), (b, "int8"))[0], "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        zero_points = (self.a_zero_point, self.b_zero_point)
        a, b = (x.astype(np.int64) - zero for x, zero in zip(args, zero_points, strict=True))
        acc = int32(np.matmul(a, b))
        return self.requant.apply(acc.reshape(-1, 1)).reshape(acc.shape)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        zero_points = (self.a_zero_point, self.b_zero_point)
        a, b = (
            compute(x.shape, lambda *i, x=x, z=zero: x[i].astype("int32") - z, "shifted")
            for x, zero in zip(inputs, zero_points, strict=True)
        )
        return requantized(topi.matmul(a, b, shapes), self.requant, inputs)

    def macs(self, *shapes: Shape) -> int:
        return MatMul().macs(*shapes)
