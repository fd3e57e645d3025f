"""Pooling on blocks of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .... import topi
from ....te.expr import Expr
from ....te.tensor import Tensor, compute, reduce_axis
from ....topi.pooling import mean_of
from ....topi.reduction import neutral
from ....topi.windows import padded_image, window_place
from ..base import Expression, Fusion, Op, Pair, Shape, Type, expect, operands
from ..convolution import window_shape
from ..layout import unblocked
from ..pooling import AvgPool, MaxPool, QMaxPool
from .windows import image_blocks


@dataclass(frozen=True)
class BlockedPool(Op):
    """A pooling operator on a blocked tensor: float32, or int8 whose zero point does not change."""

    pool: MaxPool | AvgPool | QMaxPool

    fusion = Fusion.REDUCTION

    def infer(self, *types: Type) -> Type:
        [(x, dtype)] = operands(types, 1)
        wanted = "int8" if isinstance(self.pool, QMaxPool) else "float32"
        expect(len(x) == 5 and dtype == wanted, f"a blocked {wanted} tensor")
        size = window_shape(x[2:4], self.pool.kernel, self.pool.strides, self.pool.pads, (1, 1))
        return (*x[:2], *size, x[4]), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return image_blocks(self.pool.evaluate(unblocked(args[0])), args[0].shape[4])

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        [x], pool = inputs, self.pool
        kind = "+" if isinstance(pool, AvgPool) else "max"
        image = padded_image(x, pool.pads, neutral(kind, x.dtype))
        acc = _block_windows(kind, image, pool.kernel, pool.strides)

        def rule(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
            total: Expr = acc[n, cb, oh, ow, c]
            if isinstance(pool, AvgPool):
                window = pool.kernel, pool.strides, pool.pads, x.shape[2:4]
                total = mean_of(total, (oh, ow), *window, pool.count_include_pad)
            return topi.clip_between(total, pool.lo, pool.hi)

        return Expression(compute(acc.shape, rule, "out"), (x,))


def _block_windows(kind: str, image: Tensor, kernel: Pair, strides: Pair) -> Tensor:
    """Reductions over windows of an image in blocks, border included."""
    kh, kw = reduce_axis(kernel[0], "kh"), reduce_axis(kernel[1], "kw")
    inside = (0, 0, 0, 0)
    counts = topi.window_counts(image.shape[2:4], kernel, strides, inside, (1, 1))

    def window(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        row, column = window_place((oh, ow), (kh, kw), strides, (1, 1))
        return topi.reduction.Reduce(kind, image[n, cb, row, column, c], (kh, kw))

    return compute((*image.shape[:2], *counts, image.shape[4]), window, "acc")
