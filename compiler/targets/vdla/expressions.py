"""Pieces of expressions and schedules that the accelerator's templates share.

Activations are [blocks, H, W, batch, block] (``runtime/layout.py``), weights [oc blocks, ic blocks,
KH, KW, block_out, block_in], requantisation parameters [oc blocks, 3, block].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from ....isa.encoding import INT8_BITS, INT32_BITS
from ....isa.params import HwParams
from ....isa.vector_ops import TABLE_VALUES
from ...choose.space import Knobs
from ...graph.arithmetic.requant import INT8_MAX, INT8_MIN, Requant
from ...te.expr import Const, Expr
from ...te.intrinsic import TensorIntrin
from ...te.schedule import Schedule, Stage
from ...te.tensor import IterVar, Tensor, clip, compute, placeholder, reduce_axis, sum_of
from ...topi.quantisation import clipped, rescale
from ...topi.windows import Border, bordered, positions

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]

#: Parameters of requantisation for a channel: bias, multiplier, shift.
REQUANT_ENTRIES = 3


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
        (kh, kw), (sh, sw), (dh, dw) = self.kernel, self.strides, self.dilations
        return positions(height, kh, sh, top + bottom, dh), positions(
            width, kw, sw, left + right, dw
        )

    def sizes(self, height: int, width: int) -> dict[str, Any]:
        """The fields of a :class:`~.cost.tiling.Shape` for an image, by name."""
        rows, cols = self.output(height, width)
        (kh, kw), (sh, sw), (dh, dw) = self.kernel, self.strides, self.dilations
        return {
            "oh": rows, "ow": cols, "kh": kh, "kw": kw, "stride_h": sh, "stride_w": sw,
            "dilation_h": dh, "dilation_w": dw, "blank": self.blank(height, width),
        }  # fmt: skip

    def blank(self, height: int, width: int) -> tuple[Pair, Pair]:
        """The numbers of rows of results that see only padding, before the others and behind them;
        and the numbers of columns."""
        top, left, *_ = self.pads
        rows, cols = (
            (max(0, -(-(before - (k - 1) * d) // s)), max(0, count + -(size + before) // s))
            for size, count, before, k, s, d in zip(
                (height, width), self.output(height, width), (top, left), self.kernel,
                self.strides, self.dilations, strict=True,
            )
        )  # fmt: skip
        return rows, cols


@dataclass(frozen=True)
class Epilogue:
    """What a requantisation ends with: rounding ("even" or "tflite"), zero point, bounds."""

    zero_point: int = 0
    lo: int = INT8_MIN
    hi: int = INT8_MAX
    rounding: str = "even"

    @staticmethod
    def from_requant(requant: Requant) -> Epilogue:
        """The epilogue of an operator's requantisation."""
        return Epilogue(requant.zero_point, requant.lo, requant.hi, requant.rounding)


def gemm_intrin(params: HwParams) -> TensorIntrin:
    """The tensor core's step: y[b, o] += sum_i x[b, i] * w[o, i], int8 operands, int32 result."""
    x = placeholder((params.batch, params.block_in), "int8", "x")
    w = placeholder((params.block_out, params.block_in), "int8", "w")
    k = reduce_axis(params.block_in, "k")
    size = (params.batch, params.block_out)
    return TensorIntrin("gemm", compute(size, lambda b, o: dot(x[b, k], w[o, k], (k,)), "y"))


def dot(x: Expr, w: Expr, axes: tuple[IterVar, ...]) -> Expr:
    """The int32 sum over ``axes`` of products of int8 elements."""
    return sum_of(x.astype("int32") * w.astype("int32"), axes)


def padded(data: Tensor, pads: Pads, value: int, row_step: int = 1, col_step: int = 1) -> Tensor:
    """Every ``row_step``-th row, and of it every ``col_step``-th column, of the activation with a
    border of ``value``; with no border at all, a plain copy. Blocks of channels may have two
    dimensions: groups, and blocks of a group."""
    *blocks, height, width, _, _ = data.shape
    rows, cols = len(blocks), len(blocks) + 1
    top, left, bottom, right = pads
    borders = {
        rows: Border(top, top + height + bottom, row_step),
        cols: Border(left, left + width + right, col_step),
    }
    return bordered(data, borders, Const(value, data.dtype), name="padded")


def requantized(
    acc: Tensor,
    par: Tensor,
    epilogue: Epilogue,
    per_channel: bool = True,
    addend: Callable[[tuple[Expr, ...]], Expr] | None = None,
    choosing: Callable[[tuple[Expr, ...]], Expr] | None = None,
) -> Tensor:
    """``clip(rescale(acc + bias, multiplier, shift) + zero_point)`` as int8. ``addend``, if given,
    is added to ``acc``: the int32 value for the element at an index. ``choosing``, if given, says
    which set of parameters such an element has. Else that follows from ``par``:

    ``par`` is [channel blocks, 3, block]; if not ``per_channel``, all channels use its first set.
    In groups, ``acc`` is [groups, channel blocks, rows, columns, batch, block] and ``par`` [groups,
    channel blocks, 3, block]. Where phases lie side by side, ``acc`` is [channel blocks, rows, row
    phases, columns, column phases, batch, block] and ``par`` [channel blocks, row phases, column
    phases, 3, block].
    """
    dims = {1: (0,), 2: (0, 1), 3: (0, 2, 4)}[len(par.shape) - 2]

    def rule(*index: Expr) -> Expr:
        row = [index[d] for d in dims] if per_channel else [Const(0)]
        if choosing is not None:
            row = [choosing(index)]
        bias, multiplier, shift = (par[(*row, k, index[-1])] for k in range(REQUANT_ENTRIES))
        total = acc[index] if addend is None else acc[index] + addend(index)
        scaled = rescale(total + bias, multiplier, shift, epilogue.rounding)
        return clipped(scaled, epilogue.zero_point, epilogue.lo, epilogue.hi)

    return compute(acc.shape, rule, "out")


def lookup_int8(x: Expr, table: Callable[[Expr, Expr], Expr], block: int, value_bytes: int) -> Expr:
    """The value of a LUT for ``x`` (int8), saturated to int8.

    ``table`` reads words of int32, each of four or two values, by row and channel, as TABLE takes
    them from par.
    """
    index = (x.astype("int32") + TABLE_VALUES) % TABLE_VALUES
    value = _read_table(index, table, block, value_bytes)
    if value_bytes > 1:
        value = clip(value, INT8_MIN, INT8_MAX)
    return value.astype("int8")


def lookup_int32(
    x: Expr, table: Callable[[Expr, Expr], Expr], block: int, value_bytes: int = 2
) -> Expr:
    """The int32 value of a LUT for ``x >= -256``; ``table`` as for :func:`lookup_int8`."""
    index = (x.astype("int32") + TABLE_VALUES) % TABLE_VALUES
    return _read_table(index, table, block, value_bytes)


def lookup_difference(a: Expr, b: Expr, table: Callable[[Expr, Expr], Expr], block: int) -> Expr:
    """The int32 value of a LUT of int16 for ``b - a`` (int32); ``table`` as for
    :func:`lookup_int8`."""
    return _read_table((b - a + TABLE_VALUES) % TABLE_VALUES, table, block, 2)


def _read_table(
    index: Expr, table: Callable[[Expr, Expr], Expr], block: int, value_bytes: int
) -> Expr:
    """The value at an index of 0..255, in words of int32."""
    bits, values = 8 * value_bytes, 4 // value_bytes
    word = table(index // (values * block), index // values % block)
    return (word << (32 - bits - index % values * bits)) >> (32 - bits)


class LookupTable:
    """A LUT as an operand of a loop program: ``words``, int32 [entries of par, block]."""

    def __init__(self, params: HwParams, name: str = "table"):
        self.words = placeholder((params.table_entries, params.block), "int32", name)
        self._form = lambda *word: self.words[word], params.block, params.vector_table

    def int8(self, x: Expr) -> Expr:
        """As :func:`lookup_int8`."""
        return lookup_int8(x, *self._form)

    def int32(self, x: Expr) -> Expr:
        """As :func:`lookup_int32`."""
        return lookup_int32(x, *self._form)

    def difference(self, a: Expr, b: Expr) -> Expr:
        """As :func:`lookup_difference`."""
        return lookup_difference(a, b, *self._form[:2])


def select_byte(word: Expr, number: Expr | IterVar) -> Expr:
    """A byte of an int32, as a number of int8."""
    return (word << (INT32_BITS - INT8_BITS - number * INT8_BITS)) >> (INT32_BITS - INT8_BITS)


def part_axes(count: int) -> tuple[IterVar, ...]:
    """The axis over the int8 parts that add up to one weight, if there are several."""
    return (reduce_axis(count, "part"),) if count > 1 else ()


# ---- schedules -----------------------------------------------------------------------------------


def split_tiles(
    stage: Stage, sizes: Sequence[int], dims: Sequence[int] = (0, 1, 2)
) -> tuple[list[IterVar], list[IterVar]]:
    """Tile some dimensions of a stage. Returns the loops over tiles, which are outside all others,
    and the loops within a tile, one for each dimension of the stage."""
    inner = list(stage.tensor.axes)
    outer = []
    for dim, size in zip(dims, sizes, strict=True):
        tiles, inner[dim] = stage.split(inner[dim], size)
        outer.append(tiles)
    stage.reorder(*outer, *inner)
    return outer, inner


def vthread_tiles(stage: Stage, loops: Sequence[IterVar], vthreads: int) -> IterVar:
    """Run the tiles of adjacent loops on alternating virtual threads, and return the loop over the
    threads.
    """
    tile = reduce(stage.fuse, loops)
    _, thread = stage.split(tile, min(vthreads, tile.extent))
    stage.vthread(thread)
    return thread


def schedule_sums(s: Schedule, sums: Tensor, params: HwParams, chunk: int | None = None) -> IterVar:
    """Let the tensor core make sums that run over blocks of channels, others, and the channels of
    a block. Returns the loop over chunks of as many blocks of channels, or of all, which is outside
    the loops over the sums: all of them are set to zero before the first product."""
    *positions, b, i = sums.axes
    blocks, *taps, channels = sums.reduce_axes
    outer, inner = s[sums].split(blocks, chunk or blocks.extent)
    s[sums].reorder(outer, *positions, inner, *taps, b, i, channels)
    s[sums].tensorize(b, gemm_intrin(params))
    return outer


def tile_positions(stage: Stage, knobs: Knobs) -> IterVar:
    """Tile an image of blocks and positions on alternating virtual threads: all blocks of some
    positions come before other positions. Returns the loop for a tile's producers."""
    sizes = int(knobs["positions"]), int(knobs["blocks"])
    outer, _ = split_tiles(stage, sizes, (1, 0))
    return vthread_tiles(stage, outer, int(knobs["vthreads"]))


def count_vectors(knobs: Knobs) -> int:
    """The number of vectors of a tile with the knobs' blocks and positions."""
    return int(knobs["blocks"]) * int(knobs["positions"])


def attach(s: Schedule, scopes: dict[Tensor, str], consumer: Stage, tile: IterVar) -> None:
    """Compute tensors inside a tile, each in its scratchpad."""
    for tensor, scope in scopes.items():
        s[tensor].set_scope(scope)
        s[tensor].compute_at(consumer, tile)
