"""DRAM to scratchpads: one half requests bursts, running ahead by whole instructions; the other
places what arrives.
"""

from __future__ import annotations

from collections.abc import Callable

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ...isa.opcodes import LOADABLE, Opcode, Unit
from ...isa.params import HwParams
from ...isa.status import Status
from .dma import BurstCutter, burst_layout
from .layouts import INDEX_BITS, insn_layout, queued_insn
from .queue import Queue
from .scratchpad import rows, write_signature, written_parts
from .unit import raise_error, take, unit_signature


class Load(wiring.Component):
    """The load unit; ports as in ``unit.unit_signature``, a write port per memory, and its side of
    the read port. ``receiving``: index of the instruction whose beats are taken.
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {
                "unit": Out(unit_signature(params)),
                "request": Out(stream.Signature(burst_layout(params))),
                "beat": In(stream.Signature(params.bus_bits)),
                "receiving": Out(INDEX_BITS),
                **{
                    name: Out(write_signature(*rows(name, params), written_parts(name, params)))
                    for name in LOADABLE
                },
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        params = self.params
        m.submodules.waiting = waiting = Queue(queued_insn(params), params.loads_in_flight)
        self._request(m, waiting)
        self._place(m, waiting)
        return m

    def _request(self, m: Module, waiting: Queue) -> None:
        params, unit = self.params, self.unit
        m.submodules.cutter = cutter = BurstCutter(params)
        active = Signal()
        start, head, index = take(
            m, unit, params, Opcode.LOAD, ~active & waiting.i.ready, Unit.LOAD
        )
        sizes = [_entry_bytes_log2(params, name) for name in LOADABLE]
        row_bytes = Signal(24)
        with m.Switch(head.memory):
            for code, log2 in enumerate(sizes):
                with m.Case(code):
                    m.d.comb += row_bytes.eq(head.x_size << log2)
        with m.If(head.widen):
            m.d.comb += row_bytes.eq(head.x_size << (params.block.bit_length() - 1))
        m.d.comb += [
            waiting.i.payload.eq(unit.insn.payload),
            waiting.i.valid.eq(start),
            cutter.start.eq(start),
            cutter.addr.eq(head.dram_addr),
            cutter.row_bytes.eq(row_bytes),
            cutter.y_size.eq(head.y_size),
            cutter.z_size.eq(head.z_size),
            cutter.y_stride.eq(head.y_stride),
            cutter.z_stride.eq(head.z_stride),
            self.request.payload.eq(cutter.o.payload),
            self.request.valid.eq(cutter.o.valid),
            cutter.o.ready.eq(self.request.ready),
        ]
        with m.If(cutter.o.valid & cutter.o.ready & cutter.last):
            m.d.sync += active.eq(0)
        with m.If(start):
            m.d.sync += active.eq(head.y_size != 0)
        no_rows = (head.pad_top == 0) & (head.y_size == 0) & (head.pad_bottom == 0)
        empty = (head.x_size == 0) | (head.z_size == 0) | no_rows
        widens = head.widen & (head.memory != LOADABLE.index("par"))
        raise_error(m, unit, start & (empty | widens), Status.ILLEGAL, index)

    def _place(self, m: Module, waiting: Queue) -> None:
        """Walk planes, rows and entries; padding takes a cycle an entry, data come with the
        beats.
        """
        params, unit = self.params, self.unit
        bus_log2 = params.bus_bytes.bit_length() - 1
        insn = Signal(insn_layout(Opcode.LOAD, params))
        index = Signal(INDEX_BITS)
        busy = Signal()
        entry = Signal(len(insn.base) + 1)
        x, y, z = Signal(13), Signal(13), Signal(12)
        # Low bits of the row's address: where in its first bus word an unaligned row begins.
        row, plane = Signal(bus_log2), Signal(bus_log2)
        # What the instruction means for beats and entries, decoded when it is taken: beats of an
        # entry beyond the first (wide entries), bytes of an entry (narrow ones, several to a beat).
        lane_bytes = Signal(bus_log2)
        more_beats = Signal(range(256))
        narrow, several = Signal(), Signal()

        # What comparisons with counters need is summed once for each instruction.
        data_end = Signal(14)
        last_entry = Signal(14)
        data_rows_end = Signal(14)
        last_row = Signal(14)
        pad_row = Signal()
        # Where x is, in registers: before the data, behind them.
        before, beyond = Signal(), Signal()
        pad = Signal()
        # The rest of a beat that holds several entries is worked off from `held`.
        spreading = Signal()
        m.d.comb += pad.eq(busy & ~spreading & (pad_row | before | beyond))
        held = Signal(params.bus_bits, reset_less=True)
        in_beat = Signal(range(256))
        at_first, wide_done = Signal(), Signal()  # in_beat is at its first beat, at its last
        # The first beat of an entry of several, written with the last: it may come beside padding.
        first = Signal(params.bus_bits, reset_less=True)
        transfer, arrives = Signal(), Signal()
        # The first beat of an entry of several need not wait for the padding left of it.
        beside = Signal()
        m.d.comb += [
            beside.eq(before & ~pad_row & several & at_first),
            self.beat.ready.eq(busy & ~spreading & (~pad | beside)),
            transfer.eq(self.beat.valid & self.beat.ready),
            # A transfer beside padding moves nothing on.
            arrives.eq(self.beat.valid & busy & ~spreading & ~pad),
        ]
        # This cycle's entry of a narrow beat, in bytes, and whether it belongs to the row.
        place, lane_end = Signal(bus_log2), Signal(bus_log2 + 1)
        last_lane = lane_end[bus_log2]
        skipped = Signal()
        began = Signal()
        m.d.comb += skipped.eq(~began & (lane_end <= row))
        piece = Mux(spreading, held >> (place << 3), self.beat.payload)

        step_entry = Signal()  # an entry is finished in this cycle
        written = Signal(params.bus_bits, reset_less=True)
        # Whether a beat arrives is known late, so it comes last. Only narrow beats are spread.
        inside = ~skipped & ~beyond
        m.d.comb += step_entry.eq(
            pad | (spreading & inside) | (arrives & Mux(narrow, inside, wide_done))
        )
        with m.If(step_entry & ~pad):
            m.d.sync += began.eq(1)
        with m.If(transfer & ~narrow):
            m.d.sync += [
                in_beat.eq(Mux(wide_done, 0, in_beat + 1)), at_first.eq(wide_done),
                wide_done.eq(Mux(wide_done, ~several, in_beat + 1 == more_beats)),
            ]  # fmt: skip
        with m.If(transfer & at_first):
            m.d.sync += first.eq(self.beat.payload)
        m.d.sync += written.eq(Mux(pad, insn.pad_value.replicate(params.bus_bytes), piece))
        with m.If(arrives & narrow):
            m.d.sync += [held.eq(self.beat.payload), spreading.eq(1)]
        with m.If((arrives & narrow) | spreading):
            m.d.sync += [place.eq(lane_end), lane_end.eq(lane_end + lane_bytes)]
            with m.If(last_lane):
                m.d.sync += [place.eq(0), lane_end.eq(lane_bytes), spreading.eq(0)]
        working = Signal()
        m.d.comb += working.eq(pad | arrives | spreading)

        # Row ends: padding rows and right padding by entry; data without right padding when the
        # beat is over. A narrow beat is not over when it arrives, and may outlast its row's
        # entries; right padding behind it waits until it is over.
        # In registers: x is at its row's last entry, behind it; the last row, the last plane.
        at_last, behind = Signal(), Signal()
        plane_over, last_plane = Signal(), Signal()
        row_over = Signal()
        m.d.comb += row_over.eq(
            (pad & at_last)
            | (spreading & last_lane & Mux(inside, at_last, behind))
            | (arrives & ~narrow & wide_done & at_last)
        )
        finished = Signal()
        m.d.comb += finished.eq(row_over & plane_over & last_plane)
        with m.If(step_entry):
            m.d.sync += entry.eq(entry + 1)
            m.d.sync += [x.eq(x + 1), behind.eq(at_last), at_last.eq(x + 1 == last_entry)]
            m.d.sync += [before.eq(x + 1 < insn.pad_left), beyond.eq(x + 1 >= data_end)]
        with m.If(row_over):
            m.d.sync += [x.eq(0), began.eq(0), behind.eq(0), at_last.eq(last_entry == 0)]
            m.d.sync += [y.eq(y + 1), plane_over.eq(y + 1 == last_row)]
            m.d.sync += [before.eq(insn.pad_left != 0), beyond.eq(0)]
            m.d.sync += pad_row.eq((y + 1 < insn.pad_top) | (y + 1 >= data_rows_end))
            with m.If(~pad_row):
                m.d.sync += row.eq(row + insn.y_stride[:bus_log2])
            with m.If(plane_over):
                next_plane = plane + insn.z_stride[:bus_log2]
                m.d.sync += [plane.eq(next_plane), row.eq(next_plane)]
                m.d.sync += [y.eq(0), plane_over.eq(last_row == 0)]
                m.d.sync += [z.eq(z + 1), last_plane.eq(z + 2 == insn.z_size)]
                m.d.sync += pad_row.eq((insn.pad_top != 0) | (insn.y_size == 0))
        with m.If(finished):
            m.d.sync += busy.eq(0)
        m.d.comb += waiting.o.ready.eq(~busy)
        with m.If(waiting.o.valid & ~busy):
            head = Signal.like(insn, name="placed_head")
            m.d.comb += head.as_value().eq(waiting.o.payload.word)
            m.d.sync += [insn.eq(head), index.eq(waiting.o.payload.index), busy.eq(1)]
            m.d.sync += [entry.eq(head.base), x.eq(0), y.eq(0), z.eq(0), began.eq(0)]
            log2 = _dram_entry_log2(m, params, head)
            is_narrow, is_wide = log2 < bus_log2, log2 > bus_log2
            m.d.sync += [
                narrow.eq(is_narrow), several.eq(is_wide), place.eq(0),
                lane_bytes.eq(1 << log2[:3]), lane_end.eq(1 << log2[:3]),
                more_beats.eq(Mux(is_wide, (1 << (log2 - bus_log2)[:4]) - 1, 0)),
                in_beat.eq(0), at_first.eq(1), wide_done.eq(~is_wide),
            ]  # fmt: skip
            m.d.sync += [row.eq(head.dram_addr[:bus_log2]), plane.eq(head.dram_addr[:bus_log2])]
            row_end = head.pad_left + head.x_size + head.pad_right
            plane_end = head.pad_top + head.y_size + head.pad_bottom
            m.d.sync += [
                data_end.eq(head.pad_left + head.x_size),
                last_entry.eq(row_end - 1), at_last.eq(row_end == 1),
                data_rows_end.eq(head.pad_top + head.y_size),
                last_row.eq(plane_end - 1), plane_over.eq(plane_end == 1),
                last_plane.eq(head.z_size == 1),
                pad_row.eq((head.pad_top != 0) | (head.y_size == 0)), behind.eq(0),
                before.eq(head.pad_left != 0), beyond.eq(0),
            ]  # fmt: skip
        m.d.comb += [unit.busy.eq(working), self.receiving.eq(index)]
        self._write(
            m, insn, index, entry, step_entry, finished, pad, arrives, in_beat, first, written
        )

    def _write(
        self, m: Module, insn, index, entry, step_entry, finished, pad, arrives, in_beat, first,
        written
    ) -> None:  # fmt: skip
        """Write what comes one cycle after it is taken, a wide entry beat by beat; report the end
        in the same cycle.
        """
        params, unit = self.params, self.unit
        target = Signal.like(entry)
        ended, push = Signal(), Signal(len(Unit))
        beyond = Cat(
            (insn.memory == code) & (entry >= params.depth(name))
            for code, name in enumerate(LOADABLE)
        ).any()
        raise_error(m, unit, step_entry & beyond, Status.ADDRESS, index)
        m.d.sync += [target.eq(entry), ended.eq(finished), push.eq(insn.push)]
        m.d.comb += [unit.end.eq(ended), unit.push.eq(Mux(ended, push, 0))]
        # In registers, for they go to all memories.
        padding, widened, fill = Signal(), Signal(), Signal.like(insn.pad_value)
        m.d.sync += [padding.eq(pad), widened.eq(insn.widen), fill.eq(insn.pad_value)]
        begun = Signal(params.bus_bits)
        m.d.comb += begun.eq(Mux(padding, fill.replicate(params.bus_bytes), first))

        def beat(number: int, count: int) -> tuple[Value, Value]:
            """Of an entry of ``count`` beats: whether this one is written next, and what it is."""
            if number == 0:
                return step_entry, written if count == 1 else begun
            return pad | (arrives & (in_beat == number)), written

        for code, name in enumerate(LOADABLE):
            port = getattr(self, name)
            count = len(port.en)
            strobes, values = zip(*(beat(n, count) for n in range(count)), strict=True)
            data, enables = Cat(values)[: len(port.data)], Cat(strobes)
            if name == "par":
                strobes, lanes = self._widened(beat, count)
                data = Mux(widened, lanes, data)
                enables = Mux(insn.widen, strobes, enables)
            enable = Signal(count, name=f"{name}_enable")
            m.d.sync += enable.eq(Mux(insn.memory == code, enables, 0))
            m.d.comb += [port.en.eq(enable), port.addr.eq(target), port.data.eq(data)]

    def _widened(self, beat: Callable, count: int) -> tuple[Value, Value]:
        """A par entry of which a lane is a byte: when each of its parts is written, and lanes."""
        block, bus_bytes = self.params.block, self.params.bus_bytes
        number = -(-block // bus_bytes)
        beats = [beat(n, number) for n in range(number)]
        lanes = Cat(data for _, data in beats)
        firsts = range(0, block, block // count)
        return (
            Cat(beats[lane // bus_bytes][0] for lane in firsts),
            Cat(_extend(lanes[8 * lane :][:8]) for lane in range(block)),
        )


def _extend(lane):
    """A signed byte as 32 bits."""

    return Cat(lane, lane[7].replicate(24))


def _dram_entry_log2(m: Module, params: HwParams, head) -> Signal:
    """Bytes of an entry in DRAM, as log2."""
    log2 = Signal(4, name="dram_entry_log2")
    with m.Switch(head.memory):
        for code, name in enumerate(LOADABLE):
            with m.Case(code):
                m.d.comb += log2.eq(_entry_bytes_log2(params, name))
    with m.If(head.widen):
        m.d.comb += log2.eq(params.block.bit_length() - 1)
    return log2


def _entry_bytes_log2(params: HwParams, name: str) -> int:
    return params.entry_bytes(name).bit_length() - 1
