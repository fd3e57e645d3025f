"""QONNX's operators, which Brevitas, FINN and hls4ml write: floats that are whole multiples of a
scale, of any number of bits.

The qonnx package defines them by float arithmetic. Where 8 bits hold the multiples, a graph of
QuantizeLinear and DequantizeLinear computes the same, which passes fuse.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.elementwise import Clip
from ....graph.ops.pooling import Pool
from ....graph.ops.quantisation import Dequantize, Quant, Quantize
from ....te.expr import Expr, integer_range, maximum, minimum, reinterpret, select
from .call import Call, Outputs, Reader
from .elementwise import absolute, function, number

Rounding = Callable[[Expr], Expr]


def _from_zero(rule: Rounding) -> Rounding:
    """A rule for the distance from zero."""

    def both(x: Expr) -> Expr:
        far = rule(absolute(x))
        return select(x < number(0, x), number(0, x) - far, far)

    return both


def _half_even(x: Expr) -> Expr:
    return function("round", x)


#: How a number becomes a whole one, by the attribute ``rounding_mode``.
ROUNDINGS: dict[str, Rounding] = {
    "ROUND": _half_even,
    "HALF_EVEN": _half_even,
    "CEIL": lambda x: function("ceil", x),
    "FLOOR": lambda x: function("floor", x),
    "DOWN": lambda x: function("trunc", x),
    "UP": _from_zero(lambda x: function("ceil", x)),
    "HALF_UP": _from_zero(lambda x: function("floor", x + 0.5)),
    "HALF_DOWN": _from_zero(lambda x: function("ceil", x - 0.5)),
}


def _rounding(call: Call, default: str) -> Rounding:
    mode = call.text("rounding_mode", default).upper()
    if mode not in ROUNDINGS:
        raise call.refuse(f"rounding_mode is one of {', '.join(ROUNDINGS)}, got {mode!r}")
    return ROUNDINGS[mode]


def _range(call: Call, bits: float) -> tuple[float, float]:
    """The least and the greatest integer of a number of bits."""
    if not 1 <= bits <= 64:
        raise call.refuse(f"expected 1 to 64 bits, got {bits!r}")
    narrow = call.integer("narrow", 0)
    if call.integer("signed", 1):
        return narrow - 2.0 ** (bits - 1), 2.0 ** (bits - 1) - 1
    return 0.0, 2.0**bits - 1 - narrow


def _bounded(x: Expr, low: float, high: float) -> Expr:
    return minimum(maximum(x, number(low, x)), number(high, x))


def _byte_form(call: Call, zero: Tensor, low: float, high: float) -> Quant | None:
    """How 8 bits hold the multiples. None where they do not, where a scale is computed, and where
    there is a zero point: it moves the ties of what is rounded."""
    x, scale = call.operand(0), call.operand(1).data
    if x.dtype != "float32" or scale is None or scale.dtype != np.float32:
        return None
    if zero.data is None or zero.data.any() or not (scale > 0).all():
        return None
    rank, axes = len(x.shape), [axis for axis, size in enumerate(scale.shape) if size != 1]
    along = len(axes) == 1 and scale.ndim == rank and scale.size == x.shape[axes[0]]
    for dtype in ("int8", "uint8"):
        least, most = integer_range(dtype)
        if least <= low and high <= most and (not axes or along):
            zeros = np.zeros(scale.size, np.int32)
            return Quant(scale.reshape(-1), zeros, dtype, axes[0] if axes else None)
    return None


def _multiples(
    call: Call, zero: Tensor, bounds: tuple[float, float], whole: Rounding, nearest: bool
) -> Tensor:
    """The first operand as multiples of the second one, less ``zero``. ``whole`` makes an integer
    within the bounds; ``nearest`` says that it is the nearest one."""
    x, scale = call.operand(0), call.operand(1)
    quant = _byte_form(call, zero, *bounds)

    def steps(v: Expr, s: Expr, z: Expr) -> Expr:
        return whole(v / s + z)

    if quant is None:
        return call.map(lambda v, s, z: (steps(v, s, z) - z) * s, x, scale, zero)
    if x.data is not None or quant.axis is not None or not nearest:
        stored = call.cast(call.map(steps, x, scale, zero), quant.dtype)
        return call.emit(Dequantize(quant), stored)
    if bounds != integer_range(quant.dtype):
        low, high = (float(np.float32(bound) * quant.scale[0]) for bound in bounds)
        x = call.emit(Clip(low, high), x)
    return call.emit(Dequantize(quant), call.emit(Quantize(quant), x))


def _sign(x: Expr) -> Expr:
    return select(x < number(0, x), number(-1, x), number(1, x))


def _bipolar(call: Call) -> Outputs:
    """-1 or 1, times the scale."""
    return _multiples(call, call.value(0, "float32"), (-1, 1), _sign, nearest=False)


def _quant(call: Call) -> Outputs:
    zero, bits = call.operand(2), float(call.scalar(3, "bit width"))
    if bits == 1 and call.integer("signed", 1):
        return _multiples(call, zero, (-1, 1), _sign, nearest=False)
    rounding, (low, high) = _rounding(call, "ROUND"), _range(call, bits)

    def whole(x: Expr) -> Expr:
        return rounding(_bounded(x, low, high))

    return _multiples(call, zero, (low, high), whole, rounding is _half_even)


def _float_quant(call: Call) -> Outputs:
    """Multiples of the scale that are floats of few bits: with so many bits of a mantissa at the
    power of two of a number, or at the least power there is; saturated."""
    call.only(saturation=1)
    width, mantissa, bias, largest = (
        float(call.scalar(i, what))
        for i, what in enumerate(("exponent width", "mantissa width", "bias", "largest value"), 2)
    )
    rounding, least = _rounding(call, "ROUND"), 1 - bias - mantissa
    if not (-126 <= least <= 127 and 0 <= mantissa <= 23 and 0 <= width <= 8):
        raise call.refuse(f"expected floats within float32, got bias {bias}, mantissa {mantissa}")
    most = min((2 - 2.0**-mantissa) * 2.0 ** (2**width - 1 - bias), largest)

    def rule(v: Expr, s: Expr) -> Expr:
        x = v / s
        exponent = (reinterpret(absolute(x) + 2.0**-126, "int32") >> 23) - 127
        exponent = maximum(exponent - int(mantissa), number(least, exponent))
        step = reinterpret((exponent + 127) << 23, "float32")
        return _bounded(rounding(x / step) * step, -most, most) * s

    return call.map(rule, call.operand(0), call.operand(1))


def _trunc(call: Call) -> Outputs:
    """Multiples that lose their last bits. Of six operands, the fifth is the result's scale and
    results are bounded; of five, the result keeps the scale."""
    x, scale, zero = (call.operand(i) for i in range(3))
    rounding = _rounding(call, "FLOOR")
    if len(call.operands) == 5:
        gone = float(call.scalar(3, "bit width")) - float(call.scalar(4, "bit width"))

        def shortened(v: Expr, s: Expr, z: Expr) -> Expr:
            return (rounding(_half_even(v / s + z) * 2.0**-gone) - z) * s

        return call.map(shortened, x, scale, zero)
    low, high = _range(call, float(call.scalar(5, "bit width")))
    coarse, fine = (float(call.scalar(i, "scale")) for i in (4, 1))
    factor = 2.0 ** -float(np.round(np.log2(np.float32(coarse) / np.float32(fine))))

    def bounded(v: Expr, s: Expr, z: Expr) -> Expr:
        steps = rounding(_bounded(_half_even(v / s + z) * factor, low, high))
        return (steps - z * factor) * number(coarse, v)

    return call.map(bounded, x, scale, zero)


def _average_pool(call: Call) -> Outputs:
    """Sums over windows that lose as many bits as the result has not."""
    call.only(data_layout=b"NCHW")
    kernel, stride = call.integer("kernel", 1), call.integer("stride", 1)
    most = (2 ** call.integer("ibits", 1) - 1) * kernel**2
    gone = max(most.bit_length() - call.integer("obits", 1), 0)
    pool = Pool("+", (kernel, kernel), (stride, stride), (0, 0, 0, 0), (1, 1))
    return call.map(lambda v: function("floor", v * 2.0**-gone), call.emit(pool, call.operand(0)))


def _multi_threshold(call: Call) -> Outputs:
    """How many thresholds of its channel an element reaches, times a scale, plus a bias."""
    x, thresholds = call.operand(0), call.operand(1)
    rank = len(x.shape)
    layout = call.text("data_layout", {3: "NWC"}.get(rank, "NC"))
    axis = layout.find("C") if "C" in layout else 1
    if len(thresholds.shape) != 2 or not 0 <= axis < rank:
        raise call.refuse(f"expected [channels, steps] thresholds, got {thresholds.type_text}")
    channels, steps = thresholds.shape
    against = call.reshape(thresholds, (channels, *[1] * (rank - axis - 1), steps))
    reached = call.map(
        lambda v, t: select(v < t, number(0, v), number(1, v)),
        call.reshape(x, (*x.shape, 1)), against,
    )  # fmt: skip
    count = call.reduce("+", reached, (rank,), keepdims=False)
    scale, bias = call.number("out_scale", 1.0), call.number("out_bias", 0.0)
    return call.map(lambda v: v * number(scale, v) + number(bias, v), count)


#: In all of the domains in ``DOMAINS``.
READERS: dict[str, Reader] = {
    "BipolarQuant": _bipolar,
    "FloatQuant": _float_quant,
    "IntQuant": _quant,
    "MultiThreshold": _multi_threshold,
    "Quant": _quant,
    "QuantAvgPool2d": _average_pool,
    "Trunc": _trunc,
}
DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
