"""Means of images, and products with a value for each channel, that look up the image's elements in
a table by themselves: squeeze-and-excitation behind SiLU or hard-swish."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ....choose.space import Workload
from ....graph.ir import Graph, Node
from ....graph.ops.fused_pairs import FusedPair, QTableMean, QTableMul
from ....te.expr import Expr
from ....te.tensor import Tensor, placeholder
from ..expressions import lookup_int32
from ..machine import Context
from .base import AcceleratorTemplate
from .channel_scale import ChannelProducts, ChannelProductWorkload
from .global_average import Means, MeanWorkload
from .lookup_table import table_words

W = TypeVar("W", bound=Workload)


class _FusedTable(AcceleratorTemplate[W]):
    """The last operator of a pair, whose image is what a table, the first one, has for another."""

    def workload(self, graph: Graph, node: Node, context: Context) -> W:
        """The table is in ``par``, too."""
        entries = {"par": self.machine.params.table_entries}
        beside = replace(context, budget=context.budget.without(entries))
        return super().workload(graph, _last(node), beside)

    def reader(self) -> tuple[Callable[[Expr], Expr], tuple[Tensor, ...]]:
        """What looks up an element, and the table (int32 [entries of par, block])."""
        params = self.machine.params
        table = placeholder((params.table_entries, params.block), "int32", "table")

        def read(element: Expr) -> Expr:
            return lookup_int32(
                element, lambda *word: table[word], params.block, params.vector_table
            )

        return read, (table,)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        assert isinstance(node.op, QTableMean | QTableMul)
        table = table_words(node.op.first, self.machine)
        return {**super().constants(graph, _last(node)), "table": table}


class TableMeans(_FusedTable[MeanWorkload], Means):
    """``requantize(sum of table[x])``."""

    name = "mean of looked up values"
    ops = (QTableMean,)

    def handles(self, graph: Graph, node: Node) -> bool:
        return True


class TableProducts(_FusedTable[ChannelProductWorkload], ChannelProducts):
    """``requantize((table[x] - zero) * (factor[c] - zero))``."""

    name = "channel product of looked up values"
    ops = (QTableMul,)


def _last(node: Node) -> Node:
    """The node as if the values had been looked up before."""
    assert isinstance(node.op, FusedPair)
    return replace(node, op=node.op.last)
