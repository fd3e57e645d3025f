"""Operators on parts of images at places that are computed: boxes, and convolutions whose taps
move."""

from __future__ import annotations

import itertools
import math

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.linear import MatMul
from ....graph.ops.movement import Concat, Gather, Identity
from ....te.expr import Const, Expr, maximum, minimum, select
from .call import Call, Outputs, Reader
from .elementwise import absolute, function, number

#: Samples along one side of a bin of RoiAlign that are made while a model is read.
MAX_SAMPLES = 1 << 10

# ---- boxes ---------------------------------------------------------------------------------------


def _corners(boxes: np.ndarray, center: bool) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper corners of boxes [N, 4], each [N, 2]."""
    if center:
        return boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    return np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])


def _kept(
    low: np.ndarray,
    high: np.ndarray,
    scores: np.ndarray,
    most: int,
    overlap: np.float32,
    least: np.float32,
) -> list[int]:
    """Boxes by falling scores, without those that overlap one before them too much."""
    areas = (high - low).prod(1)
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        if len(kept) >= most or not scores[i] > least:
            break
        sides = np.minimum(high[i], high[kept]) - np.maximum(low[i], low[kept])
        shared = np.where((sides > 0).all(1), sides.prod(1), 0)
        union = areas[i] + areas[kept] - shared
        sound = (areas[i] > 0) & (areas[kept] > 0) & (union > 0)
        if not (shared[sound] / union[sound] > overlap).any():
            kept.append(int(i))
    return kept


def _suppression(call: Call) -> Outputs:
    """Of known values only: they decide the result's shape."""
    what = "tensor, whose elements decide the result's shape"
    boxes, scores = call.constant(0, f"{what},"), call.constant(1, f"{what},")
    given = [call.scalar(i, name) if call.optional(i) is not None else default
             for i, name, default in ((2, "number of boxes", 0), (3, "overlap", 0.0),
                                      (4, "least score", -math.inf))]  # fmt: skip
    most, overlap, least = int(given[0]), np.float32(given[1]), np.float32(given[2])
    fits = boxes.ndim == scores.ndim == 3 and boxes.shape[2:] == (4,)
    if not fits or (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2]):
        raise call.refuse(
            f"expected boxes [N, B, 4] and scores [N, C, B], got {list(boxes.shape)} and"
            f" {list(scores.shape)}"
        )
    center, found = bool(call.integer("center_point_box", 0)), []
    for image, rows in enumerate(boxes):
        low, high = _corners(rows, center)
        for kind, column in enumerate(scores[image]):
            kept = _kept(low, high, column, most, overlap, least)
            found += [(image, kind, box) for box in kept]
    return call.emit(Identity(), call.value(np.array(found, np.int64).reshape(-1, 3)))


# ---- RoiAlign ------------------------------------------------------------------------------------


def _places(call: Call, rois: Tensor, axis: int, bins: int, samples: int) -> Tensor:
    """The places of samples along height (axis 0) or width, [R, bins, samples]."""
    scale = call.number("spatial_scale", 1.0)
    default = "half_pixel" if call.opset >= 16 else "output_half_pixel"
    mode = call.text("coordinate_transformation_mode", default)
    if mode not in ("half_pixel", "output_half_pixel"):
        raise call.refuse(f"expected half_pixel or output_half_pixel, got {mode!r}")
    half = mode == "half_pixel"
    column = [call.reshape(call.part(rois, 1, i, 1), (rois.shape[0], 1, 1))
              for i in (1 - axis, 3 - axis)]  # fmt: skip
    steps = np.arange(bins)[:, None] + (np.arange(samples) + 0.5) / samples

    def place(first: Expr, last: Expr, step: Expr) -> Expr:
        shift = number(0.5 if half else 0.0, first)
        start = first * number(scale, first) - shift
        size = last * number(scale, last) - shift - start
        size = size if half else maximum(size, number(1, size))
        return start + step * (size * number(1 / bins, size))

    return call.map(place, *column, call.value(steps[None], rois.dtype), label="Place")


def _weights(place: Expr, own: Expr, size: int) -> Expr:
    """How much the element ``own`` of an axis counts at a place: linear between neighbours."""
    inside = minimum(maximum(place, number(0, place)), number(size - 1, place))
    weight = maximum(number(1, place) - absolute(inside - own), number(0, place))
    outside = (place < number(-1, place)) | (number(size, place) < place)
    return select(outside, number(0, place), weight)


def _average(call: Call, images: Tensor, places: list[Tensor]) -> Tensor:
    """The mean of all samples of a bin, as products with weights along height and width."""
    sides = []
    for place, size in zip(places, images.shape[2:], strict=True):
        rois, bins, samples = place.shape
        own = call.value(np.arange(size), place.dtype)
        rule = lambda p, i, n=size: _weights(p, i, n)  # noqa: E731
        call.check_made((rois, bins, samples, size))
        spread = call.map(rule, call.reshape(place, (*place.shape, 1)), own, label="Weight")
        total = call.reduce("+", spread, (2,), keepdims=False)
        mean = call.map(lambda v, s=samples: v * number(1 / s, v), total)
        sides.append(call.reshape(mean, (rois, 1, bins, size)))
    rows = call.emit(MatMul(), sides[0], images)
    return call.emit(MatMul(), rows, call.transpose(sides[1], (0, 1, 3, 2)))


def _largest(call: Call, images: Tensor, places: list[Tensor]) -> Tensor:
    """The largest of the four weighted elements around all samples of a bin."""
    rois, channels, height, width = images.shape
    y, x = (call.reshape(p, shape) for p, shape in zip(places, (
        (rois, places[0].shape[1], 1, places[0].shape[2], 1),
        (rois, 1, places[1].shape[1], 1, places[1].shape[2])), strict=True))  # fmt: skip
    rows = call.reshape(call.transpose(images, (0, 2, 3, 1)), (rois * height * width, channels))
    first = call.value(np.arange(rois).reshape(-1, 1, 1, 1, 1) * height * width, "int64")
    best = None
    for corner in itertools.product((0, 1), repeat=2):

        def tap(p: Expr, size: int, far: int) -> Expr:
            inside = minimum(maximum(p, number(0, p)), number(size - 1, p))
            found = function("floor", inside) + number(far, p)
            return minimum(found, number(size - 1, p))

        def index(at: Expr, v: Expr, u: Expr, corner: tuple[int, ...] = corner) -> Expr:
            row, column = tap(v, height, corner[0]), tap(u, width, corner[1])
            return at + row.astype("int64") * Const(width, "int64") + column.astype("int64")

        def weight(v: Expr, u: Expr, corner: tuple[int, ...] = corner) -> Expr:
            product = number(1, v)
            for p, size, far in ((v, height, corner[0]), (u, width, corner[1])):
                inside = minimum(maximum(p, number(0, p)), number(size - 1, p))
                rest = inside - function("floor", inside)
                part = rest if far else number(1, p) - rest
                outside = (p < number(-1, p)) | (number(size, p) < p)
                product = product * select(outside, number(0, p), part)
            return product

        seen = call.emit(Gather(0), rows, call.map(index, first, y, x, label="Tap"))
        factor = call.map(weight, y, x, label="Weight")
        made = call.map(lambda v, w: v * w, seen, call.reshape(factor, (*factor.shape, 1)))
        best = made if best is None else call.map(maximum, best, made)
    assert best is not None
    return call.transpose(call.reduce("max", best, (3, 4), keepdims=False), (0, 3, 1, 2))


def _roi_align(call: Call) -> Outputs:
    x, rois, images = (call.operand(i) for i in range(3))
    bins = [call.integer(f"output_{side}", 1) for side in ("height", "width")]
    mode, samples = call.text("mode", "avg"), call.integer("sampling_ratio", 0)
    fits = len(x.shape) == 4 and rois.shape == (*images.shape, 4) and min(bins) > 0
    if not fits or mode not in ("avg", "max") or not 0 <= samples <= MAX_SAMPLES:
        raise call.refuse(
            f"expected an image, boxes [N, 4] and the mode avg or max, got {x.type_text},"
            f" {rois.type_text} and {mode!r}"
        )
    chosen = call.emit(Gather(0), x, images)
    join = _average if mode == "avg" else _largest
    if samples:
        places = [_places(call, rois, axis, bins[axis], samples) for axis in (0, 1)]
        return join(call, chosen, places)
    found = []  # as many samples as a bin has elements, which the boxes decide
    for number_of, box in enumerate(call.constant(1, "box, which decides the number of samples,")):
        one, image = call.part(rois, 0, number_of, 1), call.part(chosen, 0, number_of, 1)
        size = (box[2:] - box[:2])[::-1] * np.float32(call.number("spatial_scale", 1.0))
        if call.text("coordinate_transformation_mode", "half_pixel") != "half_pixel":
            size = np.maximum(size, 1)
        counts = [math.ceil(s / n) for s, n in zip(size.tolist(), bins, strict=True)]
        if not all(0 < n <= MAX_SAMPLES for n in counts):
            raise call.refuse(f"expected 1 to {MAX_SAMPLES} samples a bin, got {counts}")
        places = [_places(call, one, axis, bins[axis], counts[axis]) for axis in (0, 1)]
        found.append(join(call, image, places))
    return call.emit(Concat(0), *found)


# ---- convolutions whose taps move ----------------------------------------------------------------


def _deform_conv(call: Call) -> Outputs:
    """Columns of elements between which is interpolated, and a product with the weights."""
    x, weight, offset = (call.operand(i) for i in range(3))
    bias, mask = call.optional(3), call.optional(4)
    if len(x.shape) != 4 or len(weight.shape) != 4 or len(offset.shape) != 4:
        raise call.refuse(f"expected an image and a weight of 4 dimensions, got {x.type_text}")
    kernel, pads = weight.shape[2:], call.integers("pads", (0,) * 4)
    strides, dilations = (call.integers(n, (1, 1)) for n in ("strides", "dilations"))
    groups, sets = call.integer("group", 1), call.integer("offset_group", 1)
    batch, channels, *size = x.shape
    made = [
        (n + pads[i] + pads[i + 2] - (k - 1) * d - 1) // s + 1 if s > 0 else 0
        for i, (n, k, d, s) in enumerate(zip(size, kernel, dilations, strides, strict=True))
    ]
    taps, moved = math.prod(kernel), (batch, 2 * sets * math.prod(kernel), *made)
    fits = min(groups, sets) > 0 and channels == weight.shape[1] * groups
    fits = fits and not channels % sets and not weight.shape[0] % groups
    masked = mask is None or mask.shape == (batch, sets * taps, *made)
    if not fits or offset.shape != moved or not masked:
        raise call.refuse(
            f"expected offsets {list(moved)} for {groups} groups of {weight.type_text}, got"
            f" {offset.type_text}"
        )
    columns = _columns(call, x, offset, mask, sets, _bases(kernel, made, pads, strides, dilations))
    each = channels // groups * taps
    columns = call.reshape(columns, (batch, groups, each, math.prod(made)))
    rows = call.reshape(weight, (1, groups, weight.shape[0] // groups, each))
    y = call.reshape(call.emit(MatMul(), rows, columns), (batch, weight.shape[0], *made))
    if bias is None:
        return y
    return call.map(lambda v, b: v + b, y, call.reshape(bias, (weight.shape[0], 1, 1)))


def _bases(
    kernel: tuple[int, ...], made: list[int], pads: tuple[int, ...], strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> list[np.ndarray]:  # fmt: skip
    """The places of all taps without offsets along height and width, [taps, height, width]."""
    grid = np.indices((*kernel, *made)).reshape(4, math.prod(kernel), *made)
    return [grid[i + 2] * strides[i] + grid[i] * dilations[i] - pads[i] for i in (0, 1)]


def _columns(
    call: Call, x: Tensor, offset: Tensor, mask: Tensor | None, sets: int, bases: list[np.ndarray]
) -> Tensor:
    """The elements at moved places, [batch, channels, taps, places]."""
    batch, channels, height, width = x.shape
    taps, *made = bases[0].shape
    each = channels // sets
    rows = call.transpose(call.reshape(x, (batch, sets, each, height, width)), (0, 1, 3, 4, 2))
    rows = call.reshape(rows, (batch * sets * height * width, each))
    split = call.reshape(offset, (batch, sets, taps, 2, *made))
    places = []
    for i, base in enumerate(bases):
        part = call.reshape(call.part(split, 3, i, 1), (batch, sets, taps, *made))
        places.append(call.map(lambda v, b: v + b, part, call.value(base, x.dtype)))
    first = np.arange(batch * sets).reshape(batch, sets, 1, 1, 1) * height * width
    start, total = call.value(first, "int64"), None
    for corner in itertools.product((0, 1), repeat=2):

        def index(at: Expr, *p: Expr, corner: tuple[int, ...] = corner) -> Expr:
            for v, n, far, stride in zip(p, (height, width), corner, (width, 1), strict=True):
                tap = function("floor", v) + number(far, v)
                tap = minimum(maximum(tap, number(0, v)), number(n - 1, v))
                at = at + tap.astype("int64") * Const(stride, "int64")
            return at

        def factor(*p: Expr, corner: tuple[int, ...] = corner) -> Expr:
            product = number(1, p[0])
            for v, n, far in zip(p, (height, width), corner, strict=True):
                tap = function("floor", v) + number(far, v)
                outside = (tap < number(0, v)) | (number(n - 1, v) < tap)
                part = number(1, v) - absolute(v - tap)
                product = product * select(outside, number(0, v), part)
            return product

        seen = call.emit(Gather(0), rows, call.map(index, start, *places, label="Tap"))
        share = call.map(factor, *places, label="Weight")
        share = call.reshape(share, (*share.shape, 1))
        if total is None:
            total = call.map(lambda v, w: v * w, seen, share)
        else:
            total = call.map(lambda t, v, w: t + v * w, total, seen, share)
    assert total is not None
    if mask is not None:
        total = call.map(
            lambda t, m: t * m, total, call.reshape(mask, (batch, sets, taps, *made, 1))
        )
    flat = call.reshape(total, (batch, sets, taps, math.prod(made), each))
    return call.transpose(flat, (0, 1, 4, 2, 3))


READERS: dict[str, Reader] = {
    "DeformConv": _deform_conv,
    "NonMaxSuppression": _suppression,
    "RoiAlign": _roi_align,
}
