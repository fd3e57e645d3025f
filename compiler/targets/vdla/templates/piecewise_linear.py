"""A piecewise linear function of one int8 on the vector unit
(``graph/arithmetic/piecewise_linear.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ....choose.space import Knobs, Refusal, Space, Workload
from ....choose.template import Plan
from ....graph.arithmetic.piecewise_linear import FRACTION_BITS, PiecewiseLinear
from ....graph.ir import Graph, Node
from ....graph.ops.integer import QTable
from ....te.expr import maximum
from ....te.schedule import create_schedule
from ....te.tensor import compute, placeholder, reduce_axis, sum_of
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ..cost.tiling import VTHREADS, row_cycles
from ..expressions import REQUANT_ENTRIES, Epilogue, attach, requantized, split_tiles, vthread_tiles
from ..machine import Budget, Context
from .base import AcceleratorTemplate, Track, blocked_shape, uniform_parameters

#: More pieces do not pay: the vector unit takes two cycles for each piece of a vector.
MOST_PIECES = 60


def most_pieces(budget: Budget) -> int:
    """The number of pieces that fit tmp and par."""
    return min(budget.tmp, (budget.par - REQUANT_ENTRIES) // 2)


def _too_many(pieces: int, room: str) -> str:
    return f"a line of {pieces} pieces, {room}"


@dataclass(frozen=True)
class PiecewiseLinearWorkload(Workload):
    """A function of ``pieces`` linear pieces, applied to ``entries`` vectors."""

    entries: int
    pieces: int
    context: Context
    epilogue: Epilogue = field(compare=False)


class PiecewiseLinearTables(AcceleratorTemplate[PiecewiseLinearWorkload]):
    """``requantize(sum over k of slopes[k] * max(x, knots[k]))``. For each ``step`` vectors, one
    instruction puts all maxima into tmp, and a second one their sum of products into out; ``size``
    vectors are loaded and stored at a time.
    """

    name = "table"
    ops = (QTable,)
    track = Track.VECTOR

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        assert isinstance(node.op, QTable)
        found = node.op.piecewise_linear
        if found is None or len(found.knots) > MOST_PIECES:
            return Refusal("a table too uneven for a line with few bends")
        room = most_pieces(Budget.whole(self.machine.params))
        if len(found.knots) > room:
            return Refusal(_too_many(len(found.knots), f"the configuration has room for {room}"))
        return f"on the vector unit, as a line with {len(found.knots) - 1} bends"

    def workload(self, graph: Graph, node: Node, context: Context) -> PiecewiseLinearWorkload:
        found = _find_line(node)
        entries = prod(blocked_shape(graph[node.inputs[0]].shape, self.machine))
        epilogue = Epilogue(0, found.lo, found.hi)
        return PiecewiseLinearWorkload(entries, len(found.knots), context, epilogue)

    def space(self, workload: PiecewiseLinearWorkload) -> Space:
        budget = workload.context.budget
        knobs = {
            "size": range(1, min(workload.entries, budget.inp, budget.out) + 1),
            "step": range(1, max(1, budget.tmp // workload.pieces) + 1),
            "vthreads": VTHREADS,
        }
        return Space(knobs, lambda knobs: _misfit(workload, knobs))

    def plan(self, workload: PiecewiseLinearWorkload, fixed: Knobs) -> Plan | Refusal:
        budget, pieces = workload.context.budget, workload.pieces
        if pieces > most_pieces(budget):
            return Refusal(_too_many(pieces, f"there is room for {most_pieces(budget)}"))
        vthreads = int(fixed.get("vthreads", self.machine.vthreads))
        step = budget.tmp // (pieces * vthreads)
        if not step:
            vthreads, step = int(fixed.get("vthreads", 1)), budget.tmp // pieces
        step = int(fixed.get("step", step))
        most = min(budget.inp, budget.out) // (2 * vthreads)
        size = min(workload.entries, most // step * step or most)
        size = int(fixed.get("size", size))
        knobs = {"size": size, "step": min(step, size), "vthreads": vthreads}
        if reason := self.space(workload).refuse(knobs):
            return Refusal(reason)
        return Plan(knobs, self.predict(workload, knobs))

    def predict(self, workload: PiecewiseLinearWorkload, knobs: Knobs) -> int:
        size, vthreads = int(knobs["size"]), int(knobs["vthreads"])
        passes = 2 * workload.pieces
        return row_cycles(workload.entries, size, passes, 1, vthreads, self.machine)

    def schedule(self, workload: PiecewiseLinearWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: x, knots and slopes (int32 [pieces, block]), par ([1, 3, block]), out."""
        params, pieces = self.machine.params, workload.pieces
        shape = (1, 1, workload.entries, params.batch, params.block)
        x = placeholder(shape, "int8", "x")
        knots = placeholder((pieces, params.block), "int32", "knots")
        slopes = placeholder((pieces, params.block), "int32", "slopes")
        par = placeholder((1, REQUANT_ENTRIES, params.block), "int32", "param")
        maxima = compute(
            (pieces, *shape),
            lambda k, c, h, w, b, i: maximum(x[c, h, w, b, i].astype("int32"), knots[k, i]),
            "maxima",
        )
        k = reduce_axis(pieces, "k")
        total = compute(
            shape, lambda c, h, w, b, i: sum_of(maxima[k, c, h, w, b, i] * slopes[k, i], k), "total"
        )
        out = requantized(total, par, workload.epilogue, per_channel=False)

        s = create_schedule(out)
        local = s.cache_write(out, "out")
        x_tile = s.cache_read(x, "inp", [maxima])
        constants = [
            s.cache_read(*cached)
            for cached in (
                (knots, "par", [maxima]), (slopes, "par", [total]), (par, "par", [local]),
            )
        ]  # fmt: skip
        (channels, rows, cols), _ = split_tiles(s[out], (1, 1, int(knobs["size"])))
        tile = vthread_tiles(s[out], [rows, cols], int(knobs["vthreads"]))
        attach(s, {x_tile: "inp", local: "out"}, s[out], tile)
        # Knots, slopes and parameters are the same for all tiles, and are loaded once.
        attach(s, dict.fromkeys(constants, "par"), s[out], channels)
        some, _ = s[local].split(local.axes[2], int(knobs["step"]))
        attach(s, {maxima: "tmp", total: "tmp"}, s[local], some)
        s[total].reorder(k, *total.axes)
        return lower(s, [x, knots, slopes, par, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        found, block = _find_line(node), self.machine.params.block
        knots, slopes = (np.repeat(v[:, None], block, 1) for v in (found.knots, found.slopes))
        epilogue = uniform_parameters(found.bias, 1, FRACTION_BITS, self.machine)
        return {"knots": knots, "slopes": slopes, "requantisation": epilogue}


def _misfit(workload: PiecewiseLinearWorkload, knobs: Knobs) -> str:
    """Which scratchpad is too small, or an empty string."""
    budget, vthreads = workload.context.budget, int(knobs["vthreads"])
    size, step = int(knobs["size"]), int(knobs["step"])
    if step > size:
        return f"knob step: expected at most size, {size}, got {step}"
    needs = {
        "tmp": step * workload.pieces * vthreads,
        "inp": size * vthreads,
        "out": size * vthreads,
        "par": 2 * workload.pieces + REQUANT_ENTRIES,
    }
    return budget.lack(needs)


def _find_line(node: Node) -> PiecewiseLinear:
    assert isinstance(node.op, QTable)
    found = node.op.piecewise_linear
    assert found is not None
    return found
