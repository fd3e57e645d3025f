"""Reference interpreter: what each instruction does to the machine's memories, one instruction at a
time, in NumPy.

This is the meaning of a program: instructions in program order, no time, no tokens. The kernels of
the SimPy model (``sim/model/kernels.py``) and the RTL are compared with it byte by byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import VdlaError
from .footprint import dram_rows, gemm_entries, unpack_words, vector_entries
from .insn import Gemm, Insn, Load, Param, Store, Table, Vector
from .packed import unpack
from .params import MEMORIES, HwParams
from .program import Program
from .vector_ops import BY_NAME, POST_BY_NAME, TABLE_VALUES, NumpyKit, VectorOp


class AddressError(VdlaError):
    """A micro-op sends the tensor core out of range, or an access lies beyond DRAM."""


class State:
    """All memories of a machine, zero at reset.

    Attributes
    ----------
    dram : uint8 [bytes], the array given, changed in place
    inp, out : int8 [depth, batch, block];  wgt : int8 [depth, block_out, block_in]
    uop : uint8 [depth, bytes];  par : int32 [depth, block];  acc, tmp : int32 [depth, batch, block]
    bias, multiplier, shift : int32 [block];  zero_point, lo, hi : int
    table : int8 or int16 [256], by the value modulo 256
    """

    def __init__(self, params: HwParams, dram: np.ndarray):
        self.params, self.dram = params, dram
        vector = (params.batch, params.block)
        self.inp = np.zeros((params.inp_depth, *vector), np.int8)
        self.wgt = np.zeros((params.wgt_depth, params.block_out, params.block_in), np.int8)
        self.uop = np.zeros((params.uop_depth, params.entry_bytes("uop")), np.uint8)
        self.par = np.zeros((params.par_depth, params.block), np.int32)
        self.acc = np.zeros((params.acc_depth, *vector), np.int32)
        self.tmp = np.zeros((params.tmp_depth, *vector), np.int32)
        self.out = np.zeros((params.out_depth, *vector), np.int8)
        self.bias, self.multiplier, self.shift = np.zeros((3, params.block), np.int32)
        self.zero_point, self.lo, self.hi = 0, -128, 127
        self.table = np.zeros(TABLE_VALUES, f"<i{max(1, params.vector_table)}")

    def memory(self, name: str) -> np.ndarray:
        """A scratchpad by name."""
        return getattr(self, name)

    def micro_ops(self, insn: Gemm) -> dict[str, np.ndarray]:
        """Fields of the loaded micro-ops that a GEMM executes, as of ``unpack_words``."""
        words = np.zeros((insn.uop_count, 8), np.uint8)
        loaded = self.uop[insn.uop_begin : insn.uop_begin + insn.uop_count]
        words[:, : loaded.shape[1]] = loaded
        return unpack_words(words.view("<u8").reshape(-1), self.params)

    def scratchpads(self) -> dict[str, np.ndarray]:
        """Contents of every scratchpad, uint8 [depth, bytes of an entry]."""
        return {
            name: self.memory(name).reshape(self.params.depth(name), -1).view(np.uint8)
            for name in MEMORIES
        }


def run(program: Program, dram: np.ndarray) -> State:
    """Execute a whole program; ``dram`` (uint8) is changed in place.

    Raises AddressError with the index of the instruction.
    """
    state = State(program.params, dram)
    for index, insn in enumerate(program.insns):
        try:
            execute(insn, state)
        except AddressError as error:
            raise AddressError(f"instruction {index}: {error}") from None
    return state


def execute(insn: Insn, state: State) -> None:
    """Execute one instruction."""
    match insn:
        case Load():
            _load(insn, state)
        case Gemm():
            _gemm(insn, state)
        case Vector():
            _vector(insn, state)
        case Param():
            state.bias, state.multiplier, state.shift = state.par[
                insn.par_base : insn.par_base + 3
            ].copy()
            state.zero_point, state.lo, state.hi = insn.zero_point, insn.lo, insn.hi
        case Table():
            rows = state.par[insn.par_base : insn.par_base + state.params.table_entries]
            state.table[...] = rows.reshape(-1).view(state.table.dtype)
        case Store():
            _store(insn, state)


def _dram_index(insn: Load | Store, row_bytes: int, state: State) -> np.ndarray:
    """Indices [z, y, row_bytes] of the bytes that move."""
    rows = dram_rows(insn)
    if rows.size and rows.max() + row_bytes > state.dram.size:
        raise AddressError(
            f"{insn.opcode.name}: DRAM byte {rows.max() + row_bytes - 1:#x} is beyond its "
            f"{state.dram.size:#x} bytes"
        )
    return rows[:, :, None] + np.arange(row_bytes)


def _load(insn: Load, state: State) -> None:
    entry_bytes = insn.dram_entry_bytes(state.params)
    data = state.dram[_dram_index(insn, insn.x_size * entry_bytes, state)]
    data = data.reshape(insn.z_size, insn.y_size, insn.x_size, entry_bytes)
    if insn.widen and insn.memory == "wgt":
        entry_bytes = state.params.entry_bytes("wgt")
        data = unpack(data, state.params).view(np.uint8).reshape(*data.shape[:3], entry_bytes)
    box = np.full(
        (insn.z_size, insn.rows, insn.row_entries, entry_bytes), insn.pad_value & 255, np.uint8
    )
    rows = slice(insn.pad_top, insn.pad_top + insn.y_size)
    cols = slice(insn.pad_left, insn.pad_left + insn.x_size)
    box[:, rows, cols] = data
    values = box.reshape(insn.entries, entry_bytes)
    if insn.widen and insn.memory == "par":
        values = values.view(np.int8).astype(np.int32)
    target = state.memory(insn.memory)[insn.base : insn.base + insn.entries]
    target[...] = values.view(target.dtype).reshape(target.shape)


def _gemm(insn: Gemm, state: State) -> None:
    params = state.params
    uops = state.micro_ops(insn)
    index = {m: e.reshape(-1) for m, e in gemm_entries(insn, uops).items()}
    for memory, entries in index.items():
        if entries.max() >= params.depth(memory):
            raise AddressError(
                f"GEMM: address out of range, {memory} entry {entries.max()}, "
                f"depth {params.depth(memory)}"
            )
    # float32 products and sums of up to 32 int8 pairs are exact (32 * 2**14 < 2**24).
    inp = state.inp[index["inp"]].astype(np.float32)
    wgt = state.wgt[index["wgt"]].astype(np.float32)
    products = np.matmul(inp, wgt.transpose(0, 2, 1)).astype(np.int64)
    acc = index["acc"]
    first = np.broadcast_to(uops["first"] & insn.init, (insn.outer, insn.inner, insn.uop_count))
    # An overwriting step forgets all earlier steps of its accumulator: only what follows the last
    # one counts.
    order = np.arange(acc.size)
    overwritten = np.full(params.acc_depth, -1)
    starts = first.reshape(-1).astype(bool)
    np.maximum.at(overwritten, acc[starts], order[starts])
    counts = order >= overwritten[acc]
    touched, where = np.unique(acc, return_inverse=True)
    total = np.where((overwritten[touched] < 0)[:, None, None], state.acc[touched], 0).astype(
        np.int64
    )
    np.add.at(total, where[counts], products[counts])
    state.acc[touched] = total.astype(np.int32)


def _vector(insn: Vector, state: State) -> None:
    index = {name: entries.reshape(-1) for name, entries in vector_entries(insn).items()}
    if BY_NAME[insn.op].slides:
        _slide(insn, index, state)
        return
    group = int(np.prod(insn.extents[4 - insn.reduce :])) if insn.reduce else 1
    reads_back = insn.dst == "tmp" and "tmp" in (insn.src0, insn.src1)
    step = group if reads_back else insn.iterations
    if reads_back and not _overlaps(insn, index):
        step = insn.iterations
    for begin in range(0, insn.iterations, step):
        part = slice(begin, begin + step)
        a = operand(insn.src0, index["src0"][part], insn, state)
        b = operand(insn.src1, index["src1"][part], insn, state)
        left, right = (x.reshape(-1, group, *x.shape[1:]) for x in (a, b))
        result = fold(BY_NAME[insn.op], left, right, NumpyKit(state.table))
        target = state.memory(insn.dst)
        target[index["dst"][part][::group]] = _finish(insn, result, state).astype(target.dtype)


def _slide(insn: Vector, index: dict[str, np.ndarray], state: State) -> None:
    """An instruction whose operator slides, result by result: the sums move on before each."""
    kit = NumpyKit(state.table)
    group = int(np.prod(insn.extents[4 - insn.reduce :])) if insn.reduce else 1
    still = np.zeros((state.params.batch, state.params.block), np.int32)
    sums = [still] * state.params.vector_window
    for begin in range(0, insn.iterations, group):
        sums = [still, *sums[:-1]]
        part = slice(begin, begin + group)
        a = operand(insn.src0, index["src0"][part], insn, state)
        b = operand(insn.src1, index["src1"][part], insn, state)
        for x, y in zip(a, b, strict=True):
            sums = [kit.add(total, kit.tap(x, y, i)) for i, total in enumerate(sums)]
        if (entry := index["dst"][begin]) >= 0:
            target = state.memory(insn.dst)
            target[entry] = _finish(insn, sums[insn.imm], state).astype(target.dtype)


def _overlaps(insn: Vector, index: dict[str, np.ndarray]) -> bool:
    """Whether an iteration may read what an earlier one of the same instruction wrote."""
    sources = [index[name] for name in ("src0", "src1") if getattr(insn, name) == "tmp"]
    once = np.unique(index["dst"]).size == index["dst"].size
    same = all(np.array_equal(source, index["dst"]) for source in sources)
    apart = all(not np.intersect1d(source, index["dst"]).size for source in sources)
    return not (apart or (same and once))


def operand(name: str, entries: np.ndarray, insn: Vector, state: State) -> np.ndarray:
    """Operand vectors, int32 [n, batch, block]."""
    shape = (entries.size, state.params.batch, state.params.block)
    if name == "imm":
        return np.broadcast_to(np.int32(insn.imm), shape)
    values = state.memory(name)[entries].astype(np.int32)
    return np.broadcast_to(values[:, None, :], shape) if name == "par" else values


def fold(op: VectorOp, a: np.ndarray, b: np.ndarray, kit: Any) -> np.ndarray:
    """Results [n, batch, block] of operands [n, group, batch, block], by any kit."""
    result = op.first(kit, a[:, 0], b[:, 0])
    for k in range(1, a.shape[1]):
        assert op.term is not None and op.combine is not None
        result = op.combine(kit, result, op.term(kit, a[:, k], b[:, k]))
    return result


def _finish(insn: Vector, result: np.ndarray, state: State) -> np.ndarray:
    """Post-operation and saturation."""
    post = POST_BY_NAME[insn.post]
    if post.rounding is not None:
        total = NumpyKit.add(result, np.broadcast_to(state.bias, result.shape))
        multiplier = np.broadcast_to(state.multiplier, result.shape)
        shift = np.broadcast_to(state.shift, result.shape)
        rounded = post.rounding(total, multiplier, shift)
        return np.clip(rounded + state.zero_point, state.lo, state.hi)
    return np.clip(result, -128, 127) if insn.dst == "out" else result


def _store(insn: Store, state: State) -> None:
    row_bytes = insn.x_size * state.params.entry_bytes("out")
    index = _dram_index(insn, row_bytes, state)
    data = state.out[insn.base : insn.base + insn.entries]
    state.dram[index] = np.ascontiguousarray(data).view(np.uint8).reshape(index.shape)
