"""Fourier transforms as products with matrices of cosines and sines, and the matrix of mel bands.

The products are of float64, so the result is rounded once.
"""

from __future__ import annotations

import math

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.linear import MatMul
from ....graph.ops.movement import Concat, Identity
from .call import Call, Outputs, Reader
from .elementwise import dtype_of

#: The longest transform: its matrix has the square of it.
LONGEST = 1 << 12
#: mel = 2595 * log10(1 + hertz / 700)
_MEL, _HERTZ = 2595.0, 700.0


def _angles(rows: int, columns: int, length: int) -> np.ndarray:
    """2 pi times row times column over the length, reduced before it is rounded."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    return turns * (2 * math.pi / length)


def _transformed(
    call: Call, x: Tensor, axis: int, length: int, inverse: bool, onesided: bool
) -> Tensor:
    """The transform of the last dimension's real and imaginary parts along an axis."""
    rank, parts = len(x.shape), x.shape[-1]
    if not 0 < length <= LONGEST:
        raise call.refuse(f"expected a transform of 1 to {LONGEST} elements, got {length}")
    order = (*(i for i in range(rank - 1) if i != axis), axis)
    sides = []
    for place in range(parts):
        column = call.reshape(call.part(x, rank - 1, place, 1), x.shape[:-1])
        sides.append(call.cast(call.transpose(column, order), "float64"))
    kept = length // 2 + 1 if onesided else length
    taken = min(x.shape[axis], kept if inverse and onesided else length)
    sides = [call.part(side, rank - 2, 0, taken) for side in sides]
    angles = _angles(taken, length if inverse else kept, length)
    cosines, sines = np.cos(angles), np.sin(angles)
    if inverse:
        factor = np.full((taken, 1), 1.0 / length)
        if onesided:  # the other half is the conjugate of this one
            factor[1 : (length + 1) // 2] *= 2
        cosines, sines = cosines * factor, -sines * factor
    found = [_product(call, sides[0], cosines), _product(call, sides[0], -sines)]
    if parts == 2:
        other = _product(call, sides[1], sines), _product(call, sides[1], cosines)
        found = [call.map(lambda a, b: a + b, a, b) for a, b in zip(found, other, strict=True)]
    if inverse and onesided:
        found = found[:1]
    back = tuple(int(i) for i in np.argsort(order))
    moved = [call.transpose(call.cast(part, x.dtype), back) for part in found]
    moved = [call.reshape(part, (*part.shape, 1)) for part in moved]
    return moved[0] if len(moved) == 1 else call.emit(Concat(rank - 1), *moved)


def _product(call: Call, x: Tensor, matrix: np.ndarray) -> Tensor:
    rows = call.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    made = call.emit(MatMul(), rows, call.value(matrix, "float64"))
    return call.reshape(made, (*x.shape[:-1], matrix.shape[1]))


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
