"""Let an expanded image stay on chip.

In an inverted residual block, a convolution of one place makes many channels of few, perhaps with a
function such as SiLU behind it, and a depthwise convolution filters them::

    h = QConv2d(x, w, b);  y = QConv2d(h, v, c)      ->      y = QConvWindow(x, w, b, v, c)

The result of the first one is rounded to int8 as before, but it does not go to DRAM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....graph.ir import Graph, Node
from ....graph.ops.convolution import QConv2d
from ....graph.ops.joined import QConvTable, QConvWindow
from ..machine import ACCELERATOR


def join_windows(graph: Graph, joins: Callable[[Node, Node], bool]) -> Graph:
    """Join each convolution with the depthwise one that is its only reader, where ``joins`` says so
    of its node and the node of both."""
    joined: dict[str, Node] = {}
    gone: set[str] = set()
    for source, node in graph.links():
        if not source.target == node.target == ACCELERATOR:
            continue
        match source.op, node.op:
            case (QConv2d() | QConvTable()) as first, QConv2d() as last if last.groups > 1:
                inputs = *source.inputs, *node.inputs[1:]
                made = replace(node, op=QConvWindow(first, last), inputs=inputs)
                if joins(source, made):
                    joined[node.output] = made
                    gone.add(source.output)
    nodes = [joined.get(n.output, n) for n in graph.nodes if n.output not in gone]
    return graph.with_nodes(nodes)
