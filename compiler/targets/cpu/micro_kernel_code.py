"""LLVM code of the tensor intrinsics for which a processor has instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ....isa.errors import VdlaError
from ....runtime.processor import TILE_PERMISSION
from ...graph.ops.blocked.four_bits import HALVES, PAIRS
from ...te.intrinsic import TensorIntrin
from ...tir.ir import For, PrimFunc, Stmt, TensorCall, substatements, walk_stmt
from . import micro_kernels as mk
from .llvm_vector import add_products, call_named, splat
from .processor import Processor

#: Objects of llvmlite, whose type annotations do not agree with its code.
Value = Any

_POINTER, _I8, _I16, _I32, _I64 = ir.PointerType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))
_SUMS = ir.VectorType(_I32, mk.DOT_LANES)
_BYTES = ir.VectorType(ir.IntType(8), mk.DOT_LANES * mk.DOT_WIDTH)


@dataclass(frozen=True)
class Operand:
    """An operand in memory, with the address of its first element and the distance of its rows; or
    one in a ``tile``, by its number."""

    address: Value = None
    row_bytes: int = 0
    tile: int | None = None


@dataclass(frozen=True)
class MicroKernel:
    """``feature`` is LLVM's name of the feature that the processor must have; ``emit`` takes a
    builder and the operands, output first, without inputs where it is to set the output to the
    neutral element. Where operands are in tiles, ``depth`` is the number of channels in one."""

    feature: str
    emit: Callable[..., None]
    depth: int = 0


def _update(builder: Value, y: Operand, x: Value, w: Operand) -> None:
    sums = builder.load(y.address, align=4, typ=_SUMS)
    weights = builder.load(w.address, align=1, typ=_BYTES)
    builder.store(add_products(builder, sums, x, weights), y.address, align=4)


def _clear(builder: Value, y: Operand) -> None:
    builder.store(ir.Constant(_SUMS, None), y.address, align=4)


def _dot(builder: Value, y: Operand, *inputs: Operand) -> None:
    """All lanes use the same four bytes of ``x``."""
    if not inputs:
        return _clear(builder, y)
    x, w = inputs
    element = splat(builder, builder.load(x.address, align=1, typ=_I32), mk.DOT_LANES)
    return _update(builder, y, builder.bitcast(element, _BYTES), w)


def _dot_each(builder: Value, y: Operand, *inputs: Operand) -> None:
    """Each lane uses four bytes of its own: ``x`` is transposed from four positions of 16 channels
    to 16 channels of four positions.
    """
    if not inputs:
        return _clear(builder, y)
    x, w = inputs
    positions = builder.load(x.address, align=1, typ=_BYTES)
    order = [k * mk.DOT_LANES + o for o in range(mk.DOT_LANES) for k in range(mk.DOT_WIDTH)]
    indices = ir.Constant(ir.VectorType(_I32, len(order)), order)
    return _update(builder, y, builder.shuffle_vector(positions, positions, indices), w)


def _dot_four_bits(builder: Value, y: Operand, *inputs: Operand) -> None:
    """Weights are unpacked as 16 times what they are, and the sum of a group is divided by that: it
    fits int16 then, and is multiplied by the scale and added in one instruction."""
    if not inputs:
        return _clear(builder, y)
    x, w, scales = inputs
    four, found = ir.Constant(_BYTES, [4] * _BYTES.count), ir.Constant(_SUMS, None)
    upper = ir.Constant(_BYTES, [0xF0] * _BYTES.count)
    for pair in range(PAIRS):
        weights = builder.load(_at(builder, w, pair * _BYTES.count), align=1, typ=_BYTES)
        halves = builder.shl(weights, four), builder.and_(weights, upper)
        for half, unpacked in enumerate(halves):
            place = (pair * HALVES + half) * mk.DOT_WIDTH
            element = builder.load(_at(builder, x, place), align=1, typ=_I32)
            elements = builder.bitcast(splat(builder, element, mk.DOT_LANES), _BYTES)
            found = add_products(builder, found, elements, unpacked)
    found = builder.ashr(found, ir.Constant(_SUMS, [4] * _SUMS.count))
    narrow = builder.load(scales.address, align=1, typ=ir.VectorType(_I8, mk.DOT_LANES))
    sums = builder.load(y.address, align=4, typ=_SUMS)
    sums = call_named(
        builder, "llvm.x86.avx512.vpdpwssd.512", _SUMS, sums, found, builder.zext(narrow, _SUMS)
    )
    return builder.store(sums, y.address, align=4)


def _at(builder: Value, operand: Operand, offset_bytes: int) -> Value:
    return builder.gep(operand.address, [_I64(offset_bytes)], source_etype=_I8)


# ---- tiles ---------------------------------------------------------------------------------------

_PREFIX = "llvm.x86."


def _tile_instruction(builder: Value, name: str, *args: Value) -> None:
    """One of LLVM's intrinsics for AMX, whose tiles are constants."""
    name = _PREFIX + name
    known = builder.module.globals.get(name)
    signature = ir.FunctionType(ir.VoidType(), [arg.type for arg in args])
    builder.call(known or ir.Function(builder.module, signature, name), args)


def _number(operand: Operand) -> Value:
    if operand.tile is None:
        raise VdlaError(
            "tiles: expected operands of products of matrices in tiles, got one in memory; set the "
            f"scopes of their stages: {', '.join(mk.TILE_REGISTERS)}"
        )
    return _I8(operand.tile)


def _rows(operand: Operand) -> tuple[Value, Value]:
    if operand.tile is not None:
        raise VdlaError("tiles: expected a copy between a tile and memory, got one between tiles")
    return operand.address, _I64(operand.row_bytes)


def _tile_load(builder: Value, tile: Operand, source: Operand) -> None:
    _tile_instruction(builder, "tileloadd64", _number(tile), *_rows(source))


def _tile_store(builder: Value, target: Operand, tile: Operand) -> None:
    _tile_instruction(builder, "tilestored64", _number(tile), *_rows(target))


def _tile_product(builder: Value, y: Operand, *inputs: Operand) -> None:
    name = "tdpbusd" if inputs else "tilezero"
    _tile_instruction(builder, name, *(_number(operand) for operand in (y, *inputs)))


#: Bytes of a configuration of the tiles, and where in it the bytes of a row (16 bits each) and the
#: rows (8 bits each) begin. The first byte is the number of the palette.
_CONFIGURATION_BYTES, _ROW_BYTES_AT, _ROWS_AT, _PALETTE = 64, 16, 48, 1


def _configuration(depth: int) -> bytes:
    """What the processor is to know of each tile before it uses them."""
    fours = depth // mk.DOT_WIDTH
    shapes = {
        mk.TILE_SUMS: (mk.TILE_ROWS, mk.TILE_BYTES),
        mk.TILE_X: (mk.TILE_ROWS, depth),
        mk.TILE_W: (fours, mk.TILE_BYTES),
    }
    found = bytearray(_CONFIGURATION_BYTES)
    found[0] = _PALETTE
    for scope, (rows, row_bytes) in shapes.items():
        for tile in mk.TILE_REGISTERS[scope.name]:
            place = _ROW_BYTES_AT + 2 * tile
            found[place : place + 2] = row_bytes.to_bytes(2, "little")
            found[_ROWS_AT + tile] = rows
    return bytes(found)


def tile_depth(stmt: Stmt, threads: int) -> int:
    """The number of channels in a tile of x; 0 where nothing uses tiles. With several ``threads``,
    parallel loops are left out: each thread has tiles of its own.

    Raises
    ------
    VdlaError
        For tiles of several numbers of channels: the processor is told one of them.
    """
    found = set(_depths(stmt, threads))
    if len(found) > 1:
        raise VdlaError(
            f"tiles: expected one number of channels in a loop program, got {sorted(found)}; "
            "compute the products in loop programs of their own"
        )
    return found.pop() if found else 0


def _depths(stmt: Stmt, threads: int) -> Iterator[int]:
    match stmt:
        case TensorCall(intrinsic) if MICRO_KERNELS[intrinsic].depth:
            yield MICRO_KERNELS[intrinsic].depth
        case For(kind="parallel") if threads > 1:
            return
    for inner in substatements(stmt):
        yield from _depths(inner, threads)


def tile_elements(scope: str, depth: int) -> int:
    """Elements in a tile of a memory, for products over ``depth`` channels."""
    return mk.TILE_ROWS * (mk.TILE_ROWS if scope == mk.TILE_SUMS.name else depth)


def configure_tiles(builder: Value, depth: int) -> None:
    """Prepare the tiles of a thread, for products over ``depth`` channels."""
    name, kind = f"tiles{depth}", ir.ArrayType(_I8, _CONFIGURATION_BYTES)
    known = builder.module.globals.get(name)
    if known is None:
        known = ir.GlobalVariable(builder.module, kind, name)
        known.linkage, known.global_constant = "internal", True
        known.initializer = ir.Constant(kind, bytearray(_configuration(depth)))  # type: ignore[assignment]
    _tile_instruction(builder, "ldtilecfg", builder.bitcast(known, _POINTER))


def release_tiles(builder: Value) -> None:
    """Let the processor forget the tiles, so that nothing has to save them."""
    _tile_instruction(builder, "tilerelease")


def uses_tiles(module: ir.Module) -> bool:
    """Whether a module has code that uses tiles."""
    return f"{_PREFIX}ldtilecfg" in module.globals


def ask_for_tiles(builder: Value) -> None:
    """Ask Linux for permission to use tiles: programs in C that run the code need not know of it.
    To ask again costs about a tenth of a microsecond."""
    signature = ir.FunctionType(_I64, [_I64], var_arg=True)
    call = ir.Function(builder.module, signature, "syscall")
    builder.call(call, [_I64(number) for number in TILE_PERMISSION])


def _tile_kernels() -> dict[TensorIntrin, MicroKernel]:
    found = {mk.TILE_STORE: MicroKernel("amx-int8", _tile_store)}
    for depth, products in mk.TILE_PRODUCTS.items():
        for load in (products.load_x, products.load_w):
            found[load] = MicroKernel("amx-int8", _tile_load, depth)
        found[products.product] = MicroKernel("amx-int8", _tile_product, depth)
    return found


MICRO_KERNELS: dict[TensorIntrin, MicroKernel] = {
    mk.DOT: MicroKernel("avx512vnni", _dot),
    mk.DOT_EACH: MicroKernel("avx512vnni", _dot_each),
    mk.DOT_FOUR_BITS: MicroKernel("avx512vnni", _dot_four_bits),
    **_tile_kernels(),
}


def native_intrinsics(processor: Processor) -> frozenset[TensorIntrin]:
    """The intrinsics that are instructions of a processor."""
    found = (i for i, kernel in MICRO_KERNELS.items() if processor.has(kernel.feature))
    return frozenset(found)


def fastest_instruction(kernels: Iterable[PrimFunc], processor: Processor) -> str:
    """The fastest instruction with which loop programs add products, FMA, VNNI or AMX."""
    calls = (stmt for kernel in kernels for stmt in walk_stmt(kernel.body))
    used = {call.intrinsic for call in calls if isinstance(call, TensorCall)}
    used &= native_intrinsics(processor)
    if any(products.product in used for products in mk.TILE_PRODUCTS.values()):
        return "AMX"
    return "VNNI" if used & {mk.DOT, mk.DOT_EACH, mk.DOT_FOUR_BITS} else "FMA"
