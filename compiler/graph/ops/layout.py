"""Operators that put elements into a target's layout: blocks of channels, windows side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ... import topi
from ...te.expr import Const, Expr, minimum, select
from ...te.tensor import Tensor, compute
from ..arithmetic.requant import OFFSET
from ..arithmetic.windows import windows
from .base import (
    Expression,
    Op,
    Pads,
    Pair,
    Shape,
    Type,
    expect,
    expect_dtypes,
    one_dtype,
    operands,
)
from .convolution import window_shape


def in_blocks(array: np.ndarray, block: int, axis: int) -> np.ndarray:
    """Split an axis into two, [blocks, block], filled up with zeros."""
    size = array.shape[axis]
    blocks = -(-size // block)
    missing = [(0, 0)] * array.ndim
    missing[axis] = (0, blocks * block - size)
    full = np.pad(array, missing)
    return full.reshape(*array.shape[:axis], blocks, block, *array.shape[axis + 1 :])


def lift(x: np.ndarray) -> np.ndarray:
    """int8 values as the uint8 values that mean the same: 128 more."""
    return (x.astype(np.int16) + OFFSET).astype(np.uint8)


def lifted(element: Expr) -> Expr:
    """An int8 element as the uint8 that means the same."""
    return element.astype("uint8") + OFFSET


@dataclass(frozen=True)
class ToBlocks(Op):
    """[N, C, H, W], or [N, H, W, C] if channels are ``last``, in blocks of ``block`` channels, [N,
    C/B, H, W, B]; channels beyond C are 0. If it ``lifts``, int8 elements become the uint8 elements
    that are 128 more."""

    block: int
    lifts: bool = False
    last: bool = False

    computes = False

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = operands(types, 1)
        expect(len(shape) == 4, "[N, H, W, C]" if self.last else "[N, C, H, W]")
        expect(not self.lifts or dtype == "int8", "int8")
        n, channels, height, width = self._sizes(shape)
        blocks = -(-channels // self.block)
        return (n, blocks, height, width, self.block), "uint8" if self.lifts else dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x = lift(args[0]) if self.lifts else args[0]
        x = np.moveaxis(x, -1, 1) if self.last else x
        return np.ascontiguousarray(in_blocks(x, self.block, 1).transpose(0, 1, 3, 4, 2))

    def _sizes(self, shape: Shape) -> Shape:
        """N, C, H and W of an operand."""
        n, *sizes = shape
        return (n, sizes[-1], *sizes[:-1]) if self.last else shape

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        [x], block = inputs, self.block
        n, channels, height, width = self._sizes(x.shape)

        def rule(n: Expr, cb: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
            channel = cb * block + c
            element: Expr = x[n, h, w, channel] if self.last else x[n, channel, h, w]
            element = lifted(element) if self.lifts else element
            if channels % block == 0:
                return element
            return select(channel < channels, element, Const(0, element.dtype))

        shape = (n, -(-channels // block), height, width, block)
        return Expression(compute(shape, rule, "out"), (x,))


@dataclass(frozen=True)
class FromBlocks(Op):
    """The first ``channels`` channels of a tensor in blocks, as [N, C, H, W], or as [N, H, W, C] if
    they are ``last``."""

    channels: int
    last: bool = False

    computes = False

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = operands(types, 1)
        expect(len(shape) == 5, "[N, C/B, H, W, B]")
        n, blocks, height, width, block = shape
        fits = (blocks - 1) * block < self.channels <= blocks * block
        expect(fits, f"blocks that hold {self.channels} channels")
        return self._shape(n, height, width), dtype

    def _shape(self, n: int, height: int, width: int) -> Shape:
        channels = self.channels
        return (n, height, width, channels) if self.last else (n, channels, height, width)

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        found = unblocked(args[0])[:, : self.channels]
        return np.moveaxis(found, 1, -1) if self.last else found

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        [x] = inputs
        n, _, height, width, block = x.shape

        def rule(*index: Expr) -> Expr:
            n, h, w, c = index if self.last else (index[0], *index[2:], index[1])
            return x[n, c // block, h, w, c % block]

        return Expression(compute(self._shape(n, height, width), rule, "out"), (x,))


def unblocked(x: np.ndarray) -> np.ndarray:
    """[N, C/B, H, W, B] as [N, C, H, W]."""
    n, blocks, height, width, block = x.shape
    return x.transpose(0, 1, 4, 2, 3).reshape(n, blocks * block, height, width)


@dataclass(frozen=True)
class Interleave(Op):
    """Images that take turns: row ``h`` and column ``w`` of the result come from operand
    ``h % rows * columns + w % columns``. Operands are [N, C, H, W], or in blocks."""

    rows: int
    columns: int

    computes = False

    def infer(self, *types: Type) -> Type:
        expect(len(types) == self.rows * self.columns, f"{self.rows * self.columns} operands")
        dtype = one_dtype(types)
        shapes = [shape for shape, _ in types]
        heights = [shape[2] for shape in shapes[:: self.columns]]
        widths = [shape[3] for shape in shapes[: self.columns]]
        n, c, *_ = first = shapes[0]
        expected = [(n, c, h, w, *first[4:]) for h in heights for w in widths]
        even = all(sizes[0] - sizes[-1] in (0, 1) and sizes == sorted(sizes, reverse=True)
                      for sizes in (heights, widths))  # fmt: skip
        expect(len(first) in (4, 5) and shapes == expected and even, "images that take turns")
        return (n, c, sum(heights), sum(widths), *first[4:]), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        shape, dtype = self.infer(*((a.shape, str(a.dtype)) for a in args))
        found = np.empty(shape, dtype)
        for turn, array in enumerate(args):
            row, column = divmod(turn, self.columns)
            found[:, :, row :: self.rows, column :: self.columns] = array
        return found

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        shape, _ = self.infer(*((x.shape, x.dtype) for x in inputs))

        def rule(*index: Expr) -> Expr:
            n, c, h, w, *lane = index

            def element(x: Tensor) -> Expr:
                # An image that is shorter than others is not read beyond its end.
                row, column = (
                    place if size == x_size else minimum(place, x_size - 1)
                    for place, size, x_size in zip(
                        (h // self.rows, w // self.columns), inputs[0].shape[2:4], x.shape[2:4],
                        strict=True,
                    )
                )  # fmt: skip
                return x[(n, c, row, column, *lane)]

            found = element(inputs[-1])
            for turn, x in reversed([*enumerate(inputs)][:-1]):
                row, column = divmod(turn, self.columns)
                here = (h % self.rows).equal(row) & (w % self.columns).equal(column)
                found = select(here, element(x), found)
            return found

        return Expression(compute(shape, rule, "out"), tuple(inputs))


@dataclass(frozen=True)
class BlockReshape(Op):
    """int8 [N,C,H,W] to [N,C*H*W] or back (``shape`` is the result's). The vector's elements are in
    the order [C/block][H][W][block]; ``block`` divides C.
    """

    shape: Shape
    block: int

    moves = True

    def infer(self, *types: Type) -> Type:
        [given] = expect_dtypes(types, "int8")
        expect({len(given), len(self.shape)} == {2, 4}, "an image or a vector of each")
        channels = next(s for s in (given, self.shape) if len(s) == 4)[1]
        expect(channels % self.block == 0, f"whole blocks of {self.block} channels")
        expect(prod(given) == prod(self.shape), f"as many elements as {list(self.shape)}")
        return self.shape, "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        (x,) = args
        block = self.block
        if x.ndim == 4:
            n, c, h, w = x.shape
            apart = x.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2)
        else:
            n, c, h, w = self.shape
            apart = x.reshape(n, c // block, h, w, block).transpose(0, 1, 4, 2, 3)
        return np.ascontiguousarray(apart).reshape(self.shape)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        [x], block = inputs, self.block

        def flattened(n: Expr, k: Expr) -> Expr:
            _, _, height, width = x.shape
            place = k // block
            channel = place // (height * width) * block + k % block
            return x[n, channel, place // width % height, place % width]

        def unfolded(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
            _, _, height, width = self.shape
            return x[n, ((c // block * height + h) * width + w) * block + c % block]

        rule = flattened if len(x.shape) == 4 else unfolded
        return Expression(compute(self.shape, rule, "out"), (x,))


@dataclass(frozen=True)
class PackWindows(Op):
    """x int8 [N,C,H,W] to int8 [N,C*KH*KW,OH,OW]: each output pixel's window, channel by channel;
    positions outside the image are ``fill``.
    """

    kernel: Pair
    strides: Pair
    pads: Pads
    fill: int

    computes = False

    def infer(self, *types: Type) -> Type:
        [x] = expect_dtypes(types, "int8")
        expect(len(x) == 4, "an image [N, C, H, W]")
        size = window_shape(x[2:], self.kernel, self.strides, self.pads, (1, 1))
        return (x[0], x[1] * prod(self.kernel), *size), "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        seen = windows(args[0], self.kernel, self.strides, self.pads, fill=self.fill)
        n, channels, rows, cols, kh, kw = seen.shape
        moved = seen.transpose(0, 1, 4, 5, 2, 3)
        return np.ascontiguousarray(moved).reshape(n, channels * kh * kw, rows, cols)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        [x] = inputs
        image = topi.windows.padded_image(x, self.pads, Const(self.fill, "int8"), "padded")
        (kh, kw), (sh, sw) = self.kernel, self.strides
        (shape, _) = self.infer((x.shape, x.dtype))

        def rule(n: Expr, k: Expr, oh: Expr, ow: Expr) -> Expr:
            row, col = k // kw % kh, k % kw
            return image[n, k // (kh * kw), oh * sh + row, ow * sw + col]

        return Expression(compute(shape, rule, "out"), (x,))
