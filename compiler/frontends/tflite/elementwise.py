"""Readers of TensorFlow Lite operators that work element by element, or only move elements.

A function of one 8-bit tensor becomes a table of its 256 values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...graph.arithmetic.fixed_point import rescale
from ...graph.arithmetic.requant import INT8_MAX, INT8_MIN, OFFSET, tflite_params
from ...graph.ops.integer import QTable
from ...graph.ops.movement import Concat, Identity, Pad
from ...graph.ops.quantisation import Dequantize, Quant, QuantizeAway
from ...te.expr import integer_range
from .file import FlatTensor
from .geometry import activation
from .graph import QUANTISED, TO_NCHW, Call, held_in
from .mapping import STORED

#: Every int8 value, in the order of tables.
STORED8 = STORED["int8"]


def elementwise_layout(call: Call, positions: tuple[int, ...]) -> str:
    """``nchw`` if an operand is an image that exists in this layout, else ``plain``."""
    if len(call.result.shape) != 4:
        return "plain"
    return "nchw" if any("nchw" in call.layouts(p) for p in positions) else "plain"


def steps_of(real: float, scale: np.float32) -> int:
    """A real bound in steps of a scale, rounded half away from zero; at most a million."""
    steps = min(max(float(np.float32(real) / scale), -1e6), 1e6)
    return int(math.copysign(math.floor(abs(steps) + 0.5), steps))


def bounds_of(call: Call) -> tuple[int, int]:
    """Bounds of the fused activation in the result's integers, at its scale and zero point."""
    scale, zero = call.quant(call.result)
    lowest, highest = integer_range("int16" if call.result.dtype == "int16" else "int8")

    def stored(real: float, bound: int) -> int:
        if math.isinf(real):
            return bound
        return min(max(zero + steps_of(real, scale), lowest), highest)

    lo, hi = activation(call)
    return stored(lo, lowest), stored(hi, highest)


def same_quant(call: Call, tensor: FlatTensor) -> None:
    """Refuse an operand whose integers mean something else than the result's."""
    if call.quant(tensor) != call.quant(call.result):
        raise call.refuse(f"{tensor} and the result have different scales or zero points")


# ---- tables --------------------------------------------------------------------------------------


def emit_table8(call: Call, values: np.ndarray) -> None:
    """Emit a table. ``values`` has the result for each of ``STORED8``, not yet clamped to int8."""
    table = np.clip(values, INT8_MIN, INT8_MAX).astype(np.int8)
    op = Identity() if np.array_equal(table, STORED8) else QTable(table)
    layout = elementwise_layout(call, (0,))
    call.define(call.emit(op, call.tensor(0, layout)), layout)


def _rescaled(call: Call, factor: float) -> np.ndarray:
    """Every value times ``factor``, by double rounding, plus the result's zero point."""
    zero_x, zero_y = call.quant(call.operand(0))[1], call.quant(call.result)[1]
    multiplier, shift = tflite_params(factor)
    return rescale(STORED8 - zero_x, multiplier, shift) + zero_y


def clipped8(real_lo: float, real_hi: float) -> Callable[[Call], None]:
    """A reader of operators that clip to two real numbers, of which the upper may be infinite."""

    def read(call: Call) -> None:
        (x, _), (y, zero) = call.quant(call.operand(0)), call.quant(call.result)
        lo = zero + steps_of(real_lo, y)
        hi = INT8_MAX if math.isinf(real_hi) else zero + steps_of(real_hi, y)
        emit_table8(call, np.clip(_rescaled(call, float(x / y)), lo, max(hi, lo)))

    return read


def _leaky_relu(call: Call) -> None:
    (x, zero), (y, _) = call.quant(call.operand(0)), call.quant(call.result)
    alpha = np.float32(call.option("Alpha"))
    if not np.isfinite(alpha) or alpha < 0:
        raise call.refuse(f"expected a slope of at least 0, got {float(alpha)!r}")
    above = _rescaled(call, float(x) / float(y))
    below = _rescaled(call, float(x) * float(alpha) / float(y))
    emit_table8(call, np.where(zero <= STORED8, above, below))


def emit_function8(call: Call, function: Callable[[np.ndarray], np.ndarray]) -> None:
    """A real function in float32, rounded half away from zero."""
    (x, zero_x), (y, zero_y) = call.quant(call.operand(0)), call.quant(call.result)
    real = function(x * (STORED8 - zero_x).astype(np.float32))
    steps = real * (np.float32(1) / y)
    rounded = np.sign(steps) * np.floor(np.abs(steps).astype(np.float64) + 0.5)
    emit_table8(call, rounded.astype(np.int64) + zero_y)


def _logistic(x: np.ndarray) -> np.ndarray:
    return np.float32(1) / (np.float32(1) + np.exp(-x))


# ---- conversions between real numbers and integers -----------------------------------------------


def _quantize(call: Call) -> None:
    source = call.operand(0)
    if source.dtype == "float32":
        layout = elementwise_layout(call, (0,))
        scale, zero = call.quant(call.result)
        call.define(call.emit(QuantizeAway(float(scale), zero), call.tensor(0, layout)), layout)
        return
    (x, _), (y, _) = call.quant(source), call.quant(call.result)
    emit_table8(call, _rescaled(call, float(x) / float(y)))


def _dequantize(call: Call) -> None:
    layout = elementwise_layout(call, (0,))
    scale, zero = call.quant(call.operand(0))
    meaning = Quant(np.array([scale], np.float32), np.array([zero], np.int32))
    call.define(call.emit(Dequantize(meaning), call.tensor(0, layout)), layout)


# ---- moving elements -----------------------------------------------------------------------------


def _reshape(call: Call) -> None:
    """Where an image becomes rows, these may stay in NCHW order, as layout ``flat``."""
    importer, layouts = call.importer, call.layouts(0)
    shape = new_shape(call, importer.shape(call.operand(0)))
    if "plain" not in layouts and "nchw" in layouts and len(shape) == 2:
        image = call.tensor(0, "nchw")
        if image.shape[0] == shape[0]:
            flat = "plain" if 1 in (image.shape[1], math.prod(image.shape[2:])) else "flat"
            call.define(call.reshape(image, shape), flat)
            return
    call.define(call.reshape(call.tensor(0), shape))


def new_shape(call: Call, before: tuple[int, ...]) -> tuple[int, ...]:
    """The result's shape as the file says it; if it says no more than a guess, as the operator
    computes it.
    """
    said = call.importer.shape(call.result)
    if -1 not in call.result.signature:
        return said
    match call.operator.kind:
        case "EXPAND_DIMS":
            axis = numbers(call, 1, "axis")[0]
            axis += len(before) + 1 if axis < 0 else 0
            return (*before[:axis], 1, *before[axis:])
        case "SQUEEZE":
            gone = [i % len(before) for i in call.vector("SqueezeDims")] or range(len(before))
            return tuple(n for i, n in enumerate(before) if i not in gone or n != 1)
        case _:
            known = call.optional(1) is not None and call.operand(1).data is not None
            given = numbers(call, 1, "shape") if known else call.vector("NewShape")
            return _filled(given, math.prod(before)) if given else said


def _filled(shape: Sequence[int], count: int) -> tuple[int, ...]:
    """A shape of ``count`` elements; -1 stands for one of its sizes."""
    rest = math.prod(n for n in shape if n != -1)
    return tuple(count // rest if n == -1 else int(n) for n in shape)


def numbers(call: Call, position: int, what: str) -> list[int]:
    data = call.constant(position, what)
    if data.dtype.kind != "i":
        raise call.refuse(f"expected integers as {what}, got {data.dtype}")
    return [int(v) for v in data.reshape(-1)]


def _transpose(call: Call) -> None:
    perm, rank = numbers(call, 1, "permutation"), len(call.operand(0).shape)
    perm = [axis + rank if axis < 0 else axis for axis in perm]
    if sorted(perm) != list(range(rank)):
        raise call.refuse(f"expected a permutation of {rank} dimensions, got {perm}")
    call.define(call.transpose(call.tensor(0), tuple(perm)))


def _pad(call: Call) -> None:
    source = call.operand(0)
    spread, rank = numbers(call, 1, "padding"), len(source.shape)
    if len(spread) != 2 * rank or min(spread, default=0) < 0:
        raise call.refuse(f"expected {rank} pairs of sizes >= 0, got {spread}")
    quantised = source.dtype in QUANTISED
    value = call.quant(source)[1] if quantised else 0
    if quantised:
        same_quant(call, source)
    if call.optional(2) is not None:
        if quantised:
            same_quant(call, call.operand(2))
        value = call.constant(2, "value").reshape(-1)[0].item()
        value -= OFFSET if source.dtype == "uint8" else 0
    layout = "nchw" if rank == 4 else "plain"
    order = TO_NCHW if rank == 4 else range(rank)
    before, after = (tuple(spread[2 * axis + side] for axis in order) for side in (0, 1))
    border = call.importer.constant(f"{call.name}.value", np.array(value, held_in(source.dtype)))
    pad = Pad("constant", (*before, *after))
    call.define(call.emit(pad, call.tensor(0, layout), border), layout)


def _concatenation(call: Call) -> None:
    positions = tuple(range(len(call.operator.inputs)))
    if not positions or call.option("FusedActivationFunction") != 0:
        raise call.refuse("expected operands, and no fused activation")
    for position in positions:
        if call.operand(position).dtype in QUANTISED:
            same_quant(call, call.operand(position))
    rank = len(call.result.shape)
    axis = call.option("Axis")
    axis = axis + rank if axis < 0 else axis
    layout = elementwise_layout(call, positions)
    axis = TO_NCHW.index(axis) if layout == "nchw" and axis in TO_NCHW else axis
    call.define(call.emit(Concat(axis), *tuple(call.tensor(p, layout) for p in positions)), layout)


#: One row per TensorFlow Lite operator.
READERS: dict[str, Callable[[Call], None]] = {
    "CONCATENATION": _concatenation,
    "DEQUANTIZE": _dequantize,
    "EXPAND_DIMS": _reshape,
    "LEAKY_RELU": _leaky_relu,
    "LOGISTIC": lambda call: emit_function8(call, _logistic),
    "PAD": _pad,
    "PADV2": _pad,
    "QUANTIZE": _quantize,
    "RELU": clipped8(0.0, math.inf),
    "RELU6": clipped8(0.0, 6.0),
    "RESHAPE": _reshape,
    "SQUEEZE": _reshape,
    "TANH": lambda call: emit_function8(call, np.tanh),
    "TRANSPOSE": _transpose,
}
