"""Remove nodes that change nothing."""

from __future__ import annotations

from dataclasses import replace

from ..ir import Graph, Node
from ..ops.movement import Identity, Reshape
from ..ops.quantisation import Dequantize, Quantize, Recentre


def drop_identities(graph: Graph) -> Graph:
    """Drop Identity, Reshape to the same shape, Reshape before Reshape, Quantize after a Dequantize
    of the same quantisation, and Recentre after Recentre.

    A node that computes a graph output keeps its name and stays, as an Identity.
    """
    producers = graph.producers()
    renamed: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        node = replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        before = producers.get(node.inputs[0])
        if isinstance(node.op, Reshape) and before and isinstance(before.op, Reshape):
            node = replace(node, inputs=before.inputs)
        producers[node.output] = node
        source = _same_value(graph, producers, node)
        if source is None:
            nodes.append(node)
        elif node.output in graph.outputs:
            nodes.append(replace(node, op=Identity(), inputs=(source,)))
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
        case Recentre():
            before = producers.get(first)
            if before and isinstance(before.op, Recentre):
                return before.inputs[0]
    return None
