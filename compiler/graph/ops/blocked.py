"""Operators on blocks of channels: what the CPU runs instead of NCHW operators.

A blocked tensor is [N, C/B, H, W, B]: B channels lie side by side, as a vector register holds
them; channels beyond C are 0. ``targets/cpu/passes/block_channels.py`` makes these operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ... import topi
from ...te.expr import Call, Const, Expr
from ...te.tensor import Tensor, clip, compute, reduce_axis, sum_of
from ...topi.pooling import mean_of
from ...topi.reduction import neutral
from ...topi.windows import padded_image, window_place
from ...topi.winograd import KERNEL, matrices, points_of, winograd_sums
from ..arithmetic.requant import MULTIPLIER_BITS, OFFSET, Requant
from ..arithmetic.windows import convolve, convolve_transposed, windows
from . import base
from .base import Expression, Fusion, Op, Pads, Pair, Shape, Type, expect, expect_dtypes, operands
from .convolution import window_shape
from .layout import in_blocks, lift, lifted, unblocked
from .pooling import AvgPool, MaxPool, QMaxPool

FLOAT32 = "float32"


def _blocks(x: np.ndarray, block: int) -> np.ndarray:
    """[N, C, H, W] as [N, C/B, H, W, B]."""
    return np.ascontiguousarray(in_blocks(x, block, 1).transpose(0, 1, 3, 4, 2))


def _plain_image(x: np.ndarray) -> np.ndarray:
    """An image in blocks or not, as [N, C, H, W]."""
    return unblocked(x) if x.ndim == 5 else x


def _plain_weight(weight: np.ndarray) -> np.ndarray:
    """[OC/B, C/B, KH, KW, B of input, B of output], or [OC/B, C, KH, KW, B], as [OC, C, KH, KW]."""
    if weight.ndim == 5:
        weight = weight[:, :, :, :, None]
    blocks, channels, kh, kw, inner, outer = weight.shape
    moved = weight.transpose(0, 5, 1, 4, 2, 3)
    return moved.reshape(blocks * outer, channels * inner, kh, kw)


def _counts(image: Tensor, kernel: Sequence[int], op: _Windowed) -> Shape:
    """Rows and columns of windows over an image within its border."""
    inside = (0, 0, 0, 0)
    return topi.window_counts(image.shape[2:4], tuple(kernel), op.strides, inside, op.dilations)


class _Windowed(Op):
    """Base: a window over an image in blocks."""

    strides: Pair
    pads: Pads
    dilations: Pair

    fusion = Fusion.OUT_FUSABLE

    def _sizes(self, x: Shape, kernel: Shape) -> Shape:
        return window_shape(x[2:4], kernel, self.strides, self.pads, self.dilations)


# ---- float32 -------------------------------------------------------------------------------------


class _FloatConvolution(_Windowed):
    """Base: ``clip(conv(x, w) + bias + residual)``, the residual optional."""

    lo: float
    hi: float

    def _finished_type(self, types: Sequence[Type], kernel: Shape) -> Type:
        x, _, bias, *residual = [shape for shape, _ in types]
        expect({dtype for _, dtype in types} == {FLOAT32}, "operands of float32")
        shape = (x[0], bias[0], *self._sizes(x, kernel), bias[1])
        expect(all(other == shape for other in residual), f"a residual {list(shape)}")
        return shape, FLOAT32

    def _finished_value(self, sums: np.ndarray, rest: Sequence[np.ndarray]) -> np.ndarray:
        bias, *residual = rest
        total = sums + bias[None, :, None, None, :]
        for other in residual:
            total = total + other
        return base.clip(total, self.lo, self.hi)

    def _finished(self, acc: Tensor, inputs: Sequence[Tensor]) -> Expression:
        bias, *residual = inputs[2:]

        def rule(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
            total = acc[n, cb, oh, ow, c] + bias[cb, c]
            for other in residual:
                total = total + other[n, cb, oh, ow, c]
            return topi.clip_between(total, self.lo, self.hi)

        return Expression(compute(acc.shape, rule, "out"), tuple(inputs))


def _three_shapes(types: Sequence[Type]) -> list[Shape]:
    """Of image, weight and bias."""
    expect(len(types) in (3, 4), "image, weight, bias and at most one residual")
    return [shape for shape, _ in types[:3]]


@dataclass(frozen=True)
class BlockedConv2d(_FloatConvolution):
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
        x, weight, bias = _three_shapes(types)
        blocked = len(x) == 5 and len(weight) == 6 and x[4] == weight[4]
        expect(blocked or (len(x) == 4 and len(weight) == 5), "an image and a weight that fit it")
        expect(weight[1] == x[1] and bias == (weight[0], weight[-1]), "equal channels")
        return self._finished_type(types, weight[2:4])

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, *rest = args
        attributes = self.strides, self.pads, self.dilations
        sums = convolve(_plain_image(x), _plain_weight(weight), *attributes)
        return self._finished_value(_blocks(sums, weight.shape[-1]), rest)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, *_ = inputs
        image = padded_image(x, self.pads, Const(0.0, FLOAT32))
        return self._finished(_conv(self, image, weight), inputs)


def _conv(op: _Windowed, image: Tensor, weight: Tensor, first: Tensor | None = None) -> Tensor:
    """Sums of products, and of what comes ``first`` for each channel."""
    counts = _counts(image, weight.shape[2:4], op)
    channels = reduce_axis(weight.shape[1], "ic")
    kh, kw = reduce_axis(weight.shape[2], "kh"), reduce_axis(weight.shape[3], "kw")
    lanes = (reduce_axis(weight.shape[4], "ici"),) if len(image.shape) == 5 else ()
    taps = (channels, kh, kw, *lanes)

    def rule(n: Expr, ob: Expr, oh: Expr, ow: Expr, o: Expr) -> Expr:
        place = window_place((oh, ow), (kh, kw), op.strides, op.dilations)
        product = image[(n, channels, *place, *lanes)] * weight[(ob, *taps, o)]
        return sum_of(product, taps, None if first is None else first[ob, o])

    return compute((image.shape[0], weight.shape[0], *counts, weight.shape[-1]), rule, "acc")


@dataclass(frozen=True)
class BlockedWinograd(_FloatConvolution):
    """:class:`BlockedConv2d` of 3 x 3 kernels, a tile of ``size`` x ``size`` results at a time
    (``topi/winograd.py``).

    x [N, C/B, H, W, B]; weight [n, n, OC/B, C/B, B of input, B of output] at ``n = size + 2``
    points each way; bias and residual as there.
    """

    size: int
    pads: Pads
    lo: float = -math.inf
    hi: float = math.inf

    @property
    def strides(self) -> Pair:  # type: ignore[override]
        return (1, 1)

    @property
    def dilations(self) -> Pair:  # type: ignore[override]
        return (1, 1)

    def infer(self, *types: Type) -> Type:
        x, weight, bias = _three_shapes(types)
        points = (points_of(self.size),) * 2
        fits = len(x) == 5 and len(weight) == 6 and (x[1], x[4]) == weight[3:5]
        expect(fits and weight[:2] == points, "a blocked image and a weight that fits it")
        expect(bias == (weight[2], weight[5]), "equal channels")
        return self._finished_type(types, (KERNEL, KERNEL))

    def _border(self, x: Shape) -> tuple[Shape, Shape]:
        """The result's rows and columns, and the pads with which the image holds whole tiles: wider
        where the last tiles reach beyond it."""
        height, width = self._sizes(x, (KERNEL, KERNEL))
        top, left, bottom, right = self.pads
        pads = (top, left, bottom + -height % self.size, right + -width % self.size)
        return (height, width), pads

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, *rest = args
        (height, width), pads = self._border(x.shape)
        size, transform = self.size, matrices(self.size)
        count = points_of(size)
        seen = windows(_plain_image(x), (count, count), (size, size), pads).astype(np.float64)
        tiles = np.einsum("iy,nchwyx,jx->ijnchw", transform.image, seen, transform.image)
        kernels = weight.astype(np.float64).transpose(0, 1, 2, 5, 3, 4)
        kernels = kernels.reshape(count, count, weight.shape[2] * weight.shape[5], -1)
        products = np.einsum("ijnchw,ijoc->ijnohw", tiles, kernels)
        results = np.einsum("ri,ijnohw,sj->nohrws", transform.result, products, transform.result)
        n, channels, rows, _, columns, _ = results.shape
        sums = results.reshape(n, channels, rows * size, columns * size)[..., :height, :width]
        return self._finished_value(_blocks(sums.astype(np.float32), weight.shape[5]), rest)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, *_ = inputs
        (height, width), pads = self._border(x.shape)
        image = padded_image(x, pads, Const(0.0, FLOAT32))
        return self._finished(winograd_sums(self.size, image, weight, height, width), inputs)


@dataclass(frozen=True)
class BlockedDepthwise(_FloatConvolution):
    """Convolution of each channel by itself, bias, residual and clip, as :class:`BlockedConv2d`.

    x [N, C/B, H, W, B], weight [C/B, KH, KW, B], bias [C/B, B].
    """

    strides: Pair
    pads: Pads
    dilations: Pair
    lo: float = -math.inf
    hi: float = math.inf

    def infer(self, *types: Type) -> Type:
        x, weight, bias = _three_shapes(types)
        expect(len(x) == 5 and len(weight) == 4, "a blocked image and a weight of rank 4")
        expect((x[1], x[4]) == bias == (weight[0], weight[3]), "equal channels")
        return self._finished_type(types, weight[1:3])

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, *rest = args
        sums = _depthwise_value(self, unblocked(x), weight)
        return self._finished_value(_blocks(sums, weight.shape[-1]), rest)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, *_ = inputs
        image = padded_image(x, self.pads, Const(0.0, FLOAT32))
        return self._finished(_depthwise(self, image, weight), inputs)


def _depthwise_value(
    op: _Windowed, image: np.ndarray, weight: np.ndarray, fill: float = 0
) -> np.ndarray:
    """Each channel of [N, C, H, W] by its kernel of [C/B, KH, KW, B]."""
    blocks, kh, kw, block = weight.shape
    kernels = weight.transpose(0, 3, 1, 2).reshape(blocks * block, kh, kw)
    seen = windows(image, (kh, kw), op.strides, op.pads, op.dilations, fill)
    wide = np.float64 if image.dtype.kind == "f" else np.int64
    sums = np.einsum("nchwyx,cyx->nchw", seen.astype(wide), kernels.astype(wide))
    return sums.astype(image.dtype)


def _depthwise(op: _Windowed, image: Tensor, weight: Tensor, first: Tensor | None = None) -> Tensor:
    """As :func:`_conv`, each channel by itself."""
    counts = _counts(image, weight.shape[1:3], op)
    kh, kw = reduce_axis(weight.shape[1], "kh"), reduce_axis(weight.shape[2], "kw")

    def rule(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        row, column = window_place((oh, ow), (kh, kw), op.strides, op.dilations)
        product = image[n, cb, row, column, c] * weight[cb, kh, kw, c]
        return sum_of(product, (kh, kw), None if first is None else first[cb, c])

    return compute((*image.shape[:2], *counts, image.shape[4]), rule, "acc")


@dataclass(frozen=True)
class BlockedConvTranspose2d(Op):
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

    fusion = Fusion.OUT_FUSABLE

    def infer(self, *types: Type) -> Type:
        x, weight, bias = expect_dtypes(types, FLOAT32, FLOAT32, FLOAT32)
        fits = len(x) == 5 and len(weight) == 8 and (x[1], x[4]) == (weight[3], weight[6])
        expect(fits and bias == (weight[2], weight[7]), "an image and a weight that fit it")
        return (x[0], bias[0], *self.size, bias[1]), FLOAT32

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, bias = args
        sh, sw, ob, ib, th, tw, inner, outer = weight.shape
        kernel = np.zeros((ib * inner, ob * outer, th * sh, tw * sw), np.float32)
        for rh, rw in np.ndindex(sh, sw):
            # The taps of a remainder, the first one first.
            part = weight[rh, rw].transpose(1, 4, 0, 5, 2, 3)[..., ::-1, ::-1]
            taps = part.reshape(ib * inner, ob * outer, th, tw)
            kernel[:, :, (rh + self.before[0]) % sh :: sh, (rw + self.before[1]) % sw :: sw] = taps
        sums = convolve_transposed(
            unblocked(x), kernel, (sh, sw), self.before, (1, 1), 1, self.size
        )
        total = _blocks(sums, outer) + bias[None, :, None, None, :]
        return base.clip(total, self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """``phases`` [SH, SW, N, OC/B, rows, columns, B] side by side, then interleaved."""
        x, weight, bias = inputs
        sh, sw = weight.shape[:2]
        acc = self._phases(x, weight)

        def ending(*index: Expr) -> Expr:
            return topi.clip_between(acc[index] + bias[index[3], index[6]], self.lo, self.hi)

        phases = compute(acc.shape, ending, "phases")

        def rule(n: Expr, ob: Expr, oh: Expr, ow: Expr, o: Expr) -> Expr:
            return phases[oh % sh, ow % sw, n, ob, oh // sh, ow // sw, o]

        shape = (x.shape[0], weight.shape[2], *self.size, x.shape[4])
        return Expression(compute(shape, rule, "out"), tuple(inputs))

    def _phases(self, x: Tensor, weight: Tensor) -> Tensor:
        strides, blocks, taps, lanes = (
            weight.shape[:2], weight.shape[2], weight.shape[4:6], x.shape[4],
        )  # fmt: skip
        rows = tuple(-(-n // s) for n, s in zip(self.size, strides, strict=True))
        image = padded_image(x, transposed_pads(self, x.shape, weight.shape), Const(0.0, FLOAT32))
        ic, ici = reduce_axis(x.shape[1], "ic"), reduce_axis(lanes, "ici")
        jh, jw = reduce_axis(taps[0], "jh"), reduce_axis(taps[1], "jw")

        def phase(rh: Expr, rw: Expr, n: Expr, ob: Expr, qh: Expr, qw: Expr, o: Expr) -> Expr:
            top = (rh + self.before[0]) // strides[0]
            left = (rw + self.before[1]) // strides[1]
            element = image[n, ic, qh + top + jh, qw + left + jw, ici]
            return sum_of(element * weight[rh, rw, ob, ic, jh, jw, ici, o], (ic, jh, jw, ici))

        return compute((*strides, x.shape[0], blocks, *rows, lanes), phase, "acc")


def transposed_pads(op: BlockedConvTranspose2d, x: Shape, weight: Shape) -> Pads:
    """The border with which an image holds all that the phases read of it."""
    (sh, sw), (top, left) = weight[:2], (taps - 1 for taps in weight[4:6])
    bottom, right = (
        max(-(-n // s) + (s - 1 + b) // s - size, 0)
        for n, s, b, size in zip(op.size, (sh, sw), op.before, x[2:4], strict=True)
    )
    return top, left, bottom, right


# ---- int8 ----------------------------------------------------------------------------------------


def _expect_columns(columns: Sequence[Type], shape: Shape) -> None:
    """A bias, and by what its sums are rescaled."""
    expect({column for column, _ in columns} == {shape}, f"columns {list(shape)}")
    dtypes = [dtype for _, dtype in columns]
    known = (["int32"] * 3, ["int32", *[FLOAT32] * 2], ["int32", *[FLOAT32] * 3])
    expect(
        dtypes in known, f"a bias of int32 and two columns of int32, or two or three of {FLOAT32}"
    )


def _rescaled_value(requant: Requant, acc: np.ndarray, columns: Sequence[np.ndarray]) -> np.ndarray:
    """``acc`` [N, OC/B, H, W, B], int64 that has the bias, requantised by its columns."""
    bias, *scaling = [column[None, :, None, None, :] for column in columns]
    total = (acc + bias).astype(np.int32)
    if scaling[0].dtype == np.int32:
        channels = replace(requant, multiplier=columns[1].reshape(-1), shift=columns[2].reshape(-1))
        plain = channels.apply(unblocked(total))
        return _blocks(plain, total.shape[-1])
    # Of exact numbers: neither rounding down changes the floor (``arithmetic/floor_requant.py``).
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


def _requantized(
    acc: Tensor,
    requant: Requant,
    columns: Sequence[Tensor],
    ending: Callable[[Expr], Expr] = lambda element: element,
) -> Tensor:
    """``acc`` starts from the bias, the first of the columns."""
    scaling = columns[1:]
    fits = bool((requant.shift > MULTIPLIER_BITS).all())  # what is scaled by less than a half
    name, dtype = ("rescale", "int32") if fits else ("requantize", "int64")

    def rule(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        total, found = acc[n, cb, oh, ow, c], [column[cb, c] for column in scaling]
        match found:  # of a FloorRequant, which has the zero point in the bias; or of a Requant
            case [Expr(dtype="float32") as factor, offset, *rest]:
                for more in rest:
                    offset = Call("scaled_down", (total, more, offset), FLOAT32)
                stored: Expr = Call("scaled_floor", (total, factor, offset), "int32")
            case _:
                stored = Call(name, (total, *found), dtype) + requant.zero_point
        return ending(clip(stored, requant.lo, requant.hi).astype("int8"))

    return compute(acc.shape, rule, "out")


@dataclass(frozen=True, eq=False)
class BlockedQConv2d(_Windowed):
    """:class:`~.convolution.QConv2d` on blocks, for each channel by itself where ``depthwise``.

    x int8 as for :class:`BlockedConv2d`, the weight's shape as there or for
    :class:`BlockedDepthwise`, but int32: products are of int32, and elements are widened once.
    Bias, multiplier and shift are int32 [OC/B, B], or the bias is, and factor, offset and perhaps
    rest of a :class:`~..arithmetic.floor_requant.FloorRequant` are float32; the result is int8.
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
        wide = (x[1], x[4]) if self.depthwise else (x[1], *x[4:])
        kernel = weight[1:3] if self.depthwise else weight[2:4]
        given = (weight[0], weight[3]) if self.depthwise else (weight[1], *weight[4:-1])
        expect(wide == given, "an image and a weight that fit it")
        shape = (weight[0], weight[-1])
        _expect_columns(columns, shape)
        return (x[0], shape[0], *self._sizes(x, kernel), shape[1]), "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, *columns = args
        shifted = _plain_image(x).astype(np.int64) - self.x_zero_point
        if self.depthwise:
            sums = _depthwise_value(self, shifted, weight)
        else:
            kernels = _plain_weight(weight).astype(np.int64)
            sums = convolve(shifted, kernels, self.strides, self.pads, self.dilations)
        return _rescaled_value(self.requant, _blocks(sums, weight.shape[-1]), columns)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """Elements are widened, less their zero point, within a border of zeros."""
        x, weight, *columns = inputs
        image = padded_image(
            x, self.pads, Const(0, "int32"),
            inside=lambda element: element.astype("int32") - self.x_zero_point,
        )  # fmt: skip
        acc = (_depthwise if self.depthwise else _conv)(self, image, weight, columns[0])
        return Expression(_requantized(acc, self.requant, columns), tuple(inputs))


@dataclass(frozen=True, eq=False)
class BlockedDotConv2d(_Windowed):
    """:class:`~.convolution.QConv2d` by an instruction that adds products of four uint8 and int8 at
    once: of four channels, or of four places of a row for each channel by itself where
    ``depthwise``.

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
        expect(fits, "int8 or uint8, then int8")
        if self.depthwise:
            given, kernel = (weight[0], weight[3]), (weight[1], weight[2] * weight[4])
        else:
            given, kernel = (weight[1], weight[4] * weight[6]), weight[2:4]
        expect((x[1], x[4]) == given, "an image and a weight that fit it")
        shape = (weight[0], weight[-2])
        _expect_columns(columns, shape)
        size = self._sizes(x, kernel)
        return (x[0], shape[0], *size, shape[1]), "uint8" if self.lifts else "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, *columns = args
        image = unblocked(x if x.dtype == np.uint8 else lift(x)).astype(np.int64)
        border = self.x_zero_point + OFFSET
        *_, lanes, four = weight.shape
        if self.depthwise:
            kernels = weight.transpose(0, 1, 2, 4, 3)
            kernels = kernels.reshape(weight.shape[0], weight.shape[1], -1, lanes)
            sums = _depthwise_value(self, image, kernels, border)
        else:
            ob, ib, kh, kw, fours = weight.shape[:5]
            kernels = weight.transpose(0, 5, 1, 4, 6, 2, 3).astype(np.int64)
            kernels = kernels.reshape(ob * lanes, ib * fours * four, kh, kw)
            top, left, bottom, right = self.pads
            spread = ((0, 0), (0, 0), (top, bottom), (left, right))
            padded = np.pad(image, spread, constant_values=border)
            sums = convolve(padded, kernels, self.strides, (0, 0, 0, 0), self.dilations)
        found = _rescaled_value(self.requant, _blocks(sums, lanes), columns)
        return lift(found) if self.lifts else found

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, *columns = inputs
        border = Const(self.x_zero_point + OFFSET, "uint8")
        inside = None if x.dtype == "uint8" else lifted
        image = padded_image(x, self.pads, border, inside=inside)
        acc = self._sums(image, weight, columns[0])
        ending = lifted if self.lifts else lambda element: element
        return Expression(_requantized(acc, self.requant, columns, ending), tuple(inputs))

    def _sums(self, image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
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
                element = image[n, ic, oh * sh + kh * dh, ow * sw + kw * dw, fours * four + k]
            factor = weight[(ob, *taps, o, k)]
            product = element.astype("int32") * factor.astype("int32")
            return sum_of(product, (*taps, k), init=bias[ob, o])

        shape = weight.shape
        kernel = (shape[1], shape[2] * four) if self.depthwise else shape[2:4]
        counts = _counts(image, kernel, self)
        return compute((image.shape[0], shape[0], *counts, lanes), rule, "acc")


# ---- others --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockedPool(Op):
    """A pooling operator on a blocked tensor: float32, or int8 with a zero point that stays."""

    pool: MaxPool | AvgPool | QMaxPool

    fusion = Fusion.OUT_FUSABLE

    def infer(self, *types: Type) -> Type:
        [(x, dtype)] = operands(types, 1)
        wanted = "int8" if isinstance(self.pool, QMaxPool) else FLOAT32
        expect(len(x) == 5 and dtype == wanted, f"a blocked {wanted} tensor")
        size = window_shape(x[2:4], self.pool.kernel, self.pool.strides, self.pool.pads, (1, 1))
        return (*x[:2], *size, x[4]), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return _blocks(self.pool.evaluate(unblocked(args[0])), args[0].shape[4])

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        [x], pool = inputs, self.pool
        kind = "+" if isinstance(pool, AvgPool) else "max"
        image = padded_image(x, pool.pads, neutral(kind, x.dtype))
        acc = _block_windows(kind, image, pool.kernel, pool.strides)

        def rule(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
            total: Expr = acc[n, cb, oh, ow, c]
            if isinstance(pool, AvgPool):
                window = pool.kernel, pool.strides, pool.pads, x.shape[2:4]
                total = mean_of(total, (oh, ow), *window, pool.count_include_pad)
            return topi.clip_between(total, pool.lo, pool.hi)

        return Expression(compute(acc.shape, rule, "out"), (x,))


def _block_windows(kind: str, image: Tensor, kernel: Pair, strides: Pair) -> Tensor:
    """Reductions over windows of an image in blocks that has its border."""
    kh, kw = reduce_axis(kernel[0], "kh"), reduce_axis(kernel[1], "kw")
    inside = (0, 0, 0, 0)
    counts = topi.window_counts(image.shape[2:4], kernel, strides, inside, (1, 1))

    def window(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        row, column = window_place((oh, ow), (kh, kw), strides, (1, 1))
        return topi.reduction.Reduce(kind, image[n, cb, row, column, c], (kh, kw))

    return compute((*image.shape[:2], *counts, image.shape[4]), window, "acc")


@dataclass(frozen=True)
class PackedDense(Op):
    """``clip(x @ w + bias)``: x [N, K], weight [OC/B, K, B], bias [OC/B, B]; result [N, OC]."""

    features: int
    lo: float = -math.inf
    hi: float = math.inf

    fusion = Fusion.OUT_FUSABLE

    def infer(self, *types: Type) -> Type:
        x, weight, bias = expect_dtypes(types, FLOAT32, FLOAT32, FLOAT32)
        fits = len(x) == 2 and len(weight) == 3 and x[1] == weight[1]
        expect(fits and bias == (weight[0], weight[2]), "a matrix and a packed weight")
        blocks, _, block = weight
        expect((blocks - 1) * block < self.features <= blocks * block, "blocks of all features")
        return (x[0], self.features), FLOAT32

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, bias = args
        plain = weight.transpose(1, 0, 2).reshape(weight.shape[1], -1).astype(np.float64)
        sums = (x.astype(np.float64) @ plain).astype(np.float32) + bias.reshape(-1)
        return base.clip(sums[:, : self.features], self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, bias = inputs
        blocks, size, block = weight.shape
        k = reduce_axis(size, "k")
        acc = compute(
            (x.shape[0], blocks, block),
            lambda n, ob, o: sum_of(x[n, k] * weight[ob, k, o], k),
            "acc",
        )

        def ending(n: Expr, ob: Expr, o: Expr) -> Expr:
            return topi.clip_between(acc[n, ob, o] + bias[ob, o], self.lo, self.hi)

        done = compute(acc.shape, ending, "blocks")
        shape = (x.shape[0], self.features)
        out = compute(shape, lambda n, o: done[n, o // block, o % block], "out")
        return Expression(out, tuple(inputs))
