"""Instruction fetch: bursts of instructions into a prefetch buffer, dispatched in order to the
units' queues.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ...isa.encoding import DRAM_ADDR_BITS, OPCODE_BITS
from ...isa.opcodes import Unit, opcodes
from ...isa.params import HwParams
from ...isa.status import Status
from .dma import burst_layout
from .layouts import INDEX_BITS, queued_insn
from .queue import Queue
from .unit import raise_error


class Fetch(wiring.Component):
    """Attributes
    ----------
    start : begin with ``count`` instructions at ``addr``
    request : read bursts;  beat_valid, beat : data, always accepted
    receiving : index of the instruction that the next beat belongs to
    o : one stream per unit
    done : everything is dispatched;  blocked : the next instruction waits for room in its queue
    error, error_index : undecodable opcode in the cycle before
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {
                "start": In(1),
                "addr": In(DRAM_ADDR_BITS),
                "count": In(INDEX_BITS),
                "enable": In(1),
                "request": Out(stream.Signature(burst_layout(params))),
                "beat_valid": In(1),
                "beat": In(params.bus_bits),
                "receiving": Out(INDEX_BITS),
                "o": Out(stream.Signature(queued_insn(params))).array(len(Unit)),
                "done": Out(1),
                "blocked": Out(1),
                "index": Out(INDEX_BITS),
                "error": Out(Status),
                "error_index": Out(INDEX_BITS),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        params = self.params
        beats_per_insn = params.insn_bytes // params.bus_bytes
        address = Signal(DRAM_ADDR_BITS)
        to_request, dispatched, count = (Signal(INDEX_BITS) for _ in range(3))
        reserved = Signal(range(params.fetch_depth + 1))
        chunk = Signal(range(params.fetch_chunk + 1))
        fits = Signal()  # there is room for the chunk, in a register

        def first_of(rest) -> Value:
            """How many of the remaining instructions are requested first."""
            return Mux(rest < params.fetch_chunk, rest, params.fetch_chunk)

        m.d.comb += [
            self.request.valid.eq(self.enable & (chunk != 0) & fits),
            self.request.payload.addr.eq(address),
            self.request.payload.beats.eq(chunk * beats_per_insn),
        ]
        granted = self.request.valid & self.request.ready
        rest = (to_request - chunk)[:INDEX_BITS]
        with m.If(granted):
            m.d.sync += address.eq(address + chunk * params.insn_bytes)
            m.d.sync += [to_request.eq(rest), chunk.eq(first_of(rest))]
        sent = Signal()

        def room_for(more) -> Value:
            """Whether this many instructions fit besides the chunk and those reserved."""
            wanted = reserved + chunk + more
            return Mux(sent, wanted <= params.fetch_depth + 1, wanted <= params.fetch_depth)

        m.d.sync += [
            reserved.eq(reserved + Mux(granted, chunk, 0) - sent),
            fits.eq(Mux(granted, room_for(first_of(rest)), room_for(0))),
        ]

        m.submodules.buffer = buffer = Queue(params.insn_bytes * 8, params.fetch_depth)
        position = Signal(range(beats_per_insn + 1))
        parts = Signal(params.insn_bytes * 8, reset_less=True)
        word = Cat(parts[params.bus_bits :], self.beat)
        complete = position == beats_per_insn - 1
        m.d.comb += [
            buffer.i.payload.eq(word),
            buffer.i.valid.eq(self.beat_valid & complete),
        ]
        with m.If(self.beat_valid):
            m.d.sync += [parts.eq(word), position.eq(Mux(complete, 0, position + 1))]
            m.d.sync += self.receiving.eq(self.receiving + complete)

        head = buffer.o.payload
        opcode, known = head[:OPCODE_BITS], opcodes(params)
        ready = Signal()
        for unit in Unit:
            mine = Cat(opcode == code for code in known if code.unit == unit).any()
            m.d.comb += [
                self.o[unit].payload.word.eq(head),
                self.o[unit].payload.index.eq(dispatched),
                self.o[unit].valid.eq(self.enable & buffer.o.valid & mine),
            ]
            with m.If(mine):
                m.d.comb += ready.eq(self.o[unit].ready)
        legal = Cat(opcode == code for code in known).any()
        m.d.comb += [
            sent.eq(self.enable & buffer.o.valid & ready),
            buffer.o.ready.eq(sent),
            self.done.eq(dispatched == count),
            self.blocked.eq(buffer.o.valid & ~ready),
            self.index.eq(dispatched),
        ]
        raise_error(m, self, buffer.o.valid & ~legal, Status.ILLEGAL, dispatched)
        with m.If(sent):
            m.d.sync += dispatched.eq(dispatched + 1)
        with m.If(self.start):
            m.d.sync += [
                address.eq(self.addr), to_request.eq(self.count), chunk.eq(first_of(self.count)),
                fits.eq(1), count.eq(self.count), dispatched.eq(0), reserved.eq(0),
                position.eq(0), self.receiving.eq(0),
            ]  # fmt: skip
        return m
