"""A whole graph as kernels on one arena."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ....runtime.gpu.devices import open_session
from ....runtime.gpu.program import KernelCall, KernelProgram, Place, TensorMap
from ...arena import GraphMemory, Lifetime, plan_arena, tensor_types
from ...choose.chooser import Chooser
from ...dumps import Dumps
from ...graph.ir import Graph, Node
from ...graph.ops.base import Fusion
from ...graph.ops.movement import Slice
from ...tir.ir import Buffer
from ..common.fuse_elementwise import fuse_elementwise
from ..common.fuse_rows import fuse_rows
from ..common.workload import Lowered
from .dialects import Dialect
from .kernels import Kernel, find_temporaries, make_kernels
from .lowering import Templates, lower_node, template_of
from .passes.fuse_epilogues import fuse_epilogues
from .scopes import element_bytes, element_count
from .templates.gemm import Gemm
from .templates.rows import suits_rows
from .text import Box, print_module
from .traffic import count_traffic

#: Tensors begin at multiples of this, as parts of OpenCL buffers must on most devices.
ALIGN_BYTES = 256


@dataclass(frozen=True, eq=False)
class NodeKernels:
    """A node's launches and their texts."""

    lowered: Lowered
    kernels: list[Kernel]


def make_call(kernel: Kernel, place: Callable[[Buffer], Place]) -> KernelCall:
    """A kernel with its arguments in memory."""

    def argument(given: Buffer | Box) -> Place | TensorMap:
        if isinstance(given, Buffer):
            return place(given)
        return TensorMap(*place(given.buffer), given.buffer.dtype, given.buffer.shape, given.shape)

    arguments = tuple(map(argument, kernel.arguments))
    return KernelCall(kernel.name, kernel.grid, kernel.block, arguments, kernel.shared_bytes)


def aligned(size_bytes: int) -> int:
    """The next multiple of ``ALIGN_BYTES``, of which an empty tensor has one, too."""
    return -(-max(1, size_bytes) // ALIGN_BYTES) * ALIGN_BYTES


class GraphKernels:
    """Collects kernels, constants and lifetimes of a graph, then plans its memory."""

    def __init__(
        self, graph: Graph, dialect: Dialect, templates: Templates, chooser: Chooser, dumps: Dumps
    ):
        self.graph, self.dialect, self.templates = graph, dialect, templates
        self.chooser, self.dumps = chooser, dumps
        self.found: dict[tuple, NodeKernels] = {}
        #: Kernels, the tensors that their program's buffers stand for, the position of the node.
        self.calls: list[tuple[NodeKernels, dict[Buffer, str], int]] = []
        self.memory = GraphMemory(graph, aligned)
        for name in graph.inputs:
            self._use(name, 0)
        for position, node in enumerate(graph.nodes):
            self._add(position, node)
            dumps.step()
        for name in graph.outputs:
            self._use(name, len(graph.nodes))

    def _add(self, position: int, node: Node) -> None:
        """A node: another name for its input, or kernels and their calls."""
        if node.op.fusion is Fusion.ALIAS or 0 in self.graph.result(node).shape:
            return  # nothing to compute
        made = self._kernels(position, node)
        func = made.lowered.func
        names = [self.memory.source(name) for name in node.inputs]
        names += self.memory.add_attributes(node, made.lowered.attributes)
        names.append(node.output)
        places = dict(zip(func.params, names, strict=True))
        for name in (*node.inputs, node.output):
            self._use(name, position)
        for index, buffer in enumerate(find_temporaries(func)):
            places[buffer] = name = f"{node.name}.{position}.{index}"
            size = aligned(element_count(buffer) * element_bytes(buffer.dtype))
            self.memory.lifetimes[name] = Lifetime(size, position, position)
        self.calls.append((made, places, position))

    def _kernels(self, position: int, node: Node) -> NodeKernels:
        """Kernels of a node. Equal operators on operands of equal types share them, if their knobs
        are equal, too."""
        template = template_of(self.graph, node, self.templates)
        workload = template.workload(self.graph, node)
        knobs = self.chooser.choose(template, workload, node.name).knobs
        types = tuple((t.shape, t.dtype) for t in self.graph.operands(node))
        key = (node.op, types, tuple(sorted(knobs.items())))
        if key not in self.found:
            lowered = lower_node(self.graph, node, template, knobs, self.dumps)
            kernels = make_kernels(lowered.func, f"k{position}_", self.dialect)
            self.found[key] = NodeKernels(lowered, kernels)
            for kernel in kernels:
                self.dumps.write(kernel.name, self.dialect.suffix, lambda k=kernel: k.text)
        return self.found[key]

    def _use(self, name: str, position: int) -> None:
        """Extend the lifetime of a tensor that has elements to a position."""
        if 0 not in self.graph[name].shape:
            self.memory.use(self.memory.source(name), position)

    def moved(self) -> dict[str, tuple[dict[str, Any], ...]]:
        """What the kernels of each node move, by its name."""
        return {
            self.graph.nodes[position].name: tuple(
                {"name": kernel.name, "grid": kernel.grid, "block": kernel.block}
                | asdict(count_traffic(kernel.launch))
                for kernel in made.kernels
            )
            for made, _, position in self.calls
        }

    def program(self, device: str) -> KernelProgram:
        """The graph as a program for a device."""
        graph = self.graph
        arena, plan = plan_arena(self.memory.lifetimes)
        starts, parameters = self.memory.place_constants()
        offsets = self.memory.offsets(arena)
        places: dict[str, Place] = {name: ("arena", offset) for name, offset in offsets.items()}
        places |= {name: ("parameters", offset) for name, offset in starts.items()}
        calls = [
            make_call(kernel, lambda b, n=names: places[n[b]])
            for made, names, _ in self.calls
            for kernel in made.kernels
        ]
        texts = [kernel.text for made in self.found.values() for kernel in made.kernels]
        outside = {
            name: places[self.memory.source(name)]
            for name in (*graph.inputs, *graph.outputs)
            if self.memory.source(name) in places
        }
        return KernelProgram(
            graph.name, device, print_module(texts, self.dialect), tuple(calls),
            tensor_types(graph, graph.inputs), tensor_types(graph, graph.outputs), outside,
            parameters, plan, open_session,
        )  # fmt: skip


def fuse(graph: Graph, templates: Templates) -> Graph:
    """The graph with an operator for softmax and the like, for each chain of element-wise ones, for
    slices that only such a chain reads, and for products with such a chain behind them."""
    graph = fuse_elementwise(fuse_rows(graph, suits_rows), parts=(Slice,))
    return fuse_epilogues(graph, lambda node: isinstance(template_of(graph, node, templates), Gemm))
