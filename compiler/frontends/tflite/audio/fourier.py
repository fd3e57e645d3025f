"""Fourier transforms of real signals, of integers and of floats.

The kernels are KISS FFT's (https://github.com/mborgerding/kissfft): the elements of a signal are
taken in pairs as complex numbers, half as many, which stages of 4, 2, 3 or 5 numbers transform; a
last stage parts what is real from what is imaginary. Integers are fractions of their type: a
product is rounded half up, and before each stage all numbers are divided by what it adds up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.movement import Concat, Gather, Pad, Slice
from ....te.expr import Const, Expr
from ..custom_options import integers
from ..graph import Call, Rows
from .streams import rows_of

#: The longest transform of a real signal.
LONGEST = 1 << 16
#: A complex number while it is computed, and two tensors of the graph with such numbers.
Complex = tuple[Expr, Expr]
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _Numbers:
    """Arithmetic of one type, ``float32`` or integers that are fractions."""

    dtype: str

    @property
    def whole(self) -> bool:
        """Whether they are integers."""
        return self.dtype != "float32"

    @property
    def fraction_bits(self) -> int:
        return 15 if self.dtype == "int16" else 31

    def _rounded(self, product: Expr) -> Expr:
        count = self.fraction_bits
        return ((product + (1 << (count - 1))) >> count).astype(self.dtype)

    def _wide(self, x: Expr) -> Expr:
        return x.astype("int32" if self.dtype == "int16" else "int64") if self.whole else x

    def scaled(self, x: Expr, factor: Expr) -> Expr:
        """The product of two numbers."""
        product = self._wide(x) * self._wide(factor)
        return self._rounded(product) if self.whole else product

    def divided(self, x: Expr, count: int) -> Expr:
        """An integer by a count that its sum will have; a float as it is."""
        if not self.whole:
            return x
        return self.scaled(x, Const(((1 << self.fraction_bits) - 1) // count, self.dtype))

    def product(self, a: Complex, b: Complex) -> Complex:
        (ar, ai), (br, bi) = ((self._wide(re), self._wide(im)) for re, im in (a, b))
        parts = ar * br - ai * bi, ar * bi + ai * br
        return (self._rounded(parts[0]), self._rounded(parts[1])) if self.whole else parts

    def half(self, x: Expr) -> Expr:
        """Half of a number, rounded down."""
        return x >> 1 if self.whole else x * 0.5

    def stored(self, phases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines."""
        waves = np.cos(phases), np.sin(phases)
        if not self.whole:
            return waves[0].astype(np.float32), waves[1].astype(np.float32)
        most = (1 << self.fraction_bits) - 1
        rounded = [np.floor(0.5 + most * wave).astype(self.dtype) for wave in waves]
        return rounded[0], rounded[1]


@dataclass(frozen=True)
class _Transform:
    """A transform of one operator; tensors of complex numbers are [rows, count]."""

    call: Call
    numbers: _Numbers
    count: int
    inverse: bool

    def _stored(self, phases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Roots of one, which an inverse transform takes the other way round."""
        return self.numbers.stored(-phases if self.inverse else phases)

    def _phases(self, steps: np.ndarray) -> np.ndarray:
        """The phases of steps, of which ``count`` are a turn: with the kernel's roundings, as the
        cosine of a sixth of a turn lies between two integers."""
        return -2 * math.pi * steps / self.count

    def _waves(self, phases: np.ndarray) -> Pair:
        """Constants with roots of one."""
        cosines, sines = self._stored(phases)
        return self.call.value(cosines), self.call.value(sines)

    def _pair(self, rule: Callable[..., Complex], *values: Tensor) -> Pair:
        """Two tensors by a rule of complex numbers, of which ``values`` are pairs of parts."""

        def part(side: int) -> Callable[..., Expr]:
            return lambda *x: rule(*zip(x[::2], x[1::2], strict=True))[side]

        return self.call.map(part(0), *values), self.call.map(part(1), *values)

    def _places(self, value: Pair, axis: int, start: int, count: int, step: int = 1) -> Pair:
        """``count`` places of an axis."""
        shape = list(value[0].shape)
        starts = [start if i == axis else 0 for i in range(len(shape))]
        steps = [step if i == axis else 1 for i in range(len(shape))]
        shape[axis] = count
        op = Slice(tuple(starts), tuple(steps), tuple(shape))
        return self.call.emit(op, value[0]), self.call.emit(op, value[1])

    def _shaped(self, value: Pair, shape: tuple[int, ...]) -> Pair:
        return self.call.reshape(value[0], shape), self.call.reshape(value[1], shape)

    def _joined(self, parts: Sequence[Pair]) -> Pair:
        reals, imags = zip(*parts, strict=True)
        return self.call.emit(Concat(1), *reals), self.call.emit(Concat(1), *imags)

    # ---- stages ----------------------------------------------------------------------------------

    def complex(self, value: Pair) -> Pair:
        """The transform of complex numbers, [rows, count]."""
        rows = value[0].shape[0]
        radices = factors(self.count)
        order = np.arange(self.count).reshape(radices[::-1]).transpose().reshape(-1)
        places, op, length = self.call.value(order), Gather(1), 1
        value = self.call.emit(op, value[0], places), self.call.emit(op, value[1], places)
        for radix in reversed(radices):
            length *= radix
            shape = (rows * self.count // length, radix, length // radix)
            value = self._stage(self._shaped(value, shape), radix, length)
        return self._shaped(value, (rows, self.count))

    def _stage(self, value: Pair, radix: int, length: int) -> Pair:
        """Transforms of ``radix`` numbers, [groups, radix, length / radix] along axis 1."""
        numbers = self.numbers
        place = np.arange(1, radix)[:, None] * np.arange(length // radix)
        waves = self._waves(self._phases(place * (self.count // length)))

        def divided(x: Complex) -> Complex:
            return numbers.divided(x[0], radix), numbers.divided(x[1], radix)

        def turned(x: Complex, wave: Complex) -> Complex:
            return numbers.product(divided(x), wave)

        first = self._pair(divided, *self._places(value, 1, 0, 1))
        others = self._pair(turned, *self._places(value, 1, 1, radix - 1), *waves)
        parts = [first, *(self._places(others, 1, i, 1) for i in range(radix - 1))]
        operands = [name for part in parts for name in part]
        return self._joined([self._pair(r, *operands) for r in self._rules(radix)])

    def _rules(self, radix: int) -> list[Callable[..., Complex]]:
        """For each of ``radix`` results, the rule from as many numbers."""
        rules = {2: self._of_two, 3: self._of_three, 4: self._of_four, 5: self._of_five}
        return [partial(rules[radix], place) for place in range(radix)]

    def _of_two(self, place: int, a: Complex, b: Complex) -> Complex:
        return (_minus if place else _plus)(a, b)

    def _of_four(self, place: int, a: Complex, b: Complex, c: Complex, d: Complex) -> Complex:
        if place % 2 == 0:
            return (_minus if place else _plus)(_plus(a, c), _plus(b, d))
        forward = (place == 1) != self.inverse
        return (_plus if forward else _minus)(_minus(a, c), _turned_right(_minus(b, d)))

    def _wave(self, steps: int) -> Complex:
        """A root of one as a literal."""
        waves = self._stored(self._phases(np.array(steps)))
        kind = float if self.numbers.dtype == "float32" else int
        cosine, sine = (Const(kind(wave), self.numbers.dtype) for wave in waves)
        return cosine, sine

    def _of_three(self, place: int, a: Complex, b: Complex, c: Complex) -> Complex:
        numbers, total, rest = self.numbers, _plus(b, c), _minus(b, c)
        if place == 0:
            return _plus(a, total)
        height = self._wave(self.count // 3)[1]
        low = a[0] - numbers.half(total[0]), a[1] - numbers.half(total[1])
        side = _turned_right((numbers.scaled(rest[0], height), numbers.scaled(rest[1], height)))
        return (_minus if place == 1 else _plus)(low, side)

    def _of_five(
        self, place: int, a: Complex, b: Complex, c: Complex, d: Complex, e: Complex
    ) -> Complex:
        (outer, outer_rest), (inner, inner_rest) = (
            (_plus(b, e), _minus(b, e)), (_plus(c, d), _minus(c, d))
        )  # fmt: skip
        if place == 0:
            return _plus(a, _plus(outer, inner))
        near, far = self._wave(self.count // 5), self._wave(2 * self.count // 5)
        if place in (2, 3):
            near, far = far, near
        scaled = self.numbers.scaled
        re, im = (a[i] + scaled(outer[i], near[0]) + scaled(inner[i], far[0]) for i in (0, 1))
        first, second = (
            tuple(scaled(part, wave[1]) for part in rest)
            for rest, wave in ((outer_rest, near), (inner_rest, far))
        )
        if place in (1, 4):
            side = first[1] + second[1], _negative(first[0]) - second[0]
        else:
            side = second[1] - first[1], first[0] - second[0]
        return (_minus if place in (1, 3) else _plus)((re, im), side)

    # ---- real signals ----------------------------------------------------------------------------

    def real(self, signal: Tensor) -> Tensor:
        """From signals [rows, 2 * count] to [rows, 2 * count + 2], in which parts alternate."""
        numbers, made = self.numbers, self.complex(self._parts(signal))
        zero = self.call.value(np.zeros((signal.shape[0], 1), numbers.dtype))
        start = self._places(made, 1, 0, 1)

        def halves(x: Complex) -> Complex:
            re, im = (numbers.divided(v, 2) for v in x)
            return re + im, re - im

        ends = self._pair(halves, *start)

        def lower(a: Complex, b: Complex, wave: Complex) -> Complex:
            total, turned = self._parted(a, b, wave)
            return numbers.half(total[0] + turned[0]), numbers.half(total[1] + turned[1])

        def upper(a: Complex, b: Complex, wave: Complex) -> Complex:
            total, turned = self._parted(a, b, wave)
            return numbers.half(total[0] - turned[0]), numbers.half(turned[1] - total[1])

        middle = self._mirrored(made, lower, upper)
        return self._alternating(self._joined([(ends[0], zero), *middle, (ends[1], zero)]))

    def signal(self, value: Tensor) -> Tensor:
        """From complex numbers [rows, 2 * count + 2] to signals [rows, count, 2]."""
        numbers, given = self.numbers, self._parts(value)
        ends = self._places(given, 1, 0, 1)[0], self._places(given, 1, self.count, 1)[0]

        def start(x: Complex) -> Complex:
            return numbers.divided(x[0] + x[1], 2), numbers.divided(x[0] - x[1], 2)

        def lower(a: Complex, b: Complex, wave: Complex) -> Complex:
            return _plus(*self._parted(a, b, wave))

        def upper(a: Complex, b: Complex, wave: Complex) -> Complex:
            re, im = _minus(*self._parted(a, b, wave))
            return re, _negative(im)

        middle = self._mirrored(given, lower, upper)
        begin = self._pair(start, *ends)
        return self._alternating(self.complex(self._joined([begin, *middle])))

    def _parts(self, value: Tensor) -> Pair:
        """From numbers whose parts alternate, [rows, 2 * n], to [rows, n] each."""
        rows, width = value.shape
        reals, imags = (Slice((0, side), (1, 2), (rows, width // 2)) for side in (0, 1))
        return self.call.emit(reals, value), self.call.emit(imags, value)

    def _alternating(self, value: Pair) -> Tensor:
        """The inverse of :meth:`_parts`, [rows, n, 2]."""
        rows, count = value[0].shape
        return self.call.emit(Concat(2), *self._shaped(value, (rows, count, 1)))

    def _parted(self, a: Complex, b: Complex, wave: Complex) -> tuple[Complex, Complex]:
        """A number and the conjugate of its mirror image: the sum, and the difference turned."""
        numbers = self.numbers
        first = numbers.divided(a[0], 2), numbers.divided(a[1], 2)
        second = numbers.divided(b[0], 2), numbers.divided(_negative(b[1]), 2)
        return _plus(first, second), numbers.product(_minus(first, second), wave)

    def _mirrored(
        self, value: Pair, lower: Callable[..., Complex], upper: Callable[..., Complex]
    ) -> list[Pair]:
        """Results from place 1 to ``count`` - 1: each place of the lower half and its mirror image
        make two; of the place that is its own image, the upper one counts."""
        count, half = self.count, self.count // 2
        place = np.arange(1, half + 1)
        waves = self._waves(-math.pi * (place / count + 0.5))
        image = self._places(value, 1, count - 1, half, -1)
        operands = (*self._places(value, 1, 1, half), *image, *waves)
        low, high = (self._pair(rule, *operands) for rule in (lower, upper))
        mirrored = self._places(high, 1, half - 1, half, -1)
        kept = half - (count % 2 == 0)
        return [self._places(low, 1, 0, kept), mirrored] if kept else [mirrored]


def _plus(a: Complex, b: Complex) -> Complex:
    return a[0] + b[0], a[1] + b[1]


def _minus(a: Complex, b: Complex) -> Complex:
    return a[0] - b[0], a[1] - b[1]


def _negative(x: Expr) -> Expr:
    return x * -1.0 if x.dtype == "float32" else Const(0, x.dtype) - x


def _turned_right(x: Complex) -> Complex:
    """A number times -i."""
    return x[1], _negative(x[0])


def factors(count: int) -> list[int]:
    """The factors of a count, in the order of the stages from the last to the first."""
    found, radix = [], 4
    while count > 1:
        while count % radix:
            radix = {4: 2, 2: 3}.get(radix, radix + 2)
        found.append(radix)
        count //= radix
    return found


def _transform(call: Call, inverse: bool) -> _Transform:
    (length,) = integers(call, fft_length=(4, LONGEST))
    if length % 2 or max(factors(length // 2)) > 5:
        raise call.refuse(
            f"expected a length of an even number with factors of 2, 3 and 5 only, got {length}"
        )
    return _Transform(call, _Numbers(call.tensor(0).dtype), length // 2, inverse)


def _rfft(call: Call) -> None:
    """Signals that are shorter than the transform have zeros behind them."""
    transform, rows = _transform(call, False), rows_of(call, 1)
    missing = 2 * transform.count - rows.shape[1]
    if missing < 0:
        raise call.refuse(f"expected at most {2 * transform.count} elements, got {rows.shape[1]}")
    if missing:
        rows = call.emit(Pad("constant", (0, 0, 0, missing)), rows, call.value(0, rows.dtype))
    shape = (*call.importer.shape(call.operand(0))[:-1], 2 * transform.count + 2)
    call.define(call.reshape(transform.real(rows), shape))


def _irfft(call: Call) -> None:
    """A float is divided by the length, integers were divided before."""
    transform, rows = _transform(call, True), rows_of(call, 1)
    length = 2 * transform.count
    if rows.shape[1] != length + 2:
        raise call.refuse(f"expected {length + 2} elements, got {rows.shape[1]}")
    made = transform.signal(rows)
    if not transform.numbers.whole:
        made = call.map(lambda x: x / float(length), made)
    shape = (*call.importer.shape(call.operand(0))[:-1], length)
    call.define(call.reshape(made, shape))


_TYPES = "float32 int16 int32"
#: Readers by operator and by the first operand's types.
READERS: Rows = {"SignalIrfft": {_TYPES: _irfft}, "SignalRfft": {_TYPES: _rfft}}
