"""Products and transpositions of images in groups of channels: attention on the accelerator.

A matrix is an image whose positions are its rows, [1, C, N, 1]. Several matrices, one for each
head, are groups of channels of one image. These operators say how many channels a group has, so
that groups can be filled up to whole blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....isa.vector_ops import shift_right_half_even
from ... import topi
from ...te.expr import Const, Expr, minimum, select
from ...te.tensor import Tensor, compute, placeholder, reduce_axis, sum_of
from ..arithmetic.requant import INT8_MAX, INT8_MIN, Requant
from .base import Expression, Fusion, Op, Shape, Type, expect, expect_dtypes, int32
from .epilogue import requantized

#: The axis of the positions of an image [1, C, N, 1].
POSITIONS = 2


@dataclass(frozen=True, eq=False)
class QGroupMatMul(Op):
    """Products of two images, group by group: a int8 [1,G*K,A,1] and b int8 [1,G*K,N,1] to int8
    [1,G*W,M,1], G is ``groups``, W is ``width``, and M is ``places``; a may have more.

    ``acc = sum over k of (a[g*K + k, m] - a_zero_point) * (b[g*K + k, n] - b_zero_point)`` in
    wrapping int32; ``y[g*W + n, m] = requant(acc)``, with one parameter set for all elements. The
    channels from N to W of each group are ``requant(0)``.

    Where queries are grouped, an image has fewer groups: each is read by ``a_readers`` or
    ``b_readers`` groups of the result, one behind another.
    """

    groups: int
    width: int
    places: int
    a_zero_point: int
    b_zero_point: int
    requant: Requant
    a_readers: int = 1
    b_readers: int = 1

    fusion = Fusion.REDUCTION

    def infer(self, *types: Type) -> Type:
        a, b = expect_dtypes(types, "int8", "int8")
        for image, readers in ((a, self.a_readers), (b, self.b_readers)):
            expect(self.groups % readers == 0, f"a number of groups that divides {self.groups}")
            expect_image(image, self.groups // readers)
        alike = a[1] * self.a_readers == b[1] * self.b_readers
        expect(alike, "images of as many channels in each group")
        expect(a[2] >= self.places, f"at least {self.places} places of the first image")
        expect(b[2] <= self.width, f"at most {self.width} places of the second image")
        return (1, self.groups * self.width, self.places, 1), "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        zero_points = (self.a_zero_point, self.b_zero_point)
        readers = (self.a_readers, self.b_readers)
        a, b = (
            (x.astype(np.int64).reshape(self.groups // count, -1, x.shape[2]) - zero).repeat(
                count, 0
            )
            for x, zero, count in zip(args, zero_points, readers, strict=True)
        )
        acc = np.zeros((self.groups, self.width, self.places), np.int64)
        acc[:, : b.shape[2]] = b.transpose(0, 2, 1) @ a[:, :, : self.places]
        return self.requant.apply(int32(acc).reshape(1, -1, self.places, 1))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        a, b = (
            compute(x.shape, lambda *i, x=x, z=zero: x[i].astype("int32") - z, "shifted")
            for x, zero in zip(inputs, (self.a_zero_point, self.b_zero_point), strict=True)
        )
        size = a.shape[1] * self.a_readers // self.groups
        positions, width = b.shape[2], self.width
        k = reduce_axis(size, "k")

        def products(y: Expr, c: Expr, m: Expr, x: Expr) -> Expr:
            n = minimum(c % width, Const(positions - 1))
            first, second = (
                c // (width * count) * size + k for count in (self.a_readers, self.b_readers)
            )
            return sum_of(a[0, first, m, 0] * b[0, second, n, 0], k)

        acc = compute((1, self.groups * width, self.places, 1), products, "products")
        known = compute(
            acc.shape,
            lambda *i: select(i[1] % width < positions, acc[i], Const(0, "int32")),
            "known",
        )
        return requantized(known if positions < width else acc, self.requant, inputs)

    def macs(self, *shapes: Shape) -> int:
        a, b = shapes
        return a[1] * self.a_readers * self.places * b[2]


@dataclass(frozen=True)
class TransposeGroups(Op):
    """A transposition of channels and positions of an image, group by group: int8 [1,G*C,R,1] to
    [1,G*W,C,1], G is ``groups`` and W is ``width``: ``y[g*W + r, c] = x[g*C + c, r]``. The channels
    from R to W of each group are ``fill``.
    """

    groups: int
    width: int
    fill: int

    computes = False

    def infer(self, *types: Type) -> Type:
        [x] = expect_dtypes(types, "int8")
        expect_image(x, self.groups)
        expect(x[2] <= self.width, f"at most {self.width} places")
        return (1, self.groups * self.width, x[1] // self.groups, 1), "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        [x] = args
        groups = x.reshape(self.groups, -1, x.shape[2]).transpose(0, 2, 1)
        missing = self.width - x.shape[2]
        full = np.pad(groups, ((0, 0), (0, missing), (0, 0)), constant_values=self.fill)
        return full.reshape(1, -1, full.shape[2], 1)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        [x], width = inputs, self.width
        size, positions = x.shape[1] // self.groups, x.shape[2]

        def moved(y: Expr, c: Expr, m: Expr, z: Expr) -> Expr:
            row = c % width
            found = x[0, c // width * size + m, minimum(row, Const(positions - 1)), 0]
            return select(row < positions, found, Const(self.fill, "int8"))

        return Expression(compute((1, self.groups * width, size, 1), moved, "out"), (x,))


@dataclass(frozen=True, eq=False)
class QAddChannels(Op):
    """An image plus a constant for each channel: x int8 [1,C,N,1] to int8 of that shape.

    ``y = clamp(round_half_even((x*mult + const[c]) / 2**shift) + zero_point)``; every intermediate
    value fits int32, and 1 <= shift <= 30. ``const`` is int32 [C].
    """

    mult: int
    shift: int
    const: np.ndarray
    zero_point: int

    def infer(self, *types: Type) -> Type:
        [x] = expect_dtypes(types, "int8")
        expect_image(x, 1)
        expect(x[1] == len(self.const), f"an image of {len(self.const)} channels")
        return x, "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        total = args[0].astype(np.int64) * self.mult + self.const.reshape(1, -1, 1, 1)
        rounded = shift_right_half_even(total, np.asarray(self.shift)) + self.zero_point
        return np.clip(rounded, INT8_MIN, INT8_MAX).astype(np.int8)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        [x], const = inputs, placeholder((len(self.const),), "int32", "const")

        def rule(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
            total = x[n, c, h, w].astype("int32") * self.mult + const[c]
            scaled = topi.rescale(total, 1, self.shift)
            return topi.quantisation.clipped(scaled, self.zero_point, INT8_MIN, INT8_MAX)

        return Expression(compute(x.shape, rule, "out"), (x, const), (self.const,))


def expect_image(shape: Shape, groups: int) -> None:
    """Raise Misfit unless a shape is an image [1, C, N, 1] whose channels make groups."""
    is_image = len(shape) == 4 and shape[0] == shape[3] == 1
    expect(is_image and shape[1] % groups == 0, f"[1, C, N, 1] whose channels make {groups} groups")
