"""The ``out`` scratchpad to DRAM: address, data beats, response, burst by burst."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from ..isa.insn import Store as StoreInsn
from ..isa.opcodes import Unit
from .dma import WriteChannel, cut_bursts, row_addresses
from .queue import Queue
from .timing import STORE_DATA, STORE_END
from .unit import UnitProcess

if TYPE_CHECKING:
    from .core import Core


class Store(UnitProcess):
    """Runs STORE instructions."""

    unit = Unit.STORE

    def __init__(self, core: Core):
        self.responses = Queue(core.env, core.params.stores_in_flight)
        self.channel = WriteChannel(core.memory)
        self.last_end = -1
        super().__init__(core)

    def run(self) -> Generator[Any, Any, None]:
        """Take an instruction when the data of the one before are out."""
        ready = 0
        while True:
            taken = yield from self.take()
            insn = taken.insn
            assert isinstance(insn, StoreInsn)
            room = yield from self.responses.room()
            start = max(ready, taken.earliest, room)
            yield from self.start(taken, start)
            if start > self.last_end:
                self.account.wait(start, taken.visible, taken.tokens)
                self.account.add("busy", 1)
            last, end, beats = self._send(insn, start + 1)
            ready = last + 1
            self.responses.taken(end)
            self.account.add("busy", beats)
            self.account.add("stalled", end - max(start, self.last_end) - beats)
            self.last_end = end
            self.end(taken, end)

    def _send(self, insn: StoreInsn, present: int) -> tuple[int, int, int]:
        """Cycle of the last beat, of the end, and the number of beats."""
        entry_bytes = self.params.entry_bytes("out")
        beat_cycles = max(1, self.params.bus_bytes // entry_bytes)
        total, last, answered = 0, 0, 0
        for _, _, address in row_addresses(insn):
            for beats in cut_bursts(address, insn.x_size * entry_bytes, self.params):
                accepted = self.channel.accept(present)
                valid = accepted + STORE_DATA + beat_cycles - 1
                last, answered = self.channel.transfer(valid, beats, beat_cycles)
                present = last + 1
                total += beats
        return last, answered + STORE_END, total
