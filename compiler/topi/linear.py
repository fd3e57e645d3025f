"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence

from ..te.expr import Const, Expr
from ..te.tensor import Tensor, compute, reduce_axis, sum_of
from .elements import Index, Shape, over


def product(a: Expr, b: Expr, dtype: str | None = None) -> Expr:
    """``a * b``, both converted to ``dtype`` if one is given."""
    return a * b if dtype is None else a.astype(dtype) * b.astype(dtype)


def matmul(a: Tensor, b: Tensor, shapes: Sequence[Shape] | None = None) -> Tensor:
    """``a @ b`` over the last two dimensions; the others are broadcast."""
    left, right = [a.shape, b.shape] if shapes is None else shapes
    rank = max(len(left), len(right))
    sizes = [(1,) * (rank - len(s)) + s for s in (left, right)]
    batch = tuple(max(pair) if 0 not in pair else 0 for pair in zip(*(s[:-2] for s in sizes)))  # noqa: B905
    k = reduce_axis(left[-1], "k")

    def rule(index: Index) -> Expr:
        *lead, i, j = index
        first, second = (_batch_of(tuple(lead), shape[:-2]) for shape in (left, right))
        return sum_of(a[(*first, i, k)] * b[(*second, k, j)], k)

    return over((*batch, left[-2], right[-1]), rule)


def _batch_of(index: Index, shape: Shape) -> Index:
    own = index[len(index) - len(shape) :]
    return tuple(Const(0) if n == 1 else i for i, n in zip(own, shape, strict=True))


def dense(
    x: Tensor, weight: Tensor, transposed: bool = False, dtype: str | None = None, name: str = "acc"
) -> Tensor:
    """``x @ weight``: x [N, K], weight [K, OC] or, ``transposed``, [OC, K]. Elements are converted
    to ``dtype`` and then multiplied and summed; without it, both operands must have one dtype.
    """
    k = reduce_axis(x.shape[1], "k")
    width = weight.shape[0 if transposed else 1]

    def rule(n: Expr, oc: Expr) -> Expr:
        factor = weight[oc, k] if transposed else weight[k, oc]
        return sum_of(product(x[n, k], factor, dtype), k)

    return compute((x.shape[0], width), rule, name)
