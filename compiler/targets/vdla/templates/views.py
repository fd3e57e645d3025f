"""Operators that move no data: operands lie where the result does."""

from __future__ import annotations

from math import prod

from ....choose.space import Refusal, Space, Workload
from ....choose.template import Template
from ....graph.ir import Graph, Node
from ....graph.ops.layout import BlockReshape
from ....graph.ops.movement import Concat, Reshape

NO_MOVE = "no data moves"


class InPlace(Template[Workload]):
    """A template whose operators need no instruction: their operands lie where the result does."""

    def space(self, workload: Workload) -> Space:
        return Space({})


class Reshaped(InPlace):
    """A reshape whose elements stay in their order in the blocked layout."""

    name = "renamed"
    ops = (Reshape, BlockReshape)

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        if isinstance(node.op, BlockReshape):
            return NO_MOVE
        source, shape = graph[node.inputs[0]], graph.result(node).shape
        # An image's positions stay in their order, in as many rows as there are.
        is_image = len(source.shape) == 4 and source.shape[:2] == shape[:2]
        stays = len(shape) == 4 or (len(shape) == 2 and prod(source.shape[2:]) == 1)
        if source.dtype == "int8" and is_image and stays:
            return NO_MOVE
        return Refusal("the elements change places in the blocked layout")


class Concatenated(InPlace):
    """A concatenation of channels: its operands lie in the result from the start."""

    name = "joined"
    ops = (Concat,)

    def handles(self, graph: Graph, node: Node) -> bool:
        is_int8 = graph.result(node).dtype == "int8"
        return isinstance(node.op, Concat) and node.op.axis == 1 and is_int8

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return NO_MOVE
