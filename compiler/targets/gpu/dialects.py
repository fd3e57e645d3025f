"""The two languages of kernels: what CUDA C++ and OpenCL C write differently.

Everything else is their common part. Each text stands alone, without any ``#include``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...tir import ir as T
from ..common.float_functions import FUNCTIONS as FLOAT_FUNCTIONS
from .scopes import MOST_SHARED_BYTES, SHARED_BYTES

_FLOAT32 = ("sqrt", "floor", "ceil", "trunc", "log", "log1p", "sin", "cos", "tan", "asin",
            "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "rint", "fma", "pow",
            "fmod")  # fmt: skip


def _names(single: str, functions: tuple[str, ...] = _FLOAT32) -> str:
    """Names of float functions: ours have the type at the end. ``single`` is C's end of a name of
    float32; some of float32 are functions of ours."""
    rows = [f"#define {name}_f32 {name}{single}\n" for name in functions]
    rows += [f"#define {name}_f64 {name}\n" for name in (*functions, *FLOAT_FUNCTIONS)]
    return "".join(rows)


_TYPES = """\
typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef {long} i64;
typedef unsigned {long} u64;
"""

_CUDA = (
    "// Compile with -fmad=false: what is to be rounded once says fma.\n"
    + _TYPES.format(long="long long")
    + """\
#define FUNCTION static __device__ __forceinline__
#define float_of(bits) __int_as_float((int)(bits))
#define bits_of(number) ((u32)__float_as_int(number))
#define popcount_32(x) __popc(x)
#define popcount_64(x) __popcll(x)
"""
    + _names("f")
)

_OPENCL = (
    """\
#pragma OPENCL FP_CONTRACT OFF
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
"""
    + _TYPES.format(long="long")
    + """\
#define FUNCTION static inline
#define float_of(bits) as_float((u32)(bits))
#define bits_of(number) as_uint(number)
#define popcount_32(x) popcount((u32)(x))
#define popcount_64(x) popcount((u64)(x))
"""
    + _names("")
)


@dataclass(frozen=True)
class Dialect:
    """One language.

    Attributes
    ----------
    name, suffix : of the language, and of its files
    prelude : what stands before all kernels
    kernel : before a kernel's name, with {threads} for the threads of a block
    pointer, constant_pointer : a parameter, with {type} and {name}
    shared : before the declaration of what the threads of a block share, aligned to {align} bytes
    shared_pointer : a pointer into that, with {type}
    shared_bytes : of a block at most
    index, block_index : the indices of a thread and of its block along {axis} (x, y, z: {number})
    barrier : the statement
    aligned : before the declaration of what accesses of 16 bytes touch
    copy, clear : see :meth:`copied` and :meth:`cleared`, with {size}, {to}, {source}, the {vector}
        of that size, and the memories of both, {space} and {other}
    copies_async, tensor_cores : whether there are asynchronous copies, and tensor cores
    unroll : stands before a loop that is to be unrolled
    """

    name: str
    suffix: str
    prelude: str
    kernel: str
    pointer: str
    constant_pointer: str
    shared: str
    shared_pointer: str
    shared_bytes: int
    index: str
    block_index: str
    barrier: str
    aligned: str
    copy: str
    clear: str
    copies_async: bool
    tensor_cores: bool
    unroll: str = "#pragma unroll"

    def of_mark(self, stmt: T.Stmt) -> list[str]:
        """Lines for a barrier, or a statement about what is under way; none where it is done at
        once."""
        if isinstance(stmt, T.Barrier):
            return [self.barrier]
        if not self.copies_async:
            return []
        return [_MARKS[type(stmt)].format_map(vars(stmt))]

    def copied(
        self, size: int, to: str, source: str, target: T.Buffer | None, origin: T.Buffer | None
    ) -> str:
        """A statement that copies so many bytes, to and from a place in a buffer; either may be a
        private array in place of one."""
        space, other = ("" if b is None else f"{_SPACES[b.scope]} " for b in (target, origin))
        names = {"size": size, "vector": _VECTORS[size], "space": space, "other": other}
        return self.copy.format(to=to, source=source, **names)

    def cleared(self, size: int, to: str, target: T.Buffer) -> str:
        """A statement that sets so many bytes to zero."""
        space = _SPACES[target.scope]
        return self.clear.format(size=size, to=to, vector=_VECTORS[size], space=space)


#: OpenCL's names of memories, and of vectors by their bytes.
_SPACES = {"global": "__global", "shared": "__local", "local": "__private"}
_VECTORS = {16: "uint4", 8: "uint2", 4: "uint"}
#: CUDA's statements about what is under way.
_MARKS = {
    T.CopiesStarted: "copies_started();",
    T.CopiesArrived: "copies_arrived_but_{but}();",
    T.ProxyFence: "stores_seen();",
    T.ProductsBegin: "products_begin();",
    T.ProductsStarted: "products_started();",
    T.ProductsArrived: "products_arrived_but_{but}();",
}

CUDA = Dialect(
    "CUDA C++", "cu", _CUDA, 'extern "C" __global__ void __launch_bounds__({threads})',
    "{type}* __restrict__ {name}", "const {type}* __restrict__ {name}",
    "__shared__ __align__({align})", "{type}*", MOST_SHARED_BYTES, "threadIdx.{axis}",
    "blockIdx.{axis}", "__syncthreads();", "__align__(16)", "copy_{size}({to}, {source});",
    "clear_{size}({to});", copies_async=True, tensor_cores=True,
)  # fmt: skip
OPENCL = Dialect(
    "OpenCL C", "cl", _OPENCL,
    "__kernel __attribute__((reqd_work_group_size({x}, {y}, {z}))) void",
    "__global {type}* restrict {name}", "__global const {type}* restrict {name}",
    "__local __attribute__((aligned({align})))", "__local {type}*", SHARED_BYTES,
    "get_local_id({number})", "get_group_id({number})",
    "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);", "__attribute__((aligned(16)))",
    "*({space}{vector}*)({to}) = *(const {other}{vector}*)({source});",
    "*({space} {vector}*)({to}) = ({vector})(0);", copies_async=False, tensor_cores=False,
)  # fmt: skip
