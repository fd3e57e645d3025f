"""The SDRAM chip of a board: what it does with its pins, and what it must not be asked for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..hw.boards.sdram import ALL_BANKS, INIT_REFRESHES, Command, mode
from ..isa.sdram import BURST_WORDS, CLOCKS, PIN_CYCLES, Part

#: What the pins show while the chip does not drive them.
_NOTHING = 0xDEAD
#: What of a word a mask keeps.
_KEPT = (0, 0xFF, 0xFF00, 0xFFFF)
#: Clocks from a mask to the word of a READ that it hides.
_MASK_CLOCKS = 2
#: A moment before the first clock, from which every time has passed.
_LONG_AGO = -(10**9)


class Pins(NamedTuple):
    """The chip's pins in one of its clocks: ``command`` as
    :class:`~vdla.hw.boards.sdram.Command`; ``driven``: the controller drives ``data``."""

    command: int
    bank: int
    address: int
    mask: int
    data: int
    driven: int


@dataclass
class _Bank:
    """A bank: its open row or None; clocks of the last OPEN and CLOSE; the first in which it may be
    closed.
    """

    row: int | None = None
    opened: int = _LONG_AGO
    closed: int = _LONG_AGO
    closable: int = _LONG_AGO


class SdramChip:
    """A chip, clock by clock. It knows no simulator: who has its pins calls :meth:`clock`.

    It has the rules of ``sim/rtl/chip.h``, written a second time, and one of masks.

    Parameters
    ----------
    part : Part
        Geometry and timing.

    Attributes
    ----------
    words : uint16 array
        The contents.
    now : int
        Clocks so far.
    refreshes : list of int
        Clocks in which there was a refresh.
    """

    def __init__(self, part: Part) -> None:
        self.part = part
        self.words = np.zeros(part.size_bytes // 2, np.uint16)
        self.now = 0
        self.refreshes: list[int] = []
        self._banks = [_Bank() for _ in range(1 << part.bank_bits)]
        self._set_up = False
        self._moved = self._reads_until = self._shown_until = _LONG_AGO
        #: What is left of a WRITE: the next word's place, and how many words.
        self._place = self._left = 0
        #: Words on their way to the controller, with their clocks.
        self._late: deque[tuple[int, int]] = deque()
        clocks = part.clocks
        self._init, self._refresh = clocks(1000 * part.init_us), part.rules.refresh * CLOCKS
        self._close, self._open, self._cycle, self._write, self._active = (
            clocks(ns)
            for ns in (part.close_ns, part.open_ns, part.cycle_ns, part.write_ns, part.active_ns)
        )

    def late(self, clock: int = 0) -> int:
        """The word that the controller has from its pins, of the READ
        :data:`~vdla.isa.sdram.PIN_CYCLES` cycles before, in the clock ``clock`` after ``now``."""
        return next((word for at, word in self._late if at == self.now + clock), _NOTHING)

    @property
    def moves(self) -> bool:
        """Words are on their way, or a WRITE goes on."""
        return bool(self._late) or self._left > 0

    def clock(self, pins: Pins) -> None:
        """The pins in the next clock.

        Raises AssertionError for what the chip must not be asked for.
        """
        match pins.command:
            case Command.NOP:
                pass
            case Command.OPEN:
                self._on_open(pins)
            case Command.READ:
                self._on_read(pins)
            case Command.WRITE:
                self._on_write(pins)
            case Command.CLOSE:
                self._on_close(pins)
            case Command.REFRESH:
                self._on_refresh()
            case Command.SET_MODE:
                self._on_mode(pins)
            case unknown:
                raise AssertionError(f"sdram: clock {self.now}: command {unknown}, which is none")
        if self._left:
            self._check(bool(pins.driven), "WRITE with data pins that are not driven")
            kept = _KEPT[pins.mask]
            self.words[self._place] = int(self.words[self._place]) & kept | pins.data & ~kept
            self._place, self._left = self._place + 1, self._left - 1
        else:
            self._check(
                not pins.mask or self.now > self._shown_until, "a mask that hides words of a READ"
            )
            self._check(
                not pins.driven or self.now > self._reads_until,
                "data pins are driven while a READ has them",
            )
        self.skip(1)

    def skip(self, clocks: int) -> None:
        """Clocks without a command, without driven data pins, and while nothing moves."""
        self.now += clocks
        while self._late and self._late[0][0] < self.now:
            self._late.popleft()
        owed = (self.now - self._init) // self._refresh
        self._check(len(self.refreshes) >= owed, "too few refreshes")

    def _check(self, holds: bool, rule: str) -> None:
        assert holds, f"sdram: clock {self.now}: {rule}"

    def _after_refresh(self, name: str) -> None:
        """A refresh takes its time."""
        last = self.refreshes[-1] if self.refreshes else _LONG_AGO
        self._check(self.now >= last + self._cycle, f"{name} too early after REFRESH")

    def _on_open(self, pins: Pins) -> None:
        bank = self._banks[pins.bank]
        self._check(self._set_up, "OPEN before the mode was set")
        self._check(bank.row is None, "OPEN of a bank that is open")
        self._check(self.now >= bank.closed + self._close, "OPEN too early after CLOSE")
        self._check(self.now >= bank.opened + self._cycle, "OPEN too early after OPEN")
        self._after_refresh("OPEN")
        bank.row, bank.opened = pins.address, self.now
        bank.closable = self.now + self._active

    def _on_move(self, pins: Pins) -> int:
        """What READ and WRITE have in common; the place of the first word."""
        bank = self._banks[pins.bank]
        self._check(bank.row is not None, "READ or WRITE in a bank that is not open")
        self._check(self.now >= bank.opened + self._open, "READ or WRITE too early after OPEN")
        self._check(
            self.now >= self._moved + BURST_WORDS, "READ or WRITE while another one moves words"
        )
        self._check(not pins.address & ALL_BANKS, "READ or WRITE that closes its row")
        column = pins.address & ((1 << self.part.column_bits) - 1)
        self._check(column % BURST_WORDS == 0, "READ or WRITE that is not aligned")
        self._moved = self.now
        row = (bank.row or 0) << self.part.bank_bits | pins.bank
        return row << self.part.column_bits | column

    def _on_read(self, pins: Pins) -> None:
        place = self._on_move(pins)
        # One clock is left between drivers.
        self._reads_until = self.now + self.part.cas_clocks + BURST_WORDS
        self._shown_until = self._reads_until - 1 - _MASK_CLOCKS
        begin = self.now + PIN_CYCLES * CLOCKS
        words = self.words[place : place + BURST_WORDS].tolist()
        self._late.extend((begin + n, word) for n, word in enumerate(words))
        self._hold(pins, self.now + BURST_WORDS)

    def _on_write(self, pins: Pins) -> None:
        self._place, self._left = self._on_move(pins), BURST_WORDS
        self._check(self.now > self._reads_until, "WRITE while a READ has the data pins")
        self._hold(pins, self.now + BURST_WORDS - 1 + self._write)

    def _hold(self, pins: Pins, until: int) -> None:
        """The bank may not be closed before a clock."""
        bank = self._banks[pins.bank]
        bank.closable = max(bank.closable, until)

    def _on_close(self, pins: Pins) -> None:
        self._check(self.now >= self._init, "a command before the chip is ready")
        self._after_refresh("CLOSE")
        for number, bank in enumerate(self._banks):
            if not pins.address & ALL_BANKS and number != pins.bank:
                continue
            self._check(bank.row is None or self.now >= bank.closable, "CLOSE too early")
            bank.row, bank.closed = None, self.now

    def _on_refresh(self) -> None:
        for bank in self._banks:
            self._check(bank.row is None, "REFRESH while a row is open")
            self._check(self.now >= bank.closed + self._close, "REFRESH too early after CLOSE")
        self._after_refresh("REFRESH")
        self.refreshes.append(self.now)

    def _on_mode(self, pins: Pins) -> None:
        self._check(len(self.refreshes) >= INIT_REFRESHES, "SET_MODE before all refreshes")
        self._after_refresh("SET_MODE")
        self._check(
            pins.address == mode(self.part) and pins.bank == 0, "SET_MODE with another mode"
        )
        self._set_up = True
