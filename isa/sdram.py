"""Parts of SDRAM, and the rules of the controller in front of them, in cycles of the core.

The chip runs on a clock of twice the core's: a cycle of the core has two of its clocks, the first
for a READ or a WRITE of four words, the second for a command to a row. ``docs/timing.md`` says how
the controller decides; the RTL (``hw/boards/sdram.py``) and the model (``sim/model/sdram.py``) both
take every number from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

#: Clocks of the chip in a cycle of the core.
CLOCKS = 2
#: Words that a READ or a WRITE moves, one a clock: a word of the bus.
BURST_WORDS = 4
#: Cycles from SET_MODE to the next command.
MODE_CYCLES = 2
#: Segments that wait between the half of the controller that opens rows and that which moves data.
OPENED = 2
#: From a READ that the controller shows to its first two words; from the decision for it to its
#: beat on the bus: a cycle to a register, to the words, one for the other two, two for the buffer.
PIN_CYCLES = 4
READ_BEAT = 1 + PIN_CYCLES + 1 + 2
#: From the arrival of a burst to the half of the controller that opens rows, and from there to the
#: first READ or WRITE. The sum is what an access to an open row takes if nothing is under way.
TAKE_CYCLES, HAND_CYCLES = 2, 2
IDLE_CYCLES = TAKE_CYCLES + HAND_CYCLES
#: From a burst's last WRITE to its answer.
ANSWER_CYCLES = 1
#: The cycle from which on the first refresh is owed: the core starts in cycle 0.
FIRST_DUE = 1


@dataclass(frozen=True)
class Part:
    """A chip: geometry, and times of its datasheet.

    Parameters
    ----------
    row_bits, column_bits, bank_bits, word_bits : int
        Geometry.
    clock_ns : float
        The shortest period of its clock.
    lowest_mhz : float
        The lowest clock of the core for which enough refreshes come.
    cas_clocks : int
        From a READ to its first word.
    init_us, refresh_us : float
        From power to the first command; between refreshes, on average.
    close_ns, open_ns, cycle_ns, write_ns, active_ns : float
        tRP, tRCD, tRC and tRFC, tWR, tRAS.
    """

    row_bits: int = 13
    column_bits: int = 9
    bank_bits: int = 2
    word_bits: int = 16
    clock_ns: float = 7.0
    lowest_mhz: float = 40.0
    cas_clocks: int = 3
    init_us: float = 200.0
    refresh_us: float = 7.8  # 64 ms / 8192 rows
    close_ns: float = 20.0
    open_ns: float = 20.0
    cycle_ns: float = 70.0
    write_ns: float = 20.0
    active_ns: float = 45.0

    @property
    def size_bytes(self) -> int:
        """Capacity."""
        return self.word_bits // 8 << (self.row_bits + self.column_bits + self.bank_bits)

    @property
    def bus_bits(self) -> int:
        """The words that one READ brings."""
        return BURST_WORDS * self.word_bits

    @property
    def row_beats(self) -> int:
        """Words of the bus in a row of a bank."""
        return (1 << self.column_bits) // BURST_WORDS

    @property
    def highest_mhz(self) -> float:
        """The highest clock of the core."""
        return 1000 / self.clock_ns / CLOCKS

    def clocks(self, ns: float) -> int:
        """Clocks of the chip that last at least so long, whatever its frequency."""
        return ceil(ns / self.clock_ns - 1e-9)

    @cached_property
    def rules(self) -> Rules:
        """What the controller keeps, in cycles of the core."""

        def after(clocks: int, later: int = 0) -> int:
            """Cycles for so many clocks, to a command whose place in its cycle is ``later``."""
            return ceil((clocks - later) / CLOCKS)

        close = after(self.clocks(self.close_ns))
        return Rules(
            beat=after(BURST_WORDS),
            open_to_move=after(self.clocks(self.open_ns), -1),
            open_to_close=after(self.clocks(self.active_ns)),
            read_to_close=after(BURST_WORDS, 1),
            write_to_close=after(BURST_WORDS - 1 + self.clocks(self.write_ns), 1),
            read_to_write=after(self.cas_clocks + BURST_WORDS + 1),
            close_to_open=max(close, after(self.clocks(self.cycle_ns)) - after(
                self.clocks(self.active_ns))),
            refresh_to_open=after(self.clocks(self.cycle_ns)),
            refresh=int(self.refresh_us * self.lowest_mhz),
        )  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """Cycles of the core from one decision to the next.

    Parameters
    ----------
    beat : int
        From a READ or WRITE to the next one.
    open_to_move, open_to_close, read_to_close, write_to_close, close_to_open : int
        In one bank.
    read_to_write : int
        Until the data pins are free.
    refresh_to_open : int
        From a refresh to the next command.
    refresh : int
        From one refresh that is owed to the next.
    """

    beat: int
    open_to_move: int
    open_to_close: int
    read_to_close: int
    write_to_close: int
    read_to_write: int
    close_to_open: int
    refresh_to_open: int
    refresh: int


#: The part of the board that is built, and its name: the slowest one found on ULX3S boards.
ULX3S = "ulx3s"
PARTS: dict[str, Part] = {ULX3S: Part()}
