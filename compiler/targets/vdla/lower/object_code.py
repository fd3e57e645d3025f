"""The instructions of a loop program before it has a place: in DRAM, and in the scratchpads.

Layers that compute the same in the same way have instructions that differ in addresses only. Their
instructions are worked out once, as object code, which the linker (``link.py``) moves to the place
of each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .....isa.insn import encode_uops
from .....isa.insn_table import InsnTable, column_of
from .....isa.opcodes import DST_MEMORIES, LOADABLE, SRC0_MEMORIES, SRC1_MEMORIES, Opcode
from ....tir.ir import Buffer
from .numbers import Number
from .stream import Stream

#: Fields that hold an entry of a scratchpad: the opcode, the field, and the scratchpad; or the
#: field that says which scratchpad, and its values.
_ENTRIES = (
    (Opcode.LOAD, "base", "memory", LOADABLE),
    (Opcode.VECTOR, "src0_base", "src0", SRC0_MEMORIES),
    (Opcode.VECTOR, "src1_base", "src1", SRC1_MEMORIES),
    (Opcode.VECTOR, "dst_base", "dst", DST_MEMORIES),
    (Opcode.PARAM, "par_base", "", ("par",)),
    (Opcode.TABLE, "par_base", "", ("par",)),
    (Opcode.STORE, "base", "", ("out",)),
)
#: Fields that hold a number of the loop program.
_NUMBERS = {
    Opcode.LOAD: ("pad_value",),
    Opcode.VECTOR: ("imm",),
    Opcode.PARAM: ("zero_point", "lo", "hi"),
}


@dataclass(frozen=True)
class Relocation:
    """Fields whose value is known later: a column in some rows of a table."""

    rows: np.ndarray
    column: int


@dataclass(frozen=True, eq=False)
class ObjectCode:
    """The instructions of a loop program. Entries count from the loop program's first one in each
    scratchpad, bytes from the beginning of a parameter, and ``uop_begin`` is the number of a
    sequence of micro-ops.

    Attributes
    ----------
    insns : the instructions
    micro_ops : sequences of micro-ops, int64 [their number, fields of a micro-op] each
    stages : what instructions are for: the stage that they compute, and the buffers whose data they
        move
    stage_of : for each instruction the index of its stage, int64 [instructions]
    addresses : the bytes of parameters
    entries : the entries of scratchpads
    numbers : the fields that hold a number of the loop program, by its slot
    """

    insns: InsnTable
    micro_ops: Sequence[np.ndarray]
    stages: Sequence[tuple[str, Sequence[Buffer]]]
    stage_of: np.ndarray
    addresses: Sequence[tuple[Buffer, Relocation]]
    entries: Sequence[tuple[str, Relocation]]
    numbers: Sequence[tuple[int, Relocation]]
    _encoded: dict[tuple[int, ...], list[bytes]] = field(default_factory=dict)

    @classmethod
    def of(cls, stream: Stream) -> ObjectCode:
        """The object code of what a stream has."""
        insns = InsnTable.of(stream.insns, stream.params)
        places: dict[tuple, int] = {}
        stages, stage_of = [], []
        by_buffer: dict[tuple[int, Opcode], list[int]] = {}
        buffers: dict[int, Buffer] = {}
        for index, (mark, insn) in enumerate(zip(stream.marks, stream.insns, strict=True)):
            key = mark.stage, id(mark.moved)
            if key not in places:
                places[key] = len(stages)
                stages.append((mark.stage, mark.moved))
            stage_of.append(places[key])
            if mark.buffer is not None:
                buffers[id(mark.buffer)] = mark.buffer
                by_buffer.setdefault((id(mark.buffer), insn.opcode), []).append(index)
        addresses = []
        for (buffer, opcode), rows in by_buffer.items():
            column = column_of(opcode, "dram_addr", stream.params)
            if column is not None:
                moved = Relocation(np.array(rows, np.int64), column)
                addresses.append((buffers[buffer], moved))
        return cls(
            insns,
            [np.array(uops, np.int64) for uops in stream.micro_ops],
            stages,
            np.array(stage_of, np.int64),
            addresses,
            _entries(insns),
            _numbers(stream),
        )

    def encoded_micro_ops(self, firsts: Sequence[int]) -> list[bytes]:
        """Each sequence as it lies in DRAM, where the first entries of ``acc``, ``inp`` and ``wgt``
        are these."""
        key = tuple(firsts)
        if key not in self._encoded:
            moved = np.array([*key, 0], np.int64)
            self._encoded[key] = [
                encode_uops(uops + moved, self.insns.params) for uops in self.micro_ops
            ]
        return self._encoded[key]


def _entries(insns: InsnTable) -> list[tuple[str, Relocation]]:
    """Where instructions name entries of scratchpads."""
    found = []
    for opcode, name, selector, memories in _ENTRIES:
        column = column_of(opcode, name, insns.params)
        rows = np.flatnonzero(insns.opcodes == opcode)
        if column is None or not rows.size:
            continue
        which = np.zeros(rows.size, np.int64)
        if selector:
            place = column_of(opcode, selector, insns.params)
            which = insns.rows[rows, place]
        for code in np.unique(which).tolist():
            found.append((memories[code], Relocation(rows[which == code], column)))
    return found


def _numbers(stream: Stream) -> list[tuple[int, Relocation]]:
    """Find the fields of instructions that hold a number of the loop program."""
    rows: dict[tuple[int, int], list[int]] = {}
    columns = {
        opcode: [(name, column_of(opcode, name, stream.params)) for name in names]
        for opcode, names in _NUMBERS.items()
    }
    for row, insn in enumerate(stream.insns):
        for name, column in columns.get(insn.opcode, ()):
            value = getattr(insn, name)
            if isinstance(value, Number) and column is not None:
                rows.setdefault((value.slot, column), []).append(row)
    return [(slot, Relocation(np.array(r, np.int64), c)) for (slot, c), r in rows.items()]
