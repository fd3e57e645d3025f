"""Layer normalisation of int8 in integers that every target has: sums of a row and of its squares,
which are exact, and one inverse square root for each row, by Newton's steps.

RMS normalisation is the same around the input's zero point in the place of the mean.

A tensor may come as two of int8, ``x + low / 2**low_bits``. Sums are those of x then, and
``low * factor >> low_bits`` is added to ``x * factor``.

A row x of ``width`` = C elements, whose scale and zero point cancel out but for epsilon, is
computed as::

    y = clamp(round_half_even((x * factor + offset + bias[c]) * multiplier[c] / 2**shift[c])
              + zero_point)

``factor`` is ``2**bits / sqrt(variance + epsilon)`` and ``offset`` is ``-mean * factor``, so that
``x * factor + offset`` is the normalised element times ``2**bits``. :func:`normaliser` computes
both of the two sums; every intermediate value fits int32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ....isa.vector_ops import requantize_even
from ... import topi
from ...te.expr import Const, Expr, minimum, select
from ...te.tensor import Tensor, compute, placeholder, reduce_axis, sum_of
from ..arithmetic.requant import INT8_MAX, INT8_MIN, requant_params
from .base import Expression, Fusion, Op, Shape, Type, expect, expect_dtypes
from .group_matmul import expect_image

#: Elements of a row: its sum times a factor, and its squares, fit int32.
LEAST_WIDTH, MOST_WIDTH = 16, 960
#: Factors are below 2**22, so that an element times one, and that less an offset, fit int32; and a
#: little less, so that an offset is two digits of 15 bits (templates/layer_norm.py).
FACTOR_BITS = 22
FACTOR_LIMIT = (1 << FACTOR_BITS) - (1 << 16)
#: Bits behind the point of the mean's factor, and of that of its remainder.
MEAN_BITS, REST_BITS = 23, 19
#: The bits that a remainder times a factor loses before the division by the width.
LOST_BITS = 10
#: The energy of a row, its variance times a constant, is below 2**30.
ENERGY_BITS = 30
#: The table of first roots is looked up by an index that grows with the energy: of each of so many
#: segments of 6 bits up to 50 values.
SEGMENTS, SEGMENT_BITS, SEGMENT_VALUES = 5, 6, 50
#: A value of the table is a root whose lowest bits are half the bits of a shift.
HALF_SHIFT_VALUES = 32
#: An energy of 30 bits times the square of its root is 2**57; the shifts share it out.
ROOT_BITS, SQUARE_BITS, PART_BITS, PRODUCT_BITS, STEP_BITS = 57, 14, 13, 16, 14
STEPS = 3
#: Added to the negative of a value of the table, which stays the same modulo 32.
POSITIVE = 1 << 15
#: The bias of a channel, in units of the factor, is at most this.
BIAS_LIMIT = 1 << 30


@dataclass(frozen=True)
class Numbers:
    """The constants of :func:`normaliser` for rows of ``width`` elements, and an ``epsilon`` in
    squared steps of the input. Squares are of distances from the row's mean, or from ``centre``."""

    width: int
    epsilon: float
    centre: int | None = None

    @property
    def fits(self) -> bool:
        """Whether energies can have all bits of an integer at least."""
        return LEAST_WIDTH <= self.width <= MOST_WIDTH and self._room >= 1

    @property
    def _room(self) -> float:
        """How often the greatest energy without fraction bits fits its limit. Squares less the mean
        are at most 127.5**2, and the mean that is subtracted is rounded."""
        farthest = 2**7 if self.centre is None else max(2**7 + self.centre, 2**7 - self.centre)
        return 2**ENERGY_BITS / (self.width * (farthest**2 + self.epsilon) + 2)

    @cached_property
    def most_rest(self) -> int:
        """A bound of a sum less ``width`` times the rounded mean."""
        return math.ceil(0.51 * self.width) + 1

    @cached_property
    def fraction_bits(self) -> int:
        """Bits behind the point of an energy."""
        return math.floor(math.log2(self._room))

    @cached_property
    def least_energy(self) -> int:
        """Epsilon as an energy."""
        return round(self.width * self.epsilon * 2**self.fraction_bits)

    @cached_property
    def mean(self) -> int:
        """``2**23 / width``."""
        return round(2**MEAN_BITS / self.width)

    @cached_property
    def rest(self) -> int:
        """``2**19 / width``."""
        return round(2**REST_BITS / self.width)

    @cached_property
    def square_bits(self) -> int:
        """Bits behind the point of :attr:`square`: the square of a remainder times it fits
        int32."""
        return math.floor(math.log2(2**31 * self.width / (self.most_rest**2 + 1))) - 1

    @cached_property
    def square(self) -> int:
        """``2**square_bits / width``."""
        return round(2**self.square_bits / self.width)

    @cached_property
    def bits(self) -> int:
        """Bits behind the point of a normalised element: the factor of the row of least variance,
        in which one element differs by 1, is just below its limit."""
        share = 1 / self.width if self.centre is None else 0
        least = (1 - share) / self.width + self.epsilon
        return min(FACTOR_BITS, math.floor(FACTOR_BITS - 0.1 + math.log2(least) / 2))

    @cached_property
    def scale(self) -> int:
        """What a root is multiplied by, and :attr:`scale_bits` how far the product is shifted, to
        be the factor: below 2**16."""
        return round(self._scale * 2**self.scale_bits)

    @cached_property
    def scale_bits(self) -> int:
        """See :attr:`scale`."""
        return math.floor(math.log2(65000 / self._scale))

    @property
    def _scale(self) -> float:
        return 2 ** (self.bits - ROOT_BITS / 2) * math.sqrt(self.width * 2**self.fraction_bits)


@lru_cache(maxsize=1)
def roots() -> np.ndarray:
    """The first roots, int16 [256], at :func:`find_root_index` of the energy: ``2**28.5 /
    sqrt(energy * 4**half)``, where half is in the lowest 5 bits and makes ``energy * 4**half`` as
    large as 30 bits allow."""
    found = np.zeros(256, np.int16)
    found[0] = 1 << 13
    for index in range(1, SEGMENTS * SEGMENT_VALUES + 1):
        segment, value = divmod(index - 1, SEGMENT_VALUES)
        unit = 1 << SEGMENT_BITS * segment
        low, high = (value + 1) * unit, (value + 2) * unit - 1
        if value == SEGMENT_VALUES - 1:
            high = (unit << SEGMENT_BITS) - 1
        half = (ENERGY_BITS - high.bit_length()) // 2
        root = 2 ** (ROOT_BITS / 2 - half) / (low * high) ** 0.25
        found[index] = int(root) // HALF_SHIFT_VALUES * HALF_SHIFT_VALUES + half
    return found


def find_root_index(energy: Any, least: Callable[[Any, int], Any]) -> Any:
    """The index of an energy's first root in the table. ``least`` is the minimum of a value and a
    number."""
    index = least(energy, SEGMENT_VALUES)
    for segment in range(1, SEGMENTS):
        index = index + least(energy >> SEGMENT_BITS * segment, SEGMENT_VALUES)
    return index


@dataclass(frozen=True)
class Steps:
    """What :func:`normaliser` needs besides arithmetic: the minimum of a value and a number, the
    value of the table of :func:`roots` at an index, a value's lowest 5 bits, and ``cached``, which
    stores a value that is used more than once."""

    least: Callable[[Any, int], Any]
    look_up: Callable[[Any], Any]
    low_bits: Callable[[Any], Any]
    cached: Callable[[Any], Any] = lambda value: value


def normaliser(total: Any, squares: Any, numbers: Numbers, by: Steps) -> tuple[Any, Any]:
    """``factor`` and ``offset`` of rows with these sums of elements and of squares; of arrays of
    int64, or of expressions."""
    n, cached = numbers, by.cached
    if n.centre is None:
        mean = cached(total * n.mean + (1 << (MEAN_BITS - 1)) >> MEAN_BITS)
        rest = cached(total - mean * n.width)
        # Sum of (x - mean)**2, of which the share of the mean's rounding is rest**2 / width.
        around = squares - (total + rest) * mean
        rounded = rest * rest * n.square >> n.square_bits - n.fraction_bits
        energy = cached((around << n.fraction_bits) - rounded + n.least_energy)
    else:
        # Sum of (x - centre)**2.
        around = squares
        if n.centre:
            around = squares - (total * 2 - n.centre * n.width) * n.centre
        energy = cached((around << n.fraction_bits) + n.least_energy)
    first = cached(by.look_up(cached(find_root_index(energy, by.least))))
    half = by.low_bits(first)
    part = cached(-1 * (energy << half << half >> PART_BITS))
    root = first
    for _ in range(STEPS):
        # 3 - energy * root**2, half of which the root is multiplied by.
        product = (root * root >> SQUARE_BITS) * part >> PRODUCT_BITS
        root = cached((product + (3 << STEP_BITS)) * root >> STEP_BITS + 1)
    doubled = root * n.scale >> by.low_bits(-1 * first + (n.scale_bits - 1 + POSITIVE))
    factor = cached(by.least(doubled + 1 >> 1, FACTOR_LIMIT))
    if n.centre is not None:
        return factor, cached(factor * -n.centre)
    share = (factor * rest >> LOST_BITS) * n.rest >> REST_BITS - LOST_BITS
    return factor, cached(-1 * (factor * mean + share))


@dataclass(frozen=True, eq=False)
class QLayerNorm(Op):
    """Layer normalisation of int8 along an axis of 16 to 960 elements, to int8.

    ``in_scale`` is the input's scale, whose zero point does not matter, and ``epsilon`` what is
    added to the variance; ``gain`` and ``bias`` are float32 [C]; ``out_scale`` and ``zero_point``
    are the result's. With a ``centre``, the input's zero point, it is RMS normalisation. With
    ``low_bits``, a second input is what rounding the first one lost, in steps of
    ``in_scale / 2**low_bits``.
    """

    axis: int
    in_scale: float
    epsilon: float
    gain: np.ndarray
    bias: np.ndarray
    out_scale: float
    zero_point: int
    centre: int | None = None
    low_bits: int | None = None

    fusion = Fusion.REDUCTION

    @cached_property
    def numbers(self) -> Numbers:
        """The constants of the rows' statistics."""
        return Numbers(len(self.gain), self.epsilon / self.in_scale**2, self.centre)

    @cached_property
    def parameters(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bias, multiplier and shift of each channel, int32. A gain that is so small that the bias
        divided by it does not fit is taken as the least for which it does: normalised elements
        change the result by less than 2**-7 of a step there, unless the bias is beyond int8."""
        unit = 2.0**self.numbers.bits
        gain, bias = (values.astype(np.float64) for values in (self.gain, self.bias))
        least = np.maximum(np.abs(bias) * unit / BIAS_LIMIT, self.out_scale * 2.0**-40)
        gain = np.where(gain < 0, -1, 1) * np.maximum(np.abs(gain), least)
        pairs = [requant_params(float(g)) for g in np.abs(gain) / (unit * self.out_scale)]
        multiplier, shift = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
        signed = np.where(gain < 0, -multiplier, multiplier).astype(np.int32)
        return np.rint(bias / gain * unit).astype(np.int32), signed, shift

    def infer(self, *types: Type) -> Type:
        shape, *low = expect_dtypes(types, *["int8"] * self.operands)
        expect(low in ([], [shape]), "operands of one shape")
        fits = 0 <= self.axis < len(shape) and len(shape) > 1
        width = len(self.gain)
        expect(fits and shape[self.axis] == width, f"rows of {width} elements along {self.axis}")
        expect(self.numbers.fits, f"{LEAST_WIDTH} to {MOST_WIDTH} elements, a small epsilon")
        return shape, "int8"

    @property
    def operands(self) -> int:
        """How many tensors are read."""
        return 1 if self.low_bits is None else 2

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, *low = (np.moveaxis(arg, self.axis, -1).astype(np.int64) for arg in args)
        factor, offset = normaliser(
            x.sum(-1, keepdims=True), (x * x).sum(-1, keepdims=True), self.numbers, array_steps()
        )
        bias, multiplier, shift = self.parameters
        total = self.times(factor, x, *low) + offset + bias
        scaled = requantize_even(total.astype(np.int32), multiplier, shift)
        y = np.clip(scaled + self.zero_point, INT8_MIN, INT8_MAX).astype(np.int8)
        return np.moveaxis(y, -1, self.axis)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """Stages ``total``, ``squares``, steps between them and ``offset``, and ``out``."""
        x, axis = inputs[0], self.axis
        table = placeholder((256,), "int32", "roots")
        parameters = parameter_placeholders(len(self.gain))
        total, squares = map(Row.from_tensor, sums(x, axis))
        factor, offset = normaliser(total, squares, self.numbers, expression_steps(table))

        def rule(*at: Expr) -> Expr:
            row, c = (*at[:axis], *at[axis + 1 :]), at[axis]
            elements = [tensor[at].astype("int32") for tensor in inputs]
            wide = self.times(factor.rule(*row), *elements) + offset.rule(*row)
            return self.requantised(wide, [values[c] for values in parameters])

        out = compute(x.shape, rule, "out")
        values = (roots().astype(np.int32), *self.parameters)
        return Expression(out, (*inputs, table, *parameters), values)

    def times(self, factor: Any, x: Any, *low: Any) -> Any:
        """An element times its row's factor; of arrays of int64, or of expressions."""
        return x * factor + (low[0] * factor >> self.low_bits) if low else x * factor

    def requantised(self, normal: Expr, parameters: Sequence[Expr]) -> Expr:
        """A normalised element with its channel's parameters, as int8."""
        bias, multiplier, shift = parameters
        scaled = topi.rescale(normal + bias, multiplier, shift)
        return topi.quantisation.clipped(scaled, self.zero_point, INT8_MIN, INT8_MAX)


def parameter_placeholders(width: int) -> list[Tensor]:
    """Placeholders of :attr:`QLayerNorm.parameters`."""
    return [placeholder((width,), "int32", name) for name in ("bias", "multiplier", "shift")]


def array_steps() -> Steps:
    """Of arrays of int64."""
    table = roots().astype(np.int64)
    return Steps(np.minimum, lambda index: table[index], lambda value: value & 31)


def expression_steps(table: Tensor) -> Steps:
    """Of expressions, which are a :class:`Row`; ``table`` has :func:`roots`."""
    return Steps(
        Row.least, lambda i: i.map_values(lambda e: table[e % 256]), lambda v: v % 32, Row.stage
    )


def sums(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The sums of elements and of squares along an axis; int32 without the axis."""
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    k, j = (reduce_axis(x.shape[axis], name) for name in ("k", "j"))

    def element(row: tuple[Expr, ...], i: Any) -> Expr:
        return x[(*row[:axis], i, *row[axis:])].astype("int32")

    total = compute(shape, lambda *row: sum_of(element(row, k), k), "total")
    squares = compute(shape, lambda *row: sum_of(element(row, j) * element(row, j), j), "squares")
    return total, squares


@dataclass(frozen=True)
class Row:
    """A value of each row in expressions: ``rule`` is its element at an index, of ``shape``.
    ``each`` makes what the result of an operator becomes, such as a stage."""

    shape: Shape
    rule: Callable[..., Expr]
    each: Callable[[Row], Row] = lambda row: row

    @classmethod
    def from_tensor(cls, tensor: Tensor, each: Callable[[Row], Row] = lambda row: row) -> Row:
        """The elements of a tensor."""
        return cls(tensor.shape, lambda *at: tensor[at], each)

    def stage(self) -> Row:
        """The value, computed by a stage."""
        return Row.from_tensor(compute(self.shape, self.rule, "row"), self.each)

    def map_values(self, function: Callable[[Expr], Expr]) -> Row:
        """A function of the value."""
        return self.each(Row(self.shape, lambda *at: function(self.rule(*at)), self.each))

    def with_(self, other: Row | int, function: Callable[[Expr, Expr], Expr]) -> Row:
        """A function of the value and another one."""
        if isinstance(other, int):
            return self.map_values(lambda a: function(a, Const(other)))
        both = Row(self.shape, lambda *at: function(self.rule(*at), other.rule(*at)), self.each)
        return self.each(both)

    def least(self, number: int) -> Row:
        """The minimum of the value and a number."""
        return self.with_(number, minimum)

    def __add__(self, other: Row | int) -> Row:
        return self.with_(other, lambda a, b: a + b)

    def __sub__(self, other: Row | int) -> Row:
        return self.with_(other, lambda a, b: a - b)

    def __mul__(self, other: Row | int) -> Row:
        return self.with_(other, lambda a, b: a * b)

    def __rmul__(self, other: int) -> Row:
        return self * other

    def __mod__(self, other: int) -> Row:
        return self.with_(other, lambda a, b: a % b)

    def __lshift__(self, other: Row | int) -> Row:
        return self.with_(other, lambda a, b: a << b)

    def __rshift__(self, other: Row | int) -> Row:
        return self.with_(other, lambda a, b: a >> b)


# ---- on images -----------------------------------------------------------------------------------

#: A value is four digits: ``d0 - 128*d1 - 2**15 * (d2 - 128*d3)``; the first and the third have 7
#: bits, the others 8. :data:`VALUES` are a row's factor and its offset.
DIGITS, VALUES = 4, 2
DIGIT_WEIGHTS = (1, -128)
LOW_DIGIT_BITS, PAIR_BITS = 7, 15


def digits(value: Any) -> tuple[Any, ...]:
    """The digits of a value whose size is at most ``2**29 - 2**23``; of int32 arrays, or of
    expressions."""

    def signed(number: Any, bits: int) -> Any:
        return number << 32 - bits >> 32 - bits

    def pair(number: Any) -> tuple[Any, Any]:
        low = signed(number, LOW_DIGIT_BITS)
        return low, low - number >> LOW_DIGIT_BITS

    first, rest = pair(value)
    second = signed(rest, 8)
    return first, second, *pair(rest - second >> 8)


def combine_digits(digits: np.ndarray) -> np.ndarray:
    """The value of digits, int64; the digits lie along the first axis."""
    d0, d1, d2, d3 = digits.astype(np.int64)
    return d0 - (d1 << 7) - ((d2 - (d3 << 7)) << PAIR_BITS)


@dataclass(frozen=True)
class RowDigits(Op):
    """Digits of the factor and of the offset of each position of an image: int8 [1,C,N,1] to int8
    [1,8*B,T,1], B is ``block`` and T is N/B, rounded up. Digit d of position ``t*B + l`` is
    channel ``d*B + l`` of position t; the offset's digits follow the factor's. Nothing reads digits
    of positions from N on: here they are the last position's.
    """

    numbers: Numbers
    block: int

    def infer(self, *types: Type) -> Type:
        [x] = expect_dtypes(types, "int8")
        expect_image(x, 1)
        expect(x[1] == self.numbers.width, f"an image of {self.numbers.width} channels")
        return (1, VALUES * DIGITS * self.block, -(-x[2] // self.block), 1), "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        missing = -args[0].shape[2] % self.block
        wide = np.pad(args[0][0, :, :, 0], ((0, 0), (0, missing)), "edge").astype(np.int64)
        values = normaliser(wide.sum(0), (wide * wide).sum(0), self.numbers, array_steps())
        found = np.stack([d for value in values for d in digits(value.astype(np.int32))])
        positions = found.reshape(VALUES * DIGITS, -1, self.block).transpose(0, 2, 1)
        return positions.reshape(1, VALUES * DIGITS * self.block, -1, 1).astype(np.int8)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        [x], block = inputs, self.block
        last = x.shape[2] - 1
        table = placeholder((256,), "int32", "roots")
        total, squares = map(Row.from_tensor, sums(x, 1))
        values = normaliser(total, squares, self.numbers, expression_steps(table))
        found = [digit.stage() for value in values for digit in digits(value)]

        def rule(n: Expr, c: Expr, t: Expr, z: Expr) -> Expr:
            at = (Const(0), minimum(t * block + c % block, Const(last)), Const(0))
            chosen = found[-1].rule(*at)
            for number in reversed(range(len(found) - 1)):
                chosen = select(c // block < number + 1, found[number].rule(*at), chosen)
            return chosen.astype("int8")

        shape, _ = self.infer((shapes[0], "int8"))
        return Expression(compute(shape, rule, "out"), (x, table), (roots().astype(np.int32),))


@dataclass(frozen=True, eq=False)
class QNormalise(Op):
    """The rest of a QLayerNorm along the channels of an image: what that reads, int8 [1,C,N,1], and
    the :class:`RowDigits` of its positions in blocks of ``block``, to int8 of the shape of x."""

    norm: QLayerNorm
    block: int

    def infer(self, *types: Type) -> Type:
        *inputs, (positions, dtype) = types
        x, _ = self.norm.infer(*inputs)
        wanted, _ = RowDigits(self.norm.numbers, self.block).infer((x, "int8"))
        expect((positions, dtype) == (wanted, "int8"), f"digits of shape {wanted}")
        return x, "int8"

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        *inputs, positions = args
        x, *low = (arg.astype(np.int64) for arg in inputs)
        found = positions.reshape(VALUES, DIGITS, self.block, -1).transpose(0, 1, 3, 2)
        factor, offset = (combine_digits(d).reshape(1, 1, -1, 1)[:, :, : x.shape[2]] for d in found)
        bias, multiplier, shift = (v.reshape(1, -1, 1, 1) for v in self.norm.parameters)
        total = (self.norm.times(factor, x, *low) + offset + bias).astype(np.int32)
        scaled = requantize_even(total, multiplier, shift) + self.norm.zero_point
        return np.clip(scaled, INT8_MIN, INT8_MAX).astype(np.int8)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        (x, *_, positions), block = inputs, self.block
        parameters = parameter_placeholders(x.shape[1])

        def digit(value: int, number: int, place: Expr) -> Expr:
            channel = (value * DIGITS + number) * block + place % block
            return positions[0, channel, place // block, 0].astype("int32")

        def whole(value: int) -> Tensor:
            def rule(place: Expr) -> Expr:
                d0, d1, d2, d3 = (digit(value, number, place) for number in range(DIGITS))
                return d0 - (d1 << 7) - ((d2 - (d3 << 7)) << PAIR_BITS)

            return compute((x.shape[2],), rule, "value")

        factor, offset = map(whole, range(VALUES))

        def rule(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
            elements = [tensor[n, c, h, w].astype("int32") for tensor in inputs[:-1]]
            wide = self.norm.times(factor[h], *elements) + offset[h]
            return self.norm.requantised(wide, [values[c] for values in parameters])

        out = compute(x.shape, rule, "out")
        return Expression(out, (*inputs, *parameters), self.norm.parameters)
