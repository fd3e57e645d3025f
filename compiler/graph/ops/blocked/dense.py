"""Dense layers of float32 whose weights lie in blocks of features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .... import topi
from ....te.expr import Expr
from ....te.tensor import Tensor, compute, reduce_axis, sum_of
from ..base import Expression, Fusion, Op, Shape, Type, clip, expect, expect_dtypes


@dataclass(frozen=True)
class PackedDense(Op):
    """``clip(x @ w + bias)``: x [N, K], weight [OC/B, K, B], bias [OC/B, B]; result [N, OC]."""

    features: int
    lo: float = -math.inf
    hi: float = math.inf

    fusion = Fusion.REDUCTION

    def infer(self, *types: Type) -> Type:
        x, weight, bias = expect_dtypes(types, "float32", "float32", "float32")
        fits = len(x) == 2 and len(weight) == 3 and x[1] == weight[1]
        expect(fits and bias == (weight[0], weight[2]), "a matrix and a packed weight")
        blocks, _, block = weight
        expect((blocks - 1) * block < self.features <= blocks * block, "blocks of all features")
        return (x[0], self.features), "float32"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, bias = args
        plain = weight.transpose(1, 0, 2).reshape(weight.shape[1], -1).astype(np.float64)
        sums = (x.astype(np.float64) @ plain).astype(np.float32) + bias.reshape(-1)
        return clip(sums[:, : self.features], self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, bias = inputs
        blocks, size, block = weight.shape
        k = reduce_axis(size, "k")
        acc = compute(
            (x.shape[0], blocks, block),
            lambda n, ob, o: sum_of(x[n, k] * weight[ob, k, o], k),
            "acc",
        )

        def ending(n: Expr, ob: Expr, o: Expr) -> Expr:
            return topi.clip_between(acc[n, ob, o] + bias[ob, o], self.lo, self.hi)

        done = compute(acc.shape, ending, "blocks")
        shape = (x.shape[0], self.features)
        out = compute(shape, lambda n, o: done[n, o // block, o % block], "out")
        return Expression(out, tuple(inputs))
