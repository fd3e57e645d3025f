"""Fold padding with the zero point into the convolution that reads it."""

from __future__ import annotations

from dataclasses import replace

from ..ir import Graph, Node
from ..ops.fixed_point import Pad
from ..ops.integer import QConv2d


def fold_pads(graph: Graph) -> Graph:
    """``QConv2d(Pad(x))`` becomes ``QConv2d(x)`` with larger pads; the Pad falls to ``dead_code``.

    Only height and width may be padded, and with the value that the convolution takes for zero.
    """
    producers = graph.producers()
    return graph.with_nodes([_folded(producers.get(n.inputs[0]), n) for n in graph.nodes])


def _folded(source: Node | None, node: Node) -> Node:
    match (source and source.op), node.op:
        case Pad((0, 0, top, left), (0, 0, bottom, right), value), QConv2d() as conv if (
            value == conv.x_zero_point
        ):
            assert source is not None
            more = (top, left, bottom, right)
            pads = tuple(a + b for a, b in zip(conv.pads, more, strict=True))
            inputs = (source.inputs[0], *node.inputs[1:])
            return replace(node, op=replace(conv, pads=pads), inputs=inputs)
    return node
