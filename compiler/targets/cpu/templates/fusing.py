"""Element-wise operators that are computed together: whether, and how."""

from __future__ import annotations

import math

from ....choose.space import Knobs, Space, preferring
from ....choose.template import Decision
from ....graph.ir import Graph, Node
from ....graph.ops.base import Op
from ....graph.ops.elementwise import Map
from ....graph.ops.fused import Fused
from ....te.schedule import Schedule
from ....te.stage import Stage
from ....te.tensor import IterVar
from ...common.workload import OperatorWorkload, row_extent
from ..llvm_vector import calls_library, fits_vectors
from .base import CpuTemplate
from .plain import SHARED_ELEMENTS, share_rows

#: Elements that are computed at once. One at a time is for rows without a whole vector: LLVM then
#: makes vectors of its own, and a tail.
LANES = (32, 16, 8, 4, 1)
#: The least width of a row with a tail, of elements that are left of whole vectors.
LEAST_TAILED = 64
#: Vectors that one operator computes before the next operator begins, and their number by default
#: around calls of the C library: these store elements one by one, which the processor cannot load
#: as a vector right afterwards.
VECTORS = (1, 2, 4)
VECTORS_WITH_CALLS = 2
#: The most elements of a strip around calls of the C library, for rows without a whole vector: LLVM
#: makes vectors of a loop over a strip, but not of one with calls.
LONGEST_STRIP = 1024


class ElementwiseFusion(Decision[OperatorWorkload]):
    """``fused``: the result of an element-wise operator is not stored; the operator that reads it
    uses it at once."""

    name = "fusion"

    def space(self, workload: OperatorWorkload) -> Space:
        return Space({"fused": (True, False)})


class Together(CpuTemplate):
    """A strip of ``vectors`` times ``lanes`` elements of the first operator, then the same strip of
    the next one, if there is one. Values between operators stay in registers. ``parallel``: threads
    share the strips.
    """

    name = "fused"
    ops = (Fused, Map)

    def handles(self, graph: Graph, node: Node) -> bool:
        """A result without elements, or without dimensions, has no strips."""
        shape = graph.result(node).shape
        return bool(shape) and 0 not in shape

    def space(self, workload: OperatorWorkload) -> Space:
        shape, _ = workload.result
        width = row_extent(workload.op, [shape for shape, _ in workload.operands], shape)
        shares = math.prod(shape) >= SHARED_ELEMENTS
        lanes = [size for size in LANES if width % size == 0]
        if lanes[0] < LANES[1] and width >= LEAST_TAILED and not _calls(workload.op):
            lanes = [LANES[1], *lanes]
        strip = next(size for size in range(min(width, LONGEST_STRIP), 0, -1) if width % size == 0)
        around_calls = VECTORS_WITH_CALLS if lanes[0] > 1 else strip
        vectors = around_calls if _calls(workload.op) else VECTORS[0]
        knobs = {
            "lanes": lanes,
            "vectors": preferring(vectors, dict.fromkeys((*VECTORS, strip))),
            "parallel": preferring(shares, (False, True)),
        }

        def misfit(knobs: Knobs) -> str:
            strip = int(knobs["lanes"]) * int(knobs["vectors"])
            if width % strip and int(knobs["vectors"]) > 1:
                return f"expected strips that divide {width}, got {strip}"
            return ""

        return Space(knobs, misfit)

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        lanes, output = int(knobs["lanes"]), schedule[schedule.outputs[0]]
        strip = lanes * int(knobs["vectors"])
        outer, inner = output.split(output.tensor.axes[-1], strip)
        for stage in schedule.stages:
            if stage.body is not None and stage is not output:
                stage.compute_at(output, outer)
                as_vectors(stage, stage.split(stage.tensor.axes[-1], lanes)[1])
        as_vectors(output, output.split(inner, lanes)[1])
        if knobs["parallel"]:
            share_rows(output, outer)


def as_vectors(stage: Stage, lanes: IterVar) -> None:
    """Vectorise a loop over elements that lie side by side, where vectors can compute them."""
    place = stage.tensor.axes[-1].var
    assert stage.body is not None
    if lanes.extent > 1 and stage.tensor.dtype != "bool" and fits_vectors(stage.body, place):
        stage.vectorize(lanes)


def _calls(op: Op) -> bool:
    """Whether computing an element calls the C library; of all operators, only a Map may."""
    match op:
        case Fused():
            return any(map(_calls, op.ops))
        case Map():
            return calls_library(op.body)
    return False
