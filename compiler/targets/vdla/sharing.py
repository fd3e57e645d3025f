"""Operators of the vector unit beside those of the tensor core: who may use what.

The tensor core and the vector unit work on different operators at the same time when these share
the scratchpads. Operators of the tensor track have the beginning of every scratchpad, those of the
vector track the end; ``order.py`` merges their instructions. What an operator may use, and whether
its results shall come rows first, are decided here, before its own choice; they are its
:class:`~.machine.Context`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ....isa.params import HwParams
from ...choose.chooser import Choice, Chooser
from ...choose.space import Workload
from ...graph.ir import Graph, Node
from ...tir.ir import PrimFunc
from .codegen import scratchpad_use
from .machine import Budget, Context
from .templates.base import AcceleratorTemplate, Track

#: Scratchpads that both tracks use, and the most that an operator of the vector track takes of
#: each, where there are operators of both.
SHARED = ("inp", "out", "par")
VECTOR_SHARE = Fraction(3, 8)


@dataclass(frozen=True)
class Operator:
    """A node of a program that has instructions, and what was chosen for it."""

    node: Node
    template: AcceleratorTemplate
    workload: Workload
    choice: Choice
    func: PrimFunc


#: A loop program as it goes to the code generator.
Finish = Callable[[PrimFunc], PrimFunc]


def share_scratchpads(
    graph: Graph,
    nodes: Sequence[Node],
    template_of: Callable[[Node], AcceleratorTemplate],
    params: HwParams,
    chooser: Chooser,
    finish: Finish,
) -> dict[str, Operator]:
    """What is chosen for every node, by its output.

    An operator of the vector track takes a share; one of the tensor track takes what its neighbours
    there leave. Where that is too little, an operator takes all, and its neighbours wait.

    Raises
    ------
    VdlaError
        For an operator that does not fit at all, and a choice that is not legal.
    """
    tracks = [template_of(node).track for node in nodes]
    beside = len(set(tracks)) > 1
    whole = Context(Budget.whole(params), beside=beside)
    orders = _wanted_orders(graph, nodes, template_of, whole)
    made: dict[str, Operator] = {}
    used: dict[int, Mapping[str, int]] = {}

    def decide(node: Node, taken: Mapping[str, int]) -> Operator:
        context = replace(whole, rows_first=orders.get(node.output))
        template = template_of(node)
        workload = template.workload(graph, node, _less(context, taken))
        found = chooser.attempt(template, workload, node.name) if any(taken.values()) else None
        if not isinstance(found, Choice):
            workload = template.workload(graph, node, context)
            found = chooser.choose(template, workload, node.name)
        func = finish(template.schedule(workload, found.knobs, node.name))
        made[node.output] = Operator(node, template, workload, found, func)
        return made[node.output]

    kept = {m: params.depth(m) - int(params.depth(m) * VECTOR_SHARE) for m in SHARED}
    for index, node in enumerate(nodes):
        if tracks[index] is Track.VECTOR:
            operator = decide(node, kept if beside else {})
            used[index] = scratchpad_use(operator.func, params)
    for index, node in enumerate(nodes):
        if tracks[index] is Track.TENSOR:
            before = max((i for i in used if i < index), default=-1)
            after = min((i for i in used if i > index), default=-1)
            near = [used[i] for i in (before, after) if i >= 0]
            decide(node, {m: max((use.get(m, 0) for use in near), default=0) for m in SHARED})
    return made


def _less(context: Context, taken: Mapping[str, int]) -> Context:
    return replace(context, budget=context.budget.without(taken))


def _wanted_orders(
    graph: Graph,
    nodes: Sequence[Node],
    template_of: Callable[[Node], AcceleratorTemplate],
    whole: Context,
) -> dict[str, bool]:
    """Of operators of the vector track behind the tensor track's, and of the latter: whether
    results come rows first. That is as the one in front would have it with all scratchpads to
    itself; then the one behind can follow it closely.
    """
    makers = {node.output: node for node in nodes}
    orders: dict[str, bool] = {}
    for node in nodes:
        if template_of(node).track is not Track.VECTOR:
            continue
        for source in (makers.get(name) for name in node.inputs):
            if source is not None and template_of(source).track is Track.TENSOR:
                template = template_of(source)
                rows_first = template.rows_first(template.workload(graph, source, whole))
                orders[node.output] = orders[source.output] = rows_first
    return orders
