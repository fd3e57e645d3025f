"""The ``out`` scratchpad to DRAM: address, data beats, response, burst by burst."""

from __future__ import annotations

from collections import deque

import numpy as np

from ...isa.opcodes import Opcode, Unit
from ...isa.params import HwParams
from ...isa.timing import STORE_DATA, STORE_END
from .dma import Kinds, Rows, WriteChannel
from .shared import Shared
from .unit import UnitProcess


class Store(UnitProcess):
    """Runs STORE instructions."""

    unit = Unit.STORE

    def __init__(self, shared: Shared):
        super().__init__(shared)
        #: Beats of every burst of each instruction.
        self.bursts = beats_of_bursts(shared).each()
        self.busy = np.array([sum(beats) for beats in self.bursts], np.int64)
        self.beat_cycles = beat_cycles(shared.params)
        self.channel = WriteChannel(shared.memory)
        in_flight = shared.params.stores_in_flight
        #: Ends of the latest instructions, which free their slots.
        self.responded = deque([-1] * in_flight, maxlen=in_flight)

    def step(self, number: int, cycle: int) -> None:
        """Take an instruction when all data of the one before has been sent."""
        start = max(self.ready, cycle, self.responded[0] + 1)
        self.queue.left.put(start)
        present, answered = start + 1, 0
        for beats in self.bursts[number]:
            valid = self.channel.accept(present) + STORE_DATA + self.beat_cycles - 1
            last, answered = self.channel.transfer(valid, beats, self.beat_cycles)
            present = last + 1
        self.ready = present
        self.responded.append(answered + STORE_END)
        self.end(number, answered + STORE_END)


def beats_of_bursts(shared: Shared) -> Kinds[list[int]]:
    """Beats of every burst of the STOREs of a program."""
    entry_bytes = shared.params.entry_bytes("out")

    def bursts(*row: int) -> list[int]:
        rows = Rows(*row).bursts(entry_bytes, shared.params)
        return [beats for _, bursts in rows for beats in bursts]

    return Kinds(bursts, Rows.of(shared.table.columns(Opcode.STORE)))


def beat_cycles(params: HwParams) -> int:
    """Cycles in which the store unit makes a beat."""
    return max(1, params.bus_bytes // params.entry_bytes("out"))
