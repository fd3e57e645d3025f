"""Operators on blocks of channels, float32: what the CPU runs instead of NCHW operators.

A blocked tensor is [N, C/B, H, W, B]: B channels lie side by side, as a vector register holds
them; channels beyond C are 0. ``targets/cpu/passes/block_channels.py`` makes these operators, their
expressions are in ``targets/cpu/blocked.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..arithmetic.requant import Requant
from ..arithmetic.winograd import KERNEL, points_of
from .general import Misfit, Primitive, Type, windows
from .integer import AvgPool, MaxPool, Pads, Pair, QMaxPool

FLOAT32 = "float32"


def _expect(condition: bool, expected: str) -> None:
    if not condition:
        raise Misfit(expected)


class BlockedOp(Primitive):
    """Base of these operators."""


@dataclass(frozen=True)
class ToBlocks(BlockedOp):
    """[N, C, H, W] in blocks of ``block`` channels; of int8 it ``lifts`` elements to uint8 that are
    128 more."""

    block: int
    lifts: bool = False

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = types
        _expect(len(shape) == 4, "[N, C, H, W]")
        _expect(not self.lifts or dtype == "int8", "int8")
        n, channels, height, width = shape
        blocks = -(-channels // self.block)
        return (n, blocks, height, width, self.block), "uint8" if self.lifts else dtype


@dataclass(frozen=True)
class FromBlocks(BlockedOp):
    """The first ``channels`` channels of a blocked tensor as [N, C, H, W]."""

    channels: int

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = types
        _expect(len(shape) == 5, "[N, C/B, H, W, B]")
        n, blocks, height, width, block = shape
        fits = (blocks - 1) * block < self.channels <= blocks * block
        _expect(fits, f"blocks that hold {self.channels} channels")
        return (n, self.channels, height, width), dtype


@dataclass(frozen=True)
class BlockedConv2d(BlockedOp):
    """Convolution, bias, residual addition and clip: ``clip(conv(x, w) + bias + residual)``.

    ====================  =============================================
    x                     weight
    ====================  =============================================
    [N, C/B, H, W, B]     [OC/B, C/B, KH, KW, B of input, B of output]
    [N, C, H, W]          [OC/B, C, KH, KW, B]
    ====================  =============================================

    The bias is [OC/B, B]; the residual, if there is one, has the result's shape
    [N, OC/B, OH, OW, B]. Sums may be rounded fewer times than there are operations.
    """

    strides: Pair
    pads: Pads
    dilations: Pair
    lo: float = -math.inf
    hi: float = math.inf

    def infer(self, *types: Type) -> Type:
        x, weight, bias = _shapes(types)
        blocked = len(x) == 5 and len(weight) == 6 and x[4] == weight[4]
        _expect(blocked or (len(x) == 4 and len(weight) == 5), "an image and a weight that fit it")
        _expect(weight[1] == x[1] and bias == (weight[0], weight[-1]), "equal channels")
        return _result(self, types, x, (weight[2], weight[3]), bias)


@dataclass(frozen=True)
class BlockedWinograd(BlockedOp):
    """:class:`BlockedConv2d` of 3 x 3 kernels, a tile of ``size`` x ``size`` results at a time
    (``graph/arithmetic/winograd.py``).

    x [N, C/B, H, W, B]; weight [n, n, OC/B, C/B, B of input, B of output] at ``n = size + 2``
    points each way; bias and residual as there.
    """

    size: int
    pads: Pads
    lo: float = -math.inf
    hi: float = math.inf

    def infer(self, *types: Type) -> Type:
        x, weight, bias = _shapes(types)
        points = (points_of(self.size),) * 2
        fits = len(x) == 5 and len(weight) == 6 and (x[1], x[4]) == weight[3:5]
        _expect(fits and weight[:2] == points, "a blocked image and a weight that fits it")
        _expect(bias == (weight[2], weight[5]), "equal channels")
        return _result(self, types, x, (KERNEL, KERNEL), bias)

    @property
    def strides(self) -> Pair:
        return (1, 1)

    @property
    def dilations(self) -> Pair:
        return (1, 1)


@dataclass(frozen=True)
class BlockedDepthwise(BlockedOp):
    """Convolution of each channel by itself, bias, residual and clip, as :class:`BlockedConv2d`.

    x [N, C/B, H, W, B], weight [C/B, KH, KW, B], bias [C/B, B].
    """

    strides: Pair
    pads: Pads
    dilations: Pair
    lo: float = -math.inf
    hi: float = math.inf

    def infer(self, *types: Type) -> Type:
        x, weight, bias = _shapes(types)
        _expect(len(x) == 5 and len(weight) == 4, "a blocked image and a weight of rank 4")
        fits = (x[1], x[4]) == bias == (weight[0], weight[3])
        _expect(fits, "equal channels")
        return _result(self, types, x, (weight[1], weight[2]), bias)


@dataclass(frozen=True)
class BlockedConvTranspose2d(BlockedOp):
    """Transposed convolution, bias and clip: each remainder of a place by the stride is a
    convolution with every stride-th tap, with a weight of its own.

    x [N, C/B, H, W, B]; weight [SH, SW, OC/B, C/B, TH, TW, B of input, B of output]; bias
    [OC/B, B]; result [N, OC/B, *size, B]. Place ``o = q * s + r`` is, with ``before`` as b::

        sum over j of x[q + (r + b) // s + j - (T - 1)] * weight[r, ..., j]
    """

    before: Pair
    size: Pair
    lo: float = -math.inf
    hi: float = math.inf

    def infer(self, *types: Type) -> Type:
        (x, _), (weight, _), (bias, _) = types
        _expect({dtype for _, dtype in types} == {FLOAT32}, "operands of float32")
        fits = len(x) == 5 and len(weight) == 8 and (x[1], x[4]) == (weight[3], weight[6])
        _expect(fits and bias == (weight[2], weight[7]), "an image and a weight that fit it")
        return (x[0], bias[0], *self.size, bias[1]), FLOAT32


def _shapes(types: tuple[Type, ...]) -> list[tuple[int, ...]]:
    """Of image, weight and bias."""
    _expect(len(types) in (3, 4), "image, weight, bias and at most one residual")
    return [shape for shape, _ in types[:3]]


def _result(
    op: BlockedConv2d | BlockedWinograd | BlockedDepthwise,
    types: tuple[Type, ...],
    x: tuple[int, ...],
    kernel: Pair,
    bias: tuple[int, ...],
) -> Type:
    _expect({dtype for _, dtype in types} == {FLOAT32}, "operands of float32")
    height, width = windows(x[2:4], kernel, op.strides, op.pads, op.dilations)
    shape = (x[0], bias[0], height, width, bias[1])
    _expect(all(residual == shape for residual, _ in types[3:]), f"a residual {list(shape)}")
    return shape, FLOAT32


@dataclass(frozen=True, eq=False)
class BlockedQConv2d(BlockedOp):
    """:class:`~.ops.QConv2d` on blocks, for each channel by itself where ``depthwise``.

    x int8 as for :class:`BlockedConv2d`, the weight's shape as there or for
    :class:`BlockedDepthwise`, but int32: products are of int32, and elements are widened once.
    Bias, multiplier and shift are int32 [OC/B, B], or the bias is, and factor, offset and perhaps
    rest of a :class:`~.floor_requant.FloorRequant` are float32; the result is int8.
    """

    strides: Pair
    pads: Pads
    dilations: Pair
    depthwise: bool
    x_zero_point: int
    requant: Requant

    def infer(self, *types: Type) -> Type:
        (x, x_dtype), (weight, _), *columns = types
        _expect([dtype for _, dtype in types[:2]] == ["int8", "int32"], "int8, then int32")
        wide = (x[1], x[4]) if self.depthwise else (x[1], *x[4:])
        kernel = weight[1:3] if self.depthwise else weight[2:4]
        given = (weight[0], weight[3]) if self.depthwise else (weight[1], *weight[4:-1])
        _expect(wide == given, "an image and a weight that fit it")
        shape = (weight[0], weight[-1])
        _expect_columns(columns, shape)
        height, width = windows(x[2:4], kernel, self.strides, self.pads, self.dilations)
        return (x[0], shape[0], height, width, shape[1]), x_dtype


def _expect_columns(columns: list[Type], shape: Pair) -> None:
    """A bias, and by what its sums are rescaled."""
    _expect({column for column, _ in columns} == {shape}, f"columns {list(shape)}")
    dtypes = [dtype for _, dtype in columns]
    known = (["int32"] * 3, ["int32", *[FLOAT32] * 2], ["int32", *[FLOAT32] * 3])
    _expect(
        dtypes in known, f"a bias of int32 and two columns of int32, or two or three of {FLOAT32}"
    )


@dataclass(frozen=True, eq=False)
class BlockedDotConv2d(BlockedOp):
    """:class:`~.ops.QConv2d` by an instruction that adds products of four uint8 and int8 at once:
    of four channels, or of four places of a row for each channel by itself where ``depthwise``.

    x int8 [N, C/X, H, W, X], X a multiple of 4; weight int8 [OC/B, C/X, KH, KW, X/4, B, 4], or for
    depthwise [C/B, KH, KW/4, B, 4]; columns [OC/B, B] as there; the result is int8. Elements are
    made uint8 by adding 128, a border is of zero points: the bias is ``(zero point + 128) * sum of
    weights`` less than the operator's. x may be uint8 already, and is the result of an operator
    that ``lifts`` it.
    """

    strides: Pair
    pads: Pads
    dilations: Pair
    depthwise: bool
    x_zero_point: int
    requant: Requant
    lifts: bool = False

    def infer(self, *types: Type) -> Type:
        (x, x_dtype), (weight, _), *columns = types
        fits = x_dtype in ("int8", "uint8") and types[1][1] == "int8"
        _expect(fits, "int8 or uint8, then int8")
        if self.depthwise:
            given, kernel = (weight[0], weight[3]), (weight[1], weight[2] * weight[4])
        else:
            given, kernel = (weight[1], weight[4] * weight[6]), weight[2:4]
        _expect((x[1], x[4]) == given, "an image and a weight that fit it")
        shape = (weight[0], weight[-2])
        _expect_columns(columns, shape)
        height, width = windows(x[2:4], kernel, self.strides, self.pads, self.dilations)
        return (x[0], shape[0], height, width, shape[1]), "uint8" if self.lifts else "int8"


@dataclass(frozen=True)
class BlockedPool(BlockedOp):
    """A pooling operator on a blocked tensor: float32, or int8 with a zero point that stays."""

    pool: MaxPool | AvgPool | QMaxPool

    def infer(self, *types: Type) -> Type:
        [(x, dtype)] = types
        wanted = "int8" if isinstance(self.pool, QMaxPool) else FLOAT32
        _expect(len(x) == 5 and dtype == wanted, f"a blocked {wanted} tensor")
        size = windows(x[2:4], self.pool.kernel, self.pool.strides, self.pool.pads, (1, 1))
        return (*x[:2], *size, x[4]), dtype


@dataclass(frozen=True)
class PackedDense(BlockedOp):
    """``clip(x @ w + bias)``: x [N, K], weight [OC/B, K, B], bias [OC/B, B]; result [N, OC]."""

    features: int
    lo: float = -math.inf
    hi: float = math.inf

    def infer(self, *types: Type) -> Type:
        (x, _), (weight, _), (bias, _) = types
        _expect({dtype for _, dtype in types} == {FLOAT32}, "operands of float32")
        fits = len(x) == 2 and len(weight) == 3 and x[1] == weight[1]
        _expect(fits and bias == (weight[0], weight[2]), "a matrix and a packed weight")
        blocks, _, block = weight
        _expect((blocks - 1) * block < self.features <= blocks * block, "blocks of all features")
        return (x[0], self.features), FLOAT32
