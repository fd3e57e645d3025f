"""Amaranth shapes of what travels between blocks, derived from the encoding tables of ``isa``."""

from __future__ import annotations

from amaranth.hdl import Shape, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Member, Out

from ..isa.encoding import Field, layout, layout_bits
from ..isa.encoding import uop_layout as uop_fields
from ..isa.opcodes import Opcode, Unit
from ..isa.params import HwParams

#: Bits of an instruction's position in its program, which travels with it for error reports.
INDEX_BITS = 32


def _struct(spec: tuple[Field, ...]) -> data.StructLayout:
    return data.StructLayout({field.name: Shape(field.bits, field.signed) for field in spec})


def insn_layout(opcode: Opcode, params: HwParams) -> data.StructLayout:
    """Fields of an instruction, named and ordered as ``isa.encoding.layout`` has them."""
    return _struct(layout(opcode, params))


def uop_layout(params: HwParams) -> data.StructLayout:
    """Fields of a micro-op as the ``uop`` scratchpad holds it."""
    return _struct(uop_fields(params))


def unit_bits(unit: Unit, params: HwParams) -> int:
    """Bits of the widest instruction that a unit executes."""
    return max(layout_bits(layout(opcode, params)) for opcode in Opcode if opcode.unit is unit)


def queued_layout(unit: Unit, params: HwParams) -> data.StructLayout:
    """What the queue of a unit holds.

    ``word``: the instruction as far as the unit has fields (``unit_bits``); ``excess``: a bit above
    them was set, so it is undecodable; ``index``: its position in the program.
    """
    return data.StructLayout({"word": unit_bits(unit, params), "excess": 1, "index": INDEX_BITS})


def error_layout() -> data.StructLayout:
    """How a unit reports that it stops: ``valid`` for one cycle, a code of ``isa.status.Status``,
    and the position in the program of the instruction at fault.
    """
    return data.StructLayout({"valid": 1, "status": 4, "index": INDEX_BITS})


def unit_members(unit: Unit, params: HwParams) -> dict[str, Member]:
    """The ports that every unit with an instruction queue has.

    ``insn``: from its queue; ``available``, ``pop``: masks from and to the token bank, ``pop`` is
    set in the cycle of ``start``; ``start``, ``end``: strobes for the trace; ``push``: units that
    get a token, set in the cycle of ``end`` only; ``end_index``: which instruction ends; ``error``:
    the unit has stopped for good; ``busy``, ``waiting``: causes for the stall accounting
    (``waiting`` is the mask of units whose token the head of the queue lacks); ``idle``: nothing is
    in the unit.
    """
    return {
        "insn": In(stream.Signature(queued_layout(unit, params))),
        "available": In(len(Unit)),
        "pop": Out(len(Unit)),
        "start": Out(1),
        "end": Out(1),
        "push": Out(len(Unit)),
        "end_index": Out(INDEX_BITS),
        "error": Out(error_layout()),
        "busy": Out(1),
        "waiting": Out(len(Unit)),
        "idle": Out(1),
    }


def overlay(word: Value, shape: data.Layout) -> data.View:
    """The low bits of a word seen through a layout."""
    return data.View(shape, word[: shape.size])
