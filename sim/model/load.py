"""DRAM to scratchpads: one half requests bursts, running ahead by whole instructions; the other
places what arrives.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from ...isa.opcodes import LOADABLE, Opcode, Unit
from ...isa.params import HwParams
from ...isa.timing import LOAD_END
from .dma import NEVER, Kinds, Pieces, ReadPort, Rows, page_words
from .shared import Shared
from .unit import UnitProcess


class Load(UnitProcess):
    """Runs LOAD instructions. A step models the requesting half; the cycles of the placing half
    follow from the grants.
    """

    unit = Unit.LOAD

    def __init__(self, shared: Shared):
        super().__init__(shared)
        self.plans = plans(shared).each()
        self.pages = page_words(shared.table.columns(Opcode.LOAD), shared.params).tolist()
        self.busy = np.array([plan.busy for plan in self.plans], np.int64)
        self.port = shared.arbiter.load = ReadPort(self._granted, self._received)
        #: For each instruction that waits for the last grant of the one before, the cycle from
        #: which it could start.
        self.begun: deque[int] = deque()
        self.in_flight = shared.params.loads_in_flight
        #: When the placing half took descriptors, which frees their slots, and from when on it is
        #: idle after the last of ``ends``.
        self.taken: list[int] = []
        self.idle = 0

    def step(self, number: int, cycle: int) -> None:
        """Take an instruction when the last burst of the one before is granted."""
        self.begun.append(cycle)
        self._request()

    def _request(self) -> None:
        """Take the instructions that can begin; the placing half takes their descriptors when it is
        idle."""
        while self.begun and self.port.present == NEVER:
            number = len(self.queue.left)
            freed = number - self.in_flight
            if freed >= len(self.taken):
                break  # this is not known yet
            start = max(
                self.ready, self.begun.popleft(), self.taken[freed] + 1 if freed >= 0 else 0
            )
            self.queue.left.put(start)
            self.ready = start + 1
            if pieces := self.plans[number].pieces:
                self.port.request(start + 1, self.pages[number], pieces)
            self._take()

    def _take(self) -> None:
        """Take descriptors as long as it is known when the one before was done."""
        while len(self.taken) == len(self.ends) < len(self.queue.left):
            number = len(self.taken)
            plan = self.plans[number]
            self.taken.append(max(self.idle, self.queue.left[number] + 1))
            self.port.ready, self.port.beat_cycles = self.taken[-1] + 1, plan.beat_cycles
            if not plan.pieces:
                self._done(self.port.ready)

    def _granted(self, grant: int) -> None:
        self.ready = grant + 1
        self._request()

    def _received(self, ready: int) -> None:
        self.busy[len(self.ends)] -= self.port.overlaps
        self.port.overlaps = 0
        self._done(ready)
        self._take()
        self._request()

    def _done(self, ready: int) -> None:
        """The placing half has nothing left of an instruction but the padding behind its bursts."""
        number = len(self.ends)
        self.idle = ready + self.plans[number].behind
        self.end(number, self.idle - 1 + LOAD_END)


class Plan(NamedTuple):
    """What a LOAD costs, wherever it starts.

    Attributes
    ----------
    pieces : its bursts
    behind : cycles of padding after the last burst
    busy : cycles in which the placing half has a beat or a padding entry, if a beat never comes
        together with padding
    beat_cycles : cycles that a beat occupies the placing half
    """

    pieces: Pieces
    behind: int
    busy: int
    beat_cycles: int


def plans(shared: Shared) -> Kinds[Plan]:
    """What the LOADs of a program cost."""
    params, fields = shared.params, shared.table.columns(Opcode.LOAD)
    each = [[params.dram_entry_bytes(name, widen) for widen in (0, 1)] for name in LOADABLE]
    entry_bytes = np.array(each)[fields["memory"], fields["widen"]]
    pads = [fields[f"pad_{side}"] for side in ("top", "bottom", "left", "right")]

    def make(*row: int) -> Plan:
        return plan(Rows(*row[:6]), row[6:10], row[10], params)

    rows = np.concatenate([Rows.of(fields), np.stack([*pads, entry_bytes], 1)], axis=1)
    return Kinds(make, rows)


def plan(rows: Rows, pads: tuple[int, ...], entry_bytes: int, params: HwParams) -> Plan:
    """What a LOAD with padding (top and bottom in rows, left and right in entries) costs."""
    top, bottom, left, right = pads
    row_entries = left + rows.x_size + right
    beat_cycles = max(1, params.bus_bytes // entry_bytes)
    # If an entry takes several beats, the first may come while the padding left of it is written.
    beside = left if entry_bytes > params.bus_bytes else 0
    if not rows.y_size:
        padding = rows.z_size * (top + bottom) * row_entries
        return Plan((), padding, padding, beat_cycles)
    pieces: list[tuple[int, int, int, int]] = []
    padding = busy = 0
    for y, word, bursts in rows.bursts(entry_bytes, params):
        padding += left - beside + (top * row_entries if y == 0 else 0)
        for number, beats in enumerate(bursts):
            first = beside if number == 0 else 0
            pieces.append((padding, first, beats, word))
            busy += padding + first + beats * beat_cycles
            word += beats
            padding = 0
        padding = right + (bottom * row_entries if y == rows.y_size - 1 else 0)
    return Plan(tuple(pieces), padding, busy + padding, beat_cycles)
