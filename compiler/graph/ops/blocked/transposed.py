"""Transposed convolutions of float32 on blocks of channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .... import topi
from ....te.expr import Const, Expr
from ....te.tensor import Tensor, compute, reduce_axis, sum_of
from ....topi.windows import padded_image
from ...arithmetic.windows import convolve_transposed
from ..base import Expression, Fusion, Op, Pads, Pair, Shape, Type, clip, expect, expect_dtypes
from ..layout import unblocked
from .windows import image_blocks

FLOAT32 = "float32"


@dataclass(frozen=True)
class BlockedConvTranspose2d(Op):
    """Transposed convolution, bias and clip. The positions with one remainder by the stride are the
    result of a convolution with every stride-th tap; each remainder has a weight of its own.

    x [N, C/B, H, W, B]; weight [SH, SW, OC/B, C/B, TH, TW, B of input, B of output]; bias
    [OC/B, B]; result [N, OC/B, *size, B]. Place ``o = q * s + r`` is, with ``before`` as b::

        sum over j of x[q + (r + b) // s + j - (T - 1)] * weight[r, ..., j]
    """

    before: Pair
    size: Pair
    lo: float = -math.inf
    hi: float = math.inf

    fusion = Fusion.REDUCTION

    def infer(self, *types: Type) -> Type:
        x, weight, bias = expect_dtypes(types, FLOAT32, FLOAT32, FLOAT32)
        fits = len(x) == 5 and len(weight) == 8 and (x[1], x[4]) == (weight[3], weight[6])
        expect(fits and bias == (weight[2], weight[7]), "an image and a weight that fit it")
        return (x[0], bias[0], *self.size, bias[1]), FLOAT32

    def macs(self, *shapes: Shape) -> int:
        """Every element of the weight is a factor once at each place of x."""
        x, weight, _ = shapes
        return x[0] * x[2] * x[3] * math.prod(weight)

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, bias = args
        sh, sw, ob, ib, th, tw, inner, outer = weight.shape
        kernel = np.zeros((ib * inner, ob * outer, th * sh, tw * sw), np.float32)
        for rh, rw in np.ndindex(sh, sw):
            # The taps of a remainder, the first one first.
            part = weight[rh, rw].transpose(1, 4, 0, 5, 2, 3)[..., ::-1, ::-1]
            taps = part.reshape(ib * inner, ob * outer, th, tw)
            kernel[:, :, (rh + self.before[0]) % sh :: sh, (rw + self.before[1]) % sw :: sw] = taps
        sums = convolve_transposed(
            unblocked(x), kernel, (sh, sw), self.before, (1, 1), 1, self.size
        )
        total = image_blocks(sums, outer) + bias[None, :, None, None, :]
        return clip(total, self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """``phases`` [SH, SW, N, OC/B, rows, columns, B] side by side, then interleaved."""
        x, weight, bias = inputs
        sh, sw = weight.shape[:2]
        acc = self._phases(x, weight)

        def epilogue(*index: Expr) -> Expr:
            return topi.clip_between(acc[index] + bias[index[3], index[6]], self.lo, self.hi)

        phases = compute(acc.shape, epilogue, "phases")

        def rule(n: Expr, ob: Expr, oh: Expr, ow: Expr, o: Expr) -> Expr:
            return phases[oh % sh, ow % sw, n, ob, oh // sh, ow // sw, o]

        shape = (x.shape[0], weight.shape[2], *self.size, x.shape[4])
        return Expression(compute(shape, rule, "out"), tuple(inputs))

    def _phases(self, x: Tensor, weight: Tensor) -> Tensor:
        strides, blocks, taps, lanes = (
            weight.shape[:2], weight.shape[2], weight.shape[4:6], x.shape[4],
        )  # fmt: skip
        rows = tuple(-(-n // s) for n, s in zip(self.size, strides, strict=True))
        image = padded_image(x, transposed_pads(self, x.shape, weight.shape), Const(0.0, FLOAT32))
        ic, ici = reduce_axis(x.shape[1], "ic"), reduce_axis(lanes, "ici")
        jh, jw = reduce_axis(taps[0], "jh"), reduce_axis(taps[1], "jw")

        def phase(rh: Expr, rw: Expr, n: Expr, ob: Expr, qh: Expr, qw: Expr, o: Expr) -> Expr:
            top = (rh + self.before[0]) // strides[0]
            left = (rw + self.before[1]) // strides[1]
            element = image[n, ic, qh + top + jh, qw + left + jw, ici]
            return sum_of(element * weight[rh, rw, ob, ic, jh, jw, ici, o], (ic, jh, jw, ici))

        return compute((*strides, x.shape[0], blocks, *rows, lanes), phase, "acc")


def transposed_pads(op: BlockedConvTranspose2d, x: Shape, weight: Shape) -> Pads:
    """The border with which an image holds all elements that the phases read."""
    (sh, sw), (top, left) = weight[:2], (taps - 1 for taps in weight[4:6])
    bottom, right = (
        max(-(-n // s) + (s - 1 + b) // s - size, 0)
        for n, s, b, size in zip(op.size, (sh, sw), op.before, x[2:4], strict=True)
    )
    return top, left, bottom, right
