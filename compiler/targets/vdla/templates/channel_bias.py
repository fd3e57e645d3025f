"""A constant for each channel added to an image, on the vector unit: one pass, whose bias is the
constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .....runtime.layout import pack_parameters
from ....choose.space import Knobs, KnobValue, Refusal
from ....graph.ir import Graph, Node
from ....graph.ops.group_matmul import QAddChannels
from ....te.schedule import create_schedule
from ....te.tensor import compute, placeholder
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ..cost.tiling import VTHREADS, even_sizes, read_cycles, row_cycles
from ..expressions import REQUANT_ENTRIES, Epilogue, attach, requantized, split_tiles, vthread_tiles
from ..machine import Context, Machine
from .base import Tiled, Track, WithinBudget, blocked_shape


@dataclass(frozen=True)
class ChannelAdditionWorkload(WithinBudget):
    """An image of ``channel_blocks`` times ``places`` vectors, whose elements are multiplied by
    ``mult``."""

    channel_blocks: int
    places: int
    context: Context
    mult: int = field(compare=False)
    epilogue: Epilogue = field(compare=False)


class ChannelAddition(Tiled[ChannelAdditionWorkload]):
    """``requantize(x * mult + const[c])``: ``places`` of one block of channels at a time."""

    name = "channel addition"
    ops = (QAddChannels,)
    track = Track.VECTOR

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return "on the vector unit, its constants as biases"

    def workload(self, graph: Graph, node: Node, context: Context) -> ChannelAdditionWorkload:
        op = node.op
        assert isinstance(op, QAddChannels)
        channel_blocks, positions, _ = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        epilogue = Epilogue(op.zero_point)
        return ChannelAdditionWorkload(channel_blocks, positions, context, op.mult, epilogue)

    def sizes(self, workload: ChannelAdditionWorkload) -> Mapping[str, Sequence[KnobValue]]:
        return {"places": even_sizes(workload.places), "vthreads": VTHREADS}

    def needs(self, workload: ChannelAdditionWorkload, knobs: Knobs) -> Mapping[str, int]:
        vthreads = int(knobs["vthreads"])
        vectors = int(knobs["places"]) * vthreads
        return {"inp": vectors, "out": vectors, "par": REQUANT_ENTRIES * vthreads}

    def predict(self, workload: ChannelAdditionWorkload, knobs: Knobs) -> int:
        """As for a row of vectors; small tiles keep the bus busy with parameters and
        instructions."""
        w, params = workload, self.machine.params
        entries, size = w.channel_blocks * w.places, int(knobs["places"])
        row = row_cycles(entries, size, 1, 1, int(knobs["vthreads"]), self.machine)
        # A tile has two loads, a PARAM, a VECTOR and a STORE.
        tile_bytes = REQUANT_ENTRIES * params.entry_bytes("par") + 5 * params.insn_bytes
        tiles = w.channel_blocks * -(-w.places // size)
        read_bytes = entries * params.entry_bytes("inp") + tiles * tile_bytes
        return max(row, read_cycles(read_bytes, self.machine))

    def schedule(self, workload: ChannelAdditionWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: x, par ([channel blocks, 3, block]: constants, 1, shift), out."""
        params, w = self.machine.params, workload
        shape = (w.channel_blocks, w.places, 1, params.batch, params.block)
        x = placeholder(shape, "int8", "x")
        par = placeholder((w.channel_blocks, REQUANT_ENTRIES, params.block), "int32", "param")
        scaled = compute(shape, lambda *i: x[i].astype("int32") * w.mult, "scaled")
        out = requantized(scaled, par, w.epilogue)
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        s[scaled].compute_inline()
        tile_of_x, par_tile = s.cache_read(x, "inp", [scaled]), s.cache_read(par, "par", [local])
        outer, _ = split_tiles(s[out], (1, int(knobs["places"])), (0, 1))
        tile = vthread_tiles(s[out], outer, int(knobs["vthreads"]))
        attach(s, {tile_of_x: "inp", par_tile: "par", local: "out"}, s[out], tile)
        return lower(s, [x, par, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        assert isinstance(node.op, QAddChannels)
        return {"requantisation": addition_constants(node.op, self.machine)}


def addition_constants(op: QAddChannels, machine: Machine) -> np.ndarray:
    """Constants, 1 and shift of every channel, [channel blocks, 3, block] int32."""
    one, shift = np.ones_like(op.const), np.full_like(op.const, op.shift)
    return pack_parameters(op.const, one, shift, machine.params)
