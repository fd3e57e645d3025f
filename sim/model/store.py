"""The ``out`` scratchpad to DRAM: address, data beats, response, burst by burst."""

from __future__ import annotations

from collections import deque

import numpy as np

from ...isa.opcodes import Opcode, Unit
from ...isa.params import HwParams
from ...isa.timing import STORE_END
from .dma import Kinds, Rows, page_words
from .shared import Shared
from .unit import UnitProcess


class Store(UnitProcess):
    """Runs STORE instructions."""

    unit = Unit.STORE

    def __init__(self, shared: Shared):
        super().__init__(shared)
        #: Bursts of each instruction: their beats, and their first words in the page.
        self.bursts = bursts_of_stores(shared).each()
        self.pages = page_words(shared.table.columns(Opcode.STORE), shared.params).tolist()
        self.busy = np.array([sum(beats for beats, _ in each) for each in self.bursts], np.int64)
        self.beat_cycles = beat_cycles(shared.params)
        self.channel = shared.writes
        self.channel.sent, self.channel.answered = self._sent, self._answered
        self.begun: deque[int] = deque()
        self.sending = False
        self.in_flight = shared.params.stores_in_flight

    def step(self, number: int, cycle: int) -> None:
        """Take an instruction when all data of the one before has been sent."""
        self.begun.append(cycle)
        self._request()

    def _request(self) -> None:
        """Take the next instruction, if it can begin and the end of the one whose slot it takes is
        known."""
        number = len(self.queue.left)
        freed = number - self.in_flight
        if not self.begun or self.sending or freed >= len(self.ends):
            return
        start = max(self.ready, self.begun.popleft(), self.ends[freed] + 1 if freed >= 0 else 0)
        self.queue.left.put(start)
        self.sending = True
        self.channel.send(start + 1, self.pages[number], self.bursts[number], self.beat_cycles)

    def _sent(self, cycle: int) -> None:
        self.ready, self.sending = cycle, False
        self._request()

    def _answered(self, cycle: int) -> None:
        self.end(len(self.ends), cycle + STORE_END)
        self._request()


def bursts_of_stores(shared: Shared) -> Kinds[list[tuple[int, int]]]:
    """Of every burst of the STOREs of a program its beats, and its first word of the bus, counted
    from the page in which the instruction's data begin."""
    entry_bytes = shared.params.entry_bytes("out")

    def bursts(*row: int) -> list[tuple[int, int]]:
        found = []
        for _, word, each in Rows(*row).bursts(entry_bytes, shared.params):
            for beats in each:
                found.append((beats, word))
                word += beats
        return found

    return Kinds(bursts, Rows.of(shared.table.columns(Opcode.STORE)))


def beat_cycles(params: HwParams) -> int:
    """Cycles in which the store unit makes a beat."""
    return max(1, params.bus_bytes // params.entry_bytes("out"))
