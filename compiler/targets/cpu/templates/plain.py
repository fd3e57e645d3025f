"""Schedules of operators in the model's own layout: vectors, and loops that stages share.

Reductions are computed a row at a time, right before the row is finished, in a buffer on the stack;
borders are added once, outside all loops.
"""

from __future__ import annotations

import math

from ....choose.space import Knobs, Space, preferring
from ....graph.ir import Graph, Node
from ....graph.ops.base import Fusion, Op
from ....graph.ops.convolution import (
    Conv2d,
    Convolution,
    ConvolutionTranspose,
    ConvTranspose2d,
    QConv2d,
    QConvTranspose2d,
)
from ....graph.ops.integer import QAdd
from ....graph.ops.linear import Dense, MatMul, QDense, QMatMul
from ....graph.ops.pooling import AvgPool, MaxPool, Pool, QAvgPool, QAvgPoolValid, QMaxPool
from ....graph.ops.quantisation import Dequantize, Quantize
from ....graph.ops.reduction import Reduce
from ....te.schedule import Schedule
from ....te.stage import Stage
from ....te.tensor import IterVar, Tensor
from ...common.workload import OperatorWorkload, row_extent
from .base import CpuTemplate

#: Output channels of a convolution that share the elements loaded from the image.
CHANNEL_TILE = 4
#: Elements that are quantised, or added, at once.
ROW_LANES = (16, 4, 8, 32)
#: Dtypes of which vectors reduce rows.
ROW_DTYPES = ("float32", "int32")
#: Number of elements from which it pays to share them among threads.
SHARED_ELEMENTS = 1 << 15


def reduced_tensor(schedule: Schedule) -> Tensor:
    """The tensor of a schedule that reduces."""
    return next(s.tensor for s in schedule.stages if s.tensor.reduce_axes)


class PlainConvolution(CpuTemplate):
    """A convolution row by row; ``channel_tile`` output channels share the elements loaded from the
    image.
    """

    name = "convolution"
    ops = (QConv2d, Conv2d)

    def space(self, workload: OperatorWorkload) -> Space:
        channels, groups = workload.result[0][1], workload.op.groups  # type: ignore[attr-defined]
        # With groups, a tile stays inside one group.
        legal = [
            size for size in range(1, 2 * CHANNEL_TILE + 1)
            if (size <= channels if groups == 1 else channels // groups % size == 0)
        ]  # fmt: skip
        default = max(size for size in legal if size <= CHANNEL_TILE)
        return Space({"channel_tile": preferring(default, legal)})

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        acc, output = reduced_tensor(schedule), schedule.outputs[0]
        n, oc, oh, ow = output.axes
        out = schedule[output]
        oc_outer, oc_inner = out.split(oc, int(knobs["channel_tile"]))
        out.reorder(n, oc_outer, oh, oc_inner, ow)
        out.vectorize(ow)
        rows = schedule[acc]
        rows.compute_at(out, oh)
        n, oc, oh, ow = acc.axes
        rows.reorder(n, oh, *acc.reduce_axes, oc, ow)
        rows.unroll(oc)
        rows.vectorize(ow)
        _vectorize_shifted(schedule)


def _vectorize_shifted(schedule: Schedule) -> None:
    for stage in schedule.stages:
        if stage.name == "shifted":
            stage.vectorize(stage.tensor.axes[-1])


class IntegerDense(CpuTemplate):
    """A dense layer of int8, element by element of the result."""

    name = "integer dense"
    ops = (QDense,)

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        acc, output = reduced_tensor(schedule), schedule.outputs[0]
        schedule[acc].compute_at(schedule[output], output.axes[1])
        _vectorize_shifted(schedule)


class PlainDense(CpuTemplate):
    """A dense layer of float32: a row of results at a time, or element by element where the weights
    of one result lie together."""

    name = "dense"
    ops = (Dense,)

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        acc, output = reduced_tensor(schedule), schedule.outputs[0]
        n, oc = output.axes
        rows = schedule[acc]
        transposed = workload.op.transposed  # type: ignore[attr-defined]
        rows.compute_at(schedule[output], oc if transposed else n)
        if not transposed:
            schedule[output].vectorize(oc)
            rows.reorder(*acc.reduce_axes, acc.axes[1])
            rows.vectorize(acc.axes[1])


class PlainPool(CpuTemplate):
    """Pooling a row of results at a time."""

    name = "pool"
    ops = (QMaxPool, QAvgPool, QAvgPoolValid, MaxPool, AvgPool)

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        most, output = reduced_tensor(schedule), schedule.outputs[0]
        schedule[output].vectorize(output.axes[3])
        rows = schedule[most]
        rows.compute_at(schedule[output], output.axes[2])
        n, c, oh, ow = most.axes
        rows.reorder(n, c, oh, *most.reduce_axes, ow)
        rows.vectorize(ow)


class PlainTransposed(CpuTemplate):
    """Transposed convolution: the products of one tap for all positions and channels, then those of
    the next tap. Each weight is loaded once for each phase."""

    name = "transposed"
    ops = (ConvolutionTranspose, ConvTranspose2d, QConvTranspose2d)

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        phases = reduced_tensor(schedule)
        spatial = (len(phases.axes) - 2) // 2
        *positions, channels = phases.axes[spatial + 1 :]
        schedule[phases].reorder(*phases.reduce_axes, *positions, channels)


class Rows(CpuTemplate):
    """Conversions and additions, ``lanes`` elements at once; ``parallel``: shared among threads."""

    name = "rows"
    ops = (Quantize, Dequantize, QAdd)

    def handles(self, graph: Graph, node: Node) -> bool:
        shapes = [tensor.shape for tensor in graph.operands(node)]
        return row_extent(node.op, shapes, graph.result(node).shape) % ROW_LANES[0] == 0

    def space(self, workload: OperatorWorkload) -> Space:
        shape, _ = workload.result
        width = row_extent(workload.op, [shape for shape, _ in workload.operands], shape)
        shares = math.prod(shape) >= SHARED_ELEMENTS
        lanes = [size for size in ROW_LANES if width % size == 0]
        return Space({"lanes": lanes, "parallel": preferring(shares, (False, True))})

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        output = schedule.outputs[0]
        outer, lanes = schedule[output].split(output.axes[-1], int(knobs["lanes"]))
        schedule[output].vectorize(lanes)
        if knobs["parallel"]:
            share_rows(schedule[output], outer)


def share_rows(stage: Stage, outer: IterVar) -> None:
    """Share the first axis of a stage that has more than one index among threads. ``outer`` stands
    for the last axis: it is the outer loop of its split."""
    axes = (*stage.tensor.axes[:-1], outer)
    stage.parallel(next((axis for axis in axes if axis.extent > 1), outer))


class RowReduction(CpuTemplate):
    """A reduction along rows whose elements lie side by side: ``lanes`` partial results of a row at
    once, then these are reduced. Sums of floats are rounded in this order."""

    name = "row reduction"
    ops = (Reduce,)

    def handles(self, graph: Graph, node: Node) -> bool:
        [x] = graph.operands(node)
        assert isinstance(node.op, Reduce)
        along = len(x.shape) - 1 in node.op.axes and 0 not in x.shape and x.dtype in ROW_DTYPES
        return along and x.shape[-1] >= min(ROW_LANES)

    def space(self, workload: OperatorWorkload) -> Space:
        [(shape, _)] = workload.operands
        return Space({"lanes": [lanes for lanes in ROW_LANES if lanes <= shape[-1]]})

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        tensor = reduced_tensor(schedule)
        partial = reduce_in_lanes(schedule, tensor, int(knobs["lanes"]))
        partial.compute_at(schedule[tensor], tensor.axes[-1])


def reduce_in_lanes(schedule: Schedule, tensor: Tensor, lanes: int) -> Stage:
    """Reduce along rows to partial results in the ``lanes`` of a vector, and then these; returns
    the stage of the partial ones."""
    whole = schedule[tensor]
    *_, last = tensor.reduce_axes
    _, lane = whole.split(last, lanes)
    partial = schedule[schedule.rfactor(tensor, lane, len(tensor.axes))]
    *_, lane = partial.tensor.axes
    partial.reorder(*partial.tensor.reduce_axes, lane)
    partial.vectorize(lane)
    return partial


class General(CpuTemplate):
    """Every stage by itself; LLVM decides which loops become vectors. ``results_inside``: the
    innermost loop of a reduction is over results, not over the reduced elements. That is best where
    consecutive results read consecutive elements.
    """

    name = "general"
    ops = (Op,)

    def space(self, workload: OperatorWorkload) -> Space:
        if workload.op.fusion is not Fusion.REDUCTION:
            return Space({})
        inside = isinstance(workload.op, MatMul | QMatMul | Convolution | Pool)
        return Space({"results_inside": preferring(inside, (False, True))})

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        if not knobs.get("results_inside"):
            return
        for stage in schedule.stages:
            reduced = stage.tensor.reduce_axes
            if reduced:
                stage.reorder(*reduced, stage.tensor.axes[-1])
