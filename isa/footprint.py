"""What an instruction reads and writes: exact index sets of every scratchpad and of DRAM."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .encoding import PARAM_ENTRIES, uop_layout
from .errors import VdlaError
from .insn import Gemm, Insn, Load, Param, Store, Table, Vector
from .params import HwParams

#: DRAM is described in granules: every legal DRAM address and stride is a multiple of this.
GRANULE_BYTES = 4


@dataclass(frozen=True)
class Box:
    """Entries (of a scratchpad, or granules of DRAM) that an instruction reads or writes: ``base +
    sum(i_k * strides_k)`` for 0 <= i_k < extents_k. ``loops`` are pairs of extent and stride.

    A GEMM's operand has these entries for every micro-op that it runs, whose field is added. The
    numbers may be arrays: those of a batch (``batch.py``).
    """

    memory: str
    write: bool
    base: Any
    loops: tuple[tuple[Any, Any], ...]
    of_micro_ops: bool = False


@dataclass(frozen=True)
class Access:
    """Entries (of a scratchpad, or granules of DRAM) that an instruction reads or writes: int64
    [n], which may repeat.
    """

    memory: str
    entries: np.ndarray
    write: bool


class MicroOps:
    """The micro-op memory as a program fills it from constant DRAM segments."""

    def __init__(self, params: HwParams, image: Mapping[int, bytes]):
        self.params = params
        self.image = sorted(image.items())
        self.words = np.zeros(params.uop_depth, np.uint64)

    def load(self, insn: Load) -> None:
        """Carry out a LOAD into uop."""
        size = self.params.entry_bytes("uop")
        data = b"".join(
            self._read(insn.dram_addr + z * insn.z_stride + y * insn.y_stride, insn.x_size * size)
            for z in range(insn.z_size)
            for y in range(insn.y_size)
        )
        raw = np.frombuffer(data, np.uint8).reshape(insn.z_size, insn.y_size, insn.x_size, size)
        box = np.full(
            (insn.z_size, insn.rows, insn.row_entries, size), insn.pad_value & 255, np.uint8
        )
        rows = slice(insn.pad_top, insn.pad_top + insn.y_size)
        box[:, rows, insn.pad_left : insn.pad_left + insn.x_size] = raw
        wide = np.zeros((insn.entries, 8), np.uint8)
        wide[:, :size] = box.reshape(insn.entries, size)
        self.words[insn.base : insn.base + insn.entries] = wide.view("<u8").reshape(-1)

    def _read(self, address: int, size: int) -> bytes:
        before = bisect_right(self.image, address, key=lambda segment: segment[0])
        if before:
            start, data = self.image[before - 1]
            if address + size <= start + len(data):
                return data[address - start : address - start + size]
        raise VdlaError(
            f"micro-ops at {address:#x}: expected constant data of the program, there is none; "
            "micro-ops that a program computes cannot be analysed"
        )

    def fields(self, insn: Gemm) -> dict[str, np.ndarray]:
        """Fields of the micro-ops that an instruction runs, int64 [uop_count] each."""
        words = self.words[insn.uop_begin : insn.uop_begin + insn.uop_count]
        return unpack_words(words, self.params)


def unpack_words(words: np.ndarray, params: HwParams) -> dict[str, np.ndarray]:
    """Micro-op words (uint64) to one int64 array per field."""
    values, lsb = {}, 0
    for field in uop_layout(params):
        mask = np.uint64((1 << field.bits) - 1)
        values[field.name] = ((words >> np.uint64(lsb)) & mask).astype(np.int64)
        lsb += field.bits
    return values


def gemm_entries(insn: Gemm, uops: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Entry of acc, inp and wgt in every iteration, int64 [outer, inner, uop_count]."""
    outer = np.arange(insn.outer).reshape(-1, 1, 1)
    inner = np.arange(insn.inner).reshape(1, -1, 1)
    return {
        m: uops[m] + outer * getattr(insn, f"{m}_outer") + inner * getattr(insn, f"{m}_inner")
        for m in ("acc", "inp", "wgt")
    }


def vector_entries(insn: Vector) -> dict[str, np.ndarray]:
    """Entry of src0, src1 and dst in every iteration, int64 [n0, n1, n2, n3]; of dst -1 where a
    window's results are not written."""
    return {
        "src0": affine_entries(insn.src0_base, insn.src0_strides, insn.extents),
        "src1": affine_entries(insn.src1_base, insn.src1_strides, insn.extents),
        "dst": written_entries(
            insn.dst_base, insn.dst_strides, insn.written_extents, insn.reduce, insn.unwritten
        ),
    }


def written_entries(
    base: int, strides: tuple[int, ...], extents: tuple[int, ...], reduce: int, unwritten: int
) -> np.ndarray:
    """Entry of dst in every iteration, int64 [n0, n1, n2, n3]: of what is written, with
    ``extents``, and -1 for the ``unwritten`` results before it."""
    entries = affine_entries(base, strides, extents)
    if not unwritten:
        return entries
    before = [(0, 0)] * len(extents)
    before[-1 - reduce] = (unwritten, 0)
    return np.pad(entries, before, constant_values=-1)


def affine_entries(base: int, strides: tuple[int, ...], extents: tuple[int, ...]) -> np.ndarray:
    """Entry of one operand in every iteration, int64 [n0, n1, n2, n3]."""
    grid = np.ogrid[tuple(slice(n) for n in extents)]
    index = base + sum(g * s for g, s in zip(grid, strides, strict=True))
    return np.broadcast_to(index, extents)


def dram_rows(insn: Load | Store) -> np.ndarray:
    """Byte address of every row that moves, int64 [z_size, y_size]."""
    planes = np.arange(insn.z_size, dtype=np.int64).reshape(-1, 1) * insn.z_stride
    return insn.dram_addr + planes + np.arange(insn.y_size, dtype=np.int64) * insn.y_stride


def boxes(insn: Insn, params: HwParams) -> list[Box]:
    """All that an instruction reads and writes. A GEMM reads accumulators, too; as their only
    writer it orders itself.
    """
    match insn:
        case Load():
            row_bytes = insn.x_size * insn.dram_entry_bytes(params)
            target = Box(insn.memory, True, insn.base, ((insn.entries, 1),))
            return [_dram(insn, row_bytes, False), target]
        case Store():
            source = Box("out", False, insn.base, ((insn.entries, 1),))
            return [source, _dram(insn, insn.x_size * params.entry_bytes("out"), True)]
        case Gemm():
            micro = Box("uop", False, insn.uop_begin, ((insn.uop_count, 1),))
            return [micro, *(_gemm_operand(insn, m) for m in ("acc", "inp", "wgt"))]
        case Vector():
            return [
                _vector_operand(insn, name)
                for name in ("src0", "src1", "dst")
                if getattr(insn, name) != "imm"
            ]
        case Param():
            return [Box("par", False, insn.par_base, ((PARAM_ENTRIES, 1),))]
        case Table():
            return [Box("par", False, insn.par_base, ((params.table_entries, 1),))]
    raise VdlaError(f"footprint: unknown instruction {insn!r}")


def _gemm_operand(insn: Gemm, memory: str) -> Box:
    inner = insn.inner, getattr(insn, f"{memory}_inner")
    outer = insn.outer, getattr(insn, f"{memory}_outer")
    return Box(memory, memory == "acc", 0, (outer, inner), of_micro_ops=True)


def _vector_operand(insn: Vector, name: str) -> Box:
    base, strides = getattr(insn, f"{name}_base"), getattr(insn, f"{name}_strides")
    extents = insn.written_extents if name == "dst" else insn.extents
    loops = tuple(zip(extents, strides, strict=True))
    return Box(getattr(insn, name), name == "dst", base, loops)


def _dram(insn: Load | Store, row_bytes: Any, write: bool) -> Box:
    planes = insn.z_size, insn.z_stride // GRANULE_BYTES
    rows = insn.y_size, insn.y_stride // GRANULE_BYTES
    granules = -(-row_bytes // GRANULE_BYTES), 1
    return Box("dram", write, insn.dram_addr // GRANULE_BYTES, (planes, rows, granules))


def accesses(insn: Insn, params: HwParams, uops: MicroOps) -> list[Access]:
    """All accesses of an instruction. A LOAD into uop updates ``uops``."""
    if isinstance(insn, Load) and insn.memory == "uop":
        uops.load(insn)
    fields = uops.fields(insn) if isinstance(insn, Gemm) else {}
    return [
        Access(box.memory, _entries(box, fields.get(box.memory)), box.write)
        for box in boxes(insn, params)
    ]


def _entries(box: Box, fields: np.ndarray | None) -> np.ndarray:
    """The entries of a box, int64 [n]; ``fields`` are those of micro-ops."""
    entries = fields if box.of_micro_ops and fields is not None else np.array([box.base])
    for extent, stride in box.loops:
        if extent == 0:
            return np.zeros(0, np.int64)
        if extent > 1 and stride:
            entries = np.add.outer(entries, np.arange(extent) * stride)
    return entries.reshape(-1)
