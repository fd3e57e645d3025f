"""Rotary position embedding on the vector unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ....choose.space import Knobs, KnobValue, Refusal
from ....graph.ir import Graph, Node
from ....graph.ops.rotation import QRotate
from ....te import compute, create_schedule, placeholder
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from .. import expressions as E
from ..cost.tiling import VTHREADS, even_sizes, row_cycles
from ..machine import Context
from .base import Tiled, Track, WithinBudget, uniform_parameters

#: A head has a first and a second half.
HALVES = 2


@dataclass(frozen=True)
class RotationWorkload(WithinBudget):
    """``heads`` of twice ``half_blocks`` blocks of channels, at ``places``. ``is_centred`` says
    that their zero point is 0."""

    heads: int
    half_blocks: int
    places: int
    is_centred: bool
    context: Context
    zero: int = field(compare=False)
    epilogue: E.Epilogue = field(compare=False)


class Rotations(Tiled[RotationWorkload]):
    """Each half of a head times its cosines, plus the other half times its sines. A tile is
    ``positions`` of a block of both halves; cosines and sines stay on chip from head to head."""

    name = "rotary embedding"
    ops = (QRotate,)
    track = Track.VECTOR

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        width, block = node.op_as(QRotate).width, self.machine.params.block
        if width % (HALVES * block):
            return Refusal(f"heads of {width} channels, whose halves are no blocks of {block}")
        return "on the vector unit"

    def workload(self, graph: Graph, node: Node, context: Context) -> RotationWorkload:
        op, (_, channels, places, _) = node.op_as(QRotate), graph.result(node).shape
        half_blocks = op.width // HALVES // self.machine.params.block
        return RotationWorkload(
            channels // op.width, half_blocks, places, op.zero == 0, context, op.zero,
            E.Epilogue.from_requant(op.requant),
        )  # fmt: skip

    def sizes(self, workload: RotationWorkload) -> Mapping[str, Sequence[KnobValue]]:
        return {"positions": even_sizes(workload.places), "vthreads": VTHREADS}

    def needs(self, workload: RotationWorkload, knobs: Knobs) -> Mapping[str, int]:
        """Both halves of what a thread has, beside both of cosines and sines."""
        positions, vthreads = int(knobs["positions"]), int(knobs["vthreads"])
        each = 2 if workload.is_centred else 3
        return {
            "inp": HALVES * positions * (2 + vthreads),
            "tmp": HALVES * positions * (2 + each * vthreads),
            "out": HALVES * positions * vthreads,
            "par": E.REQUANT_ENTRIES,
        }

    def predict(self, workload: RotationWorkload, knobs: Knobs) -> int:
        w, positions, vthreads = workload, int(knobs["positions"]), int(knobs["vthreads"])
        factors = HALVES * 2 * w.half_blocks * w.places
        entries, size = HALVES * w.heads * w.half_blocks * w.places, HALVES * positions
        passes = 3 if w.is_centred else 4
        own = row_cycles(entries, size, passes, 1, vthreads, self.machine)
        return own + row_cycles(factors, 2 * size, 1, 1, 1, self.machine)

    def schedule(self, workload: RotationWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: x, cosines, sines, par ([1, 3, block]: 0, multiplier, shift), out."""
        params, w = self.machine.params, workload
        half = (HALVES, w.half_blocks, w.places, params.batch, params.block)
        x = placeholder((w.heads, *half), "int8", "x")
        cos, sin = placeholder(half, "int8", "cos"), placeholder(half, "int8", "sin")
        par = placeholder((1, E.REQUANT_ENTRIES, params.block), "int32", "param")
        centred = compute(x.shape, lambda *i: x[i].astype("int32") - w.zero, "centred")
        # The second operand of the vector unit is no int8.
        wide = {
            factor: compute(half, lambda *i, f=factor: f[i].astype("int32") * 1, f"{factor.name}32")
            for factor in (cos, sin)
        }
        straight = compute(x.shape, lambda *i: centred[i] * wide[cos][i[1:]], "straight")
        crossed = compute(
            x.shape, lambda *i: centred[(i[0], 1 - i[1], *i[2:])] * wide[sin][i[1:]], "crossed"
        )
        total = compute(x.shape, lambda *i: straight[i] + crossed[i], "total")
        out = E.requantized(total, par, w.epilogue, per_channel=False)
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        s[total].compute_inline()
        of_tile = {local: "out", straight: "tmp", crossed: "tmp"}
        of_tile[s.cache_read(x, "inp", [centred])] = "inp"
        if w.is_centred:
            s[centred].compute_inline()
        else:
            of_tile[centred] = "tmp"
        of_factors = {s.cache_read(f, "inp", [wide[f]]): "inp" for f in (cos, sin)}
        of_factors |= {wide[f]: "tmp" for f in (cos, sin)}
        s.cache_read(par, "par", [local])
        (block, positions, head), _ = E.split_tiles(
            s[out], (1, int(knobs["positions"]), 1), (2, 3, 0)
        )
        vthreads = int(knobs["vthreads"])
        if w.heads > 1:
            factors = s[out].fuse(block, positions)
            tile = E.vthread_tiles(s[out], [head], vthreads)
            E.attach(s, of_factors, s[out], factors)
        else:
            tile = E.vthread_tiles(s[out], [block, positions, head], vthreads)
            of_tile |= of_factors
        E.attach(s, of_tile, s[out], tile)
        return lower(s, [x, cos, sin, par, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        requant = node.op_as(QRotate).requant
        numbers = 0, int(requant.multiplier[0]), int(requant.shift[0])
        return {"requantisation": uniform_parameters(*numbers, self.machine)}
