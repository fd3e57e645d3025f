"""The custom operator that turns a detector's boxes and scores into a list of objects.

It is read as one step for each object of the list: the best score that is left, and its box; boxes
of the same class that overlap it are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....isa.errors import VdlaError
from ...graph.ops.movement import Concat, Gather, Reshape, Slice
from ...graph.ops.quantisation import Dequantize
from ...graph.ops.reduction import ArgReduce, Reduce
from ...te.expr import Call as Function
from ...te.expr import Const, Expr, maximum, minimum, select
from .graph import Call, quant_of
from .mapping import map_of, step_map
from .own_options import own_options

#: The most objects of a list, each of which is a copy of the step.
MAX_OBJECTS = 256
#: The score of what is dropped.
DROPPED = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class _Options:
    """The options that a file has under these names; what is absent is zero."""

    max_detections: int
    max_classes_per_detection: int
    detections_per_class: int
    use_regular_nms: bool
    nms_score_threshold: float
    nms_iou_threshold: float
    num_classes: int
    y_scale: float
    x_scale: float
    h_scale: float
    w_scale: float

    @staticmethod
    def of(call: Call) -> _Options:
        defaults = {"detections_per_class": 100, "use_regular_nms": False}
        found = own_options(call)
        values = [found.get(n, defaults.get(n, 0)) for n in _Options.__dataclass_fields__]
        kinds = (int, int, int, bool, *[float] * 2, int, *[float] * 4)
        try:
            read: list[Any] = [kind(v) for kind, v in zip(kinds, values, strict=True)]
        except (TypeError, ValueError, OverflowError):
            raise call.refuse("its options are damaged") from None
        options = _Options(*read)
        scales = (options.y_scale, options.x_scale, options.h_scale, options.w_scale)
        threshold = 0.0 < options.nms_iou_threshold <= 1.0
        if not (threshold and all(np.isfinite(scales)) and all(scales)):
            raise call.refuse(f"expected scales and an overlap from 0 to 1, got {options}")
        return options


def _real(call: Call, position: int) -> str:
    """An operand as float32."""
    tensor, value = call.operand(position), call.value(position, "plain")
    if tensor.dtype == "float32":
        return value
    call.quant(tensor)
    meaning = quant_of(replace(tensor, dtype="int8", zero_point=tensor.zero_point - 128)
                       if tensor.dtype == "uint8" else tensor)  # fmt: skip
    assert meaning is not None
    return call.step("real", Dequantize(meaning), value)


def column(call: Call, value: str, place: int) -> str:
    """One column of a matrix, [N, 1]."""
    rows = call.shape_of(value)[0]
    return call.step("column", Slice((0, place), (1, 1), (rows, 1)), value)


def _boxes(call: Call, options: _Options) -> list[str]:
    """The lower y and x and the upper y and x of all boxes, [N, 1] each."""
    rows = call.importer.shape(call.operand(0))[1]
    encoded = _real(call, 0)
    width = call.shape_of(encoded)[2]
    encoded = call.step("rows", Reshape((rows, width)), encoded)
    tensor, anchors = call.operand(2), call.constant(2, "anchors")
    if anchors.shape != (rows, 4) or width < 4:
        raise call.refuse(f"expected anchors [{rows}, 4], got {list(anchors.shape)}")
    if tensor.dtype != "float32":
        scale, zero = call.quant(tensor)
        anchors = (call.as_stored(anchors).astype(np.float32) - np.float32(zero)) * scale
    found = []
    for side, scales in ((0, (options.y_scale, options.h_scale)),
                         (1, (options.x_scale, options.w_scale))):  # fmt: skip
        middle = call.constant_of(f"middle{side}", anchors[:, side : side + 1])
        size = call.constant_of(f"size{side}", anchors[:, side + 2 : side + 3])

        def centre(v: Expr, m: Expr, s: Expr, scale: float = scales[0]) -> Expr:
            wide = v.astype("float64") / Const(float(np.float32(scale)), "float64")
            return (wide * s.astype("float64") + m.astype("float64")).astype("float32")

        def half(v: Expr, s: Expr, scale: float = scales[1]) -> Expr:
            wide = v.astype("float64") / Const(float(np.float32(scale)), "float64")
            power = Function("exp", (wide,), "float64")
            return (power * Const(0.5, "float64") * s.astype("float64")).astype("float32")

        place = step_map(call, "centre", centre, column(call, encoded, side), middle, size)
        extent = step_map(call, "half", half, column(call, encoded, side + 2), size)
        found.append(step_map(call, "low", lambda c, h: c - h, place, extent))
        found.append(step_map(call, "high", lambda c, h: c + h, place, extent))
    return [found[0], found[2], found[1], found[3]]


def overlap(box: tuple[Expr, ...], other: tuple[Expr, ...]) -> Expr:
    """The area that two boxes share, of the area that they cover."""
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (box, other)]
    sides = [
        maximum(minimum(box[i + 2], other[i + 2]) - maximum(box[i], other[i]), 0.0) for i in (0, 1)
    ]
    shared = sides[0] * sides[1]
    sound = (areas[0] > 0.0) & (areas[1] > 0.0)
    return select(sound, shared / select(sound, areas[0] + areas[1] - shared, 1.0), 0.0)


def _shaped(call: Call, value: str, shape: tuple[int, ...]) -> str:
    return value if call.shape_of(value) == shape else call.step("shaped", Reshape(shape), value)


def _scores(call: Call, options: _Options) -> str:
    """The scores of all classes but the background, [N, C]."""
    rows = call.importer.shape(call.operand(0))[1]
    value = _real(call, 1)
    shape, count = call.shape_of(value), options.num_classes
    if shape[:2] != (1, rows) or not 0 <= shape[2] - count <= 1 or count < 1:
        raise call.refuse(f"expected scores of {count} classes for {rows} boxes, got {list(shape)}")
    matrix = call.step("scores", Reshape((rows, shape[2])), value)
    return call.step("classes", Slice((0, shape[2] - count), (1, 1), (rows, count)), matrix)


def read(call: Call) -> None:
    """The results: boxes, classes, scores, and how many there are; the rest of a list is zero."""
    options = _Options.of(call)
    count = options.max_detections
    fast = not options.use_regular_nms
    one_class = not fast or options.max_classes_per_detection == 1
    if not 0 < count <= MAX_OBJECTS or not one_class or len(call.results) != 4:
        raise call.refuse(
            f"expected up to {MAX_OBJECTS} objects of one class each, got {count} of"
            f" {options.max_classes_per_detection}"
        )
    if not fast and options.detections_per_class < count:
        raise call.refuse(f"expected at least {count} objects of each class")
    sides, left = _boxes(call, options), _scores(call, options)
    rows, classes = call.shape_of(left)
    boxes, best = call.step("boxes", Concat(1), *sides), ""
    if fast:  # each box counts with its best class
        best = call.step("best", ArgReduce("max", 1, False, False), left)
        left, classes = call.step("most", Reduce("max", (1,), True), left), 1
    least = float(np.float32(options.nms_score_threshold))
    left = step_map(call, "left", lambda v: select(v < least, DROPPED, v), left)
    own = call.constant_of("own", np.arange(rows * classes).reshape(rows, classes))
    kinds = call.constant_of("kinds", np.arange(classes).reshape(1, classes))
    limit = float(np.float32(options.nms_iou_threshold))

    def dropped(v: Expr, at: Expr, kind: Expr, i: Expr, k: Expr, *ends: Expr) -> Expr:
        same = (overlap(ends[:4], ends[4:]) > limit) & k.equal(kind)
        return select(same | i.equal(at), Const(DROPPED, "float32"), v)

    lists: list[list[str]] = [[], [], []]
    for _ in range(count):
        flat = call.step("flat", Reshape((rows * classes,)), left)
        at = call.step("at", ArgReduce("max", 0, True, False), flat)
        row = step_map(call, "row", lambda i: _named("divide", i, classes), at)
        kind = step_map(call, "kind", lambda i: _named("remainder", i, classes), at)
        box, score = (
            call.step("box", Gather(0), boxes, row),
            call.step("score", Gather(0), flat, at),
        )
        ends = [column(call, box, i) for i in range(4)]
        left = step_map(
            call, "left", dropped, left, _shaped(call, at, (1, 1)), _shaped(call, kind, (1, 1)),
            own, kinds, *sides, *ends,
        )  # fmt: skip
        named = call.step("class", Gather(0), best, row) if fast else kind
        for values, value in zip(lists, (box, named, score), strict=True):
            values.append(value)
    _emit(call, *(call.step("list", Concat(0), *values) for values in lists))


def _named(name: str, x: Expr, other: int) -> Expr:
    return Function(name, (x, Const(other, "int64")), "int64")


def _emit(call: Call, boxes: str, kinds: str, scores: str) -> None:
    count = call.shape_of(scores)[0]
    column = _shaped(call, scores, (count, 1))
    seen = lambda v, s: select(s > DROPPED, v.astype("float32"), 0.0)  # noqa: E731
    found = [
        step_map(call, "boxes", seen, boxes, column),
        step_map(call, "kinds", seen, kinds, scores),
        step_map(call, "scores", seen, scores, scores),
    ]
    ones = step_map(call, "ones", lambda s: select(s > DROPPED, 1.0, 0.0), scores)
    found.append(call.step("number", Reduce("+", (0,), True), ones))
    shapes = ((1, count, 4), (1, count), (1, count), (1,))
    for result, value, shape in zip(call.results, found, shapes, strict=True):
        if not result.shape:  # converters that do not know the operator write no shapes
            result = replace(result, shape=shape, signature=shape)
            call.importer.folded[result.index] = result
        if result.dtype != "float32":
            raise VdlaError(f"expected results of float32, got {result.dtype} of {result}")
        same = map_of(call, "Detected", lambda v: v * 1.0, value)
        call.emit(same, (_shaped(call, value, shape),), "plain", result)
