"""Convolutions with a fused epilogue. The results are rounded to int8 and stay in ``tmp``, some
rows at a time, where the vector unit reads them again. Each epilogue is a row of
:data:`EPILOGUES`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .....isa.params import HwParams
from ....choose.space import Knobs, Refusal
from ....graph.ir import Graph, Node
from ....graph.ops.fused_pairs import FusedPair, QConvAdd, QConvAddChannels, QConvTable
from ....te.tensor import Tensor, compute, placeholder
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ....tir.passes.share_buffers import share_buffers
from ..cost.tiling import ProductShape, make_tiling, rows_through_tmp
from ..expressions import REQUANT_ENTRIES, Epilogue, LookupTable, requantized
from ..machine import Context, Machine
from .base import uniform_parameters
from .channels import addition_constants
from .convolution import FusedEpilogue, Products, ProductsWorkload, schedule_products
from .lookup_table import table_words


@dataclass(frozen=True)
class FusedKind:
    """One epilogue.

    Attributes
    ----------
    says : what it does with the results, in words
    label : the name of its constants
    numbers : what the loop program depends on, of an operator's second part
    par : the entries of ``par`` for the products, of those that the operator may use
    express : the expressions, from the rounded results, ``numbers`` and the blocks of channels
    constants : the constants in ``par`` of an operator's second part
    """

    says: str
    label: str
    numbers: Callable[[Any], tuple[Hashable, ...]]
    par: Callable[[int, HwParams], int]
    express: Callable[[Tensor, Any, int, Machine], FusedEpilogue]
    constants: Callable[[Any, Machine], np.ndarray]


def _add_constants(rounded: Tensor, numbers: Any, blocks: int, machine: Machine) -> FusedEpilogue:
    mult, last = numbers
    par = placeholder((blocks, REQUANT_ENTRIES, machine.params.block), "int32", "constants")
    scaled = compute(rounded.shape, lambda *i: rounded[i] * mult, "scaled")
    out = requantized(scaled, par, last)
    return FusedEpilogue(out, par, (rounded,), inlined=scaled, once=False)


def look_up(rounded: Tensor, numbers: Any, blocks: int, machine: Machine) -> FusedEpilogue:
    """A table of rounded results (int32, in ``tmp``), for every channel the same."""
    table = LookupTable(machine.params)
    out = compute(rounded.shape, lambda *i: table.int8(rounded[i]), "out")
    return FusedEpilogue(out, table.words, (rounded,))


def _add_image(rounded: Tensor, numbers: Any, blocks: int, machine: Machine) -> FusedEpilogue:
    """The other image times its factor takes the place of the rounded results in ``tmp``."""
    (factor, of_other), last = numbers
    scaled = compute(rounded.shape, lambda *i: rounded[i] * factor, "scaled")
    other = placeholder(rounded.shape, "int8", "other")
    added = compute(rounded.shape, lambda *i: other[i].astype("int32") * of_other, "added")
    total = compute(rounded.shape, lambda *i: scaled[i] + added[i], "total")
    par = placeholder((1, REQUANT_ENTRIES, machine.params.block), "int32", "last")
    out = requantized(total, par, last, per_channel=False)
    return FusedEpilogue(out, par, (rounded, scaled, added), total, other)


EPILOGUES: dict[type[FusedPair], FusedKind] = {
    QConvAddChannels: FusedKind(
        "constants added to its results", "constants",
        lambda last: (last.mult, Epilogue(last.zero_point)),
        lambda par, params: par // 2,
        _add_constants, addition_constants,
    ),
    QConvTable: FusedKind(
        "a table of its results", "table",
        lambda last: (),
        lambda par, params: par - params.table_entries,
        look_up, table_words,
    ),
    QConvAdd: FusedKind(
        "an image added to its results", "addition",
        lambda last: (last.factors, Epilogue(last.zero_point, last.lo, last.hi)),
        lambda par, params: par - REQUANT_ENTRIES,
        _add_image,
        lambda last, machine: uniform_parameters(last.const, 1, last.shift, machine),
    ),
}  # fmt: skip


_BY_NAME = {op.__name__: kind for op, kind in EPILOGUES.items()}


@dataclass(frozen=True)
class FusedProductsWorkload(ProductsWorkload):
    """Products, the operator that they are ``fused`` in, its numbers, and how many ``others``
    images it reads."""

    fused: str
    numbers: tuple[Hashable, ...] = field(compare=False)
    others: int = field(compare=False)

    @property
    def kind(self) -> FusedKind:
        """The epilogue."""
        return _BY_NAME[self.fused]

    @property
    def shape(self) -> ProductShape:
        """The convolution, the room for its results in ``tmp``, and the other image."""
        through = self.context.budget.tmp // (1 + self.others)
        return replace(super().shape, through_tmp=through, adds_image=self.others > 0)


class FusedProducts(Products):
    """Products with a fused epilogue."""

    name = "fused products"
    ops = tuple(EPILOGUES)

    def handles(self, graph: Graph, node: Node) -> bool:
        return super().handles(graph, _products_of(node))

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return f"convolution on the tensor core, {_kind(node).says}"

    def workload(self, graph: Graph, node: Node, context: Context) -> FusedProductsWorkload:
        """The constants of products and epilogue share ``par``."""
        kind, op = _kind(node), node.op
        assert isinstance(op, FusedPair)
        par = kind.par(context.budget.par, self.machine.params)
        context = replace(context, budget=replace(context.budget, par=par))
        plain = super().workload(graph, _products_of(node), context)
        return FusedProductsWorkload(
            **vars(plain), fused=op.name, numbers=kind.numbers(op.last), others=op.others
        )  # fmt: skip

    def context_used(self, workload: ProductsWorkload, knobs: Knobs) -> Hashable:
        return rows_through_tmp(make_tiling(knobs), workload.shape)

    def schedule(self, workload: ProductsWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: data, the other image if there is one, weight, param of the products, of the
        epilogue, out."""
        assert isinstance(workload, FusedProductsWorkload)
        kind, stages, tiling = workload.kind, self.stages(workload), make_tiling(knobs)
        first = requantized(stages.acc, stages.par, workload.epilogue)
        rounded = compute(stages.acc.shape, lambda *i: first[i].astype("int32"), "rounded")
        found = kind.express(rounded, workload.numbers, workload.oc_blocks, self.machine)
        rows, tiled = rows_through_tmp(tiling, workload.shape), (0, 1, 2)
        s = schedule_products(found.out, stages, tiled, tiling, self.machine, found, rows).schedule
        others = () if found.other is None else (found.other,)
        args = [stages.data, *others, stages.weight, stages.par, found.par, found.out]
        func = lower(s, args, name)
        return share_buffers(func, "tmp") if others else func

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op = node.op_as(FusedPair)
        found = super().constants(graph, _products_of(node))
        kind = _kind(node)
        return {**found, kind.label: kind.constants(op.last, self.machine)}


def _kind(node: Node) -> FusedKind:
    return EPILOGUES[type(node.op)]  # type: ignore[index]


def _products_of(node: Node) -> Node:
    """The node without its epilogue."""
    op = node.op_as(FusedPair)
    return replace(node, op=op.first, inputs=node.inputs[:3])
