"""Fold padding with the zero point into the convolution that reads it."""

from __future__ import annotations

from dataclasses import replace

from ..ir import Graph, Node
from ..ops.convolution import QConv2d
from ..ops.movement import Pad


def fold_pads(graph: Graph) -> Graph:
    """``QConv2d(Pad(x))`` becomes ``QConv2d(x)`` with larger pads; the Pad falls to ``dead_code``.

    Only height and width may be padded, and only with the convolution's zero point.
    """
    producers = graph.producers()
    return graph.with_nodes([_folded(graph, producers.get(n.inputs[0]), n) for n in graph.nodes])


def _folded(graph: Graph, source: Node | None, node: Node) -> Node:
    match (source and source.op), node.op:
        case Pad("constant", (0, 0, top, left, 0, 0, bottom, right)), QConv2d() as conv:
            assert source is not None
            value = graph[source.inputs[1]].data
            if value is None or value != conv.x_zero_point or min(top, left, bottom, right) < 0:
                return node
            more = (top, left, bottom, right)
            pads = tuple(a + b for a, b in zip(conv.pads, more, strict=True))
            inputs = (source.inputs[0], *node.inputs[1:])
            return replace(node, op=replace(conv, pads=pads), inputs=inputs)
    return node
