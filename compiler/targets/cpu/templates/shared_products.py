"""Products of few rows with matrices that lie as they are."""

from __future__ import annotations

from ....choose.space import Knobs
from ....graph.ops.shared_matmul import QSharedMatMul
from ....te.schedule import Schedule
from ...common.workload import OperatorWorkload
from .base import CpuTemplate
from .plain import reduced_tensor

#: Vectors of sums that stay in registers.
VECTORS = 4


class SharedProducts(CpuTemplate):
    """A row of results at a time: element by element where the factors of one lie side by side,
    which LLVM adds in vectors; else some vectors of sums in registers over the whole reduction.
    """

    name = "shared products"
    ops = (QSharedMatMul,)

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        acc, output = reduced_tensor(schedule), schedule.outputs[0]
        out, sums = schedule[output], schedule[acc]
        h, m, n = output.axes
        out.parallel(h)
        lanes = self.processor.vector_lanes
        if workload.op.transposed:  # type: ignore[attr-defined]
            _, lane = out.split(n, lanes)
            out.vectorize(lane)
            sums.compute_at(out, m)
            return
        outer, inner = out.split(n, lanes * VECTORS)
        inner, lane = out.split(inner, lanes)
        sums.compute_at(out, outer)
        out.unroll(inner)
        out.vectorize(lane)
        *_, n = acc.axes
        inner, lane = sums.split(n, lanes)
        sums.reorder(*acc.reduce_axes, inner, lane)
        sums.unroll(inner)
        sums.vectorize(lane)
