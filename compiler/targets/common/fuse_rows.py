"""Softmax, layer normalisation and the like become one operator, which computes whole rows.

::

    m = Reduce max(x);  e = Map exp(x - m)
    s = Reduce +(e)                              ->    y = Reduce+Map+Reduce+Map(x)
    y = Map e / s
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...graph.ir import Graph, Node, Tensor
from ...graph.ops.fused import FusedRows
from ...graph.ops.reduction import Reduce
from .fuse_elementwise import fuse_groups, is_elementwise, one_node


def fuse_rows(graph: Graph, suits: Callable[[Tensor], bool]) -> Graph:
    """Fuse reductions along the last axis with the element-wise operators before and behind them,
    where no other operator reads the results between them, and where a target ``suits`` rows as
    those of the result."""

    def is_reduction(node: Node) -> bool:
        op, rank = node.op, len(graph[node.inputs[0]].shape)
        return isinstance(op, Reduce) and op.keepdims and op.axes == (rank - 1,)

    def fits(node: Node, readers: Sequence[Node], end: str) -> bool:
        row = graph[end].shape
        if len(row) < 2 or 0 in row or not suits(graph[end]):
            return False
        reads_row = not is_reduction(node) or graph[node.inputs[0]].shape == row
        known = all(is_elementwise(n) or is_reduction(n) for n in (node, *readers))
        return known and reads_row and graph[node.output].shape in (row, (*row[:-1], 1))

    def make(members: Sequence[Node]) -> Sequence[Node]:
        is_whole = len(members) > 1 and any(map(is_reduction, members))
        return [one_node(members, FusedRows)] if is_whole else members

    return fuse_groups(graph, fits, make)
