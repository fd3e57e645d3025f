"""Functions of CUDA C++ that are single instructions: copies of 16 bytes, asynchronous copies, and
the tensor cores'.

``runtime/gpu/warp.h`` has the same functions for kernels that are emulated on a processor.
"""

from __future__ import annotations

from .tensor_cores import SUMS, tensor_core

#: What an emulated text has of its own stands between these.
_ON_GPU = "#ifdef __CUDACC__\n{}#endif\n"
#: CUDA's type of as many bytes.
VECTORS = {16: "uint4", 8: "uint2", 4: "unsigned"}
#: The most groups of asynchronous copies that a thread leaves under way.
MOST_GROUPS = 6


def _copy(size: int) -> str:
    vector = VECTORS[size]
    return (
        f"FUNCTION void copy_{size}(void* to, const void* from) "
        f"{{ *({vector}*)to = *(const {vector}*)from; }}\n"
    )


def _clear(size: int) -> str:
    vector = VECTORS[size]
    return f"FUNCTION void clear_{size}(void* to) {{ *({vector}*)to = {vector}(); }}\n"


def _copy_async(size: int) -> str:
    """Zeros where there is nothing to copy. Only whole 16 bytes may go past the first cache."""
    level = "cg" if size == 16 else "ca"
    return f"""\
FUNCTION void copy_async_{size}(void* to, const void* from, bool exists) {{
  asm volatile("cp.async.{level}.shared.global [%0], [%1], {size}, %2;" ::
               "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(exists ? {size} : 0)
               : "memory");
}}
"""


def _ldmatrix(count: int) -> str:
    names = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"=r"(to[{i}])' for i in range(count))
    return f"""\
FUNCTION void ldmatrix_x{count}(u32* to, const void* row) {{
  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 {{{names}}}, [%{count}];" :
               {outputs} : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}}
"""


def _mma(dtype: str) -> tuple[str, str]:
    core = tensor_core(dtype)
    name, short = core.mma.function, core.mma.function.rpartition("_")[2]
    sums = "s32" if SUMS[dtype] == "int32" else "f32"
    kind, letter = ("i32", "r") if sums == "s32" else ("float", "f")
    both = ", ".join(f'"+{letter}"(d[{i}])' for i in range(4))
    inputs = ", ".join(f'"r"({x}[{i}])' for x, n in (("a", 4), ("b", 2)) for i in range(n))
    return (
        name,
        f"""\
FUNCTION void {name}({kind}* d, const u32* a, const u32* b) {{
  asm volatile("mma.sync.aligned.m16n8k{core.depth}.row.col.{sums}.{short}.{short}.{sums} "
               "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};" :
               {both} : {inputs});
}}
""",
    )


#: Texts by name, for CUDA alone.
_INSTRUCTIONS = {
    **{f"copy_{size}": _copy(size) for size in VECTORS},
    **{f"clear_{size}": _clear(size) for size in VECTORS},
    **{f"copy_async_{size}": _copy_async(size) for size in VECTORS},
    "copies_started": "FUNCTION void copies_started() "
    '{ asm volatile("cp.async.commit_group;" ::: "memory"); }\n',
    **{
        f"copies_arrived_but_{n}": f"FUNCTION void copies_arrived_but_{n}() "
        f'{{ asm volatile("cp.async.wait_group {n};" ::: "memory"); }}\n'
        for n in range(MOST_GROUPS + 1)
    },
    "ldmatrix_x4": _ldmatrix(4),
    "ldmatrix_x2": _ldmatrix(2),
    **dict(map(_mma, SUMS)),
}

_LOADS = {
    "load_fragment_a": """\
FUNCTION void load_fragment_a(u32* to, const void* tile, i32 row_bytes) {
  const i32 lane = (i32)threadIdx.x;
  ldmatrix_x4(to, (const u8*)tile + lane % 16 * row_bytes + lane / 16 * 16);
}
""",
    "load_fragment_b": """\
FUNCTION void load_fragment_b(u32* to, const void* tile, i32 row_bytes) {
  const i32 lane = (i32)threadIdx.x;
  ldmatrix_x2(to, (const u8*)tile + lane % 8 * row_bytes + lane / 8 % 2 * 16);
}
""",
}


def _sums(kind: str, short: str) -> dict[str, str]:
    return {
        f"store_fragment_{short}": f"""\
FUNCTION void store_fragment_{short}({kind}* tile, i32 row, const {kind}* d) {{
  const i32 lane = (i32)threadIdx.x;
  {kind}* to = tile + lane / 4 * row + lane % 4 * 2;
  copy_8(to, d);
  copy_8(to + 8 * row, d + 2);
}}
""",
        f"clear_fragment_{short}": f"FUNCTION void clear_fragment_{short}({kind}* d) "
        "{ d[0] = d[1] = d[2] = d[3] = 0; }\n",
    }


WARP_FUNCTIONS: dict[str, str] = {
    **{name: _ON_GPU.format(text) for name, text in _INSTRUCTIONS.items()},
    **_LOADS,
    **_sums("float", "f32"),
    **_sums("i32", "i32"),
}
