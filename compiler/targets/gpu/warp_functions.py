"""Functions of CUDA C++ that are single instructions: copies of 16 bytes, asynchronous copies, and
the tensor cores'.

``runtime/gpu/warp.h`` has the same functions for kernels that are emulated on a processor.
"""

from __future__ import annotations

from .tensor_cores import GROUP_COLUMNS, SUMS, group_core, tensor_core

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


def _wgmma(kind: str, columns: int) -> tuple[str, str]:
    """Integers have neither signs of factors nor transposed ones, tf32 has no transposed ones."""
    core = group_core(kind, columns)
    name, short = core.mma.function, core.mma.function.rpartition("_")[2]
    sums, c_type, letter = ("s32", "i32", "r") if SUMS[kind] == "int32" else ("f32", "float", "f")
    count = columns // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    both = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    ending = {"s8": "1", "tf32": "1, 1, 1"}.get(short, "1, 1, 1, 0, 0")
    return (
        name,
        f"""\
FUNCTION void {name}({c_type}* d, u64 a, u64 b) {{
  asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}k{core.depth}.{sums}.{short}.{short} "
               "{{{registers}}}, %{count}, %{count + 1}, {ending};" :
               {both} : "l"(a), "l"(b));
}}
""",
    )


def _bulk_copy(rank: int) -> tuple[str, str]:
    """Coordinates begin with that of elements side by side."""
    name = f"bulk_copy_{rank}d"
    given = ", ".join(f"i32 at{d}" for d in range(rank))
    places = ", ".join(f"%{d + 3}" for d in range(rank))
    inputs = ", ".join(f'"r"(at{d})' for d in range(rank))
    return (
        name,
        f"""\
FUNCTION void {name}(void* to, const TensorMap* map, u64* signal, {given}) {{
  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes [%0], [%1, {{{places}}}], [%2];" ::
               "r"((u32)__cvta_generic_to_shared(to)), "l"(address_of(map)),
               "r"((u32)__cvta_generic_to_shared(signal)), {inputs} : "memory");
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
    **dict(_wgmma(kind, columns) for kind in SUMS for columns in GROUP_COLUMNS),
    "stores_seen": "FUNCTION void stores_seen() "
    '{ asm volatile("fence.proxy.async;" ::: "memory"); }\n',
    "products_begin": "FUNCTION void products_begin() "
    '{ asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }\n',
    "products_started": "FUNCTION void products_started() "
    '{ asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }\n',
    # The driver makes one for the host; a kernel's parameter is a copy of it.
    "address_of": "struct __align__(64) TensorMap { u64 words[16]; };\n"
    "FUNCTION u64 address_of(const TensorMap* map) { return (u64)map; }\n",
    **dict(_bulk_copy(rank) for rank in (2, 3)),
    "signals_ready": """\
FUNCTION void signals_ready(u64* signals, i32 count) {
  for (i32 i = 0; i < count; ++i)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::
                 "r"((u32)__cvta_generic_to_shared(signals + i)) : "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}
""",
    "signal_expects": """\
FUNCTION void signal_expects(u64* signal, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::
               "r"((u32)__cvta_generic_to_shared(signal)), "r"(bytes) : "memory");
}
""",
    "signal_arrived": """\
FUNCTION void signal_arrived(u64* signal, u32 parity) {
  u32 done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                 "selp.u32 %0, 1, 0, p; }" :
                 "=r"(done) : "r"((u32)__cvta_generic_to_shared(signal)), "r"(parity) : "memory");
}
""",
    **{
        f"products_arrived_but_{n}": f"FUNCTION void products_arrived_but_{n}() "
        f'{{ asm volatile("wgmma.wait_group.sync.aligned {n};" ::: "memory"); }}\n'
        for n in range(3)
    },
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
    "load_swizzled_a": """\
FUNCTION void load_swizzled_a(u32* to, const void* rows, i32 first, i32 row_bytes) {
  const i32 lane = (i32)threadIdx.x;
  const i32 at = first + lane % 16 * row_bytes + lane / 16 * 16;
  ldmatrix_x4(to, (const u8*)rows + swizzled(at, row_bytes - 16));
}
""",
    "load_swizzled_b": """\
FUNCTION void load_swizzled_b(u32* to, const void* rows, i32 first, i32 row_bytes) {
  const i32 lane = (i32)threadIdx.x;
  const i32 at = first + lane % 8 * row_bytes + lane / 8 % 2 * 16;
  ldmatrix_x2(to, (const u8*)rows + swizzled(at, row_bytes - 16));
}
""",
    # PTX, "Matrix descriptor format" and "Strides" of K-major matrices.
    "matrix_of": """\
FUNCTION u64 matrix_of(const void* rows, i32 first, i32 row_bytes) {
  const u64 at = (u64)__cvta_generic_to_shared((const u8*)rows + first);
  const u64 swizzle = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
  return (at >> 4 & 0x3fff) | (u64)1 << 16 | (u64)(8 * row_bytes >> 4) << 32 | swizzle << 62;
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
        f"store_group_{short}": f"""\
FUNCTION void store_group_{short}({kind}* tile, i32 row, i32 columns, const {kind}* d) {{
  const i32 lane = (i32)threadIdx.x % 32, warp = (i32)threadIdx.x / 32;
  {kind}* to = tile + (16 * warp + lane / 4) * row + lane % 4 * 2;
#pragma unroll
  for (i32 i = 0; i < columns / 8; ++i) {{
    copy_8(to + 8 * i, d + 4 * i);
    copy_8(to + 8 * row + 8 * i, d + 4 * i + 2);
  }}
}}
""",
        f"clear_group_{short}": f"""\
FUNCTION void clear_group_{short}({kind}* d, i32 columns) {{
#pragma unroll
  for (i32 i = 0; i < columns / 2; ++i) d[i] = 0;
}}
""",
    }


WARP_FUNCTIONS: dict[str, str] = {
    **{name: _ON_GPU.format(text) for name, text in _INSTRUCTIONS.items()},
    **_LOADS,
    **_sums("float", "f32"),
    **_sums("i32", "i32"),
}
