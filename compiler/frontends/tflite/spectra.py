"""Readers of real Fourier transforms, and of the complex numbers that they make.

A complex tensor is two tensors of float32 in the graph, in the layouts ``real`` and ``imag``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...graph.ops.linear import MatMul
from ...graph.ops.movement import Identity, Reshape, Slice, Transpose
from ...te.expr import Call as Function
from ...te.expr import Expr
from .elementwise import new_shape, numbers
from .graph import Call
from .mapping import map_of, step_map

Reader = Callable[[Call], None]
#: The longest transform: its matrix has the square of it.
LONGEST = 1 << 12


def _matrices(call: Call, rows: int, columns: int, length: int) -> tuple[str, str]:
    """Cosines and sines of 2 pi times row times column over the length, float64."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    angles = turns * (2 * math.pi / length)
    return (
        call.constant_of(f"cosines{rows}x{columns}", np.cos(angles)),
        call.constant_of(f"sines{rows}x{columns}", np.sin(angles)),
    )


def _turned(call: Call, value: str) -> str:
    """With the last two axes exchanged."""
    rank = len(call.shape_of(value))
    return call.step("turned", Transpose((*range(rank - 2), rank - 1, rank - 2)), value)


def _rfft2d(call: Call) -> None:
    """The transform of rows, of which half is kept, and of their columns; sums are float64."""
    lengths, shape = numbers(call, 1, "lengths"), call.importer.shape(call.operand(0))
    if len(lengths) != 2 or len(shape) < 2 or not all(0 < n <= LONGEST for n in lengths):
        raise call.refuse(f"expected 2 lengths of 1 to {LONGEST}, got {lengths} of {list(shape)}")
    height, width = (min(n, length) for n, length in zip(shape[-2:], lengths, strict=True))
    kept = lengths[1] // 2 + 1
    made = (*shape[:-2], lengths[0], kept)
    value, rank = call.value(0, "plain"), len(shape)
    taken = (*shape[:-2], height, width)
    if taken != shape:
        value = call.step("part", Slice((0,) * rank, (1,) * rank, taken), value)
    value = step_map(call, "wide", lambda x: x.astype("float64"), value)
    cosines, sines = _matrices(call, width, kept, lengths[1])
    real = call.step("real", MatMul(), value, cosines)
    imag = step_map(call, "imag", lambda x: x * -1.0, call.step("sine", MatMul(), value, sines))
    if lengths[0] > 1:
        real, imag = _turned(call, real), _turned(call, imag)
        cosines, sines = _matrices(call, height, lengths[0], lengths[0])
        first, second = (call.step("of", MatMul(), part, cosines) for part in (real, imag))
        third, fourth = (call.step("of", MatMul(), part, sines) for part in (imag, real))
        real = step_map(call, "real", lambda a, b: a + b, first, third)
        imag = step_map(call, "imag", lambda a, b: a - b, second, fourth)
        real, imag = _turned(call, real), _turned(call, imag)
    parts = [step_map(call, "part", lambda x: x.astype("float32"), v) for v in (real, imag)]
    _define(call, [call.step("made", Reshape(made), part) for part in parts])


def _define(call: Call, parts: list[str]) -> None:
    """The result from its real and its imaginary part."""
    result, made = call.result, call.shape_of(parts[0])
    if result.dtype != "complex64" or not call.fits(made, result):
        raise call.refuse(f"computes complex64{list(made)}, the file says {result}")
    call.importer.values[result.index] = dict(zip(("real", "imag"), parts, strict=True))
    call.importer.shapes[result.index] = made


def _reshape(call: Call) -> None:
    shape = new_shape(call, call.importer.shape(call.operand(0)))
    _define(call, [call.step("made", Reshape(shape), call.value(0, layout))
                   for layout in ("real", "imag")])  # fmt: skip


def _part(layout: str) -> Reader:
    return lambda call: call.emit(Identity(), (call.value(0, layout),), "plain")


def _magnitude(call: Call) -> None:
    values = call.value(0, "real"), call.value(0, "imag")

    def rule(a: Expr, b: Expr) -> Expr:
        wide = [x.astype("float64") for x in (a, b)]
        squares = wide[0] * wide[0] + wide[1] * wide[1]
        return Function("sqrt", (squares,), "float64").astype("float32")

    call.emit(map_of(call, "ComplexAbs", rule, *values), values, "plain")


#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {
    "COMPLEX_ABS": {"complex64": _magnitude},
    "EXPAND_DIMS": {"complex64": _reshape},
    "IMAG": {"complex64": _part("imag")},
    "REAL": {"complex64": _part("real")},
    "RESHAPE": {"complex64": _reshape},
    "RFFT2D": {"float32": _rfft2d},
    "SQUEEZE": {"complex64": _reshape},
}
