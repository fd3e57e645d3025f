"""Amaranth structures of instructions and micro-ops, derived from ``isa/encoding.py``."""

from __future__ import annotations

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from ...isa.encoding import Field, layout, uop_layout
from ...isa.opcodes import Opcode
from ...isa.params import HwParams

#: Bits of an instruction's index in its program.
INDEX_BITS = 24


def _struct(fields: tuple[Field, ...]) -> data.StructLayout:
    return data.StructLayout(
        {f.name: signed(f.bits) if f.signed else unsigned(f.bits) for f in fields}
    )


def insn_layout(opcode: Opcode, params: HwParams) -> data.StructLayout:
    """Fields of an instruction, by the names of the encoding."""
    return _struct(layout(opcode, params))


def uop_struct(params: HwParams) -> data.StructLayout:
    """Fields of a micro-op."""
    return _struct(uop_layout(params))


def queued_insn(params: HwParams) -> data.StructLayout:
    """What instruction queues hold: the word as fetched and its index in the program."""
    return data.StructLayout(
        {"word": unsigned(params.insn_bytes * 8), "index": unsigned(INDEX_BITS)}
    )
