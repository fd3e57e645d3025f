"""Schedules for the host's processor: which loops vectorise, which stages share a loop.

Reductions are computed a row at a time, right before the row is requantised, in a buffer on the
stack; borders are added once, at the root.
"""

from __future__ import annotations

import math

import numpy as np

from ....isa.errors import VdlaError
from ...graph.ir import Graph, Node
from ...graph.ops.base import Expression
from ...graph.ops.blocked import BlockedWinograd
from ...graph.ops.convolution import (
    Conv2d,
    Convolution,
    ConvolutionTranspose,
    ConvTranspose2d,
    QConv2d,
    QConvTranspose2d,
)
from ...graph.ops.integer import QAdd
from ...graph.ops.linear import Dense, MatMul, QDense
from ...graph.ops.pooling import AvgPool, MaxPool, Pool, QAvgPool, QAvgPoolValid, QMaxPool
from ...graph.ops.quantisation import Dequantize, Quantize
from ...te.schedule import Schedule, create_schedule
from ...te.tensor import Tensor, placeholder
from ...tir.ir import PrimFunc
from ...tir.lower import lower
from .blocked_schedule import BLOCKED, schedule_blocked
from .winograd_schedule import schedule_winograd

#: Output channels of a convolution that share what they load of the image.
CHANNEL_TILE = 4
#: Elements that are quantised, or added, at once.
LANES = 16
#: Elements of such an operator from which it pays to share them among threads.
SHARED_ELEMENTS = 1 << 15
#: Operators whose innermost loop is over results.
_ROWS = (MatMul, Convolution, Pool)


def expression(graph: Graph, node: Node) -> Expression:
    """The tensor expression of a node.

    Raises
    ------
    VdlaError
        When its operator or a dtype has none, naming the node.
    """
    tensors = graph.operands(node)
    # A scalar has one element here; nothing reads the one of an empty tensor.
    inputs = [
        placeholder(tuple(max(size, 1) for size in t.shape) or (1,), t.dtype, t.name)
        for t in tensors
    ]
    try:
        return node.op.expression(inputs, [t.shape for t in tensors])
    except VdlaError as error:
        raise VdlaError(f"node {node.name!r}: {error}") from error


def lower_for_cpu(graph: Graph, node: Node) -> tuple[PrimFunc, tuple[np.ndarray, ...]]:
    """The scheduled loop program of a node and the values of its attribute parameters, which
    follow the node's inputs and precede the output; errors as :func:`expression`.
    """
    found = expression(graph, node)
    schedule = schedule_for_cpu(node, found.output)
    return lower(schedule, [*found.args, found.output], node.name), found.attributes


def schedule_for_cpu(node: Node, output: Tensor) -> Schedule:
    """The schedule of an operator's expression."""
    schedule = create_schedule(output)
    match node.op:
        case QConv2d() | Conv2d():
            _schedule_conv(schedule, output, node.op.groups)
        case QDense():
            _schedule_dense(schedule, output)
        case QMaxPool() | QAvgPool() | QAvgPoolValid() | MaxPool() | AvgPool():
            _schedule_pool(schedule, output)
        case BlockedWinograd():
            schedule_winograd(node.op, schedule, output)
        case op if isinstance(op, BLOCKED):
            schedule_blocked(op, schedule, output)
        case Dense(transposed=transposed):
            _schedule_float_dense(schedule, output, transposed)
        case ConvolutionTranspose() | ConvTranspose2d() | QConvTranspose2d():
            _schedule_transposed(schedule)
        case Quantize() | Dequantize() | QAdd() if output.axes[-1].extent % LANES == 0:
            outer, lanes = schedule[output].split(output.axes[-1], LANES)
            schedule[output].vectorize(lanes)
            if math.prod(output.shape) >= SHARED_ELEMENTS:
                axes = (*output.axes[:-1], outer)
                schedule[output].parallel(next(axis for axis in axes if axis.extent > 1))
        case _:
            _schedule_general(schedule, reduces_rows=isinstance(node.op, _ROWS))
    return schedule


def _reduced(schedule: Schedule) -> Tensor:
    """The tensor of a schedule that reduces."""
    return next(s.tensor for s in schedule.stages if s.tensor.reduce_axes)


def _channel_tile(channels: int, groups: int) -> int:
    """At most ``CHANNEL_TILE``; with groups, a tile stays inside one group."""
    if groups == 1:
        return min(CHANNEL_TILE, channels)
    group = channels // groups
    return max(size for size in range(1, CHANNEL_TILE + 1) if group % size == 0)


def _schedule_conv(schedule: Schedule, output: Tensor, groups: int) -> None:
    acc = _reduced(schedule)
    n, oc, oh, ow = output.axes
    out = schedule[output]
    oc_outer, oc_inner = out.split(oc, _channel_tile(oc.extent, groups))
    out.reorder(n, oc_outer, oh, oc_inner, ow)
    out.vectorize(ow)
    rows = schedule[acc]
    rows.compute_at(out, oh)
    n, oc, oh, ow = acc.axes
    rows.reorder(n, oh, *acc.reduce_axes, oc, ow)
    rows.unroll(oc)
    rows.vectorize(ow)
    for stage in schedule.stages:
        if stage.name == "shifted":
            stage.vectorize(stage.tensor.axes[-1])


def _schedule_dense(schedule: Schedule, output: Tensor) -> None:
    acc = _reduced(schedule)
    schedule[acc].compute_at(schedule[output], output.axes[1])
    for stage in schedule.stages:
        if stage.name == "shifted":
            stage.vectorize(stage.tensor.axes[-1])


def _schedule_float_dense(schedule: Schedule, output: Tensor, transposed: bool) -> None:
    """A row of results at a time; element by element where the weights of one lie together."""
    acc = _reduced(schedule)
    n, oc = output.axes
    rows = schedule[acc]
    rows.compute_at(schedule[output], oc if transposed else n)
    if not transposed:
        schedule[output].vectorize(oc)
        rows.reorder(*acc.reduce_axes, acc.axes[1])
        rows.vectorize(acc.axes[1])


def _schedule_general(schedule: Schedule, reduces_rows: bool) -> None:
    """Every stage by itself; which loops become vectors is left to LLVM. ``reduces_rows``:
    consecutive results read consecutive elements, so that the innermost loop is over results, not
    over what they add up."""
    for stage in schedule.stages:
        reduced = stage.tensor.reduce_axes
        if reduced and reduces_rows:
            stage.reorder(*reduced, stage.tensor.axes[-1])


def _schedule_transposed(schedule: Schedule) -> None:
    """The channels of one tap's products for all places, then the next tap: a weight is loaded
    once a phase."""
    phases = _reduced(schedule)
    spatial = (len(phases.axes) - 2) // 2
    *places, channels = phases.axes[spatial + 1 :]
    stage = schedule[phases]
    stage.reorder(*phases.reduce_axes, *places, channels)


def _schedule_pool(schedule: Schedule, output: Tensor) -> None:
    most = _reduced(schedule)
    n, c, oh, ow = output.axes
    schedule[output].vectorize(ow)
    rows = schedule[most]
    rows.compute_at(schedule[output], oh)
    n, c, oh, ow = most.axes
    rows.reorder(n, c, oh, *most.reduce_axes, ow)
    rows.vectorize(ow)
