"""The side of the load unit that asks for data."""

from __future__ import annotations

from functools import reduce
from operator import add

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import Out, connect, flipped

from ....isa.opcodes import LOADABLE, Opcode, Unit
from ....isa.params import HwParams
from ....isa.status import Status
from ..dma import BurstCutter, burst_layout
from ..layouts import queued_insn
from ..unit import raise_error, take, taker_signature
from .transfer import entry_sizes


class Requester(wiring.Component):
    """Takes instructions, requests their bursts, and passes them on as descriptors.

    Attributes
    ----------
    unit : towards the core, as in ``unit.taker_signature``
    descriptor : instructions as they are taken;  request : bursts
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {
                "unit": Out(taker_signature(params)),
                "descriptor": Out(stream.Signature(queued_insn(params))),
                "request": Out(stream.Signature(burst_layout(params))),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        params, unit = self.params, self.unit
        m.submodules.cutter = cutter = BurstCutter(params)
        active = Signal()
        ready = ~active & self.descriptor.ready
        start, head, index = take(m, unit, params, Opcode.LOAD, ready, Unit.LOAD)
        connect(m, cutter.o, flipped(self.request))
        m.d.comb += [
            self.descriptor.payload.eq(unit.insn.payload),
            self.descriptor.valid.eq(start),
            cutter.start.eq(start),
            cutter.addr.eq(head.dram_addr),
            cutter.y_size.eq(head.y_size),
            cutter.z_size.eq(head.z_size),
            cutter.y_stride.eq(head.y_stride),
            cutter.z_stride.eq(head.z_stride),
        ]
        for entry_bytes in entry_sizes(m, params, head):
            m.d.comb += cutter.row_bytes.eq(_times(head.x_size, entry_bytes))
        with m.If(cutter.o.valid & cutter.o.ready & cutter.last):
            m.d.sync += active.eq(0)
        with m.If(start):
            m.d.sync += active.eq(head.y_size != 0)
        no_rows = (head.pad_top == 0) & (head.y_size == 0) & (head.pad_bottom == 0)
        empty = (head.x_size == 0) | (head.z_size == 0) | no_rows
        widens = head.widen & (head.memory != LOADABLE.index("par"))
        if params.packed_weights:
            widens &= head.memory != LOADABLE.index("wgt")
        raise_error(m, unit, start & (empty | widens), Status.ILLEGAL, index)
        return m


def _times(count: Value, size: int) -> Value:
    """``count * size``, as the sum of a shift for each bit of the size: one, or two of packed
    weights with their scales."""
    shifts = (bit for bit in range(size.bit_length()) if size >> bit & 1)
    return reduce(add, (count << bit for bit in shifts))
