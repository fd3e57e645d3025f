"""Let a convolution finish its result.

ONNX Runtime's quantiser leaves the bias of a matrix product as an addition of its own, between two
pairs, functions such as SiLU are tables of the rounded result, and a residual connection adds
another image to it::

    h = QConv2d(x, w, b);  y = QAddChannels(h)      ->      y = QConvAddChannels(x, w, b)
    h = QConv2d(x, w, b);  y = QTable(h)            ->      y = QConvTable(x, w, b)
    h = QConv2d(x, w, b);  y = QAdd(h, z)           ->      y = QConvAdd(x, w, b, z)

The result of the product is rounded to int8 as before, but it does not go to DRAM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....graph.ir import Graph, Node
from ....graph.ops.base import Op
from ....graph.ops.convolution import QConv2d
from ....graph.ops.integer import QAdd, QTable
from ....graph.ops.joined import QConvAdd, QConvAddChannels, QConvTable
from ....graph.ops.places import QAddChannels
from ..machine import ACCELERATOR

#: Whether a convolution (the first node) shall do the addition (the second one).
Adds = Callable[[Node, Node], bool]


def join_results(graph: Graph, has_table: bool, adds_image: Adds) -> Graph:
    """Join convolutions in one group, whose results nothing else reads, with their only reader.
    Tables are joined where the vector unit has one (``has_table``). Of convolutions with kernels of
    one place, those add an image for which ``adds_image`` says so. If both operands of an addition
    are results of such, the one that is computed later is asked first.
    """
    producers, readers = graph.producers(), graph.consumers()
    places = {node.output: place for place, node in enumerate(graph.nodes)}
    joined: dict[str, Node] = {}
    gone: set[str] = set()
    for node in graph.nodes:
        if node.target != ACCELERATOR:
            continue
        sources = [
            producers[name] for name in node.inputs
            if name in producers and len(readers[name]) == 1 and name not in graph.outputs
            and producers[name].target == ACCELERATOR
        ]  # fmt: skip
        for source in sorted(sources, key=lambda found: -places[found.output]):
            made = _joined(graph, source, node, has_table, adds_image)
            if made is not None:
                joined[node.output] = made
                gone.add(source.output)
                break
    nodes = [joined.get(n.output, n) for n in graph.nodes if n.output not in gone]
    return graph.with_nodes(nodes)


def _joined(
    graph: Graph,
    source: Node,
    node: Node,
    has_table: bool,
    adds_image: Adds,
) -> Node | None:
    """One node for a convolution and its reader; None where there is none."""
    inputs = source.inputs
    match source.op, node.op:
        case QConv2d(groups=1) as conv, QAddChannels() as add:
            op: Op = QConvAddChannels(conv, add)
        case QConv2d(groups=1) as conv, QTable() as table if has_table:
            op = QConvTable(conv, table)
        case QConv2d(groups=1) as conv, QAdd(mult_a=a, mult_b=b) as add if a and b:
            is_product = graph[inputs[1]].shape[2:] == (1, 1)
            if not is_product or node.inputs[0] == node.inputs[1] or not adds_image(source, node):
                return None
            first, other = node.inputs
            if first != source.output:
                first, other, add = other, first, replace(add, mult_a=b, mult_b=a)
            op, inputs = QConvAdd(conv, add), (*inputs, other)
        case _:
            return None
    return replace(source, op=op, inputs=inputs, output=node.output)
