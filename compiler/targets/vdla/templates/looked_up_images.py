"""Means of images, and products with a value for each channel, that look up the image's elements in
a table by themselves: squeeze-and-excitation behind SiLU or hard-swish."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ....graph.ir import Graph, Node
from ....graph.ops.joined import Pair, QTableMean, QTableMul
from ....te.expr import Expr
from ....te.tensor import Tensor, placeholder
from ..machine import Context, Machine
from ..parts import value_looked_up
from .channel_products import ChannelProducts, ChannelProductWorkload
from .look_ups import table_words
from .means import Means, MeanWorkload


class TableMeans(Means):
    """``requantize(sum of table[x])``."""

    name = "mean of looked up values"
    ops = (QTableMean,)

    def handles(self, graph: Graph, node: Node) -> bool:
        return True

    def workload(self, graph: Graph, node: Node, context: Context) -> MeanWorkload:
        return super().workload(graph, _last(node), _beside_table(context, self.machine))

    def reader(self) -> tuple[Callable[[Expr], Expr], tuple[Tensor, ...]]:
        return _reader(self.machine)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        return {**super().constants(graph, _last(node)), **_table(node, self.machine)}


class TableProducts(ChannelProducts):
    """``requantize((table[x] - zero) * (factor[c] - zero))``."""

    name = "channel product of looked up values"
    ops = (QTableMul,)

    def workload(self, graph: Graph, node: Node, context: Context) -> ChannelProductWorkload:
        return super().workload(graph, _last(node), _beside_table(context, self.machine))

    def reader(self) -> tuple[Callable[[Expr], Expr], tuple[Tensor, ...]]:
        return _reader(self.machine)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        return {**super().constants(graph, _last(node)), **_table(node, self.machine)}


def _last(node: Node) -> Node:
    """The node as if the values had been looked up before."""
    assert isinstance(node.op, Pair)
    return replace(node, op=node.op.last)


def _beside_table(context: Context, machine: Machine) -> Context:
    """The context without the entries of par that have the table."""
    return replace(context, budget=context.budget.without({"par": machine.params.table_entries}))


def _reader(machine: Machine) -> tuple[Callable[[Expr], Expr], tuple[Tensor, ...]]:
    """What looks up an element, and the table (int32 [entries of par, block])."""
    block, value_bytes = machine.params.block, machine.params.vector_table
    table = placeholder((machine.params.table_entries, block), "int32", "table")

    def read(element: Expr) -> Expr:
        return value_looked_up(element, lambda *word: table[word], block, value_bytes)

    return read, (table,)


def _table(node: Node, machine: Machine) -> dict[str, np.ndarray]:
    assert isinstance(node.op, QTableMean | QTableMul)
    return {"table": table_words(node.op.first, machine)}
