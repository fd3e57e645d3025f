"""Let a convolution finish its result.

ONNX Runtime's quantiser leaves the bias of a matrix product as an addition of its own, between two
pairs, and functions such as SiLU are tables of the rounded result::

    h = QConv2d(x, w, b);  y = QAddChannels(h)      ->      y = QConvAddChannels(x, w, b)
    h = QConv2d(x, w, b);  y = QTable(h)            ->      y = QConvTable(x, w, b)

The result of the product is rounded to int8 as before, but it does not go to DRAM.
"""

from __future__ import annotations

from dataclasses import replace

from ....graph.ir import Graph, Node
from ....graph.ops.activated import QConvTable
from ....graph.ops.base import Op
from ....graph.ops.convolution import QConv2d
from ....graph.ops.integer import QTable
from ....graph.ops.places import QAddChannels, QConvAddChannels
from ..machine import ACCELERATOR


def join_results(graph: Graph, has_table: bool) -> Graph:
    """Join convolutions in one group, whose results nothing else reads, with their only reader.
    Tables are joined where the vector unit has one (``has_table``).
    """
    producers, readers = graph.producers(), graph.consumers()
    joined, gone = {}, set()
    for node in graph.nodes:
        source = producers.get(node.inputs[0]) if node.inputs else None
        if node.target != ACCELERATOR or source is None or source.target != ACCELERATOR:
            continue
        alone = len(readers[source.output]) == 1 and source.output not in graph.outputs
        op = _joined(source, node, has_table) if alone else None
        if op is not None:
            joined[node.output] = replace(source, op=op, output=node.output)
            gone.add(source.output)
    nodes = [joined.get(n.output, n) for n in graph.nodes if n.output not in gone]
    return graph.with_nodes(nodes)


def _joined(source: Node, node: Node, has_table: bool) -> Op | None:
    """One operator for a convolution and its reader; None where there is none."""
    match source.op, node.op:
        case QConv2d(groups=1) as conv, QAddChannels() as add:
            return QConvAddChannels(conv, add)
        case QConv2d(groups=1) as conv, QTable() as table if has_table:
            return QConvTable(conv, table)
    return None
