"""Pooling and depthwise convolution on the vector unit: windows over each channel by itself."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from .....isa.params import HwParams
from .....runtime.layout import pack_depthwise_weight
from ....choose.space import Knobs, Refusal
from ....graph.arithmetic.requant import INT8_MIN
from ....graph.ir import Graph, Node
from ....graph.ops.convolution import QConv2d
from ....graph.ops.fused_pairs import QConvTable
from ....graph.ops.integer import QTable
from ....graph.ops.pooling import QAvgPool, QMaxPool
from ....te.expr import Expr
from ....te.schedule import Schedule, create_schedule
from ....te.tensor import IterVar, Tensor, compute, max_of, placeholder, reduce_axis, sum_of
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from .. import expressions as E
from ..cost.tiling import Tiling, WindowShape, make_tiling, slide_cols
from ..machine import Budget, Context
from .base import (
    PlannedTiles,
    PlannedWorkload,
    Track,
    blocked_shape,
    requant_parameters,
    uniform_parameters,
)
from .convolution import FusedEpilogue, folded_bias, split_int8
from .fused_products import look_up
from .lookup_table import table_words

Kind = Literal["max", "sum", "weighted sum", "weighted sum, looked up"]

#: A requantisation that changes nothing: multiplier / 2**shift = 1.
IDENTITY_MULTIPLIER, IDENTITY_SHIFT = 1 << 30, 30


@dataclass(frozen=True)
class Slide:
    """How a window of the vector unit slides along a row with a ``step``. The columns of the
    kernel, zero behind its last, are cut into ``pieces`` of ``sums`` steps. An iteration multiplies
    an entry by the weights of one column of each step of a piece, and adds the products to as many
    sums.
    """

    sums: int
    step: int
    pieces: int

    @property
    def phases(self) -> int:
        """Iterations for a row of the kernel: one for each column of a step, in each piece."""
        return self.step * self.pieces

    @property
    def cols(self) -> int:
        """Columns of the kernel, with those that are zero."""
        return self.sums * self.phases

    def pads(self, window: E.Window, height: int, width: int) -> E.Pads:
        """The border of an image. The window reads columns behind the last one of the kernel, which
        it multiplies by zero."""
        top, left, bottom, right = window.pads
        _, cols = window.output(height, width)
        read = (cols - 1) * self.step + self.cols
        return top, left, bottom, max(right, read - left - width)

    def pack(self, weight: np.ndarray, params: HwParams) -> np.ndarray:
        """[C][1][H][W] int8 to [C/block][H][phases][block] int32, whose bytes are the weights of
        all steps of a piece."""
        packed = pack_depthwise_weight(weight, params)
        blocks, kh, kw, block = packed.shape
        wide = np.zeros((blocks, kh, self.cols, block), np.int8)
        wide[:, :, :kw] = packed
        cut = wide.reshape(blocks, kh, self.pieces, self.sums, self.step, block)
        words = np.zeros((blocks, kh, self.pieces, self.step, block, 4), np.int8)
        words[..., : self.sums] = cut.transpose(0, 1, 2, 4, 5, 3)
        return words.view("<i4").reshape(blocks, kh, self.phases, block)


def plan_slide(
    window: E.Window, height: int, width: int, products: int, parts: int = 1
) -> Slide | None:
    """How a window slides over an image. An iteration makes ``products`` products, and each weight
    is the sum of ``parts`` int8 values. None if sliding is not faster than one product after the
    other, or needs more loops than an instruction has."""
    _, cols = window.output(height, width)
    (_, kw), (_, step) = window.kernel, window.strides
    if not products or window.dilations[1] > 1:
        return None
    pieces = next(n for n in range(1, kw + 1) if -(-kw // (n * step)) <= products)
    if parts > 1 and pieces > 1 and step > 1:  # and the rows of the kernel, and results
        return None
    slide = Slide(-(-kw // (pieces * step)), step, pieces)
    results = slide_cols(cols, slide.sums)
    return slide if slide.sums > 1 and results * slide.phases < cols * kw else None


@dataclass(frozen=True)
class WindowWorkload(PlannedWorkload):
    """Channels reduced over a window: pooling, or ("weighted sum") depthwise convolution, where
    each weight is the sum of ``parts`` int8 values, and perhaps its results looked up in a table.
    The image is padded with ``pad_value``. The windows ``slide``, or make one product after the
    other.
    """

    kind: Kind
    blocks: int
    height: int
    width: int
    window: E.Window
    parts: int
    context: Context
    pad_value: int = field(compare=False)
    epilogue: E.Epilogue = field(compare=False)
    slide: Slide | None = field(default=None, compare=False)

    @property
    def shape(self) -> WindowShape:
        """The windows as the planner sees them."""
        shape = WindowShape(
            oc_blocks=self.blocks, parts=self.parts, weighted=self.weighted,
            looked_up=self.looked_up, **self.window.sizes(self.height, self.width),
        )  # fmt: skip
        if self.slide is None:
            return shape
        shape = replace(shape, kw=self.slide.cols, sums=self.slide.sums)
        entries = (shape.taps + E.REQUANT_ENTRIES) * self.blocks
        return replace(shape, resident=entries <= self.context.budget.par)

    @property
    def weighted(self) -> bool:
        """Whether elements are multiplied by weights."""
        return self.kind.startswith("weighted sum")

    @property
    def looked_up(self) -> bool:
        """Whether results are looked up in a table."""
        return self.kind == "weighted sum, looked up"


class Windows(PlannedTiles[WindowWorkload]):
    """Windows on the vector unit: a maximum, a sum, or a sum of products."""

    name = "windows"
    ops = (QConv2d, QConvTable, QMaxPool, QAvgPool)
    track = Track.VECTOR

    @property
    def share(self) -> Fraction:
        """Where windows slide, loads bound depthwise convolutions. Larger tiles load fewer rows and
        columns twice."""
        return Fraction(7, 16) if self.machine.params.vector_window else super().share

    def handles(self, graph: Graph, node: Node) -> bool:
        op = split_epilogue(node)[0].op
        return not isinstance(op, QConv2d) or op.is_depthwise(graph[node.inputs[1]].shape)

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        if isinstance(node.op, QConv2d | QConvTable):
            return "depthwise convolution on the vector unit"
        assert isinstance(node.op, QMaxPool | QAvgPool)
        height, width = node.op.kernel
        entries, depth = height * width * self.machine.vthreads, self.machine.params.inp_depth
        if entries > depth:
            return Refusal(
                f"a window of {height}x{width}, which needs {entries} entries of inp with "
                f"{self.machine.vthreads} virtual threads, and there are {depth}"
            )
        return "on the vector unit"

    def workload(self, graph: Graph, node: Node, context: Context) -> WindowWorkload:
        image = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        match node.op:
            case QMaxPool() as op:
                window, epilogue = (
                    E.Window(op.kernel, op.strides, op.pads),
                    E.Epilogue(0, op.lo, op.hi),
                )
                return WindowWorkload("max", *image, window, 1, context, INT8_MIN, epilogue)
            case QAvgPool() as op:
                window = E.Window(op.kernel, op.strides, op.pads)
                epilogue = E.Epilogue.from_requant(op.requant)
                return WindowWorkload("sum", *image, window, 1, context, op.x_zero_point, epilogue)
        node, table = split_epilogue(node)
        if table is not None:
            par = context.budget.par - self.machine.params.table_entries
            context = replace(context, budget=replace(context.budget, par=par))
        op, weight = node.op_as(QConv2d), graph[node.inputs[1]]
        assert weight.data is not None
        kernel = weight.shape[2], weight.shape[3]
        window = E.Window(kernel, op.strides, op.pads, op.dilations)
        parts = len(split_int8(weight.data))
        return WindowWorkload(
            "weighted sum" if table is None else "weighted sum, looked up", *image, window, parts,
            context, op.x_zero_point, E.Epilogue.from_requant(op.requant),
            plan_slide(window, *image[1:], self.machine.params.vector_window, parts),
        )  # fmt: skip

    def context_used(self, workload: WindowWorkload, knobs: Knobs) -> Hashable:
        return workload.shape.resident

    def schedule(self, workload: WindowWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters of the program: data; for a weighted sum the weights, int8 [blocks, KH, KW,
        block], or [blocks, parts, KH, KW, block] where a weight has several parts, and those of a
        window that slides int32 [.., KH, phases, block]; par, [blocks, 3, block] for a weighted
        sum, else [1, 3, block] for all channels; the table, if there is one, in which results are
        looked up that wait in ``tmp``, block by block of channels; out.
        """
        params, blocks, weighted = self.machine.params, workload.blocks, workload.weighted
        size = (blocks, workload.height, workload.width, params.batch, params.block)
        data = placeholder(size, "int8", "data")
        part, slide = E.part_axes(workload.parts), workload.slide
        kh, kw = workload.window.kernel
        taps = (*(axis.extent for axis in part), kh, slide.phases if slide else kw)
        dtype = "int32" if slide else "int8"
        weight = placeholder((blocks, *taps, params.block), dtype, "weight")
        wide = compute(weight.shape, lambda *i: weight[i].astype("int32"), "wide")
        sets = (blocks if weighted else 1, E.REQUANT_ENTRIES, params.block)
        par = placeholder(sets, "int32", "param")
        reduced, image = _reduced(workload, data, wide, part)
        first = E.requantized(reduced, par, workload.epilogue, per_channel=weighted)
        last = None
        if workload.looked_up:
            rounded = compute(first.shape, lambda *i: first[i].astype("int32"), "rounded")
            last = look_up(rounded, (), blocks, self.machine)
        s = _schedule(workload, first, last, reduced, image, par, wide, make_tiling(knobs))
        constants = [*([weight] if weighted else []), par]
        results = [first] if last is None else [last.par, last.out]
        return lower(s, [data, *constants, *results], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        match node.op:
            case QMaxPool():
                identity = (0, IDENTITY_MULTIPLIER, IDENTITY_SHIFT)
                return {"requantisation": uniform_parameters(*identity, self.machine)}
            case QAvgPool() as op:
                count = op.kernel[0] * op.kernel[1]
                bias = np.full(self.machine.params.block, -op.x_zero_point * count, np.int32)
                return {"requantisation": requant_parameters(bias, op.requant, self.machine)}
        node, table = split_epilogue(node)
        op, (weight, bias) = node.op_as(QConv2d), (graph[name].data for name in node.inputs[1:])
        assert weight is not None and bias is not None
        params = self.machine.params
        slide = self.workload(graph, node, Context(Budget.whole(params))).slide
        packed = [
            slide.pack(part, params) if slide else pack_depthwise_weight(part, params)
            for part in split_int8(weight)
        ]
        folded = folded_bias(weight, bias, op.x_zero_point)
        return {
            "weight": packed[0] if len(packed) == 1 else np.stack(packed, 1),
            "requantisation": requant_parameters(folded, op.requant, self.machine),
            **({} if table is None else {"table": table_words(table, self.machine)}),
        }


def split_epilogue(node: Node) -> tuple[Node, QTable | None]:
    """A node without the table of its results, and this table, if it has one."""
    if isinstance(node.op, QConvTable):
        return replace(node, op=node.op.first), node.op.last
    return node, None


def _reduced(
    workload: WindowWorkload, data: Tensor, wide: Tensor, part: tuple[IterVar, ...]
) -> tuple[Tensor, Tensor]:
    """Every channel reduced over its windows, and the image with its border that they read."""
    window, slide = workload.window, workload.slide
    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.strides, window.dilations
    size = window.output(workload.height, workload.width)
    ky, kx = reduce_axis(kh, "ky"), reduce_axis(kw, "kx")
    if slide:
        image = E.padded(data, slide.pads(window, *data.shape[1:3]), workload.pad_value)
        return slid(window, size, image, wide, (*part, ky), slide), image
    image = E.padded(data, window.pads, workload.pad_value)

    def rule(c: Expr, y: Expr, x: Expr, b: Expr, i: Expr) -> Expr:
        element = image[c, y * sh + ky * dh, x * sw + kx * dw, b, i].astype("int32")
        if workload.kind == "max":
            return max_of(element, (ky, kx))
        term = element * wide[(c, *part, ky, kx, i)] if workload.weighted else element
        return sum_of(term, (*part, ky, kx))

    return compute((workload.blocks, *size, *data.shape[3:]), rule, "reduced"), image


def slid(
    window: E.Window, size: tuple[int, int], image: Tensor, words: Tensor,
    rows: tuple[IterVar, ...], slide: Slide,
) -> Tensor:  # fmt: skip
    """Every channel reduced over a window that slides to ``size`` rows and columns. ``image`` has
    its border (int8, or the lowest bytes of int32), ``words`` has the weights, and
    ``rows`` are the axes over the parts and the rows of the kernel."""
    *_, ky = rows
    sh, dh = window.strides[0], window.dilations[0]
    piece, column, step = (
        reduce_axis(extent, axis)
        for extent, axis in ((slide.pieces, "piece"), (slide.step, "column"), (slide.sums, "step"))
    )

    def rule(c: Expr, y: Expr, x: Expr, b: Expr, i: Expr) -> Expr:
        place = (x + step + piece * slide.sums) * slide.step + column
        element = image[c, y * sh + ky * dh, place, b, i].astype("int8").astype("int32")
        weight = E.select_byte(words[(c, *rows, piece * slide.step + column, i)], step)
        return sum_of(element * weight, (*rows, piece, column, step))

    return compute((image.shape[0], *size, *image.shape[3:]), rule, "reduced")


def _schedule(
    workload: WindowWorkload, first: Tensor, last: FusedEpilogue | None, reduced: Tensor,
    image: Tensor, par: Tensor, wide: Tensor, tiling: Tiling,
) -> Schedule:  # fmt: skip
    """Tiles of channels, rows and columns; weights, if there are any, with their channels, or
    resident: those of all channels before all tiles. ``first`` has the rounded results, which a
    fused epilogue ``last`` reads in ``tmp``, block by block of channels."""
    out = first if last is None else last.out
    s = create_schedule(out)
    local = s.cache_write(out, "out")
    constants = [s.cache_read(par, "par", [local if last is None else first])]
    if last is not None:
        s.cache_read(last.par, "par", [local])  # once, for all tiles
        s[first].compute_inline()
        E.attach(s, dict.fromkeys((reduced, *last.in_tmp), "tmp"), s[local], local.axes[0])
    if workload.weighted:
        s[wide].set_scope("par")
        constants.append(wide)
    sizes = (tiling.oc_blocks, tiling.rows, tiling.cols)
    (channels, rows, cols), _ = E.split_tiles(s[out], sizes)
    match tiling.order:
        case "weights":
            passing = [rows, cols]
        case "pixels":
            passing = [rows, cols, channels]
            s[out].reorder(*passing)
        case _:
            passing = [channels, rows, cols]
    tile = E.vthread_tiles(s[out], passing, tiling.vthreads)
    E.attach(s, {image: "inp", local: "out"}, s[out], tile)
    if last is None:
        E.attach(s, {reduced: "tmp"}, s[out], tile)
    s[reduced].reorder(*reduced.reduce_axes, *reduced.axes)
    # Parameters that all channels share are loaded once, so they are not attached to a tile.
    for tensor in constants if workload.weighted and not workload.shape.resident else ():
        s[tensor].compute_at(s[out], channels if tiling.order == "weights" else tile)
        if tiling.order == "weights" and tiling.vthreads > 1:
            s[tensor].double_buffer()
    return s
