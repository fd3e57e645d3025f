"""What fusion and shared memory give on an NVIDIA GPU: the same networks and products without them,
as in figures 4 and 7 of the TVM paper."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..compiler.build import build
from ..compiler.choose.chooser import Chooser
from ..compiler.dumps import Dumps
from ..compiler.graph.ir import Graph, Node
from ..compiler.graph.ops.base import Bounded
from ..compiler.graph.ops.elementwise import Clip
from ..compiler.targets.base import GraphPass, Options
from ..compiler.targets.gpu.dialects import CUDA
from ..compiler.targets.gpu.func_code import FuncKernels
from ..compiler.targets.gpu.kernels import lower_kernels, to_launches
from ..compiler.targets.gpu.lowering import Lowered, lower_node
from ..compiler.targets.gpu.target import Cuda
from ..compiler.targets.gpu.templates.gemm import Gemm
from ..compiler.targets.gpu.templates.product import make_product
from ..compiler.te.expr import Const, Expr
from ..compiler.te.schedule import create_schedule
from ..compiler.te.tensor import compute, reduce_axis, sum_of
from ..isa.errors import VdlaError
from ..isa.memory import load_platform
from ..runtime.gpu.cuda import CudaSession, load_driver
from .gpu import TOLERANCE, WARM_ROUNDS, Open, error_of, product_graph, random_operand
from .measure import random_inputs
from .modern import check_names
from .workloads import NETWORKS

#: What is compared.
FUSED, UNFUSED = "fused", "unfused"
COOPERATIVE, ALONE = "cooperative", "alone"
#: Threads of a block along the rows and the columns of a product without shared memory, and rows
#: and columns of each thread.
SIDE, OWN = 16, 8


class Unfused(Cuda):
    """A GPU for which every operator is a kernel of its own, activations as well; biases stay with
    their products."""

    def graph_passes(self, chooser: Chooser) -> Sequence[tuple[str, GraphPass]]:
        return [("own_activations", own_activations), *super().graph_passes(chooser)]

    def fuse(self, graph: Graph) -> Graph:
        return graph


def own_activations(graph: Graph) -> Graph:
    """Bounds of results as operators of their own."""
    nodes, tensors = list[Node](), dict(graph.tensors)
    for node in graph.nodes:
        op = node.op
        if not isinstance(op, Bounded) or (op.lo, op.hi) == (float("-inf"), float("inf")):
            nodes.append(node)
            continue
        free = f"{node.output} without bounds"
        tensors[free] = replace(tensors[node.output], name=free)
        nodes.append(replace(node, op=op.between(float("-inf"), float("inf")), output=free))
        bounds = replace(node, name=f"{node.name} bounds", op=Clip(op.lo, op.hi), inputs=(free,))
        nodes.append(bounds)
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def fusion_rows(
    models: Sequence[str], rounds: int, open: Open = CudaSession, emulate: bool = False
) -> list[dict[str, Any]]:
    """A row for each network of the paper, in float32 and for one image: kernels and median
    milliseconds with fusion and without it. ``emulate`` compiles for the emulation.

    Raises
    ------
    VdlaError
        For an unknown name, without a GPU or its driver, and where results differ.
    """
    check_names(models, tuple(NETWORKS))
    options = Options(*load_platform("16x16", "vta"), emulate=emulate)
    return [_fusion_row(model, options, rounds, open) for model in models]


def _fusion_row(model: str, options: Options, rounds: int, open: Open) -> dict[str, Any]:
    if open is CudaSession:
        load_driver()  # before the work of the compiler
    data = NETWORKS[model](1, False).SerializeToString()
    fused, unfused = build(data, Cuda(options)), build(data, Unfused(options))
    programs = {name: made.steps[0] for name, made in ((FUSED, fused), (UNFUSED, unfused))}
    arrays = random_inputs(fused.inputs)
    return {"name": model} | _compared(programs, arrays, rounds, open)


def cooperation_rows(
    sizes: Sequence[int], rounds: int, open: Open = CudaSession
) -> list[dict[str, Any]]:
    """A row for each size of two square matrices of float32: median milliseconds of their product
    when the threads of a block fetch factors into shared memory together, and when each thread
    reads its factors from main memory.

    Raises
    ------
    VdlaError
        As :func:`fusion_rows`.
    """
    if open is CudaSession:
        load_driver()
    rows = []
    for size in sizes:
        graph = product_graph("float32", size)
        [node] = graph.nodes
        template = Gemm()
        knobs = next(template.space(template.workload(graph, node)).points())
        lowered = {
            COOPERATIVE: lower_node(graph, node, template, knobs, Dumps()),
            ALONE: _alone(graph, node),
        }
        programs = {
            name: FuncKernels.of(made.func, CUDA, "cuda", Dumps()).program
            for name, made in lowered.items()
        }
        rng = np.random.default_rng(0)
        arrays = [random_operand(rng, graph[name]) for name in graph.inputs]
        row = {"name": f"product of {size:,}"} | _compared(programs, arrays, rounds, open)
        rows.append(row)
    return rows


def _alone(graph: Graph, node: Node) -> Lowered:
    """A product whose threads share nothing: each has a tile of sums in registers."""
    product = make_product(graph, node)
    batch, m, n, k = product.sizes
    r = reduce_axis(k, "k")

    def rule(b: Expr, i: Expr, j: Expr) -> Expr:
        (x, _), (y, _) = product.left(b, i, Const(0), r.var), product.right(b, j, Const(0), r.var)
        return sum_of(x * y, r)

    acc = compute((batch, m, n), rule, "acc")
    out = compute((batch, m, n), lambda b, i, j: product.epilogue(b, i, j, acc[b, i, j]), "out")
    schedule = create_schedule(out)
    result, sums = schedule[out], schedule[acc]
    _, i, j = out.axes
    i, im = result.split(i, OWN)
    j, jm = result.split(j, OWN)
    i, down = result.split(i, SIDE)
    j, across = result.split(j, SIDE)
    result.reorder(i, j, down, across, im, jm)
    for axis, thread in ((i, "blockIdx.y"), (j, "blockIdx.x"), (down, "threadIdx.y"),
                         (across, "threadIdx.x")):  # fmt: skip
        result.bind(axis, thread)
    sums.set_scope("local")
    sums.compute_at(result, across)
    _, mine, mine_too = acc.axes
    sums.reorder(r, mine, mine_too)
    sums.pragma(r, "contract")
    for axis in (mine, mine_too):
        sums.unroll(axis)
    func = lower_kernels(schedule, [*product.args, out], node.name)
    return Lowered(to_launches(func, Dumps()), product.attributes)


def _compared(programs: Mapping[str, Any], arrays: list, rounds: int, open: Open) -> dict:
    """Kernels and medians of two programs, of replays in turns.

    Raises
    ------
    VdlaError
        Where their results differ.
    """
    sessions = {name: open(program) for name, program in programs.items()}
    wanted, got = (
        replace(program, open=lambda _, session=sessions[name]: session).run(*arrays)
        for name, program in programs.items()
    )
    error = error_of(got, wanted)
    if error > TOLERANCE["float32"]:
        raise VdlaError(f"bench gpu-ablation: expected equal results, got {error:g} between them")
    times_ms: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(WARM_ROUNDS + rounds):
        for name, session in sessions.items():
            # Of two replays in a row, the second one finds the caches as a program leaves them.
            [_, time_ms] = session.time_replays(2)
            if number >= WARM_ROUNDS:
                times_ms[name].append(time_ms)
    medians = {name: statistics.median(times) for name, times in times_ms.items()}
    with_it, without_it = medians.values()
    return {
        "kernels": {name: len(program.calls) for name, program in programs.items()},
        "median_ms": medians, "gain": without_it / with_it, "error": error,
    }  # fmt: skip
