"""Products of integers of one or two bits, bit by bit: 32 products at once are an `and`.

A value of b bits is b planes of bits, so that ::

    sum over k of x[k] * w[k] = sum over planes i, j of 2**(i+j) * popcount(x_i & w_j)

The words of a plane hold 32 consecutive k. Weights are packed once, at compile time, 16 outputs
side by side; the inner loop, one word of all 16, is a tensor intrinsic.
"""

from __future__ import annotations

import numpy as np

from ...isa.errors import VdlaError
from ..te.expr import Expr, popcount, select
from ..te.schedule import Schedule, create_schedule
from ..te.tensor import Tensor, compute, placeholder, reduce_axis, sum_of
from ..tir.tensorize import TensorIntrin

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
    """Planes of a weight [N, K] of values below ``2**bits``, as [N/16, K/32, bits, 16] uint32;
    rows and bits that are not there are 0.

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
    rows, size = weight.shape
    padded = np.zeros((-(-rows // LANES) * LANES, -(-size // WORD_BITS) * WORD_BITS), np.uint32)
    padded[:rows, :size] = weight
    grouped = padded.reshape(-1, LANES, padded.shape[1] // WORD_BITS, 1, WORD_BITS)
    planes = grouped >> np.arange(bits, dtype=np.uint32)[:, None] & 1
    words = (planes << np.arange(WORD_BITS, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    return np.ascontiguousarray(words.transpose(0, 2, 3, 1))


def bit_planes(x: Tensor, bits: int) -> Tensor:
    """Planes of a tensor [M, K] of uint8, as [M, K/32, bits] uint32; higher bits are ignored."""
    rows, size = x.shape
    k = reduce_axis(WORD_BITS, "k")

    def word(m: Expr, i: Expr, b: Expr) -> Expr:
        value = select(i * WORD_BITS + k < size, x[m, i * WORD_BITS + k].astype("uint32"), 0)
        return sum_of((value >> b.astype("uint32") & 1) << k.var.astype("uint32"), k)

    return compute((rows, -(-size // WORD_BITS), bits), word, "planes")


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
    i, j = reduce_axis(bits, "i"), reduce_axis(weight_bits, "j")
    sums = compute(
        (rows, blocks, LANES),
        lambda m, n, o: sum_of(ones[m, n, i, j, o].astype("int32") << i + j, (i, j)),
        "sums",
    )
    if not bipolar:
        return compute((rows, outputs), lambda m, n: sums[m, n // LANES, n % LANES], "y")
    all_k = reduce_axis(size, "k")
    total = compute((rows,), lambda m: sum_of(x[m, all_k].astype("int32"), all_k), "total")
    return compute((rows, outputs), lambda m, n: 2 * sums[m, n // LANES, n % LANES] - total[m], "y")


def schedule_dense(y: Tensor) -> Schedule:
    """A block of outputs at a time; of each pair of planes the sums stay in a vector register."""
    schedule = create_schedule(y)
    by_name = {stage.name: stage for stage in schedule.stages}
    sums, ones = by_name["sums"], by_name["ones"]
    m, n, o = sums.tensor.axes
    sums.reorder(m, n, *sums.tensor.reduce_axes, o)
    sums.vectorize(o)
    ones.compute_at(sums, n)
    m, n, i, j, o = ones.tensor.axes
    k, one = ones.split(ones.tensor.reduce_axes[0], 1)
    ones.reorder(m, n, i, j, k, one, o)
    ones.tensorize(one, POPCOUNT_DOT)
    return schedule
