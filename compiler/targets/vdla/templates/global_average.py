"""The mean of each channel of a large image, on the vector unit: sums of chunks of the image, and
the sum of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .....isa.encoding import VECTOR_EXTENT_BITS
from ....choose.space import Knobs, KnobValue
from ....choose.template import Plan
from ....graph.ir import Graph, Node
from ....graph.ops.fused_pairs import QTableMean
from ....graph.ops.pooling import QAvgPool
from ....te import compute, create_schedule, placeholder, reduce_axis, sum_of
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ..cost.tiling import VTHREADS, insn_price, row_cycles
from ..expressions import REQUANT_ENTRIES, Epilogue, attach, requantized, split_tiles, vthread_tiles
from ..machine import Context
from .base import Tiled, Track, WithinBudget, blocked_shape, uniform_parameters
from .lookup_table import element_reader, split_table, table_words


@dataclass(frozen=True)
class MeanWorkload(WithinBudget):
    """An image of ``channel_blocks`` times ``places`` vectors, which may be read through a LUT."""

    channel_blocks: int
    places: int
    context: Context
    epilogue: Epilogue = field(compare=False)
    has_table: bool = False


class Means(Tiled[MeanWorkload]):
    """``requantize(sum of x)``, or of ``table[x]``: chunks of ``part`` positions of one block of
    channels are loaded one after the other, and the sums of all chunks wait in tmp."""

    name = "mean"
    ops = (QAvgPool, QTableMean)
    track = Track.VECTOR
    says = "on the vector unit, as sums of parts"

    def handles(self, graph: Graph, node: Node) -> bool:
        """Windows take the image as a whole, where each virtual thread has room for it, but without
        a LUT."""
        if isinstance(node.op, QTableMean):
            return True
        op = node.op_as(QAvgPool)
        _, height, width = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        is_mean = op.kernel == (height, width) and not any(op.pads)
        return is_mean and height * width > self._room and self.sums(height * width)

    @property
    def _room(self) -> int:
        """Entries of inp for a chunk."""
        return int(self.share * self.machine.params.inp_depth) // self.machine.vthreads

    def sums(self, positions: int) -> bool:
        """Whether the sums of the chunks of an image of ``positions`` pixels fit tmp."""
        chunk = max(n for n in _chunk_sizes(positions) if n <= self._room)
        return positions // chunk <= self.machine.params.tmp_depth

    def workload(self, graph: Graph, node: Node, context: Context) -> MeanWorkload:
        table, node = split_table(node)
        if table is not None:
            context = context.without({"par": self.machine.params.table_entries})
        epilogue = Epilogue.from_requant(node.op_as(QAvgPool).requant)
        channel_blocks, height, width = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        return MeanWorkload(
            channel_blocks, height * width, context, epilogue, has_table=table is not None
        )

    def sizes(self, workload: MeanWorkload) -> Mapping[str, Sequence[KnobValue]]:
        return {"part": _chunk_sizes(workload.places), "vthreads": VTHREADS}

    def needs(self, workload: MeanWorkload, knobs: Knobs) -> Mapping[str, int]:
        chunk, vthreads = int(knobs["part"]), int(knobs["vthreads"])
        return {
            "inp": chunk * vthreads, "tmp": workload.places // chunk, "out": 1,
            "par": REQUANT_ENTRIES,
        }  # fmt: skip

    def cost(self, workload: MeanWorkload, plan: Plan) -> float:
        price = insn_price(workload.context, self.machine)
        return super().cost(workload, plan) + price * self.insns(workload, plan.knobs)

    def insns(self, workload: MeanWorkload, knobs: Knobs) -> int:
        """A load and a sum for each chunk; for each block of channels the sum of these, the mean
        and its store."""
        chunks = workload.places // int(knobs["part"])
        return workload.channel_blocks * (2 * chunks + 3)

    def predict(self, workload: MeanWorkload, knobs: Knobs) -> int:
        chunk, vthreads = int(knobs["part"]), int(knobs["vthreads"])
        entries = workload.channel_blocks * workload.places
        return row_cycles(entries, chunk, 1, 1, vthreads, self.machine)

    def schedule(self, workload: MeanWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: x, par ([1, 3, block]: bias, multiplier, shift), what elements are read with,
        out."""
        params, w, size = self.machine.params, workload, int(knobs["part"])
        lanes, count = (params.batch, params.block), w.places // size
        x = placeholder((w.channel_blocks, count, size, *lanes), "int8", "x")
        par = placeholder((1, REQUANT_ENTRIES, params.block), "int32", "param")
        position, chunk = reduce_axis(size, "place"), reduce_axis(count, "part")
        read, constants = element_reader(w.has_table, params)
        sums = compute(
            (w.channel_blocks, count, *lanes),
            lambda c, p, b, i: sum_of(read(x[c, p, position, b, i]), (position,)), "sums",
        )  # fmt: skip
        total = compute(
            (w.channel_blocks, 1, 1, *lanes),
            lambda c, y, z, b, i: sum_of(sums[c, chunk, b, i], (chunk,)), "total",
        )  # fmt: skip
        out = requantized(total, par, w.epilogue, per_channel=False)
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        image = s.cache_read(x, "inp", [sums])
        s.cache_read(par, "par", [local])  # all channels share it, so it is loaded once
        for constant in constants:
            s.cache_read(constant, "par", [sums])
        (block, *_), _ = split_tiles(s[out], (1, 1, 1))
        scopes = {sums: "tmp", total: "tmp", local: "out"}
        if count > 1:
            attach(s, scopes, s[out], block)
            thread = vthread_tiles(s[sums], [sums.axes[1]], int(knobs["vthreads"]))
            attach(s, {image: "inp"}, s[sums], thread)
        else:  # tiles are blocks of channels
            thread = vthread_tiles(s[out], [block], int(knobs["vthreads"]))
            attach(s, {image: "inp"} | scopes, s[out], thread)
        s[total].reorder(chunk, *total.axes)
        *_, b, i = sums.axes
        s[sums].reorder(position, b, i)
        return lower(s, [x, par, *constants, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        table, node = split_table(node)
        op = node.op_as(QAvgPool)
        bias = -op.x_zero_point * op.kernel[0] * op.kernel[1]
        multiplier, shift = int(op.requant.multiplier[0]), int(op.requant.shift[0])
        found = {"requantisation": uniform_parameters(bias, multiplier, shift, self.machine)}
        return found if table is None else {**found, "table": table_words(table, self.machine)}


def _chunk_sizes(positions: int) -> list[int]:
    """Sizes of equal chunks that one instruction sums."""
    most = (1 << VECTOR_EXTENT_BITS) - 1
    return [n for n in range(1, min(positions, most) + 1) if positions % n == 0]
