"""The SDRAM chip of a board: what it does with its pins, and what it must not be asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..hw.boards.sdram import BANK_BITS, INIT_REFRESHES, MODE, Chip, Command

#: What the pins show while the chip does not drive them.
_NOTHING = 0xDEAD


class SdramChip:
    """A chip, cycle by cycle. It knows no simulator: who has its pins calls :meth:`cycle`.

    Parameters
    ----------
    chip : Chip
        Geometry and timing.
    cycles : callable
        Clock cycles that last at least so many nanoseconds.

    Attributes
    ----------
    words : uint16 array
        The contents.
    now : int
        Cycles so far.
    refreshes : list of int
        Cycles in which there was a refresh.
    """

    def __init__(self, chip: Chip, cycles: Callable[[float], int]) -> None:
        self.chip, self.cycles = chip, cycles
        self.words = np.zeros(chip.size_bytes // 2, np.uint16)
        self.rows: dict[int, int] = {}  # bank: open row
        self.since: dict[int, int] = {}  # bank: cycle of its last OPEN
        self.now = 0
        self.free = cycles(1000 * chip.init_us)  # no command before
        self.refreshes: list[int] = []
        self.mode: int | None = None

    def cycle(
        self, command: int, bank: int, address: int, mask: int, data: int, driven: int
    ) -> int:
        """The pins of a cycle: the command (:class:`~vdla.hw.boards.sdram.Command`), bank, address
        and mask, and the data pins with whether the controller drives them. Returns the data in the
        next cycle.

        Raises AssertionError for what the chip must not be asked for.
        """
        self.now += 1
        if command == Command.NOP:
            return _NOTHING
        name = Command(command).name
        assert self.now >= self.free, f"sdram: {name} in cycle {self.now}, before {self.free}"
        match command:
            case Command.OPEN:
                assert self.mode == MODE, "sdram: OPEN before the mode was set"
                assert not self.rows, "sdram: OPEN while a row is open"
                self.rows[bank], self.since[bank] = address, self.now
                self.free = self.now + self.cycles(self.chip.open_ns)
            case Command.READ:
                assert not driven and mask == 0, "sdram: READ with driven or masked data pins"
                return int(self.words[self._place(bank, address)])
            case Command.WRITE:
                assert driven, "sdram: WRITE with data pins that are not driven"
                place, keep = self._place(bank, address), (0, 0xFF, 0xFF00, 0xFFFF)[mask]
                self.words[place] = int(self.words[place]) & keep | data & ~keep
                self.free = self.now + 1
            case Command.CLOSE:
                assert address >> 10 & 1, "sdram: CLOSE of one bank"
                least = max((self.since[bank] for bank in self.rows), default=self.now)
                least += self.cycles(self.chip.active_ns) * bool(self.rows)
                assert self.now >= least, f"sdram: CLOSE in cycle {self.now}, before {least}"
                self.rows.clear()
                self.free = self.now + self.cycles(self.chip.close_ns)
            case Command.REFRESH:
                assert not self.rows, "sdram: REFRESH while a row is open"
                self.refreshes.append(self.now)
                self.free = self.now + self.cycles(self.chip.cycle_ns)
            case Command.SET_MODE:
                assert not self.rows and len(self.refreshes) >= INIT_REFRESHES, (
                    "sdram: SET_MODE before all refreshes"
                )
                self.mode, self.free = address, self.now + 2
        return _NOTHING

    def _place(self, bank: int, column: int) -> int:
        """Index of a word of an open row."""
        assert bank in self.rows, f"sdram: access to bank {bank}, which has no open row"
        return ((self.rows[bank] << BANK_BITS | bank) << self.chip.column_bits) | column
