"""Repeat a tensor's elements by one operator, however a model writes it."""

from __future__ import annotations

from dataclasses import replace

from ..ir import Graph, Node, Tensor
from ..ops.base import Op
from ..ops.elementwise import Map
from ..ops.movement import Concat, Pad, Reshape
from ..ops.quantisation import Dequantize


def wrap_repeats(graph: Graph) -> Graph:
    """A Concat of one tensor with itself, and an expansion to a larger shape, become
    ``Pad("wrap")`` in models with quantised tensors: it moves integers, as the keys of grouped
    queries, which several heads read. An expansion that adds only dimensions becomes a Reshape.
    """
    if not any(isinstance(node.op, Dequantize) for node in graph.nodes):
        return graph
    nodes: list[Node] = []
    tensors: list[Tensor] = []
    for node in graph.nodes:
        first, shape = graph[node.inputs[0]] if node.inputs else None, graph.result(node).shape
        if first is None or first.is_constant or 0 in shape or not _repeats(node):
            nodes.append(node)
            continue
        rank = len(shape) - len(first.shape)
        given, name = (1,) * rank + first.shape, node.inputs[0]
        if given == shape:  # once is no repetition
            nodes.append(replace(node, op=Reshape(shape), inputs=(name,)))
            continue
        if rank:
            tensors.append(replace(first, name=f"{node.output}.ranked", shape=given))
            nodes.append(Node(f"{node.name}.rank", Reshape(given), (name,), tensors[-1].name))
            name = tensors[-1].name
        grown = tuple(n - g for n, g in zip(shape, given, strict=True))
        op: Op = Pad("wrap", (*(0 for _ in shape), *grown))
        nodes.append(replace(node, op=op, inputs=(name,)))
    return graph.with_nodes(nodes, *tensors)


def _repeats(node: Node) -> bool:
    """Whether a node only repeats elements of its first operand."""
    match node.op:
        case Concat():
            return len({*node.inputs}) == 1 < len(node.inputs)
        case Map(args=(x, _), body=body):
            return body is x
    return False
