"""A controller for a 16-bit SDR SDRAM behind an AXI4 port.

One burst at a time: its row is opened, every 64-bit word takes four accesses of 16 bits in as many
cycles, the row is closed. There is one register between the state machine and each pin: commands
leave a cycle after they are decided. The chip is clocked half a cycle later, so its data is in a
register three cycles after the decision (CAS latency 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import ceil

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ...isa.params import HwParams
from ..core.dma import axi_signature
from ..core.queue import Queue

DATA_BITS, BANK_BITS = 16, 2
#: From the decision for a read to its data in a register.
READ_CYCLES = 3
_QUEUE_DEPTH = 8
_ADDRESS_BITS = 13
_CLOSE_ALL = 1 << 10
#: Burst length 1, sequential, CAS latency 2.
MODE = 2 << 4
INIT_REFRESHES = 8


@dataclass(frozen=True)
class Chip:
    """Geometry and timing; the defaults are those of the slowest part found on ULX3S boards."""

    row_bits: int = 13
    column_bits: int = 9
    init_us: float = 200.0
    refresh_us: float = 7.8  # 64 ms / 8192 rows
    close_ns: float = 20.0  # tRP
    open_ns: float = 20.0  # tRCD
    cycle_ns: float = 70.0  # tRC, tRFC
    write_ns: float = 20.0  # tWR (two clocks of 10 ns)
    active_ns: float = 45.0  # tRAS

    @property
    def size_bytes(self) -> int:
        """Capacity."""
        return 2 << (self.row_bits + self.column_bits + BANK_BITS)


def cycles(ns: float, freq_mhz: float) -> int:
    """Clock cycles that last at least so long."""
    return max(1, ceil(ns * freq_mhz / 1000 - 1e-9))


class Command(IntEnum):
    """ras_n, cas_n, we_n: from the highest bit down."""

    NOP = 0b111
    OPEN = 0b011
    READ = 0b101
    WRITE = 0b100
    CLOSE = 0b010
    REFRESH = 0b001
    SET_MODE = 0b000


class Sdram(wiring.Component):
    """Parameters
    ----------
    freq_mhz : the clock, from which delays in cycles follow

    Attributes
    ----------
    axi : the port, seen from the master
    command, bank, address, mask : to the chip (command as in :class:`Command`)
    data_o, data_oe, data_i : the data pins
    """

    def __init__(self, params: HwParams, freq_mhz: float, chip: Chip | None = None):
        self.params, self.freq_mhz, self.chip = params, freq_mhz, chip or Chip()
        super().__init__(
            {
                "axi": In(axi_signature(params)),
                "command": Out(3, init=Command.NOP), "bank": Out(BANK_BITS),
                "address": Out(_ADDRESS_BITS), "mask": Out(2, init=3),
                "data_o": Out(DATA_BITS), "data_oe": Out(1), "data_i": In(DATA_BITS),
            }
        )  # fmt: skip

    def cycles(self, ns: float) -> int:
        """Cycles that last at least so long."""
        return cycles(ns, self.freq_mhz)

    def elaborate(self, platform) -> Module:
        m = Module()
        axi, chip = self.axi, self.chip
        parts = self.params.bus_bits // DATA_BITS
        part_bits = (parts - 1).bit_length()
        place, left, part = Signal(32), Signal(9), Signal(part_bits)  # place: in words of 16 bits
        writing, error, to_hand = Signal(), Signal(), Signal(9)
        column = place[: chip.column_bits]
        bank = place[chip.column_bits :][:BANK_BITS]
        row = place[chip.column_bits + BANK_BITS :][: chip.row_bits]
        outside = (place >> (chip.column_bits + BANK_BITS + chip.row_bits)) != 0

        wait = Signal(range(self.cycles(1000 * chip.init_us) + 1),
                      init=self.cycles(1000 * chip.init_us))  # fmt: skip
        rested = Signal()  # wait is 0
        refreshes = Signal(range(INIT_REFRESHES + 1))
        since, due = Signal(range(self.cycles(1000 * chip.refresh_us) + 1)), Signal()
        # A burst of 4 KiB delays a refresh; the interval is shorter by the time that it may take.
        longest = (4096 // (DATA_BITS // 8)) + 200
        interval = max(self.cycles(1000 * chip.refresh_us) - longest, 64)
        m.d.sync += since.eq(since + 1)
        with m.If(since == interval):
            m.d.sync += [since.eq(0), due.eq(1)]

        m.d.sync += [self.command.eq(Command.NOP), self.mask.eq(3), self.data_oe.eq(0)]
        m.d.sync += [axi.awready.eq(0), axi.arready.eq(0)]
        with m.If(~rested):
            m.d.sync += [wait.eq(wait - 1), rested.eq(wait == 1)]

        def rest(cycles: int) -> None:
            m.d.sync += [wait.eq(cycles), rested.eq(cycles == 0)]

        def give(command: Command, cycles: int, state: str) -> None:
            """A command, and the state after so many cycles."""
            m.d.sync += self.command.eq(command)
            rest(cycles - 1)
            m.next = state

        ask = Signal()
        beats, on_the_way, handed = self._beats(m, ask, to_hand)
        room = Signal()  # of the cycle before, in which one word more may have come
        m.d.sync += room.eq(beats.level + on_the_way < _QUEUE_DEPTH - 2)
        last_part = part == parts - 1
        row_ends = (column == (1 << chip.column_bits) - 1) & last_part

        with m.FSM():
            with m.State("POWER"), m.If(rested):
                m.d.sync += [self.address.eq(_CLOSE_ALL), refreshes.eq(INIT_REFRESHES)]
                give(Command.CLOSE, self.cycles(chip.close_ns), "WARM")
            with m.State("WARM"), m.If(rested):
                with m.If(refreshes != 0):
                    m.d.sync += refreshes.eq(refreshes - 1)
                    give(Command.REFRESH, self.cycles(chip.cycle_ns), "WARM")
                with m.Else():
                    m.d.sync += [self.address.eq(MODE), self.bank.eq(0)]
                    give(Command.SET_MODE, 4, "IDLE")
            with m.State("IDLE"), m.If(rested & (to_hand == 0) & handed & ~axi.bvalid):
                with m.If(due):
                    m.d.sync += due.eq(0)
                    give(Command.REFRESH, self.cycles(chip.cycle_ns), "IDLE")
                with m.Elif(axi.awvalid):
                    m.d.sync += axi.awready.eq(1)
                    m.next = "TAKE_WRITE"
                with m.Elif(axi.arvalid):
                    m.d.sync += axi.arready.eq(1)
                    m.next = "TAKE_READ"
            # In states of their own, because what the master does with `ready` makes a long path.
            with m.State("TAKE_WRITE"):
                m.next = "IDLE"
                with m.If(axi.awvalid):
                    m.d.sync += [writing.eq(1), place.eq(axi.awaddr >> 1), left.eq(axi.awlen + 1)]
                    m.d.sync += [axi.bid.eq(axi.awid), error.eq(0)]
                    m.next = "OPEN"
            with m.State("TAKE_READ"):
                m.next = "IDLE"
                with m.If(axi.arvalid):
                    m.d.sync += [writing.eq(0), place.eq(axi.araddr >> 1), left.eq(axi.arlen + 1)]
                    m.d.sync += [axi.rid.eq(axi.arid), to_hand.eq(axi.arlen + 1), error.eq(0)]
                    m.next = "OPEN"
            with m.State("OPEN"), m.If(rested):
                m.d.sync += [self.bank.eq(bank), self.address.eq(row), error.eq(error | outside)]
                give(Command.OPEN, self.cycles(chip.open_ns), "MOVE")
            with m.State("MOVE"), m.If(rested):
                m.d.comb += axi.wready.eq(writing & last_part)
                ready = Mux(writing, axi.wvalid, room | (part != 0))
                with m.If(ready):
                    m.d.sync += [
                        self.command.eq(Mux(writing, Command.WRITE, Command.READ)),
                        self.address.eq(column), self.data_oe.eq(writing),
                        self.data_o.eq(axi.wdata.word_select(part, DATA_BITS)),
                        self.mask.eq(Mux(writing,
                            ~axi.wstrb.word_select(part, DATA_BITS // 8) | error.replicate(2), 0)),
                        place.eq(place + 1), part.eq(part + 1),
                    ]  # fmt: skip
                    m.d.comb += ask.eq(~writing)
                    with m.If(last_part):
                        m.d.sync += left.eq(left - 1)
                    with m.If((last_part & (left == 1)) | row_ends):
                        rest(self.cycles(max(chip.write_ns, chip.active_ns)))
                        m.next = "CLOSE"
            with m.State("CLOSE"), m.If(rested):
                m.d.sync += self.address.eq(_CLOSE_ALL)
                give(Command.CLOSE, self.cycles(chip.close_ns), "IDLE")
                with m.If(left != 0):
                    m.next = "OPEN"
                with m.Elif(writing):
                    m.d.sync += axi.bvalid.eq(1)
        with m.If(axi.bvalid & axi.bready):
            m.d.sync += axi.bvalid.eq(0)
        m.d.comb += axi.bresp.eq(error << 1)
        m.d.comb += axi.rresp.eq(error << 1)
        return m

    def _beats(self, m: Module, ask, to_hand):
        """Data of reads: gathered to words, queued for the master. Returns the queue, whether reads
        are on the way to it (two words at most), and whether the master has taken all that left the
        queue.
        """
        axi, parts = self.axi, self.params.bus_bits // DATA_BITS
        m.submodules.beats = beats = Queue(unsigned(self.params.bus_bits), _QUEUE_DEPTH)
        asked = Signal(READ_CYCLES)  # bit k: a read was decided k + 1 cycles ago
        count = Signal((parts - 1).bit_length())
        word, pins = Signal(self.params.bus_bits), Signal(DATA_BITS)
        gathered = Cat(word[DATA_BITS:], pins)
        m.d.sync += [asked.eq(Cat(ask, asked)), pins.eq(self.data_i)]
        arrives = asked[-1]
        # This queue gives half of the long way from the pins to the core a cycle of its own; the
        # master's `ready` goes no further than to here.
        beat = data.StructLayout({"data": self.params.bus_bits, "last": 1})
        m.submodules.crossing = crossing = Queue(beat, 2)
        with m.If(arrives):
            m.d.sync += [word.eq(gathered), count.eq(count + 1)]
        m.d.comb += [
            beats.i.valid.eq(arrives & (count == parts - 1)),
            beats.i.payload.eq(gathered),
            crossing.i.valid.eq(beats.o.valid), beats.o.ready.eq(crossing.i.ready),
            crossing.i.payload.data.eq(beats.o.payload), crossing.i.payload.last.eq(to_hand == 1),
            axi.rvalid.eq(crossing.o.valid), crossing.o.ready.eq(axi.rready),
            axi.rdata.eq(crossing.o.payload.data), axi.rlast.eq(crossing.o.payload.last),
        ]  # fmt: skip
        with m.If(beats.o.valid & beats.o.ready):
            m.d.sync += to_hand.eq(to_hand - 1)
        return beats, asked.any() | (count != 0), crossing.level == 0
