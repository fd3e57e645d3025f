"""A function of one int8 on the vector unit: a line with bends (``graph/arithmetic/bends.py``)."""

from __future__ import annotations

from ....isa.params import HwParams
from ...te.expr import maximum
from ...te.schedule import create_schedule
from ...te.tensor import compute, placeholder, reduce_axis, sum_of
from ...tir.ir import PrimFunc
from ...tir.lower import lower
from .expressions import Clamp, _attach, _requantized, _split_tiles, _vthread_tiles

#: Parameters of requantisation: bias, multiplier, shift.
REQUANT_ENTRIES = 3


def most_pieces(params: HwParams) -> int:
    """Pieces of a line for which tmp and par have room."""
    return min(params.tmp_depth, (params.par_depth - REQUANT_ENTRIES) // 2)


def bent(
    name: str, entries: int, pieces: int, clamp: Clamp, params: HwParams, vthreads: int
) -> PrimFunc:
    """``requantize(sum over k of slopes[k] * max(x, knots[k]))`` over ``entries`` vectors;
    parameters: x, knots and slopes (int32 [pieces, block]), par ([1, 3, block]), out.

    Two instructions a tile: all the maxima into tmp, and their sum of products into out.
    """
    shape = (1, 1, entries, params.batch, params.block)
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
    out = _requantized(total, par, clamp, per_channel=False)
    step = params.tmp_depth // (pieces * vthreads)
    vthreads = vthreads if step else 1
    step = step or params.tmp_depth // pieces
    most = min(params.inp_depth, params.out_depth) // (2 * vthreads)
    size = min(entries, most // step * step or most)

    s = create_schedule(out)
    local = s.cache_write(out, "out")
    x_tile = s.cache_read(x, "inp", [maxima])
    constants = [
        s.cache_read(*cached)
        for cached in ((knots, "par", [maxima]), (slopes, "par", [total]), (par, "par", [local]))
    ]
    (channels, rows, cols), _ = _split_tiles(s[out], (1, 1, size))
    tile = _vthread_tiles(s[out], [rows, cols], vthreads)
    _attach(s, {x_tile: "inp", local: "out"}, s[out], tile)
    # What does not change is loaded once.
    _attach(s, dict.fromkeys(constants, "par"), s[out], channels)
    some, _ = s[local].split(local.axes[2], min(step, size))
    _attach(s, {maxima: "tmp", total: "tmp"}, s[local], some)
    s[total].reorder(k, *total.axes)
    return lower(s, [x, knots, slopes, par, out], name)
