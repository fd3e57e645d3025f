"""Instruction fetch: bursts of instructions into a prefetch buffer, dispatched in order to the
units' queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import add

from .dma import ReadPort
from .queue import Environment, History, Needs, Queue
from .shared import Shared
from .unit import Sequence


class Fetch(Sequence):
    """Requests one burst for each chunk of instructions, when the buffer has room for the whole
    chunk.
    """

    def __init__(self, shared: Shared):
        super().__init__(shared.env)
        params = shared.params
        self.buffer = Queue(shared.env, params.fetch_depth)
        self.port = shared.arbiter.fetch = ReadPort(self._granted, self._received)
        #: The cycle of each chunk's grant.
        self.granted = History(shared.env)
        self.insn_beats = params.insn_bytes // params.bus_bytes
        self.spacing = shared.memory.cycles_per_beat
        self.page, self.arrived = shared.program_addr // params.bus_bytes, 0
        count, chunk = len(shared.table), params.fetch_chunk
        #: Instructions of each chunk.
        self.chunks = [min(chunk, count - first) for first in range(0, count, chunk)]

    def needs(self) -> Iterator[Needs]:
        rooms = self.buffer.rooms()
        for number, chunk in enumerate(self.chunks):
            *_, last = islice(rooms, chunk)
            yield (*last, (self.granted, number - 1)) if number else last

    def step(self, number: int, cycle: int) -> None:
        """Present a burst."""
        word = number * self.chunks[0] * self.insn_beats
        self.port.request(cycle, self.page, ((0, 0, self.chunks[number] * self.insn_beats, word),))

    def _granted(self, grant: int) -> None:
        self.granted.put(grant)

    def _received(self, ready: int) -> None:
        """A beat is transferred in the cycle in which it is valid, or after the one before."""
        first, valid, spacing = self.port.first, self.port.valid, self.spacing
        chunk, self.arrived = self.chunks[self.arrived], self.arrived + 1
        lasts = range(self.insn_beats - 1, chunk * self.insn_beats, self.insn_beats)
        self.buffer.entered.put_all(max(first + n, valid + n * spacing) for n in lasts)


class Dispatch(Sequence):
    """Hands instructions to the units: in order, at most one a cycle, when the unit's queue has
    room.
    """

    def __init__(self, env: Environment, buffer: Queue, queues: list[Queue]):
        """``queues`` has the queue of each instruction."""
        super().__init__(env)
        self.buffer, self.queues = buffer, queues
        self.cycle = -1

    def needs(self) -> Iterator[Needs]:
        rooms = {queue: queue.rooms() for queue in self.queues}
        return map(add, self.buffer.items(), map(next, map(rooms.__getitem__, self.queues)))

    def step(self, number: int, cycle: int) -> None:
        """Dispatch an instruction."""
        self.cycle = max(self.cycle + 1, cycle)
        self.queues[number].entered.put(self.cycle)
        self.buffer.left.put(self.cycle)
