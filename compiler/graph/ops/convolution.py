"""Convolutions, plain and transposed: of any rank and dtype, float in 2-D, and of int8."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ... import topi
from ...te.expr import Const
from ...te.tensor import Tensor, compute
from ..arithmetic.requant import Requant
from ..arithmetic.windows import convolve, convolve_transposed
from .base import (
    Bounded,
    Expression,
    Fusion,
    Op,
    Pads,
    Pair,
    Shape,
    Type,
    clip,
    expect,
    expect_dtypes,
    int32,
    one_dtype,
)
from .epilogue import bounded, requantized


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


def _convolved(
    x: Shape, weight: Shape, strides: Shape, pads: Shape, dilations: Shape, groups: int
) -> Shape:
    expect(len(x) == len(weight) >= 3, "an image and a weight of one rank, at least 3")
    fits = groups >= 1 and x[1] == weight[1] * groups and weight[0] % groups == 0
    expect(fits, f"channels that divide into {groups} groups")
    return x[0], weight[0], *window_shape(x[2:], weight[2:], strides, pads, dilations)


def _spread(
    x: Shape, weight: Shape, strides: Shape, before: Shape, groups: int, size: Shape
) -> Shape:
    expect(len(x) == len(weight) >= 3, "an image and a weight of one rank, at least 3")
    fits = groups >= 1 and x[1] == weight[0] and x[1] % groups == 0
    expect(fits, f"as many channels as the weight, in {groups} groups")
    expect(len(size) == len(x) - 2 and min(size) >= 1, "a result with elements")
    expect(min(strides) >= 1 and min(before) >= 0, "strides >= 1 and a crop >= 0")
    return x[0], weight[1] * groups, *size


def _expect_bias(biases: Sequence[Shape], channels: int) -> None:
    expect(list(biases) in ([], [(channels,)]), f"a bias [{channels}]")


class _Sliding(Op):
    """Base: the weight [OC, C/groups, ...] slides over the image."""

    strides: Shape
    pads: Shape
    dilations: Shape
    groups: int

    fusion = Fusion.REDUCTION

    @property
    def _window(self) -> tuple[Shape, Shape, Shape, int]:
        return self.strides, self.pads, self.dilations, self.groups

    def macs(self, *shapes: Shape) -> int:
        x, weight, *_ = shapes
        return math.prod(_convolved(x, weight, *self._window)) * math.prod(weight[1:])


class _Spreading(Op):
    """Base: each element of the image spreads over a window, by the weight [C, OC/groups, ...]."""

    fusion = Fusion.REDUCTION

    def macs(self, *shapes: Shape) -> int:
        x, weight, *_ = shapes
        return math.prod(x) * math.prod(weight[1:])


@dataclass(frozen=True)
class Convolution(_Sliding):
    """x [N, C, ...], weight [OC, C/groups, ...]; elements beyond the border are 0.

    ``pads`` lists the padding before every dimension, then the padding after every dimension.
    """

    strides: Shape
    pads: Shape
    dilations: Shape
    groups: int

    def infer(self, *types: Type) -> Type:
        expect(len(types) == 2, "an image and a weight")
        x, weight = (shape for shape, _ in types)
        return _convolved(x, weight, *self._window), one_dtype(types)

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return convolve(args[0], args[1], *self._window)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        found = topi.convolution(inputs[0], inputs[1], *self._window, name="out")
        return Expression(found, tuple(inputs))


@dataclass(frozen=True)
class ConvolutionTranspose(_Spreading):
    """x [N, C, ...], weight [C, OC/groups, ...]: each element spreads over a window of the result,
    of spatial shape ``size``, whose first ``before`` positions are cut off."""

    strides: Shape
    before: Shape
    dilations: Shape
    groups: int
    size: Shape

    def infer(self, *types: Type) -> Type:
        expect(len(types) == 2, "an image and a weight")
        x, weight = (shape for shape, _ in types)
        dtype = one_dtype(types)
        return _spread(x, weight, self.strides, self.before, self.groups, self.size), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        rest = self.dilations, self.groups, self.size
        return convolve_transposed(args[0], args[1], self.strides, self.before, *rest)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        attributes = self.strides, self.before, self.dilations, self.groups, self.size
        return Expression(
            topi.convolution_transpose(inputs[0], inputs[1], *attributes), tuple(inputs)
        )


@dataclass(frozen=True)
class Conv2d(Bounded, _Sliding):
    """Float convolution of x [N,C,H,W], w [OC,C/groups,KH,KW], bias [OC] or none; clipped."""

    strides: Pair
    pads: Pads
    dilations: Pair
    groups: int
    lo: float = -math.inf
    hi: float = math.inf

    def infer(self, *types: Type) -> Type:
        x, weight, *bias = expect_dtypes(types, *["float32"] * min(max(len(types), 2), 3))
        expect(len(x) == 4, "a 4-dimensional input and weight (2-D convolution)")
        shape = _convolved(x, weight, *self._window)
        _expect_bias(bias, shape[1])
        return shape, "float32"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, *bias = args
        y = convolve(x, weight, *self._window)
        return clip(y + bias[0].reshape(1, -1, 1, 1) if bias else y, self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, *bias = inputs
        acc = topi.convolution(x, weight, *self._window)
        return Expression(bounded(acc, self.lo, self.hi, bias), tuple(inputs))


@dataclass(frozen=True)
class ConvTranspose2d(Bounded, _Spreading):
    """Float transposed convolution of x [N,C,H,W], w [C,OC,KH,KW], bias [OC] or none; clipped.

    Element (h, w) spreads over rows ``h*sh + kh - before[0]`` and columns ``w*sw + kw - before[1]``
    of a result of ``size``; products that fall outside are dropped.
    """

    strides: Pair
    before: Pair
    size: Pair
    lo: float = -math.inf
    hi: float = math.inf

    def infer(self, *types: Type) -> Type:
        x, weight, *bias = expect_dtypes(types, *["float32"] * min(max(len(types), 2), 3))
        expect(len(x) == 4, "a 4-dimensional input and weight")
        shape = _spread(x, weight, self.strides, self.before, 1, self.size)
        _expect_bias(bias, shape[1])
        return shape, "float32"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, *bias = args
        y = convolve_transposed(x, weight, self.strides, self.before, (1, 1), 1, self.size)
        return clip(y + bias[0].reshape(1, -1, 1, 1) if bias else y, self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, *bias = inputs
        rest = (1, 1), 1, self.size
        acc = topi.convolution_transpose(x, weight, self.strides, self.before, *rest)
        return Expression(bounded(acc, self.lo, self.hi, bias), tuple(inputs))


@dataclass(frozen=True, eq=False)
class QConv2d(_Sliding):
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

    def infer(self, *types: Type) -> Type:
        wide = len(types) == 3 and types[1][1] == "int16"
        x, weight, bias = expect_dtypes(types, "int8", "int16" if wide else "int8", "int32")
        expect(len(x) == 4, "a 4-dimensional input and weight (2-D convolution)")
        shape = _convolved(x, weight, *self._window)
        _expect_bias([bias], shape[1])
        return shape, "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, bias = args
        shifted = x.astype(np.int64) - self.x_zero_point
        acc = convolve(shifted, weight.astype(np.int64), *self._window)
        return self.requant.apply(int32(acc + bias.reshape(1, -1, 1, 1)))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """The stages are ``shifted`` (``x - x_zero_point`` inside a border of zeros: 9 bits, kept
        as int16 for int16 arithmetic), ``acc`` (int32) and ``out``."""
        x, weight, bias = inputs
        image = shifted_image(x, self.pads, self.x_zero_point)
        inside = (0, 0, 0, 0)
        attributes = self.strides, inside, self.dilations, self.groups
        acc = topi.convolution(image, weight, *attributes, dtype="int32")
        return requantized(acc, self.requant, inputs, bias)

    def is_depthwise(self, weight: Shape) -> bool:
        """Whether the operator convolves every channel by itself."""
        return self.groups > 1 and weight[:2] == (self.groups, 1)


def shifted_image(x: Tensor, pads: Pads, zero_point: int) -> Tensor:
    """``x - zero_point`` as int16, zero in the border."""
    return topi.windows.padded_image(
        x, pads, Const(0, "int16"), "shifted",
        inside=lambda element: element.astype("int16") - zero_point,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class QConvTranspose2d(_Spreading):
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

    def infer(self, *types: Type) -> Type:
        x, weight, bias = expect_dtypes(types, "int8", "int8", "int32")
        expect(len(x) == 4, "a 4-dimensional input and weight")
        shape = _spread(x, weight, self.strides, self.before, 1, self.size)
        _expect_bias([bias], shape[1])
        return shape, "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, bias = args
        shifted = x.astype(np.int64) - self.x_zero_point
        rest = (1, 1), 1, self.size
        acc = convolve_transposed(
            shifted, weight.astype(np.int64), self.strides, self.before, *rest
        )
        return self.requant.apply(int32(acc + bias.reshape(1, -1, 1, 1)))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """The general operator on ``shifted`` and ``wide``, both int32."""
        x, weight, bias = inputs
        zero = self.x_zero_point
        shifted = compute(x.shape, lambda *i: x[i].astype("int32") - zero, "shifted")
        wide = topi.cast(weight, "int32", "wide")
        rest = (1, 1), 1, self.size
        acc = topi.convolution_transpose(shifted, wide, self.strides, self.before, *rest)
        return requantized(acc, self.requant, inputs, bias)
