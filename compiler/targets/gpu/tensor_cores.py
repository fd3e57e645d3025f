"""The instructions of tensor cores, declared by what they compute: ``mma.sync``, and what brings
its operands to registers and back.

The 32 threads of a warp execute each of them together. Which thread holds which element of an
operand is PTX's business ("Warp-level matrix fragment"): a program sees whole tiles, in memories
that are registers of a warp, one for each role of an operand. ``a`` is [16, K]; ``b`` is [8, K],
the factor's columns; ``sums`` is [16, 8]. K is 32 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod

from ...te.affine import affine, simplify_index
from ...te.errors import ScheduleError
from ...te.expr import Const, Expr, bits_of
from ...te.intrinsic import TensorIntrin
from ...te.tensor import Tensor, compute, placeholder, reduce_axis, sum_of
from ...tir.ir import Buffer, Launch, PrimFunc, Region, TensorCall, walk_stmt
from .scopes import LANES, WARP

ROWS, COLUMNS, K_BYTES = 16, 8, 32
#: For each dtype of factors: the dtype of sums, and PTX's names of both.
SUMS = {"float16": "float32", "bfloat16": "float32", "int8": "int32"}
#: The tile of a memory, in rows and bytes of a row or columns of sums; 32-bit registers of a thread
#: for each tile.
REGISTERS = {"fragment_a": 4, "fragment_b": 2, "fragment_sums": 4}
_SHORT = {"float16": "f16", "bfloat16": "bf16", "int8": "s8"}


@dataclass(frozen=True, eq=False)
class WarpIntrin(TensorIntrin):
    """An instruction of a warp. ``memories`` are those of its result and of its operands in order;
    None stands for one that threads share. ``function`` is its name in the text of kernels."""

    memories: tuple[str | None, ...] = ()
    function: str = ""


@dataclass(frozen=True)
class TensorCore:
    """The instructions for factors of one dtype.

    Attributes
    ----------
    depth : steps of a reduction that one instruction does
    mma : sums[i, j] += a[i, k] * b[j, k]
    load_a, load_b : a tile of shared memory to registers
    store : a tile of sums to shared memory
    """

    depth: int
    mma: WarpIntrin
    load_a: WarpIntrin
    load_b: WarpIntrin
    store: WarpIntrin


@cache
def tensor_core(dtype: str) -> TensorCore:
    """The instructions for factors of float16, bfloat16 or int8."""
    depth, sums = K_BYTES * 8 // bits_of(dtype), SUMS[dtype]
    a = placeholder((ROWS, depth), dtype, "a")
    b = placeholder((COLUMNS, depth), dtype, "b")
    k = reduce_axis(depth, "k")
    product = compute(
        (ROWS, COLUMNS), lambda i, j: sum_of(a[i, k].astype(sums) * b[j, k].astype(sums), k), "d"
    )
    short = _SHORT[dtype]
    name = f"mma_m{ROWS}n{COLUMNS}k{depth}_{short}"
    fragments = ("fragment_sums", "fragment_a", "fragment_b")
    mma = WarpIntrin(name, product, LANES, fragments, name)
    loads = [
        WarpIntrin(f"load_{tensor.name}", _copied(tensor), LANES,
                   (f"fragment_{tensor.name}", None), f"load_fragment_{tensor.name}")
        for tensor in (a, b)
    ]  # fmt: skip
    d = placeholder((ROWS, COLUMNS), sums, "d")
    store = WarpIntrin(
        "store_sums", _copied(d), LANES, (None, "fragment_sums"),
        f"store_fragment_{'f32' if sums == 'float32' else 'i32'}",
    )  # fmt: skip
    return TensorCore(depth, mma, loads[0], loads[1], store)


def _copied(tensor: Tensor) -> Tensor:
    return compute(tensor.shape, lambda i, j: tensor[i, j], f"{tensor.name}_copied")


#: All instructions, which are not turned into loops.
NATIVE = frozenset(
    intrinsic
    for dtype in SUMS
    for core in (tensor_core(dtype),)
    for intrinsic in (core.mma, core.load_a, core.load_b, core.store)
)


def register_count(buffer: Buffer) -> int:
    """Registers of 32 bits that a thread has of a buffer of fragments."""
    rows, columns = tile_of(buffer)
    return prod(buffer.shape) // (rows * columns) * REGISTERS[buffer.scope]


def tile_of(buffer: Buffer) -> tuple[int, int]:
    """Rows and columns of a tile of a buffer of fragments."""
    depth = K_BYTES * 8 // bits_of(buffer.dtype)
    return {
        "fragment_a": (ROWS, depth),
        "fragment_b": (COLUMNS, depth),
        "fragment_sums": (ROWS, COLUMNS),
    }[buffer.scope]


def first_register(region: Region) -> Expr:
    """The index of the first register of a tile, within the buffer's registers of a thread.

    Raises
    ------
    ScheduleError
        For a region that is not a whole tile.
    """
    buffer, tile = region.buffer, tile_of(region.buffer)
    sizes = [1] * (len(buffer.shape) - 2) + list(tile)
    number: Expr = Const(0)
    for start, extent, size in zip(region.start, buffer.shape, sizes, strict=True):
        form = affine(start)
        if extent % size or form.constant % size or any(c % size for _, c in form.terms):
            raise ScheduleError(
                f"buffer {buffer.name}{list(buffer.shape)} in {buffer.scope}: expected whole tiles "
                f"of {tile[0]} x {tile[1]}"
            )
        number = number * (extent // size) + start // size
    return simplify_index(number * REGISTERS[buffer.scope])


def check_tensor_cores(func: PrimFunc) -> None:
    """Return if a program's launches use the instructions of tensor cores as they must be used.

    Raises
    ------
    ScheduleError
        For operands in wrong memories or that are no whole tiles, and for warps that are not whole.
    """
    for launch in walk_stmt(func.body):
        if isinstance(launch, Launch):
            for fault in _faults(launch):
                raise ScheduleError(f"kernel {launch.name}: {fault}")


def _faults(launch: Launch) -> Iterator[str]:
    calls = [s for s in walk_stmt(launch.body)
             if isinstance(s, TensorCall) and isinstance(s.intrinsic, WarpIntrin)]  # fmt: skip
    if calls and {t.axis: t.extent for t in launch.block}.get(LANES[0]) != WARP:
        yield f"expected {WARP} threads along {LANES[0]}, the lanes of tensor cores"
    for call in calls:
        regions = (call.output, *call.inputs)
        for region, memory in zip(regions, call.intrinsic.memories, strict=False):
            scope = region.buffer.scope
            if memory is None and scope != "shared":
                yield f"{call.intrinsic.name}: expected {region.buffer.name} in shared, not {scope}"
            elif memory is not None and scope != memory:
                yield (
                    f"{call.intrinsic.name}: expected {region.buffer.name} in {memory}, not {scope}"
                )
            elif memory is not None:
                first_register(region)
            elif call.intrinsic.function.startswith("load"):
                yield from _row_faults(region)


def _row_faults(region: Region) -> Iterator[str]:
    """Rows that begin between multiples of 16 bytes, as ``ldmatrix`` cannot read them."""
    buffer = region.buffer
    whole = 128 // bits_of(buffer.dtype)
    forms = [affine(start) for start in region.start]
    factors = [
        abs(number) * stride
        for form, stride in zip(forms, buffer.strides, strict=True)
        for number in (form.constant, *(c for _, c in form.terms))
    ]
    if any(n % whole for n in (*factors, buffer.strides[-2])):
        yield f"{buffer.name}: expected rows that begin at multiples of 16 bytes"
