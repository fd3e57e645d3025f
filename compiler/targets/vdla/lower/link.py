"""The object code of a program's layers becomes one linear stream of instructions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from .....isa.insn import Load
from .....isa.insn_table import InsnTable, column_of, widest
from .....isa.notes import Note
from .....isa.opcodes import Opcode
from .....isa.params import HwParams
from ....tir.ir import Buffer
from .object_code import ObjectCode

DRAM_ALIGN_BYTES = 64


@dataclass
class DramPlan:
    """Addresses of everything in DRAM. Constants with equal contents are stored once; ``image`` has
    their bytes and ``names`` their names, by address.
    """

    end: int = 0
    image: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    _constants: dict[bytes, int] = field(default_factory=dict)

    def allocate(self, size_bytes: int, align_bytes: int = DRAM_ALIGN_BYTES) -> int:
        """Reserve bytes and return their address."""
        address = -(-self.end // align_bytes) * align_bytes
        self.end = address + size_bytes
        return address

    def constant(self, data: bytes, name: str) -> int:
        """Address of constant bytes, placed and named on first use."""
        if data not in self._constants:
            address = self.allocate(len(data))
            self._constants[data] = address
            self.image[address] = data
            self.names[address] = name
        return self._constants[data]

    def zeros(self, address: int, size_bytes: int, name: str) -> None:
        """Let bytes that are placed already be zero before the program runs, if no other segment of
        the image has them.
        """
        taken = sorted((at, at + len(data)) for at, data in self.image.items())
        for at, end in (*taken, (address + size_bytes, 0)):
            if at > address and size_bytes > 0:
                self.image[address] = bytes(min(at - address, size_bytes))
                self.names[address] = name
            moved = max(end - address, 0)
            address, size_bytes = address + moved, size_bytes - moved


@dataclass(frozen=True)
class Place:
    """Where a parameter of a loop program lies in DRAM (bytes), and what the model calls it."""

    address: int
    name: str


@dataclass
class MicroOpRing:
    """Entries ``begin`` to ``end`` - 1 of the memory of micro-ops, and which sequences are in them.
    They fill from the bottom; when they are full, they start again empty (tokens order each load
    behind the last reader).
    """

    begin: int
    end: int
    slots: dict[bytes, int] = field(default_factory=dict)
    _next: int = 0

    def take(self, data: bytes, entries: int) -> int:
        """Let a sequence have entries in a row. Returns the first one."""
        if self.begin + self._next + entries > self.end:
            self.slots.clear()
            self._next = 0
        self.slots[data] = self.begin + self._next
        self._next += entries
        return self.slots[data]


@dataclass
class Linker:
    """Instructions in program order (without tokens), each with a note; micro-op memory and DRAM
    plan. ``micro_ops`` has the data of the loads of micro-ops, in order. Layers that are ``beside``
    others have the last ``beside_uops`` entries for their micro-ops, the others those before them.
    """

    params: HwParams
    beside_uops: int = 0
    dram: DramPlan = field(default_factory=DramPlan)
    notes: list[Note] = field(default_factory=list)
    count: int = 0
    micro_ops: list[bytes] = field(default_factory=list)
    _rows: list[np.ndarray] = field(default_factory=list)
    _note_of: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        depth = self.params.uop_depth
        first = MicroOpRing(0, depth - self.beside_uops)
        self._rings = first, MicroOpRing(first.end, depth) if self.beside_uops else first

    def add(
        self,
        code: ObjectCode,
        layer: str,
        places: Mapping[Buffer, Place],
        firsts: Mapping[str, int] | None = None,
        numbers: Mapping[int, int] | None = None,
        packed: Collection[Buffer] = (),
        beside: bool = False,
    ) -> int:
        """Append the instructions of a layer, and return how many.

        Parameters
        ----------
        places : where the loop program's parameters lie
        firsts : the first entries of its buffers, by scratchpad; 0 where nothing is said
        numbers : the loop program's numbers by slot; else those that it was made with
        packed : parameters that are packed weights in DRAM, whose loads were made for others
        beside : whether its micro-ops are those of a layer beside others
        """
        first_of = firsts or {}
        rows = code.insns.rows.copy()
        for buffer, moved in code.addresses:
            if buffer in packed:
                self._load_packed(rows, moved.rows)
            rows[moved.rows, moved.column] += places[buffer].address
        for memory, moved in code.entries:
            rows[moved.rows, moved.column] += first_of.get(memory, 0)
        if numbers is not None:
            for slot, moved in code.numbers:
                rows[moved.rows, moved.column] = numbers[slot]
        notes = code.stage_of + len(self.notes)
        for stage, buffers in code.stages:
            tensors = [places[buffer].name for buffer in buffers if buffer in places]
            self.notes.append(Note(layer, stage, tensors[0] if tensors else ""))
        uops = code.encoded_micro_ops([first_of.get(m, 0) for m in ("acc", "inp", "wgt")])
        ring = self._rings[beside]
        loads, before = self._place_micro_ops(rows, code.insns.opcodes, uops, layer, ring)
        if loads:
            rows = np.insert(rows, before, InsnTable.of(loads, self.params).rows, axis=0)
            notes = np.insert(notes, before, len(self.notes))
            self.notes.append(Note(layer, "micro-ops"))
        self._rows.append(rows)
        self._note_of.append(notes)
        self.count += len(rows)
        return len(rows)

    def _load_packed(self, rows: np.ndarray, which: np.ndarray) -> None:
        """Let some rows, which are LOADs of weights, read packed tiles: their addresses and strides
        are whole tiles."""
        params = self.params
        column = {
            name: column_of(Opcode.LOAD, name, params)
            for name in ("widen", "dram_addr", "y_stride", "z_stride")
        }
        rows[which, column.pop("widen")] = 1
        plain, packed = (params.dram_entry_bytes("wgt", widen) for widen in (0, 1))
        for place in column.values():
            rows[which, place] = rows[which, place] // plain * packed

    def _place_micro_ops(
        self,
        rows: np.ndarray,
        opcodes: np.ndarray,
        uops: list[bytes],
        layer: str,
        ring: MicroOpRing,
    ) -> tuple[list[Load], list[int]]:
        """Let the GEMMs of some rows begin with the entries where their micro-ops are. Returns the
        loads of those that are not there, and before which row each one comes."""
        column = column_of(Opcode.GEMM, "uop_begin", self.params)
        gemms = np.flatnonzero(opcodes == Opcode.GEMM)
        entry_bytes = self.params.entry_bytes("uop")
        begins, loads, before = [], [], []
        for row, number in zip(gemms.tolist(), rows[gemms, column].tolist(), strict=True):
            data = uops[number]
            begin = ring.slots.get(data)
            if begin is None:
                count = len(data) // entry_bytes
                address = self.dram.constant(data, f"{layer}.micro-ops")
                begin = ring.take(data, count)
                loads.append(Load(memory="uop", base=begin, dram_addr=address, x_size=count))
                before.append(row)
                self.micro_ops.append(data)
            begins.append(begin)
        rows[gemms, column] = begins
        return loads, before

    def insns(self) -> InsnTable:
        """All instructions so far."""
        none = np.zeros((0, widest(self.params)), np.int64)
        return InsnTable(self.params, np.concatenate([none, *self._rows]))

    def note_of(self) -> np.ndarray:
        """For each instruction the index of its note, int64 [instructions]."""
        return np.concatenate([np.zeros(0, np.int64), *self._note_of])
