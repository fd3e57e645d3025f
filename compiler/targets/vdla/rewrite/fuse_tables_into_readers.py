"""Fuse a LUT into its consumers.

In squeeze-and-excitation, a mean and a product read the result of SiLU or hard-swish::

    t = QTable(x)                            m = QTableMean(x)
    m = QAvgPool(t)                    ->
    y = QMul(t, f)                           y = QTableMul(x, f)

The consumer's first pass over an element looks it up instead of copying it. So the LUT costs no
cycles, and its result does not go to DRAM and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....graph.ir import Graph, Node
from ....graph.ops.base import Op
from ....graph.ops.fused_pairs import QTableMean, QTableMul
from ....graph.ops.integer import QMul, QTable
from ....graph.ops.pooling import QAvgPool
from ....graph.passes.dead_code import dead_code
from ..machine import ACCELERATOR


def fuse_tables_into_readers(graph: Graph, sums_chunks: Callable[[int], bool]) -> Graph:
    """Fuse each table into its readers if all of them are on the accelerator and take the mean of
    channels or multiply the image. ``sums_chunks`` says whether the accelerator sums a number of
    pixels in chunks.
    """
    readers = graph.consumers()
    made: dict[str, Node] = {}
    for node in graph.nodes:
        if not isinstance(node.op, QTable) or node.target != ACCELERATOR:
            continue
        found = [_fuse(graph, node, node.op, n, sums_chunks) for n in readers[node.output]]
        if node.output in graph.outputs or not found or None in found:
            continue
        made |= {reader.output: reader for reader in found if reader is not None}
    return dead_code(graph.with_nodes(made.get(n.output, n) for n in graph.nodes))


def _fuse(
    graph: Graph, node: Node, table: QTable, reader: Node, sums_chunks: Callable[[int], bool]
) -> Node | None:
    """The reader with the table fused into it; None if they do not fuse."""
    image, *others = reader.inputs
    if reader.target != ACCELERATOR or image != node.output or node.output in others:
        return None
    shape = graph[image].shape
    match reader.op:
        case QAvgPool(kernel=kernel) as mean if kernel == shape[2:] and not any(mean.pads):
            if not sums_chunks(kernel[0] * kernel[1]):
                return None
            op: Op = QTableMean(table, mean)
        case QMul() as product if graph[others[0]].shape != shape:
            op = QTableMul(table, product)
        case _:
            return None
    return replace(reader, op=op, inputs=(*node.inputs, *others))
