"""Resize and Upsample: along one axis after the other, by tables of source elements and weights.

Sizes and scales are known when a model is compiled, so a table says for every place of the result
which elements it is a weighted sum of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.movement import Identity, Interpolate
from ....te.expr import FLOAT_DTYPES, Expr, integer_range, maximum, minimum, select
from .call import Call, Outputs, Reader
from .elementwise import function, number


@dataclass(frozen=True)
class _Axis:
    """One axis to resize: the scale as given, the result's size, the region of interest."""

    axis: int
    size: int
    scale: float
    result: int
    start: float = 0.0
    end: float = 1.0

    def sources(self, mode: str) -> np.ndarray:
        """The coordinate in the operand of every place of the result."""
        places = np.arange(self.result, dtype=np.float64)
        length, last = self.scale * self.size, self.size - 1
        match mode:
            case "asymmetric":
                return places / self.scale
            case "half_pixel":
                return (places + 0.5) / self.scale - 0.5
            case "pytorch_half_pixel":
                half = (places + 0.5) / self.scale - 0.5
                return half if length > 1 else np.zeros_like(places)
            case "half_pixel_symmetric":
                offset = self.size / 2 * (1 - self.result / length)
                return offset + (places + 0.5) / self.scale - 0.5
            case "align_corners":
                return places * last / (length - 1) if length != 1 else np.zeros_like(places)
            case "tf_crop_and_resize":
                if length == 1:
                    return np.full_like(places, (self.start + self.end) / 2 * last)
                return self.start * last + places * (self.end - self.start) * last / (length - 1)
        raise ValueError(mode)


_COORDINATES = (
    "asymmetric", "half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners",
    "tf_crop_and_resize",
)  # fmt: skip

_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(a: float) -> Callable[[np.ndarray], np.ndarray]:
    """Keys' cubic kernel."""

    def kernel(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    return kernel


def _table(
    axis: _Axis, sources: np.ndarray, kernel: Callable, reach: int, smooth: bool, exclude: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Source elements and weights [result, taps]; ``smooth`` widens the kernel when shrinking."""
    stretch = min(axis.scale, 1.0) if smooth else 1.0
    width = math.ceil(reach / stretch)
    taps = np.floor(sources).astype(np.int64)[:, None] + np.arange(1 - width, width + 1)
    weights = kernel((taps - sources[:, None]) * stretch)
    if smooth:
        weights = weights / weights.sum(1, keepdims=True)
    if exclude:
        weights = np.where((taps < 0) | (taps >= axis.size), 0, weights)
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    return np.clip(taps, 0, axis.size - 1), weights


def _axes(call: Call, x: Tensor) -> list[_Axis]:
    """Scale, size and region of interest of every axis that the node names."""
    rank = len(x.shape)
    named = call.attributes.get("axes", range(rank))
    axes = [call.axis(a, rank) for a in named]
    scales_at, sizes_at = (2, 3) if call.kind == "Resize" and call.opset >= 11 else (1, 3)
    sizes = None
    if call.optional(sizes_at) is not None:
        sizes = call.constant(sizes_at, "sizes").reshape(-1).tolist() or None
    scales = call.attributes.get("scales")
    if scales is None and sizes is None:
        scales = call.constant(scales_at, "scales").reshape(-1).tolist()
    wanted = sizes if sizes is not None else scales
    if not wanted or len(wanted) != len(axes) or min(wanted) <= 0:
        raise call.refuse(f"expected {len(axes)} positive scales or sizes, got {wanted}")
    if sizes is None:
        scales = [float(s) for s in wanted]
        sizes = [int(s * x.shape[a]) for s, a in zip(scales, axes, strict=True)]
    else:
        scales, sizes = _from_sizes(call, x, axes, sizes)
    if min(sizes) < 1:
        raise call.refuse(f"expected a result with elements, got sizes {sizes}")
    call.check_size(sizes)
    roi = [0.0] * len(axes) + [1.0] * len(axes)
    if call.text("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        roi = [float(v) for v in call.constant(1, "roi").reshape(-1)]
        if len(roi) != 2 * len(axes):
            raise call.refuse(f"expected {2 * len(axes)} numbers in roi, got {len(roi)}")
    return [
        _Axis(a, x.shape[a], scales[i], sizes[i], roi[i], roi[i + len(axes)])
        for i, a in enumerate(axes)
    ]


def _from_sizes(
    call: Call, x: Tensor, axes: list[int], sizes: list[int]
) -> tuple[list[float], list[int]]:
    """The scales for these sizes, and the sizes, which change if the aspect ratio is kept."""
    scales = [n / x.shape[a] for n, a in zip(sizes, axes, strict=True)]
    policy = call.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return scales, sizes
    if policy not in ("not_larger", "not_smaller"):
        raise call.refuse(f"keep_aspect_ratio_policy {policy!r} is not supported")
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [scale] * len(axes), [int(scale * x.shape[a] + 0.5) for a in axes]


def _resize(call: Call) -> Outputs:
    x = call.operand(0)
    if 0 in x.shape:
        raise call.refuse(f"expected elements to resize, got {x.type_text}")
    old = call.kind == "Upsample" or call.opset < 11
    mode = call.text("mode", "nearest")
    coordinates = call.text("coordinate_transformation_mode", "half_pixel")
    coordinates = "asymmetric" if old else coordinates
    rounding = "floor" if old else call.text("nearest_mode", "round_prefer_floor")
    if mode not in ("nearest", "linear", "cubic") or coordinates not in _COORDINATES:
        raise call.refuse(f"mode {mode!r} with {coordinates!r} is not supported")
    if rounding not in _NEAREST:
        raise call.refuse(f"nearest_mode {rounding!r} is not supported")
    integers = mode == "linear" and x.dtype in ("int8", "uint8")
    if mode != "nearest" and x.dtype not in FLOAT_DTYPES and not integers:
        raise call.refuse(f"mode {mode!r} expects floats, got {x.type_text}")
    crops = coordinates == "tf_crop_and_resize"
    y = call.cast(x, "float32") if integers else x
    for axis in _axes(call, x):
        if axis.scale == 1 and axis.size == axis.result and not crops:
            continue
        sources = axis.sources(coordinates)
        y = _along(call, y, axis, sources, mode, rounding)
        if crops:
            y = _extrapolated(call, y, axis, (sources < 0) | (sources > axis.size - 1))
    if y.dtype != x.dtype:
        y = _as_integers(call, y, x.dtype)
    return call.emit(Identity(), x) if y is x else y


def _as_integers(call: Call, y: Tensor, dtype: str) -> Tensor:
    """Means of integers, towards zero; the value of places outside may be beyond the dtype."""
    low, high = integer_range(dtype)

    def rule(v: Expr) -> Expr:
        return function("trunc", minimum(maximum(v, number(low, v)), number(high, v))).astype(dtype)

    return call.map(rule, y)


def _along(
    call: Call, x: Tensor, axis: _Axis, sources: np.ndarray, mode: str, rounding: str
) -> Tensor:
    if mode == "nearest":
        nearest = np.clip(_NEAREST[rounding](sources), 0, axis.size - 1)
        return call.gather(x, nearest, axis.axis)
    kernel, reach = (_triangle, 1)
    if mode == "cubic":
        kernel, reach = _cubic(call.number("cubic_coeff_a", -0.75)), 2
    smooth = bool(call.integer("antialias", 0))
    exclude = bool(call.integer("exclude_outside", 0))
    taps, weights = _table(axis, sources, kernel, reach, smooth, exclude)
    return call.emit(
        Interpolate(axis.axis), x, call.value(taps, "int64"), call.value(weights, x.dtype)
    )


def _extrapolated(call: Call, y: Tensor, axis: _Axis, outside: np.ndarray) -> Tensor:
    """``extrapolation_value`` where the source lies outside the operand."""
    if not outside.any():
        return y
    value = call.number("extrapolation_value", 0.0)
    mask = call.value(outside.reshape(-1, *[1] * (len(y.shape) - 1 - axis.axis)))
    return call.map(lambda v, out: select(out, number(value, v), v), y, mask)


READERS: dict[str, Reader] = {"Resize": _resize, "Upsample": _resize}
