"""An image and a value for each of its channels, on the vector unit: the product with one that is
made at run time, which squeeze-and-excitation ends with, and the sum with a constant."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .....runtime.layout import pack_parameters
from ....choose.space import Knobs, KnobValue, Refusal
from ....graph.ir import Graph, Node
from ....graph.ops.fused_pairs import QTableMul
from ....graph.ops.group_matmul import QAddChannels
from ....graph.ops.integer import QMul
from ....te import compute, create_schedule, placeholder
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from .. import expressions as E
from ..cost.tiling import VTHREADS, even_sizes, read_cycles, row_cycles
from ..machine import Context, Machine
from .base import Tiled, Track, WithinBudget, blocked_shape, uniform_parameters
from .lookup_table import element_reader, split_table, table_words


@dataclass(frozen=True)
class ChannelProductWorkload(WithinBudget):
    """An image of ``channel_blocks`` times ``places`` vectors, which may be read through a LUT, and
    a vector for each block."""

    channel_blocks: int
    places: int
    context: Context
    zeros: tuple[int, int] = field(compare=False)
    epilogue: E.Epilogue = field(compare=False)
    has_table: bool

    @property
    def rows_first(self) -> bool:
        """Whether all channels of some positions come before other positions: if that is wanted,
        and the factors of all channels have room beside a vector of each virtual thread."""
        budget = self.context.budget
        needed = self.channel_blocks + max(VTHREADS)
        return bool(self.context.rows_first) and needed <= min(budget.inp, budget.tmp)


class ChannelProducts(Tiled[ChannelProductWorkload]):
    """``requantize((x - zero) * (factor[c] - zero))``, or with ``table[x]``: ``places`` of some
    ``blocks`` of channels at a time. One pass subtracts the zero point, and a second one
    multiplies.

    If results come rows first, positions are the outer loop, and the factors of all channels stay
    on chip. Else a tile has one block of channels."""

    name = "channel product"
    ops = (QMul, QTableMul)
    track = Track.VECTOR
    suits_reader = True
    waits_for_image = True  # whose mean is in the factors

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        x, factor = graph.operands(node)
        if len(x.shape) != 4 or factor.shape != (*x.shape[:2], 1, 1):
            return Refusal("a product of tensors that are no image and a value for each channel")
        return "on the vector unit"

    def workload(self, graph: Graph, node: Node, context: Context) -> ChannelProductWorkload:
        table, node = split_table(node)
        if table is not None:
            context = context.without({"par": self.machine.params.table_entries})
        op = node.op_as(QMul)
        channel_blocks, height, width = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        return ChannelProductWorkload(
            channel_blocks, height * width, context, (op.zero_a, op.zero_b),
            E.Epilogue.from_requant(op.requant), table is not None,
        )  # fmt: skip

    def sizes(self, workload: ChannelProductWorkload) -> Mapping[str, Sequence[KnobValue]]:
        blocks = even_sizes(workload.channel_blocks) if workload.rows_first else [1]
        return {"blocks": blocks, "positions": even_sizes(workload.places), "vthreads": VTHREADS}

    def needs(self, workload: ChannelProductWorkload, knobs: Knobs) -> Mapping[str, int]:
        vthreads = int(knobs["vthreads"])
        vectors, factors = E.count_vectors(knobs) * vthreads, vthreads
        if workload.rows_first:
            factors = workload.channel_blocks
        return {
            "inp": vectors + factors, "tmp": E.count_vectors(knobs) + factors, "out": vectors,
            "par": E.REQUANT_ENTRIES,
        }  # fmt: skip

    def predict(self, workload: ChannelProductWorkload, knobs: Knobs) -> int:
        entries = workload.channel_blocks * workload.places
        return row_cycles(
            entries, E.count_vectors(knobs), 2, 1, int(knobs["vthreads"]), self.machine
        )

    def context_used(self, workload: ChannelProductWorkload, knobs: Knobs) -> Hashable:
        return workload.rows_first

    def schedule(self, workload: ChannelProductWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: x, factor, par ([1, 3, block]: 0, multiplier, shift), what elements of x are
        read with, out."""
        params, w, (zero, of_factor) = self.machine.params, workload, workload.zeros
        lanes = params.batch, params.block
        x = placeholder((w.channel_blocks, w.places, 1, *lanes), "int8", "x")
        factor = placeholder((w.channel_blocks, 1, 1, *lanes), "int8", "factor")
        par = placeholder((1, E.REQUANT_ENTRIES, params.block), "int32", "param")
        read, constants = element_reader(w.has_table, params)
        left = compute(x.shape, lambda *i: read(x[i]) - zero, "left")
        right = compute(factor.shape, lambda *i: factor[i].astype("int32") - of_factor, "right")
        product = compute(
            x.shape, lambda c, y, z, b, i: left[c, y, z, b, i] * right[c, 0, 0, b, i], "product"
        )
        out = E.requantized(product, par, w.epilogue, per_channel=False)
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        s[product].compute_inline()
        image, values = s.cache_read(x, "inp", [left]), s.cache_read(factor, "inp", [right])
        s.cache_read(par, "par", [local])  # all channels share it, so it is loaded once
        for constant in constants:
            s.cache_read(constant, "par", [left])
        of_tile, of_block = {image: "inp", left: "tmp", local: "out"}, {values: "inp", right: "tmp"}
        if w.rows_first:
            tile = E.tile_positions(s[out], knobs)
            for tensor, scope in of_block.items():
                s[tensor].set_scope(scope)
        else:
            (block, positions), _ = E.split_tiles(s[out], (1, int(knobs["positions"])), (0, 1))
            if positions.extent > 1:
                tile = E.vthread_tiles(s[out], [positions], int(knobs["vthreads"]))
                E.attach(s, of_block, s[out], block)
            else:
                tile = E.vthread_tiles(s[out], [block, positions], int(knobs["vthreads"]))
                of_tile |= of_block
        E.attach(s, of_tile, s[out], tile)
        return lower(s, [x, factor, par, *constants, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        table, node = split_table(node)
        requant = node.op_as(QMul).requant
        multiplier, shift = int(requant.multiplier[0]), int(requant.shift[0])
        found = {"requantisation": uniform_parameters(0, multiplier, shift, self.machine)}
        return found if table is None else {**found, "table": table_words(table, self.machine)}


@dataclass(frozen=True)
class ChannelAdditionWorkload(WithinBudget):
    """An image of ``channel_blocks`` times ``places`` vectors, whose elements are multiplied by
    ``mult``."""

    channel_blocks: int
    places: int
    context: Context
    mult: int = field(compare=False)
    epilogue: E.Epilogue = field(compare=False)


class ChannelAddition(Tiled[ChannelAdditionWorkload]):
    """``requantize(x * mult + const[c])``: ``places`` of one block of channels at a time."""

    name = "channel addition"
    ops = (QAddChannels,)
    track = Track.VECTOR
    says = "on the vector unit, its constants as biases"

    def workload(self, graph: Graph, node: Node, context: Context) -> ChannelAdditionWorkload:
        op = node.op_as(QAddChannels)
        channel_blocks, positions, _ = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        epilogue = E.Epilogue(op.zero_point)
        return ChannelAdditionWorkload(channel_blocks, positions, context, op.mult, epilogue)

    def sizes(self, workload: ChannelAdditionWorkload) -> Mapping[str, Sequence[KnobValue]]:
        return {"positions": even_sizes(workload.places), "vthreads": VTHREADS}

    def needs(self, workload: ChannelAdditionWorkload, knobs: Knobs) -> Mapping[str, int]:
        vthreads = int(knobs["vthreads"])
        vectors = int(knobs["positions"]) * vthreads
        return {"inp": vectors, "out": vectors, "par": E.REQUANT_ENTRIES * vthreads}

    def predict(self, workload: ChannelAdditionWorkload, knobs: Knobs) -> int:
        """As for a row of vectors; small tiles keep the bus busy with parameters and
        instructions."""
        w, params = workload, self.machine.params
        entries, size = w.channel_blocks * w.places, int(knobs["positions"])
        row = row_cycles(entries, size, 1, 1, int(knobs["vthreads"]), self.machine)
        # A tile has two loads, a PARAM, a VECTOR and a STORE.
        tile_bytes = E.REQUANT_ENTRIES * params.entry_bytes("par") + 5 * params.insn_bytes
        tiles = w.channel_blocks * -(-w.places // size)
        read_bytes = entries * params.entry_bytes("inp") + tiles * tile_bytes
        return max(row, read_cycles(read_bytes, self.machine))

    def schedule(self, workload: ChannelAdditionWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: x, par ([channel blocks, 3, block]: constants, 1, shift), out."""
        params, w = self.machine.params, workload
        shape = (w.channel_blocks, w.places, 1, params.batch, params.block)
        x = placeholder(shape, "int8", "x")
        par = placeholder((w.channel_blocks, E.REQUANT_ENTRIES, params.block), "int32", "param")
        scaled = compute(shape, lambda *i: x[i].astype("int32") * w.mult, "scaled")
        out = E.requantized(scaled, par, w.epilogue)
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        s[scaled].compute_inline()
        tile_of_x, par_tile = s.cache_read(x, "inp", [scaled]), s.cache_read(par, "par", [local])
        outer, _ = E.split_tiles(s[out], (1, int(knobs["positions"])), (0, 1))
        tile = E.vthread_tiles(s[out], outer, int(knobs["vthreads"]))
        E.attach(s, {tile_of_x: "inp", par_tile: "par", local: "out"}, s[out], tile)
        return lower(s, [x, par, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        assert isinstance(node.op, QAddChannels)
        return {"requantisation": addition_constants(node.op, self.machine)}


def addition_constants(op: QAddChannels, machine: Machine) -> np.ndarray:
    """Constants, 1 and shift of every channel, [channel blocks, 3, block] int32."""
    one, shift = np.ones_like(op.const), np.full_like(op.const, op.shift)
    return pack_parameters(op.const, one, shift, machine.params)
