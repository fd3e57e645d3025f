"""Fourier transforms, and the matrix of mel bands.

A transform is a stage for each prime factor of its length, as Stockham arranged them: a stage makes
transforms of as many numbers, and turns the results by roots of one; that of a large prime is a
product with a matrix. Types and orders of sums are NumPy's, by which ONNX's reference computes: a
forward transform is of float64 and rounded once, an inverse one is of the operand's type.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.linear import MatMul
from ....graph.ops.movement import Concat, Identity, Pad
from ....te.expr import Expr
from .call import Call, Outputs, Reader
from .elementwise import dtype_of, number

#: The longest transform. A prime factor has a matrix when it is larger than the first number, and
#: is refused when it is larger than the second.
LONGEST, LARGEST_SUM, LARGEST_FACTOR = 1 << 16, 13, 1 << 12
#: mel = 2595 * log10(1 + hertz / 700)
_MEL, _HERTZ = 2595.0, 700.0
#: Complex numbers, each as its real and imaginary part: while they are computed, and in tensors.
Complex = tuple[Expr, Expr]
Pair = tuple[Tensor, Tensor]


def factors(length: int) -> list[int]:
    """The prime factors of a length, the smallest first."""
    found, factor = [], 2
    while factor * factor <= length:
        if length % factor:
            factor += 1
        else:
            found.append(factor)
            length //= factor
    return [*found, length] if length > 1 else found


def _roots(powers: np.ndarray, count: int, inverse: bool) -> tuple[np.ndarray, np.ndarray]:
    """The real and imaginary parts of powers of the ``count``-th root of one."""
    angles = powers % count * (2 * math.pi / count)
    return np.cos(angles), np.sin(angles) if inverse else -np.sin(angles)


def _plus(a: Complex, b: Complex) -> Complex:
    return a[0] + b[0], a[1] + b[1]


def _minus(a: Complex, b: Complex) -> Complex:
    return a[0] - b[0], a[1] - b[1]


def _summed(place: int, inverse: bool, x: list[Complex]) -> Complex:
    """Result ``place`` of the transform of as many numbers as a prime. Those as far from the first
    one on both sides have conjugate factors, so their sum and their difference are multiplied."""
    count = len(x)
    if count == 2:
        return (_minus if place else _plus)(*x)
    if place > count // 2:
        return _minus(*_halves(count - place, inverse, x))
    return _plus(*_halves(place, inverse, x))


def _halves(place: int, inverse: bool, x: list[Complex]) -> tuple[Complex, Complex]:
    """What sums and what differences give to a result, whose mirror image has the other sign."""
    count, like = len(x), x[0][0]
    even, odd = x[0], (number(0, like), number(0, like))
    for step in range(1, count // 2 + 1):
        cosine, sine = _roots(np.array(place * step), count, inverse)
        total, rest = _plus(x[step], x[-step]), _minus(x[step], x[-step])
        if place:
            factor = number(float(cosine), like)
            total = total[0] * factor, total[1] * factor
        even = _plus(even, total)
        height = number(float(sine), like)
        side = rest[1] * height, rest[0] * height
        odd = side if step == 1 else _plus(odd, side)
    return even, (number(0, like) - odd[0], odd[1])


def _transform(call: Call, x: Pair, inverse: bool) -> Pair:
    """The transform along the second of two dimensions."""
    rows, length = x[0].shape
    before = 1
    for factor in factors(length):
        after = length // (before * factor)
        shape = (rows, before, factor, after)
        sides = call.reshape(x[0], shape), call.reshape(x[1], shape)
        small = factor <= LARGEST_SUM
        sides = (_by_sums if small else _by_matrices)(call, sides, inverse)
        if after > 1:
            powers = np.arange(factor)[:, None, None] * np.arange(after)
            waves = _roots(powers, factor * after, inverse)
            sides = _turned(call, sides, waves)
        x = call.reshape(sides[0], (rows, length)), call.reshape(sides[1], (rows, length))
        before *= factor
    return x


def _turned(call: Call, x: Pair, waves: tuple[np.ndarray, np.ndarray]) -> Pair:
    """Products with constants."""
    re, im = (call.value(wave, x[0].dtype) for wave in waves)
    return (
        call.map(lambda a, b, c, d: a * c - b * d, *x, re, im),
        call.map(lambda a, b, c, d: a * d + b * c, *x, re, im),
    )


def _by_sums(call: Call, x: Pair, inverse: bool) -> Pair:
    """From [rows, before, factor, after] to transforms, [rows, factor, before, after]."""
    rows, before, factor, after = x[0].shape
    parts = [call.part(side, 2, place, 1) for place in range(factor) for side in x]

    def result(place: int, side: int, *v: Expr) -> Expr:
        return _summed(place, inverse, list(zip(v[::2], v[1::2], strict=True)))[side]

    def joined(side: int) -> Tensor:
        made = [call.map(partial(result, place, side), *parts) for place in range(factor)]
        return call.emit(Concat(1), *(call.reshape(v, (rows, 1, before, after)) for v in made))

    return joined(0), joined(1)


def _by_matrices(call: Call, x: Pair, inverse: bool) -> Pair:
    """What :func:`_by_sums` computes."""
    rows, before, factor, after = x[0].shape
    powers = np.outer(np.arange(factor), np.arange(factor))
    waves = [call.value(wave, "float64") for wave in _roots(powers, factor, inverse)]
    sides = [call.transpose(call.cast(side, "float64"), (0, 1, 3, 2)) for side in x]
    sides = [call.reshape(side, (rows * before * after, factor)) for side in sides]
    products = [call.emit(MatMul(), side, wave) for side in sides for wave in waves]
    made = (
        call.map(lambda a, b: a - b, products[0], products[3]),
        call.map(lambda a, b: a + b, products[1], products[2]),
    )
    first, second = (
        call.transpose(
            call.reshape(call.cast(side, x[0].dtype), (rows, before, after, factor)), (0, 3, 1, 2)
        )
        for side in made
    )
    return first, second


def _transformed(
    call: Call, x: Tensor, axis: int, length: int, inverse: bool, onesided: bool
) -> Tensor:
    """The transform of the last dimension's real and imaginary parts along an axis."""
    rank, parts = len(x.shape), x.shape[-1]
    if not 0 < length <= LONGEST or max(factors(length), default=1) > LARGEST_FACTOR:
        raise call.refuse(
            f"expected a transform of 1 to {LONGEST} elements, with no prime factor above"
            f" {LARGEST_FACTOR}, got {length}"
        )
    order = (*(i for i in range(rank - 1) if i != axis), axis)
    lead = tuple(x.shape[i] for i in order[:-1])
    kept = length // 2 + 1 if onesided else length
    given = kept if inverse and onesided else length
    sides = []
    for place in range(parts):
        column = call.reshape(call.part(x, rank - 1, place, 1), x.shape[:-1])
        rows = call.reshape(call.transpose(column, order), (math.prod(lead), x.shape[axis]))
        fitted = _fitted(call, rows, given)
        sides.append(fitted if inverse else call.cast(fitted, "float64"))
    if parts == 1:
        sides.append(call.map(lambda v: number(0, v), sides[0]))
    if inverse and onesided:
        sides = _whole(call, sides, length)
    found = list(_transform(call, (sides[0], sides[1]), inverse))
    if inverse:
        found = [call.map(lambda v: v * number(1 / length, v), side) for side in found]
    if inverse and onesided:
        found = found[:1]
    elif onesided:
        found = [call.part(side, 1, 0, kept) for side in found]
    back = tuple(int(i) for i in np.argsort(order))
    found = [call.cast(side, x.dtype) for side in found]
    moved = [call.transpose(call.reshape(v, (*lead, v.shape[1])), back) for v in found]
    moved = [call.reshape(part, (*part.shape, 1)) for part in moved]
    return moved[0] if len(moved) == 1 else call.emit(Concat(rank - 1), *moved)


def _fitted(call: Call, rows: Tensor, length: int) -> Tensor:
    """Rows with zeros behind them, or without their last elements."""
    missing = length - rows.shape[1]
    if missing <= 0:
        return call.part(rows, 1, 0, length)
    return call.emit(Pad("constant", (0, 0, 0, missing)), rows, call.value(0, rows.dtype))


def _whole(call: Call, half: list[Tensor], length: int) -> list[Tensor]:
    """All numbers of a transform of which half is given, as the other is its conjugate."""
    places = np.arange(length)
    mirrored = places > length // 2
    re, im = (call.gather(v, np.where(mirrored, length - places, places), 1) for v in half)
    signs = call.value(np.where(mirrored, -1, 1), im.dtype)
    return [re, call.map(lambda v, sign: v * sign, im, signs)]


def _checked(call: Call, x: Tensor) -> None:
    if len(x.shape) < 2 or x.shape[-1] not in (1, 2) or not x.dtype.startswith("float"):
        raise call.refuse(
            f"expected floats whose last dimension is the real part, or both, got {x.type_text}"
        )


def _dft(call: Call) -> Outputs:
    x = call.operand(0)
    _checked(call, x)
    inverse, onesided = (bool(call.integer(name, 0)) for name in ("inverse", "onesided"))
    if call.opset < 20:
        axis = call.integer("axis", 1)
    else:
        axis = -2 if call.optional(2) is None else int(call.scalar(2, "axis"))
    axis = call.axis(axis, len(x.shape))
    if axis == len(x.shape) - 1 or (onesided and (x.shape[-1] == 2) != inverse):
        raise call.refuse(
            f"expected an axis before the last one, and for one side {1 + inverse} parts, got axis"
            f" {axis} of {x.type_text}"
        )
    whole = x.shape[axis]
    length = 2 * (whole - 1) if inverse and onesided else whole
    length = length if call.optional(1) is None else int(call.scalar(1, "length"))
    return _transformed(call, x, axis, length, inverse, onesided)


def _stft(call: Call) -> Outputs:
    """Transforms of frames of the signal, each times the window."""
    x, window = call.operand(0), call.optional(2)
    _checked(call, x)
    step = int(call.scalar(1, "frame step"))
    onesided = bool(call.integer("onesided", 1))
    default = window.shape[0] if window is not None and window.shape else x.shape[1]
    length = default if call.optional(3) is None else int(call.scalar(3, "frame length"))
    count = (x.shape[1] - length) // step + 1 if step > 0 else 0
    fits = len(x.shape) == 3 and 0 < length <= LONGEST and count > 0
    if not fits or (window is not None and window.shape != (length,)):
        raise call.refuse(
            f"expected frames of 1 to {LONGEST} elements and a window as long, got length"
            f" {length}, step {step} and {x.type_text}"
        )
    if onesided and x.shape[-1] == 2:
        raise call.refuse("expected a real signal where one side is wanted")
    call.check_made((x.shape[0], count, length, x.shape[-1]))
    places = np.arange(count)[:, None] * step + np.arange(length)
    frames = call.gather(x, places, 1)
    if window is not None:
        frames = call.map(lambda v, w: v * w, frames, call.reshape(window, (length, 1)))
    return _transformed(call, frames, 2, length, False, onesided)


def _mel_weights(call: Call) -> Outputs:
    """How much each frequency counts in each mel band: triangles that meet in their middles."""
    names = ("number of bands", "length", "sample rate", "lower edge", "upper edge")
    bands, length, rate, low, high = (call.scalar(i, name) for i, name in enumerate(names))
    dtype = dtype_of(call, call.integer("output_datatype", 1))
    bins = int(length) // 2 + 1
    if not (0 < bands <= LONGEST and 0 < bins <= LONGEST and rate > 0 and 0 <= low < high):
        raise call.refuse(
            f"expected 1 to {LONGEST} bands and frequencies that rise, got {bands} bands of length"
            f" {length} from {low} to {high} Hz"
        )
    ends = [_MEL * math.log10(1 + edge / _HERTZ) for edge in (low, high)]
    mel = ends[0] + np.arange(bands + 2) * ((ends[1] - ends[0]) / (bands + 2))
    hertz = _HERTZ * (10 ** (mel / _MEL) - 1)
    places = np.floor((length + 1) * hertz / rate).astype(np.int64)
    if places[-1] > bins:
        raise call.refuse(f"expected an upper edge within the {bins} frequencies, got {high} Hz")
    found, own = np.zeros((bins, bands)), np.arange(bins)
    for band, (first, middle, last) in enumerate(zip(places, places[1:], places[2:], strict=False)):
        if first == middle:
            found[min(middle, bins - 1), band] = 1
        else:
            rising = (own >= first) & (own <= middle)
            found[rising, band] = (own[rising] - first) / (middle - first)
        falling = (own >= middle) & (own < last)
        if last > middle:
            found[falling, band] = (last - own[falling]) / (last - middle)
    return call.emit(Identity(), call.value(found.astype(dtype)))


READERS: dict[str, Reader] = {"DFT": _dft, "MelWeightMatrix": _mel_weights, "STFT": _stft}
