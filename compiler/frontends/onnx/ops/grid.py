"""GridSample: an image at the places that a grid names, between its elements by interpolation."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.movement import Gather
from ....te.expr import Const, Expr, maximum, minimum, select
from .call import Call, Outputs, Reader
from .elementwise import function, number

#: The parameter of cubic interpolation in ONNX.
_CUBIC = -0.75
_MODES = {
    "linear": "linear", "bilinear": "linear", "cubic": "cubic", "bicubic": "cubic",
    "nearest": "nearest",
}  # fmt: skip


@dataclass(frozen=True)
class _Axis:
    """One axis of the image: its size, how places beyond it are meant, and which place -1 and 1
    are: the middles of the outermost elements, or their outer ends."""

    size: int
    padding: str
    align: bool

    def place(self, x: Expr) -> Expr:
        """The place of a number from -1 to 1, in elements."""
        size = self.size
        return (x + 1.0) * ((size - 1) / 2) if self.align else ((x + 1.0) * size - 1.0) * 0.5

    def inside(self, v: Expr) -> Expr:
        """A place beyond the image as the one inside that is meant."""
        if self.padding == "border":
            return minimum(maximum(v, number(0, v)), number(self.size - 1, v))
        if self.padding == "reflection":
            return self._reflected(v)
        return v

    def _reflected(self, v: Expr) -> Expr:
        low, high = (0.0, self.size - 1.0) if self.align else (-0.5, self.size - 0.5)
        if low == high:
            return v * 0.0
        below, above = number(low, v) - v, v - high
        beyond = maximum(below, above)
        turns = function("floor", beyond * (1 / (high - low)))
        rest = beyond - turns * (high - low)
        odd = number(0, v) < turns - function("floor", turns * 0.5) * 2.0
        near = select(v < low, rest + low, rest * -1.0 + high)
        far = select(v < low, rest * -1.0 + high, rest + low)
        return select(number(0, v) < beyond, select(odd, far, near), v)


def _weights(mode: str, rest: Expr) -> list[Expr]:
    """The weights of the taps around a place, ``rest`` after the first at or before it."""
    match mode:
        case "nearest":
            return [number(1, rest)]
        case "linear":
            return [1.0 - rest, rest]
    a = _CUBIC
    one, two, three = rest + 1.0, 1.0 - rest, 2.0 - rest
    return [
        ((one * a - 5 * a) * one + 8 * a) * one - 4 * a,
        ((rest * (a + 2)) - (a + 3)) * rest * rest + 1.0,
        ((two * (a + 2)) - (a + 3)) * two * two + 1.0,
        ((three * a - 5 * a) * three + 8 * a) * three - 4 * a,
    ]


def _taps(call: Call, axis: _Axis, mode: str, values: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The position (int64, within the image) and the weight of each tap."""

    def base(v: Expr) -> Expr:
        at = axis.place(v)
        if mode == "cubic":  # as ONNX Runtime and PyTorch: only its taps are moved inside
            return at
        return axis.inside(function("round", axis.inside(at)) if mode == "nearest" else at)

    place = call.map(base, values, label="Place")
    found = []
    for tap in range({"nearest": 1, "linear": 2, "cubic": 4}[mode]):
        offset = tap - (mode == "cubic")

        def at(v: Expr, offset: int = offset) -> Expr:
            first = v if mode == "nearest" else function("floor", v) + number(offset, v)
            return axis.inside(first) if mode != "nearest" else first

        def index(v: Expr) -> Expr:
            safe = minimum(maximum(at(v), number(0, v)), number(axis.size - 1, v))
            return function("trunc", safe).astype("int64")

        def weight(v: Expr, tap: int = tap) -> Expr:
            found = _weights(mode, v - function("floor", v))[tap]
            if axis.padding != "zeros":
                return found
            seen = at(v)
            outside = (seen < 0.0) | (number(axis.size - 1, v) < seen)
            return select(outside, number(0, v), found)

        found.append((call.map(index, place, label="Tap"), call.map(weight, place, label="Weight")))
    return found


def _grid_sample(call: Call) -> Outputs:
    x, grid = call.operand(0), call.operand(1)
    mode, padding = call.text("mode", "linear"), call.text("padding_mode", "zeros")
    rank = len(x.shape) - 2
    fits = rank >= 1 and len(grid.shape) == rank + 2 and grid.shape[-1] == rank
    if mode not in _MODES or padding not in ("zeros", "border", "reflection") or not fits:
        raise call.refuse(
            f"expected a known mode and padding_mode, and a grid of {rank} numbers a place, got"
            f" {mode!r}, {padding!r} and {grid.type_text}"
        )
    mode, sizes = _MODES[mode], x.shape[2:]
    axes = [_Axis(n, padding, bool(call.integer("align_corners", 0))) for n in sizes]
    choices = []
    for i, axis in enumerate(axes):
        column = call.part(grid, rank + 1, rank - 1 - i, 1)
        choices.append(_taps(call, axis, mode, call.reshape(column, grid.shape[:-1])))
    channels, images = x.shape[1], x.shape[0]
    rows = call.reshape(
        call.transpose(x, (0, *range(2, rank + 2), 1)), (images * math.prod(sizes), channels)
    )
    first = np.arange(images).reshape(-1, *[1] * rank) * math.prod(sizes)
    strides = [math.prod(sizes[i + 1 :]) for i in range(rank)]
    base, total = call.value(first, "int64"), None
    for chosen in itertools.product(*choices):

        def flat(start: Expr, *places: Expr) -> Expr:
            for place, stride in zip(places, strides, strict=True):
                start = start + place * Const(stride, "int64")
            return start

        def factor(*weights: Expr) -> Expr:
            product = weights[0]
            for weight in weights[1:]:
                product = product * weight
            return product

        place = call.map(flat, base, *(index for index, _ in chosen), label="Place")
        seen = call.emit(Gather(0), rows, place)
        weight = call.map(factor, *(w for _, w in chosen), label="Weight")
        weight = call.reshape(call.cast(weight, x.dtype), (*grid.shape[:-1], 1))
        if total is None:
            total = call.map(lambda v, w: v * w, seen, weight)
        else:
            total = call.map(lambda t, v, w: t + v * w, total, seen, weight)
    assert total is not None
    return call.transpose(total, (0, rank + 1, *range(1, rank + 1)))


READERS: dict[str, Reader] = {"GridSample": _grid_sample}
