"""Transposed convolution on the accelerator: the phases of its result side by side, no product with
a zero that lies between elements.

The result [blocks, H, W, batch, block] is seen as [blocks, places, row phases, places, column
phases, batch, block], which lies in memory the same way.
"""

from __future__ import annotations

from ....isa.params import HwParams
from ...graph.arithmetic.subpixel import Subpixel
from ...te.expr import Call, Expr
from ...te.tensor import Tensor, clip, compute, placeholder, reduce_axis, sum_of
from ...tir.ir import PrimFunc
from ...tir.lower import lower
from .expressions import Clamp, bordered, schedule_products
from .planner import ConvShape, Tiling


def transposed_shape(ic_blocks: int, oc_blocks: int, rows: Subpixel, cols: Subpixel) -> ConvShape:
    """What one phase computes, for the choice of tiles."""
    return ConvShape(
        ic_blocks, oc_blocks, rows.places, cols.places, rows.taps, cols.taps, skips_rows=False,
        phases=rows.stride * cols.stride,
        shift_h=rows.reach - rows.taps, shift_w=cols.reach - cols.taps,
    )  # fmt: skip


def conv2d_transpose(
    name: str,
    data_shape: tuple[int, int, int],
    oc_blocks: int,
    rows: Subpixel,
    cols: Subpixel,
    pad_value: int,
    clamp: Clamp,
    params: HwParams,
    tiling: Tiling,
    vthreads: int,
) -> PrimFunc:
    """Transposed convolution; ``data_shape`` is (channel blocks, H, W). Parameters of the program:
    data, weight [oc blocks, ic blocks, row phases, column phases, row taps, column taps, block,
    block], par [oc blocks, row phases, column phases, 3, block], out.

    The bias in ``par`` contains ``-x_zero_point * sum(weight of the phase)``; padding is
    ``pad_value`` = the zero point.
    """
    ic_blocks, height, width = data_shape
    batch, block = params.batch, params.block
    phases, taps = (rows.stride, cols.stride), (rows.taps, cols.taps)
    data = placeholder((ic_blocks, height, width, batch, block), "int8", "data")
    weight = placeholder((oc_blocks, ic_blocks, *phases, *taps, block, block), "int8", "weight")
    par = placeholder((oc_blocks, *phases, 3, block), "int32", "param")
    (top, bottom), (left, right) = rows.pads(height), cols.pads(width)
    padded = bordered(data, (top, left, bottom, right), pad_value)
    cb, u, v, ci = (
        reduce_axis(extent, axis)
        for extent, axis in ((ic_blocks, "cb"), (taps[0], "u"), (taps[1], "v"), (block, "ci"))
    )

    def products(c: Expr, y: Expr, p: Expr, x: Expr, q: Expr, b: Expr, i: Expr) -> Expr:
        row = y + p * rows.shift + u + (rows.first + top)
        col = x + q * cols.shift + v + (cols.first + left)
        element = padded[cb, row, col, b, ci].astype("int32")
        return sum_of(element * weight[c, cb, p, q, u, v, i, ci].astype("int32"), (cb, u, v, ci))

    shape = (oc_blocks, rows.places, phases[0], cols.places, phases[1], batch, block)
    acc = compute(shape, products, "acc")
    out = _requantized(acc, par, clamp)
    s = schedule_products(out, acc, padded, weight, par, (0, 1, 3), tiling, params, vthreads)
    return lower(s, [data, weight, par, out], name)


def _requantized(acc: Tensor, par: Tensor, clamp: Clamp) -> Tensor:
    """As its namesake in ``accel.py``, with parameters of every phase."""

    def rule(c: Expr, y: Expr, p: Expr, x: Expr, q: Expr, b: Expr, i: Expr) -> Expr:
        total = acc[c, y, p, x, q, b, i] + par[c, p, q, 0, i]
        factors = (total, par[c, p, q, 1, i], par[c, p, q, 2, i])
        scaled = Call(clamp.rescale, factors, "int64")
        return clip(scaled + clamp.zero_point, clamp.lo, clamp.hi).astype("int8")

    return compute(acc.shape, rule, "out")
