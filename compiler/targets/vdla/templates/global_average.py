"""The mean of each channel of a large image, on the vector unit: sums of parts of the image, and
the sum of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .....isa.encoding import VECTOR_EXTENT_BITS
from ....choose.space import Knobs, Refusal, Space, Workload
from ....choose.template import Plan
from ....graph.ir import Graph, Node
from ....graph.ops.pooling import QAvgPool
from ....te.expr import Expr
from ....te.schedule import create_schedule
from ....te.tensor import Tensor, compute, placeholder, reduce_axis, sum_of
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ..cost.tiling import VTHREADS, insn_price, row_cycles
from ..expressions import REQUANT_ENTRIES, Epilogue, attach, requantized, split_tiles, vthread_tiles
from ..machine import Context
from .base import AcceleratorTemplate, Track, blocked_shape, uniform_parameters


@dataclass(frozen=True)
class MeanWorkload(Workload):
    """An image of ``channel_blocks`` times ``places`` vectors."""

    channel_blocks: int
    places: int
    context: Context
    epilogue: Epilogue = field(compare=False)


class Means(AcceleratorTemplate[MeanWorkload]):
    """``requantize(sum of x)``: ``part`` positions of one block of channels are loaded at a time,
    and the sums of all parts wait in tmp."""

    name = "mean"
    ops = (QAvgPool,)
    track = Track.VECTOR

    def handles(self, graph: Graph, node: Node) -> bool:
        """Windows take the image as a whole, where each virtual thread has room for it."""
        op = node.op
        assert isinstance(op, QAvgPool)
        _, height, width = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        is_mean = op.kernel == (height, width) and not any(op.pads)
        return is_mean and height * width > self._room and self.sums(height * width)

    @property
    def _room(self) -> int:
        """Entries of inp for a part."""
        return int(self.share * self.machine.params.inp_depth) // self.machine.vthreads

    def sums(self, positions: int) -> bool:
        """Whether the sums of parts of so many positions have room in tmp."""
        part = max(n for n in _parts(positions) if n <= self._room)
        return positions // part <= self.machine.params.tmp_depth

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return "on the vector unit, as sums of parts"

    def workload(self, graph: Graph, node: Node, context: Context) -> MeanWorkload:
        op = node.op
        assert isinstance(op, QAvgPool)
        channel_blocks, height, width = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        return MeanWorkload(
            channel_blocks, height * width, context, Epilogue.from_requant(op.requant)
        )

    def space(self, workload: MeanWorkload) -> Space:
        knobs = {"part": _parts(workload.places), "vthreads": VTHREADS}
        return Space(knobs, lambda chosen: self._misfit(workload, chosen))

    def _misfit(self, workload: MeanWorkload, knobs: Knobs) -> str:
        """Which scratchpad is too small, or an empty string."""
        part, vthreads = int(knobs["part"]), int(knobs["vthreads"])
        needs = {
            "inp": part * vthreads, "tmp": workload.places // part, "out": 1,
            "par": REQUANT_ENTRIES,
        }  # fmt: skip
        return workload.context.budget.lack(needs)

    def plan(self, workload: MeanWorkload, fixed: Knobs) -> Plan | Refusal:
        price = insn_price(workload.context, self.machine)
        return self.cheapest(workload, fixed, lambda knobs: price * self.insns(workload, knobs))

    def insns(self, workload: MeanWorkload, knobs: Knobs) -> int:
        """A load and a sum for each part; for each block of channels the sum of these, the mean and
        its store."""
        parts = workload.places // int(knobs["part"])
        return workload.channel_blocks * (2 * parts + 3)

    def predict(self, workload: MeanWorkload, knobs: Knobs) -> int:
        part, vthreads = int(knobs["part"]), int(knobs["vthreads"])
        entries = workload.channel_blocks * workload.places
        return row_cycles(entries, part, 1, 1, vthreads, self.machine)

    def reader(self) -> tuple[Callable[[Expr], Expr], tuple[Tensor, ...]]:
        """What makes int32 of an element of the image, and the constants in par that it reads."""
        return lambda element: element.astype("int32"), ()

    def schedule(self, workload: MeanWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: x, par ([1, 3, block]: bias, multiplier, shift), what elements are read with,
        out."""
        params, w, size = self.machine.params, workload, int(knobs["part"])
        lanes, count = (params.batch, params.block), w.places // size
        x = placeholder((w.channel_blocks, count, size, *lanes), "int8", "x")
        par = placeholder((1, REQUANT_ENTRIES, params.block), "int32", "param")
        place, part = reduce_axis(size, "place"), reduce_axis(count, "part")
        read, constants = self.reader()
        sums = compute(
            (w.channel_blocks, count, *lanes),
            lambda c, p, b, i: sum_of(read(x[c, p, place, b, i]), (place,)), "sums",
        )  # fmt: skip
        total = compute(
            (w.channel_blocks, 1, 1, *lanes),
            lambda c, y, z, b, i: sum_of(sums[c, part, b, i], (part,)), "total",
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
        else:  # blocks of channels in the place of parts
            thread = vthread_tiles(s[out], [block], int(knobs["vthreads"]))
            attach(s, {image: "inp"} | scopes, s[out], thread)
        s[total].reorder(part, *total.axes)
        *_, b, i = sums.axes
        s[sums].reorder(place, b, i)
        return lower(s, [x, par, *constants, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op = node.op
        assert isinstance(op, QAvgPool)
        bias = -op.x_zero_point * op.kernel[0] * op.kernel[1]
        multiplier, shift = int(op.requant.multiplier[0]), int(op.requant.shift[0])
        return {"requantisation": uniform_parameters(bias, multiplier, shift, self.machine)}


def _parts(positions: int) -> list[int]:
    """Sizes of equal parts that one instruction sums."""
    most = (1 << VECTOR_EXTENT_BITS) - 1
    return [n for n in range(1, min(positions, most) + 1) if positions % n == 0]
