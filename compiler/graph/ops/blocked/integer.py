"""Convolutions of int8 on blocks of channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....te.expr import Call, Const, Expr, wrap
from ....te.tensor import Tensor, clip, compute, reduce_axis, sum_of
from ....topi.windows import padded_image
from ...arithmetic.requant import MULTIPLIER_BITS, OFFSET, Requant
from ...arithmetic.windows import convolve
from ..base import Expression, Pads, Pair, Shape, Type, expect
from ..layout import lift, lifted, unblocked
from .windows import (
    Windowed,
    block_read,
    conv_sums,
    count_groups,
    counts_inside,
    depthwise_sums,
    depthwise_value,
    image_blocks,
    plain_image,
    plain_weight,
)

FLOAT32 = "float32"


def _expect_columns(columns: Sequence[Type], shape: Shape) -> None:
    """Check the columns of a convolution: a bias, and the factors that rescale the sums."""
    expect({column for column, _ in columns} == {shape}, f"columns {list(shape)}")
    dtypes = [dtype for _, dtype in columns]
    known = (["int32"] * 3, ["int32", *[FLOAT32] * 2], ["int32", *[FLOAT32] * 3])
    expect(
        dtypes in known, f"a bias of int32 and two columns of int32, or two or three of {FLOAT32}"
    )


def _rescaled_value(requant: Requant, acc: np.ndarray, columns: Sequence[np.ndarray]) -> np.ndarray:
    """``acc`` [N, OC/B, H, W, B], int64, plus the bias, requantised by the other columns."""
    bias, *scaling = [column[None, :, None, None, :] for column in columns]
    total = (acc + bias).astype(np.int32)
    if scaling[0].dtype == np.int32:
        channels = replace(requant, multiplier=columns[1].reshape(-1), shift=columns[2].reshape(-1))
        plain = channels.apply(unblocked(total))
        return image_blocks(plain, total.shape[-1])
    # In exact numbers: rounding down does not change the floor (``arithmetic/floor_requant.py``).
    factor, offset, *rest = (column.astype(np.float64) for column in scaling)
    wide = total.astype(np.float64)
    for more in rest:
        offset = _rounded_down(wide * more + offset)
    return np.clip(np.floor(wide * factor + offset), requant.lo, requant.hi).astype(np.int8)


def _rounded_down(x: np.ndarray) -> np.ndarray:
    """float64 to the next float32 below or equal, as float64."""
    nearest = x.astype(np.float32)
    lower = np.nextafter(nearest, np.float32(-np.inf))
    return np.where(nearest.astype(np.float64) > x, lower, nearest).astype(np.float64)


def requantized(
    sums: Callable[..., Expr],
    shape: Shape,
    requant: Requant,
    columns: Sequence[Tensor],
    epilogue: Callable[[Expr], Expr] = lambda element: element,
) -> Tensor:
    """Requantise ``sums``, a function of the result's indices that includes the bias (the first
    column), by the other columns."""
    scaling = columns[1:]
    fits = bool((requant.shift > MULTIPLIER_BITS).all())  # scales below a half: int32 holds results
    name, dtype = ("rescale", "int32") if fits else ("requantize", "int64")

    def rule(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        total, found = sums(n, cb, oh, ow, c), [column[cb, c] for column in scaling]
        match found:  # of a FloorRequant, which has the zero point in the bias; or of a Requant
            case [Expr(dtype="float32") as factor, offset, *rest]:
                for more in rest:
                    offset = Call("scaled_down", (total, more, offset), FLOAT32)
                stored: Expr = Call("scaled_floor", (total, factor, offset), "int32")
            case _:
                stored = Call(name, (total, *found), dtype) + requant.zero_point
        return epilogue(clip(stored, requant.lo, requant.hi).astype("int8"))

    return compute(shape, rule, "out")


def _of_sums(
    acc: Tensor,
    requant: Requant,
    columns: Sequence[Tensor],
    epilogue: Callable[[Expr], Expr] = lambda element: element,
) -> Tensor:
    """:func:`requantized` of sums that have the result's shape."""
    return requantized(lambda *index: acc[index], acc.shape, requant, columns, epilogue)


@dataclass(frozen=True, eq=False)
class BlockedQConv2d(Windowed):
    """:class:`~..convolution.QConv2d` on blocks, for each channel by itself where ``depthwise``.

    x is int8, of the shape that :class:`~.convolution.BlockedConv2d` takes. The weight has the
    shape that it has there or in :class:`~.convolution.BlockedDepthwise`, but is int32: products
    are of int32, and elements are widened once. The columns, all [OC/B, B], are bias, multiplier
    and shift (int32); or a bias (int32) with factor, offset and perhaps rest of a
    :class:`~...arithmetic.floor_requant.FloorRequant` (float32). The result is int8.
    """

    strides: Pair
    pads: Pads
    dilations: Pair
    depthwise: bool
    x_zero_point: int
    requant: Requant

    def infer(self, *types: Type) -> Type:
        (x, _), (weight, _), *columns = types
        expect([dtype for _, dtype in types[:2]] == ["int8", "int32"], "int8, then int32")
        groups = 1 if self.depthwise else count_groups(x, weight)
        wide = (x[1], x[4]) if self.depthwise else (x[1], *x[4:])
        given = (weight[0], weight[3]) if self.depthwise else (weight[1] * groups, *weight[4:-1])
        expect(wide == given, "an image and a weight that fit it")
        shape = (weight[0], weight[-1])
        _expect_columns(columns, shape)
        return (x[0], shape[0], *self._sizes(x, self.kernel(weight)), shape[1]), "int8"

    def kernel(self, weight: Shape) -> Shape:
        return weight[1:3] if self.depthwise else weight[2:4]

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, *columns = args
        shifted = plain_image(x).astype(np.int64) - self.x_zero_point
        if self.depthwise:
            sums = depthwise_value(self, shifted, weight)
        else:
            kernels = plain_weight(weight).astype(np.int64)
            groups = count_groups(x.shape, weight.shape)
            sums = convolve(shifted, kernels, self.strides, self.pads, self.dilations, groups)
        return _rescaled_value(self.requant, image_blocks(sums, weight.shape[-1]), columns)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """Elements are widened, less their zero point, within a border of zeros."""
        x, weight, *columns = inputs
        image = padded_image(
            x, self.pads, Const(0, "int32"),
            inside=lambda element: element.astype("int32") - self.x_zero_point,
        )  # fmt: skip
        acc = (depthwise_sums if self.depthwise else conv_sums)(self, image, weight, columns[0])
        return Expression(_of_sums(acc, self.requant, columns), tuple(inputs))


@dataclass(frozen=True, eq=False)
class BlockedDotConv2d(Windowed):
    """:class:`~..convolution.QConv2d` by an instruction that adds four products of uint8 and int8
    at once: of four channels, or, where ``depthwise``, of four positions of a row for each channel
    by itself.

    x is int8 [N, C/X, H, W, X], X a multiple of 4; weight int8 [OC/B, C/X, KH, KW, X/4, B, 4], with
    fewer channels where there are groups as in :class:`~.convolution.BlockedConv2d`, or
    for depthwise [C/B, KH, KW/4, B, 4]; columns [OC/B, B] as in :class:`BlockedQConv2d`; the result
    is int8. Elements become uint8 by adding 128, and the border consists of zero points. So the
    bias is ``(zero point + 128) * sum of weights`` less than the operator's. x is uint8 already
    where the operator that computes it ``lifts`` its result.

    Or :class:`~..convolution.StoredConv2d`, where there is no ``requant``: x is uint8, its zero
    point a third operand without columns, and the result int32.
    """

    strides: Pair
    pads: Pads
    dilations: Pair
    depthwise: bool
    x_zero_point: int | None
    requant: Requant | None
    lifts: bool = False

    def infer(self, *types: Type) -> Type:
        (x, x_dtype), (weight, _), *columns = types
        fits = x_dtype in ("int8", "uint8") and types[1][1] == "int8"
        expect(fits, "int8 or uint8, then int8")
        groups = 1 if self.depthwise else count_groups(x, weight)
        blocks = (weight[0], weight[3])
        given = blocks if self.depthwise else (weight[1] * groups, weight[4] * weight[6])
        expect((x[1], x[4]) == given, "an image and a weight that fit it")
        shape = (weight[0], weight[-2])
        result = (x[0], shape[0], *self._sizes(x, self.kernel(weight)), shape[1])
        if self.requant is None:
            expect(x_dtype == "uint8" and columns == [((), "uint8")], "uint8 and a zero point")
            return result, "int32"
        _expect_columns(columns, shape)
        return result, "uint8" if self.lifts else "int8"

    def kernel(self, weight: Shape) -> Shape:
        return (weight[1], weight[2] * weight[4]) if self.depthwise else weight[2:4]

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, *columns = args
        image = unblocked(x if x.dtype == np.uint8 else lift(x)).astype(np.int64)
        border = self._border(lambda: columns[0].item())
        *_, lanes, four = weight.shape
        if self.depthwise:
            kernels = weight.transpose(0, 1, 2, 4, 3)
            kernels = kernels.reshape(weight.shape[0], weight.shape[1], -1, lanes)
            sums = depthwise_value(self, image, kernels, border)
        else:
            ob, ib, kh, kw, fours = weight.shape[:5]
            kernels = weight.transpose(0, 5, 1, 4, 6, 2, 3).astype(np.int64)
            kernels = kernels.reshape(ob * lanes, ib * fours * four, kh, kw)
            top, left, bottom, right = self.pads
            spread = ((0, 0), (0, 0), (top, bottom), (left, right))
            padded = np.pad(image, spread, constant_values=border)
            groups = image.shape[1] // kernels.shape[1]
            sums = convolve(padded, kernels, self.strides, (0, 0, 0, 0), self.dilations, groups)
        blocks = image_blocks(sums, lanes)
        if self.requant is None:
            return blocks.astype(np.int32)
        found = _rescaled_value(self.requant, blocks, columns)
        return lift(found) if self.lifts else found

    def _border(self, operand: Callable[[], Any]) -> Any:
        """What lies around the image: the zero point, as uint8 is stored."""
        return operand() if self.x_zero_point is None else self.x_zero_point + OFFSET

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, *columns = inputs
        border = wrap(self._border(lambda: columns[0][0]), "uint8")
        inside = None if x.dtype == "uint8" else lifted
        image = padded_image(x, self.pads, border, inside=inside)
        acc = self._sums(image, weight, None if self.requant is None else columns[0])
        return Expression(self._result(lambda *i: acc[i], acc.shape, columns), tuple(inputs))

    def _result(self, sums: Callable[..., Expr], shape: Shape, columns: Sequence[Tensor]) -> Tensor:
        """The result from a function of its indices, the sums."""
        if self.requant is None:
            return compute(shape, lambda n, cb, oh, ow, c: sums(n, cb, oh, ow, c), "out")
        epilogue = lifted if self.lifts else lambda element: element
        return requantized(sums, shape, self.requant, columns, epilogue)

    def _sums(self, image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        *_, lanes, four = weight.shape
        names = ("kh", "fours") if self.depthwise else ("ic", "kh", "kw", "fours")
        taps = tuple(map(reduce_axis, weight.shape[1:-2], names))
        k = reduce_axis(four, "k")

        def rule(n: Expr, ob: Expr, oh: Expr, ow: Expr, o: Expr) -> Expr:
            (sh, sw), (dh, dw) = self.strides, self.dilations
            if self.depthwise:
                kh, fours = taps
                element = image[n, ob, oh * sh + kh * dh, ow * sw + (fours * four + k) * dw, o]
            else:
                ic, kh, kw, fours = taps
                block = block_read(image.shape, weight.shape, ob, ic.var)
                element = image[n, block, oh * sh + kh * dh, ow * sw + kw * dw, fours * four + k]
            factor = weight[(ob, *taps, o, k)]
            product = element.astype("int32") * factor.astype("int32")
            return sum_of(product, (*taps, k), init=None if bias is None else bias[ob, o])

        shape = weight.shape
        kernel = (shape[1], shape[2] * four) if self.depthwise else shape[2:4]
        counts = counts_inside(image, kernel, self)
        return compute((image.shape[0], shape[0], *counts, lanes), rule, "acc")
