"""The memory side: bursts of strided transfers, the arbiter of the read port, and both channels of
the memory.

Data return in request order and receivers pace themselves by rules that are known when a burst is
granted, so the whole schedule of a burst is a formula: the model's cost is per burst, not per beat.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import simpy

from ..isa.insn import Load, Store
from ..isa.memory import MemoryParams
from ..isa.params import HwParams

PAGE_BYTES = 4096


def cut_bursts(address: int, size: int, params: HwParams) -> Iterator[int]:
    """Beats of every burst of a row: at most the longest burst, never across a 4 KiB boundary."""
    bus = params.bus_bytes
    word, left = address // bus, (address + size - 1) // bus - address // bus + 1
    page = PAGE_BYTES // bus
    while left:
        beats = min(left, params.max_burst_beats, page - word % page)
        yield beats
        word, left = word + beats, left - beats


def row_addresses(insn: Load | Store) -> Iterator[tuple[int, int, int]]:
    """(plane, row, byte address) of every row that moves, in order; addresses wrap as the
    hardware's do.
    """
    for z in range(insn.z_size):
        for y in range(insn.y_size):
            address = insn.dram_addr + z * insn.z_stride + y * insn.y_stride
            yield z, y, address & 0xFFFFFFFF


@dataclass(frozen=True)
class Receiver:
    """How the receiver of a burst paces it: from cycle ``ready`` on, a beat every
    ``beat_cycles``."""

    ready: int
    beat_cycles: int


class ReadArbiter:
    """Grants the read port to fetch before load, and plays the memory's read channel."""

    def __init__(self, env: simpy.Environment, memory: MemoryParams):
        self.env, self.memory = env, memory
        self.pending: dict[str, tuple[int, int, Receiver, simpy.Event]] = {}
        self.wake = env.event()
        self.free = 0
        self.finished: list[int] = []
        self.next_beat = 0
        env.process(self.run())

    def request(self, client: str, cycle: int, beats: int, receiver: Receiver) -> simpy.Event:
        """Present a burst from ``cycle`` on. The event's value, in the cycle of the grant, is
        (grant, first beat, last beat)."""
        granted = self.env.event()
        self.pending[client] = (cycle, beats, receiver, granted)
        if not self.wake.triggered:
            self.wake.succeed()
        return granted

    def run(self) -> Generator[Any, Any, None]:
        """Grant one request after another."""
        while True:
            if not self.pending:
                self.wake = self.env.event()
                yield self.wake
            grant = max(self.free, min(cycle for cycle, *_ in self.pending.values()))
            if grant > self.env.now:
                yield self.env.timeout(grant - self.env.now)
            client = next(
                name
                for name in ("fetch", "load")
                if name in self.pending and self.pending[name][0] <= grant
            )
            _, beats, receiver, granted = self.pending.pop(client)
            first, last = self._transfer(grant, beats, receiver)
            granted.succeed((grant, first, last))
            # The client may present its next burst in this cycle's name only from the next one on.
            yield self.env.timeout(0)

    def _transfer(self, grant: int, beats: int, receiver: Receiver) -> tuple[int, int]:
        memory = self.memory
        accepted = grant + 1
        if len(self.finished) >= memory.outstanding:
            accepted = max(accepted, self.finished[-memory.outstanding] + 1)
        self.free = accepted
        first = max(accepted + memory.read_latency_cycles, self.next_beat, receiver.ready)
        last = first + (beats - 1) * max(memory.cycles_per_beat, receiver.beat_cycles)
        self.finished.append(last)
        self.next_beat = last + memory.cycles_per_beat
        return first, last


class WriteChannel:
    """The memory's write channels; the store unit is the only client."""

    def __init__(self, memory: MemoryParams):
        self.memory = memory
        self.answered: list[int] = []
        self.next_beat = 0

    def accept(self, cycle: int) -> int:
        """The cycle in which an address presented from ``cycle`` on is accepted."""
        if len(self.answered) >= self.memory.outstanding:
            return max(cycle, self.answered[-self.memory.outstanding] + 1)
        return cycle

    def transfer(self, valid: int, beats: int, beat_cycles: int) -> tuple[int, int]:
        """Cycles of the last beat and of the response of a burst whose first beat is valid from a
        cycle on.
        """
        memory = self.memory
        first = max(valid, self.next_beat)
        last = first + (beats - 1) * max(memory.cycles_per_beat, beat_cycles)
        self.next_beat = last + memory.cycles_per_beat
        before = self.answered[-1] + 1 if self.answered else 0
        self.answered.append(max(last + memory.write_latency_cycles, before))
        return last, self.answered[-1]
