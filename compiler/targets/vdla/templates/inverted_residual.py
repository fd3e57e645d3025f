"""Fused inverted residuals: a 1x1 convolution on the tensor core and a depthwise one on the vector
unit. The expanded image stays on chip."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf

import numpy as np

from ....choose.space import Knobs, KnobValue, Refusal
from ....choose.template import Plan
from ....graph.ir import Graph, Node
from ....graph.ops.convolution import QConv2d
from ....graph.ops.fused_pairs import QConvTable, QConvWindow
from ....te import compute, create_schedule, placeholder, reduce_axis
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ....tir.passes.share_buffers import share_buffers
from .. import expressions as E
from ..cost.inverted_residual import Expansion, Part
from ..cost.tiling import load_price
from ..machine import Budget, Context
from .base import Tiled, Track, WithinBudget, blocked_shape
from .convolution import Products, sums_of_products
from .lookup_table import table_words
from .windows import Slide, Windows, plan_slide, slid


@dataclass(frozen=True)
class InvertedResidualWorkload(WithinBudget):
    """A 1x1 convolution, perhaps with a LUT, and the windows of a depthwise convolution that slide
    over its result."""

    expansion: Expansion
    slide: Slide
    has_table: bool
    context: Context
    pad_value: int = field(compare=False)
    first: E.Epilogue = field(compare=False)
    last: E.Epilogue = field(compare=False)


#: The scratchpads that the operator shares with operators of the tensor track.
SHARED = ("inp", "out", "par", "wgt", "acc")


class InvertedResiduals(Tiled[InvertedResidualWorkload]):
    """Tile by tile of the image, and block by block of channels: products, which are rounded to
    ``tmp``, and windows over them."""

    name = "windows of products"
    ops = (QConvWindow,)
    track = Track.VECTOR
    says = "convolution on the tensor core, a depthwise one of its results"
    multiplies = True

    @property
    def share(self) -> Fraction:
        return Fraction(1, 2)

    def handles(self, graph: Graph, node: Node) -> bool:
        """Whether a 1x1 convolution comes first, and a window slides over its result."""
        op, (_, weight, _, taps, _) = node.op_as(QConvWindow), graph.operands(node)
        first, last = _convolution(op), op.last
        plain = first.groups == 1 and first.strides == (1, 1) and not any(first.pads)
        if not plain or weight.shape[2:] != (1, 1):
            return False
        if weight.dtype != "int8" or taps.dtype != "int8" or not last.is_depthwise(taps.shape):
            return False
        window = E.Window((taps.shape[2], taps.shape[3]), last.strides, last.pads, last.dilations)
        height, width = graph[node.inputs[0]].shape[2:]
        if any(map(any, window.blank(height, width))):
            return False  # a tile might be a border only
        return plan_slide(window, height, width, self.machine.params.vector_window) is not None

    def usual_context(self, room: Budget) -> Context:
        """The context beside operators of the tensor track, in a network that loads much."""
        others = {m: room.of(m) - int(room.of(m) * self.share) for m in SHARED}
        return Context(room.without(others), beside=True, scarce_loads=True)

    def workload(self, graph: Graph, node: Node, context: Context) -> InvertedResidualWorkload:
        op, weight = node.op_as(QConvWindow), graph[node.inputs[3]]
        first, has_table = _convolution(op), isinstance(op.first, QConvTable)
        if has_table:
            context = context.without({"par": self.machine.params.table_entries})
        ic_blocks, height, width = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        blocks, _, _ = blocked_shape(graph.result(node).shape, self.machine)
        kernel = weight.shape[2], weight.shape[3]
        window = E.Window(kernel, op.last.strides, op.last.pads, op.last.dilations)
        slide = plan_slide(window, height, width, self.machine.params.vector_window)
        assert slide is not None
        expansion = Expansion(
            ic_blocks, blocks, height, width, window, slide.sums, slide.phases, 1 + has_table
        )
        return InvertedResidualWorkload(
            expansion, slide, has_table, context, op.last.x_zero_point,
            E.Epilogue.from_requant(first.requant), E.Epilogue.from_requant(op.last.requant),
        )  # fmt: skip

    def sizes(self, workload: InvertedResidualWorkload) -> Mapping[str, Sequence[KnobValue]]:
        return workload.expansion.knobs

    def needs(self, workload: InvertedResidualWorkload, knobs: Knobs) -> Mapping[str, int]:
        return workload.expansion.needs(Part.of(knobs), workload.context.budget)

    def predict(self, workload: InvertedResidualWorkload, knobs: Knobs) -> int:
        return round(self._work(workload, knobs)[0])

    def cost(self, workload: InvertedResidualWorkload, plan: Plan) -> float:
        """The predicted cycles, and what its loads cost others."""
        cycles, loads = self._work(workload, plan.knobs)
        return cycles + load_price(workload.context) * loads

    def _work(self, workload: InvertedResidualWorkload, knobs: Knobs) -> tuple[float, float]:
        return workload.expansion.work(Part.of(knobs), workload.context.budget, self.machine)

    def cost_ratio(self, workload: InvertedResidualWorkload) -> float:
        """What one operator costs, for each cycle that two cost; infinity where it does not fit."""
        plan = self.plan(workload, {})
        if isinstance(plan, Refusal):
            return inf
        apart = workload.expansion.apart_cost(self.machine, load_price(workload.context))
        return self.cost(workload, plan) / apart

    def context_used(self, workload: InvertedResidualWorkload, knobs: Knobs) -> Hashable:
        expansion, part, budget = workload.expansion, Part.of(knobs), workload.context.budget
        return expansion.leaving(part, budget), expansion.stays(part, budget)

    def schedule(self, workload: InvertedResidualWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: data, weight and param of the convolution, weights (int32 [blocks, KH,
        phases, block]) and param of the windows, out."""
        w, e, params = workload, workload.expansion, self.machine.params
        batch, block = params.batch, params.block
        data = placeholder((e.ic_blocks, e.height, e.width, batch, block), "int8", "data")
        weight = placeholder((e.blocks, e.ic_blocks, 1, 1, block, block), "int8", "weight")
        pars = (e.blocks, E.REQUANT_ENTRIES, block)
        par, last = placeholder(pars, "int32", "param"), placeholder(pars, "int32", "last")
        words = placeholder((e.blocks, e.window.kernel[0], w.slide.phases, block), "int32", "words")

        acc, image = sums_of_products(E.Window((1, 1)), 0, data, weight, ())
        first = E.requantized(acc, par, w.first)
        rounded = compute(acc.shape, lambda *i: first[i].astype("int32"), "rounded")
        pads = w.slide.pads(e.window, e.height, e.width)
        expanded, inlined = E.padded(rounded, pads, w.pad_value), [first, rounded]
        in_tmp, tables = [expanded], []
        if w.has_table:
            table = E.LookupTable(params)
            top, left, *_ = pads
            activated = compute(
                acc.shape,  # without the border
                lambda c, y, x, b, i: table.int32(expanded[c, y + top, x + left, b, i]),
                "looked",
            )
            expanded = E.padded(activated, pads, w.pad_value)
            tables, inlined, in_tmp = [table.words], [*inlined, activated], [*in_tmp, expanded]
        rows = (reduce_axis(e.window.kernel[0], "ky"),)
        reduced = slid(e.window, e.size, expanded, words, rows, w.slide)
        out = E.requantized(reduced, last, w.last)
        part = Part.of(knobs)
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        weights = s.cache_read(weight, "wgt", [acc])
        constants = [
            s.cache_read(par, "par", [first]), s.cache_read(words, "par", [reduced]),
            s.cache_read(last, "par", [local]),
        ]  # fmt: skip
        for tensor in inlined:
            s[tensor].compute_inline()
        for tensor in tables:
            s.cache_read(tensor, "par", [activated])
        (channels, *positions), inner = E.split_tiles(s[out], (1, part.rows, part.cols))
        s[out].reorder(*positions, channels)
        pixels = s[out].fuse(*positions)
        block = tile = E.vthread_tiles(s[out], [channels], part.vthreads)
        s[image].set_scope("inp")
        s[image].compute_at(s[out], pixels)
        if e.tiles(part) > 1:
            s[image].double_buffer()
        E.attach(s, {acc: "acc", **dict.fromkeys(in_tmp, "tmp")}, s[out], block)
        leaving = e.leaving(part, w.context.budget)
        if leaving < part.rows:
            tile, _ = s[out].split(inner[1], leaving)
            s[out].unroll(tile)
        E.attach(s, {reduced: "tmp", local: "out"}, s[out], tile)
        if leaving < part.rows:
            s[local].double_buffer()
        stays = e.stays(part, w.context.budget)
        own = [*(() if "wgt" in stays else [weights]), *(() if "par" in stays else constants)]
        for tensor in own:
            s[tensor].compute_at(s[out], block)
        E.schedule_sums(s, acc, params)
        s[reduced].reorder(*reduced.reduce_axes, *reduced.axes)
        func = lower(s, [data, weight, par, words, last, *tables, out], name)
        return share_buffers(func, "tmp", in_place=True)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op, (image, *operands) = node.op_as(QConvWindow), node.inputs
        first = replace(node, op=_convolution(op), inputs=(image, *operands[:2]))
        last = replace(node, op=op.last, inputs=(image, *operands[2:]))
        windows, tables = Windows(self.machine).constants(graph, last), {}
        if isinstance(op.first, QConvTable):
            tables["table"] = table_words(op.first.last, self.machine)
        return {
            **Products(self.machine).constants(graph, first),
            **{f"window {kind}": data for kind, data in windows.items()},
            **tables,
        }


def _convolution(op: QConvWindow) -> QConv2d:
    """The first convolution."""
    return op.first.first if isinstance(op.first, QConvTable) else op.first
