"""Rows with sums of their own, such as softmax and layer normalisation, one row after another.

::

    for each row:
      e[j] = x[row, j] * scale + mask[row, j]        on the stack, in vectors, as all others are
      most = max of e                                partial maxima in the lanes of a vector first
      e2[j] = exp(e[j] - most)
      total = sum of e2
      y[row, j] = e2[j] / total
"""

from __future__ import annotations

import math

from ....choose.space import Knobs, Space
from ....graph.ir import Tensor
from ....graph.ops.fused import FusedRows
from ....te.schedule import Schedule
from ....te.stage import Stage
from ...common.workload import OperatorWorkload
from .base import CpuTemplate
from .fusing import as_vectors
from .plain import ROW_LANES, SHARED_ELEMENTS, reduce_in_lanes

#: The most elements of a row: a few of them stay in the nearest cache.
LONGEST_ROW = 4096


def suits_rows(result: Tensor) -> bool:
    """Whether rows of a result are computed one after another."""
    return result.dtype == "float32" and ROW_LANES[0] <= result.shape[-1] <= LONGEST_ROW


class InRows(CpuTemplate):
    """``lanes`` elements of a row at once; threads share the rows."""

    name = "fused rows"
    ops = (FusedRows,)

    def space(self, workload: OperatorWorkload) -> Space:
        width = workload.result[0][-1]
        return Space({"lanes": [lanes for lanes in ROW_LANES if lanes <= width]})

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        lanes, result = int(knobs["lanes"]), schedule[schedule.outputs[0]]
        *leads, _ = result.tensor.axes
        rows = math.prod(axis.extent for axis in leads)
        for stage in reversed(schedule.stages):
            readers = [s for s in schedule.stages for r in s.reads() if r.source is stage.tensor]
            inner = stage is not result and stage.body is not None and not stage.reduce_axes
            if (
                inner
                and len(readers) == 1
                and not (_is_one(stage, rows) and readers[0].reduce_axes)
            ):
                stage.compute_inline()
        for stage in list(schedule.stages):
            if stage.body is None or stage.inlined:
                continue
            if stage.reduce_axes:
                reduce_in_lanes(schedule, stage.tensor, lanes).compute_at(result, leads[-1])
            elif not _is_one(stage, rows):
                as_vectors(stage, stage.split(stage.tensor.axes[-1], lanes)[1])
            if stage is not result:
                schedule[stage.tensor].compute_at(result, leads[-1])
        if math.prod(result.tensor.shape) >= SHARED_ELEMENTS:
            result.parallel(next((axis for axis in leads if axis.extent > 1), leads[-1]))


def _is_one(stage: Stage, rows: int) -> bool:
    """Whether a stage has one element of each row."""
    return math.prod(stage.tensor.shape) == rows
