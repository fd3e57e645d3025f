"""A thread for each element of the result: for every operator that has no template of its own."""

from __future__ import annotations

import math

from ....choose.space import Knobs, Space, preferring
from ....graph.ir import Graph, Node
from ....graph.ops.base import Op
from ....te.expr import FLOAT_FUNCTIONS, Call, Extern, walk
from ....te.schedule import Schedule, create_schedule
from ....te.stage import Stage
from ....te.tensor import IterVar
from ...base import expression_of
from ...cpu.templates.base import CpuWorkload, loop_shapes
from .base import GpuTemplate, Scheduled

#: Threads of a block.
THREADS = (256, 128, 64, 512, 32)


class General(GpuTemplate):
    """A thread computes one element, sums included; ``threads`` form a block. Steps that are cheap
    are computed where they are read, all others by kernels of their own."""

    name = "elements"
    ops = (Op,)

    def space(self, workload: CpuWorkload) -> Space:
        size = math.prod(workload.result[0])
        fits = [n for n in THREADS if n < 2 * size] or [THREADS[-1]]
        return Space({"threads": preferring(fits[0], fits)})

    def schedule(self, graph: Graph, node: Node, knobs: Knobs) -> Scheduled:
        shapes = loop_shapes(node.op, [tensor.shape for tensor in graph.operands(node)])
        found = expression_of(graph, node, shapes)
        schedule = create_schedule(found.output)
        each_element(schedule, int(knobs["threads"]))
        return Scheduled(schedule, [*found.args, found.output], found.attributes)


def each_element(schedule: Schedule, threads: int) -> None:
    """Give a thread to each element of every tensor that is not computed where it is read."""
    output = schedule.outputs[0]
    for stage in list(schedule.stages):
        if stage.tensor is not output and _is_cheap(stage, schedule):
            stage.compute_inline()
    roots = [s for s in schedule.stages if s.body is not None and not s.inlined]
    for stage in list(roots):
        if isinstance(stage.body, Extern) or stage.tensor.state is not None:
            continue  # one thread computes it
        if stage.reduce_axes and not _is_ending(stage, schedule):
            local = schedule.cache_write(stage.tensor, "local")
            thread = share_elements(schedule[stage.tensor], threads)
            sums = schedule[local]
            sums.compute_at(schedule[stage.tensor], thread)
            contract(sums)
        elif not stage.reduce_axes:
            thread = share_elements(stage, threads)
            for inner in roots:
                if (
                    inner.reduce_axes
                    and _reader(inner, schedule) is stage
                    and _is_ending(inner, schedule)
                ):
                    inner.set_scope("local")
                    inner.compute_at(stage, thread)
                    contract(inner)


def share_elements(stage: Stage, threads: int) -> IterVar:
    """Make one loop of a stage's data loops, and bind it to blocks of threads; the threads' loop is
    returned."""
    data = [axis for axis in stage.leaves if axis.kind == "data"]
    whole = data[0]
    for axis in data[1:]:
        whole = stage.fuse(whole, axis)
    blocks, inner = stage.split(whole, threads)
    stage.bind(blocks, "blockIdx.x")
    stage.bind(inner, "threadIdx.x")
    return inner


def contract(stage: Stage) -> None:
    """Let products and sums of floats be rounded once."""
    reduction = next(axis for axis in stage.leaves if axis.kind == "reduce")
    stage.pragma(reduction, "contract")


def _is_cheap(stage: Stage, schedule: Schedule) -> bool:
    """Whether to compute a stage again wherever it is read: it has no reduction, and no function
    that takes long, unless its only reader needs each element once."""
    if stage.body is None or stage.reduce_axes or isinstance(stage.body, Extern):
        return False
    readers = [s for s in schedule.stages if any(r.source is stage.tensor for r in s.reads())]
    if stage.tensor.state is not None or any(
        isinstance(s.body, Extern) or s.tensor.state is not None for s in (*readers, stage)
    ):
        return False
    calls = any(
        isinstance(n, Call) and n.name in ("pow", *FLOAT_FUNCTIONS) for n in walk(stage.body)
    )
    return not calls or (len(readers) == 1 and not readers[0].reduce_axes)


def _reader(stage: Stage, schedule: Schedule) -> Stage | None:
    """The only stage that reads a stage, if there is only one."""
    found = [s for s in schedule.stages if not s.inlined and s.body is not None
             and any(r.source is stage.tensor for r in s.reads())]  # fmt: skip
    return found[0] if len(found) == 1 else None


def _is_ending(stage: Stage, schedule: Schedule) -> bool:
    """Whether the only reader of a reduction computes each element from the one in its place."""
    reader = _reader(stage, schedule)
    if reader is None or reader.reduce_axes or isinstance(reader.body, Extern):
        return False
    if reader.tensor.state is not None or reader.tensor.shape != stage.tensor.shape:
        return False
    place = tuple(axis.var for axis in reader.tensor.axes)
    return all(r.indices == place for r in reader.reads() if r.source is stage.tensor)
