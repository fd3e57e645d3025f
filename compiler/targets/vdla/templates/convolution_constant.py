"""Convolutions with a fused addition of a constant for each channel. The results are rounded to
int8 before the addition, so the vector unit takes two passes over a tile's sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from ....choose.space import Knobs, Refusal
from ....graph.ir import Graph, Node
from ....graph.ops.fused_pairs import QConvAddChannels
from ....te.tensor import compute, placeholder
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ..cost.tiling import rows_through_tmp
from ..expressions import REQUANT_ENTRIES, Epilogue, requantized
from ..machine import Context
from .base import make_tiling
from .channel_bias import addition_constants
from .convolution import (
    FusedEpilogue,
    Products,
    ProductsWorkload,
    ThroughTmpWorkload,
    schedule_products,
)


@dataclass(frozen=True)
class ConstantProductsWorkload(ThroughTmpWorkload):
    """Products whose results are multiplied by ``mult``; constants are added, and ``last`` is the
    epilogue of the sums."""

    mult: int = field(compare=False)
    last: Epilogue = field(compare=False)


class ConstantProducts(Products):
    """Products with fused constants: the results stay in ``tmp``, some rows at a time."""

    name = "products and constants"
    ops = (QConvAddChannels,)

    def handles(self, graph: Graph, node: Node) -> bool:
        return True

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return "convolution on the tensor core, constants added to its results"

    def workload(self, graph: Graph, node: Node, context: Context) -> ConstantProductsWorkload:
        """The parameters of both passes share ``par``."""
        op = node.op
        assert isinstance(op, QConvAddChannels)
        budget = replace(context.budget, par=context.budget.par // 2)
        context = replace(context, budget=budget)
        plain = super().workload(graph, replace(node, op=op.first), context)
        own = {f.name: getattr(plain, f.name) for f in fields(plain)}
        return ConstantProductsWorkload(
            **own,
            mult=op.last.mult,
            last=Epilogue(op.last.zero_point),
        )

    def schedule(self, workload: ProductsWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: data, weight, param of the products, of the addition, out."""
        assert isinstance(workload, ConstantProductsWorkload)
        stages = self.stages(workload)
        w, acc, par = workload, stages.acc, stages.par
        first = requantized(acc, par, w.epilogue)
        rounded = compute(acc.shape, lambda *i: first[i].astype("int32"), "rounded")
        shape = (w.oc_blocks, REQUANT_ENTRIES, self.machine.params.block)
        constants = placeholder(shape, "int32", "constants")
        scaled = compute(acc.shape, lambda *i: rounded[i] * w.mult, "scaled")
        out = requantized(scaled, constants, w.last)
        tiling = make_tiling(knobs)
        rows = rows_through_tmp(tiling, w.shape)
        s = schedule_products(
            out, acc, stages.image, stages.weight, constants, (0, 1, 2), tiling, self.machine,
            FusedEpilogue(first, (rounded,), par, rows),
        )  # fmt: skip
        s[scaled].compute_inline()
        return lower(s, [stages.data, stages.weight, par, constants, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op = node.op
        assert isinstance(op, QConvAddChannels)
        found = super().constants(graph, replace(node, op=op.first))
        return {**found, "constants": addition_constants(op.last, self.machine)}
