"""DRAM to scratchpads: one half requests bursts, running ahead by whole instructions; the other
places what arrives.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from ..isa.insn import Load as LoadInsn
from ..isa.opcodes import Unit
from .dma import Receiver, cut_bursts, row_addresses
from .queue import Queue
from .timing import LOAD_END
from .unit import Taken, UnitProcess

if TYPE_CHECKING:
    from .core import Core


class Load(UnitProcess):
    """Runs LOAD instructions."""

    unit = Unit.LOAD

    def __init__(self, core: Core):
        self.waiting = Queue(core.env, core.params.loads_in_flight)
        #: The placing half: idle from this cycle on; its cursor while it works on an instruction.
        self.idle = 0
        self.cursor = 0
        #: In-flight instructions end in this cycle at the latest so far.
        self.last_end = -1
        super().__init__(core)

    def run(self) -> Generator[Any, Any, None]:
        """The requesting half; the other half's cycles follow from the grants."""
        ready = 0
        while True:
            taken = yield from self.take()
            insn = taken.insn
            assert isinstance(insn, LoadInsn)
            room = yield from self.waiting.room()
            start = max(ready, taken.earliest, room)
            yield from self.start(taken, start)
            self._account_start(taken, start)
            self._begin(start)
            busy, present = 0, start + 1
            beat_cycles = max(1, self.params.bus_bytes // insn.dram_entry_bytes(self.params))
            for padding, beats in self.pieces(insn):
                self.cursor += padding
                busy += padding
                if not beats:
                    continue
                receiver = Receiver(self.cursor, beat_cycles)
                event = self.core.arbiter.request("load", present, beats, receiver)
                grant, _, last = yield event
                self.cursor = last + beat_cycles
                busy += beats * beat_cycles
                present = grant + 1
            ready = present
            self._finish(taken, start, busy)

    def pieces(self, insn: LoadInsn) -> Iterator[tuple[int, int]]:
        """(padding cycles, beats of the burst behind them) in order; the last piece may have no
        burst.
        """
        row_bytes = insn.x_size * insn.dram_entry_bytes(self.params)
        rows = insn.row_entries
        padding = 0
        for _, y, address in row_addresses(insn):
            if y == 0:
                padding += insn.pad_top * rows
            padding += insn.pad_left
            for beats in cut_bursts(address, row_bytes, self.params):
                yield padding, beats
                padding = 0
            padding += insn.pad_right
            if y == insn.y_size - 1:
                padding += insn.pad_bottom * rows
        if not insn.y_size:
            padding = insn.entries
        yield padding, 0

    def _begin(self, start: int) -> None:
        """The placing half takes the descriptor when it is idle."""
        taken = max(self.idle, start + 1)
        self.waiting.slots.put(taken + 1)
        self.cursor = taken + 1

    def _finish(self, taken: Taken, start: int, busy: int) -> None:
        self.idle = self.cursor
        end = self.cursor - 1 + LOAD_END
        self.account.add("busy", busy)
        flight = end - max(start, self.last_end)
        self.account.add("stalled", flight - busy)
        self.last_end = end
        self.end(taken, end)

    def _account_start(self, taken: Taken, start: int) -> None:
        """An instruction that starts while another is in flight starts in a cycle that is accounted
        for already.
        """
        if start > self.last_end:
            self.account.wait(start, taken.visible, taken.tokens)
            self.account.add("busy", 1)
