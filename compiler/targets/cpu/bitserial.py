"""Products of integers of one or two bits, bit by bit: 32 products at once are an `and`.

A value of b bits is b planes of bits, so that ::

    sum over k of x[k] * w[k] = sum over planes i, j of 2**(i+j) * popcount(x_i & w_j)

The words of a plane hold 32 consecutive k. Weights are packed once, at compile time, 16 outputs
side by side; the inner loop, one word of all 16, is a tensor intrinsic.
"""

from __future__ import annotations

import numpy as np

from ....isa.errors import VdlaError
from ...te.expr import Expr, all_of, popcount, select
from ...te.intrinsic import TensorIntrin
from ...te.schedule import Schedule, create_schedule
from ...te.tensor import Tensor, compute, placeholder, reduce_axis, sum_of

WORD_BITS = 32
#: Outputs that are computed together.
LANES = 16


def _popcount_dot() -> TensorIntrin:
    """``y[o] += popcount(x & w[o])`` for the outputs of a block."""
    x, w = placeholder((1,), "uint32", "x"), placeholder((1, LANES), "uint32", "w")
    k = reduce_axis(1, "k")
    rule = compute((LANES,), lambda o: sum_of(popcount(x[k] & w[k, o]), k), "y")
    return TensorIntrin("popcount_dot", rule)


POPCOUNT_DOT = _popcount_dot()


def pack_weights(weight: np.ndarray, bits: int) -> np.ndarray:
    """Planes of a weight [N, K], or [N, KH, KW, C], of values below ``2**bits``.

    Returns
    -------
    [N/16, K/32, bits, 16], or [N/16, KH, KW, C/32, bits, 16], uint32; outputs and bits that are not
    there are 0

    Raises
    ------
    VdlaError
        When a value has more bits.
    """
    if weight.min(initial=0) < 0 or weight.max(initial=0) >> bits:
        raise VdlaError(
            f"bit-serial weights: expected values of 0 .. {(1 << bits) - 1}, got "
            f"{weight.min()} .. {weight.max()}"
        )
    *lead, size = weight.shape
    blocks, words = -(-lead[0] // LANES), -(-size // WORD_BITS)
    padded = np.zeros((blocks * LANES, *lead[1:], words * WORD_BITS), np.uint32)
    padded[: lead[0], ..., :size] = weight
    grouped = padded.reshape(blocks, LANES, *lead[1:], words, 1, WORD_BITS)
    planes = grouped >> np.arange(bits, dtype=np.uint32)[:, None] & 1
    packed = (planes << np.arange(WORD_BITS, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    return np.ascontiguousarray(np.moveaxis(packed, 1, -1))


def bit_planes(x: Tensor, bits: int) -> Tensor:
    """Planes of a tensor [..., K] of uint8, as [..., K/32, bits] uint32, without higher bits."""
    *lead, size = x.shape
    k = reduce_axis(WORD_BITS, "k")

    def word(*index: Expr) -> Expr:
        *row, i, b = index
        value = select(i * WORD_BITS + k < size, x[(*row, i * WORD_BITS + k)].astype("uint32"), 0)
        return sum_of((value >> b.astype("uint32") & 1) << k.var.astype("uint32"), k)

    return compute((*lead, -(-size // WORD_BITS), bits), word, "planes")


def dense(x: Tensor, weight: Tensor, outputs: int, bits: int, bipolar: bool = False) -> Tensor:
    """Products of rows and weights, exact.

    Parameters
    ----------
    x : [M, K] uint8, values below ``2**bits``
    weight : as :func:`pack_weights` gives it
    outputs : N
    bipolar : weights are of one bit, which means -1 or 1

    Returns
    -------
    [M, N] int32
    """
    blocks, words, weight_bits, _ = weight.shape
    rows, size = x.shape
    planes = bit_planes(x, bits)
    k = reduce_axis(words, "k")
    ones = compute(
        (rows, blocks, bits, weight_bits, LANES),
        lambda m, n, i, j, o: sum_of(popcount(planes[m, k, i] & weight[n, k, j, o]), k),
        "ones",
    )
    if not bipolar:
        return _weighted(ones, outputs, None)
    every = reduce_axis(size, "k")
    total = compute((rows,), lambda m: sum_of(x[m, every].astype("int32"), every), "total")
    return _weighted(ones, outputs, total)


def conv2d(
    x: Tensor,
    weight: Tensor,
    outputs: int,
    bits: int,
    strides: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    bipolar: bool = False,
) -> Tensor:
    """A convolution, exact.

    Parameters
    ----------
    x : [N, H, W, C] uint8, values below ``2**bits``
    weight : as :func:`pack_weights` gives it
    outputs : number of output channels O
    strides, pads : as in ONNX; what is padded is 0
    bipolar : weights are of one bit, which means -1 or 1

    Returns
    -------
    [N, OH, OW, O] int32
    """
    blocks, kh, kw, words, weight_bits, _ = weight.shape
    batch, height, width, size = x.shape
    top, left, bottom, right = pads
    high, wide = height + top + bottom, width + left + right

    def border(n: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
        inside = all_of(h >= top, h < height + top, w >= left, w < width + left)
        return select(inside, x[n, h - top, w - left, c], 0)

    image = compute((batch, high, wide, size), border, "padded") if any(pads) else x
    planes = bit_planes(image, bits)
    places = (batch, (high - kh) // strides[0] + 1, (wide - kw) // strides[1] + 1)
    u, v, k = reduce_axis(kh, "u"), reduce_axis(kw, "v"), reduce_axis(words, "k")

    def products(b: Expr, h: Expr, w: Expr, n: Expr, i: Expr, j: Expr, o: Expr) -> Expr:
        word = planes[b, h * strides[0] + u, w * strides[1] + v, k, i]
        return sum_of(popcount(word & weight[n, u, v, k, j, o]), (u, v, k))

    ones = compute((*places, blocks, bits, weight_bits, LANES), products, "ones")
    if not bipolar:
        return _weighted(ones, outputs, None)
    all_u, all_v, c = reduce_axis(kh, "u"), reduce_axis(kw, "v"), reduce_axis(size, "c")

    def window(b: Expr, h: Expr, w: Expr) -> Expr:
        element = image[b, h * strides[0] + all_u, w * strides[1] + all_v, c]
        return sum_of(element.astype("int32"), (all_u, all_v, c))

    return _weighted(ones, outputs, compute(places, window, "total"))


def _weighted(ones: Tensor, outputs: int, total: Tensor | None) -> Tensor:
    """Counts of ones [..., N/16, bits, weight bits, 16], each by its weight, added up: [..., N].
    With the ``total`` of what was multiplied, weights 0 and 1 mean -1 and 1.
    """
    *places, blocks, bits, weight_bits, _ = ones.shape
    i, j = reduce_axis(bits, "i"), reduce_axis(weight_bits, "j")

    def added(*index: Expr) -> Expr:
        return sum_of(ones[(*index[:-1], i, j, index[-1])].astype("int32") << i + j, (i, j))

    sums = compute((*places, blocks, LANES), added, "sums")

    def element(*index: Expr) -> Expr:
        *place, n = index
        value = sums[(*place, n // LANES, n % LANES)]
        return value if total is None else 2 * value - total[tuple(place)]

    return compute((*places, outputs), element, "y")


def scheduled(y: Tensor) -> Schedule:
    """The schedule of either: a block of outputs at a time; of each pair of planes, which are
    unrolled, the counts stay in a vector register.
    """
    schedule = create_schedule(y)
    by_name = {stage.name: stage for stage in schedule.stages}
    sums, ones = by_name["sums"], by_name["ones"]
    *outer, o = sums.tensor.axes
    sums.reorder(*outer, *sums.tensor.reduce_axes, o)
    for axis in sums.tensor.reduce_axes:
        sums.unroll(axis)
    sums.vectorize(o)
    ones.compute_at(sums, outer[-1])
    *outer, i, j, o = ones.tensor.axes
    ones.unroll(i)
    ones.unroll(j)
    *taps, word = ones.tensor.reduce_axes
    k, one = ones.split(word, 1)
    ones.reorder(*outer, i, j, *taps, k, one, o)
    ones.tensorize(one, POPCOUNT_DOT)
    return schedule
