"""The controller of an SDR SDRAM behind an AXI4 port: it streams.

Bursts come to the chip in the order in which they arrived: a read with its address, a write with
its last beat. One half of the controller cuts them where rows end, and opens the row of a segment
while those before it still move. The other half moves data, a beat of the bus every two cycles.
A row stays open until another one of its bank is wanted or a refresh comes. ``docs/timing.md`` has
the rules by cycle, ``isa/sdram.py`` the numbers.

The chip's clock is twice the core's: of the two commands of a cycle the first moves data, the
second is for rows. Who connects the pins brings both to the chip, one clock after the other.
"""

from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from ...isa.memory import MEMORY_PRESETS
from ...isa.params import HwParams
from ...isa.sdram import (
    BURST_WORDS,
    CLOCKS,
    HAND_CYCLES,
    MODE_CYCLES,
    OPENED,
    PARTS,
    PIN_CYCLES,
    ULX3S,
    Part,
)
from ..core.dma import AXI_LEN_BITS, RESP_OKAY, RESP_SLVERR, axi_signature
from ..core.queue import Queue

MEMORY = MEMORY_PRESETS[ULX3S]
INIT_REFRESHES = 8
#: The address of a CLOSE of all banks.
ALL_BANKS = 1 << 10


class Command(IntEnum):
    """ras_n, cas_n, we_n: from the highest bit down."""

    NOP = 0b111
    OPEN = 0b011
    READ = 0b101
    WRITE = 0b100
    CLOSE = 0b010
    REFRESH = 0b001
    SET_MODE = 0b000


def mode(part: Part) -> int:
    """What SET_MODE writes: sequential bursts, their length, and the latency of reads."""
    return part.cas_clocks << 4 | (BURST_WORDS - 1).bit_length()


def word_bits(part: Part) -> int:
    """Bits of the number of a word of the bus in the chip: column, bank and row, from the lowest
    on."""
    return (part.size_bytes * 8 // part.bus_bits - 1).bit_length()


def burst_layout(part: Part) -> data.StructLayout:
    """A burst on its way to the chip; ``bad``: it is beyond its end."""
    return data.StructLayout(
        {"word": word_bits(part), "beats": AXI_LEN_BITS + 1, "writes": 1, "bad": 1}
    )


def segment_layout(part: Part) -> data.StructLayout:
    """What of a burst is in one row; ``last``: the burst ends with it."""
    columns = (part.row_beats - 1).bit_length()
    return data.StructLayout(
        {"column": columns, "bank": part.bank_bits, "beats": columns + 1, "writes": 1, "bad": 1,
         "last": 1}
    )  # fmt: skip


def pins_signature(part: Part) -> wiring.Signature:
    """What goes to the pins and comes from them in a cycle of the core, for each clock of the chip
    in it: ``command`` (as :class:`Command`), ``bank``, ``address``, ``mask``, ``data_o``;
    ``data_oe`` is for all of them. ``data_i`` has the words of a READ
    :data:`~vdla.isa.sdram.PIN_CYCLES` cycles after it, and in the cycle behind.
    """
    return wiring.Signature(
        {
            "command": Out(3, init=Command.NOP).array(CLOCKS),
            "bank": Out(part.bank_bits).array(CLOCKS),
            "address": Out(part.row_bits).array(CLOCKS),
            "mask": Out(part.word_bits // 8).array(CLOCKS),
            "data_o": Out(part.word_bits).array(CLOCKS),
            "data_oe": Out(1),
            "data_i": In(part.word_bits).array(CLOCKS),
        }
    )


class Bus(wiring.Component):
    """The AXI4 side: takes bursts, buffers their data, answers.

    The buffers hold the data of all bursts that may be unfinished, so what has arrived never waits
    for room.

    Attributes
    ----------
    axi : the port, seen from the master
    ready : addresses are taken
    o : bursts in the order in which they arrived
    beat, mask : the next beat to write, and its bytes that are kept; ``take`` takes it
    give, read : a beat was read
    answer : the oldest write was made; ``bad``: beyond the end of the chip
    """

    def __init__(self, params: HwParams, part: Part):
        self.params, self.part = params, part
        super().__init__(
            {
                "axi": In(axi_signature(params)),
                "ready": In(1),
                "o": Out(stream.Signature(burst_layout(part))),
                "beat": Out(params.bus_bits),
                "mask": Out(params.bus_bytes),
                "take": In(1),
                "give": In(1),
                "read": In(params.bus_bits),
                "answer": In(1),
                "bad": In(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        axi, bursts = self.axi, MEMORY.outstanding
        m.submodules.order = order = Queue(burst_layout(self.part), 2 * bursts)
        wiring.connect(m, order.o, wiring.flipped(self.o))
        arrives, complete = Signal(), Signal(range(bursts + 1))
        read, write = self._reads(m, arrives), self._writes(m)
        # A write goes on when it is complete, and no read arrives in that cycle.
        goes = Signal()
        m.d.comb += [
            goes.eq((complete != 0) & ~arrives), write.ready.eq(goes),
            order.i.valid.eq(arrives | goes),
            order.i.payload.eq(Mux(arrives, read.as_value(), write.payload.as_value())),
        ]  # fmt: skip
        m.d.sync += complete.eq(complete + (axi.wvalid & axi.wready & axi.wlast) - goes)
        return m

    def _fifo(self, width: int) -> SyncFIFOBuffered:
        """Room for the beats of all bursts that may be unfinished."""
        return SyncFIFOBuffered(width=width, depth=MEMORY.outstanding * self.params.max_burst_beats)

    def _burst(self, m: Module, address, length, writes: int):
        """What the chip is asked for."""
        word, bits = address >> (self.params.bus_bytes.bit_length() - 1), word_bits(self.part)
        burst = Signal(burst_layout(self.part), name="write" if writes else "read")
        m.d.comb += [
            burst.word.eq(word[:bits]), burst.beats.eq(length + 1), burst.writes.eq(writes),
            burst.bad.eq(word[bits:].any()),
        ]  # fmt: skip
        return burst

    def _reads(self, m: Module, arrives):
        """A read arrives with its address; its data come back in order."""
        axi = self.axi
        asked = data.StructLayout({"id": 1, "more": AXI_LEN_BITS, "bad": 1})
        m.submodules.reads = reads = Queue(asked, MEMORY.outstanding)
        m.submodules.beats = beats = self._fifo(self.params.bus_bits)
        burst, sent = self._burst(m, axi.araddr, axi.arlen, 0), Signal(AXI_LEN_BITS)
        oldest = reads.o.payload
        m.d.comb += [
            axi.arready.eq(reads.i.ready & self.ready), arrives.eq(axi.arvalid & axi.arready),
            reads.i.valid.eq(arrives), reads.i.payload.id.eq(axi.arid),
            reads.i.payload.more.eq(axi.arlen), reads.i.payload.bad.eq(burst.bad),
            beats.w_en.eq(self.give), beats.w_data.eq(self.read),
            axi.rvalid.eq(beats.r_rdy), beats.r_en.eq(axi.rready), axi.rdata.eq(beats.r_data),
            axi.rid.eq(oldest.id), axi.rresp.eq(Mux(oldest.bad, RESP_SLVERR, RESP_OKAY)),
            axi.rlast.eq(sent == oldest.more),
            reads.o.ready.eq(axi.rvalid & axi.rready & axi.rlast),
        ]  # fmt: skip
        with m.If(axi.rvalid & axi.rready):
            m.d.sync += sent.eq(Mux(axi.rlast, 0, sent + 1))
        return burst

    def _writes(self, m: Module):
        """A write arrives with its last beat. Returns the addresses."""
        axi, bursts = self.axi, MEMORY.outstanding
        m.submodules.writes = writes = Queue(burst_layout(self.part), bursts)
        m.submodules.answers = answers = Queue(1, bursts)
        m.submodules.stores = stores = self._fifo(self.params.bus_bits + self.params.bus_bytes)
        burst = self._burst(m, axi.awaddr, axi.awlen, 1)
        unanswered, free = Signal(range(bursts + 1)), Signal(init=1)
        announced = axi.awvalid & axi.awready
        left = unanswered + announced - (axi.bvalid & axi.bready)
        m.d.sync += [unanswered.eq(left), free.eq(left < bursts)]
        m.d.comb += [
            axi.awready.eq(free & self.ready), axi.wready.eq(1),
            writes.i.valid.eq(announced), writes.i.payload.eq(burst),
            stores.w_en.eq(axi.wvalid), stores.w_data.eq(Cat(axi.wdata, ~axi.wstrb)),
            Cat(self.beat, self.mask).eq(stores.r_data), stores.r_en.eq(self.take),
            answers.i.valid.eq(self.answer), answers.i.payload.eq(self.bad),
            axi.bvalid.eq(answers.o.valid), answers.o.ready.eq(axi.bready),
            axi.bresp.eq(Mux(answers.o.payload, RESP_SLVERR, RESP_OKAY)),
        ]  # fmt: skip
        return writes.o


class Opener(wiring.Component):
    """Opens the rows of bursts, and refreshes.

    Attributes
    ----------
    i : bursts;  o : their segments, each when its row is open
    moves : data move in this cycle, in ``bank``, as ``writes`` says; ``ends``: of a segment the
        last
    restart, ready : as of :class:`Sdram`
    command, address, at : for the chip, ``at`` is the bank
    """

    def __init__(self, part: Part):
        # A row that is opened in a cycle is handed over in the next one.
        assert part.rules.open_to_move <= 1 + HAND_CYCLES, "a part with slow rows"
        self.part = part
        super().__init__(
            {
                "i": In(stream.Signature(burst_layout(part))),
                "o": Out(stream.Signature(segment_layout(part))),
                "moves": In(1), "ends": In(1), "writes": In(1), "bank": In(part.bank_bits),
                "restart": In(1), "ready": Out(1),
                "command": Out(3, init=Command.NOP), "at": Out(part.bank_bits),
                "address": Out(part.row_bits),
            }
        )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m = Module()
        part, rules = self.part, self.part.rules
        banks = range(1 << part.bank_bits)
        burst = Signal(burst_layout(part))
        busy = Signal()
        # The segment became the next one in the cycle before: a refresh may come first.
        fresh = Signal()
        columns = (part.row_beats - 1).bit_length()
        column, row = burst.word[:columns], burst.word[columns + part.bank_bits :]
        bank = burst.word[columns:][: part.bank_bits]
        in_row = Signal(columns + 1)
        segment = self.o.payload
        m.d.comb += [
            in_row.eq(part.row_beats - column),
            segment.column.eq(column), segment.bank.eq(bank), segment.writes.eq(burst.writes),
            segment.bad.eq(burst.bad), segment.last.eq(burst.beats <= in_row),
            segment.beats.eq(Mux(segment.last, burst.beats, in_row)),
        ]  # fmt: skip
        is_open = Array(Signal(name=f"is_open_{n}") for n in banks)
        rows = Array(Signal(part.row_bits, name=f"row_{n}") for n in banks)
        held = self._held(m, self.o.valid & self.o.ready, bank)
        # Cycles until the next command to a row that is closed.
        longest = self.part.clocks(1000 * part.init_us) // CLOCKS
        rest = Signal(range(longest + 1), init=longest)
        rested = rest == 0
        with m.If(~rested):
            m.d.sync += rest.eq(rest - 1)

        def give(command: Command, cycles: int, address=0) -> None:
            m.d.comb += [self.command.eq(command), self.address.eq(address)]
            m.d.sync += rest.eq(cycles - 1)

        handed = self.o.valid & self.o.ready
        refreshes = Signal()
        owed = self._owed(m, refreshes)
        left = Signal(range(INIT_REFRESHES + 1), init=INIT_REFRESHES)
        with m.FSM():
            with m.State("POWER"), m.If(rested):
                give(Command.CLOSE, rules.close_to_open, ALL_BANKS)
                m.next = "SET_UP"
            with m.State("SET_UP"), m.If(rested):
                with m.If(left != 0):
                    m.d.sync += left.eq(left - 1)
                    give(Command.REFRESH, rules.refresh_to_open)
                with m.Else():
                    give(Command.SET_MODE, MODE_CYCLES, mode(part))
                    m.d.sync += self.ready.eq(1)
                    m.next = "RUN"
            with m.State("RUN"):
                with m.If(self.restart):  # a refresh may just have gone out
                    m.d.sync += rest.eq(rules.refresh_to_open - 1)
                with m.Elif((owed != 0) & (~busy | fresh)), m.If(rested & ~held.any()):
                    m.d.sync += [each.eq(0) for each in is_open]
                    give(Command.CLOSE, rules.close_to_open, ALL_BANKS)
                    m.next = "CLOSED"
                with m.Elif(busy):
                    m.d.sync += fresh.eq(0)
                    with m.If(is_open[bank] & (rows[bank] == row)):
                        m.d.comb += self.o.valid.eq(1)
                    with m.Elif(is_open[bank]), m.If(~held.bit_select(bank, 1)):
                        m.d.sync += is_open[bank].eq(0)
                        give(Command.CLOSE, rules.close_to_open)
                    with m.Elif(rested):
                        m.d.sync += [is_open[bank].eq(1), rows[bank].eq(row)]
                        give(Command.OPEN, 1, row)
            with m.State("CLOSED"):
                with m.If(self.restart):
                    m.d.sync += rest.eq(rules.refresh_to_open - 1)
                    m.next = "RUN"
                with m.Elif(rested):
                    m.d.comb += refreshes.eq(1)
                    give(Command.REFRESH, rules.refresh_to_open)
                    m.next = "RUN"
        m.d.comb += [self.at.eq(bank), self.i.ready.eq(~busy | (handed & segment.last))]
        with m.If(handed):
            m.d.sync += [
                burst.word.eq(burst.word + segment.beats),
                burst.beats.eq(burst.beats - segment.beats),
                busy.eq(~segment.last), fresh.eq(1),
            ]  # fmt: skip
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [burst.eq(self.i.payload), busy.eq(1), fresh.eq(1)]
        return m

    def _held(self, m: Module, handed, bank):
        """For each bank, whether it must not be closed yet."""
        rules, held = self.part.rules, []
        opens = self.command == Command.OPEN
        for n in range(1 << self.part.bank_bits):
            pending = Signal(range(OPENED + 2), name=f"pending_{n}")  # segments that still move
            hold = Signal(range(max(rules.open_to_close, rules.write_to_close)), name=f"hold_{n}")
            m.d.sync += pending.eq(
                pending + (handed & (bank == n)) - (self.ends & (self.bank == n))
            )
            later = Mux(hold != 0, hold - 1, 0)
            wanted = Mux(self.writes, rules.write_to_close, rules.read_to_close) - 1
            with m.If(opens & (bank == n)):
                m.d.sync += hold.eq(rules.open_to_close - 1)
            with m.Elif(self.moves & (self.bank == n) & (later < wanted)):
                m.d.sync += hold.eq(wanted)
            with m.Else():
                m.d.sync += hold.eq(later)
            held.append((pending != 0) | (hold != 0))
        return Cat(held)

    def _owed(self, m: Module, refreshes):
        """How many refreshes are owed."""
        since = Signal(range(self.part.rules.refresh))
        owed = Signal(3)
        due = since == self.part.rules.refresh - 1
        m.d.sync += [since.eq(Mux(due, 0, since + 1)), owed.eq(owed + due - refreshes)]
        with m.If(self.restart):
            m.d.sync += [since.eq(0), owed.eq(1)]
        return owed


class Mover(wiring.Component):
    """Moves the data of segments.

    Attributes
    ----------
    i : segments whose rows are open
    moves : a command goes out, for ``bank`` and ``address``; it ``writes``, or is ``bad``
    ends, ends_burst : with it the segment, or the burst, ends
    """

    def __init__(self, part: Part):
        self.part = part
        super().__init__(
            {
                "i": In(stream.Signature(segment_layout(part))),
                "moves": Out(1), "writes": Out(1), "bad": Out(1),
                "bank": Out(part.bank_bits), "address": Out(part.row_bits),
                "ends": Out(1), "ends_burst": Out(1),
            }
        )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m = Module()
        rules = self.part.rules
        segment = Signal(segment_layout(self.part))
        active = Signal()
        # Cycles until the next command, and until one that writes.
        gap = Signal(range(rules.beat))
        turn = Signal(range(rules.read_to_write))
        m.d.comb += [
            self.moves.eq(active & (gap == 0) & (~segment.writes | (turn == 0))),
            self.writes.eq(segment.writes), self.bad.eq(segment.bad), self.bank.eq(segment.bank),
            self.address.eq(segment.column * BURST_WORDS),
            self.ends.eq(self.moves & (segment.beats == 1)),
            self.ends_burst.eq(self.ends & segment.last),
            self.i.ready.eq(~active | self.ends),
        ]  # fmt: skip
        m.d.sync += [gap.eq(Mux(gap != 0, gap - 1, 0)), turn.eq(Mux(turn != 0, turn - 1, 0))]
        with m.If(self.moves):
            m.d.sync += [
                gap.eq(rules.beat - 1), segment.column.eq(segment.column + 1),
                segment.beats.eq(segment.beats - 1),
            ]  # fmt: skip
            with m.If(~segment.writes):
                m.d.sync += turn.eq(rules.read_to_write - 1)
        with m.If(self.i.ready):
            m.d.sync += [active.eq(self.i.valid), segment.eq(self.i.payload)]
        return m


class Sdram(wiring.Component):
    """Parameters
    ----------
    params : the core's configuration, whose bus must be as wide as what one READ brings

    Attributes
    ----------
    axi : the port, seen from the master
    restart : the core starts in this cycle, and nothing is under way. A refresh is made, and those
        after it are counted from here, so that a program takes the same cycles in every run.
    ready : the chip has been set up
    pins : as of :func:`pins_signature`

    Raises VdlaError for a bus of another width.
    """

    def __init__(self, params: HwParams, part: Part = PARTS[ULX3S]):
        MEMORY.check_bus(params)
        self.params, self.part = params, part
        super().__init__(
            {
                "axi": In(axi_signature(params)),
                "restart": In(1),
                "ready": Out(1),
                "pins": Out(pins_signature(part)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        part, pins = self.part, self.pins
        m.submodules.bus = bus = Bus(self.params, part)
        m.submodules.opener = opener = Opener(part)
        m.submodules.opened = opened = Queue(segment_layout(part), OPENED)
        m.submodules.mover = mover = Mover(part)
        wiring.connect(m, wiring.flipped(self.axi), bus.axi)
        wiring.connect(m, bus.o, opener.i)
        wiring.connect(m, opener.o, opened.i)
        wiring.connect(m, opened.o, mover.i)
        stores = mover.moves & mover.writes
        m.d.comb += [
            self.ready.eq(opener.ready), bus.ready.eq(opener.ready),
            opener.restart.eq(self.restart), opener.moves.eq(mover.moves),
            opener.ends.eq(mover.ends), opener.writes.eq(mover.writes),
            opener.bank.eq(mover.bank),
            bus.take.eq(stores), bus.answer.eq(mover.ends_burst & mover.writes),
            bus.bad.eq(mover.bad),
        ]  # fmt: skip
        m.d.sync += [
            pins.command[0].eq(
                Mux(mover.moves, Mux(mover.writes, Command.WRITE, Command.READ), Command.NOP)
            ),
            pins.bank[0].eq(mover.bank), pins.address[0].eq(mover.address),
            pins.command[1].eq(opener.command),
            pins.bank[1].eq(opener.at), pins.address[1].eq(opener.address),
        ]  # fmt: skip
        # A beat goes out in two halves, and comes in so.
        half = part.bus_bits // 2
        behind, mask_behind, second = Signal(half), Signal(half // 8), Signal()
        mask = bus.mask | mover.bad.replicate(len(bus.mask))
        m.d.sync += [
            second.eq(stores), behind.eq(bus.beat[half:]), mask_behind.eq(mask[half // 8 :]),
            Cat(pins.data_o).eq(Mux(second, behind, bus.beat[:half])),
            Cat(pins.mask).eq(Mux(second, mask_behind, Mux(stores, mask[: half // 8], 0))),
            pins.data_oe.eq(stores | second),
        ]  # fmt: skip
        asked, before = Signal(PIN_CYCLES + 2), Signal(half)
        words = Cat(pins.data_i)
        m.d.sync += [asked.eq(Cat(mover.moves & ~mover.writes, asked)), before.eq(words)]
        m.d.comb += [bus.give.eq(asked[-1]), bus.read.eq(Cat(before, words))]
        return m
