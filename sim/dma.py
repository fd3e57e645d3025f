"""The memory side: bursts of strided transfers, the arbiter of the read port, and both channels of
the memory.

Data return in request order and receivers pace themselves by rules that are known when a burst is
granted, so the whole schedule of a burst is a formula: the model's cost is per burst, not per beat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import simpy

from ..isa.insn import Load, Store
from ..isa.memory import MemoryParams
from ..isa.params import HwParams

PAGE_BYTES = 4096
#: Rows and plans of transfers that are kept; programs repeat few.
CACHED = 1 << 14
#: Later than every cycle.
NEVER = 1 << 62


class Rows(NamedTuple):
    """The rows of a transfer as far as bursts depend on them: strides and the address of the first
    modulo a page."""

    address: int
    row_bytes: int
    y_size: int
    z_size: int
    y_stride: int
    z_stride: int
    bus_bytes: int
    max_burst_beats: int

    @classmethod
    def of(cls, insn: Load | Store, row_bytes: int, params: HwParams) -> Rows:
        """The rows of an instruction."""
        return cls(
            insn.dram_addr % PAGE_BYTES, row_bytes, insn.y_size, insn.z_size,
            insn.y_stride % PAGE_BYTES, insn.z_stride % PAGE_BYTES,
            params.bus_bytes, params.max_burst_beats,
        )  # fmt: skip

    def bursts(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(row of its plane, beats of every burst) of every row, planes in order."""
        for z in range(self.z_size):
            for y in range(self.y_size):
                address = self.address + z * self.z_stride + y * self.y_stride
                offset, longest = address % PAGE_BYTES, self.max_burst_beats
                yield y, cut_bursts(offset, self.row_bytes, self.bus_bytes, longest)


@lru_cache(maxsize=CACHED)
def cut_bursts(
    offset: int, size_bytes: int, bus_bytes: int, max_burst_beats: int
) -> tuple[int, ...]:
    """Beats of every burst of a row at an offset in its page: at most the longest burst, never
    across a 4 KiB boundary."""
    word, end = offset // bus_bytes, (offset + size_bytes - 1) // bus_bytes + 1
    page = PAGE_BYTES // bus_bytes
    bursts = []
    while word < end:
        bursts.append(min(end - word, max_burst_beats, page - word % page))
        word += bursts[-1]
    return tuple(bursts)


@dataclass(slots=True)
class Transfer:
    """Bursts that a client of the read port asks for, one after another.

    Attributes
    ----------
    present : the next burst is presented from this cycle on
    pieces : per burst, cycles that the receiver needs before it (padding), and cycles from its
        first beat to its last
    ready : the receiver takes the next beat from this cycle on
    beat_cycles : how long a beat occupies the receiver
    done : called with the cycle of the last grant and ``ready`` behind the last beat
    position : bursts granted
    """

    present: int
    pieces: tuple[tuple[int, int], ...]
    ready: int
    beat_cycles: int
    done: Callable[[int, int], None]
    position: int = 0


class ReadArbiter:
    """Grants the read port to fetch before load, and plays the memory's read channel.

    It decides when every process waits. Then whatever a client that presents nothing presents next
    is a consequence of the grant, and lies behind it. SimPy's clock counts these decisions.
    """

    def __init__(self, env: simpy.Environment, memory: MemoryParams):
        self.env, self.memory = env, memory
        self.fetch: Transfer | None = None
        self.load: Transfer | None = None
        self.deciding = False
        #: The next grant is possible from this cycle on, and the next beat.
        self.free = self.next_beat = 0
        #: Last beats of the latest bursts; the memory accepts one when the first has finished.
        self.last_beats = deque([-1] * memory.outstanding, maxlen=memory.outstanding)

    def request_fetch(self, transfer: Transfer) -> None:
        """Fetch presents bursts."""
        self.fetch = transfer
        self._decide_soon()

    def request_load(self, transfer: Transfer) -> None:
        """Load presents bursts."""
        self.load = transfer
        self._decide_soon()

    def _decide_soon(self) -> None:
        if not self.deciding:
            self.deciding = True
            self.env.timeout(1).callbacks.append(self._decide)

    def _decide(self, _event: simpy.Event) -> None:
        """Grant bursts until one client is done, which lets others move."""
        self.deciding = False
        fetch, load = self.fetch, self.load
        if load is not None and self._grant(load, NEVER if fetch is None else fetch.present):
            self.load = None
        elif fetch is not None:
            self.fetch = None
            self._grant(fetch, NEVER)
        if self.load is not None or self.fetch is not None:
            self._decide_soon()

    def _grant(self, transfer: Transfer, before: int) -> bool:
        """Grant the bursts of a client whose turn comes before a cycle; whether these were all."""
        latency, spacing = self.memory.read_latency_cycles, self.memory.cycles_per_beat
        last_beats, next_beat, ready = self.last_beats, self.next_beat, transfer.ready
        granted = -1
        grant = max(transfer.present, self.free)
        for padding, span in transfer.pieces[transfer.position :]:
            if grant >= before:
                break
            transfer.position += 1
            granted = grant
            # Accepted, and the first cycle of the next grant. (Here max() would cost half of all.)
            grant = 1 + (grant if grant > last_beats[0] else last_beats[0])
            ready += padding
            first = grant + latency if grant + latency > ready else ready
            last = span + (first if first > next_beat else next_beat)
            last_beats.append(last)
            next_beat = last + spacing
            ready = last + transfer.beat_cycles
        if granted >= 0:
            self.free, self.next_beat = grant, next_beat
            transfer.present, transfer.ready = granted + 1, ready
        if transfer.position < len(transfer.pieces):
            return False
        transfer.done(granted, ready)
        return True


class WriteChannel:
    """The memory's write channels; the store unit is the only client."""

    def __init__(self, memory: MemoryParams):
        self.memory = memory
        self.next_beat = 0
        #: Answers of the latest bursts; the memory accepts one when the first has finished.
        self.answers = deque([-1] * memory.outstanding, maxlen=memory.outstanding)

    def accept(self, cycle: int) -> int:
        """The cycle in which an address presented from ``cycle`` on is accepted."""
        return max(cycle, self.answers[0] + 1)

    def transfer(self, valid: int, beats: int, beat_cycles: int) -> tuple[int, int]:
        """Cycles of the last beat and of the response of a burst whose first beat is valid from a
        cycle on.
        """
        memory = self.memory
        first = max(valid, self.next_beat)
        last = first + (beats - 1) * max(memory.cycles_per_beat, beat_cycles)
        self.next_beat = last + memory.cycles_per_beat
        self.answers.append(max(last + memory.write_latency_cycles, self.answers[-1] + 1))
        return last, self.answers[-1]
