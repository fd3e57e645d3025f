"""The memory side: bursts of strided transfers, the arbiter of the read port, and both channels of
the memory.

Data returns in request order, and the rules by which a receiver takes beats are known when a burst
is granted. So a formula gives the whole schedule of a burst: the model's cost is per burst, not per
beat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from ...isa.memory import MemoryParams
from ...isa.params import HwParams
from ...isa.timing import STORE_BURSTS, STORE_DATA
from .queue import Environment

PAGE_BYTES = 4096
Made = TypeVar("Made")
#: Later than every cycle.
NEVER = 1 << 62

#: For each burst: cycles of padding before its first beat, cycles of padding during which its first
#: beat may already come, its beats, and its first word of the bus, counted from the beginning of
#: the page in which the transfer begins.
Pieces = tuple[tuple[int, int, int, int], ...]


class Rows(NamedTuple):
    """The rows of a transfer, as far as bursts depend on them: sizes, strides, and the first
    address modulo a page."""

    address: int
    y_stride: int
    z_stride: int
    x_size: int
    y_size: int
    z_size: int

    @classmethod
    def of(cls, fields: dict[str, np.ndarray]) -> np.ndarray:
        """The rows of instructions, int64 [instructions, 6]."""
        rest = ("y_stride", "z_stride", "x_size", "y_size", "z_size")
        return np.stack([fields["dram_addr"] % PAGE_BYTES, *(fields[name] for name in rest)], 1)

    def bursts(
        self, entry_bytes: int, params: HwParams
    ) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """For every row, plane by plane: its number in the plane, its first word of the bus, and
        the beats of each of its bursts."""
        bus_bytes, longest = params.bus_bytes, params.max_burst_beats
        for z in range(self.z_size):
            for y in range(self.y_size):
                at = self.address + z * self.z_stride + y * self.y_stride
                beats = cut_bursts(at % PAGE_BYTES, self.x_size * entry_bytes, bus_bytes, longest)
                yield y, at // bus_bytes, beats


def page_words(fields: dict[str, np.ndarray], params: HwParams) -> np.ndarray:
    """The first word of the bus of the page in which each transfer begins, int64 [transfers]."""
    return fields["dram_addr"] // PAGE_BYTES * (PAGE_BYTES // params.bus_bytes)


@lru_cache(maxsize=1 << 14)
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


class Kinds(Generic[Made]):
    """What instructions cost, made once for those that cost the same, because programs have many.

    Attributes
    ----------
    made : what ``make`` gives for each kind
    of : the kind of every instruction, int64 [their number]
    """

    def __init__(self, make: Callable[..., Made], arguments: np.ndarray):
        """``arguments`` of ``make`` are a row for each instruction, int64 [instructions, n]."""
        rows = np.ascontiguousarray(arguments)
        keys = rows.view(f"V{8 * rows.shape[1]}").reshape(-1).tolist()
        kinds: dict[bytes, int] = {}
        self.of = np.array([kinds.setdefault(key, len(kinds)) for key in keys], np.int64)
        first = np.unique(self.of, return_index=True)[1]
        self.made: list[Made] = [make(*row) for row in rows[first].tolist()]

    def each(self) -> list[Made]:
        """For every instruction what its kind has."""
        return [self.made[kind] for kind in self.of.tolist()]


class ReadPort:
    """A client's side of the arbiter: bursts that it presents, one after another.

    Attributes
    ----------
    present : the next burst is presented from this cycle on, ``NEVER`` if there is none
    pieces : the bursts left
    page : the word of the bus from which they count
    ready : the receiver takes the next beat from this cycle on
    beat_cycles : how long a beat occupies the receiver
    overlaps : beats that came together with padding since the client last set this to 0
    valid, first : when the first beat of the latest burst was valid, and when it was transferred
    granted : called with the cycle of the last grant
    received : called with the value of ``ready`` after the last beat
    """

    __slots__ = (
        "beat_cycles", "first", "granted", "overlaps", "page", "pieces", "present", "ready",
        "received", "valid",
    )  # fmt: skip

    def __init__(self, granted: Callable[[int], None], received: Callable[[int], None]):
        self.granted, self.received = granted, received
        self.present = NEVER
        self.pieces: Pieces = ()
        self.page = self.ready = self.overlaps = self.valid = self.first = 0
        self.beat_cycles = 1

    def request(self, present: int, page: int, pieces: Pieces) -> None:
        """Present bursts, at least one."""
        self.present, self.page, self.pieces = present, page, pieces


class ReadArbiter:
    """Grants the read port, to fetch before load, and models the memory's read channel.

    It decides only when every process waits. A client without a burst can then present its next one
    only as a consequence of a grant, and so after it.
    """

    def __init__(self, env: Environment, memory: MemoryParams):
        self.env, self.memory = env, memory
        self.fetch: ReadPort
        self.load: ReadPort
        #: First cycle in which the next grant is possible, and the same for the next beat.
        self.free = self.next_beat = 0
        #: Last beats of the latest bursts; the memory accepts a burst when the oldest has finished.
        self.last_beats = deque([-1] * memory.outstanding, maxlen=memory.outstanding)

    def decide(self) -> bool:
        """Grant bursts until a client that is done wakes a process; return whether one did."""
        fetch, load = self.fetch, self.load
        while load.present < NEVER or fetch.present < NEVER:
            if load.present == NEVER or not self._grant(load, fetch.present):
                self._grant(fetch, NEVER)
            if self.env.triggered:
                return True
        return False

    def _grant(self, port: ReadPort, before: int) -> bool:
        """Grant the bursts whose turn comes before a cycle; return whether these were all."""
        latency, spacing = self.memory.read_latency_cycles, self.memory.cycles_per_beat
        last_beats, next_beat = self.last_beats, self.next_beat
        ready, beat_cycles = port.ready, port.beat_cycles
        step = beat_cycles if beat_cycles > spacing else spacing
        grant, granted, count = max(port.present, self.free), port.present - 1, 0
        first = 0
        for padding, beside, beats, _ in port.pieces:
            if grant >= before:
                break
            granted = grant
            # Now the cycle in which the memory accepts the burst, and the first cycle of the next
            # grant. (max() would double the time of the whole loop.)
            grant = 1 + (grant if grant > last_beats[0] else last_beats[0])
            ready += padding
            first = grant + latency if grant + latency > ready else ready
            if next_beat > first:
                first = next_beat
            span = (beats - 1) * step
            last = first + span
            padded = ready + beside
            if first < padded:
                port.overlaps += 1
                if span:
                    last = max(last, padded + span - step)
            last_beats.append(last)
            next_beat = last + spacing
            ready = last + beat_cycles
            if padded > ready:
                ready = padded
            count += 1
        if count:
            self.free, self.next_beat = grant, next_beat
            port.ready, port.valid, port.first = ready, first, first
        if count < len(port.pieces):
            port.present, port.pieces = granted + 1, port.pieces[count:]
            return False
        port.present = NEVER
        port.granted(granted)
        port.received(ready)
        return True


class WriteChannel:
    """The memory's write channels; the store unit is the only client."""

    def __init__(self, memory: MemoryParams):
        self.memory = memory
        self.next_beat = 0
        #: Answers of the latest bursts. The next one is accepted when the oldest has finished: the
        #: memory takes no more, or the store unit does not present it.
        unanswered = min(memory.outstanding, STORE_BURSTS)
        self.answers = deque([-1] * unanswered, maxlen=unanswered)
        self.sent: Callable[[int], None]
        self.answered: Callable[[int], None]

    def send(self, present: int, page: int, pieces: Sequence[tuple[int, int]], step: int) -> None:
        """Send bursts of some beats to a first word, counted from a page's. The first address is
        presented from a cycle on; a beat is made in ``step`` cycles.

        ``sent`` is called with the cycle from which on the next could be presented, ``answered``
        with that of the last answer.
        """
        memory, answers = self.memory, self.answers
        for beats, _ in pieces:
            valid = max(present, answers[0] + 1) + STORE_DATA + step - 1
            last = max(valid, self.next_beat) + (beats - 1) * max(memory.cycles_per_beat, step)
            self.next_beat = last + memory.cycles_per_beat
            answers.append(max(last + memory.write_latency_cycles, answers[-1] + 1))
            present = last + 1
        self.answered(answers[-1])
        self.sent(present)
