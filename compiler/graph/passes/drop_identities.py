"""Remove nodes that change nothing."""

from __future__ import annotations

from dataclasses import replace

from ..ir import Graph, Node
from ..ops import Dequantize, Identity, Quantize, Reshape


def drop_identities(graph: Graph) -> Graph:
    """Drop Identity, Reshape to the same shape, and Quantize after a Dequantize of its meaning.

    A node that computes a graph output keeps its name and stays.
    """
    producers = graph.producers()
    renamed: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        node = replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        source = _same_value(graph, producers, node)
        if source is None or node.output in graph.outputs:
            nodes.append(node)
        else:
            renamed[node.output] = source
    return graph.with_nodes(nodes)


def _same_value(graph: Graph, producers: dict[str, Node], node: Node) -> str | None:
    """The tensor that already holds the node's result, if there is one."""
    first = node.inputs[0]
    match node.op:
        case Identity():
            return first
        case Reshape(shape) if shape == graph[first].shape:
            return first
        case Quantize(quant):
            before = producers.get(first)
            if before and isinstance(before.op, Dequantize) and before.op.quant.same(quant):
                return before.inputs[0]
    return None
