"""The interface of a target: the operators that it takes, its passes, its code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ...isa.errors import VdlaError
from ...isa.memory import MemoryParams
from ...isa.params import HwParams
from ...isa.program import Program
from ...runtime.executable import LayerInfo, Step
from ..choose.chooser import Choice, Chooser
from ..choose.space import Refusal
from ..choose.template import Template
from ..dumps import Dumps
from ..graph.ir import Graph, Node
from ..graph.ops.base import Expression, Shape
from ..te.schedule import Schedule
from ..te.tensor import Tensor, placeholder
from ..tir.ir import PrimFunc
from ..tir.lower import lower

GraphPass = Callable[[Graph], Graph]


class DoesNotFit(VdlaError):
    """A ``layer`` that a target takes, for which it turns out that none of its programs fits; and
    the ``reason``. The host can run it."""

    def __init__(self, layer: str, reason: str):
        super().__init__(f"layer {layer!r}: {reason}")
        self.layer, self.reason = layer, reason


@dataclass(frozen=True)
class Options:
    """What a user specifies besides the model and the target's name.

    Attributes
    ----------
    hw, memory : the accelerator's configuration, and the memory behind it
    vthreads : virtual threads that a planner uses
    threads : threads of the processor among which parallel loops are shared
    emulate : run the GPU's kernels on the processor
    precision : of the factors of float32 products on the GPU's tensor cores
    arch : the GPU's generation; None: that of the GPU at hand
    profile : code for the CPU notes when each of its loop programs ends
    """

    hw: HwParams
    memory: MemoryParams
    vthreads: int = 2
    threads: int = 1
    emulate: bool = False
    precision: str = "float32"
    arch: str | None = None
    profile: bool = False


@dataclass(frozen=True)
class Part:
    """Some nodes of a graph for one target, in running order; ``wanted`` are the results that are
    read outside the part."""

    graph: Graph
    nodes: Sequence[Node]
    wanted: Sequence[str]

    def as_graph(self) -> Graph:
        """The part as a graph of its own, whose inputs are the tensors that the nodes read from
        outside, and whose outputs are the wanted ones; the whole graph if it has no other nodes.
        """
        graph = self.graph
        if len(self.nodes) == len(graph.nodes):
            return graph
        made = {node.output for node in self.nodes}
        read = dict.fromkeys(n for node in self.nodes for n in node.inputs if n not in made)
        inputs = tuple(name for name in read if not graph[name].is_constant)
        tensors = {name: graph[name] for name in (*read, *made, *self.wanted)}
        return Graph(graph.name, inputs, tuple(self.wanted), tuple(self.nodes), tensors)


@dataclass(frozen=True)
class Compiled:
    """A part as code: the step that runs, None if there is nothing to run; and its layers."""

    step: Step | None
    layers: Sequence[LayerInfo]


class Target(ABC):
    """Something that code is generated for.

    Attributes
    ----------
    name : in ``Node.target``, in reports and in records
    title : for messages, such as "the accelerator"
    batch : images that are computed at once, where a model leaves that open
    splits_batches : whether that also holds for larger batches that a model fixes
    host : the target that takes what this one refuses; None if there is no other
    templates : its templates; a node gets the first one that handles it
    machine_key : the machine as text; records of choices are found by workload and machine
    """

    name: ClassVar[str]
    title: ClassVar[str]
    batch: int
    splits_batches: ClassVar[bool] = False
    host: Target | None
    templates: Sequence[Template]
    machine_key: str

    def template_of(self, graph: Graph, node: Node) -> Template | None:
        """The template that handles a node, if there is one."""
        for template in self.templates:
            if isinstance(node.op, template.ops) and template.handles(graph, node):
                return template
        return None

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        """How the target computes a node, in words, or why it refuses it."""
        template = self.template_of(graph, node)
        return self.refuse(graph, node) if template is None else template.takes(graph, node)

    def refuse(self, graph: Graph, node: Node) -> Refusal:
        """Why no template handles a node."""
        return Refusal(f"{self.title} has no operator {node.op.name}")

    def graph_passes(self, chooser: Chooser) -> Sequence[tuple[str, GraphPass]]:
        """The passes for a graph whose nodes know their target: names and functions, in order."""
        return ()

    def worth(self, graph: Graph, nodes: Sequence[Node]) -> bool:
        """Whether a program for these nodes pays, after an earlier program and the host's work."""
        return True

    @abstractmethod
    def compile(self, part: Part, chooser: Chooser, dumps: Dumps) -> Compiled:
        """Code of a part of a graph.

        Raises
        ------
        VdlaError
            Naming the layer for a choice that is not legal, and the graph for one that does not fit
            the machine.
        """

    def lower(self, schedule: Schedule, args: list[Tensor], name: str) -> PrimFunc:
        """The loop program of a schedule, for :meth:`compile_func`."""
        return lower(schedule, args, name)

    def compile_func(self, func: PrimFunc, dumps: Dumps) -> Program | Callable[..., None]:
        """Code of one loop program: a program, or a function of one array for each parameter.

        Raises
        ------
        VdlaError
            For a loop program that the target cannot run, and where it compiles models only.
        """
        raise VdlaError(f"{self.title} compiles models; {func.name} is a loop program")


def expression_of(graph: Graph, node: Node, shapes: Sequence[Shape] | None = None) -> Expression:
    """The tensor expression of a node. ``shapes``, if given, replace those of its operands, which
    an element-wise operator allows.

    Raises
    ------
    VdlaError
        When its operator or a dtype has none, naming the node.
    """
    tensors = graph.operands(node)
    shapes = [t.shape for t in tensors] if shapes is None else shapes
    # Every placeholder has an element: a scalar is [1], and nothing reads that of an empty tensor.
    inputs = [
        placeholder(tuple(max(size, 1) for size in shape) or (1,), t.dtype, t.name)
        for t, shape in zip(tensors, shapes, strict=True)
    ]
    try:
        return node.op.expression(inputs, shapes)
    except VdlaError as error:
        raise VdlaError(f"node {node.name!r}: {error}") from error


def layer_info(
    graph: Graph, node: Node, runs: tuple[tuple[int, int], ...] | None, choice: Choice | None
) -> LayerInfo:
    """What reports say about a node. ``runs`` are the ranges of its instructions; None where it is
    not in a program.
    """
    read = sum(tensor.size_bytes for tensor in graph.operands(node))
    written = graph.result(node).size_bytes
    macs = 0 if node.again else graph.macs(node)
    layer = LayerInfo(
        node.name, node.op.name, node.target, node.reason, macs, read + written, runs,
        compulsory_written_bytes=written, computes=node.op.computes and not node.op.moves,
        window_macs=node.op.window_macs(*(tensor.shape for tensor in graph.operands(node))),
    )  # fmt: skip
    if choice is None or not choice.knobs:
        return layer
    return replace(
        layer,
        knobs=dict(choice.knobs),
        chosen_by=choice.chosen_by,
        predicted_cycles=choice.predicted_cycles,
    )
