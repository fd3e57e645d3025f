"""Convolutions, plain and transposed: of any rank and dtype, float in 2-D, and of int8."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ... import topi
from ...te.expr import Const
from ...te.tensor import Tensor, compute
from ..arithmetic.requant import Requant
from ..arithmetic.windows import convolve, convolve_transposed
from .base import Expression, Pads, Pair, Shape, Type, expect, expect_dtypes, one_dtype
from .epilogue import FloatProduct, IntegerProduct, Product


def window_shape(
    size: Shape, kernel: Shape, strides: Shape, pads: Shape, dilations: Shape
) -> Shape:
    """Number of positions of a window along every dimension; it must be at least 1."""
    rank = len(size)
    expect(
        len(kernel) == len(strides) == len(dilations) == rank and len(pads) == 2 * rank,
        f"kernel, strides, dilations and pads of {rank} dimensions",
    )
    given = f"not {kernel}, {strides} and {dilations}"
    expect(min(*kernel, *strides, *dilations) >= 1, f"kernel, strides and dilations >= 1, {given}")
    counts = topi.window_counts(size, kernel, strides, pads, dilations)
    expect(min(counts) >= 1, f"an image that holds the window {list(kernel)}")
    return counts


class _Sliding(Product):
    """Base: the weight [OC, C/groups, ...] slides over the image."""

    strides: Shape
    pads: Shape
    dilations: Shape
    groups: int

    @property
    def _window(self) -> tuple[Shape, Shape, Shape, int]:
        return self.strides, self.pads, self.dilations, self.groups

    def _shape(self, x: Shape, weight: Shape) -> Shape:
        expect(len(x) == len(weight) >= 3, "an image and a weight of one rank, at least 3")
        groups = self.groups
        fits = groups >= 1 and x[1] == weight[1] * groups and weight[0] % groups == 0
        expect(fits, f"channels that divide into {groups} groups")
        sizes = window_shape(x[2:], weight[2:], self.strides, self.pads, self.dilations)
        return x[0], weight[0], *sizes

    def _sums(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return convolve(x, weight, *self._window)

    def _acc(self, x: Tensor, weight: Tensor) -> Tensor:
        return topi.convolution(x, weight, *self._window)

    def macs(self, *shapes: Shape) -> int:
        x, weight, *_ = shapes
        return math.prod(self._shape(x, weight)) * math.prod(weight[1:])


class _Spreading(Product):
    """Base: each element of the image spreads over a window, by the weight [C, OC/groups, ...]."""

    strides: Shape
    before: Shape
    size: Shape

    @property
    def _window(self) -> tuple[Shape, Shape, Shape, int, Shape]:
        return self.strides, self.before, (1,) * len(self.size), 1, self.size

    def _shape(self, x: Shape, weight: Shape) -> Shape:
        expect(len(x) == len(weight) >= 3, "an image and a weight of one rank, at least 3")
        strides, before, _, groups, size = self._window
        fits = groups >= 1 and x[1] == weight[0] and x[1] % groups == 0
        expect(fits, f"as many channels as the weight, in {groups} groups")
        expect(len(size) == len(x) - 2 and min(size) >= 1, "a result with elements")
        expect(min(strides) >= 1 and min(before) >= 0, "strides >= 1 and a crop >= 0")
        return x[0], weight[1] * groups, *size

    def _sums(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return convolve_transposed(x, weight, *self._window)

    def _acc(self, x: Tensor, weight: Tensor) -> Tensor:
        return topi.convolution_transpose(x, weight, *self._window)

    def macs(self, *shapes: Shape) -> int:
        x, weight, *_ = shapes
        return math.prod(x) * math.prod(weight[1:])


class _AnyRank(Product):
    """Base: no more than the product, of any rank and dtype."""

    def infer(self, *types: Type) -> Type:
        expect(len(types) == 2, "an image and a weight")
        dtype = one_dtype(types)
        return self._shape(*(shape for shape, _ in types)), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return self._sums(*args)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        return Expression(replace(self._acc(*inputs), name="out"), tuple(inputs))


@dataclass(frozen=True)
class Convolution(_Sliding, _AnyRank):
    """x [N, C, ...], weight [OC, C/groups, ...]; elements beyond the border are 0.

    ``pads`` lists the padding before every dimension, then the padding after every dimension.
    """

    strides: Shape
    pads: Shape
    dilations: Shape
    groups: int


@dataclass(frozen=True)
class ConvolutionTranspose(_Spreading, _AnyRank):
    """x [N, C, ...], weight [C, OC/groups, ...]: each element spreads over a window of the result,
    of spatial shape ``size``, whose first ``before`` positions are cut off."""

    strides: Shape
    before: Shape
    dilations: Shape
    groups: int
    size: Shape

    @property
    def _window(self) -> tuple[Shape, Shape, Shape, int, Shape]:
        return self.strides, self.before, self.dilations, self.groups, self.size


@dataclass(frozen=True)
class Conv2d(_Sliding, FloatProduct):
    """Float convolution of x [N,C,H,W], w [OC,C/groups,KH,KW], bias [OC] or none; clipped."""

    strides: Pair
    pads: Pads
    dilations: Pair
    groups: int
    lo: float = -math.inf
    hi: float = math.inf


@dataclass(frozen=True)
class ConvTranspose2d(_Spreading, FloatProduct):
    """Float transposed convolution of x [N,C,H,W], w [C,OC,KH,KW], bias [OC] or none; clipped.

    Element (h, w) spreads over rows ``h*sh + kh - before[0]`` and columns ``w*sw + kw - before[1]``
    of a result of ``size``; products that fall outside are dropped.
    """

    strides: Pair
    before: Pair
    size: Pair
    lo: float = -math.inf
    hi: float = math.inf


@dataclass(frozen=True, eq=False)
class QConv2d(_Sliding, IntegerProduct):
    """x int8 [N,C,H,W], weight int8 [OC,C/groups,KH,KW], bias int32 [OC] to int8 [N,OC,OH,OW].

    ::

        acc = bias[oc] + sum over c, kh, kw of
              (x[n, c, oh*sh + kh*dh - top, ow*sw + kw*dw - left] - x_zero_point) * weight
        y = requant(acc)

    in wrapping int32, where x outside the image is ``x_zero_point`` (it contributes nothing).
    The bias does NOT contain ``-x_zero_point * sum(weight)``. A weight less its zero point may be
    int16.
    """

    strides: Pair
    pads: Pads
    dilations: Pair
    groups: int
    x_zero_point: int
    requant: Requant

    def _acc(self, x: Tensor, weight: Tensor) -> Tensor:
        """Of ``shifted``: ``x - x_zero_point`` inside a border of zeros; 9 bits, kept as int16 for
        int16 arithmetic."""
        image = shifted_image(x, self.pads, self.x_zero_point)
        attributes = self.strides, (0, 0, 0, 0), self.dilations, self.groups
        return topi.convolution(image, weight, *attributes, dtype="int32")

    def is_depthwise(self, weight: Shape) -> bool:
        """Whether the operator convolves every channel by itself."""
        return self.groups > 1 and weight[:2] == (self.groups, 1)


@dataclass(frozen=True)
class StoredConv2d(_Sliding):
    """x uint8 [N,C,H,W], weight int8 [OC,C/groups,KH,KW], zero point uint8, to int32.

    ``sum over c, kh, kw of x[n, c, oh*sh + kh*dh - top, ow*sw + kw*dw - left] * weight``, where x
    outside the image is the zero point, which is not subtracted.
    """

    strides: Pair
    pads: Pads
    dilations: Pair
    groups: int

    def infer(self, *types: Type) -> Type:
        x, weight, zero = expect_dtypes(types, "uint8", "int8", "uint8")
        expect(zero == (), "one zero point")
        return self._with_bias_shape(x, weight, []), "int32"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, zero = args
        (top, left, bottom, right), rest = self.pads, ((0, 0, 0, 0), self.dilations, self.groups)
        border = ((0, 0), (0, 0), (top, bottom), (left, right))
        image = np.pad(x, border, constant_values=zero.item()).astype(np.int32)
        return convolve(image, weight.astype(np.int32), self.strides, *rest)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, zero = inputs
        image = topi.windows.padded_image(x, self.pads, zero[0])
        attributes = self.strides, (0, 0, 0, 0), self.dilations, self.groups
        acc = topi.convolution(image, weight, *attributes, dtype="int32")
        return Expression(replace(acc, name="out"), tuple(inputs))


def shifted_image(x: Tensor, pads: Pads, zero_point: int) -> Tensor:
    """``x - zero_point`` as int16, zero in the border."""
    return topi.windows.padded_image(
        x, pads, Const(0, "int16"), "shifted",
        inside=lambda element: element.astype("int16") - zero_point,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class QConvTranspose2d(_Spreading, IntegerProduct):
    """x int8 [N,C,H,W], weight int8 [C,OC,KH,KW], bias int32 [OC] to int8 [N,OC,*size].

    ::

        acc = bias[oc] + sum over c, h, w, kh, kw with h*sh + kh - before[0] == oh
              and w*sw + kw - before[1] == ow of
              (x[n, c, h, w] - x_zero_point) * weight[c, oc, kh, kw]
        y = requant(acc)

    in wrapping int32.
    """

    strides: Pair
    before: Pair
    size: Pair
    x_zero_point: int
    requant: Requant

    weights = ("int8",)

    def _acc(self, x: Tensor, weight: Tensor) -> Tensor:
        """The general operator on ``shifted`` and ``wide``, both int32."""
        zero = self.x_zero_point
        shifted = compute(x.shape, lambda *i: x[i].astype("int32") - zero, "shifted")
        return super()._acc(shifted, topi.cast(weight, "int32", "wide"))
