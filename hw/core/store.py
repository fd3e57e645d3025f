"""The ``out`` scratchpad to DRAM: address, data beats, response, burst by burst."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ...isa.opcodes import Opcode, Unit
from ...isa.params import HwParams
from ...isa.status import Status
from ...isa.timing import STORE_BURSTS
from .dma import BurstCutter, burst_layout
from .layouts import INDEX_BITS, insn_layout
from .queue import Queue
from .scratchpad import read_port
from .unit import raise_error, take, unit_signature

#: Beats buffered between the scratchpad and the bus, enough to hide the read's latency.
BUFFER_BEATS = 4


class Store(wiring.Component):
    """The store unit; ports as in ``unit.unit_signature``, the scratchpad, and its side of the
    write port.

    ``response``: a burst was answered in this cycle; ``response_error``: with an error.
    """

    def __init__(self, params: HwParams):
        self.params = params
        beat = data.StructLayout({"data": params.bus_bits, "strb": params.bus_bytes, "last": 1})
        self._beat = beat
        super().__init__(
            {
                "unit": Out(unit_signature(params)),
                "out": Out(read_port("out", params)),
                "address": Out(stream.Signature(burst_layout(params))),
                "beat": Out(stream.Signature(beat)),
                "response": In(1),
                "response_error": In(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        params, unit = self.params, self.unit
        m.submodules.cutter = cutter = BurstCutter(params)
        state_active, sending = Signal(), Signal()
        in_flight = Signal(range(params.stores_in_flight + 1))
        ready = ~state_active & (in_flight < params.stores_in_flight)
        start, head, index = take(m, unit, params, Opcode.STORE, ready, Unit.STORE)
        insn, now = Signal(insn_layout(Opcode.STORE, params)), Signal(INDEX_BITS)
        entry_log2 = params.entry_bytes("out").bit_length() - 1
        m.d.comb += [
            cutter.start.eq(start),
            cutter.addr.eq(head.dram_addr),
            cutter.row_bytes.eq(head.x_size << entry_log2),
            cutter.y_size.eq(head.y_size),
            cutter.z_size.eq(head.z_size),
            cutter.y_stride.eq(head.y_stride),
            cutter.z_stride.eq(head.z_stride),
        ]
        # What a response needs, in order: whether the burst is its instruction's last, the
        # instruction's tokens and its index.
        note = data.StructLayout({"last": 1, "push": len(Unit), "index": INDEX_BITS})
        m.submodules.responses = responses = Queue(note, STORE_BURSTS)
        m.d.comb += [
            self.address.payload.eq(cutter.o.payload),
            self.address.valid.eq(cutter.o.valid & ~sending & responses.i.ready),
        ]
        accepted = self.address.valid & self.address.ready
        m.d.comb += [
            cutter.o.ready.eq(accepted),
            responses.i.valid.eq(accepted),
            responses.i.payload.last.eq(cutter.last),
            responses.i.payload.push.eq(insn.push),
            responses.i.payload.index.eq(now),
            responses.o.ready.eq(self.response),
        ]
        sent_last = self._send(m, insn, now, cutter, accepted, start, head)
        final = Signal()
        with m.If(accepted):
            m.d.sync += [sending.eq(1), final.eq(cutter.last)]
        with m.If(sent_last):
            m.d.sync += sending.eq(0)
            with m.If(final):
                m.d.sync += state_active.eq(0)
        with m.If(start):
            m.d.sync += [insn.eq(head), now.eq(index), state_active.eq(1)]
        empty = (head.x_size == 0) | (head.y_size == 0) | (head.z_size == 0)
        raise_error(m, unit, start & empty, Status.ILLEGAL, index)
        ended, push = Signal(), Signal(len(Unit))
        m.d.sync += [
            ended.eq(self.response & responses.o.payload.last),
            push.eq(responses.o.payload.push),
            in_flight.eq(in_flight + start - ended),
        ]
        m.d.comb += [unit.end.eq(ended), unit.push.eq(Mux(ended, push, 0))]
        m.d.comb += unit.busy.eq(self.beat.valid & self.beat.ready)
        refused = self.response & self.response_error
        raise_error(m, unit, refused, Status.BUS, responses.o.payload.index)
        return m

    def _send(self, m: Module, insn, index, cutter: BurstCutter, accepted, start, head):
        """Read entries, form beats, and offer them; returns a strobe in the cycle of a burst's last
        transfer.

        One step reads one entry: a wide entry once for each of its beats, narrow ones lane by lane
        into one beat.
        """
        params, unit = self.params, self.unit
        bus_log2 = params.bus_bytes.bit_length() - 1
        entry_log2 = params.entry_bytes("out").bit_length() - 1
        words = max(1, params.entry_bytes("out") // params.bus_bytes)
        lanes = max(1, params.bus_bytes // params.entry_bytes("out"))
        entry = Signal(len(insn.base) + 1)
        word, lane = Signal(range(words + 1)), Signal(range(lanes + 1))
        beats, left = Signal.like(cutter.o.payload.beats), Signal.like(insn.x_size)
        stepping, first_beat = Signal(), Signal()
        offset = Signal(bus_log2)
        m.submodules.buffer = buffer = Queue(self._beat, BUFFER_BEATS)
        # A beat is begun only if there is room for it and for one that may be under way.
        allowed = (buffer.level < BUFFER_BEATS - 2) | (lane != 0)
        step = Signal()
        m.d.comb += step.eq(stepping & allowed)
        begin_lane = Mux(first_beat, offset >> entry_log2, 0) if lanes > 1 else 0
        valid = (lane >= begin_lane) & (left != 0) if lanes > 1 else 1
        beat_ends = lane + 1 == lanes
        last_beat = beat_ends & (beats == 1)
        m.d.comb += self.out.addr.eq(entry)
        with m.If(step):
            m.d.sync += lane.eq(Mux(beat_ends, 0, lane + 1))
            with m.If(valid):
                with m.If(word + 1 == words):
                    m.d.sync += [word.eq(0), entry.eq(entry + 1), left.eq(left - 1)]
                with m.Else():
                    m.d.sync += word.eq(word + 1)
            with m.If(beat_ends):
                m.d.sync += [beats.eq(beats - 1), first_beat.eq(0)]
                with m.If(beats == 1):
                    m.d.sync += stepping.eq(0)
        beyond = step & valid & (entry >= params.out_depth)
        raise_error(m, unit, beyond, Status.ADDRESS, index)
        with m.If(accepted):
            m.d.sync += [beats.eq(cutter.o.payload.beats), stepping.eq(1), lane.eq(0)]
            m.d.sync += first_beat.eq(cutter.row_start)
            with m.If(cutter.row_start):
                m.d.sync += [left.eq(insn.x_size), offset.eq(cutter.row_offset)]
        with m.If(start):
            m.d.sync += [entry.eq(head.base), word.eq(0)]
        # The entry arrives one cycle after its step.
        stepped, ends, lasts, kept = Signal(), Signal(), Signal(), Signal()
        word_1, lane_1 = Signal.like(word), Signal.like(lane)
        m.d.sync += [
            stepped.eq(step), ends.eq(beat_ends), lasts.eq(last_beat), kept.eq(valid),
            word_1.eq(word), lane_1.eq(lane),
        ]  # fmt: skip
        size = len(self.out.data)
        if lanes == 1:
            m.d.comb += [
                buffer.i.payload.data.eq(self.out.data.word_select(word_1, params.bus_bits)),
                buffer.i.payload.strb.eq(~0),
            ]
        else:
            partial, strobes = Signal(params.bus_bits), Signal(params.bus_bytes)
            data_now, strobes_now = Signal.like(partial), Signal.like(strobes)
            lane_bytes = size // 8
            for position in range(lanes):
                here = lane_1 == position
                bits = slice(size * position, size * (position + 1))
                enables = slice(lane_bytes * position, lane_bytes * (position + 1))
                m.d.comb += [
                    data_now[bits].eq(Mux(here, self.out.data, partial[bits])),
                    strobes_now[enables].eq(
                        Mux(here, kept.replicate(lane_bytes), strobes[enables])
                    ),
                ]
            with m.If(stepped):
                m.d.sync += [partial.eq(data_now), strobes.eq(strobes_now)]
            m.d.comb += [buffer.i.payload.data.eq(data_now), buffer.i.payload.strb.eq(strobes_now)]
        m.d.comb += [
            buffer.i.payload.last.eq(lasts),
            buffer.i.valid.eq(stepped & ends),
            self.beat.valid.eq(buffer.o.valid),
            self.beat.payload.eq(buffer.o.payload),
            buffer.o.ready.eq(self.beat.ready),
        ]
        return Cat(self.beat.valid, self.beat.ready, self.beat.payload.last).all()
