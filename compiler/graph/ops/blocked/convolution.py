"""Convolutions on blocks of channels, of float32 and of int32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .... import topi
from ....te.expr import Expr, wrap
from ....te.tensor import Tensor, compute
from ....topi.windows import padded_image
from ....topi.winograd import KERNEL, matrices, points_of, winograd_sums
from ...arithmetic.windows import convolve, windows
from ..base import Expression, Pads, Pair, Shape, Type, clip, expect, one_dtype
from ..layout import unblocked
from .windows import (
    Windowed,
    conv_sums,
    count_groups,
    depthwise_sums,
    depthwise_value,
    image_blocks,
    plain_image,
    plain_weight,
)

FLOAT32 = "float32"


class _BiasedConvolution(Windowed):
    """Base: ``clip(conv(x, w) + bias + residual)``, the residual optional. All operands are of one
    dtype: float32; or int32, whose sums wrap, without bounds."""

    lo: float
    hi: float

    def _check(self, x: Shape, weight: Shape) -> Shape:
        """The shape of a bias, [OC/B, B]; raises Misfit where the weight does not fit the image."""
        raise NotImplementedError

    def _value(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The sums of products, [N, OC, OH, OW]."""
        raise NotImplementedError

    def _acc(self, x: Tensor, weight: Tensor) -> Tensor:
        """The sums of products as a tensor expression, in blocks."""
        raise NotImplementedError

    def infer(self, *types: Type) -> Type:
        expect(len(types) in (3, 4), "image, weight, bias and at most one residual")
        x, weight, bias, *residual = [shape for shape, _ in types]
        expect(bias == self._check(x, weight), "a bias for each channel")
        dtype = one_dtype(types)
        expect(dtype in (FLOAT32, "int32"), "operands of float32 or of int32")
        shape = (x[0], bias[0], *self._sizes(x, self.kernel(weight)), bias[1])
        expect(all(other == shape for other in residual), f"a residual {list(shape)}")
        return shape, dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, bias, *residual = args
        total = image_blocks(self._value(x, weight), bias.shape[1]) + bias[None, :, None, None, :]
        for other in residual:
            total = total + other
        return clip(total, self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, bias, *residual = inputs
        acc = self._acc(x, weight)

        def rule(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
            total = acc[n, cb, oh, ow, c] + bias[cb, c]
            for other in residual:
                total = total + other[n, cb, oh, ow, c]
            return topi.clip_between(total, self.lo, self.hi)

        return Expression(compute(acc.shape, rule, "out"), tuple(inputs))


@dataclass(frozen=True)
class BlockedConv2d(_BiasedConvolution):
    """Convolution, bias, residual addition and clip: ``clip(conv(x, w) + bias + residual)``.

    ====================  =============================================
    x                     weight
    ====================  =============================================
    [N, C/B, H, W, B]     [OC/B, C/B, KH, KW, B of input, B of output]
    [N, C, H, W]          [OC/B, C, KH, KW, B]
    ====================  =============================================

    A weight of fewer channels has those of a group: each group of results reads its own. The bias
    is [OC/B, B]; the residual, if there is one, has the result's shape [N, OC/B, OH, OW, B]. Sums
    may be rounded fewer times than there are operations.
    """

    strides: Pair
    pads: Pads
    dilations: Pair
    lo: float = -math.inf
    hi: float = math.inf

    def _check(self, x: Shape, weight: Shape) -> Shape:
        blocked = len(x) == 5 and len(weight) == 6 and x[4] == weight[4]
        expect(blocked or (len(x) == 4 and len(weight) == 5), "an image and a weight that fit it")
        count_groups(x, weight)
        return weight[0], weight[-1]

    def kernel(self, weight: Shape) -> Shape:
        return weight[2:4]

    def _value(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        attributes = self.strides, self.pads, self.dilations, count_groups(x.shape, weight.shape)
        return convolve(plain_image(x), plain_weight(weight), *attributes)

    def _acc(self, x: Tensor, weight: Tensor) -> Tensor:
        return conv_sums(self, padded_image(x, self.pads, wrap(0, x.dtype)), weight)


@dataclass(frozen=True)
class BlockedWinograd(_BiasedConvolution):
    """:class:`BlockedConv2d` of 3 x 3 kernels, a tile of ``size`` x ``size`` results at a time
    (``topi/winograd.py``).

    x [N, C/B, H, W, B]; weight [n, n, OC/B, C/B, B of input, B of output] at ``n = size + 2``
    points each way; bias and residual as there.
    """

    size: int
    pads: Pads
    lo: float = -math.inf
    hi: float = math.inf

    @property
    def strides(self) -> Pair:  # type: ignore[override]
        return (1, 1)

    @property
    def dilations(self) -> Pair:  # type: ignore[override]
        return (1, 1)

    def _check(self, x: Shape, weight: Shape) -> Shape:
        points = (points_of(self.size),) * 2
        fits = len(x) == 5 and len(weight) == 6 and (x[1], x[4]) == weight[3:5]
        expect(fits and weight[:2] == points, "a blocked image and a weight that fits it")
        return weight[2], weight[5]

    def kernel(self, weight: Shape) -> Shape:
        return (KERNEL, KERNEL)

    def macs(self, *shapes: Shape) -> int:
        """Those of the convolution; its products of points are fewer."""
        x, weight, *rest = shapes
        return super().macs(x, (KERNEL, KERNEL, *weight[2:]), *rest)

    def _border(self, x: Shape) -> tuple[Shape, Shape]:
        """The result's rows and columns, and the pads with which the image holds whole tiles: they
        are wider than the operator's where the last tiles reach further."""
        height, width = self._sizes(x, (KERNEL, KERNEL))
        top, left, bottom, right = self.pads
        pads = (top, left, bottom + -height % self.size, right + -width % self.size)
        return (height, width), pads

    def _value(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        (height, width), pads = self._border(x.shape)
        size, transform = self.size, matrices(self.size)
        count = points_of(size)
        seen = windows(plain_image(x), (count, count), (size, size), pads).astype(np.float64)
        tiles = np.einsum("iy,nchwyx,jx->ijnchw", transform.image, seen, transform.image)
        kernels = weight.astype(np.float64).transpose(0, 1, 2, 5, 3, 4)
        kernels = kernels.reshape(count, count, weight.shape[2] * weight.shape[5], -1)
        products = np.einsum("ijnchw,ijoc->ijnohw", tiles, kernels)
        results = np.einsum("ri,ijnohw,sj->nohrws", transform.result, products, transform.result)
        n, channels, rows, _, columns, _ = results.shape
        sums = results.reshape(n, channels, rows * size, columns * size)[..., :height, :width]
        return sums.astype(np.float32)

    def _acc(self, x: Tensor, weight: Tensor) -> Tensor:
        sizes, pads = self._border(x.shape)
        image = padded_image(x, pads, wrap(0, x.dtype))
        return winograd_sums(self.size, image, weight, *sizes)


@dataclass(frozen=True)
class BlockedDepthwise(_BiasedConvolution):
    """Convolution of each channel by itself, bias, residual and clip, as :class:`BlockedConv2d`.

    x [N, C/B, H, W, B], weight [C/B, KH, KW, B], bias [C/B, B].
    """

    strides: Pair
    pads: Pads
    dilations: Pair
    lo: float = -math.inf
    hi: float = math.inf

    def _check(self, x: Shape, weight: Shape) -> Shape:
        expect(len(x) == 5 and len(weight) == 4, "a blocked image and a weight of rank 4")
        expect((x[1], x[4]) == (weight[0], weight[3]), "equal channels")
        return weight[0], weight[3]

    def kernel(self, weight: Shape) -> Shape:
        return weight[1:3]

    def _value(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return depthwise_value(self, unblocked(x), weight)

    def _acc(self, x: Tensor, weight: Tensor) -> Tensor:
        return depthwise_sums(self, padded_image(x, self.pads, wrap(0, x.dtype)), weight)
