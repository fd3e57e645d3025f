"""Softmax of int8 in integers that every target has: exponentials from a table of 16 bits, and one
reciprocal for each row, by Newton's steps.

With ``room`` = 0, a row x is computed as::

    e = table[max(x) - x]                 table[d] = round(32767 * exp(-d * in_scale))
    total = sum of e                      32767 .. 2048 * 32767 < 2**26
    inverse = -2**30 / total, rounded     see :func:`inverses`
    y = clamp(round_half_even(e * inverse * -multiplier / 2**shift) + zero_point)

so that ``e * -inverse`` is the probability times 2**30. Where probabilities of ``2**-room`` are
beyond the result's largest value already, the inverse has ``room`` more bits, and what would not
fit int32 is limited: ``e`` to ``total / 2**room``. The result is the largest value there, too.

With a mask, the maximum is over the visible elements, and e of a masked element is 0, so that
its result is the zero point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ... import topi
from ...te.expr import Const, Expr, minimum, select
from ...te.tensor import IterVar, Tensor, compute, max_of, placeholder, reduce_axis, sum_of
from ..arithmetic.requant import INT8_MAX, INT8_MIN, Requant, requant
from .base import Expression, Op, Shape, Type, broadcast, expect, expect_dtypes

#: The exponential of 0; the longest row, whose inverse costs a seventh of a step at most.
ONE, MOST_KEYS = (1 << 15) - 1, 2048
#: The bits of a probability of 1, as the product of an exponential with an inverse; sums of
#: products lose half of them between Newton's steps.
PRODUCT_BITS, HALF_BITS = 30, 15
#: What a mask has for visible and for masked elements: 255 apart, by which scores can differ.
VISIBLE, MASKED = INT8_MIN, INT8_MAX
#: Bits beyond :data:`PRODUCT_BITS`: the largest probability of a row is at least 2**-11.
MOST_ROOM = (MOST_KEYS - 1).bit_length()


def newton_steps(keys: int) -> int:
    """The number of Newton's steps from the inverse of the greatest sum of ``keys`` exponentials to
    the inverse of any sum: each step doubles it at first, and four make a half exact."""
    return (keys - 1).bit_length() + 4


def first_inverse(keys: int) -> int:
    """The inverse of the greatest sum of exponentials, which is negative as all are."""
    return -((1 << PRODUCT_BITS) // (keys * ONE))


def newton(total: Any, inverse: Any) -> Any:
    """A step towards ``-2**30 / total``: ``inverse * (2 - total * -inverse / 2**30)``; of arrays of
    int64, or of expressions."""
    share = total * inverse >> HALF_BITS
    return (share + (2 << HALF_BITS)) * inverse >> HALF_BITS


def refined(total: Any, inverse: Any, room: int) -> Any:
    """``-2**(30 + room) / total``, rounded, of an inverse that is less than 2 off; as
    :func:`newton`."""
    rest = (total * inverse + (1 << PRODUCT_BITS)) * inverse
    bits = PRODUCT_BITS - room
    return (rest + (1 << (bits - 1)) >> bits) + (inverse << room)


def inverses(total: np.ndarray, keys: int, room: int) -> np.ndarray:
    """``-2**(30 + room) / total`` of sums of ``keys`` exponentials, int64. It is at most 0.52 off
    for ``room`` = 0; for 11, 33 where there are 512 keys and 129 where there are 2,048. Every
    intermediate value fits int32."""
    inverse = np.full_like(total, first_inverse(keys))
    for _ in range(newton_steps(keys)):
        inverse = newton(total, inverse)
    return refined(total, inverse, room)


@dataclass(frozen=True)
class QTableSoftmax(Op):
    """Softmax of int8 along an axis of at most 2,048 elements, to int8.

    ``in_scale`` is the input's scale, whose zero point does not matter; ``out_scale`` and
    ``zero_point`` are the result's. A second operand, if there is one, is a mask: int8, broadcast
    to the first, :data:`VISIBLE` or :data:`MASKED`. Every row has visible elements. With
    ``groups``, channels, along axis 1, are groups of as many as the mask has, for each of which it
    holds.
    """

    axis: int
    in_scale: float
    out_scale: float
    zero_point: int
    groups: int = 1

    @cached_property
    def exponentials(self) -> np.ndarray:
        """The table, int16 [256], by how much less than the maximum an element is."""
        return np.rint(ONE * np.exp(-np.arange(256) * self.in_scale)).astype(np.int16)

    @property
    def room(self) -> int:
        """Bits of the inverse beyond :data:`PRODUCT_BITS`: probabilities of ``2**-room`` are at
        least 256 steps of the result."""
        return min(MOST_ROOM, max(0, math.floor(-math.log2(256 * self.out_scale))))

    @cached_property
    def requant(self) -> Requant:
        """From products to the result, but for the sign of the inverse."""
        real = 2.0 ** -(PRODUCT_BITS + self.room) / self.out_scale
        return requant(np.array([real]), self.zero_point)

    def infer(self, *types: Type) -> Type:
        expect(0 < len(types) < 3, "an operand, and perhaps a mask")
        shape, *masks = expect_dtypes(types, *("int8" for _ in types))
        fits = 0 <= self.axis < len(shape) and len(shape) > 1 and shape[self.axis] <= MOST_KEYS
        expect(fits, f"rows of at most {MOST_KEYS} elements along axis {self.axis}")
        group = shape
        if self.groups > 1:
            channels = shape[1:2]
            expect(sum(channels) % self.groups == 0, f"channels that make {self.groups} groups")
            group = (*shape[:1], sum(channels) // self.groups, *shape[2:])
        expect(broadcast(group, *masks) == group, f"a mask that is broadcast to {list(group)}")
        return shape, "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, *masks = args
        wide = x.astype(np.int64)
        visible: np.ndarray | np.bool_ = masks[0] == VISIBLE if masks else np.True_
        if self.groups > 1:
            visible = np.tile(visible, (1, self.groups, *(1 for _ in x.shape[2:])))
        most = np.where(visible, wide, INT8_MIN).max(axis=self.axis, keepdims=True)
        e = np.where(visible, self.exponentials.astype(np.int64)[most - wide], 0)
        total = e.sum(axis=self.axis, keepdims=True)
        inverse = inverses(total, x.shape[self.axis], self.room)
        if self.room:
            e = np.minimum(e, total >> self.room)
        # The products are negative, as the multiplier of the machine's requantisation is; rounding
        # half to even is the same for both signs.
        return self.requant.apply((-e * inverse).astype(np.int32))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """Stages ``most``, ``exponential``, ``total``, ``inverse0`` and following, and ``out``."""
        (x, *masks), table = inputs, placeholder((256,), "int32", "exponentials")
        axis, shape = self.axis, x.shape

        def look_up(most: Expr, element: Expr) -> Expr:
            return table[(most - element.astype("int32") + 256) % 256]

        def apply_mask(at: tuple[Expr, ...], value: Expr, other: int) -> Expr:
            """The value, or the other one where the mask hides it."""
            for mask in masks:
                theirs = at[len(at) - len(mask.shape) :]
                index = [i if n > 1 else 0 for i, n in zip(theirs, mask.shape, strict=True)]
                if self.groups > 1:
                    index[1] = at[1] % mask.shape[1]
                value = select(mask[tuple(index)] < 0, value, Const(other, value.dtype))
            return value

        most, total = sums(x, axis, look_up, apply_mask)
        inverse = chain(total, shape[axis], self.room)

        def product(*at: Expr) -> Expr:
            row = (*at[:axis], *at[axis + 1 :])
            e = apply_mask(at, look_up(most[row], x[at]), 0)
            if self.room:
                e = minimum(e, total[row] >> self.room)
            scaled = topi.rescale(
                e * inverse[row], -int(self.requant.multiplier[0]), int(self.requant.shift[0])
            )
            return topi.quantisation.clipped(scaled, self.zero_point, INT8_MIN, INT8_MAX)

        out = compute(shape, product, "out")
        return Expression(out, (*inputs, table), (self.exponentials.astype(np.int32),))


def _as_it_is(_at: tuple[Expr, ...], value: Expr, _other: int) -> Expr:
    return value


def sums(
    x: Tensor,
    axis: int,
    look_up: Callable[[Expr, Expr], Expr],
    apply_mask: Callable[[tuple[Expr, ...], Expr, int], Expr] = _as_it_is,
) -> tuple[Tensor, Tensor]:
    """The maximum along an axis, and the sum of what ``look_up`` returns for it and each element;
    int32 without the axis. ``apply_mask`` takes an index, its value and what replaces it if the
    element is masked."""
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])

    def insert(row: tuple[Expr, ...], k: IterVar) -> tuple[Expr, ...]:
        return (*row[:axis], k.var, *row[axis:])

    def element(*row: Expr) -> Expr:
        return apply_mask(insert(row, k), x[insert(row, k)].astype("int32"), INT8_MIN)

    def exponential(*row: Expr) -> Expr:
        return apply_mask(insert(row, j), look_up(most[row], x[insert(row, j)]), 0)

    k, j = (reduce_axis(x.shape[axis], name) for name in ("k", "j"))
    most = compute(shape, lambda *row: max_of(element(*row), k), "most")
    total = compute(shape, lambda *row: sum_of(exponential(*row), j), "total")
    return most, total


def chain(total: Tensor, keys: int, room: int) -> Tensor:
    """:func:`inverses` of sums of exponentials, a stage for each of Newton's steps."""
    inverse = compute(total.shape, lambda *row: Const(first_inverse(keys)), "inverse0")
    for step in range(1, newton_steps(keys) + 1):
        inverse = compute(
            total.shape,
            lambda *row, before=inverse: newton(total[row], before[row]),
            f"inverse{step}",
        )
    return compute(total.shape, lambda *row: refined(total[row], inverse[row], room), "inverse")
