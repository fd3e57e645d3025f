"""What all units with an instruction queue share: taking the next instruction, and what they tell
the core.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ...isa.encoding import layout, layout_bits
from ...isa.opcodes import Opcode, Unit, opcodes
from ...isa.params import HwParams
from ...isa.status import Status
from .layouts import INDEX_BITS, insn_layout, queued_insn


def taker_signature(params: HwParams) -> wiring.Signature:
    """Ports of the part of a unit that takes its instructions.

    ``insn``: the head of the unit's queue. ``available``: units whose token can be taken, ``pop``:
    tokens taken now. ``start``: an instruction is taken. ``waiting``: units whose token the head of
    the queue lacks (while the unit could take it). ``error``, ``error_index``: the status (0: none)
    of the cycle before and the instruction it belongs to.
    """
    units = len(Unit)
    return wiring.Signature(
        {
            "insn": In(stream.Signature(queued_insn(params))),
            "available": In(units),
            "pop": Out(units),
            "start": Out(1),
            "waiting": Out(units),
            "error": Out(Status),
            "error_index": Out(INDEX_BITS),
        }
    )


def unit_signature(params: HwParams) -> wiring.Signature:
    """Ports of a unit towards the core: those of :func:`taker_signature`, and more.

    ``push``: tokens given now. ``end``: an instruction ends. ``busy``, ``stalled``: for the
    accounting of cycles.
    """
    return wiring.Signature(
        {
            **taker_signature(params).members,
            "push": Out(len(Unit)),
            "end": Out(1),
            "busy": Out(1),
            "stalled": Out(1),
        }
    )


def join_taker(m: Module, unit, taker) -> None:
    """Give a part of a unit, ``taker``, the unit's ports of :func:`taker_signature`."""
    connect(m, flipped(unit.insn), taker.insn)
    m.d.comb += [
        taker.available.eq(unit.available),
        unit.pop.eq(taker.pop),
        unit.start.eq(taker.start),
        unit.waiting.eq(taker.waiting),
        unit.error.eq(taker.error),
        unit.error_index.eq(taker.error_index),
    ]


def take(m: Module, core, params: HwParams, opcode: Opcode, ready, unit: Unit):
    """Take the head of the queue when the unit is ready and its tokens are there.

    A token to itself and bits beyond the fields of the instruction are illegal.

    Returns (start strobe, the head as a structure of ``opcode``, its index).
    """
    head = Signal(insn_layout(opcode, params), name="head")
    start = Signal(name="taken")
    missing = Signal(len(Unit), name="missing")
    m.d.comb += [
        head.as_value().eq(core.insn.payload.word),
        # A token from the unit itself never comes; such an instruction starts and is refused.
        missing.eq(head.pop & ~core.available & ~(1 << unit)),
        start.eq(core.insn.valid & ready & (missing == 0)),
        core.insn.ready.eq(start),
        core.start.eq(start),
        core.pop.eq(Mux(start, head.pop, 0)),
        core.waiting.eq(Mux(core.insn.valid & ready, missing, 0)),
    ]
    own = (head.pop | head.push) & (1 << unit)
    beyond = [
        (head.opcode == code) & core.insn.payload.word[layout_bits(layout(code, params)) :].any()
        for code in opcodes(params)
        if code.unit is unit
    ]
    wrong = start & ((own != 0) | Cat(beyond).any())
    raise_error(m, core, wrong, Status.ILLEGAL, core.insn.payload.index)
    return start, head, core.insn.payload.index


def raise_error(m: Module, core, when, status: Status, index) -> None:
    """Report an error of this cycle in the next, because errors appear at the end of long paths. If
    a cycle has several errors, the one of the last call of this function counts.
    """
    raised, its = Signal(name="raised"), Signal(INDEX_BITS, name="its", reset_less=True)
    m.d.sync += [raised.eq(when), its.eq(index)]
    with m.If(raised):
        m.d.comb += [core.error.eq(status), core.error_index.eq(its)]
