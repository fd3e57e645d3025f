"""Operators on the accelerator: tensor expressions in the blocked layout, and their schedules.

Activations are [blocks, H, W, batch, block] (``runtime/layout.py``), weights [oc blocks, ic blocks,
KH, KW, block_out, block_in], requantisation parameters [oc blocks, 3, block]. Every function
returns a loop program whose parameters are DRAM buffers, inputs first, the output last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ....isa.params import HwParams
from ...te.expr import Call, Expr, all_of, select
from ...te.schedule import Schedule, Stage, create_schedule
from ...te.tensor import IterVar, Tensor, clip, compute, max_of, placeholder, reduce_axis, sum_of
from ...tir.ir import PrimFunc
from ...tir.lower import lower
from ...tir.tensorize import TensorIntrin
from .planner import Tiling

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]


@dataclass(frozen=True)
class Window:
    """Window geometry: kernel, strides, pads (top, left, bottom, right) and dilations."""

    kernel: Pair
    strides: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    dilations: Pair = (1, 1)

    def output(self, height: int, width: int) -> Pair:
        """Output height and width."""
        top, left, bottom, right = self.pads
        return (
            (height + top + bottom - (self.kernel[0] - 1) * self.dilations[0] - 1) //
            self.strides[0] + 1, (width + left + right - (self.kernel[1] - 1) * self.dilations[1] -
            1) // self.strides[1] + 1,
        )  # fmt: skip


@dataclass(frozen=True)
class Clamp:
    """What ends a requantisation: zero point and bounds; and the intrinsic that rounds before."""

    zero_point: int
    lo: int = -128
    hi: int = 127
    rescale: str = "requantize"


def gemm_intrin(params: HwParams) -> TensorIntrin:
    """The tensor core's step: y[b, o] += sum_i x[b, i] * w[o, i], int8 operands, int32 result."""
    x = placeholder((params.batch, params.block_in), "int8", "x")
    w = placeholder((params.block_out, params.block_in), "int8", "w")
    k = reduce_axis(params.block_in, "k")
    product = compute(
        (params.batch, params.block_out),
        lambda b, o: sum_of(x[b, k].astype("int32") * w[o, k].astype("int32"), k),
        "y",
    )
    return TensorIntrin("gemm", product)


def bordered(data: Tensor, pads: Pads, value: int, row_step: int = 1) -> Tensor:
    """Every ``row_step``-th row of the activation with a border of ``value``; with no border at
    all, a plain copy."""
    blocks, height, width, batch, block = data.shape
    top, left, bottom, right = pads
    rows = -(-(top + height + bottom) // row_step)

    def rule(c: Expr, y: Expr, x: Expr, b: Expr, i: Expr) -> Expr:
        row = y * row_step
        element = data[c, row - top, x - left, b, i]
        conditions = []
        if top:
            conditions.append(row >= top)
        if bottom:
            conditions.append(row < top + height)
        if left:
            conditions.append(x >= left)
        if right:
            conditions.append(x < left + width)
        return select(all_of(*conditions), element, value) if conditions else element

    return compute((blocks, rows, left + width + right, batch, block), rule, "padded")


def _requantized(acc: Tensor, par: Tensor, clamp: Clamp, per_channel: bool = True) -> Tensor:
    """``clip(requantize(acc + bias, multiplier, shift) + zero_point)`` as int8; one parameter set
    per channel block, or one for all."""

    def rule(c: Expr, y: Expr, x: Expr, b: Expr, i: Expr) -> Expr:
        row = c if per_channel else 0
        total = acc[c, y, x, b, i] + par[row, 0, i]
        scaled = Call(clamp.rescale, (total, par[row, 1, i], par[row, 2, i]), "int64")
        return clip(scaled + clamp.zero_point, clamp.lo, clamp.hi).astype("int8")

    return compute(acc.shape, rule, "out")


def _tile(stage: Stage, sizes: tuple[int, ...], vthreads: int) -> IterVar:
    """Tile the first axes of an output stage, run tiles in order on alternating virtual threads,
    and return the loop that a tile's producers are computed at."""
    outer, _ = _split_tiles(stage, sizes)
    return _vthread_tiles(stage, outer, vthreads)


def _split_tiles(
    stage: Stage, sizes: tuple[int, ...], dims: Sequence[int] = (0, 1, 2)
) -> tuple[list[IterVar], list[IterVar]]:
    """Tile some dimensions of a stage; the loops over tiles, which are outside of all others, and
    those within a tile, of all dimensions."""
    inner = list(stage.tensor.axes)
    outer = []
    for dim, size in zip(dims, sizes, strict=True):
        tiles, inner[dim] = stage.split(inner[dim], size)
        outer.append(tiles)
    stage.reorder(*outer, *inner)
    return outer, inner


def _vthread_tiles(stage: Stage, loops: list[IterVar], vthreads: int) -> IterVar:
    """Run the tiles of adjacent loops on alternating virtual threads; the thread's loop."""
    tile = loops[0]
    for axis in loops[1:]:
        tile = stage.fuse(tile, axis)
    _, thread = stage.split(tile, min(vthreads, tile.extent))
    stage.vthread(thread)
    return thread


# ---- convolution and dense ---------------------------------------------------------------------


def conv2d(
    name: str,
    data_shape: tuple[int, int, int],
    oc_blocks: int,
    window: Window,
    pad_value: int,
    clamp: Clamp,
    params: HwParams,
    tiling: Tiling,
    vthreads: int,
    parts: int = 1,
) -> PrimFunc:
    """Convolution; ``data_shape`` is (channel blocks, H, W). Parameters of the program: data,
    weight, par, out. With ``parts``, a weight is the sum of so many: [oc blocks, ic blocks, parts,
    KH, KW, block_out, block_in].

    The bias in ``par`` contains ``-x_zero_point * sum(weight)``; padding is ``pad_value`` = the
    zero point.
    """
    ic_blocks, height, width = data_shape
    batch, block = params.batch, params.block
    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.strides, window.dilations
    oh, ow = window.output(height, width)
    data = placeholder((ic_blocks, height, width, batch, block), "int8", "data")
    part = _parts(parts)
    taps = (*(axis.extent for axis in part), kh, kw)
    weight = placeholder((oc_blocks, ic_blocks, *taps, block, block), "int8", "weight")
    par = placeholder((oc_blocks, 3, block), "int32", "param")
    # A kernel of one row reads no row between those of its stride.
    row_step = sh if kh == 1 else 1
    padded = bordered(data, window.pads, pad_value, row_step)
    cb, ky, kx, ci = (
        reduce_axis(extent, axis)
        for extent, axis in ((ic_blocks, "cb"), (kh, "ky"), (kw, "kx"), (block, "ci"))
    )
    acc = compute(
        (oc_blocks, oh, ow, batch, block),
        lambda c, y, x, b, i: sum_of(
            padded[cb, y * (sh // row_step) + ky * dh, x * sw + kx * dw, b, ci].astype("int32")
            * weight[(c, cb, *part, ky, kx, i, ci)].astype("int32"),
            (cb, *part, ky, kx, ci),
        ),
        "acc",
    )
    out = _requantized(acc, par, clamp)

    s = schedule_products(out, acc, padded, weight, par, (0, 1, 2), tiling, params, vthreads)
    return lower(s, [data, weight, par, out], name)


def schedule_products(
    out: Tensor,
    acc: Tensor,
    padded: Tensor,
    weight: Tensor,
    par: Tensor,
    tiled: tuple[int, int, int],
    tiling: Tiling,
    params: HwParams,
    vthreads: int,
) -> Schedule:
    """The schedule of a convolution whose products of blocks are summed in ``acc`` and requantised
    to ``out``; ``tiled`` are the dimensions of ``out`` that are channels, rows and columns. The
    sums of ``acc`` run over blocks of channels, two taps and the channels of a block.
    """
    s = create_schedule(out)
    local = s.cache_write(out, "out")
    weight_tile = s.cache_read(weight, "wgt", [acc])
    par_tile = s.cache_read(par, "par", [local])
    s[acc].set_scope("acc")
    s[padded].set_scope("inp")
    sizes = (tiling.oc_blocks, tiling.rows, tiling.cols)
    (channels, rows, cols), (channel, *_) = _split_tiles(s[out], sizes, tiled)
    *places, b, i = acc.axes
    cb, *taps, ci = acc.reduce_axes
    cb_outer, cb_inner = s[acc].split(cb, tiling.ic_blocks)
    s[acc].reorder(cb_outer, *places, cb_inner, *taps, b, i, ci)
    s[acc].tensorize(b, gemm_intrin(params))
    # What stays on chip, and the loop that it stays in.
    staying: dict[Tensor, IterVar] = {}
    match tiling.order:
        case "weights":
            tile = _vthread_tiles(s[out], [rows, cols], vthreads)
            staying = {weight_tile: channels, par_tile: channels}
        case "pixels":
            s[out].reorder(rows, cols, channels)
            pixels = s[out].fuse(rows, cols)
            tile = _vthread_tiles(s[out], [channels], vthreads)
            staying = {padded: pixels}
        case _:
            tile = _vthread_tiles(s[out], [channels, rows, cols], vthreads)
    for tensor in (acc, par_tile):
        s[tensor].compute_at(s[out], staying.get(tensor, tile))
    # Results leave block by block of channels, all of one thread's before the next one's.
    s[out].unroll(channel)
    s[local].compute_at(s[out], channel)
    if tiling.oc_blocks > 1:
        s[local].double_buffer()
    for tensor in (padded, weight_tile):
        if tensor in staying:
            s[tensor].compute_at(s[out], staying[tensor])
        else:
            s[tensor].compute_at(s[acc], cb_outer)
    if vthreads > 1:
        for tensor in staying:
            s[tensor].double_buffer()
    return s


def _parts(count: int) -> tuple[IterVar, ...]:
    """The axis over a weight's parts, if it has several."""
    return (reduce_axis(count, "part"),) if count > 1 else ()


# ---- pooling and depthwise convolution ---------------------------------------------------------

Kind = Literal["max", "sum", "weighted sum"]


def window2d(
    name: str,
    kind: Kind,
    data_shape: tuple[int, int, int],
    window: Window,
    pad_value: int,
    clamp: Clamp,
    params: HwParams,
    tiling: Tiling,
    vthreads: int,
    parts: int = 1,
) -> PrimFunc:
    """Every channel reduced over a window and requantised, on the vector unit: pooling, and
    depthwise convolution ("weighted sum").

    Parameters of the program: data, for a weighted sum the weights ([blocks, KH, KW, block]
    int8, with ``parts`` behind the blocks where a weight is the sum of several), par ([blocks, 3,
    block] for a weighted sum, else [1, 3, block] for all channels), out.
    """
    blocks, height, width = data_shape
    weighted = kind == "weighted sum"
    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.strides, window.dilations
    oh, ow = window.output(height, width)
    data = placeholder((blocks, height, width, params.batch, params.block), "int8", "data")
    part = _parts(parts)
    taps = (*(axis.extent for axis in part), kh, kw)
    weight = placeholder((blocks, *taps, params.block), "int8", "weight")
    wide = compute(weight.shape, lambda *i: weight[i].astype("int32"), "wide")
    par = placeholder((blocks if weighted else 1, 3, params.block), "int32", "param")
    padded = bordered(data, window.pads, pad_value)
    ky, kx = reduce_axis(kh, "ky"), reduce_axis(kw, "kx")

    def rule(c: Expr, y: Expr, x: Expr, b: Expr, i: Expr) -> Expr:
        element = padded[c, y * sh + ky * dh, x * sw + kx * dw, b, i].astype("int32")
        if kind == "max":
            return max_of(element, (ky, kx))
        term = element * wide[(c, *part, ky, kx, i)] if weighted else element
        return sum_of(term, (*part, ky, kx))

    reduced = compute((blocks, oh, ow, params.batch, params.block), rule, "reduced")
    out = _requantized(reduced, par, clamp, per_channel=weighted)

    s = create_schedule(out)
    local = s.cache_write(out, "out")
    constants = [s.cache_read(par, "par", [local])]
    if weighted:
        s[wide].set_scope("par")
        constants.append(wide)
    sizes = (tiling.oc_blocks, tiling.rows, tiling.cols)
    (channels, rows, cols), _ = _split_tiles(s[out], sizes)
    match tiling.order:
        case "weights":
            passing = [rows, cols]
        case "pixels":
            passing = [rows, cols, channels]
            s[out].reorder(*passing)
        case _:
            passing = [channels, rows, cols]
    tile = _vthread_tiles(s[out], passing, vthreads)
    _attach(s, {reduced: "tmp", padded: "inp", local: "out"}, s[out], tile)
    c, y, x, b, i = reduced.axes
    s[reduced].reorder(*part, ky, kx, c, y, x, b, i)
    # What all channels share is loaded once.
    for tensor in constants if weighted else ():
        s[tensor].compute_at(s[out], channels if tiling.order == "weights" else tile)
        if tiling.order == "weights" and vthreads > 1:
            s[tensor].double_buffer()
    return lower(s, [data, *([weight] if weighted else []), par, out], name)


# ---- residual addition -------------------------------------------------------------------------


def add(
    name: str,
    entries: int,
    multipliers: Pair,
    clamp: Clamp,
    params: HwParams,
    vthreads: int,
) -> PrimFunc:
    """``requantize(a*ma + b*mb)`` over ``entries`` vectors; parameters: a, b, par ([1, 3, block]:
    constant, 1, shift), out. An operand whose multiplier is 0 is not loaded.
    """
    shape = (1, 1, entries, params.batch, params.block)
    a, b = placeholder(shape, "int8", "a"), placeholder(shape, "int8", "b")
    par = placeholder((1, 3, params.block), "int32", "param")

    def scaled(source: Tensor, factor: int, label: str) -> Tensor:
        return compute(
            shape, lambda c, y, x, n, i: source[c, y, x, n, i].astype("int32") * factor, label
        )

    operands = [(a, multipliers[0], "left"), (b, multipliers[1], "right")]
    if not any(multipliers):
        operands = [(a, 1, "left")]
    terms = {x: scaled(x, factor, label) for x, factor, label in operands if factor}

    def rule(*i: Expr) -> Expr:
        left, *right = (term[i] for term in terms.values())
        if right:
            return left + right[0]
        # The vector unit cannot write a constant; a value less itself is 0.
        return left if any(multipliers) else left - left

    total = compute(shape, rule, "total")
    out = _requantized(total, par, clamp, per_channel=False)
    size = min(entries, params.tmp_depth // (2 * vthreads), params.out_depth // vthreads)
    size = min(size, params.inp_depth // (2 * vthreads))

    s = create_schedule(out)
    local = s.cache_write(out, "out")
    s[total].compute_inline()
    tiles = [s.cache_read(source, "inp", [term]) for source, term in terms.items()]
    par_tile = s.cache_read(par, "par", [local])
    tile = _tile(s[out], (1, 1, size), vthreads)
    scopes = dict.fromkeys(terms.values(), "tmp") | dict.fromkeys(tiles, "inp")
    _attach(s, scopes | {local: "out", par_tile: "par"}, s[out], tile)
    return lower(s, [a, b, par, out], name)


def _attach(s: Schedule, scopes: dict[Tensor, str], consumer: Stage, tile: IterVar) -> None:
    """Compute tensors inside a tile, each in its scratchpad."""
    for tensor, scope in scopes.items():
        s[tensor].set_scope(scope)
        s[tensor].compute_at(consumer, tile)
