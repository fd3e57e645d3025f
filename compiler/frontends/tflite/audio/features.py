"""From windows of a sound to logarithms of bands.

All arithmetic is of integers, as the kernels have it. What a kernel leaves as it found it in memory
is 0.
"""

from __future__ import annotations

import math

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.linear import MatMul
from ....graph.ops.movement import Concat, Gather, Pad, Slice
from ....te.expr import Const, Expr, maximum, minimum, reinterpret, select
from ....te.tensor import clip
from ..custom_options import INT32, integers
from ..graph import Call, Rows
from ..ops.rules import named, one, saturated, zero
from .streams import keep, kept, two_results

SHIFT32, SHIFT64 = (0, 31), (0, 63)
_ROOT_MAX = 0xFFFFFFFF
#: Fraction bits of logarithms, of the place in their table, and the natural logarithm of 2.
_LOG_BITS, _SEGMENT_BITS, _LOG_2 = 16, 9, 45426
#: Fraction bits of a signal over its noise, and of PCAN's result.
_RATIO_BITS, _GAINED_BITS = 12, 6


def operand(call: Call, position: int, dtype: str, rank: int) -> Tensor:
    """The graph's tensor of an operand, which must have a type and a rank."""
    tensor = call.operand(position)
    if tensor.dtype != dtype or len(tensor.shape) != rank:
        raise call.refuse(
            f"expected {dtype} of {rank} dimensions, got {tensor.dtype}{list(tensor.shape)} of"
            f" {tensor}"
        )
    return call.tensor(position)


def bits(x: Expr) -> Expr:
    """How many bits a positive uint32 has; int32. Its float64 is exact and has the exponent."""
    return ((reinterpret(x.astype("float64"), "int64") >> 52) - 1022).astype("int32")


# ---- before the transform ------------------------------------------------------------------------


def _window(call: Call) -> None:
    """Products with weights, in rows as long as the weights."""
    (shift,) = integers(call, shift=SHIFT32)
    weights, x = operand(call, 1, "int16", 1), call.tensor(0)
    shape, width = x.shape, weights.shape[0]
    if math.prod(shape) % width:
        raise call.refuse(
            f"expected rows of {width} elements, as many as weights, got {list(shape)}"
        )
    rows = call.reshape(x, (math.prod(shape) // width, width))

    def rule(v: Expr, weight: Expr) -> Expr:
        product = v.astype("int32") * weight.astype("int32")
        return saturated(product >> shift, -(1 << 15), (1 << 15) - 1, "int16")

    call.define(call.reshape(call.map(rule, rows, weights), shape))


def _fft_auto_scale(call: Call) -> None:
    """Shifted left until the largest element has 15 bits; the second result is by how much.

    The kernel keeps the largest magnitude as int16, where that of -32768 is -32768 again: behind
    the last -32768 it begins anew, and as long as elements are negative and rise, the largest one
    is the last of them. So only elements from the first one on that ends this count.
    """
    x = operand(call, 0, "int16", 1)
    size = x.shape[0]
    place = call.value(np.arange(size, dtype=np.int32))
    lowest = call.map(lambda v, p: select(v.equal(-(1 << 15)), p, Const(-1)), x, place)
    last = call.reduce("max", lowest, (0,), False)
    before = call.emit(Concat(0), call.value([0], "int16"), call.part(x, 0, 0, size - 1))

    def counts(v: Expr, previous: Expr, p: Expr, end: Expr) -> Expr:
        falls = (end + 1 < p) & (v <= previous)
        inside = end.equal(-1) | ((end < p) & ((v >= 0) | falls))
        return select(inside, p, Const(size))

    first = call.reduce("min", call.map(counts, x, before, place, last), (0,), False)

    def magnitude(v: Expr, p: Expr, begin: Expr) -> Expr:
        wide = v.astype("int32")
        return select(p >= begin, maximum(wide, Const(0) - wide), Const(0))

    largest = call.reduce("max", call.map(magnitude, x, place, first), (0,), False)

    def unused(most: Expr) -> Expr:
        return select(most > 0, maximum(15 - bits(most.astype("uint32")), 0), Const(0))

    scale = call.map(unused, largest)
    rule = lambda v, s: (v.astype("int32") << s).astype("int16")  # noqa: E731
    values, shift = two_results(call)
    call.define(call.map(rule, x, scale), result=values)
    call.define(call.reshape(scale, ()), result=shift)


# ---- from the transform to the filter bank -------------------------------------------------------


def _energy(call: Call) -> None:
    """The squares of complex numbers, whose parts alternate; 0 outside of the range."""
    x, made = operand(call, 0, "int16", 1), call.importer.shape(call.result)
    count, size = x.shape[0] // 2, math.prod(made)
    start, end = integers(call, start_index=(0, count - 1), end_index=(1, min(count, size)))
    if start >= end:
        raise call.refuse(f"expected a range with elements, got {start} to {end}")
    parts = [call.emit(Slice((2 * start + side,), (2,), (end - start,)), x) for side in (0, 1)]

    def rule(real: Expr, imag: Expr) -> Expr:
        wide = [v.astype("int32") for v in (real, imag)]
        return (wide[0] * wide[0] + wide[1] * wide[1]).astype("uint32")

    pad = Pad("constant", (start, size - end))
    call.define(call.emit(pad, call.map(rule, *parts), call.value(0, "uint32")))


def _filter_bank(call: Call) -> None:
    """Weighted sums of bands. A band counts with its weights for its own channel, and with the
    others for the next; the kernel drops the first channel."""
    x = operand(call, 0, "uint32", 1)
    size, (channels,) = x.shape[0], integers(call, num_channels=(1, 1 << 15))
    rising, falling = (np.array(call.numbers(p, "weights"), np.int64) for p in (1, 2))
    bands = [
        call.numbers(p, w) for p, w in ((3, "first places"), (4, "first weights"), (5, "widths"))
    ]
    if min(map(len, bands)) <= channels:
        raise call.refuse(f"expected {channels + 1} bands, got {min(map(len, bands))}")
    matrix = np.zeros((size, channels + 2), np.int64)
    for channel, (at, weight, width) in enumerate(zip(*bands, strict=False)):
        if channel > channels or width <= 0:
            continue
        known = min(len(rising), len(falling))
        if at < 0 or at + width > size or weight < 0 or weight + width > known:
            raise call.refuse(
                f"band {channel} of {width} elements from {at} on and weights from {weight} on is"
                f" not inside of {size} elements and {known} weights"
            )
        matrix[at : at + width, channel] += rising[weight : weight + width]
        matrix[at : at + width, channel + 1] += falling[weight : weight + width]
    row = call.reshape(call.cast(x, "int64"), (1, size))
    total = call.emit(MatMul(), row, call.value(matrix[:, 1:-1]))
    call.define(call.cast(call.reshape(total, (channels,)), "uint64"))


def _square_root(call: Call) -> None:
    """The root rounded to the nearest, which stays in 32 bits, or in 16 for numbers of 32; then
    shifted right. The root of float64 is wrong by one at most, which the squares show."""
    x, shift = operand(call, 0, "uint64", 1), operand(call, 1, "int32", 0)

    def approximate(v: Expr) -> Expr:
        return minimum(named("sqrt", v.astype("float64")).astype("uint64"), _ROOT_MAX)

    near = call.map(approximate, x)
    below = call.map(lambda v, r: r - select(v < r * r, one(r), zero(r)), x, near)

    def floor(v: Expr, r: Expr) -> Expr:
        return r + select((r + r < v - r * r) & (r < _ROOT_MAX), one(r), zero(r))

    root = call.map(floor, x, below)

    def rule(v: Expr, r: Expr, s: Expr) -> Expr:
        most = select(v > _ROOT_MAX, Const(_ROOT_MAX, "uint64"), Const(0xFFFF, "uint64"))
        rounded = r + select((r < v - r * r) & (r < most), one(r), zero(r))
        return rounded.astype("uint32") >> s.astype("uint32")

    call.define(call.map(rule, x, root, shift))


# ---- behind the filter bank ----------------------------------------------------------------------


def _spectral_subtraction(call: Call) -> None:
    """The signal less an estimate of its noise, which follows it slowly and is kept. Even and odd
    channels may have their own speeds."""
    names = ("smoothing", "one_minus_smoothing", "alternate_smoothing",
             "alternate_one_minus_smoothing", "min_signal_remaining")  # fmt: skip
    options = integers(
        call, **dict.fromkeys(names, INT32), smoothing_bits=SHIFT32,
        spectral_subtraction_bits=SHIFT64, clamping=(0, 1), num_channels=(1, 1 << 20),
    )  # fmt: skip
    weights, least, (up, down, clamping, channels) = options[:4], options[4], options[5:]
    x = operand(call, 0, "uint32", 1)
    if x.shape != (channels,):
        raise call.refuse(f"expected {channels} channels, got {list(x.shape)}")
    before = kept(call, "noise", np.zeros(channels, np.uint32))
    own, rest = (call.value(_alternating(channels, weights[i], weights[i + 2])) for i in (0, 1))
    scaled = call.map(lambda v: v << up, x)

    def estimate(v: Expr, noise: Expr, a: Expr, b: Expr) -> Expr:
        total = v.astype("uint64") * a + noise.astype("uint64") * b
        return (total >> down).astype("uint32")

    noise = call.map(estimate, scaled, before, own, rest)
    bounded = call.map(minimum, noise, scaled)

    def rule(v: Expr, signal: Expr, estimated: Expr) -> Expr:
        floor = (v.astype("uint64") * Const(least & 0xFFFFFFFF, "uint64")) >> down
        return maximum((signal - estimated) >> up, floor.astype("uint32"))

    after = bounded if clamping else noise
    cleaned, estimated = two_results(call)
    call.define(call.map(rule, x, scaled, bounded), result=cleaned)
    call.define(call.reshape(after, (channels,)), result=estimated)
    keep(call, "noise", after)


def _alternating(count: int, even: int, odd: int) -> np.ndarray:
    """Two int32 in turn, as uint64 that were uint32."""
    both = np.where(np.arange(count) % 2, odd, even)
    return both.astype(np.uint32).astype(np.uint64)


def _pcan(call: Call) -> None:
    """Scale each channel by the gain for its noise, from a table of parabolas; compress it."""
    (shift,) = integers(call, snr_shift=SHIFT64)
    x, noise, table = (
        operand(call, p, dtype, 1) for p, dtype in enumerate(("uint32", "uint32", "int16"))
    )
    if x.shape != noise.shape:
        raise call.refuse("expected as many channels of the signal as of the noise")

    def first(v: Expr) -> Expr:
        return select(v <= 2, v.astype("int32"), bits(v) * 4 - 6)

    at = call.map(first, noise)
    terms = [call.emit(Gather(0), table, call.map(lambda p, i=i: p + i, at)) for i in range(3)]

    def gain(v: Expr, a: Expr, b: Expr, c: Expr) -> Expr:
        """The table has 10 bits of the noise behind its highest one."""
        width = bits(v).astype("uint32")
        aligned = select(width < 11, v << (11 - width), v >> (width - 11))
        rest = (aligned & 0x3FF).astype("int32")
        slope = ((c.astype("int32") * rest) >> 5) + (b.astype("int32") << 5)
        curve = ((slope * rest + (1 << 14)) >> 15) + a.astype("int32")
        return select(v <= 2, a, curve.astype("int16")).astype("uint32")

    factor = call.map(gain, noise, *terms)

    def gained(v: Expr, g: Expr) -> Expr:
        return ((v.astype("uint64") * g.astype("uint64")) >> shift).astype("uint32")

    def shrink(v: Expr) -> Expr:
        small = (v * v) >> (2 + 2 * _RATIO_BITS - _GAINED_BITS)
        large = (v >> (_RATIO_BITS - _GAINED_BITS)) - (1 << _GAINED_BITS)
        return select(v < (2 << _RATIO_BITS), small, large)

    call.define(call.map(shrink, call.map(gained, x, factor)))


def log_table() -> np.ndarray:
    """log2(1 + x) - x of 128 steps of x from 0 to 1, and of 1, with 16 fraction bits; int32."""
    x = np.arange(129) / 128
    return np.round((np.log2(1 + x) - x) * (1 << _LOG_BITS)).astype(np.int32)


def _log(call: Call) -> None:
    """Natural logarithms by a table of base 2, between whose places it is linear."""
    scale, shift = integers(call, output_scale=INT32, input_correction_bits=SHIFT32)
    x = operand(call, 0, "uint32", 1)
    lifted = call.map(lambda v: v << shift, x)
    whole = call.map(lambda v: bits(maximum(v, 1)) - 1, lifted)

    def fraction(v: Expr, power: Expr) -> Expr:
        count = power.astype("uint32")
        rest = v - (Const(1, "uint32") << count)
        aligned = select(
            power < _LOG_BITS, rest << (_LOG_BITS - count), rest >> (count - _LOG_BITS)
        )
        return aligned.astype("int32")

    part = call.map(fraction, lifted, whole)
    table = call.value(log_table())
    places = [call.map(lambda p, i=i: minimum((p >> _SEGMENT_BITS) + i, 128), part) for i in (0, 1)]
    ends = [call.emit(Gather(0), table, place) for place in places]

    def base_two(power: Expr, rest: Expr, low: Expr, high: Expr) -> Expr:
        between = ((high - low) * (rest & ((1 << _SEGMENT_BITS) - 1))) >> _LOG_BITS
        return ((power << _LOG_BITS) + rest + low + between).astype("uint32")

    binary = call.map(base_two, whole, part, *ends)
    half = 1 << (_LOG_BITS - 1)

    def natural(v: Expr) -> Expr:
        return ((v.astype("uint64") * _LOG_2 + half) >> _LOG_BITS).astype("uint32")

    logarithm = call.map(natural, binary)

    def rule(v: Expr, y: Expr) -> Expr:
        made = (y * (scale & 0xFFFFFFFF) + half) >> _LOG_BITS
        return select(v > 1, clip(made, 0, (1 << 15) - 1), zero(made)).astype("int16")

    call.define(call.map(rule, lifted, logarithm))


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "SignalEnergy": {"int16": _energy},
    "SignalFftAutoScale": {"int16": _fft_auto_scale},
    "SignalFilterBank": {"uint32": _filter_bank},
    "SignalFilterBankLog": {"uint32": _log},
    "SignalFilterBankSpectralSubtraction": {"uint32": _spectral_subtraction},
    "SignalFilterBankSquareRoot": {"uint64": _square_root},
    "SignalPCAN": {"uint32": _pcan},
    "SignalWindow": {"int16": _window},
}
