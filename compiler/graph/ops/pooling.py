"""Pooling: reductions over windows of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ... import topi
from ...te.expr import Expr
from ...te.tensor import Tensor, clip, compute, placeholder
from ...topi.pooling import mean_of
from ...topi.reduction import neutral
from ..arithmetic.requant import INT8_MAX, INT8_MIN, Requant, mean_requant
from ..arithmetic.windows import windows
from . import base
from .base import (
    Bounded,
    Expression,
    Fusion,
    Op,
    Pads,
    Pair,
    Shape,
    Type,
    expect,
    expect_dtypes,
    int32,
    operands,
)
from .convolution import shifted_image, window_shape
from .epilogue import bounded, requantized


def _pooled(x: Shape, kernel: Pair, strides: Pair, pads: Pads) -> Shape:
    expect(len(x) == 4, "a 4-dimensional input (2-D pooling)")
    smaller = max(pads[0], pads[2]) < kernel[0] and max(pads[1], pads[3]) < kernel[1]
    expect(smaller and min(pads) >= 0, f"padding smaller than the window {kernel}, not {pads}")
    return *x[:2], *window_shape(x[2:], kernel, strides, pads, (1, 1))


@dataclass(frozen=True)
class Pool(Op):
    """Sum or maximum ("+", "max") over windows; positions outside the image do not count.

    Any rank and dtype; ``pads`` lists the padding before every dimension, then the padding after
    every dimension.
    """

    kind: str
    kernel: Shape
    strides: Shape
    pads: Shape
    dilations: Shape

    fusion = Fusion.REDUCTION

    def infer(self, *types: Type) -> Type:
        [(x, dtype)] = operands(types, 1)
        expect(len(x) == len(self.kernel) + 2, f"rank {len(self.kernel) + 2}")
        size = window_shape(x[2:], self.kernel, self.strides, self.pads, self.dilations)
        return (*x[:2], *size), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        (x,) = args
        rank = len(self.kernel)
        fill = neutral(self.kind, str(x.dtype)).value
        seen = windows(x, self.kernel, self.strides, self.pads, self.dilations, fill)
        taps = tuple(range(2 + rank, 2 + 2 * rank))
        if self.kind == "max":
            return seen.max(axis=taps)
        wide = np.float64 if x.dtype.kind == "f" else x.dtype
        return seen.sum(axis=taps, dtype=wide).astype(x.dtype)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        attributes = self.kernel, self.strides, self.pads, self.dilations
        return Expression(topi.pool(self.kind, inputs[0], *attributes, name="out"), tuple(inputs))


@dataclass(frozen=True)
class PoolArg(Op):
    """int64 index, in the whole row-major tensor, of the first largest element of each window.

    ``column_major``: the spatial part of the index counts the first dimension fastest. Even then,
    row-major order decides which of several equal elements is the first.
    """

    pool: Pool
    column_major: bool = False

    def infer(self, *types: Type) -> Type:
        return self.pool.infer(*types)[0], "int64"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        (x,), pool = args, self.pool
        rank, total = len(pool.kernel), x.size
        spatial = np.arange(math.prod(x.shape[2:])).reshape(1, 1, *x.shape[2:])
        where = (pool.kernel, pool.strides, pool.pads, pool.dilations)
        seen = windows(x, *where, fill=neutral("max", str(x.dtype)).value)
        positions = windows(spatial, *where, fill=-1)
        taps = tuple(range(2 + rank, 2 + 2 * rank))
        best = seen.max(axis=taps, keepdims=True)
        images = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * (2 * rank))
        found = positions + images * spatial.size
        inside = (positions >= 0) & (seen == best)
        rows = np.where(inside, found, total - 1).min(axis=taps)
        if not self.column_major:
            return rows.astype(np.int64)
        image, place = np.divmod(rows, spatial.size)
        axes = np.unravel_index(place, x.shape[2:])
        turned = np.ravel_multi_index(axes[::-1], x.shape[2:][::-1])
        return (image * spatial.size + turned).astype(np.int64)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        pool = self.pool
        attributes = pool.kernel, pool.strides, pool.pads, pool.dilations
        out = topi.pool_places(inputs[0], *attributes, self.column_major)
        return Expression(out, tuple(inputs))


class _Pool2d(Op):
    """Base: a window over an image [N, C, H, W], inside which are elements of it."""

    kernel: Pair
    strides: Pair
    pads: Pads

    fusion = Fusion.REDUCTION
    #: Of the image and of the result.
    dtype: ClassVar[str] = "int8"

    def infer(self, *types: Type) -> Type:
        [x] = expect_dtypes(types, self.dtype)
        return _pooled(x, self.kernel, self.strides, self.pads), self.dtype


@dataclass(frozen=True)
class MaxPool(Bounded, _Pool2d):
    """Float maximum over windows; padding never wins. Clipped to lo..hi."""

    kernel: Pair
    strides: Pair
    pads: Pads
    lo: float = -math.inf
    hi: float = math.inf

    dtype = "float32"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        seen = windows(args[0], self.kernel, self.strides, self.pads, fill=-np.inf)
        return base.clip(seen.max(axis=(4, 5)), self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        acc = topi.pool("max", inputs[0], self.kernel, self.strides, self.pads, (1, 1))
        return Expression(bounded(acc, self.lo, self.hi), tuple(inputs))


@dataclass(frozen=True)
class AvgPool(Bounded, _Pool2d):
    """Float mean over windows; the padding counts if ``count_include_pad``. Clipped to lo..hi."""

    kernel: Pair
    strides: Pair
    pads: Pads
    count_include_pad: bool = False
    lo: float = -math.inf
    hi: float = math.inf

    dtype = "float32"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        (x,) = args
        total = windows(x, self.kernel, self.strides, self.pads).sum(axis=(4, 5))
        image = np.ones((1, 1, *x.shape[2:]), x.dtype)
        fill = 1 if self.count_include_pad else 0
        counts = windows(image, self.kernel, self.strides, self.pads, fill=fill).sum(axis=(4, 5))
        return base.clip(total / counts, self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        [x] = inputs
        acc = topi.pool("+", x, self.kernel, self.strides, self.pads, (1, 1))

        def rule(n: Expr, c: Expr, oh: Expr, ow: Expr) -> Expr:
            window = self.kernel, self.strides, self.pads, x.shape[2:]
            mean = mean_of(acc[n, c, oh, ow], (oh, ow), *window, self.count_include_pad)
            return topi.clip_between(mean, self.lo, self.hi)

        return Expression(compute(acc.shape, rule, "out"), tuple(inputs))


@dataclass(frozen=True)
class QMaxPool(_Pool2d):
    """Input x int8 [N,C,H,W], output int8 [N,C,OH,OW] of the same scale and zero point.

    ``y = clamp(max over the window of x, lo, hi)`` where x outside the image is -128.
    """

    kernel: Pair
    strides: Pair
    pads: Pads
    lo: int = INT8_MIN
    hi: int = INT8_MAX

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        seen = windows(args[0], self.kernel, self.strides, self.pads, fill=INT8_MIN)
        return np.clip(seen.max(axis=(4, 5)), self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        acc = topi.pool("max", inputs[0], self.kernel, self.strides, self.pads, (1, 1))
        out = compute(acc.shape, lambda *index: clip(acc[index], self.lo, self.hi), "out")
        return Expression(out, tuple(inputs))


@dataclass(frozen=True, eq=False)
class QAvgPool(_Pool2d):
    """x int8 [N,C,H,W] to int8 [N,C,OH,OW]; a global average has a window of the image's size.

    ``acc = sum over the window of (x - x_zero_point)`` in int32, where x outside the image is
    ``x_zero_point``; ``y = requant(acc)``, the requantisation (shape [1]) includes 1 / (KH*KW).
    With padding, ``count_include_pad`` is always true: the other kind divides by a number that
    depends on the position, and stays a float operator.
    """

    kernel: Pair
    strides: Pair
    pads: Pads
    count_include_pad: bool
    x_zero_point: int
    requant: Requant

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        shifted = args[0].astype(np.int64) - self.x_zero_point
        total = windows(shifted, self.kernel, self.strides, self.pads).sum(axis=(4, 5))
        return self.requant.apply(int32(total))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """The stages are ``shifted`` (int16), ``acc`` (int32) and ``out``."""
        acc = _shifted_sum(inputs[0], self.kernel, self.strides, self.pads, self.x_zero_point)
        return requantized(acc, self.requant, inputs)


def _shifted_sum(x: Tensor, kernel: Pair, strides: Pair, pads: Pads, zero_point: int) -> Tensor:
    """Sums of ``x - zero_point`` over windows, int32."""
    image = shifted_image(x, pads, zero_point)
    return topi.pool("+", image, kernel, strides, (0, 0, 0, 0), (1, 1), dtype="int32")


@dataclass(frozen=True)
class QAvgPoolValid(Op):
    """x int8 [N,C,H,W] to int8 [N,C,OH,OW]: a mean over the positions of a window inside the image.

    ``y = clamp(sum of (x - zero_point) / count + zero_point, lo, hi)``, the quotient rounded half
    away from zero; ``count`` positions are inside.
    """

    kernel: Pair
    strides: Pair
    pads: Pads
    zero_point: int
    lo: int = INT8_MIN
    hi: int = INT8_MAX

    fusion = Fusion.REDUCTION

    def infer(self, *types: Type) -> Type:
        [x] = expect_dtypes(types, "int8")
        expect(len(x) == 4, "a 4-dimensional input (2-D pooling)")
        return (*x[:2], *window_shape(x[2:], self.kernel, self.strides, self.pads, (1, 1))), "int8"

    def counts(self, size: Pair) -> tuple[np.ndarray, np.ndarray]:
        """How many rows of a window are inside the image, for each row of windows; and how many
        columns, for each column of windows.
        """
        counts = window_shape(size, self.kernel, self.strides, self.pads, (1, 1))
        found = []
        for dim in (0, 1):
            first = np.arange(counts[dim]) * self.strides[dim] - self.pads[dim]
            last = np.minimum(first + self.kernel[dim], size[dim])
            found.append(last - np.maximum(first, 0))
        return found[0], found[1]

    def divisors(self, size: Pair) -> tuple[np.ndarray, np.ndarray]:
        """Multiplier and shift, int32 [OH,OW], of a requantisation that divides by the counts."""
        rows, cols = self.counts(size)
        requants = [[mean_requant(int(r * c), 0) for c in cols] for r in rows]
        multiplier = np.array([[r.multiplier[0] for r in row] for row in requants], np.int32)
        shift = np.array([[r.shift[0] for r in row] for row in requants], np.int32)
        return multiplier, shift

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        (x,) = args
        rows, cols = self.counts((x.shape[2], x.shape[3]))
        shifted = x.astype(np.int64) - self.zero_point
        total = windows(shifted, self.kernel, self.strides, self.pads).sum(axis=(4, 5))
        count = np.outer(rows, cols)
        mean = np.sign(total) * ((np.abs(total) + count // 2) // count)
        return np.clip(mean + self.zero_point, self.lo, self.hi).astype(np.int8)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """The stages are ``shifted`` (int16, zero outside), ``acc`` (int32) and ``out``."""
        [x] = inputs
        acc = _shifted_sum(x, self.kernel, self.strides, self.pads, self.zero_point)
        multiplier = placeholder(acc.shape[2:], "int32", "multiplier")
        shift = placeholder(acc.shape[2:], "int32", "shift")

        def mean(n: Expr, c: Expr, oh: Expr, ow: Expr) -> Expr:
            factors = multiplier[oh, ow], shift[oh, ow]
            scaled = topi.rescale(acc[n, c, oh, ow], *factors, dtype="int32")
            return topi.quantisation.clipped(scaled, self.zero_point, self.lo, self.hi)

        divisors = self.divisors((x.shape[2], x.shape[3]))
        out = compute(acc.shape, mean, "out")
        return Expression(out, (x, multiplier, shift), divisors)
