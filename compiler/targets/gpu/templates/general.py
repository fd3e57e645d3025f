"""A thread for each element of the result, for some that lie side by side, or a row of threads for
one that is a long sum: for every operator that has no template of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....choose.space import Knobs, KnobValue, Space, preferring
from ....graph.ir import Graph, Node
from ....graph.ops.base import Fusion, Op
from ....graph.ops.channels_last import PadLast
from ....graph.ops.narrow import without_narrow
from ....te.expr import FLOAT_FUNCTIONS, Call, Expr, Extern, substitute, walk
from ....te.schedule import Schedule, create_schedule
from ....te.stage import Stage
from ....te.tensor import IterVar
from ...base import expression_of
from ...common.workload import OperatorWorkload, loop_shapes
from .base import GpuTemplate, Scheduled

#: Threads of a block.
THREADS = (256, 128, 64, 512, 32)
#: Elements side by side of a thread; results from which on there are threads enough for that.
VECTORS, MANY_ELEMENTS = (1, 4, 8, 16), 1 << 16
#: Threads that share a sum; steps from which on it is long, if there are few results.
LANES, LONG_SUM, MANY_SUMS = (32, 1, 8), 64, 1 << 14


class General(GpuTemplate):
    """``threads`` form a block. A thread computes ``vector`` elements of an element-wise operator,
    or of an image that gets a border; ``lanes`` of them share each long sum of another operator,
    such as one of softmax, and a thread computes each element of all others. Steps that are cheap
    are computed where they are read, all others by kernels of their own."""

    name = "elements"
    ops = (Op,)

    def space(self, workload: OperatorWorkload) -> Space:
        size = math.prod(workload.result[0])
        fits = [n for n in THREADS if n < 2 * size] or [THREADS[-1]]
        knobs: dict[str, Sequence[KnobValue]] = {"threads": preferring(fits[0], fits)}
        is_padded = isinstance(without_narrow(workload.op), PadLast)
        if workload.op.fusion is Fusion.ELEMENTWISE or is_padded:
            vectors = [n for n in VECTORS if not size % n]
            best = 4 if 4 in vectors and size >= MANY_ELEMENTS else 1
            knobs["vector"] = preferring(best, vectors)
        if workload.op.fusion is Fusion.REDUCTION:
            knobs["lanes"] = LANES
        return Space(knobs)

    def schedule(self, graph: Graph, node: Node, knobs: Knobs) -> Scheduled:
        shapes = loop_shapes(node.op, [tensor.shape for tensor in graph.operands(node)])
        found = expression_of(graph, node, shapes)
        schedule = create_schedule(found.output)
        numbers = (int(knobs.get(name, 1)) for name in ("lanes", "vector"))
        each_element(schedule, int(knobs["threads"]), *numbers)
        return Scheduled(schedule, [*found.args, found.output], found.attributes)


def each_element(schedule: Schedule, threads: int, lanes: int = 1, vector: int = 1) -> None:
    """Give a thread to each element, or to each ``vector`` of them, of every tensor that is not
    computed where it is read; and ``lanes`` threads to each element that is a long sum."""
    output = schedule.outputs[0]
    for stage in list(schedule.stages):
        if stage.tensor is not output and _is_cheap(stage, schedule):
            stage.compute_inline()
    roots = [s for s in schedule.stages if s.body is not None and not s.inlined]
    for stage in list(roots):
        if isinstance(stage.body, Extern) or stage.tensor.state is not None:
            continue  # one thread computes it
        if stage.reduce_axes and not _is_epilogue(stage, schedule):
            local = schedule.cache_write(stage.tensor, "local")
            compute_sums(schedule, schedule[stage.tensor], [schedule[local]], threads, lanes)
        elif not stage.reduce_axes:
            inner = [
                s for s in roots
                if s.reduce_axes and _reader(s, schedule) is stage and _is_epilogue(s, schedule)
            ]  # fmt: skip
            if inner:
                compute_sums(schedule, stage, inner, threads, lanes)
            else:
                share_elements(stage, threads, vector)


def compute_sums(
    schedule: Schedule, result: Stage, sums: Sequence[Stage], threads: int, lanes: int
) -> None:
    """Compute the sums that each element of a result needs where that is computed."""
    if lanes > 1 and all(_is_long(stage) for stage in sums):
        # Parts of rows along several dimensions would not lie side by side in shared memory.
        is_row = sum(size > 1 for size in result.tensor.shape) <= 1
        rows = max(1, threads // lanes) if is_row else 1
        whole = fused([axis for axis in result.leaves if axis.kind == "data"], result)
        blocks, row = result.split(whole, min(rows, count_elements(result)))
        result.bind(blocks, "blockIdx.x")
        result.bind(row, "threadIdx.y")
        for stage in sums:
            _share_sum(schedule, result, row, stage, lanes)
        return
    thread = share_elements(result, threads)
    for stage in sums:
        stage.set_scope("local")
        stage.compute_at(result, thread)
        contract(stage)


def _share_sum(schedule: Schedule, result: Stage, row: IterVar, stage: Stage, lanes: int) -> None:
    """Let threads side by side add up a part each, in shared memory, and each thread all parts."""
    tensor = stage.tensor
    steps = fused([axis for axis in stage.leaves if axis.kind == "reduce"], stage)
    _, lane = stage.split(steps, lanes)
    parts = schedule.rfactor(tensor, lane, len(tensor.axes))
    total, partial = schedule[tensor], schedule[parts]
    total.set_scope("local")
    total.compute_at(result, row)
    partial.set_scope("shared")
    partial.compute_at(result, row)
    partial.bind(parts.axes[-1], "threadIdx.x")
    contract(partial)


def _is_long(stage: Stage) -> bool:
    """Whether a sum has steps enough for several threads, and there are too few of its kind."""
    steps = math.prod(axis.extent for axis in stage.reduce_axes)
    return steps >= LONG_SUM and count_elements(stage) < MANY_SUMS


def count_elements(stage: Stage) -> int:
    """Elements of a stage's tensor."""
    return math.prod(stage.tensor.shape)


def fused(loops: Sequence[IterVar], stage: Stage) -> IterVar:
    """One loop of some that are nested directly."""
    whole = loops[0]
    for axis in loops[1:]:
        whole = stage.fuse(whole, axis)
    return whole


def share_elements(stage: Stage, threads: int, vector: int = 1) -> IterVar:
    """Make one loop of a stage's data loops, and bind it to blocks of threads; the threads' loop is
    returned. Each computes ``vector`` elements side by side."""
    loops = [axis for axis in stage.leaves if axis.kind == "data"]
    if vector > 1 and not count_elements(stage) % vector:
        if loops[-1].extent % vector:
            loops = [fused(loops, stage)]
        loops[-1], side_by_side = stage.split(loops[-1], vector)
        stage.vectorize(side_by_side)
    whole = fused(loops, stage)
    return share_loop(stage, whole, threads)


def share_loop(stage: Stage, loop: IterVar, threads: int) -> IterVar:
    """Bind a loop to blocks of threads; the threads' loop is returned."""
    blocks, inner = stage.split(loop, threads)
    stage.bind(blocks, "blockIdx.x")
    stage.bind(inner, "threadIdx.x")
    return inner


def contract(stage: Stage) -> None:
    """Let products and sums of floats be rounded once."""
    loops = [axis for axis in stage.leaves if axis.kind == "reduce"]
    # A loop of one iteration is none, and its pragmas are gone.
    stage.pragma(next((axis for axis in loops if axis.extent > 1), loops[0]), "contract")


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


def _reads(stage: Stage, schedule: Schedule) -> Iterator[tuple[Stage, tuple[Expr, ...]]]:
    """Each access to a stage's tensor: by which stage, and where; what is computed where it is read
    belongs to its readers."""
    for reader in schedule.stages:
        for read in reader.reads():
            if read.source is not stage.tensor:
                continue
            if not reader.inlined:
                yield reader, read.indices
                continue
            axes = [axis.var for axis in reader.tensor.axes]
            for last, at in _reads(reader, schedule):
                values = dict(zip(axes, at, strict=True))
                yield last, tuple(substitute(index, values) for index in read.indices)


def _reader(stage: Stage, schedule: Schedule) -> Stage | None:
    """The only stage that reads a stage, if there is only one."""
    found = list(dict.fromkeys(reader for reader, _ in _reads(stage, schedule)))
    return found[0] if len(found) == 1 else None


def _is_epilogue(stage: Stage, schedule: Schedule) -> bool:
    """Whether the only reader of a reduction computes each element from the one in its place, or
    from the one that takes its place in another order of axes."""
    reader = _reader(stage, schedule)
    if reader is None or reader.reduce_axes or isinstance(reader.body, Extern):
        return False
    if reader.tensor.state is not None or count_elements(reader) != count_elements(stage):
        return False
    axes = {axis.var for axis in reader.tensor.axes}
    places = [at for _, at in _reads(stage, schedule)]
    return all(len(at) == len(axes) and {*at} == axes for at in places)
