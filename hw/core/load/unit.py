"""The load unit, joined from its parts."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ....isa.opcodes import LOADABLE
from ....isa.params import HwParams
from ....isa.status import Status
from ..dma import burst_layout
from ..layouts import INDEX_BITS, queued_insn
from ..queue import Queue
from ..scratchpad import write_port
from ..unit import join_taker, unit_signature
from .placer import Placer
from .request import Requester
from .writer import Writer


class Load(wiring.Component):
    """The load unit. Its ports are those of ``unit.unit_signature``, a write port for each memory
    and the requests for reads. ``receiving`` is the index of the instruction whose beats come in.
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {
                "unit": Out(unit_signature(params)),
                "request": Out(stream.Signature(burst_layout(params))),
                "beat": In(stream.Signature(params.bus_bits)),
                "receiving": Out(INDEX_BITS),
                **{name: Out(write_port(name, params)) for name in LOADABLE},
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        params, unit = self.params, self.unit
        m.submodules.requester = requester = Requester(params)
        m.submodules.waiting = waiting = Queue(queued_insn(params), params.loads_in_flight)
        m.submodules.placer = placer = Placer(params)
        m.submodules.writer = writer = Writer(params)
        connect(m, requester.descriptor, waiting.i)
        connect(m, waiting.o, placer.descriptor)
        connect(m, placer.placed, writer.placed)
        connect(m, requester.request, flipped(self.request))
        connect(m, flipped(self.beat), placer.beat)
        for name in LOADABLE:
            connect(m, getattr(writer, name), flipped(getattr(self, name)))
        join_taker(m, unit, requester.unit)
        m.d.comb += [
            unit.end.eq(writer.end),
            unit.push.eq(writer.push),
            unit.busy.eq(placer.working),
            self.receiving.eq(placer.placed.target.index),
        ]
        with m.If(writer.error != Status.IDLE):
            m.d.comb += [unit.error.eq(writer.error), unit.error_index.eq(writer.error_index)]
        return m
