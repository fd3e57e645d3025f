"""Convolutions of each channel by itself: a thread computes some neighbouring results, from a row
of the image at a time, which it keeps in registers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from ....choose.space import Knobs, KnobValue, Space, preferring
from ....graph.ir import Graph, Node
from ....graph.ops.base import Op
from ....graph.ops.channels_last import ChannelsLast, channels_first
from ....graph.ops.convolution import Conv2d, QConv2d
from ....graph.ops.narrow import Narrow, without_narrow
from ....te.schedule import Schedule, create_schedule
from ....te.stage import Stage
from ....te.tensor import IterVar, Tensor
from ...base import expression_of
from ...common.workload import OperatorWorkload
from .base import GpuTemplate, Scheduled
from .gemm import fits
from .general import THREADS, contract, fused, share_loop

#: Results of a thread, along a row and along the channels.
COLUMNS, VECTORS = (4, 7, 3, 2, 8, 6, 5, 1), (4, 2, 1)
#: A launch with fewer threads leaves most of a large GPU idle.
MANY_THREADS = 1 << 14
#: Taps of a window, and elements from its first column to its last, at most.
MOST_TAPS, MOST_SPAN = 64, 32
#: Elements of a row that a thread keeps at most, one channel or more.
MOST_CACHED = 128


class Depthwise(GpuTemplate):
    """``threads`` form a block. A thread computes ``columns`` neighbouring places of a row and,
    where channels lie side by side, ``vector`` channels of each, which it reads and stores at
    once."""

    name = "depthwise"
    ops = (Conv2d, QConv2d, ChannelsLast, Narrow)

    def handles(self, graph: Graph, node: Node) -> bool:
        op, is_last = _inner(node.op)
        if not isinstance(op, Conv2d | QConv2d) or 0 in graph.result(node).shape:
            return False
        weight = graph.operands(node)[1].shape
        outputs, per_group, *kernel = channels_first(weight) if is_last else weight
        is_depthwise = per_group == 1 and outputs == op.groups
        return is_depthwise and math.prod(kernel) <= MOST_TAPS and _span(op, kernel, 1) <= MOST_SPAN

    def space(self, workload: OperatorWorkload) -> Space:
        op, is_last = _inner(workload.op)
        assert isinstance(op, Conv2d | QConv2d)
        result, weight = workload.result[0], workload.operands[1][0]
        width, channels = result[2:] if is_last else (result[3], 1)
        kernel = (channels_first(weight) if is_last else weight)[2:]
        vectors = [n for n in VECTORS if not channels % n]
        columns = [n for n in COLUMNS if not width % n]
        places = math.prod(result) // vectors[0]
        best = next((n for n in columns if n * MANY_THREADS <= places), 1)
        knobs: dict[str, Sequence[KnobValue]] = {"columns": preferring(best, columns)}
        if is_last:
            knobs["vector"] = vectors
        knobs["threads"] = fits(THREADS, places // best)
        return Space(knobs, partial(_misfit, op, kernel))

    def schedule(self, graph: Graph, node: Node, knobs: Knobs) -> Scheduled:
        found = expression_of(graph, node)
        schedule = create_schedule(found.output)
        numbers = (int(knobs.get(name, 1)) for name in ("columns", "vector", "threads"))
        _, is_last = _inner(node.op)
        neighbouring(schedule, found.args[0], is_last, *numbers)
        return Scheduled(schedule, [*found.args, schedule.outputs[0]], found.attributes)


def _inner(op: Op) -> tuple[Op, bool]:
    """The operator in the model's layout, and whether it is computed with channels last."""
    wide = without_narrow(op)
    return (wide.op, True) if isinstance(wide, ChannelsLast) else (wide, False)


def _span(op: Conv2d | QConv2d, kernel: Sequence[int], columns: int) -> int:
    """Elements of a row from the first to the last that neighbouring windows read."""
    return (columns - 1) * op.strides[1] + (kernel[1] - 1) * op.dilations[1] + 1


def _misfit(op: Conv2d | QConv2d, kernel: Sequence[int], knobs: Knobs) -> str:
    cached = _span(op, kernel, int(knobs["columns"])) * int(knobs.get("vector", 1))
    return (
        f"expected at most {MOST_CACHED} elements of a row, got {cached}"
        if cached > MOST_CACHED
        else ""
    )


def neighbouring(
    schedule: Schedule, image: Tensor, is_last: bool, columns: int, vector: int, threads: int
) -> None:
    """Compute the sums of neighbouring results where these are, and before each row of the window
    bring what they read of the image to registers."""
    output = schedule.outputs[0]
    if schedule[output].reduce_axes:
        schedule.cache_write(output, "local")
    readers = [s.tensor for s in schedule.stages if any(r.source is image for r in s.reads())]
    cached = schedule.cache_read(image, "local", readers)
    sums = next(stage for stage in schedule.stages if stage.reduce_axes)
    inside = sums.reads()[0].source  # the image in its border, less its zero point
    for stage in schedule.stages:
        if stage.body is not None and stage.tensor not in (output, cached, inside, sums.tensor):
            stage.compute_inline()

    result, width = schedule[output], output.axes[2 if is_last else 3]
    own = [result.split(width, columns)[1]]
    if is_last:
        own.append(result.split(output.axes[3], vector)[1])
        result.reorder(*(axis for axis in result.leaves if axis not in own), *own)
    thread = share_loop(result, fused(result.leaves[: -len(own)], result), threads)
    _unroll(result, own)
    result.vectorize(own[-1])

    sums.set_scope("local")
    sums.compute_at(result, thread)
    _, row, column = sums.reduce_axes
    sums.reorder(*sums.reduce_axes, *sums.tensor.axes)
    # The rows stay a loop, which has the pragma: unrolled loops of machine code have none.
    _unroll(sums, (column, *sums.tensor.axes))
    contract(sums)
    for stage in (schedule[tensor] for tensor in dict.fromkeys((cached, inside))):
        stage.set_scope("local")
        stage.compute_at(sums, row)
        _unroll(stage, stage.leaves)
    if is_last:
        schedule[cached].vectorize(cached.axes[3])


def _unroll(stage: Stage, loops: Sequence[IterVar]) -> None:
    for loop in loops:
        stage.unroll(loop)
