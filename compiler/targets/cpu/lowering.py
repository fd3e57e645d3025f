"""From a node to its loop program: the template that computes it, its choice, the schedule."""

from __future__ import annotations

from dataclasses import fields
from functools import cache

from ....isa.errors import VdlaError
from ...choose.chooser import Chooser, Given
from ...choose.space import Knobs, Refusal
from ...choose.steps import STEPS
from ...graph.ir import Graph, Node
from ...te.schedule import create_schedule
from ...tir.lower import lower
from ..base import expression_of
from ..common.workload import Lowered, OperatorWorkload, loop_shapes, workload_of
from .processor import Processor
from .templates import plain
from .templates.algorithms import DIRECT, ConvolutionAlgorithm
from .templates.base import CpuTemplate
from .templates.bit_serial import BIT_SERIAL, BitSerial, BitsWorkload, IntegerAlgorithm
from .templates.by_steps import BySteps, expression_of_workload
from .templates.fusing import ElementwiseFusion, Together
from .templates.matrix_tiles import MATRICES, MatrixTiles, ProductInstruction
from .templates.rows import InRows
from .templates.shared_products import SharedProducts
from .templates.tiles import BlockLayout, DenseTiles, DirectTiles, WindowTiles
from .templates.winograd import WinogradTiles

#: A node is computed by the first template that handles it; the last one handles all.
TEMPLATES: list[type[CpuTemplate]] = [
    MatrixTiles,
    DirectTiles,
    WindowTiles,
    WinogradTiles,
    DenseTiles,
    BlockLayout,
    BitSerial,
    SharedProducts,
    plain.PlainConvolution,
    plain.IntegerDense,
    plain.PlainDense,
    plain.PlainPool,
    plain.PlainTransposed,
    plain.Rows,
    InRows,
    Together,
    plain.RowReduction,
    plain.General,
]

#: How many templates there are but for those that are added, which come first.
OWN = len(TEMPLATES)


def templates_of(processor: Processor) -> tuple[CpuTemplate, ...]:
    """The templates of a processor."""
    return _made(processor, tuple(TEMPLATES))


@cache
def _made(processor: Processor, kinds: tuple[type[CpuTemplate], ...]) -> tuple[CpuTemplate, ...]:
    return tuple(kind(processor) for kind in kinds)


def template_of(graph: Graph, node: Node, processor: Processor) -> CpuTemplate:
    """The template that computes a node."""
    return next(
        template
        for template in templates_of(processor)
        if isinstance(node.op, template.ops) and template.handles(graph, node)
    )


def is_added(graph: Graph, node: Node, processor: Processor) -> bool:
    """Whether a template that was added computes a node."""
    added = templates_of(processor)[: len(TEMPLATES) - OWN]
    return any(isinstance(node.op, t.ops) and t.handles(graph, node) for t in added)


def new_chooser(processor: Processor, knobs: Given | None = None) -> Chooser:
    """A chooser without records; with ``knobs`` by layer, if any."""
    return Chooser("cpu", processor.key, knobs or {})


def find_algorithm(graph: Graph, node: Node, processor: Processor, chooser: Chooser) -> str:
    """The algorithm of a convolution on blocks of channels."""
    decision, workload = ConvolutionAlgorithm(processor), workload_of(graph, node)
    if not decision.is_open(workload):
        return DIRECT
    return str(chooser.choose(decision, workload, node.name).knobs["algorithm"])


def uses_matrices(graph: Graph, node: Node, processor: Processor, chooser: Chooser) -> bool:
    """Whether a convolution of int8 is computed by products of matrices."""
    decision, workload = ProductInstruction(processor), workload_of(graph, node)
    if not decision.is_open(workload):
        return False
    return chooser.choose(decision, workload, node.name).knobs["instruction"] == MATRICES


def is_bit_serial(
    graph: Graph, node: Node, bits: int, weight_bits: int, processor: Processor, chooser: Chooser
) -> bool:
    """Whether a product of integers of one or two bits is computed bit by bit."""
    known = workload_of(graph, node)
    given = {field.name: getattr(known, field.name) for field in fields(known)}
    workload = BitsWorkload(**given, bits=bits, weight_bits=weight_bits)
    found = chooser.choose(IntegerAlgorithm(processor), workload, node.name)
    return found.knobs["algorithm"] == BIT_SERIAL


def fuses_into_reader(graph: Graph, node: Node, chooser: Chooser) -> bool:
    """Whether an element-wise operator is computed together with the one that reads its result."""
    return bool(
        chooser.choose(ElementwiseFusion(), workload_of(graph, node), node.name).knobs["fused"]
    )


def choose_knobs(graph: Graph, node: Node, processor: Processor, chooser: Chooser) -> Knobs:
    """The knobs that are chosen for a node: those of its template, or steps in place of these.

    Raises
    ------
    VdlaError
        For knobs that are not legal, naming the layer.
    """
    workload, by_steps = workload_of(graph, node), BySteps(processor)
    template = template_of(graph, node, processor)
    if chooser.prefers(by_steps, template, workload, node.name):
        found = chooser.choose(by_steps, workload, node.name).knobs
        if found[STEPS]:
            return found
    return chooser.choose(template, workload, node.name).knobs


def planned(template: CpuTemplate, workload: OperatorWorkload) -> Knobs:
    """What a template chooses by itself.

    Raises
    ------
    VdlaError
        When it has no legal choice.
    """
    found = template.plan(workload, {})
    if isinstance(found, Refusal):
        raise VdlaError(f"{template.name}: {found.reason}")
    return found.knobs


def lower_node(graph: Graph, node: Node, processor: Processor, knobs: Knobs) -> Lowered:
    """The loop program of a node with these knobs, or by their steps. Empty steps mean the template
    and its plan.

    Raises
    ------
    VdlaError
        When the operator or a dtype has no expression, naming the node.
    """
    workload = workload_of(graph, node)
    if knobs.get(STEPS):
        # Steps name stages: a record of them serves layers whose tensors have other names.
        template, found = BySteps(processor), expression_of_workload(workload)
    else:
        template = template_of(graph, node, processor)
        knobs = planned(template, workload) if STEPS in knobs else knobs
        shapes = loop_shapes(node.op, [tensor.shape for tensor in graph.operands(node)])
        found = expression_of(graph, node, shapes)
    schedule = create_schedule(found.output)
    template.apply(workload, knobs, schedule)
    return Lowered(lower(schedule, [*found.args, found.output], node.name), found.attributes)
