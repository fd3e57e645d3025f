"""Rows with sums of their own, such as softmax and layer normalisation, in one kernel.

::

    block for each row:
      parts[t] = max of x[row, t], x[row, t + 128], ...     for each of 128 threads
      most = max of parts
      e[j] = exp(x[row, j] - most)                          in shared memory, as all others are
      sums[t] = e[t] + e[t + 128] + ...
      total = sum of sums
      y[row, j] = e[j] / total

What is read twice is computed once, if shared memory has room for it.
"""

from __future__ import annotations

import math

from ....choose.space import Knobs, Space, preferring
from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.fused import FusedRows
from ....te.expr import bits_of
from ....te.schedule import Schedule, create_schedule
from ....te.stage import Stage
from ....te.tensor import IterVar
from ...base import expression_of
from ...common.workload import OperatorWorkload
from ..scopes import SHARED_BYTES
from .base import GpuTemplate, Scheduled
from .general import contract, count_elements, fused

#: Threads of a row; elements of a row for each of them, where nobody chooses otherwise.
LANES, ELEMENTS = (32, 64, 128, 256, 512), 4
#: Bytes of shared memory that are left for sums.
SUM_BYTES = 8 << 10
#: Rows shorter than this stay apart where there are many: threads of their own suit them better.
SHORT_ROW, MANY_ROWS = 32, 1 << 14


def suits_rows(result: Tensor) -> bool:
    """Whether a block for each row of a result is worth it."""
    *leads, width = result.shape
    return width >= SHORT_ROW or math.prod(leads) < MANY_ROWS


class Rows(GpuTemplate):
    """``lanes`` threads, a block, share each row."""

    name = "rows"
    ops = (FusedRows,)

    def space(self, workload: OperatorWorkload) -> Space:
        width = workload.result[0][-1]
        best = next((n for n in LANES if n * ELEMENTS >= width), LANES[-1])
        return Space({"lanes": preferring(best, [n for n in LANES if n < 2 * width] or LANES[:1])})

    def schedule(self, graph: Graph, node: Node, knobs: Knobs) -> Scheduled:
        found = expression_of(graph, node)
        schedule = create_schedule(found.output)
        _share_rows(schedule, int(knobs["lanes"]))
        return Scheduled(schedule, [*found.args, found.output], found.attributes)


def _share_rows(schedule: Schedule, lanes: int) -> None:
    """Give a block to each row of the result, and compute all that it needs there."""
    result = schedule[schedule.outputs[0]]
    *leads, column = result.tensor.axes
    rows = math.prod(axis.extent for axis in leads)
    room = SHARED_BYTES - SUM_BYTES
    for stage in reversed(schedule.stages):
        if stage is result or stage.body is None or stage.reduce_axes:
            continue
        readers = [s for s in schedule.stages for r in s.reads() if r.source is stage.tensor]
        is_once = len(readers) == 1
        if count_elements(stage) == rows:  # one element of a row
            if is_once and count_elements(readers[0]) == rows and not readers[0].reduce_axes:
                stage.compute_inline()
            continue
        size = count_elements(stage) // rows * bits_of(stage.tensor.dtype) // 8
        if is_once or size > room:
            stage.compute_inline()
        else:
            room -= size
    block = fused(leads, result)
    result.bind(block, "blockIdx.x")
    _deal_out(result, column, lanes)
    for stage in list(schedule.stages):
        if stage is result or stage.body is None or stage.inlined:
            continue
        if stage.reduce_axes:
            _share_sum(schedule, stage, result, block, lanes)
        elif count_elements(stage) > rows:
            _deal_out(stage, stage.tensor.axes[-1], lanes)
        schedule[stage.tensor].compute_at(result, block)


def _deal_out(stage: Stage, column: IterVar, lanes: int) -> None:
    """Give every ``lanes``-th element of a row to one thread."""
    _, lane = stage.split(column, lanes)
    stage.bind(lane, "threadIdx.x")


def _share_sum(schedule: Schedule, stage: Stage, result: Stage, block: IterVar, lanes: int) -> None:
    """Let each thread add up a part of a row, few threads parts of these parts, and one theirs."""
    for each in (0, lanes // (8 if lanes <= 64 else 16)):
        total = schedule[stage.tensor]
        steps = fused([axis for axis in total.leaves if axis.kind == "reduce"], total)
        outer, inner = total.split(steps, each or lanes)
        lane = outer if each else inner
        parts = schedule[schedule.rfactor(stage.tensor, lane, len(stage.tensor.axes))]
        parts.compute_at(result, block)
        parts.bind(parts.tensor.axes[-1], "threadIdx.x")
        contract(parts)
