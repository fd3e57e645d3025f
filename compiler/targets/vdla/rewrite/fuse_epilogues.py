"""Fuse epilogues into convolutions.

ONNX Runtime's quantiser leaves the bias of a matrix product as a separate addition between two QDQ
pairs. Functions such as SiLU are tables of the rounded result. A residual connection adds a second
image to it::

    h = QConv2d(x, w, b);  y = QAddChannels(h)      ->      y = QConvAddChannels(x, w, b)
    h = QConv2d(x, w, b);  y = QTable(h)            ->      y = QConvTable(x, w, b)
    h = QConv2d(x, w, b);  y = QAdd(h, z)           ->      y = QConvAdd(x, w, b, z)

The result of the convolution is still rounded to int8, but it does not go to DRAM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....graph.ir import Graph, Node
from ....graph.ops.base import Op
from ....graph.ops.convolution import QConv2d
from ....graph.ops.fused_pairs import QConvAdd, QConvAddChannels, QConvTable
from ....graph.ops.group_matmul import QAddChannels
from ....graph.ops.integer import QAdd, QTable
from ..machine import ACCELERATOR

#: Whether to fuse an addition (the second node) into a convolution (the first one).
AddsImage = Callable[[Node, Node], bool]


def fuse_epilogues(graph: Graph, adds_image: AddsImage) -> Graph:
    """Fuse each ungrouped convolution that has a single reader with this reader.

    Tables on the accelerator are fused, additions of images into 1x1
    convolutions where ``adds_image`` says so. If convolutions compute both operands of an addition,
    ``adds_image`` is asked for the later one first.
    """
    producers, readers = graph.producers(), graph.consumers()
    order = {node.output: index for index, node in enumerate(graph.nodes)}
    fused: dict[str, Node] = {}
    gone: set[str] = set()
    for node in graph.nodes:
        if node.target != ACCELERATOR:
            continue
        sources = [
            producers[name] for name in node.inputs
            if name in producers and len(readers[name]) == 1 and name not in graph.outputs
            and producers[name].target == ACCELERATOR
        ]  # fmt: skip
        for source in sorted(sources, key=lambda found: -order[found.output]):
            made = _fuse(graph, source, node, adds_image)
            if made is not None:
                fused[node.output] = made
                gone.add(source.output)
                break
    nodes = [fused.get(n.output, n) for n in graph.nodes if n.output not in gone]
    return graph.with_nodes(nodes)


def _fuse(
    graph: Graph,
    source: Node,
    node: Node,
    adds_image: AddsImage,
) -> Node | None:
    """The node that fuses a convolution with its reader; None if they do not fuse."""
    inputs = source.inputs
    match source.op, node.op:
        case QConv2d(groups=1) as conv, QAddChannels() as add:
            op: Op = QConvAddChannels(conv, add)
        case QConv2d(groups=1) as conv, QTable() as table:
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
