"""Convolutions and dense layers on the tensor core.

Convolutions in groups are computed a few groups at a time, so that little is multiplied by the
zeros between groups. Groups of few channels are taken together until they fill whole blocks.
Channels, [blocks, H, W, batch, block], then are [groups, blocks of a group, H, W, batch, block],
which lies in memory the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from math import gcd, lcm
from typing import NamedTuple

import numpy as np

from .....isa.packed import scales_of
from .....runtime.layout import blocks, pack_weight
from ....choose.space import Knobs, Refusal
from ....graph.arithmetic.requant import INT8_MAX, INT8_MIN
from ....graph.ir import Graph, Node
from ....graph.ops.convolution import QConv2d
from ....graph.ops.fused_pairs import QTableMean
from ....graph.ops.linear import QDense
from ....graph.ops.movement import Reshape
from ....graph.ops.pooling import QAvgPool
from ....te.expr import Expr
from ....te.schedule import Schedule, create_schedule
from ....te.tensor import IterVar, Tensor, compute, placeholder, reduce_axis
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from .. import expressions as E
from ..cost.tiling import ProductShape, Tiling, make_tiling, skips_cols
from ..machine import Context, Machine
from .base import (
    PlannedTiles,
    PlannedWorkload,
    Track,
    blocked_shape,
    requant_parameters,
)

#: A convolution whose groups do not make whole blocks is computed as a convolution in one group,
#: whose weights between groups are zero. That pays for at most MOST_GROUPS groups, or, as groups
#: share blocks where channels are few, for at most MOST_GROUPED_CHANNELS input channels.
MOST_GROUPS, MOST_GROUPED_CHANNELS = 8, 128


@dataclass(frozen=True)
class ProductsWorkload(PlannedWorkload):
    """A convolution in blocks of channels; a dense layer is a convolution of a single pixel.

    Each weight is the sum of ``parts`` int8 values; ``packed`` ones lie in DRAM as 4 bits. If
    it ``streams``, the sums of all results stay in ``acc``, and weights come by blocks of input
    channels. The image is padded with ``pad_value``, the zero point.
    """

    ic_blocks: int
    height: int
    width: int
    oc_blocks: int
    window: E.Window
    parts: int
    context: Context
    pad_value: int = field(compare=False)
    epilogue: E.Epilogue = field(compare=False)
    skips_cols: bool = field(compare=False)
    packed: bool = field(default=False, kw_only=True)
    streams: bool = field(default=False, kw_only=True)

    @property
    def groups_of_blocks(self) -> tuple[int, ...]:
        """The extent of the dimension of groups before the blocks of channels, if there is one."""
        return ()

    @property
    def shape(self) -> ProductShape:
        """The convolution as the planner sees it."""
        return ProductShape(
            ic_blocks=self.ic_blocks, oc_blocks=self.oc_blocks, parts=self.parts,
            skips_cols=self.skips_cols, packed=self.packed, streams=self.streams,
            **self.window.sizes(self.height, self.width),
        )  # fmt: skip


@dataclass(frozen=True)
class GroupedWorkload(ProductsWorkload):
    """A convolution in groups of blocks of channels."""

    groups: int

    @property
    def groups_of_blocks(self) -> tuple[int, ...]:
        return (self.groups,)

    @property
    def shape(self) -> ProductShape:
        """Groups are in place of blocks of output channels, and the blocks of a group are results
        that lie side by side."""
        return replace(super().shape, oc_blocks=self.groups, phases=self.oc_blocks, grouped=True)


class Stages(NamedTuple):
    """Operands of products, the image with its border, and the sums."""

    data: Tensor
    weight: Tensor
    par: Tensor
    image: Tensor
    acc: Tensor


class FusedEpilogue(NamedTuple):
    """An epilogue that is fused into products, as expressions of their rounded results.

    Attributes
    ----------
    out : the result
    par : the constants that it reads
    in_tmp : the int32 stages that lie in ``tmp``: the rounded results, and others
    inlined : the stage that ``out`` computes as it reads it, if any
    other : a second image, if there is one, which the last stage in ``tmp`` reads
    once : whether all channels read the same entries of ``par``, which are loaded once
    """

    out: Tensor
    par: Tensor
    in_tmp: tuple[Tensor, ...]
    inlined: Tensor | None = None
    other: Tensor | None = None
    once: bool = True


@dataclass(frozen=True)
class Groups:
    """A convolution's groups, ``together`` of them as one: ``count`` of these, each with ``inputs``
    blocks of input channels and ``outputs`` blocks of output channels.
    """

    together: int
    count: int
    inputs: int
    outputs: int


class Products(PlannedTiles[ProductsWorkload]):
    """Convolution and dense layer: ``acc += inp . wgt``, block by block of channels. In groups,
    ``oc_blocks`` of a tile counts groups."""

    name = "products"
    ops = (QConv2d, QDense)
    track = Track.TENSOR

    def handles(self, graph: Graph, node: Node) -> bool:
        weight = graph[node.inputs[1]].shape
        return not (isinstance(node.op, QConv2d) and node.op.is_depthwise(weight))

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        match node.op:
            case QConv2d(groups=1):
                return "convolution on the tensor core"
            case QConv2d(groups=groups) if self.find_groups(graph, node):
                return f"on the tensor core, in {groups} groups"
            case QConv2d(groups=groups):
                channels = graph[node.inputs[0]].shape[1]
                if groups > MOST_GROUPS and channels > MOST_GROUPED_CHANNELS:
                    return Refusal(f"convolution in {groups} groups that do not fill whole blocks")
                return f"on the tensor core, with zeros between its {groups} groups"
        return "matrix product on the tensor core"

    def workload(self, graph: Graph, node: Node, context: Context) -> ProductsWorkload:
        op, weight = node.op, graph[node.inputs[1]]
        assert isinstance(op, QConv2d | QDense) and weight.data is not None
        window = E.Window((1, 1))
        if isinstance(op, QConv2d):
            kernel = weight.shape[2], weight.shape[3]
            window = E.Window(kernel, op.strides, op.pads, op.dilations)
        ic_blocks, height, width = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        oc_blocks, _, _ = blocked_shape(graph.result(node).shape, self.machine)
        skipping = skips_cols(window, width, oc_blocks, self.machine)
        plain = ProductsWorkload(
            ic_blocks, height, width, oc_blocks, window, len(split_int8(weight.data)), context,
            op.x_zero_point, E.Epilogue.from_requant(op.requant), skipping,
            packed=self._is_packed(op, weight.data),
        )  # fmt: skip
        if (groups := self.find_groups(graph, node)) is None:
            return plain
        own = {"ic_blocks": groups.inputs, "oc_blocks": groups.outputs, "skips_cols": False}
        return GroupedWorkload(**vars(plain) | own, groups=groups.count)

    def _is_packed(self, op: QConv2d | QDense, weight: np.ndarray) -> bool:
        """Whether the machine unpacks weights, and each row of a tile of these is a scale times 4
        bits."""
        params = self.machine.params
        apart = isinstance(op, QConv2d) and op.groups > 1
        if apart or not params.packed_weights or weight.dtype != np.int8:
            return False
        if id(weight) not in self._packed:
            kernel = weight.reshape(*weight.shape, *(1,) * (4 - weight.ndim))
            fits = bool(scales_of(pack_weight(kernel, params)).all())
            self._packed[id(weight)] = weight, fits  # while it is here, no other has its id
        return self._packed[id(weight)][1]

    @cached_property
    def _packed(self) -> dict[int, tuple[np.ndarray, bool]]:
        """By their id, weights and whether they are packed."""
        return {}

    def schedule(self, workload: ProductsWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """The bias in ``param`` contains ``-x_zero_point * sum(weight)``."""
        stages, out = self.expression(workload)
        rows = 1 + len(workload.groups_of_blocks)
        tiled = (0, rows, rows + 1)
        loops = schedule_products(
            out, stages, tiled, make_tiling(knobs), self.machine, streams=workload.streams
        )
        return lower(loops.schedule, [stages.data, stages.weight, stages.par, out], name)

    def expression(self, workload: ProductsWorkload) -> tuple[Stages, Tensor]:
        """What is computed: the sums with their operands, and the result."""
        stages = self.stages(workload)
        return stages, E.requantized(stages.acc, stages.par, workload.epilogue)

    def stages(self, workload: ProductsWorkload) -> Stages:
        """The operands, and the sums of products."""
        params, groups = self.machine.params, workload.groups_of_blocks
        batch, block = params.batch, params.block
        size = (*groups, workload.ic_blocks, workload.height, workload.width, batch, block)
        data = placeholder(size, "int8", "data")
        part, results = E.part_axes(workload.parts), (*groups, workload.oc_blocks)
        taps = (*(axis.extent for axis in part), *workload.window.kernel)
        weight = placeholder((*results, workload.ic_blocks, *taps, block, block), "int8", "weight")
        par = placeholder((*results, E.REQUANT_ENTRIES, block), "int32", "param")
        window, pad_value = workload.window, workload.pad_value
        acc, image = sums_of_products(window, pad_value, data, weight, part, workload.skips_cols)
        return Stages(data, weight, par, image, acc)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op, (weight, bias) = node.op, (graph[name].data for name in node.inputs[1:])
        assert isinstance(op, QConv2d | QDense) and weight is not None and bias is not None
        kernel = weight.reshape(*weight.shape, *(1,) * (4 - weight.ndim))
        # Groups that are not computed by themselves are one.
        groups, found = op.groups if isinstance(op, QConv2d) else 1, self.find_groups(graph, node)
        together = groups if found is None else found.together
        packed = [
            pack_weight(merge_groups(part, groups, together), self.machine.params)
            for part in split_int8(kernel)
        ]
        folded = folded_bias(kernel, bias, op.x_zero_point)
        return {
            "weight": packed[0] if len(packed) == 1 else np.stack(packed, 2),
            "requantisation": requant_parameters(folded, op.requant, self.machine),
        }

    def find_groups(self, graph: Graph, node: Node) -> Groups | None:
        """How groups are taken together; None where they do not make several groups of whole
        blocks."""
        if not isinstance(node.op, QConv2d):
            return None
        params, count = self.machine.params, node.op.groups
        outputs, inputs, *_ = graph[node.inputs[1]].shape
        outputs //= count
        fill = [params.block // gcd(params.block, channels) for channels in (inputs, outputs)]
        taken = lcm(*fill)
        found = Groups(
            taken, -(-count // taken), blocks(taken * inputs, params),
            blocks(taken * outputs, params),
        )  # fmt: skip
        whole = (found.count * found.inputs, found.count * found.outputs)
        fits = whole == (blocks(count * inputs, params), blocks(count * outputs, params))
        return found if fits and found.count > 1 else None


class Classifier(Products):
    """The dense layer that classifies an image by the mean of each channel. It has more weights
    than ``wgt`` holds, and uses each once. On a track of its own it multiplies the first means, and
    loads weights, while the convolution before the mean still computes other channels."""

    other_track = Track.CLASSIFIER

    def handles(self, graph: Graph, node: Node) -> bool:
        if not isinstance(node.op, QDense) or find_mean(graph, node) is None:
            return False
        outputs, inputs = graph[node.inputs[1]].shape
        params = self.machine.params
        return blocks(outputs, params) * blocks(inputs, params) > params.wgt_depth

    def workload(self, graph: Graph, node: Node, context: Context) -> ProductsWorkload:
        found = super().workload(graph, node, context)
        return replace(found, streams=self.track is Track.CLASSIFIER)


def find_mean(graph: Graph, node: Node) -> Node | None:
    """The mean of each channel of an image that a node reads, if it reads one."""
    producers = graph.producers()
    maker = producers.get(node.inputs[0])
    while maker is not None and isinstance(maker.op, Reshape):
        maker = producers.get(maker.inputs[0])
    return maker if maker is not None and isinstance(maker.op, QAvgPool | QTableMean) else None


# ---- shared with transposed convolutions and products of activations ----------------------------


def sums_of_products(
    window: E.Window,
    pad_value: int,
    data: Tensor,
    weight: Tensor,
    part: tuple[IterVar, ...],
    skips_cols: bool = False,
) -> tuple[Tensor, Tensor]:
    """The sums of products, and the image with its border that they read.

    ``data`` is [blocks, H, W, batch, block] and ``weight`` [blocks of results, blocks, part, KH,
    KW, block, block]; in groups, both have a dimension more before these, and so have the sums. A
    1x1 kernel may read no column between those of its stride (``skips_cols``).
    """
    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.strides, window.dilations
    # A kernel of one row reads no row between those of its stride.
    row_step = sh if kh == 1 else 1
    col_step = sw if skips_cols else 1
    image = E.padded(data, window.pads, pad_value, row_step, col_step)
    *groups, ic_blocks, height, width, batch, block = data.shape
    cb, ky, kx, ci = (
        reduce_axis(extent, axis)
        for extent, axis in ((ic_blocks, "cb"), (kh, "ky"), (kw, "kx"), (block, "ci"))
    )

    def products(*index: Expr) -> Expr:
        *group, c, y, x, b, i = index
        row, col = y * (sh // row_step) + ky * dh, x * (sw // col_step) + kx * dw
        element, axes = image[(*group, cb, row, col, b, ci)], (cb, *part, ky, kx, ci)
        return E.dot(element, weight[(*group, c, cb, *part, ky, kx, i, ci)], axes)

    size = (*groups, weight.shape[len(groups)], *window.output(height, width), batch, block)
    return compute(size, products, "acc"), image


class ProductLoops(NamedTuple):
    """A schedule of products: the loop over tiles, the operands that stay on chip, each with the
    loop in whose body it stays, and the loop over the blocks of channels of a tile."""

    schedule: Schedule
    tile: IterVar
    staying: dict[Tensor, IterVar]
    channel: IterVar


def schedule_products(
    out: Tensor, stages: Stages, tiled: Sequence[int], tiling: Tiling, machine: Machine,
    epilogue: FusedEpilogue | None = None, rows_in_tmp: int = 0, par_stays: bool = False,
    streams: bool = False,
) -> ProductLoops:  # fmt: skip
    """Schedule products of blocks, which are summed in ``acc`` and requantised to ``out``.

    ``tiled`` has the dimensions of ``out`` that are channels, rows and columns, and before these
    perhaps one of groups, of which a tile has one. The sums of ``acc`` run over blocks of channels,
    two taps and the channels of a block. A fused ``epilogue`` lies in ``tmp``, ``rows_in_tmp`` rows
    at a time. Parameters that are those of all channels stay on the chip (``par_stays``). Where the
    only tile ``streams``, parameters come when its blocks leave, and operands in two buffers.
    """
    acc, image, weight = stages.acc, stages.image, stages.weight
    s = create_schedule(out)
    local = s.cache_write(out, "out")
    if weight.inputs:  # tiles of an image
        s[weight].set_scope("wgt")
    else:
        weight = s.cache_read(weight, "wgt", [acc])
    par_tiles = [s.cache_read(epilogue.par if epilogue else stages.par, "par", [local])]
    others = []
    if epilogue is not None:
        [first] = epilogue.in_tmp[0].inputs  # the results as int8
        if epilogue.once:
            par_tiles.clear()
        if epilogue.other is not None:
            others.append(s.cache_read(epilogue.other, "inp", [epilogue.in_tmp[-1]]))
        if epilogue.inlined is not None:
            s[epilogue.inlined].compute_inline()
        par_tiles.append(s.cache_read(stages.par, "par", [first]))
        s[first].compute_inline()
        part, _ = s[local].split(local.axes[tiled[1]], rows_in_tmp)
        E.attach(s, dict.fromkeys(epilogue.in_tmp, "tmp"), s[local], part)
    if streams:
        others += par_tiles
    if par_stays or streams:
        par_tiles.clear()
    s[acc].set_scope("acc")
    s[image].set_scope("inp")
    sizes = (tiling.oc_blocks, tiling.rows, tiling.cols)
    one = (1,) * (len(tiled) - len(sizes))
    (*groups, channels, rows, cols), inner = E.split_tiles(s[out], (*one, *sizes), tiled)
    channel = inner[tiled[-3]]
    chunks = E.schedule_sums(s, acc, machine.params, tiling.ic_blocks)
    staying: dict[Tensor, IterVar] = {}
    match tiling.order:
        case "weights":
            stay = reduce(s[out].fuse, [*groups, channels])
            tile = E.vthread_tiles(s[out], [rows, cols], tiling.vthreads)
            staying = dict.fromkeys((weight, *par_tiles), stay)
        case "pixels":
            s[out].reorder(*groups, rows, cols, channels)
            pixels = reduce(s[out].fuse, [*groups, rows, cols])
            tile = E.vthread_tiles(s[out], [channels], tiling.vthreads)
            staying = {image: pixels}
        case _:
            tile = E.vthread_tiles(s[out], [*groups, channels, rows, cols], tiling.vthreads)
    for tensor in (acc, *par_tiles):
        s[tensor].compute_at(s[out], staying.get(tensor, tile))
    # Results are stored block by block of channels; a thread stores all its blocks in a row.
    s[out].unroll(channel)
    for tensor in (local, *others):
        s[tensor].compute_at(s[out], channel)
        if tiling.oc_blocks > 1:
            s[tensor].double_buffer()
    for tensor in (image, weight):
        if tensor in staying:
            s[tensor].compute_at(s[out], staying[tensor])
        else:
            s[tensor].compute_at(s[acc], chunks)
    if streams:
        for tensor in (image, weight):
            s[tensor].double_buffer()
    if tiling.vthreads > 1:
        for tensor in staying:
            s[tensor].double_buffer()
    return ProductLoops(s, tile, staying, channel)


# ---- weights -------------------------------------------------------------------------------------


def split_int8(weight: np.ndarray) -> list[np.ndarray]:
    """Split weights into the fewest int8 arrays that add up to them. Weights are int8, or int16
    where their zero point has been subtracted.
    """
    if weight.dtype == np.int8:
        return [weight]
    rest = weight.astype(np.int16)
    parts: list[np.ndarray] = []
    while not parts or rest.any():
        parts.append(np.clip(rest, INT8_MIN, INT8_MAX).astype(np.int8))
        rest = rest - parts[-1]
    return parts


def folded_bias(weight: np.ndarray, bias: np.ndarray, zero_point: int) -> np.ndarray:
    """The bias for products of ``x`` instead of ``x - zero_point``:
    ``sum((x - z) * w) = sum(x * w) - z * sum(w)``. Padding is the zero point, and so contributes
    nothing.
    """
    offset = zero_point * weight.sum((1, 2, 3), dtype=np.int64)
    return (bias.astype(np.int64) - offset).astype(np.int32)


def merge_groups(weight: np.ndarray, groups: int, count: int) -> np.ndarray:
    """A weight [OC,C/groups,KH,KW] with ``count`` groups at a time as one, [OC, count * C/groups,
    KH,KW]: zero for the channels of other groups.
    """
    outputs, channels = weight.shape[0] // groups, weight.shape[1]
    wide = np.zeros((weight.shape[0], count * channels, *weight.shape[2:]), weight.dtype)
    for g in range(groups):
        rows, first = slice(g * outputs, (g + 1) * outputs), g % count * channels
        wide[rows, first : first + channels] = weight[rows]
    return wide
