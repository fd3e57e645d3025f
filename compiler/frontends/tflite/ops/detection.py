"""Detected objects: the best boxes of which no two overlap by much.

They are read as one step for each object of the list: the best score that is left, and its box;
boxes that overlap it are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .....isa.errors import VdlaError
from ....graph.ir import Tensor
from ....graph.ops.movement import Concat, Gather
from ....graph.ops.quantisation import Dequantize
from ....graph.ops.reduction import ArgReduce
from ....te.expr import Call as Function
from ....te.expr import Const, Expr, maximum, minimum, select
from ..custom_options import own_options
from ..graph import ANY, Call, Rows, quant_of

#: The most objects of a list, each of which is a copy of the step.
MAX_OBJECTS = 256
#: The score of what is dropped.
DROPPED = float(np.finfo(np.float32).min)


def overlap(box: tuple[Expr, ...], other: tuple[Expr, ...]) -> Expr:
    """The area that two boxes share, of the area that they cover."""
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (box, other)]
    sides = [
        maximum(minimum(box[i + 2], other[i + 2]) - maximum(box[i], other[i]), 0.0) for i in (0, 1)
    ]
    shared = sides[0] * sides[1]
    sound = (areas[0] > 0.0) & (areas[1] > 0.0)
    return select(sound, shared / select(sound, areas[0] + areas[1] - shared, 1.0), 0.0)


# ---- the custom operator for detectors, whose boxes are relative to anchors ----------------------


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


def _real(call: Call, position: int) -> Tensor:
    """An operand as float32."""
    tensor, value = call.operand(position), call.tensor(position)
    if tensor.dtype == "float32":
        return value
    call.quant(tensor)
    if tensor.dtype == "uint8":
        tensor = replace(tensor, dtype="int8", zero_point=tensor.zero_point - 128)
    meaning = quant_of(tensor)
    assert meaning is not None
    return call.emit(Dequantize(meaning), value)


def _boxes(call: Call, options: _Options) -> list[Tensor]:
    """The lower y and x and the upper y and x of all boxes, [N, 1] each."""
    rows = call.importer.shape(call.operand(0))[1]
    encoded = _real(call, 0)
    width = encoded.shape[2]
    encoded = call.reshape(encoded, (rows, width))
    tensor, anchors = call.operand(2), call.constant(2, "anchors")
    if anchors.shape != (rows, 4) or width < 4:
        raise call.refuse(f"expected anchors [{rows}, 4], got {list(anchors.shape)}")
    if tensor.dtype != "float32":
        scale, zero = call.quant(tensor)
        anchors = (call.as_stored(anchors).astype(np.float32) - np.float32(zero)) * scale
    found = []
    steps = (options.y_scale, options.h_scale), (options.x_scale, options.w_scale)
    for side, scales in enumerate(steps):
        middle = call.value(anchors[:, side : side + 1])
        size = call.value(anchors[:, side + 2 : side + 3])

        def centre(v: Expr, m: Expr, s: Expr, scale: float = scales[0]) -> Expr:
            wide = v.astype("float64") / Const(float(np.float32(scale)), "float64")
            return (wide * s.astype("float64") + m.astype("float64")).astype("float32")

        def half(v: Expr, s: Expr, scale: float = scales[1]) -> Expr:
            wide = v.astype("float64") / Const(float(np.float32(scale)), "float64")
            power = Function("exp", (wide,), "float64")
            return (power * Const(0.5, "float64") * s.astype("float64")).astype("float32")

        place = call.map(centre, call.part(encoded, 1, side, 1), middle, size)
        extent = call.map(half, call.part(encoded, 1, side + 2, 1), size)
        found.append(call.map(lambda c, h: c - h, place, extent))
        found.append(call.map(lambda c, h: c + h, place, extent))
    return [found[0], found[2], found[1], found[3]]


def _scores(call: Call, options: _Options) -> Tensor:
    """The scores of all classes but the background, [N, C]."""
    rows = call.importer.shape(call.operand(0))[1]
    value = _real(call, 1)
    shape, count = value.shape, options.num_classes
    if shape[:2] != (1, rows) or not 0 <= shape[2] - count <= 1 or count < 1:
        raise call.refuse(f"expected scores of {count} classes for {rows} boxes, got {list(shape)}")
    return call.part(call.reshape(value, (rows, shape[2])), 1, shape[2] - count, count)


def _detect(call: Call) -> None:
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
    rows, classes = left.shape
    boxes, best = call.emit(Concat(1), *sides), None
    if fast:  # each box counts with its best class
        best = call.emit(ArgReduce("max", 1, False, False), left)
        left, classes = call.reduce("max", left, (1,)), 1
    least = float(np.float32(options.nms_score_threshold))
    left = call.map(lambda v: select(v < least, DROPPED, v), left)
    own = call.value(np.arange(rows * classes).reshape(rows, classes))
    kinds = call.value(np.arange(classes).reshape(1, classes))
    limit = float(np.float32(options.nms_iou_threshold))

    def dropped(v: Expr, at: Expr, kind: Expr, i: Expr, k: Expr, *ends: Expr) -> Expr:
        same = (overlap(ends[:4], ends[4:]) > limit) & k.equal(kind)
        return select(same | i.equal(at), Const(DROPPED, "float32"), v)

    lists: list[list[Tensor]] = [[], [], []]
    for _ in range(count):
        flat = call.reshape(left, (rows * classes,))
        at = call.emit(ArgReduce("max", 0, True, False), flat)
        row = call.map(lambda i: _whole("divide", i, classes), at)
        kind = call.map(lambda i: _whole("remainder", i, classes), at)
        box, score = call.emit(Gather(0), boxes, row), call.emit(Gather(0), flat, at)
        ends = [call.part(box, 1, i, 1) for i in range(4)]
        chosen = (call.reshape(v, (1, 1)) for v in (at, kind))
        left = call.map(dropped, left, *chosen, own, kinds, *sides, *ends)
        named = kind if best is None else call.emit(Gather(0), best, row)
        for values, value in zip(lists, (box, named, score), strict=True):
            values.append(value)
    _emit(call, *(call.emit(Concat(0), *values) for values in lists))


def _whole(name: str, x: Expr, other: int) -> Expr:
    return Function(name, (x, Const(other, "int64")), "int64")


def _emit(call: Call, boxes: Tensor, kinds: Tensor, scores: Tensor) -> None:
    count = scores.shape[0]
    column = call.reshape(scores, (count, 1))
    seen = lambda v, s: select(s > DROPPED, v.astype("float32"), 0.0)  # noqa: E731
    pairs = (boxes, column), (kinds, scores), (scores, scores)
    found = [call.map(seen, *pair) for pair in pairs]
    ones = call.map(lambda s: select(s > DROPPED, 1.0, 0.0), scores)
    found.append(call.reduce("+", ones, (0,)))
    shapes = ((1, count, 4), (1, count), (1, count), (1,))
    for result, value, shape in zip(call.results, found, shapes, strict=True):
        if not result.shape:  # converters that do not know the operator write no shapes
            result = replace(result, shape=shape, signature=shape)
            call.importer.folded[result.index] = result
        if result.dtype != "float32":
            raise VdlaError(f"expected results of float32, got {result.dtype} of {result}")
        call.define(call.reshape(call.map(lambda v: v * 1.0, value), shape), result=result)


# ---- non-maximum suppression ---------------------------------------------------------------------


def _sides(call: Call, boxes: Tensor) -> list[Tensor]:
    """The lower y and x and the upper y and x of all boxes, [N, 1] each; a box may have any two
    opposite corners."""
    ends = [call.part(boxes, 1, i, 1) for i in range(4)]
    low = [call.map(minimum, ends[i], ends[i + 2]) for i in (0, 1)]
    high = [call.map(maximum, ends[i], ends[i + 2]) for i in (0, 1)]
    return [*low, *high]


def _number(call: Call, position: int, what: str) -> float:
    return float(call.constant(position, what).reshape(-1)[0])


def _suppress(call: Call) -> None:
    """The results: places of boxes, in version 5 their scores, and how many there are; the rest of
    a list is zero."""
    boxes, left = call.tensor(0), call.tensor(1)
    count, limit = call.numbers(2, "count")[0], _number(call, 3, "overlap")
    least, soft = _number(call, 4, "score"), call.operator.kind.endswith("V5")
    rows = boxes.shape[0]
    if boxes.shape != (rows, 4) or left.shape != (rows,):
        raise call.refuse(f"expected boxes [N, 4] and scores [N], got {boxes.shape}")
    if not 0 < count <= MAX_OBJECTS or (soft and _number(call, 5, "sigma") > 0):
        raise call.refuse(f"expected up to {MAX_OBJECTS} boxes and a sigma of 0, got {count}")
    sides = _sides(call, boxes)
    own = call.value(np.arange(rows).reshape(rows, 1))
    left = call.reshape(left, (rows, 1))
    left = call.map(lambda v: select(v > least, v, DROPPED), left)

    def dropped(v: Expr, at: Expr, i: Expr, *ends: Expr) -> Expr:
        gone = (overlap(ends[:4], ends[4:]) >= limit) | i.equal(at)
        return select(gone, Const(DROPPED, "float32"), v)

    places, scores = [], []
    for _ in range(count):
        at = call.emit(ArgReduce("max", 0, True, False), left)
        row = call.reshape(at, (1,))
        scores.append(call.emit(Gather(0), left, row))
        places.append(at)
        ends = [call.emit(Gather(0), side, row) for side in sides]
        left = call.map(dropped, left, at, own, *sides, *ends)
    _emit_places(call, call.emit(Concat(0), *places), call.emit(Concat(0), *scores))


def _emit_places(call: Call, places: Tensor, scores: Tensor) -> None:
    def taken(v: Expr, s: Expr) -> Expr:
        return select(s > DROPPED, v, Const(0, v.dtype))

    index = call.map(lambda v, s: taken(v.astype("int32"), s), places, scores)
    flags = call.map(lambda s: select(s > DROPPED, Const(1), Const(0)), scores)
    total = call.reduce("+", flags, (0, 1), False)
    found = [index, total]
    if len(call.results) == 3:
        found.insert(1, call.map(taken, scores, scores))
    for result, value in zip(call.results, found, strict=True):
        call.define(call.reshape(value, value.shape[:1]), result=result)


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "DETECTION_POSTPROCESS": {ANY: _detect},
    "NON_MAX_SUPPRESSION_V4": {"float32": _suppress},
    "NON_MAX_SUPPRESSION_V5": {"float32": _suppress},
}
