"""Fuse the expansion of an inverted residual with its depthwise convolution.

A 1x1 convolution, perhaps with a LUT such as SiLU, expands few channels to many, and a depthwise
convolution filters them::

    h = QConv2d(x, w, b);  y = QConv2d(h, v, c)      ->      y = QConvWindow(x, w, b, v, c)

The expanded image is still rounded to int8, but it does not go to DRAM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....graph.ir import Graph, Node
from ....graph.ops.convolution import QConv2d
from ....graph.ops.fused_pairs import QConvTable, QConvWindow
from ....graph.passes.dead_code import dead_code
from ..machine import ACCELERATOR


def fuse_inverted_residuals(graph: Graph, pays: Callable[[Node, Node], bool]) -> Graph:
    """Fuse each convolution with the depthwise one that is its only reader, if ``pays`` accepts the
    convolution's node and the fused node."""
    fused: dict[str, Node] = {}
    for source, node in graph.links():
        if not source.target == node.target == ACCELERATOR:
            continue
        match source.op, node.op:
            case (QConv2d() | QConvTable()) as first, QConv2d() as last if last.groups > 1:
                inputs = *source.inputs, *node.inputs[1:]
                made = replace(node, op=QConvWindow(first, last), inputs=inputs)
                if pays(source, made):
                    fused[node.output] = made
    return dead_code(graph.with_nodes(fused.get(n.output, n) for n in graph.nodes))
