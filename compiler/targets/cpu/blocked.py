"""Operators on blocks of channels (``graph/ops/blocked.py``): expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...graph.arithmetic.requant import MULTIPLIER_BITS, OFFSET
from ...graph.arithmetic.winograd import KERNEL
from ...graph.ops.blocked import (
    BlockedConv2d,
    BlockedConvTranspose2d,
    BlockedDepthwise,
    BlockedDotConv2d,
    BlockedOp,
    BlockedPool,
    BlockedQConv2d,
    BlockedWinograd,
    FromBlocks,
    PackedDense,
    ToBlocks,
)
from ...graph.ops.integer import AvgPool, MaxPool, QMaxPool
from ...te.expr import Call, Const, Expr, all_of, maximum, minimum, select
from ...te.expr import Reduce as ReduceExpr
from ...te.tensor import Tensor, clip, compute, reduce_axis, sum_of
from .winograd import winograd_sums

Pooling = MaxPool | AvgPool | QMaxPool
Bounded = (
    BlockedConv2d
    | BlockedWinograd
    | BlockedConvTranspose2d
    | BlockedDepthwise
    | PackedDense
    | Pooling
)
Windowed = BlockedConv2d | BlockedDepthwise | BlockedQConv2d | BlockedDotConv2d
FLOAT32 = "float32"
ZERO = Const(0.0, FLOAT32)


def blocked_expression(op: BlockedOp, inputs: Sequence[Tensor]) -> Tensor:
    """The result of an operator on its inputs."""
    match op, inputs:
        case ToBlocks(), [x]:
            return _to_blocks(op, x)
        case FromBlocks(channels), [x]:
            return _from_blocks(x, channels)
        case BlockedConv2d(), [x, weight, *rest]:
            return _finished(_conv(op, _bordered(x, op.pads), weight), op, rest)
        case BlockedWinograd(), [x, weight, *rest]:
            return _finished(_winograd(op, x, weight), op, rest)
        case BlockedDepthwise(), [x, weight, *rest]:
            return _finished(_depthwise(op, _bordered(x, op.pads), weight), op, rest)
        case BlockedConvTranspose2d(), [x, weight, bias]:
            return _conv_transpose(op, x, weight, bias)
        case BlockedQConv2d(), [x, weight, *columns]:
            return _qconv(op, x, weight, columns)
        case BlockedDotConv2d(), [x, weight, *columns]:
            return _dot_conv(op, x, weight, columns)
        case BlockedPool(pool), [x]:
            return _pool(pool, x)
        case PackedDense(), [x, weight, bias]:
            return _dense(op, x, weight, bias)
    raise AssertionError(f"no expression of {op!r} on {len(inputs)} inputs")


def _to_blocks(op: ToBlocks, x: Tensor) -> Tensor:
    n, channels, height, width = x.shape
    block = op.block

    def rule(n: Expr, cb: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
        channel = cb * block + c
        element: Expr = x[n, channel, h, w]
        element = _lifted(element) if op.lifts else element
        if channels % block == 0:
            return element
        return select(channel < channels, element, Const(0, element.dtype))

    return compute((n, -(-channels // block), height, width, block), rule, "out")


def _from_blocks(x: Tensor, channels: int) -> Tensor:
    block = x.shape[4]
    return compute(
        (x.shape[0], channels, *x.shape[2:4]),
        lambda n, c, h, w: x[n, c // block, h, w, c % block],
        "out",
    )


def _bordered(
    x: Tensor,
    pads: Sequence[int],
    border: Expr = ZERO,
    inside: Callable[[Expr], Expr] | None = None,
) -> Tensor:
    """The image, or a function of its elements, within its border, if it has one."""
    if not any(pads) and inside is None:
        return x
    value = inside or (lambda element: element)
    top, left, bottom, right = pads
    height, width = x.shape[2:4]
    lead, tail = x.shape[:2], x.shape[4:]

    def rule(*index: Expr) -> Expr:
        n, c, y, x_, *lanes = index
        within = []
        if top or bottom:
            within += [y >= top, y < top + height]
        if left or right:
            within += [x_ >= left, x_ < left + width]
        return select(all_of(*within), value(x[(n, c, y - top, x_ - left, *lanes)]), border)

    size = (top + height + bottom, left + width + right)
    return compute((*lead, *size, *tail), rule, "bordered")


def _counts(padded: Tensor, kernel: Sequence[int], op: Windowed) -> tuple:
    """Rows and columns of windows over an image within its border."""
    parts = zip(padded.shape[2:4], kernel, op.strides, op.dilations, strict=True)
    return tuple((size - (k - 1) * d - 1) // s + 1 for size, k, s, d in parts)


def _conv(
    op: BlockedConv2d | BlockedQConv2d, image: Tensor, weight: Tensor, first: Tensor | None = None
) -> Tensor:
    """Sums of products, and of what comes ``first`` for each channel."""
    height, width = _counts(image, weight.shape[2:4], op)
    (sh, sw), (dh, dw) = op.strides, op.dilations
    channels = reduce_axis(weight.shape[1], "ic")
    kh, kw = reduce_axis(weight.shape[2], "kh"), reduce_axis(weight.shape[3], "kw")
    lanes = (reduce_axis(weight.shape[4], "ici"),) if len(image.shape) == 5 else ()
    taps = (channels, kh, kw, *lanes)

    def rule(n: Expr, ob: Expr, oh: Expr, ow: Expr, o: Expr) -> Expr:
        element = image[(n, channels, oh * sh + kh * dh, ow * sw + kw * dw, *lanes)]
        return sum_of(
            element * weight[(ob, *taps, o)], taps, None if first is None else first[ob, o]
        )

    return compute((image.shape[0], weight.shape[0], height, width, weight.shape[-1]), rule, "acc")


def _winograd(op: BlockedWinograd, x: Tensor, weight: Tensor) -> Tensor:
    """The border is wider where the last tiles reach beyond the image."""
    top, left, bottom, right = op.pads
    height, width = (
        size + before + after - KERNEL + 1
        for size, before, after in ((x.shape[2], top, bottom), (x.shape[3], left, right))
    )
    pads = (top, left, bottom + -height % op.size, right + -width % op.size)
    return winograd_sums(op.size, _bordered(x, pads), weight, height, width)


def _depthwise(
    op: BlockedDepthwise | BlockedQConv2d,
    image: Tensor,
    weight: Tensor,
    first: Tensor | None = None,
) -> Tensor:
    """As :func:`_conv`, each channel by itself."""
    height, width = _counts(image, weight.shape[1:3], op)
    (sh, sw), (dh, dw) = op.strides, op.dilations
    kh, kw = reduce_axis(weight.shape[1], "kh"), reduce_axis(weight.shape[2], "kw")

    def rule(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        element = image[n, cb, oh * sh + kh * dh, ow * sw + kw * dw, c]
        return sum_of(
            element * weight[cb, kh, kw, c], (kh, kw), None if first is None else first[cb, c]
        )

    return compute((*image.shape[:2], height, width, image.shape[4]), rule, "acc")


def _conv_transpose(op: BlockedConvTranspose2d, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``phases`` [SH, SW, N, OC/B, rows, columns, B] side by side, then interleaved."""
    (sh, sw), blocks, taps, lanes = weight.shape[:2], weight.shape[2], weight.shape[4:6], x.shape[4]
    rows = tuple(-(-n // s) for n, s in zip(op.size, (sh, sw), strict=True))
    parts = zip((sh, sw), op.before, rows, x.shape[2:4], strict=True)
    after = [max(q + (s - 1 + b) // s - size, 0) for s, b, q, size in parts]
    image = _bordered(x, [*(t - 1 for t in taps), *after])
    ic, ici = reduce_axis(x.shape[1], "ic"), reduce_axis(lanes, "ici")
    jh, jw = reduce_axis(taps[0], "jh"), reduce_axis(taps[1], "jw")

    def phase(rh: Expr, rw: Expr, n: Expr, ob: Expr, qh: Expr, qw: Expr, o: Expr) -> Expr:
        top, left = (rh + op.before[0]) // sh, (rw + op.before[1]) // sw
        element = image[n, ic, qh + top + jh, qw + left + jw, ici]
        return sum_of(element * weight[rh, rw, ob, ic, jh, jw, ici, o], (ic, jh, jw, ici))

    acc = compute((sh, sw, x.shape[0], blocks, *rows, lanes), phase, "acc")
    phases = compute(
        acc.shape, lambda *index: _clip(acc[index] + bias[index[3], index[6]], op), "phases"
    )

    def rule(n: Expr, ob: Expr, oh: Expr, ow: Expr, o: Expr) -> Expr:
        return phases[oh % sh, ow % sw, n, ob, oh // sh, ow // sw, o]

    return compute((x.shape[0], blocks, *op.size, lanes), rule, "out")


def _finished(
    acc: Tensor, op: BlockedConv2d | BlockedWinograd | BlockedDepthwise, rest: Sequence[Tensor]
) -> Tensor:
    bias, *residual = rest

    def rule(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        total = acc[n, cb, oh, ow, c] + bias[cb, c]
        for other in residual:
            total = total + other[n, cb, oh, ow, c]
        return _clip(total, op)

    return compute(acc.shape, rule, "out")


def _qconv(op: BlockedQConv2d, x: Tensor, weight: Tensor, columns: Sequence[Tensor]) -> Tensor:
    """Elements are widened, less their zero point, within a border of zeros."""
    widened = lambda element: element.astype("int32") - op.x_zero_point  # noqa: E731
    image = _bordered(x, op.pads, Const(0, "int32"), widened)
    acc = (_depthwise if op.depthwise else _conv)(op, image, weight, columns[0])
    return _requantized(acc, op, columns)


def _dot_conv(op: BlockedDotConv2d, x: Tensor, weight: Tensor, columns: Sequence[Tensor]) -> Tensor:
    border = Const(op.x_zero_point + OFFSET, "uint8")
    image = _bordered(x, op.pads, border, None if x.dtype == "uint8" else _lifted)
    *_, lanes, four = weight.shape
    (sh, sw), (dh, dw) = op.strides, op.dilations
    names = ("kh", "fours") if op.depthwise else ("ic", "kh", "kw", "fours")
    taps = tuple(map(reduce_axis, weight.shape[1:-2], names))
    k = reduce_axis(four, "k")

    def rule(n: Expr, ob: Expr, oh: Expr, ow: Expr, o: Expr) -> Expr:
        if op.depthwise:
            kh, fours = taps
            element = image[n, ob, oh * sh + kh * dh, ow * sw + (fours * four + k) * dw, o]
        else:
            ic, kh, kw, fours = taps
            element = image[n, ic, oh * sh + kh * dh, ow * sw + kw * dw, fours * four + k]
        factor = weight[(ob, *taps, o, k)]
        product = element.astype("int32") * factor.astype("int32")
        return sum_of(product, (*taps, k), init=columns[0][ob, o])

    kernel = (weight.shape[1], weight.shape[2] * four) if op.depthwise else weight.shape[2:4]
    shape = (x.shape[0], weight.shape[0], *_counts(image, kernel, op), lanes)
    return _requantized(compute(shape, rule, "acc"), op, columns)


def _lifted(element: Expr) -> Expr:
    """An int8 as the uint8 that means the same."""
    return element.astype("uint8") + OFFSET


def _requantized(
    acc: Tensor, op: BlockedQConv2d | BlockedDotConv2d, columns: Sequence[Tensor]
) -> Tensor:
    """``acc`` starts from the bias, the first of the columns."""
    requant, scaling = op.requant, columns[1:]
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
        result = clip(stored, requant.lo, requant.hi).astype("int8")
        return _lifted(result) if isinstance(op, BlockedDotConv2d) and op.lifts else result

    return compute(acc.shape, rule, "out")


def _clip(x: Expr, op: Bounded) -> Expr:
    if op.lo != -math.inf:
        x = maximum(x, Const(op.lo, x.dtype))
    return minimum(x, Const(op.hi, x.dtype)) if op.hi != math.inf else x


def _pool(pool: Pooling, x: Tensor) -> Tensor:
    kind = "+" if isinstance(pool, AvgPool) else "max"
    border = ReduceExpr(kind, Const(0, x.dtype), ()).identity
    image = _bordered(x, pool.pads, border)
    (sh, sw), (height, width) = pool.strides, x.shape[2:4]
    kh, kw = reduce_axis(pool.kernel[0], "kh"), reduce_axis(pool.kernel[1], "kw")
    sizes = zip(image.shape[2:4], pool.kernel, pool.strides, strict=True)
    out = (*x.shape[:2], *((size - k) // s + 1 for size, k, s in sizes), x.shape[4])

    def window(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        return ReduceExpr(kind, image[n, cb, oh * sh + kh, ow * sw + kw, c], (kh, kw))

    acc = compute(out, window, "acc")

    def covered(place: Expr, dim: int, size: int) -> Expr:
        first = place * pool.strides[dim] - pool.pads[dim]
        return minimum(first + pool.kernel[dim], size) - maximum(first, 0)

    def rule(n: Expr, cb: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        total = acc[n, cb, oh, ow, c]
        match pool:
            case AvgPool(count_include_pad=False) if any(pool.pads):
                count = (covered(oh, 0, height) * covered(ow, 1, width)).astype(FLOAT32)
                total = total / count
            case AvgPool():
                total = total / Const(float(math.prod(pool.kernel)), FLOAT32)
        return _clip(total, pool)

    return compute(out, rule, "out")


def _dense(op: PackedDense, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    blocks, size, block = weight.shape
    k = reduce_axis(size, "k")
    acc = compute(
        (x.shape[0], blocks, block),
        lambda n, ob, o: sum_of(x[n, k] * weight[ob, k, o], k),
        "acc",
    )
    done = compute(acc.shape, lambda n, ob, o: _clip(acc[n, ob, o] + bias[ob, o], op), "blocks")
    return compute((x.shape[0], op.features), lambda n, o: done[n, o // block, o % block], "out")
