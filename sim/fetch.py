"""Instruction fetch: bursts of instructions into a prefetch buffer, dispatched in order to the
units' queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .dma import Transfer
from .queue import History, Need, Queue
from .unit import Sequence

if TYPE_CHECKING:
    from .core import Core


class Fetch(Sequence):
    """Requests bursts as the buffer has room: one for each chunk of instructions, which needs room
    for all of it."""

    def __init__(self, core: Core):
        super().__init__(core.env)
        self.core, self.params = core, core.params
        self.beats = core.params.insn_bytes // core.params.bus_bytes
        self.buffer = Queue(core.env, core.params.fetch_depth)
        self.granted = History(core.env)

    def needs(self) -> Iterator[tuple[Need, ...]]:
        chunk, count = self.params.fetch_chunk, len(self.core.insns)
        for number in range(-(-count // chunk)):
            before = ((self.granted, number - 1),) if number else ()
            yield before + self.buffer.room(min((number + 1) * chunk, count) - 1)

    def step(self, number: int, cycle: int) -> None:
        """Present a burst."""
        chunk = self.params.fetch_chunk
        count = min(chunk, len(self.core.insns) - number * chunk)
        spacing = self.core.memory.cycles_per_beat
        beats = self.beats

        def arrived(grant: int, ready: int) -> None:
            for behind in range(count - 1, -1, -1):
                self.buffer.entered.put(ready - 1 - behind * beats * spacing)
            self.granted.put(grant)

        pieces = ((0, (count * beats - 1) * spacing),)
        self.core.arbiter.request_fetch(Transfer(cycle, pieces, 0, 1, arrived))


class Dispatch(Sequence):
    """Hands instructions to the units: in order, at most one a cycle, when the unit's queue has
    room."""

    def __init__(self, core: Core):
        super().__init__(core.env)
        self.buffer = core.fetch.buffer
        self.core = core
        self.queues = [core.units[insn.unit].queue for insn in core.insns]

    def needs(self) -> Iterator[tuple[Need, ...]]:
        dispatched = dict.fromkeys(self.queues, 0)
        for number, queue in enumerate(self.queues):
            before = ((self.buffer.left, number - 1),) if number else ()
            yield (self.buffer.item(number), *before, *queue.room(dispatched[queue]))
            dispatched[queue] += 1

    def step(self, number: int, cycle: int) -> None:
        """Dispatch an instruction."""
        self.queues[number].entered.put(cycle)
        self.buffer.left.put(cycle)
