"""Tensor intrinsics of processors: what an instruction computes, declared as the accelerator's are.

``micro_kernel_code.py`` has their code. On other processors they become loops that do the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.ops.blocked.dense import DOT_WIDTH
from ...graph.ops.blocked.four_bits import GROUP, HALVES, PAIRS, scaled_product
from ...te.expr import Expr
from ...te.intrinsic import TensorIntrin
from ...te.tensor import compute, placeholder, reduce_axis, sum_of
from ...tir.scopes import Access, MemoryScope

#: int32 in a vector register of AVX-512, to each of which ``DOT_WIDTH`` products are added at once.
DOT_LANES = 16


def _dot(name: str, each: bool) -> TensorIntrin:
    """``y[o] += sum over 4 k of x[k] * w[o, k]``, uint8 by int8; ``x[k, o]`` where ``each`` lane
    has elements of its own."""
    x = placeholder((DOT_WIDTH, DOT_LANES) if each else (DOT_WIDTH,), "uint8", "x")
    w = placeholder((DOT_LANES, DOT_WIDTH), "int8", "w")
    k = reduce_axis(DOT_WIDTH, "k")

    def rule(o: Expr) -> Expr:
        element = x[k, o] if each else x[k]
        return sum_of(element.astype("int32") * w[o, k].astype("int32"), k)

    return TensorIntrin(name, compute((DOT_LANES,), rule, "y"))


#: AVX-512 VNNI, https://www.felixcloutier.com/x86/vpdpbusd: on four channels that all outputs read,
#: and on four positions of 16 channels each by itself.
DOT = _dot("dot", each=False)
DOT_EACH = _dot("dot_each", each=True)


def _dot_four_bits() -> TensorIntrin:
    """``y[o] += scale[o] * sum over 16 k of x[k] * w[k, o]``, uint8 by weights of 4 bits, of which
    two share a byte."""
    x = placeholder((GROUP,), "uint8", "x")
    w = placeholder((PAIRS, DOT_LANES, DOT_WIDTH), "uint8", "w")
    scales = placeholder((DOT_LANES,), "uint8", "scales")
    pair, half, k = (reduce_axis(n, name) for n, name in
                     ((PAIRS, "pair"), (HALVES, "half"), (DOT_WIDTH, "k")))  # fmt: skip

    def rule(o: Expr) -> Expr:
        element = x[pair * (HALVES * DOT_WIDTH) + half * DOT_WIDTH + k]
        return sum_of(scaled_product(element, w[pair, o, k], half, scales[o]), (pair, half, k))

    return TensorIntrin("dot_four_bits", compute((DOT_LANES,), rule, "y"))


#: AVX-512 VNNI on weights that are unpacked in registers.
DOT_FOUR_BITS = _dot_four_bits()

#: A tile, a matrix register of AMX: the most rows, and bytes of a row.
TILE_ROWS, TILE_BYTES = 16, 64


def _tiles(name: str, doc: str, dtype: str) -> MemoryScope:
    only: tuple[Access, ...] = ("intrinsic",)
    return MemoryScope(name, doc, dtypes=(dtype,), writers=only, readers=only)


#: The tiles as memories of schedules, with the numbers of their registers: AMX has eight.
TILE_SUMS = _tiles("tile_sums", "sums of 16 positions by 16 features", "int32")
TILE_X = _tiles("tile_x", "16 positions of some channels", "uint8")
TILE_W = _tiles("tile_w", "the weights of some channels for 16 features", "int8")
TILE_REGISTERS = {TILE_SUMS.name: range(4), TILE_X.name: range(4, 6), TILE_W.name: range(6, 8)}


@dataclass(frozen=True, eq=False)
class TileProducts:
    """The instructions of AMX for products over ``depth`` channels.

    ``product``: ``y[m, n] += sum over k of x[m, k] * w[k // 4, n, k % 4]``, uint8 by int8, each
    operand in a tile. ``load_x`` and ``load_w`` fill tiles from rows at equal distances.
    """

    depth: int
    load_x: TensorIntrin
    load_w: TensorIntrin
    product: TensorIntrin


def _copy(name: str, shape: tuple[int, ...], dtype: str) -> TensorIntrin:
    source = placeholder(shape, dtype, "source")
    return TensorIntrin(name, compute(shape, lambda *index: source[index], "tile"))


def _tile_products(depth: int) -> TileProducts:
    fours = depth // DOT_WIDTH
    x = placeholder((TILE_ROWS, depth), "uint8", "x")
    w = placeholder((fours, TILE_ROWS, DOT_WIDTH), "int8", "w")
    f, k = reduce_axis(fours, "f"), reduce_axis(DOT_WIDTH, "k")

    def rule(m: Expr, n: Expr) -> Expr:
        element = x[m, f * DOT_WIDTH + k].astype("int32")
        return sum_of(element * w[f, n, k].astype("int32"), (f, k))

    return TileProducts(
        depth, _copy(f"tile_load_x{depth}", x.shape, x.dtype),
        _copy(f"tile_load_w{depth}", w.shape, w.dtype),
        TensorIntrin(f"tile_product{depth}", compute((TILE_ROWS, TILE_ROWS), rule, "y")),
    )  # fmt: skip


#: AMX-INT8, https://www.felixcloutier.com/x86/tdpbssd:tdpbsud:tdpbusd:tdpbuud, by depth: whole
#: blocks of channels.
TILE_PRODUCTS = {
    depth: _tile_products(depth) for depth in range(DOT_LANES, TILE_BYTES + 1, DOT_LANES)
}
#: Stores the sums of a tile in rows at equal distances.
TILE_STORE = _copy("tile_store", (TILE_ROWS, TILE_ROWS), "int32")
