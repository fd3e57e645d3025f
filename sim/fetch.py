"""Instruction fetch: bursts of instructions into a prefetch buffer, dispatched in order to the
units' queues.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import simpy

from .dma import Receiver
from .queue import Queue

if TYPE_CHECKING:
    from .core import Core


class Fetch:
    """Requests bursts as the buffer has room and dispatches what has arrived."""

    def __init__(self, core: Core):
        self.core = core
        self.buffer = Queue(core.env, core.params.fetch_depth)
        core.env.process(self.request())
        core.env.process(self.dispatch())

    def request(self) -> Generator[Any, Any, None]:
        """One burst per chunk of instructions; a chunk needs room in the buffer for all of it."""
        core, params = self.core, self.core.params
        beats = params.insn_bytes // params.bus_bytes
        present, requested = 0, 0
        while requested < len(core.insns):
            chunk = min(params.fetch_chunk, len(core.insns) - requested)
            for _ in range(chunk):
                present = max(present, (yield from self.buffer.room()))
            if present > core.env.now + 1:
                yield core.env.timeout(present - core.env.now - 1)
            event: simpy.Event = core.arbiter.request(
                "fetch", present, chunk * beats, Receiver(0, 1)
            )
            grant, first, _ = yield event
            spacing = core.memory.cycles_per_beat
            for i in range(chunk):
                self.buffer.put(requested + i, first + ((i + 1) * beats - 1) * spacing)
            requested += chunk
            present = grant + 1

    def dispatch(self) -> Generator[Any, Any, None]:
        """In order, at most one a cycle, when the unit's queue has room."""
        core = self.core
        cycle = -1
        for _ in range(len(core.insns)):
            index, visible = yield from self.buffer.get()
            queue = core.units[core.insns[index].unit].queue
            room = yield from queue.room()
            cycle = max(cycle + 1, visible, room)
            yield core.env.timeout(cycle - core.env.now)
            queue.put(index, cycle)
            self.buffer.taken(cycle)
