"""Products of integers of one or two bits, bit by bit: 32 products at once are an `and`.

A value of b bits is b planes of bits, so that ::

    sum over k of x[k] * w[k] = sum over planes i, j of 2**(i+j) * popcount(x_i & w_j)

Each word of a plane holds 32 consecutive k. Weights are packed once, at compile time, 16 outputs
side by side. Weights with two to four equidistant values, whatever these are, are replaced by their
*codes* 0, 1, 2, ...; the sum of the elements times the smallest value is added to the result
(:class:`Levels`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...isa.errors import VdlaError
from ..te.expr import Expr, all_of, popcount, select
from ..te.tensor import Tensor, compute, reduce_axis, sum_of

WORD_BITS = 32
#: Outputs that are computed together.
LANES = 16
#: The most bits of an element, or of a weight's code.
MAX_BITS = 2


@dataclass(frozen=True)
class Levels:
    """What the codes 0, 1, 2, ... of a weight mean: ``offset + step * code``."""

    step: int = 1
    offset: int = 0

    @staticmethod
    def of(weight: np.ndarray) -> tuple[Levels, int]:
        """The levels of a weight's values, and the number of bits of their codes."""
        values = np.unique(weight).astype(np.int64)
        least, most = int(values[0]), int(values[-1])
        if least >= 0 and most < 1 << MAX_BITS:
            return PLAIN, max(most, 1).bit_length()
        step = int(np.gcd.reduce(np.diff(values))) if most > least else 1
        return Levels(step, least), max((most - least) // step, 1).bit_length()

    def codes(self, weight: np.ndarray) -> np.ndarray:
        """The codes of a weight, int64."""
        return (weight.astype(np.int64) - self.offset) // self.step


#: A weight that is its own code.
PLAIN = Levels()


def pack_weights(weight: np.ndarray, bits: int) -> np.ndarray:
    """Planes of a weight [N, K], or [N, KH, KW, C], of values below ``2**bits``.

    Returns
    -------
    [N/16, K/32, bits, 16], or [N/16, KH, KW, C/32, bits, 16], uint32; outputs and bits beyond the
    weight's are 0

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


def unpack_weights(packed: np.ndarray, outputs: int, size: int) -> np.ndarray:
    """The inverse of :func:`pack_weights`: [N, K], or [N, KH, KW, C], int64."""
    planes = np.moveaxis(packed, -1, 1)[..., None] >> np.arange(WORD_BITS, dtype=np.uint32) & 1
    shifts = np.arange(packed.shape[-2], dtype=np.int64)[:, None]
    codes = (planes.astype(np.int64) << shifts).sum(-2)
    flat = codes.reshape(-1, *packed.shape[1:-3], packed.shape[-3] * WORD_BITS)
    return flat[:outputs, ..., :size]


def bit_planes(x: Tensor, bits: int) -> Tensor:
    """The ``bits`` lowest planes of a tensor of uint8: [N, K, ...] becomes [N, K/32, bits, ...]
    uint32.
    """
    images, size, *rest = x.shape
    k = reduce_axis(WORD_BITS, "k")

    def word(*index: Expr) -> Expr:
        n, i, b, *after = index
        place = i * WORD_BITS + k
        value = select(place < size, x[(n, place, *after)].astype("uint32"), 0)
        return sum_of((value >> b.astype("uint32") & 1) << k.var.astype("uint32"), k)

    shape = (images, -(-size // WORD_BITS), bits, *rest)
    return compute(shape, word, "planes")


def bit_serial_dense(
    x: Tensor, weight: Tensor, outputs: int, bits: int, levels: Levels = PLAIN
) -> Tensor:
    """Products of rows and weights, exact.

    Parameters
    ----------
    x : [M, K] uint8, values below ``2**bits``
    weight : as :func:`pack_weights` gives it
    outputs : N
    levels : what the weight means

    Returns
    -------
    [M, N] int32
    """
    blocks, words, weight_bits, _ = weight.shape
    rows, planes = x.shape[0], bit_planes(x, bits)
    k = reduce_axis(words, "k")
    ones = compute(
        (rows, blocks, bits, weight_bits, LANES),
        lambda m, n, i, j, o: sum_of(popcount(planes[m, k, i] & weight[n, k, j, o]), k),
        "ones",
    )
    if not levels.offset:
        return _weighted(ones, outputs, levels, None)
    word, bit = reduce_axis(words, "k"), reduce_axis(bits, "i")

    def row(m: Expr) -> Expr:
        return sum_of(popcount(planes[m, word, bit]).astype("int32") << bit.var, (word, bit))

    return _weighted(ones, outputs, levels, compute((rows,), row, "total"))


def bit_serial_conv2d(
    x: Tensor,
    width: int,
    weight: Tensor,
    outputs: int,
    bits: int,
    strides: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    levels: Levels = PLAIN,
) -> Tensor:
    """A convolution, exact.

    Parameters
    ----------
    x : [N, C, H * W] uint8, values below ``2**bits``
    width : W
    weight : as :func:`pack_weights` gives it
    outputs : number of output channels O
    strides, pads : as in ONNX; padding is 0
    levels : what the weight means

    Returns
    -------
    [N, OH, OW, O] int32
    """
    blocks, kh, kw, words, weight_bits, _ = weight.shape
    batch, _, size = x.shape
    image = _bordered(bit_planes(x, bits), (size // width, width), pads)
    high, wide = image.shape[3:]
    places = (batch, (high - kh) // strides[0] + 1, (wide - kw) // strides[1] + 1)
    u, v, k = reduce_axis(kh, "u"), reduce_axis(kw, "v"), reduce_axis(words, "k")

    def products(b: Expr, h: Expr, w: Expr, n: Expr, i: Expr, j: Expr, o: Expr) -> Expr:
        word = image[b, k, i, h * strides[0] + u, w * strides[1] + v]
        return sum_of(popcount(word & weight[n, u, v, k, j, o]), (u, v, k))

    ones = compute((*places, blocks, bits, weight_bits, LANES), products, "ones")
    if not levels.offset:
        return _weighted(ones, outputs, levels, None)
    every, bit = reduce_axis(words, "k"), reduce_axis(bits, "i")

    def pixel(b: Expr, h: Expr, w: Expr) -> Expr:
        ones = popcount(image[b, every, bit, h, w]).astype("int32")
        return sum_of(ones << bit.var, (every, bit))

    pixels = compute((batch, high, wide), pixel, "pixels")
    row, column = reduce_axis(kh, "u"), reduce_axis(kw, "v")

    def window(b: Expr, h: Expr, w: Expr) -> Expr:
        return sum_of(pixels[b, h * strides[0] + row, w * strides[1] + column], (row, column))

    return _weighted(ones, outputs, levels, compute(places, window, "total"))


def _bordered(planes: Tensor, size: tuple[int, int], pads: tuple[int, int, int, int]) -> Tensor:
    """Planes [N, words, bits, H * W] as [N, words, bits, rows, columns], with a border of zeros."""
    (height, width), (top, left, bottom, right) = size, pads

    def element(n: Expr, k: Expr, i: Expr, h: Expr, w: Expr) -> Expr:
        inside = all_of(h >= top, h < height + top, w >= left, w < width + left)
        word = planes[n, k, i, (h - top) * width + (w - left)]
        return select(inside, word, 0) if any(pads) else word

    shape = (*planes.shape[:3], height + top + bottom, width + left + right)
    return compute(shape, element, "bordered")


def _weighted(ones: Tensor, outputs: int, levels: Levels, total: Tensor | None) -> Tensor:
    """The sums [..., N] of counts of ones [..., N/16, bits, weight bits, 16], each times the power
    of two of its planes; times the step of the levels, plus their offset times ``total``, the sum
    of the elements.
    """
    *places, blocks, bits, weight_bits, _ = ones.shape
    i, j = reduce_axis(bits, "i"), reduce_axis(weight_bits, "j")

    def added(*index: Expr) -> Expr:
        return sum_of(ones[(*index[:-1], i, j, index[-1])].astype("int32") << i + j, (i, j))

    sums = compute((*places, blocks, LANES), added, "sums")

    def element(*index: Expr) -> Expr:
        *place, n = index
        value = sums[(*place, n // LANES, n % LANES)]
        value = value * levels.step
        return value if total is None else value + total[tuple(place)] * levels.offset

    return compute((*places, outputs), element, "y")
