"""Opcodes, units and operand memories: the names and codes that everything else derives from."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Protocol


class Unit(IntEnum):
    """The units that own an instruction queue; the value is the bit position in token masks."""

    LOAD = 0
    GEMM = 1
    VECTOR = 2
    STORE = 3


class Units(IntFlag):
    """A set of units: the pop and push masks of an instruction."""

    NONE = 0
    LOAD = 1 << Unit.LOAD
    GEMM = 1 << Unit.GEMM
    VECTOR = 1 << Unit.VECTOR
    STORE = 1 << Unit.STORE


class Opcode(IntEnum):
    """Instruction codes. 0 is illegal on purpose, so that zeroed memory stops the core."""

    LOAD = 1
    GEMM = 2
    VECTOR = 3
    PARAM = 4
    STORE = 5
    TABLE = 6

    @property
    def unit(self) -> Unit:
        """The unit that executes the instruction."""
        return _UNIT_OF[self]


_UNIT_OF = {
    Opcode.LOAD: Unit.LOAD,
    Opcode.GEMM: Unit.GEMM,
    Opcode.VECTOR: Unit.VECTOR,
    Opcode.PARAM: Unit.VECTOR,
    Opcode.STORE: Unit.STORE,
    Opcode.TABLE: Unit.VECTOR,
}


class Features(Protocol):
    """What a configuration may have or not. :class:`~.params.HwParams` says which it has."""

    @property
    def vector_table(self) -> int:
        """Bytes of each value of the vector unit's table; 0 without one."""
        ...

    @property
    def vector_window(self) -> int:
        """Products of a sliding window that a lane computes in an iteration; 0 without one."""
        ...

    @property
    def packed_weights(self) -> int:
        """Whether weights of 4 bits are unpacked."""
        ...


def opcodes(params: Features) -> tuple[Opcode, ...]:
    """The instructions of a configuration."""
    return tuple(code for code in Opcode if code is not Opcode.TABLE or params.vector_table)


#: Memories that LOAD writes, by code.
LOADABLE = ("inp", "wgt", "uop", "par")


def widened(params: Features) -> tuple[str, ...]:
    """The memories whose entries LOAD may widen."""
    return ("par", "wgt") if params.packed_weights else ("par",)


#: Operands and destinations of VECTOR, by code.
SRC0_MEMORIES = ("acc", "inp", "tmp")
SRC1_MEMORIES = ("imm", "par", "tmp")
DST_MEMORIES = ("tmp", "out")

#: The one unit that writes each scratchpad, and the units that read it.
WRITER = {
    "inp": Unit.LOAD,
    "wgt": Unit.LOAD,
    "uop": Unit.LOAD,
    "par": Unit.LOAD,
    "acc": Unit.GEMM,
    "tmp": Unit.VECTOR,
    "out": Unit.VECTOR,
}
READERS = {
    "inp": (Unit.GEMM, Unit.VECTOR),
    "wgt": (Unit.GEMM,),
    "uop": (Unit.GEMM,),
    "par": (Unit.VECTOR,),
    "acc": (Unit.GEMM, Unit.VECTOR),
    "tmp": (Unit.VECTOR,),
    "out": (Unit.STORE,),
}
