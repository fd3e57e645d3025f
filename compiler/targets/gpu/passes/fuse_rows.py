"""Softmax, layer normalisation and the like become one operator, whose kernel computes whole rows.

::

    m = Reduce max(x);  e = Map exp(x - m)
    s = Reduce +(e)                              ->    y = Reduce+Map+Reduce+Map(x)
    y = Map e / s
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....graph.ir import Graph, Node
from ....graph.ops.fused import FusedRows
from ....graph.ops.reduction import Reduce
from ...common.fuse_elementwise import fuse_groups, is_elementwise, one_node

#: Rows shorter than this stay apart where there are many: threads of their own suit them better.
SHORT_ROW, MANY_ROWS = 32, 1 << 14


def fuse_rows(graph: Graph) -> Graph:
    """Fuse reductions along the last axis with the element-wise operators before and behind them,
    where no other operator reads the results between them."""

    def is_reduction(node: Node) -> bool:
        op, rank = node.op, len(graph[node.inputs[0]].shape)
        return isinstance(op, Reduce) and op.keepdims and op.axes == (rank - 1,)

    def fits(node: Node, readers: Sequence[Node], end: str) -> bool:
        row = graph[end].shape
        if len(row) < 2 or 0 in row or (row[-1] < SHORT_ROW and math.prod(row[:-1]) >= MANY_ROWS):
            return False
        reads_row = not is_reduction(node) or graph[node.inputs[0]].shape == row
        known = all(is_elementwise(n) or is_reduction(n) for n in (node, *readers))
        return known and reads_row and graph[node.output].shape in (row, (*row[:-1], 1))

    def make(members: Sequence[Node]) -> Sequence[Node]:
        is_whole = len(members) > 1 and any(map(is_reduction, members))
        return [one_node(members, FusedRows)] if is_whole else members

    return fuse_groups(graph, fits, make)
