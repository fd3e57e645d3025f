"""Replace element-wise float operators on one int8 tensor by a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..arithmetic.requant import INT8_MAX, INT8_MIN
from ..ir import Graph, Node
from ..ops.elementwise import Add, Clip, Map, Relu
from ..ops.integer import QTable
from ..ops.quantisation import Dequantize, Quant, Quantize

#: Operators that compute each element from those at the same index.
ELEMENTWISE = (Map, Relu, Clip, Add)
EVERY_INT8 = np.arange(INT8_MIN, INT8_MAX + 1, dtype=np.int8)


def fuse_tables(graph: Graph) -> Graph:
    """``Quantize(f(Dequantize(x)))`` becomes ``QTable(x)``, where f consists of element-wise
    operators on ``x`` and constant numbers: sigmoid, ``x * sigmoid(x)``, another scale.

    The table holds the results of these operators themselves for the 256 values.
    """
    producers = graph.producers()
    nodes = []
    for node in graph.nodes:
        if isinstance(node.op, Quantize) and is_int8(node.op.quant):
            cone = _Cone(graph, producers, graph.result(node).shape)
            if cone.add(node.inputs[0]) and cone.source:
                name = (cone.nodes or [node])[-1].name
                op = QTable(cone.table(node))
                node = replace(node, name=name, op=op, inputs=(cone.source,), reason="")
        nodes.append(node)
    return graph.with_nodes(nodes)


def is_step(node: Node) -> bool:
    """Whether a node computes each element from those at the same index."""
    return isinstance(node.op, ELEMENTWISE)


def is_int8(quant: Quant) -> bool:
    """Whether all elements are int8 with one scale."""
    return quant.dtype == "int8" and quant.axis is None


def known_value(graph: Graph, producers: Mapping[str, Node], name: str) -> np.ndarray | None:
    """The value of a tensor that is a constant, or is dequantised from one."""
    node = producers.get(name)
    if node is None:
        return graph[name].data
    stored = graph[node.inputs[0]].data if isinstance(node.op, Dequantize) else None
    return None if stored is None else node.op.evaluate(stored)


@dataclass
class _Cone:
    """The element-wise nodes that compute a tensor from one int8 tensor, in order."""

    graph: Graph
    producers: Mapping[str, Node]
    shape: tuple[int, ...]
    source: str = ""
    nodes: list[Node] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def add(self, name: str) -> bool:
        """Add the nodes that compute a tensor; False if it is no function of one int8 tensor."""
        tensor, node = self.graph[name], self.producers.get(name)
        if name in self.seen or (tensor.data is not None and tensor.data.size == 1):
            return True
        if node is None or tensor.shape != self.shape:
            return False
        self.seen.add(name)
        if isinstance(node.op, Dequantize):
            same = self.source in ("", node.inputs[0])
            self.source = node.inputs[0]
            if not (same and is_int8(node.op.quant)):
                return False
        elif not (is_step(node) and all(self.add(i) for i in node.inputs)):
            return False
        self.nodes.append(node)
        return True

    def table(self, quantize: Node) -> np.ndarray:
        """The result for every int8, in order."""
        values = {self.source: EVERY_INT8}
        for node in (*self.nodes, quantize):
            operands = [values[i] if i in values else self.number(i) for i in node.inputs]
            values[node.output] = node.op.evaluate(*operands)
        return values[quantize.output]

    def number(self, name: str) -> np.ndarray:
        data = self.graph[name].data
        assert data is not None
        return data.reshape(())
