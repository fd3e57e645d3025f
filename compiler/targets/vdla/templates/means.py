"""The mean of each channel of a large image, on the vector unit: sums of parts of the image, and
the sum of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .....isa.encoding import VECTOR_EXTENT_BITS
from ....choose.space import Knobs, Refusal, Space, Workload
from ....choose.template import Plan
from ....graph.ir import Graph, Node
from ....graph.ops.pooling import QAvgPool
from ....te.schedule import create_schedule
from ....te.tensor import compute, placeholder, reduce_axis, sum_of
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ..machine import Context
from ..parts import REQUANT_ENTRIES, Ending, attach, requantized, split_tiles, vthread_tiles
from ..planner import VTHREADS, row_cycles
from .base import AcceleratorTemplate, Track, image_of, uniform_parameters


@dataclass(frozen=True)
class MeanWorkload(Workload):
    """An image of ``channel_blocks`` times ``places`` vectors."""

    channel_blocks: int
    places: int
    context: Context
    ending: Ending = field(compare=False)


class Means(AcceleratorTemplate[MeanWorkload]):
    """``requantize(sum of x)``: ``part`` places of one block of channels are loaded at a time, and
    the sums of all parts wait in tmp."""

    name = "mean"
    ops = (QAvgPool,)
    track = Track.VECTOR

    def handles(self, graph: Graph, node: Node) -> bool:
        """Windows take the image as a whole, where each virtual thread has room for it."""
        op = node.op
        assert isinstance(op, QAvgPool)
        _, height, width = image_of(graph[node.inputs[0]].shape, self.machine)
        params, places = self.machine.params, height * width
        room = int(self.share * params.inp_depth) // self.machine.vthreads
        part = max(n for n in _parts(places) if n <= room)
        fits = places // part <= params.tmp_depth
        return op.kernel == (height, width) and not any(op.pads) and places > room and fits

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return "on the vector unit, as sums of parts"

    def workload(self, graph: Graph, node: Node, context: Context) -> MeanWorkload:
        op = node.op
        assert isinstance(op, QAvgPool)
        channel_blocks, height, width = image_of(graph[node.inputs[0]].shape, self.machine)
        return MeanWorkload(channel_blocks, height * width, context, Ending.of(op.requant))

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
        return self.cheapest(workload, fixed)

    def predict(self, workload: MeanWorkload, knobs: Knobs) -> int:
        part, vthreads = int(knobs["part"]), int(knobs["vthreads"])
        entries = workload.channel_blocks * workload.places
        return row_cycles(entries, part, 1, 1, vthreads, self.machine)

    def schedule(self, workload: MeanWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: x, par ([1, 3, block]: bias, multiplier, shift), out."""
        params, w, size = self.machine.params, workload, int(knobs["part"])
        lanes, count = (params.batch, params.block), w.places // size
        x = placeholder((w.channel_blocks, count, size, *lanes), "int8", "x")
        par = placeholder((1, REQUANT_ENTRIES, params.block), "int32", "param")
        place, part = reduce_axis(size, "place"), reduce_axis(count, "part")
        sums = compute(
            (w.channel_blocks, count, *lanes),
            lambda c, p, b, i: sum_of(x[c, p, place, b, i].astype("int32"), (place,)), "sums",
        )  # fmt: skip
        total = compute(
            (w.channel_blocks, 1, 1, *lanes),
            lambda c, y, z, b, i: sum_of(sums[c, part, b, i], (part,)), "total",
        )  # fmt: skip
        out = requantized(total, par, w.ending, per_channel=False)
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        image = s.cache_read(x, "inp", [sums])
        s.cache_read(par, "par", [local])  # all channels share it, so it is loaded once
        (block, *_), _ = split_tiles(s[out], (1, 1, 1))
        attach(s, {sums: "tmp", total: "tmp", local: "out"}, s[out], block)
        thread = vthread_tiles(s[sums], [sums.axes[1]], int(knobs["vthreads"]))
        attach(s, {image: "inp"}, s[sums], thread)
        s[total].reorder(part, *total.axes)
        *_, b, i = sums.axes
        s[sums].reorder(place, b, i)
        return lower(s, [x, par, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op = node.op
        assert isinstance(op, QAvgPool)
        bias = -op.x_zero_point * op.kernel[0] * op.kernel[1]
        multiplier, shift = int(op.requant.multiplier[0]), int(op.requant.shift[0])
        return {"requantisation": uniform_parameters(bias, multiplier, shift, self.machine)}


def _parts(places: int) -> list[int]:
    """Sizes of equal parts that one instruction sums."""
    most = (1 << VECTOR_EXTENT_BITS) - 1
    return [n for n in range(1, min(places, most) + 1) if places % n == 0]
