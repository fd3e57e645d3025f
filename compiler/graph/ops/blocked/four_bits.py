"""Rows of int8 by weights of 4 bits, which share a scale in groups of input channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .....isa.packed import scales_of
from ....te.expr import Expr, Operand
from ....te.tensor import Tensor, compute, reduce_axis, sum_of
from ..base import Expression, Shape, Type, expect
from ..layout import in_blocks, lifted
from .dense import DOT_WIDTH
from .integer import BlockedDotConv2d

#: Input channels that share a scale: the sum of so many products of uint8 and 4 bits fits int16.
GROUP = 16
#: Fours of channels in a group, in order: pairs of them, whose weights share bytes.
PAIRS, HALVES = 2, 2


def pack_groups(weight: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Weights as :class:`FourBitRows` reads them; None if a group of a row is no scale of 1 to 16
    times 4 bits.

    Parameters
    ----------
    weight : int8 [OC, K]

    Returns
    -------
    uint8 [OC/B, K/16, 2, B, 4], uint8 [OC/B, K/16, B]
    """
    groups = in_blocks(in_blocks(weight, block, 0), GROUP, 2)  # [OC/B, B, K/16, 16]
    scales = scales_of(groups)
    if not scales.all():
        return None
    small = (groups // scales.view(np.int8)[..., None]).view(np.uint8) & 15
    fours = small.reshape(*groups.shape[:3], PAIRS, HALVES, DOT_WIDTH)
    pairs = fours[..., 0, :] | fours[..., 1, :] << 4
    return (
        np.ascontiguousarray(pairs.transpose(0, 2, 3, 1, 4)),
        np.ascontiguousarray(scales.swapaxes(1, 2)),
    )


def scaled_product(element: Expr, pair: Expr, half: Operand, scale: Expr) -> Expr:
    """A uint8 times one of the two weights of 4 bits in a byte, times its scale, as int32. ``half``
    is 0 for the weight in the lower bits."""
    weight = pair.astype("int32") << (28 - half * 4) >> 28
    return element.astype("int32") * weight * scale.astype("int32")


@dataclass(frozen=True, eq=False)
class FourBitRows(BlockedDotConv2d):
    """:class:`BlockedDotConv2d` of one row of positions, whose weights are 4 bits times a scale::

        acc[n, o] = bias[o] + sum over groups g of scale[o, g] * sum over k of x[n, 16 g + k] * w

    x is int8 or uint8 [1, 1, 1, N, K], K whole groups; the weight uint8 [OC/B, K/16, 2, B, 4], of
    which each byte has a weight of one four of channels in its lower bits and one of the next four
    above; scales uint8 [OC/B, K/16, B]; columns and result are as there.
    """

    def infer(self, *types: Type) -> Type:
        x, (weight, w_dtype), (scales, s_dtype), *columns = types
        expect(w_dtype == s_dtype == "uint8", "weights and scales of uint8")
        fits = len(weight) == 5 and weight[2::2] == (PAIRS, DOT_WIDTH)
        expect(fits and scales == (*weight[:2], weight[3]), "weights in groups, each with a scale")
        as_bytes = (weight[0], 1, 1, 1, weight[1] * GROUP // DOT_WIDTH, weight[3], DOT_WIDTH)
        return super().infer(x, (as_bytes, "int8"), *columns)

    def macs(self, *shapes: Shape) -> int:
        x, weight, *_ = shapes
        return x[3] * x[4] * weight[0] * weight[3]

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, scales, *columns = args
        halves = np.stack([weight.view(np.int8) << 4, weight.view(np.int8)], 3) >> 4
        whole = halves * scales[:, :, None, None, :, None].astype(np.int8)
        blocks, groups, *_, lanes, four = whole.shape
        as_bytes = whole.reshape(blocks, 1, 1, 1, groups * GROUP // four, lanes, four)
        return super().evaluate(x, as_bytes, *columns)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, scales, bias, *_ = inputs
        image = x if x.dtype == "uint8" else compute(x.shape, lambda *i: lifted(x[i]), "bordered")
        g, pair, half, k = (
            reduce_axis(size, name)
            for size, name in zip(
                (weight.shape[1], PAIRS, HALVES, DOT_WIDTH), ("g", "pair", "half", "k"), strict=True
            )
        )

        def rule(n: Expr, ob: Expr, oh: Expr, ow: Expr, o: Expr) -> Expr:
            place = g * GROUP + pair * (HALVES * DOT_WIDTH) + half * DOT_WIDTH + k
            product = scaled_product(
                image[n, 0, oh, ow, place], weight[ob, g, pair, o, k], half, scales[ob, g, o]
            )
            return sum_of(product, (g, pair, half, k), init=bias[ob, o])

        acc = compute((1, weight.shape[0], 1, x.shape[3], weight.shape[3]), rule, "acc")
        return Expression(self._result(lambda *i: acc[i], acc.shape, inputs[3:]), tuple(inputs))
