"""The memories and thread axes of a graphics processor, as schedules name them."""

from __future__ import annotations

from ...te.expr import bits_of
from ...tir.ir import Buffer
from ...tir.passes.launch import ThreadModel
from ...tir.scopes import MemoryScope

GRID = tuple(f"blockIdx.{axis}" for axis in "xyz")
BLOCK = tuple(f"threadIdx.{axis}" for axis in "xyz")
SCOPES = {
    "global": MemoryScope("global", "main memory", shared_by=(*GRID, *BLOCK)),
    "shared": MemoryScope("shared", "on the chip, one copy for each block", shared_by=BLOCK),
    "local": MemoryScope("local", "registers, one copy for each thread"),
}
#: Threads of a warp, which lie along threadIdx.x. They hold operands of tensor cores together, and
#: execute the instructions on them as one. Where a kernel uses the instructions of warpgroups, the
#: threads of four warps lie along threadIdx.x.
WARP, WARPGROUP = 32, 128
LANES = (BLOCK[0],)
FRAGMENTS = ("fragment_a", "fragment_b", "fragment_sums", "warpgroup_sums")
SCOPES |= {
    name: MemoryScope(
        name, "registers of a warp or four, for tensor cores", writers=("intrinsic",),
        readers=("intrinsic",), shared_by=LANES, collective=True,
    )
    for name in FRAGMENTS
}  # fmt: skip
MODEL = ThreadModel(SCOPES, GRID, BLOCK)
#: Threads of a block at most; bytes of its shared memory without asking for more, and at most, on
#: the GPU that has most.
MOST_THREADS = 1024
SHARED_BYTES = 48 << 10
MOST_SHARED_BYTES = 227 << 10
#: Swizzled buffers begin at multiples of this, so that a row's number is part of its address.
SHARED_ALIGN = 1024
#: Bytes of local memory that a thread may have at most, so that it has a chance to be registers.
LOCAL_BYTES = 4 << 10
#: Blocks along y and z at most; along x there may be 2**31 - 1.
MOST_BLOCKS = 65535


def element_count(buffer: Buffer) -> int:
    """Elements of a buffer, padding included."""
    return buffer.shape[0] * buffer.strides[0]


def element_bytes(dtype: str) -> int:
    """Bytes of an element in memory."""
    return 1 if dtype == "bool" else bits_of(dtype) // 8
