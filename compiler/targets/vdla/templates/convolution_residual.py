"""Convolutions with a fused addition of a second image, on the tensor core and the vector unit: the
residual connections of a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from ....choose.space import Knobs, Refusal
from ....graph.ir import Graph, Node
from ....graph.ops.fused_pairs import QConvAdd
from ....te.tensor import compute, placeholder
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ....tir.passes.share_buffers import share_buffers
from ..cost.tiling import ConvShape, rows_through_tmp
from ..expressions import REQUANT_ENTRIES, Epilogue, requantized
from ..machine import Context
from .base import make_tiling, uniform_parameters
from .convolution import (
    FusedEpilogue,
    Products,
    ProductsWorkload,
    ThroughTmpWorkload,
    schedule_products,
)


@dataclass(frozen=True)
class ResidualWorkload(ThroughTmpWorkload):
    """Products whose results are multiplied by the first of ``factors``. An image times the second
    one is added, and ``last`` is the epilogue of the sums."""

    factors: tuple[int, int] = field(compare=False)
    last: Epilogue = field(compare=False)

    #: One for the rounded result of the convolution, and then for the other image times its factor;
    #: one for the rounded result times its factor.
    in_tmp = 2

    @property
    def shape(self) -> ConvShape:
        """The other image is loaded, too."""
        return replace(super().shape, adds_image=True)


class ResidualProducts(Products):
    """Products with a fused residual: the results stay in ``tmp``, some rows at a time."""

    name = "products and an image"
    ops = (QConvAdd,)

    def handles(self, graph: Graph, node: Node) -> bool:
        return True

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return "convolution on the tensor core, an image added to its results"

    def workload(self, graph: Graph, node: Node, context: Context) -> ResidualWorkload:
        """The parameters of the addition are the same for all channels."""
        op = node.op
        assert isinstance(op, QConvAdd)
        budget = replace(context.budget, par=context.budget.par - REQUANT_ENTRIES)
        conv = replace(node, op=op.first, inputs=node.inputs[:-1])
        plain = super().workload(graph, conv, replace(context, budget=budget))
        own = {f.name: getattr(plain, f.name) for f in fields(plain)}
        last = Epilogue(op.last.zero_point, op.last.lo, op.last.hi)
        return ResidualWorkload(
            **own,
            factors=(op.last.mult_a, op.last.mult_b),
            last=last,
        )

    def schedule(self, workload: ProductsWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: data, other, weight, param of the products, of the addition, out."""
        assert isinstance(workload, ResidualWorkload)
        w, stages = workload, self.stages(workload)
        acc, par, (factor, of_other) = stages.acc, stages.par, workload.factors
        first = requantized(acc, par, w.epilogue)
        rounded = compute(acc.shape, lambda *i: first[i].astype("int32"), "rounded")
        scaled = compute(acc.shape, lambda *i: rounded[i] * factor, "scaled")
        other = placeholder(acc.shape, "int8", "other")
        added = compute(acc.shape, lambda *i: other[i].astype("int32") * of_other, "added")
        total = compute(acc.shape, lambda *i: scaled[i] + added[i], "total")
        last = placeholder((1, REQUANT_ENTRIES, self.machine.params.block), "int32", "last")
        out = requantized(total, last, w.last, per_channel=False)
        tiling = make_tiling(knobs)
        rows = rows_through_tmp(tiling, w.shape)
        s = schedule_products(
            out, acc, stages.image, stages.weight, last, (0, 1, 2), tiling, self.machine,
            FusedEpilogue(first, (rounded, scaled, added), par, rows, True, (other, added)),
        )  # fmt: skip
        s[total].compute_inline()
        func = lower(s, [stages.data, other, stages.weight, par, last, out], name)
        return share_buffers(func, "tmp")

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op = node.op
        assert isinstance(op, QConvAdd)
        conv = replace(node, op=op.first, inputs=node.inputs[:-1])
        last = uniform_parameters(op.last.const, 1, op.last.shift, self.machine)
        return {**super().constants(graph, conv), "addition": last}
