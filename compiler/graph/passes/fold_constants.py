"""Compute nodes whose inputs are all constant."""

from __future__ import annotations

import math
from dataclasses import replace

from ..ir import Graph, Node, Tensor
from ..ops.quantisation import Dequantize, Quantize

#: A result of more elements, which is also larger than its operands, is not folded: a small file
#: would take much memory.
MAX_FOLDED_ELEMENTS = 2**24


def fold_constants(graph: Graph) -> Graph:
    """Replace nodes whose inputs are all constant by constants. Dequantize stays, because integer
    operators need its integers, and so do nodes whose results are both large and larger than their
    operands.
    """
    known = {name: t.data for name, t in graph.tensors.items() if t.data is not None}
    constant: list[Node] = []
    nodes: list[Node] = []
    ready = set(known)
    for node in graph.nodes:
        is_constant = (
            ready.issuperset(node.inputs)
            and not isinstance(node.op, Dequantize)
            and not _inflates(graph, node)
        )
        (constant if is_constant else nodes).append(node)
        if is_constant:
            ready.add(node.output)
    read = {name for node in nodes for name in node.inputs} | {*graph.outputs}
    wanted = [node.output for node in constant if node.output in read]
    values = dict(known)
    for node in constant:
        values[node.output] = node.op.evaluate(*(values[name] for name in node.inputs))
    quants = {n.output: n.op.quant for n in constant if isinstance(n.op, Quantize)}
    made = [Tensor.constant(name, values[name], quants.get(name)) for name in wanted]
    gone = {node.output for node in constant} - {*wanted}
    tensors = {name: t for name, t in graph.tensors.items() if name not in gone}
    return replace(graph, tensors=tensors).with_nodes(nodes, *made)


def _inflates(graph: Graph, node: Node) -> bool:
    size = math.prod(graph.result(node).shape)
    largest = max((math.prod(t.shape) for t in graph.operands(node)), default=0)
    return size > MAX_FOLDED_ELEMENTS and size > largest
