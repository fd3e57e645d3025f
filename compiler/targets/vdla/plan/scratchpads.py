"""Divide the scratchpads between operators of the tensor core and operators of the vector unit.

The tensor core and the vector unit can work on different operators at the same time if both
operators fit the scratchpads together. Operators of the tensor track use the beginning of every
scratchpad, operators of other tracks use the end; ``lower/order.py`` merges their instructions.
Before an operator's own choice is made, this module decides how much it may use and whether its
results shall come rows first: its :class:`~.machine.Context`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import lru_cache, partial
from math import prod

import numpy as np

from .....isa.errors import VdlaError
from ....choose.chooser import Choice, Chooser
from ....choose.space import Refusal, Workload
from ....choose.steps import STEPS
from ....dumps import Dumps
from ....graph.ir import Graph, Node
from ...base import DoesNotFit, Part
from ..cost.tiling import SCARCE_SHARE, read_cycles
from ..lower.codegen import Code
from ..lower.loop_programs import LoopPrograms
from ..machine import USUAL_EIGHTHS, Context, Machine
from ..scopes import TENSOR_SCRATCHPADS
from ..templates.base import AcceleratorTemplate, Track
from ..templates.convolution import find_mean
from ..templates.searched import find_step_template
from .program_plan import (
    IMAGE_CHUNKS,
    ROOM_TIMES,
    USUAL_CHUNKS,
    WGT_EIGHTHS,
    moved,
    on_track,
    share_of,
)

#: Scratchpads that both tracks use.
SHARED = ("inp", "out", "par")


@dataclass(frozen=True)
class Operator:
    """A node that has instructions, with its choice and its loop program, whose images are loaded
    in ``image_chunks`` chunks, and whose ``numbers`` by slot may be others than those of its code.
    The last ``beside`` entries, by scratchpad, were not for it, because operators of other tracks
    use them that run beside it.
    """

    node: Node
    template: AcceleratorTemplate
    workload: Workload
    choice: Choice
    code: Code
    image_chunks: int = USUAL_CHUNKS
    numbers: Mapping[int, int] | None = None
    beside: Mapping[str, int] = field(default_factory=dict)


def share_scratchpads(
    part: Part,
    instructed: Callable[[Graph, Node], AcceleratorTemplate | None],
    machine: Machine,
    chooser: Chooser,
    dumps: Dumps,
    ready: LoopPrograms,
    fewer_vthreads: bool = True,
) -> dict[str, Operator]:
    """Choose for every node of a part that is ``instructed``, within its share of the scratchpads;
    the result is by output. ``dumps`` is told of each choice. ``ready`` has loop programs of
    earlier calls, and gets the new ones.

    An operator of another track than the tensor core's gets its node's share, or its template's. An
    operator of the tensor track gets what its neighbours on other tracks leave. Where that is too
    little, an operator gets all of one scratchpad, or else of all, and its neighbours wait. Where
    that is too little, too, it gets ``fewer_vthreads``, if it may.

    Raises
    ------
    DoesNotFit
        For an operator that does not fit at all.
    VdlaError
        For a choice that is not legal.
    """
    params, graph = machine.params, part.graph
    found = {node.output: instructed(graph, node) for node in part.nodes}
    nodes = [node for node in part.nodes if found[node.output] is not None]
    templates = {
        node.output: on_track(
            template
            if (times := node.shares.get(ROOM_TIMES)) is None
            else _estimating(template, template.machine.estimated(times)),
            node.shares,
        )
        for node in nodes
        if (template := found[node.output]) is not None
    }

    for node in nodes:
        mean = find_mean(graph, node) if templates[node.output].track is Track.CLASSIFIER else None
        if mean is not None and mean.output in templates:
            templates[mean.output] = moved(templates[mean.output], Track.MEAN, multiplies=False)

    def template_of(node: Node) -> AcceleratorTemplate:
        return templates[node.output]

    tracks = [template_of(node).track for node in nodes]
    beside = len(set(tracks)) > 1
    scarce = beside and _reading_share(graph, nodes, machine) >= SCARCE_SHARE

    def whole(node: Node) -> Context:
        """The context of an operator without neighbours."""
        room = machine.room(node.shares.get(ROOM_TIMES))
        return Context(room, beside=beside, scarce_loads=scarce)

    orders = _wanted_orders(graph, nodes, template_of, whole)
    made: dict[str, Operator] = {}
    used: dict[int, Mapping[str, int]] = {}
    in_parts: set[str] = set()

    def maker_cycles(node: Node) -> int:
        """Of the operator that makes a node's image in the order in which the node reads it."""
        maker = made.get(node.inputs[0])
        if maker is None or not (maker.template.suits_reader and orders.get(maker.node.output)):
            return 0
        return maker.choice.predicted_cycles or 0

    def decide(node: Node, taken: Mapping[str, int]) -> Operator:
        usual = template_of(node)
        context = replace(
            whole(node), rows_first=orders.get(node.output), maker_cycles=maker_cycles(node),
            in_parts=node.output in in_parts,
        )  # fmt: skip
        template: AcceleratorTemplate = usual
        found: Choice | Refusal = Refusal("")
        limited = [m for m, entries in taken.items() if entries]
        for freed in ([], *([m] for m in limited), limited):
            if isinstance(found, Choice):
                break
            still = {m: 0 if m in freed else entries for m, entries in taken.items()}
            workload = usual.workload(graph, node, context.without(still))
            template, found = _attempt(chooser, usual, workload, node.name)
        given = bool(chooser.given.get(node.name))
        for vthreads in range((machine.vthreads - 1) * (fewer_vthreads and not given), 0, -1):
            if not isinstance(found, Choice):
                fewer = type(usual)(replace(usual.machine, vthreads=vthreads))
                template, found = _attempt(chooser, fewer, workload, node.name)
        if not isinstance(found, Choice):
            if given:
                raise VdlaError(f"layer {node.name!r}: {found.reason}")
            raise DoesNotFit(node.name, found.reason)
        eighths = Fraction(node.shares.get(WGT_EIGHTHS, USUAL_EIGHTHS))
        eighths *= Fraction(context.budget.wgt, params.wgt_depth)
        parts = node.shares.get(IMAGE_CHUNKS, USUAL_CHUNKS)
        used = template.context_used(workload, found.knobs)
        same = template, used, *_values(workload), *sorted(found.knobs.items())
        schedule = partial(template.schedule, workload, found.knobs, node.name)
        made_of = ready.code(same, schedule, eighths, dumps)
        neighbours = taken if usual.track is Track.TENSOR else {}
        made[node.output] = Operator(
            node, template, workload, found, made_of.code, parts, made_of.numbers, neighbours
        )
        dumps.step()
        return made[node.output]

    def put_apart(index: int) -> None:
        """Give a mean or a classifier with a track of its own other entries than the operators
        between it and the product before have: it runs beside all of these. The product shall make
        its channels in parts."""
        first, own = index, made[nodes[index].output]
        while first and tracks[first - 1] is not Track.TENSOR:
            first -= 1
        others = _most(used[i] for i in range(first, index))
        made[own.node.output] = replace(own, beside=others)
        names = {*others, *own.code.used}
        both = {name: others.get(name, 0) + own.code.used.get(name, 0) for name in names}
        used.update(dict.fromkeys(range(first, index + 1), both))
        if first:
            in_parts.add(nodes[first - 1].output)

    for index, node in enumerate(nodes):
        if tracks[index] is not Track.TENSOR:
            share, memories = share_of(template_of(node).share, node), SHARED
            room = whole(node).budget
            if template_of(node).multiplies:
                memories = *SHARED, *TENSOR_SCRATCHPADS
            kept = {m: room.of(m) - int(room.of(m) * share) for m in memories}
            operator = decide(node, kept if beside else {})
            used[index] = operator.code.used
            if tracks[index] in (Track.MEAN, Track.CLASSIFIER):
                put_apart(index)
    for index, node in enumerate(nodes):
        if tracks[index] is Track.TENSOR:
            before = max((i for i in used if i < index), default=-1)
            after = min((i for i in used if i > index), default=-1)
            near = _most(used[i] for i in (before, after) if i >= 0)
            memories = *SHARED, *TENSOR_SCRATCHPADS
            decide(node, {m: near.get(m, 0) for m in memories})
    return made


def _most(uses: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The most entries of each scratchpad that one of several uses."""
    found: dict[str, int] = {}
    for use in uses:
        found |= {name: max(entries, found.get(name, 0)) for name, entries in use.items()}
    return found


@lru_cache(maxsize=64)
def _estimating(template: AcceleratorTemplate, machine: Machine) -> AcceleratorTemplate:
    """The template by the cycles of a machine, the same one for each of several programs."""
    return template if template.machine == machine else type(template)(machine)


def _attempt(
    chooser: Chooser, usual: AcceleratorTemplate, workload: Workload, layer: str
) -> tuple[AcceleratorTemplate, Choice | Refusal]:
    """The choice for a layer, or why there is none: of steps where the user or the cheaper record
    says so, else of its template's knobs. With the template that computes it.
    """
    by_steps = find_step_template(usual, workload)
    if by_steps is not None and chooser.prefers(by_steps, usual, workload, layer):
        found = chooser.attempt(by_steps, workload, layer)
        if isinstance(found, Refusal) or found.knobs[STEPS]:
            return by_steps, found
    return usual, chooser.attempt(usual, workload, layer)


def _values(workload: Workload) -> tuple:
    """All that a workload says but for its context, also what does not decide about speed."""
    names = (known.name for known in fields(workload))
    return tuple(getattr(workload, name) for name in names if name != "context")


def _wanted_orders(
    graph: Graph,
    nodes: Sequence[Node],
    template_of: Callable[[Node], AcceleratorTemplate],
    whole: Callable[[Node], Context],
) -> dict[str, bool]:
    """Whether results come rows first, by output, where that matters to a neighbour.

    Where an operator of another track reads the result of one of the tensor track, both get the
    order that the tensor track's operator would choose without neighbours, so that the
    other one can follow it closely. One that may suit its reader instead, and follows none of the
    tensor track, gets the order in which the tensor track's operator would read its result.
    """
    makers = {node.output: node for node in nodes}
    orders: dict[str, bool] = {}
    for node in nodes:
        if template_of(node).track is Track.TENSOR:
            continue
        for source in (makers.get(name) for name in node.inputs):
            if source is not None and template_of(source).track is Track.TENSOR:
                template = template_of(source)
                rows_first = template.rows_first(template.workload(graph, source, whole(source)))
                orders[source.output] = rows_first
                if not template_of(node).suits_reader:
                    orders[node.output] = rows_first
    for node in nodes:
        template, maker = template_of(node), makers.get(node.inputs[0])
        follows = maker is not None and template_of(maker).track is Track.TENSOR
        if template.suits_reader and (template.waits_for_image or not follows):
            readers = [other for other in nodes if other.inputs[0] == node.output]
            orders[node.output] = any(
                found.reads_parts(found.workload(graph, reader, whole(reader)))
                for reader in readers
                if (found := template_of(reader)).track is Track.TENSOR
            )
    return orders


def _reading_share(graph: Graph, nodes: Sequence[Node], machine: Machine) -> float:
    """The cycles for reading each operand of the nodes once, over those that the tensor core needs
    for their products; 0 where nothing is multiplied."""
    operands = [tensor for node in nodes for tensor in graph.operands(node)]
    read = sum(prod(t.shape) * np.dtype(t.dtype).itemsize for t in operands)
    products = sum(map(graph.macs, nodes)) / machine.params.peak_macs_per_cycle
    return read_cycles(read, machine) / products if products else 0.0
