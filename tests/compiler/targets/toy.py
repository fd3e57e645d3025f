"""A target of one's own: loop programs that the interpreter runs, with one small scratchpad.

Products have their sums in the scratchpad; everything else runs on the processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from vdla.compiler.choose.chooser import Chooser
from vdla.compiler.choose.space import Knobs, Refusal, Space, Workload
from vdla.compiler.choose.template import Template
from vdla.compiler.dumps import Dumps
from vdla.compiler.graph.ir import Graph, Node
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.ops.linear import QDense
from vdla.compiler.targets.base import (
    Compiled,
    Options,
    Part,
    Target,
    expression_of,
    layer_info,
)
from vdla.compiler.targets.cpu.target import Cpu
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.tir.ir import PrimFunc
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.scopes import MemoryScope, check_scopes, place_buffers
from vdla.runtime.native import MemoryPlan, TensorType

from ..interpret import interpret

#: The scratchpad, for int32 sums.
SUMS = 384
SCOPES = {
    "global": MemoryScope("global", "main memory"),
    "sums": MemoryScope("sums", "sums of products", entries=SUMS, dtypes=("int32",)),
}


@dataclass(frozen=True)
class ProductsWorkload(Workload):
    """Channels of the result, and elements of each."""

    channels: int
    elements: int


class Products(Template[ProductsWorkload]):
    """So many ``channels`` of the result at a time."""

    name = "toy products"
    ops = (QConv2d, QDense)

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        if isinstance(node.op, QConv2d) and node.op.groups > 1:
            return Refusal("groups")
        return "sums in the scratchpad"

    def workload(self, graph: Graph, node: Node) -> ProductsWorkload:
        images, channels, *spatial = graph.result(node).shape
        return ProductsWorkload(channels, images * prod(spatial))

    def space(self, workload: ProductsWorkload) -> Space:
        sizes = [n for n in range(workload.channels, 0, -1) if workload.channels % n == 0]

        def misfit(knobs: Knobs) -> str:
            needed = int(knobs["channels"]) * workload.elements
            return f"needs {needed} sums of {SUMS}" if needed > SUMS else ""

        return Space({"channels": sizes}, misfit)

    def schedule(self, graph: Graph, node: Node, knobs: Knobs) -> tuple[PrimFunc, list[np.ndarray]]:
        found = expression_of(graph, node)
        s = create_schedule(found.output)
        tiles, _ = s[found.output].split(found.output.axes[1], int(knobs["channels"]))
        sums = next(stage for stage in s.stages if stage.tensor.reduce_axes)
        sums.set_scope("sums")
        sums.compute_at(s[found.output], tiles)
        return lower(s, [*found.args, found.output], node.name), list(found.attributes)


@dataclass(frozen=True)
class Interpreted:
    """Loop programs one after the other, with the names of their operands and results."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    calls: Sequence[tuple[PrimFunc, Sequence[str | np.ndarray], str]]
    constants: Mapping[str, np.ndarray]
    plan: MemoryPlan

    def run(self, *arrays: np.ndarray) -> list[np.ndarray]:
        names = [tensor.name for tensor in self.inputs]
        values = dict(self.constants) | dict(zip(names, arrays, strict=True))
        for func, operands, result in self.calls:
            y = func.params[-1]
            values[result] = np.zeros(y.shape, y.dtype)
            given = [values[x] if isinstance(x, str) else x for x in operands]
            interpret(func, *given, values[result])
        return [values[tensor.name] for tensor in self.outputs]


class Toy(Target):
    name = "toy"
    title = "the toy"

    def __init__(self, options: Options):
        self.batch = options.hw.batch
        self.host = Cpu(options)
        self.products = Products()
        self.templates = (self.products,)
        self.machine_key = f"{SUMS} sums"

    def compile(self, part: Part, chooser: Chooser, dumps: Dumps) -> Compiled:
        graph, template = part.graph, self.products
        calls, layers = [], []
        for node in part.nodes:
            choice = chooser.choose(template, template.workload(graph, node), node.name)
            func, attributes = template.schedule(graph, node, choice.knobs)
            check_scopes(func, SCOPES)
            place_buffers(func, SCOPES)
            calls.append((func, [*node.inputs, *attributes], node.output))
            layers.append(layer_info(graph, node, None, choice))
        alone = part.as_graph()
        types = [
            tuple(TensorType(n, graph[n].shape, graph[n].dtype) for n in names)
            for names in (alone.inputs, alone.outputs)
        ]
        constants = {n: t.data for n, t in alone.tensors.items() if t.data is not None}
        size = sum(prod(graph[node.output].shape) for node in part.nodes)
        plan = MemoryPlan(len(part.nodes), size, size, size)
        return Compiled(Interpreted(types[0], types[1], calls, constants, plan), layers)
