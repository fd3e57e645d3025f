"""Let readers of a table look up values by themselves.

In squeeze-and-excitation, a mean and a product read what SiLU or hard-swish makes::

    t = QTable(x)                            m = QTableMean(x)
    m = QAvgPool(t)                    ->
    y = QMul(t, f)                           y = QTableMul(x, f)

Their first pass over an element looks it up instead of copying it, so that the table costs nothing,
and its result does not go to DRAM and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....graph.ir import Graph, Node
from ....graph.ops.base import Op
from ....graph.ops.integer import QMul, QTable
from ....graph.ops.joined import QTableMean, QTableMul
from ....graph.ops.pooling import QAvgPool
from ..machine import ACCELERATOR


def look_up_again(graph: Graph, sums_parts: Callable[[int], bool]) -> Graph:
    """Join each table whose readers are all on the accelerator, means of channels or the image of a
    product, with them. ``sums_parts`` says whether the accelerator sums so many places in parts.
    """
    readers = graph.consumers()
    made: dict[str, Node] = {}
    gone: set[str] = set()
    for node in graph.nodes:
        if not isinstance(node.op, QTable) or node.target != ACCELERATOR:
            continue
        found = [_reading(graph, node, node.op, n, sums_parts) for n in readers[node.output]]
        if node.output in graph.outputs or not found or None in found:
            continue
        gone.add(node.output)
        made |= {reader.output: reader for reader in found if reader is not None}
    nodes = [made.get(n.output, n) for n in graph.nodes if n.output not in gone]
    return graph.with_nodes(nodes)


def _reading(
    graph: Graph, node: Node, table: QTable, reader: Node, sums_parts: Callable[[int], bool]
) -> Node | None:
    """A reader that looks up values; None where there is none."""
    image, *others = reader.inputs
    if reader.target != ACCELERATOR or image != node.output or node.output in others:
        return None
    shape = graph[image].shape
    match reader.op:
        case QAvgPool(kernel=kernel) as mean if kernel == shape[2:] and not any(mean.pads):
            if not sums_parts(kernel[0] * kernel[1]):
                return None
            op: Op = QTableMean(table, mean)
        case QMul() as product:
            op = QTableMul(table, product)
        case _:
            return None
    return replace(reader, op=op, inputs=(*node.inputs, *others))
