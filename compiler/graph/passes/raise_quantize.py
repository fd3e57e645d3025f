"""Quantise a result where it is computed, and let what moves elements move integers."""

from __future__ import annotations

from dataclasses import replace

from .. import fixed_ops, primitives
from ..ir import Graph, Node, Tensor
from ..ops import Identity, Quantize, Reshape
from .fuse_qdq import FUSIBLE

MOVES = (Reshape, Identity, fixed_ops.Transpose, primitives.Transpose)


def raise_quantize(graph: Graph) -> Graph:
    """``Quantize(Reshape(Dense(x)))`` becomes ``Reshape(Quantize(Dense(x)))``, so that the two can
    be one integer operator; so with any moves of one result that nothing else reads.
    """
    producers, readers = graph.producers(), graph.consumers()
    raised: dict[str, list[Node]] = {}
    gone: set[str] = set()
    tensors: list[Tensor] = []
    for node in graph.nodes:
        chain = _moves(graph, producers, readers, node)
        if chain:
            nodes, made = _raised(graph, node, chain)
            raised[node.output] = nodes
            tensors += made
            gone |= {link.output for link in chain}
    nodes = [
        new
        for node in graph.nodes
        if node.output not in gone
        for new in raised.get(node.output, [node])
    ]
    return graph.with_nodes(nodes, *tensors)


def _moves(
    graph: Graph, producers: dict[str, Node], readers: dict[str, list[Node]], node: Node
) -> list[Node]:
    """The moves between a float operator and its quantisation, last first; none if there is no such
    pair or something else reads what lies between."""
    chain: list[Node] = []
    if not isinstance(node.op, Quantize) or node.op.quant.axis is not None:
        return chain
    name = node.inputs[0]
    while len(readers[name]) == 1 and name not in graph.outputs:
        source = producers.get(name)
        if source is None or not isinstance(source.op, MOVES):
            return chain if source is not None and isinstance(source.op, FUSIBLE) else []
        chain.append(source)
        name = source.inputs[0]
    return []


def _raised(graph: Graph, node: Node, chain: list[Node]) -> tuple[list[Node], list[Tensor]]:
    """The quantisation, then the moves, the last of which makes the node's own result."""
    result = graph.result(node)
    source = chain[-1].inputs[0]
    first = replace(result, name=f"{node.output}.raised", shape=graph[source].shape)
    nodes, tensors = [replace(node, inputs=(source,), output=first.name)], [first]
    for link in reversed(chain):
        last = link is chain[0]
        name = node.output if last else f"{link.output}.moved"
        moved = replace(result, name=name, shape=graph.result(link).shape)
        nodes.append(replace(link, inputs=(tensors[-1].name,), output=name))
        tensors.append(moved)
    return nodes, tensors
