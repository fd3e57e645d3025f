"""Convolutions with a fused LUT, on the tensor core and the vector unit: SiLU, hard-swish, GELU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ....choose.space import Knobs, Refusal
from ....graph.ir import Graph, Node
from ....graph.ops.fused_pairs import QConvTable
from ....te.tensor import compute, placeholder
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ..cost.tiling import rows_through_tmp
from ..expressions import lookup_int8, requantized
from ..machine import Context
from .base import make_tiling
from .convolution import (
    FusedEpilogue,
    Products,
    ProductsWorkload,
    ThroughTmpWorkload,
    schedule_products,
)
from .lookup_table import table_words


class ActivatedProducts(Products):
    """Products with a fused LUT: the results stay in ``tmp``, some rows at a time."""

    name = "products and a table"
    ops = (QConvTable,)

    def handles(self, graph: Graph, node: Node) -> bool:
        return True

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return "convolution on the tensor core, a table of its results"

    def workload(self, graph: Graph, node: Node, context: Context) -> ThroughTmpWorkload:
        """The table is in ``par``, too."""
        op = node.op
        assert isinstance(op, QConvTable)
        room = context.budget.par - self.machine.params.table_entries
        context = replace(context, budget=replace(context.budget, par=room))
        plain = super().workload(graph, replace(node, op=op.first), context)
        return ThroughTmpWorkload(**vars(plain))

    def schedule(self, workload: ProductsWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: data, weight, param, the table (int32 [entries of par, block]), out."""
        params, stages = self.machine.params, self.stages(workload)
        first = requantized(stages.acc, stages.par, workload.epilogue)
        shape = stages.acc.shape
        rounded = compute(shape, lambda *i: first[i].astype("int32"), "rounded")
        table = placeholder((params.table_entries, params.block), "int32", "table")
        out = compute(
            shape,
            lambda *i: lookup_int8(
                rounded[i], lambda *word: table[word], params.block, params.vector_table
            ),
            "out",
        )
        tiling = make_tiling(knobs)
        rows = rows_through_tmp(tiling, workload.shape)
        s = schedule_products(
            out, stages.acc, stages.image, stages.weight, table, (0, 1, 2), tiling, self.machine,
            FusedEpilogue(first, (rounded,), stages.par, rows, once=True),
        )  # fmt: skip
        return lower(s, [stages.data, stages.weight, stages.par, table, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op = node.op
        assert isinstance(op, QConvTable)
        found = super().constants(graph, replace(node, op=op.first))
        return {**found, "table": table_words(op.last, self.machine)}
