"""Readers of NON_MAX_SUPPRESSION: the best boxes of which no two overlap by much."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...graph.ir import Tensor
from ...graph.ops.movement import Concat, Gather
from ...graph.ops.reduction import ArgReduce
from ...te.expr import Const, Expr, maximum, minimum, select
from .detection import DROPPED, MAX_OBJECTS, column, overlap
from .elementwise import numbers
from .graph import Call

Reader = Callable[[Call], None]


def _sides(call: Call, boxes: Tensor) -> list[Tensor]:
    """The lower y and x and the upper y and x of all boxes, [N, 1] each; a box may have any two
    opposite corners."""
    ends = [column(call, boxes, i) for i in range(4)]
    low = [call.map(minimum, ends[i], ends[i + 2]) for i in (0, 1)]
    high = [call.map(maximum, ends[i], ends[i + 2]) for i in (0, 1)]
    return [*low, *high]


def _number(call: Call, position: int, what: str) -> float:
    return float(call.constant(position, what).reshape(-1)[0])


def _suppress(call: Call) -> None:
    """The results: places of boxes, in version 5 their scores, and how many there are; the rest of
    a list is zero."""
    boxes, left = call.tensor(0), call.tensor(1)
    count, limit = numbers(call, 2, "count")[0], _number(call, 3, "overlap")
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
    _emit(call, call.emit(Concat(0), *places), call.emit(Concat(0), *scores))


def _emit(call: Call, places: Tensor, scores: Tensor) -> None:
    def taken(v: Expr, s: Expr) -> Expr:
        return select(s > DROPPED, v, Const(0, v.dtype))

    index = call.map(lambda v, s: taken(v.astype("int32"), s), places, scores)
    flags = call.map(lambda s: select(s > DROPPED, Const(1), Const(0)), scores)
    total = call.reduce("+", flags, (0, 1), False)
    found = [index, total]
    if len(call.results) == 3:
        found.insert(1, call.map(taken, scores, scores))
    for result, value in zip(call.results, found, strict=True):
        count = value.shape[:1]
        call.define(call.reshape(value, count), result=result)


#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {
    "NON_MAX_SUPPRESSION_V4": {"float32": _suppress},
    "NON_MAX_SUPPRESSION_V5": {"float32": _suppress},
}
