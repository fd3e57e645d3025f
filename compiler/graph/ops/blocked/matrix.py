"""Convolutions of int8 as products of matrices: positions by channels, channels by features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....te.expr import Expr, all_of, select, wrap
from ....te.tensor import Tensor, compute, reduce_axis, sum_of
from ..base import Expression, Pair, Shape, Type, expect
from ..layout import lifted
from .integer import BlockedDotConv2d

#: Places of a result that one instruction computes, and the most such groups that a schedule
#: computes together.
POSITIONS, GROUPS = 16, 2


def row_pitch(width: int, kernel: int, stride: int, dilation: int) -> int:
    """The distance of two rows of ``width`` results in one long row of positions, for a window of
    ``kernel`` columns."""
    return width + (kernel - 1) * dilation // stride


@dataclass(frozen=True, eq=False)
class BlockedMatrixConv2d(BlockedDotConv2d):
    """:class:`BlockedDotConv2d` by an instruction that multiplies matrices: the sums of 16
    positions and 16 features grow at once by the products over ``X`` channels.

    The operands are those of :class:`BlockedDotConv2d`, but the channels of the weight, int8
    [OC/B, C/X, KH, KW, X/4, B, 4], are grouped by others than the blocks of x: X is a multiple of
    these, or they are of X.

    The image is copied first, so that the operands of one instruction lie in rows at equal
    distances, whatever the strides of the convolution are. It is divided into *phases*, the
    remainders of positions by the strides; rows follow one another, so that the positions of
    several rows form one long row::

        image[n, c, row % SH, column % SW, row // SH * pitch + column // SW, X channels]
        acc[n, ob, oh * pitch + ow, o] = sum of image[..., oh * pitch + ow + a constant, ...] * w

    Nothing reads the sums between the last position of a row and the first one of the next row.
    """

    def infer(self, *types: Type) -> Type:
        (x, x_dtype), (weight, w_dtype), *rest = types
        expect(not self.depthwise and len(x) == 5 and len(weight) == 7, "an image in blocks")
        group = weight[4] * weight[6]
        whole = 0 in (group % x[4], x[4] % group) and weight[1] * group == x[1] * x[4]
        expect(whole, "channels in groups of whole blocks")
        regrouped = (x[0], weight[1], *x[2:4], group)
        return super().infer((regrouped, x_dtype), (weight, w_dtype), *rest)

    def pitch(self, weight: Shape, width: int) -> int:
        """:func:`row_pitch` results of this convolution."""
        return row_pitch(width, weight[3], self.strides[1], self.dilations[1])

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, *columns = inputs
        types = [(tensor.shape, tensor.dtype) for tensor in inputs]
        result, _ = self.infer(*types)
        pitch = self.pitch(weight.shape, result[3])
        positions = result[2] * pitch + POSITIONS * GROUPS - 1
        border = wrap(self._border(lambda: columns[0][0]), "uint8")
        image = self._image(x, weight, pitch, positions, border)
        acc = self._products(image, weight, pitch, positions)

        def sums(n: Expr, ob: Expr, oh: Expr, ow: Expr, o: Expr) -> Expr:
            total = acc[n, ob, oh * pitch + ow, o]
            return total if self.requant is None else total + columns[0][ob, o]

        return Expression(self._result(sums, result, columns), tuple(inputs))

    def _phases(self, weight: Shape) -> Pair:
        """The number of phases of rows and columns that the window reads."""
        spans = [(k - 1) * d + 1 for k, d in zip(weight[2:4], self.dilations, strict=True)]
        rows, columns = (min(s, n) for s, n in zip(self.strides, spans, strict=True))
        return rows, columns

    def _image(self, x: Tensor, weight: Tensor, pitch: int, positions: int, border: Expr) -> Tensor:
        """The phases of the image with its border, by 128 more: ``positions`` and what the window
        reads beyond them, in whole rows."""
        (sh, sw), (top, left, *_) = self.strides, self.pads
        (dh, dw), (kh, kw) = self.dilations, weight.shape[2:4]
        group, (_, _, height, width, lanes) = weight.shape[4] * weight.shape[6], x.shape
        beyond = (kh - 1) * dh // sh * pitch + (kw - 1) * dw // sw
        rows = -(-(positions + beyond) // pitch)

        def rule(n: Expr, ic: Expr, hp: Expr, wp: Expr, place: Expr, c: Expr) -> Expr:
            row = place // pitch * sh + hp - top
            column = place % pitch * sw + wp - left
            channel = ic * group + c
            element: Expr = x[n, channel // lanes, row, column, channel % lanes]
            element = element if x.dtype == "uint8" else lifted(element)
            inside = (row >= 0, row < height, column >= 0, column < width)
            return select(all_of(*inside), element, border)

        shape = (x.shape[0], weight.shape[1], *self._phases(weight.shape), rows * pitch, group)
        return compute(shape, rule, "image")

    def _products(self, image: Tensor, weight: Tensor, pitch: int, positions: int) -> Tensor:
        """The sums of products of the long rows of positions."""
        (sh, sw), (dh, dw) = self.strides, self.dilations
        lanes, four = weight.shape[-2:]
        taps = tuple(map(reduce_axis, weight.shape[1:5], ("ic", "kh", "kw", "fours")))
        ic, kh, kw, fours = taps
        k = reduce_axis(four, "k")

        def rule(n: Expr, ob: Expr, place: Expr, o: Expr) -> Expr:
            row, column = kh * dh, kw * dw
            moved = place + row // sh * pitch + column // sw
            element = image[n, ic, row % sh, column % sw, moved, fours * four + k]
            factor = weight[(ob, *taps, o, k)]
            return sum_of(element.astype("int32") * factor.astype("int32"), (*taps, k))

        return compute((image.shape[0], weight.shape[0], positions, lanes), rule, "acc")
