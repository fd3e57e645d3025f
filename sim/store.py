"""The ``out`` scratchpad to DRAM: address, data beats, response, burst by burst."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ..isa.opcodes import Unit
from .dma import CACHED, Rows, WriteChannel
from .queue import Need, Queue
from .timing import STORE_DATA, STORE_END
from .unit import UnitProcess

if TYPE_CHECKING:
    from .core import Core


class Store(UnitProcess):
    """Runs STORE instructions."""

    unit = Unit.STORE

    def __init__(self, core: Core):
        super().__init__(core)
        self.responses = Queue(core.env, core.params.stores_in_flight)
        self.channel = WriteChannel(core.memory)
        self.ready = 0
        entry_bytes = core.params.entry_bytes("out")
        self.beat_cycles = max(1, core.params.bus_bytes // entry_bytes)
        self.bursts = [
            bursts(Rows.of(insn, insn.x_size * entry_bytes, core.params)) for insn in self.insns
        ]

    def busy(self) -> list[int]:
        return [sum(beats) for beats in self.bursts]

    def slots(self, number: int) -> tuple[Need, ...]:
        return self.responses.room(number)

    def step(self, number: int, cycle: int) -> None:
        """Take an instruction when the data of the one before are out."""
        start = max(self.ready, cycle)
        self.queue.left.put(start)
        present, answered = start + 1, 0
        for beats in self.bursts[number]:
            valid = self.channel.accept(present) + STORE_DATA + self.beat_cycles - 1
            last, answered = self.channel.transfer(valid, beats, self.beat_cycles)
            present = last + 1
        self.ready = present
        self.responses.left.put(answered + STORE_END)
        self.end(number, answered + STORE_END)


@lru_cache(maxsize=CACHED)
def bursts(rows: Rows) -> tuple[int, ...]:
    """Beats of every burst."""
    return tuple(beats for _, row in rows.bursts() for beats in row)
