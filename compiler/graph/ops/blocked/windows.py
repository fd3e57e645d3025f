"""Windows over images in blocks: sizes, sums of products, and both in NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .... import topi
from ....te.expr import Expr
from ....te.tensor import Tensor, compute, reduce_axis, sum_of
from ....topi.windows import window_place
from ...arithmetic.windows import windows
from ..base import Fusion, Op, Pads, Pair, Shape, expect
from ..convolution import window_shape
from ..layout import in_blocks, unblocked


def image_blocks(x: np.ndarray, block: int) -> np.ndarray:
    """[N, C, H, W] as [N, C/B, H, W, B]."""
    return np.ascontiguousarray(in_blocks(x, block, 1).transpose(0, 1, 3, 4, 2))


def plain_image(x: np.ndarray) -> np.ndarray:
    """An image in blocks or not, as [N, C, H, W]."""
    return unblocked(x) if x.ndim == 5 else x


def plain_weight(weight: np.ndarray) -> np.ndarray:
    """[OC/B, C/B, KH, KW, B of input, B of output], or [OC/B, C, KH, KW, B], as [OC, C, KH, KW]."""
    if weight.ndim == 5:
        weight = weight[:, :, :, :, None]
    blocks, channels, kh, kw, inner, outer = weight.shape
    moved = weight.transpose(0, 5, 1, 4, 2, 3)
    return moved.reshape(blocks * outer, channels * inner, kh, kw)


def counts_inside(image: Tensor, kernel: Sequence[int], op: Windowed) -> Shape:
    """Number of rows and columns of windows over an image, border included."""
    inside = (0, 0, 0, 0)
    return topi.window_counts(image.shape[2:4], tuple(kernel), op.strides, inside, op.dilations)


class Windowed(Op):
    """Base: a window over an image in blocks."""

    strides: Pair
    pads: Pads
    dilations: Pair

    fusion = Fusion.REDUCTION

    def kernel(self, weight: Shape) -> Shape:
        """Rows and columns of the window, by the shape of a weight."""
        raise NotImplementedError

    def _sizes(self, x: Shape, kernel: Shape) -> Shape:
        return window_shape(x[2:4], kernel, self.strides, self.pads, self.dilations)

    def macs(self, *shapes: Shape) -> int:
        """Every element of the weight is a factor once at each position of the result. Channels
        that fill a block up count."""
        x, weight, *_ = shapes
        return x[0] * math.prod(self._sizes(x, self.kernel(weight))) * math.prod(weight)


def count_groups(x: Shape, weight: Shape) -> int:
    """Into how many groups the channels of an image and of the result are divided, by shapes whose
    second dimension is of the image's channels, or of blocks of them."""
    groups = x[1] // max(weight[1], 1)
    expect(weight[1] * groups == x[1] and weight[0] % max(groups, 1) == 0, "equal channels")
    return groups


def block_read(x: Shape, weight: Shape, ob: Expr, ic: Expr) -> Expr:
    """Which block of the image is number ``ic`` of those that block ``ob`` of the result reads."""
    groups = count_groups(x, weight)
    if groups <= 1:
        return ic
    results = weight[0] // groups
    return (ob // results if results > 1 else ob) * weight[1] + ic


def conv_sums(op: Windowed, image: Tensor, weight: Tensor, first: Tensor | None = None) -> Tensor:
    """Sums of products, which start from ``first`` for each channel."""
    counts = counts_inside(image, weight.shape[2:4], op)
    channels = reduce_axis(weight.shape[1], "ic")
    kh, kw = reduce_axis(weight.shape[2], "kh"), reduce_axis(weight.shape[3], "kw")
    lanes = (reduce_axis(weight.shape[4], "ici"),) if len(image.shape) == 5 else ()
    taps = (channels, kh, kw, *lanes)

    def rule(n: Expr, ob: Expr, oh: Expr, ow: Expr, o: Expr) -> Expr:
        place = window_place((oh, ow), (kh, kw), op.strides, op.dilations)
        block = block_read(image.shape, weight.shape, ob, channels.var)
        product = image[(n, block, *place, *lanes)] * weight[(ob, *taps, o)]
        return sum_of(product, taps, None if first is None else first[ob, o])

    return compute((image.shape[0], weight.shape[0], *counts, weight.shape[-1]), rule, "acc")


def depthwise_value(
    op: Windowed, image: np.ndarray, weight: np.ndarray, fill: float = 0
) -> np.ndarray:
    """Each channel of [N, C, H, W] convolved with its kernel of [C/B, KH, KW, B]."""
    blocks, kh, kw, block = weight.shape
    kernels = weight.transpose(0, 3, 1, 2).reshape(blocks * block, kh, kw)
    seen = windows(image, (kh, kw), op.strides, op.pads, op.dilations, fill)
    wide = np.float64 if image.dtype.kind == "f" else np.int64
    sums = np.einsum("nchwyx,cyx->nchw", seen.astype(wide), kernels.astype(wide))
    return sums.astype(image.dtype)


def depthwise_sums(
    op: Windowed, image: Tensor, weight: Tensor, first: Tensor | None = None
) -> Tensor:
    """As :func:`conv_sums`, each channel by itself."""
    counts = counts_inside(image, weight.shape[1:3], op)
    kh, kw = reduce_axis(weight.shape[1], "kh"), reduce_axis(weight.shape[2], "kw")

    def rule(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        row, column = window_place((oh, ow), (kh, kw), op.strides, op.dilations)
        product = image[n, cb, row, column, c] * weight[cb, kh, kw, c]
        return sum_of(product, (kh, kw), None if first is None else first[cb, c])

    return compute((*image.shape[:2], *counts, image.shape[4]), rule, "acc")
