"""A function of one int8 on the vector unit of a configuration that has a table.

It is computed by itself, or fused into its consumer: a mean of images (``global_average.py``) or a
product with a value for each channel (``channels.py``), in squeeze-and-excitation behind SiLU or
hard-swish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from .....isa.params import HwParams
from ....choose.space import Knobs, KnobValue, Refusal
from ....choose.template import Plan
from ....graph.ir import Graph, Node
from ....graph.ops.fused_pairs import QTableMean, QTableMul
from ....graph.ops.integer import QTable
from ....te import Expr, Tensor, compute, create_schedule, placeholder
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ..cost.tiling import VTHREADS, row_cycles
from ..expressions import LookupTable, attach, count_vectors, tile_positions
from ..machine import Context, Machine
from .base import Tiled, Track, WithinBudget, blocked_shape


@dataclass(frozen=True)
class LookupTableWorkload(WithinBudget):
    """A table of 256 values, applied to an image of ``blocks`` times ``places`` vectors, or to a
    row of ``places`` vectors where their order does not matter.
    """

    blocks: int
    places: int
    context: Context


class LookupTables(Tiled[LookupTableWorkload]):
    """``table[x + 128]``, in one pass: some ``places`` of some ``blocks`` of channels are loaded,
    looked up and stored at a time.
    """

    name = "look-up"
    ops = (QTable,)
    track = Track.VECTOR
    says = "on the vector unit, by its table"
    table_bytes = 1
    suits_reader = True

    def workload(self, graph: Graph, node: Node, context: Context) -> LookupTableWorkload:
        blocks, *size = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        if not context.rows_first:
            return LookupTableWorkload(1, blocks * prod(size), context)
        return LookupTableWorkload(blocks, prod(size), context)

    def sizes(self, workload: LookupTableWorkload) -> Mapping[str, Sequence[KnobValue]]:
        budget = workload.context.budget
        return {
            "blocks": range(1, workload.blocks + 1),
            "positions": range(1, min(workload.places, budget.inp, budget.out) + 1),
            "vthreads": VTHREADS,
        }

    def needs(self, workload: LookupTableWorkload, knobs: Knobs) -> Mapping[str, int]:
        vectors = count_vectors(knobs) * int(knobs["vthreads"])
        return {"inp": vectors, "out": vectors, "par": self.machine.params.table_entries}

    def plan(self, workload: LookupTableWorkload, fixed: Knobs) -> Plan | Refusal:
        budget = workload.context.budget
        vthreads = int(fixed.get("vthreads", self.machine.vthreads))
        room = max(1, min(budget.inp, budget.out) // (2 * vthreads))
        blocks = int(fixed.get("blocks", min(workload.blocks, room)))
        positions = int(fixed.get("positions", min(workload.places, max(1, room // blocks))))
        knobs = {"blocks": blocks, "positions": positions, "vthreads": vthreads}
        if reason := self.space(workload).refuse(knobs):
            return Refusal(reason)
        return Plan(knobs, self.predict(workload, knobs))

    def predict(self, workload: LookupTableWorkload, knobs: Knobs) -> int:
        entries, size = workload.blocks * workload.places, count_vectors(knobs)
        return row_cycles(entries, size, 1, 1, int(knobs["vthreads"]), self.machine)

    def schedule(self, workload: LookupTableWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: x, the table (int32 [entries of par, block]), out."""
        params = self.machine.params
        shape = (workload.blocks, workload.places, 1, params.batch, params.block)
        x = placeholder(shape, "int8", "x")
        table = LookupTable(params)
        out = compute(shape, lambda *at: table.int8(x[at]), "out")
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        x_tile, words = s.cache_read(x, "inp", [local]), s.cache_read(table.words, "par", [local])
        tile = tile_positions(s[out], knobs)
        attach(s, {x_tile: "inp", local: "out"}, s[out], tile)
        s[words].set_scope("par")  # the same for all tiles, so it is loaded once
        return lower(s, [x, table.words, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        assert isinstance(node.op, QTable)
        return {"table": table_words(node.op, self.machine)}


def table_words(op: QTable, machine: Machine) -> np.ndarray:
    """The values of a table as TABLE wants them: those of 0 to 127 first."""
    first = np.roll(op.table, len(op.table) // 2)
    return first.astype(f"<i{machine.params.vector_table}")


def split_table(node: Node) -> tuple[QTable | None, Node]:
    """The LUT through which a node reads its image, if there is one, and the node without it."""
    if isinstance(node.op, QTableMean | QTableMul):
        return node.op.first, replace(node, op=node.op.last)
    return None, node


def element_reader(
    has_table: bool, params: HwParams
) -> tuple[Callable[[Expr], Expr], tuple[Tensor, ...]]:
    """The function that reads an element as int32, through a LUT if there is one, and the constants
    in par that it needs: the table, int32 [entries of par, block]."""
    if not has_table:
        return lambda element: element.astype("int32"), ()
    table = LookupTable(params)
    return table.int32, (table.words,)
