"""Quantise a result where it is computed, so that operators that move elements move integers."""

from __future__ import annotations

from dataclasses import replace

from ..ir import Graph, Node, Tensor
from ..ops.elementwise import Clip, Relu
from ..ops.movement import Identity, Reshape, Transpose
from ..ops.quantisation import Quantize
from .fuse_qdq import FUSIBLE, is_product

MOVES = (Reshape, Identity, Transpose)
ACTIVATIONS = (Relu, Clip)


def raise_quantize(graph: Graph) -> Graph:
    """``Quantize(Reshape(Dense(x)))`` becomes ``Reshape(Quantize(Dense(x)))``, so that Dense and
    Quantize can become one integer operator. There may be several operators that move elements, and
    activations among them, as long as nothing else reads their operands.
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
    """The operators that move elements, and activations, between a float operator and its
    quantisation, last first; none if nothing moves or something else reads a tensor between."""
    chain: list[Node] = []
    if not isinstance(node.op, Quantize) or node.op.quant.axis is not None:
        return chain
    name = node.inputs[0]
    while len(readers[name]) == 1 and name not in graph.outputs:
        source = producers.get(name)
        if source is None or not isinstance(source.op, MOVES + ACTIVATIONS):
            found = source is not None and (isinstance(source.op, FUSIBLE) or is_product(source))
            return chain if found and any(isinstance(n.op, MOVES) for n in chain) else []
        chain.append(source)
        name = source.inputs[0]
    return []


def _raised(graph: Graph, node: Node, chain: list[Node]) -> tuple[list[Node], list[Tensor]]:
    """Activations, the quantisation, then the moves; the last one makes the node's result."""
    result = graph.result(node)
    first = graph[chain[-1].inputs[0]]
    nodes: list[Node] = []
    tensors: list[Tensor] = []

    def append(link: Node, like: Tensor, name: str, shape: tuple[int, ...]) -> None:
        source = tensors[-1].name if tensors else first.name
        nodes.append(replace(link, inputs=(source,), output=name))
        tensors.append(replace(like, name=name, shape=shape))

    for link in reversed(chain):
        if isinstance(link.op, ACTIVATIONS):
            append(link, graph.result(link), f"{link.output}.raised", first.shape)
    append(node, result, f"{node.output}.raised", first.shape)
    moves = [link for link in reversed(chain) if isinstance(link.op, MOVES)]
    for link in moves:
        name = node.output if link is moves[-1] else f"{link.output}.moved"
        append(link, result, name, graph.result(link).shape)
    return nodes, tensors
