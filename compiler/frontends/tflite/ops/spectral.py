"""Real Fourier transforms, and the complex numbers that they make.

A complex tensor is two tensors of float32 in the graph, in the layouts ``real`` and ``imag``.
"""

from __future__ import annotations

import math

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.linear import MatMul
from ....te.expr import Expr
from ..graph import Call, Reader, Rows
from .rules import named, swapped
from .shape import new_shape

#: The longest transform: its matrix has the square of it.
LONGEST = 1 << 12


def _matrices(call: Call, rows: int, columns: int, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of 2 pi times row times column over the length, float64."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    angles = turns * (2 * math.pi / length)
    return call.value(np.cos(angles)), call.value(np.sin(angles))


def _rfft2d(call: Call) -> None:
    """The transform of rows, of which half is kept, and of their columns; sums are float64."""
    lengths, shape = call.numbers(1, "lengths"), call.importer.shape(call.operand(0))
    if len(lengths) != 2 or len(shape) < 2 or not all(0 < n <= LONGEST for n in lengths):
        raise call.refuse(f"expected 2 lengths of 1 to {LONGEST}, got {lengths} of {list(shape)}")
    height, width = (min(n, length) for n, length in zip(shape[-2:], lengths, strict=True))
    kept = lengths[1] // 2 + 1
    made = (*shape[:-2], lengths[0], kept)
    value = call.part(call.tensor(0), len(shape) - 2, 0, height)
    value = call.cast(call.part(value, len(shape) - 1, 0, width), "float64")
    cosines, sines = _matrices(call, width, kept, lengths[1])
    real = call.emit(MatMul(), value, cosines)
    imag = call.map(lambda x: x * -1.0, call.emit(MatMul(), value, sines))
    if lengths[0] > 1:
        real, imag = swapped(call, real), swapped(call, imag)
        cosines, sines = _matrices(call, height, lengths[0], lengths[0])
        first, second = (call.emit(MatMul(), part, cosines) for part in (real, imag))
        third, fourth = (call.emit(MatMul(), part, sines) for part in (imag, real))
        real = call.map(lambda a, b: a + b, first, third)
        imag = call.map(lambda a, b: a - b, second, fourth)
        real, imag = swapped(call, real), swapped(call, imag)
    _define(call, [call.reshape(call.cast(part, "float32"), made) for part in (real, imag)])


def _define(call: Call, parts: list[Tensor]) -> None:
    """The result from its real and its imaginary part."""
    result, made = call.result, parts[0].shape
    if result.dtype != "complex64" or not call.fits(made, result):
        raise call.refuse(f"computes complex64{list(made)}, the file says {result}")
    call.importer.values[result.index] = {"real": parts[0].name, "imag": parts[1].name}
    call.importer.shapes[result.index] = made


def _reshape(call: Call) -> None:
    shape = new_shape(call, call.importer.shape(call.operand(0)))
    parts = (call.tensor(0, layout) for layout in ("real", "imag"))
    _define(call, [call.reshape(part, shape) for part in parts])


def _part(layout: str) -> Reader:
    return lambda call: call.define(call.tensor(0, layout))


def _magnitude(call: Call) -> None:
    values = call.tensor(0, "real"), call.tensor(0, "imag")

    def rule(a: Expr, b: Expr) -> Expr:
        wide = [x.astype("float64") for x in (a, b)]
        return named("sqrt", wide[0] * wide[0] + wide[1] * wide[1]).astype("float32")

    call.define(call.map(rule, *values))


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "COMPLEX_ABS": {"complex64": _magnitude},
    "EXPAND_DIMS": {"complex64": _reshape},
    "IMAG": {"complex64": _part("imag")},
    "REAL": {"complex64": _part("real")},
    "RESHAPE": {"complex64": _reshape},
    "RFFT2D": {"float32": _rfft2d},
    "SQUEEZE": {"complex64": _reshape},
}
