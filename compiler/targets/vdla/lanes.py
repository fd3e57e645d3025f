"""Operators of the vector unit beside those of the tensor core.

The tensor core and the vector unit work on different operators at the same time when these share
the scratchpads. The operators of a program are two lanes: convolutions and dense layers have the
beginning of every scratchpad, what the vector unit computes alone (depthwise convolution, pooling,
addition) the end. ``targets/vdla/order.py`` merges their instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from ....isa.errors import VdlaError
from ....isa.memory import MemoryParams
from ....isa.params import HwParams
from ...graph.ir import Graph, Node
from ...graph.ops.layout import BlockReshape
from ...graph.ops.movement import Concat, Reshape
from ...tir.ir import PrimFunc
from .codegen import scratchpad_use
from .lowering import conv_shape, lower_node, on_tensor_core
from .planner import plan_conv

TENSOR_LANE, VECTOR_LANE = 0, 1
#: Operators that are done when their operands and results have their places.
NO_WORK = (Reshape, BlockReshape, Concat)
#: Scratchpads that both lanes use, and the most that an operator of the vector lane takes of each.
SHARED = ("inp", "out", "par")
VECTOR_SHARE = Fraction(3, 8)


def lane(graph: Graph, node: Node) -> int:
    """The lane of an operator."""
    return TENSOR_LANE if on_tensor_core(graph, node) else VECTOR_LANE


def lower_lanes(
    graph: Graph,
    nodes: Sequence[Node],
    params: HwParams,
    memory: MemoryParams,
    vthreads: int,
    run_passes: Callable[[Node, PrimFunc], PrimFunc],
) -> dict[str, PrimFunc]:
    """The loop program of every node that has work, by the node's output; ``run_passes`` are those
    over loops.

    An operator of the vector lane takes a share, the tensor lane what its neighbours there leave.
    Where that is too little, an operator takes all, and its neighbours wait.
    """
    nodes = [node for node in nodes if not isinstance(node.op, NO_WORK)]
    vector = [lane(graph, node) == VECTOR_LANE for node in nodes]
    used: dict[int, dict[str, int]] = {}
    funcs: dict[str, PrimFunc] = {}
    rows_first: dict[str, bool] = {}
    beside = any(vector) and not all(vector)

    def lower(node: Node, taken: dict[str, int]) -> PrimFunc:
        how = memory, vthreads, rows_first.get(node.output), beside
        try:
            func = lower_node(graph, node, _without(params, taken), *how)
        except VdlaError:
            func = lower_node(graph, node, params, *how)
        funcs[node.output] = run_passes(node, func)
        return funcs[node.output]

    rest = {m: params.depth(m) - int(params.depth(m) * VECTOR_SHARE) for m in SHARED}
    by_output = {node.output: node for node in nodes}
    for index, node in enumerate(nodes):
        if vector[index]:
            for source in (by_output.get(name) for name in node.inputs):
                if source and on_tensor_core(graph, source):
                    shape = conv_shape(graph, source, params)
                    first = plan_conv(shape, params, memory, vthreads, beside=beside).rows_first(
                        shape
                    )
                    rows_first[node.output] = rows_first[source.output] = first
            used[index] = scratchpad_use(lower(node, {} if all(vector) else rest), params)
    for index, node in enumerate(nodes):
        if not vector[index]:
            before = max((i for i in used if i < index), default=-1)
            after = min((i for i in used if i > index), default=-1)
            near = [used[i] for i in (before, after) if i >= 0]
            lower(node, {m: max((use.get(m, 0) for use in near), default=0) for m in SHARED})
    return funcs


def _without(params: HwParams, taken: dict[str, int]) -> HwParams:
    """The configuration with so many entries less in its scratchpads."""
    return replace(params, **{f"{m}_depth": params.depth(m) - n for m, n in taken.items()})
