"""The instructions of tensor cores, declared by what they compute: ``mma.sync`` and ``wgmma``, and
what brings their operands to registers and back.

The 32 threads of a warp execute ``mma.sync`` together. Which thread holds which element of an
operand is PTX's business ("Warp-level matrix fragment"): a program sees whole tiles, in memories
that are registers of a warp, one for each role of an operand. ``a`` is [16, K]; ``b`` is [8, K],
the factor's columns; ``sums`` is [16, 8]. K is 32 bytes.

The 128 threads of a warpgroup execute ``wgmma`` together (compute capability 9.0a). It reads
``a``, [64, K], and ``b``, [N, K], from swizzled shared memory while its threads go on; ``sums`` is
[64, N].
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
from ...tir.ir import Allocate, Buffer, Launch, PrimFunc, Region, TensorCall, walk_stmt
from .scopes import LANES, WARP, WARPGROUP

ROWS, COLUMNS, K_BYTES = 16, 8, 32
#: Bytes of rows that can be swizzled.
SWIZZLED_BYTES = (32, 64, 128)
#: For each kind of factors: the dtype of sums, and PTX's name of the factors.
SUMS = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "tf32": "float32"}
#: The tile of a memory, in rows and bytes of a row or columns of sums; 32-bit registers of a thread
#: for each tile.
REGISTERS = {"fragment_a": 4, "fragment_b": 2, "fragment_sums": 4}
_SHORT = {"float16": "f16", "bfloat16": "bf16", "int8": "s8", "tf32": "tf32"}
#: Rows of a warpgroup's instruction, and the columns that it may have here.
GROUP_ROWS = 64
GROUP_COLUMNS = (16, 32, 64, 128, 256)


@dataclass(frozen=True, eq=False)
class WarpIntrin(TensorIntrin):
    """An instruction of a warp. ``memories`` are those of its result and of its operands in order;
    None stands for one that threads share. ``function`` is its name in the text of kernels."""

    memories: tuple[str | None, ...] = ()
    function: str = ""


@dataclass(frozen=True)
class TensorCore:
    """The instructions of a warp for factors of one kind.

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


@dataclass(frozen=True)
class GroupCore:
    """The instructions of a warpgroup for factors of one kind and so many columns: ``mma`` as
    :attr:`TensorCore.mma`, from shared memory; ``store`` brings a tile of sums there."""

    depth: int
    mma: WarpIntrin
    store: WarpIntrin


def element_of(kind: str) -> str:
    """The dtype of factors of a kind. Of a float32, "tf32" multiplies the first 19 bits."""
    return "float32" if kind == "tf32" else kind


def depth_of(kind: str) -> int:
    """Steps of a reduction that one instruction does."""
    return K_BYTES * 8 // bits_of(element_of(kind))


def _product(kind: str, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """The factors of an instruction, and what it adds to the sums."""
    depth, sums = depth_of(kind), SUMS[kind]
    a = placeholder((rows, depth), element_of(kind), "a")
    b = placeholder((columns, depth), element_of(kind), "b")
    k = reduce_axis(depth, "k")
    product = compute(
        (rows, columns), lambda i, j: sum_of(a[i, k].astype(sums) * b[j, k].astype(sums), k), "d"
    )
    return a, b, product


@cache
def group_core(kind: str, columns: int) -> GroupCore:
    """The instructions of a warpgroup for one of :data:`GROUP_COLUMNS`."""
    depth, sums = depth_of(kind), SUMS[kind]
    _, _, product = _product(kind, GROUP_ROWS, columns)
    name = f"wgmma_m{GROUP_ROWS}n{columns}k{depth}_{_SHORT[kind]}"
    mma = WarpIntrin(
        name, product, LANES, WARPGROUP, asynchronous=True, memories=("warpgroup_sums", None, None),
        function=name,
    )  # fmt: skip
    d = placeholder((GROUP_ROWS, columns), sums, "d")
    store = WarpIntrin(
        "store_group_sums", _copied(d), LANES, WARPGROUP, memories=(None, "warpgroup_sums"),
        function=f"store_group_{_short_sums(kind)}",
    )  # fmt: skip
    return GroupCore(depth, mma, store)


def _short_sums(kind: str) -> str:
    return "f32" if SUMS[kind] == "float32" else "i32"


@cache
def tensor_core(kind: str) -> TensorCore:
    """The instructions of a warp for factors of a kind, one of :data:`SUMS`."""
    depth, sums = depth_of(kind), SUMS[kind]
    a, b, product = _product(kind, ROWS, COLUMNS)
    short = _SHORT[kind]
    name = f"mma_m{ROWS}n{COLUMNS}k{depth}_{short}"
    fragments = ("fragment_sums", "fragment_a", "fragment_b")
    mma = WarpIntrin(name, product, LANES, WARP, memories=fragments, function=name)
    loads = [
        WarpIntrin(
            f"load_{tensor.name}", _copied(tensor), LANES, WARP,
            memories=(f"fragment_{tensor.name}", None), function=f"load_fragment_{tensor.name}",
        )
        for tensor in (a, b)
    ]  # fmt: skip
    d = placeholder((ROWS, COLUMNS), sums, "d")
    store = WarpIntrin(
        "store_sums", _copied(d), LANES, WARP, memories=(None, "fragment_sums"),
        function=f"store_fragment_{_short_sums(kind)}",
    )  # fmt: skip
    return TensorCore(depth, mma, loads[0], loads[1], store)


def _copied(tensor: Tensor) -> Tensor:
    return compute(tensor.shape, lambda i, j: tensor[i, j], f"{tensor.name}_copied")


#: All instructions, which are not turned into loops.
NATIVE = frozenset(
    intrinsic
    for kind in SUMS
    for core in (tensor_core(kind),)
    for intrinsic in (core.mma, core.load_a, core.load_b, core.store)
) | frozenset(
    intrinsic
    for kind in SUMS
    for columns in GROUP_COLUMNS
    for core in (group_core(kind, columns),)
    for intrinsic in (core.mma, core.store)
)


def register_count(buffer: Buffer) -> int:
    """Registers of 32 bits that a thread has of a buffer of fragments."""
    rows, columns = find_tile(buffer)
    return prod(buffer.shape) // (rows * columns) * _registers_of_tile(buffer)


def _registers_of_tile(buffer: Buffer) -> int:
    if buffer.scope == "warpgroup_sums":
        return GROUP_ROWS * buffer.shape[-1] // WARPGROUP
    return REGISTERS[buffer.scope]


def find_tile(buffer: Buffer) -> tuple[int, int]:
    """Rows and columns of a tile of a buffer of fragments. Sums of a warpgroup are as many columns
    as its instructions have."""
    depth = K_BYTES * 8 // bits_of(buffer.dtype)
    return {
        "fragment_a": (ROWS, depth),
        "fragment_b": (COLUMNS, depth),
        "fragment_sums": (ROWS, COLUMNS),
        "warpgroup_sums": (GROUP_ROWS, buffer.shape[-1]),
    }[buffer.scope]


def first_register(region: Region) -> Expr:
    """The index of the first register of a tile, within the buffer's registers of a thread.

    Raises
    ------
    ScheduleError
        For a region that is not a whole tile.
    """
    buffer, tile = region.buffer, find_tile(region.buffer)
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
    return simplify_index(number * _registers_of_tile(buffer))


def check_tensor_cores(func: PrimFunc) -> None:
    """Return if a program's launches use the instructions of tensor cores as they must be used.

    Raises
    ------
    ScheduleError
        For operands in wrong memories or that are no whole tiles, for warps that are not whole, and
        for rows that cannot be swizzled.
    """
    for launch in walk_stmt(func.body):
        if isinstance(launch, Launch):
            for fault in _faults(launch):
                raise ScheduleError(f"kernel {launch.name}: {fault}")


def _faults(launch: Launch) -> Iterator[str]:
    calls = [s for s in walk_stmt(launch.body)
             if isinstance(s, TensorCall) and isinstance(s.intrinsic, WarpIntrin)]  # fmt: skip
    for stmt in walk_stmt(launch.body):
        if isinstance(stmt, Allocate) and stmt.buffer.swizzled:
            yield from _swizzle_faults(stmt.buffer)
    lanes = {t.axis: t.extent for t in launch.block}.get(LANES[0])
    for call in calls:
        if lanes != call.intrinsic.threads:
            yield (
                f"{call.intrinsic.name}: expected {call.intrinsic.threads} threads along "
                f"{LANES[0]}, the lanes of tensor cores, got {lanes}"
            )
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
            elif call.intrinsic.asynchronous:
                yield from _matrix_faults(region)
            elif call.intrinsic.function.startswith("load"):
                yield from _row_faults(region)


def _swizzle_faults(buffer: Buffer) -> Iterator[str]:
    if buffer.scope != "shared" or buffer.alignments or buffer.row_bytes not in SWIZZLED_BYTES:
        rows = ", ".join(map(str, SWIZZLED_BYTES))
        yield (
            f"buffer {buffer.name} in {buffer.scope}: expected rows of {rows} bytes without "
            f"padding in shared to swizzle, got {buffer.row_bytes}"
        )


def _matrix_faults(region: Region) -> Iterator[str]:
    """Operands of a warpgroup that a descriptor cannot describe: swizzled rows, of which the first
    one is a multiple of 8, from a multiple of 32 bytes on."""
    buffer = region.buffer
    if not buffer.swizzled:
        yield f"{buffer.name}: expected swizzled rows for the instructions of warpgroups"
    whole = K_BYTES * 8 // bits_of(buffer.dtype)
    if buffer.shape[-2] % 8 or not (
        _is_multiple(region.start[-2], 8) and _is_multiple(region.start[-1], whole)
    ):
        yield f"{buffer.name}: expected tiles that begin at multiples of 8 rows and {K_BYTES} bytes"


def _is_multiple(index: Expr, of: int) -> bool:
    form = affine(index)
    return not any(n % of for n in (form.constant, *(c for _, c in form.terms)))


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
