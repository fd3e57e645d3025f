"""Integer operators on elements and weights of one or two bits, computed bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...te.expr import Expr
from ...te.tensor import Tensor, compute, placeholder
from ...topi.bit_serial import (
    LANES,
    WORD_BITS,
    Levels,
    bit_serial_conv2d,
    bit_serial_dense,
    unpack_weights,
)
from ..arithmetic.requant import Requant
from ..arithmetic.windows import convolve, tensordot
from .base import Expression, Fusion, Op, Pads, Pair, Shape, Type, expect, expect_dtypes, int32
from .convolution import window_shape
from .epilogue import requantized


class _BitSerial(Op):
    """Base: elements are ``x - x_zero_point``, of ``bits`` bits; ``levels`` say what weights mean.

    The weight is uint32, as ``topi.bit_serial.pack_weights`` packs it; the bias is int32 [OC].
    """

    bits: int
    levels: Levels
    x_zero_point: int
    requant: Requant

    fusion = Fusion.REDUCTION

    def _check_weight(self, weight: Shape, bias: Shape, channels: int) -> None:
        blocks, words = -(-bias[0] // LANES), -(-channels // WORD_BITS)
        fits = (weight[0], weight[-3], weight[-1]) == (blocks, words, LANES)
        expect(fits, f"a packed weight of {bias[0]} outputs and {channels} channels")

    def _sums(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The products of elements less their zero point and of weights, both int64."""
        raise NotImplementedError

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, packed, bias = args
        codes = unpack_weights(packed, len(bias), x.shape[1])
        shifted = x.astype(np.int64) - self.x_zero_point
        sums = self._sums(shifted, codes * self.levels.step + self.levels.offset)
        return self.requant.apply(int32(sums + bias.reshape(-1, *[1] * (x.ndim - 2))))

    def _code(self, element: Expr) -> Expr:
        return (element.astype("int32") - self.x_zero_point).astype("uint8")


@dataclass(frozen=True, eq=False)
class BitSerialConv2d(_BitSerial):
    """:class:`~.convolution.QConv2d` of one group without dilation: x int8 [N, C, H, W], weight
    [OC/16, KH, KW, C/32, bits of the weight, 16]; the same result.
    """

    strides: Pair
    pads: Pads
    bits: int
    levels: Levels
    x_zero_point: int
    requant: Requant

    def infer(self, *types: Type) -> Type:
        x, weight, bias = expect_dtypes(types, "int8", "uint32", "int32")
        expect((len(x), len(weight), len(bias)) == (4, 6, 1), "an image, a weight and a bias")
        self._check_weight(weight, bias, x[1])
        size = window_shape(x[2:], weight[1:3], self.strides, self.pads, (1, 1))
        return (x[0], bias[0], *size), "int8"

    def _sums(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return convolve(x, weight.transpose(0, 3, 1, 2), self.strides, self.pads, (1, 1))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, bias = inputs
        batch, channels, height, width = x.shape

        flat = placeholder((batch, channels, height * width), x.dtype, x.name)
        codes = compute(flat.shape, lambda n, c, place: self._code(flat[n, c, place]), "codes")
        outputs, attributes = bias.shape[0], (self.bits, self.strides, self.pads, self.levels)
        sums = bit_serial_conv2d(codes, width, weight, outputs, *attributes)

        def moved(n: Expr, o: Expr, h: Expr, w: Expr) -> Expr:
            return sums[n, h, w, o]

        acc = compute((batch, outputs, *sums.shape[1:3]), moved, "acc")
        return requantized(acc, self.requant, (flat, weight, bias), bias)

    def macs(self, *shapes: Shape) -> int:
        x, weight, bias = shapes
        size = window_shape(x[2:], weight[1:3], self.strides, self.pads, (1, 1))
        return x[0] * bias[0] * size[0] * size[1] * x[1] * weight[1] * weight[2]


@dataclass(frozen=True, eq=False)
class BitSerialDense(_BitSerial):
    """:class:`~.linear.QDense`: x int8 [N, K], weight [OC/16, K/32, bits of the weight, 16]; the
    same result.
    """

    bits: int
    levels: Levels
    x_zero_point: int
    requant: Requant

    def infer(self, *types: Type) -> Type:
        x, weight, bias = expect_dtypes(types, "int8", "uint32", "int32")
        expect((len(x), len(weight), len(bias)) == (2, 4, 1), "rows, a weight and a bias")
        self._check_weight(weight, bias, x[1])
        return (x[0], bias[0]), "int8"

    def _sums(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return tensordot(x, weight, ([1], [1]))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, bias = inputs
        codes = compute(x.shape, lambda n, k: self._code(x[n, k]), "codes")
        acc = bit_serial_dense(codes, weight, bias.shape[0], self.bits, self.levels)
        return requantized(acc, self.requant, inputs, bias)

    def macs(self, *shapes: Shape) -> int:
        x, _, bias = shapes
        return x[0] * bias[0] * x[1]
