"""The operators of the graph: float ones as imported, integer ones after fusion.

Tensors are NCHW or [N, K]. Activation bounds ``lo``/``hi`` of float operators are real numbers,
those of integer operators are int8 values. Rounding is half to even throughout; ``pads`` are (top,
left, bottom, right); weights and biases are constant inputs of the node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..arithmetic.requant import INT8_MAX, INT8_MIN, Requant

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]


class Op:
    """Base of all operators; the class name is the operator's name in dumps."""


@dataclass(frozen=True, eq=False)
class Quant:
    """``real = (stored - zero_point) * scale``: float32 and int32, [1] or [C] along ``axis``."""

    scale: np.ndarray
    zero_point: np.ndarray
    dtype: str = "int8"
    axis: int | None = None

    def same(self, other: Quant) -> bool:
        """Whether the two give every stored value the same meaning."""
        return (
            self.dtype == other.dtype
            and self.axis == other.axis
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    def broadcast(self, array: np.ndarray, rank: int) -> np.ndarray:
        """``array`` (scale or zero point) shaped to broadcast against a tensor of this rank."""
        if self.axis is None:
            return array.reshape(())
        shape = [1] * rank
        shape[self.axis] = -1
        return array.reshape(shape)


# ---- as imported, and on both sides of the integer part ----


@dataclass(frozen=True, eq=False)
class Quantize(Op):
    """``clamp(round_half_even(x / scale) + zero_point)``: x float32, the quotient in float32."""

    quant: Quant


@dataclass(frozen=True, eq=False)
class Dequantize(Op):
    """``quant.dtype`` to float32: ``float32(x - zero_point) * scale``."""

    quant: Quant


@dataclass(frozen=True)
class Reshape(Op):
    """The same elements in the same order with another shape; any dtype."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Identity(Op):
    """The input itself; any dtype."""


@dataclass(frozen=True)
class Relu(Op):
    """``max(x, 0)``, float32."""


@dataclass(frozen=True)
class Clip(Op):
    """``min(max(x, lo), hi)``, float32."""

    lo: float = -math.inf
    hi: float = math.inf


@dataclass(frozen=True)
class Conv2d(Op):
    """Float convolution of x [N,C,H,W], w [OC,C/groups,KH,KW], bias [OC] or none; clipped."""

    strides: Pair
    pads: Pads
    dilations: Pair
    groups: int
    lo: float = -math.inf
    hi: float = math.inf


@dataclass(frozen=True)
class ConvTranspose2d(Op):
    """Float transposed convolution of x [N,C,H,W], w [C,OC,KH,KW], bias [OC] or none; clipped.

    Element (h, w) spreads over rows ``h*sh + kh - before[0]`` and columns ``w*sw + kw - before[1]``
    of a result of ``size``; what falls outside is dropped.
    """

    strides: Pair
    before: Pair
    size: Pair
    lo: float = -math.inf
    hi: float = math.inf


@dataclass(frozen=True)
class Dense(Op):
    """Float ``x @ w + bias``: x [N,K], w [K,OC] or, ``transposed``, [OC,K]; clipped to lo..hi."""

    transposed: bool
    lo: float = -math.inf
    hi: float = math.inf


@dataclass(frozen=True)
class Add(Op):
    """Float ``a + b`` with NumPy broadcasting, clipped to lo..hi."""

    lo: float = -math.inf
    hi: float = math.inf


@dataclass(frozen=True)
class MaxPool(Op):
    """Float maximum over windows; padding never wins. Clipped to lo..hi."""

    kernel: Pair
    strides: Pair
    pads: Pads
    lo: float = -math.inf
    hi: float = math.inf


@dataclass(frozen=True)
class AvgPool(Op):
    """Float mean over windows; the padding counts if ``count_include_pad``. Clipped to lo..hi."""

    kernel: Pair
    strides: Pair
    pads: Pads
    count_include_pad: bool = False
    lo: float = -math.inf
    hi: float = math.inf


#: Float operators that end in a clip.
Bounded = Conv2d | ConvTranspose2d | Dense | Add | MaxPool | AvgPool


# ---- integer operators: the contract with the tensor expressions and the accelerator ----


@dataclass(frozen=True, eq=False)
class QConv2d(Op):
    """x int8 [N,C,H,W], weight int8 [OC,C/groups,KH,KW], bias int32 [OC] to int8 [N,OC,OH,OW].

    ::

        acc = bias[oc] + sum over c, kh, kw of
              (x[n, c, oh*sh + kh*dh - top, ow*sw + kw*dw - left] - x_zero_point) * weight
        y = requant(acc)

    in wrapping int32, where x outside the image is ``x_zero_point`` (it contributes nothing).
    The bias does NOT contain ``-x_zero_point * sum(weight)``.
    """

    strides: Pair
    pads: Pads
    dilations: Pair
    groups: int
    x_zero_point: int
    requant: Requant


@dataclass(frozen=True, eq=False)
class QConvTranspose2d(Op):
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


@dataclass(frozen=True, eq=False)
class QDense(Op):
    """x int8 [N,K], weight int8 [OC,K], bias int32 [OC] to int8 [N,OC].

    ``acc = bias[oc] + sum over k of (x[n, k] - x_zero_point) * weight[oc, k]`` in wrapping int32;
    ``y = requant(acc)``.
    """

    x_zero_point: int
    requant: Requant


@dataclass(frozen=True)
class QAdd(Op):
    """Inputs a, b int8 of one shape; output int8 of that shape.

    ``y = clamp(round_half_even((a*mult_a + b*mult_b + const) / 2**shift) + zero_point, lo, hi)``;
    every intermediate value fits int32 in any order of summation (see ``requant.add_params``), and
    1 <= shift <= 30.
    """

    mult_a: int
    mult_b: int
    shift: int
    const: int
    zero_point: int
    lo: int = INT8_MIN
    hi: int = INT8_MAX


@dataclass(frozen=True)
class QMaxPool(Op):
    """Input x int8 [N,C,H,W], output int8 [N,C,OH,OW] of the same scale and zero point.

    ``y = clamp(max over the window of x, lo, hi)`` where x outside the image is -128.
    """

    kernel: Pair
    strides: Pair
    pads: Pads
    lo: int = INT8_MIN
    hi: int = INT8_MAX


@dataclass(frozen=True, eq=False)
class QAvgPool(Op):
    """x int8 [N,C,H,W] to int8 [N,C,OH,OW]; a global average has a window of the image's size.

    ``acc = sum over the window of (x - x_zero_point)`` in int32, where x outside the image is
    ``x_zero_point``; ``y = requant(acc)``, the requantisation (shape [1]) includes 1 / (KH*KW).
    With padding, ``count_include_pad`` is always true: the other kind divides by a number that
    depends on the place, and stays a float operator.
    """

    kernel: Pair
    strides: Pair
    pads: Pads
    count_include_pad: bool
    x_zero_point: int
    requant: Requant


#: Integer operators with weights.
Product = QConv2d | QConvTranspose2d | QDense
