"""Transpositions of images in groups on the tensor core: products with an identity matrix.

A tile of weights is 16 positions of 16 channels. Its product with a row of the identity matrix is
one channel of these 16 positions: a row of the transposed tile.

Where positions end within a tile, the last rows of its transposition are the zero point: that tile
has parameters of its own, and is requantised by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from .....runtime.layout import blocks
from ....choose.space import Knobs, KnobValue
from ....choose.template import Plan
from ....graph.arithmetic.requant import Requant
from ....graph.ir import Graph, Node
from ....graph.ops.group_matmul import TransposeGroups
from ....te import create_schedule, placeholder
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from .. import expressions as E
from ..cost.tiling import VTHREADS, even_sizes, insn_price, read_cycles, row_cycles
from ..machine import Context
from .base import Tiled, Track, WithinBudget, tile_bytes
from .matmul import (
    pack_shared,
    set_of_block,
    shared_parameters,
    transposed_tiles,
    weight_tiles,
)

#: Requantisation by one.
MULTIPLIER, SHIFT = 1 << 30, 30


@dataclass(frozen=True)
class TransposedWorkload(WithinBudget):
    """Images in ``groups``, each of ``channel_blocks`` times ``tiles`` tiles; the last tiles of
    each block have fewer than ``block`` of its ``places``."""

    groups: int
    channel_blocks: int
    tiles: int
    places: int
    context: Context
    fill: int = field(compare=False)
    is_whole: bool  # the positions fill all tiles


class GroupsTransposed(Tiled[TransposedWorkload]):
    """A transposition of channels and positions. A tile of the result is ``tiles`` blocks of
    its channels, from ``channel_blocks`` of the operand."""

    name = "groups transposed"
    ops = (TransposeGroups,)
    track = Track.TENSOR
    other_track = Track.VECTOR
    operand_as_weights = 0
    says = "a product with the identity matrix on the tensor core"

    def workload(self, graph: Graph, node: Node, context: Context) -> TransposedWorkload:
        op, [x], params = node.op_as(TransposeGroups), graph.operands(node), self.machine.params
        channel_blocks = x.shape[1] // op.groups // params.block
        tiles = blocks(x.shape[2], params)
        is_whole = x.shape[2] % params.block == 0
        return TransposedWorkload(
            op.groups, channel_blocks, tiles, x.shape[2], context, op.fill, is_whole
        )

    def sizes(self, workload: TransposedWorkload) -> Mapping[str, Sequence[KnobValue]]:
        return {
            "tiles": even_sizes(workload.tiles),
            "channel_blocks": even_sizes(workload.channel_blocks),
            "vthreads": VTHREADS,
        }

    def needs(self, workload: TransposedWorkload, knobs: Knobs) -> Mapping[str, int]:
        names = ("tiles", "channel_blocks", "vthreads")
        tiles, channel_blocks, vthreads = (int(knobs[name]) for name in names)
        rows = channel_blocks * self.machine.params.block
        at_once, sets = (tiles, 1) if workload.is_whole else (min(tiles, 2), 2)
        return {
            "inp": self.machine.params.block,
            "wgt": tiles * channel_blocks * vthreads,
            "acc": tiles * rows * vthreads,
            "out": at_once * rows * vthreads,
            "par": E.REQUANT_ENTRIES * sets,
            "uop": 2 * tiles * channel_blocks,
        }

    def predict(self, workload: TransposedWorkload, knobs: Knobs) -> int:
        """As for a row of vectors: a tile of weights is as many bytes as the vectors that it
        becomes. Small tiles keep the bus busy with parameters and instructions."""
        w, params = workload, self.machine.params
        tiles, channel_blocks = int(knobs["tiles"]), int(knobs["channel_blocks"])
        entries = w.groups * w.tiles * w.channel_blocks * params.block
        size = tiles * channel_blocks * params.block
        row = row_cycles(entries, size, 1, 1, int(knobs["vthreads"]), self.machine)
        read_bytes = entries * params.entry_bytes("inp") + self.insns(w, knobs) * params.insn_bytes
        return max(row, read_cycles(read_bytes, self.machine))

    def cost(self, workload: TransposedWorkload, plan: Plan) -> float:
        price = insn_price(workload.context, self.machine)
        return super().cost(workload, plan) + price * self.insns(workload, plan.knobs)

    def insns(self, workload: TransposedWorkload, knobs: Knobs) -> int:
        """Each block of results has a load, and a VECTOR and a STORE, if not all blocks together
        have these; a tile has three more."""
        w, tiles, channel_blocks = workload, int(knobs["tiles"]), int(knobs["channel_blocks"])
        steps = w.groups * -(-w.tiles // tiles) * -(-w.channel_blocks // channel_blocks)
        return steps * (tiles + 2 * (1 if w.is_whole else tiles) + 3)

    def schedule(self, workload: TransposedWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """The bias in ``param`` is the zero point with the opposite sign, so that values stay."""
        params, w = self.machine.params, workload
        block = params.block
        read = tile_bytes(w.groups * w.channel_blocks, w.places, block)
        x = placeholder((read,), "int8", "image")
        unit = placeholder((block, 1, block), "int8", "identity")
        par = shared_parameters(w.places, params)
        tiles = weight_tiles(x, w.groups, w.tiles, w.channel_blocks, w.places, block)
        acc = transposed_tiles(tiles, unit)
        chosen = partial(set_of_block, par, 1, w.tiles)
        out = E.requantized(acc, par, E.Epilogue(w.fill), choosing=chosen)
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        # What is constant stays on chip from the start.
        s.cache_read(unit, "inp", [acc])
        s.cache_read(par, "par", [local])
        sizes = (1, int(knobs["tiles"]), int(knobs["channel_blocks"]))
        outer, (_, row, *_) = E.split_tiles(s[out], sizes)
        tile = E.vthread_tiles(s[out], outer, int(knobs["vthreads"]))
        s[tiles].set_scope("wgt")
        s[acc].set_scope("acc")
        for tensor in (tiles, acc):
            s[tensor].compute_at(s[out], tile)
        E.schedule_sums(s, acc, params)
        if w.is_whole:
            s[local].compute_at(s[out], tile)
        else:
            s[out].unroll(row)
            s[local].compute_at(s[out], row)
            if sizes[1] > 1:
                s[local].double_buffer()
        return lower(s, [x, unit, par, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op, params = node.op_as(TransposeGroups), self.machine.params
        identity, places = np.eye(params.block, dtype=np.int8), graph[node.inputs[0]].shape[2]
        once = Requant(np.array([MULTIPLIER], np.int32), np.array([SHIFT], np.int32), op.fill)
        packed = pack_shared(places, -op.fill, once, self.machine)
        return {"identity": identity, "requantisation": packed}
