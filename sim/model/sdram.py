"""The memory side with an SDRAM: when each burst's data move, by the rules of ``docs/timing.md``.

The controller serves bursts in the order in which they arrive, and from then on it is known when
their data move. So the model orders arrivals, and computes the rest of a burst at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np

from ...isa.memory import MemoryParams
from ...isa.native import Ints, Table, native
from ...isa.sdram import (
    ANSWER_CYCLES,
    FIRST_DUE,
    HAND_CYCLES,
    PARTS,
    READ_BEAT,
    TAKE_CYCLES,
    ULX3S,
    Rules,
)
from ...isa.timing import STORE_BURSTS, STORE_DATA
from .dma import NEVER, ReadPort
from .queue import Environment

#: Of ``state``: when the half that opens rows handed over its latest segment or refreshed; the last
#: READ or WRITE, and the last READ; when the other half took the latest segment and the one before;
#: from when on a command to a closed row is possible; when the next refresh is owed.
_HANDED, _MOVED, _READ, _TAKEN, _TAKEN_BEFORE, _OPENABLE, _DUE = range(7)
#: Of ``rules``: the fields of ``Rules``, then the beats of a row.
(BEAT, _OPEN_TO_MOVE, _OPEN_TO_CLOSE, _READ_TO_CLOSE, _WRITE_TO_CLOSE, _READ_TO_WRITE,
 _CLOSE_TO_OPEN, _REFRESH_TO_OPEN, _REFRESH, _ROW_BEATS) = range(10)  # fmt: skip
#: Of ``segments``: the cycle of the first READ or WRITE, and beats.
_FIRST, _BEATS = range(2)
#: Of ``received``: when the first beat was valid, transferred; the last beat; from when on the
#: receiver takes another; whether the first beat came together with padding.
VALID, FIRST_BEAT, LAST_BEAT, READY, BESIDE = range(5)
#: No burst has more segments.
_MOST_SEGMENTS = 16


@native
def schedule(
    state: Ints, rows: Ints, closable: Ints, rules: Ints, segments: Table,
    arrival: int, word: int, beats: int, writes: int,
) -> int:  # fmt: skip
    """When the data of a burst move that arrives in a cycle: fill ``segments``, return their
    number. ``rows`` has the open row of each bank or -1, ``closable`` from when on it may be
    closed.
    """
    count = 0
    while beats > 0:
        now = max(arrival + TAKE_CYCLES, state[_HANDED] + 1)
        while state[_DUE] <= now:
            closes = max(max(state[_DUE], state[_HANDED] + 1), state[_OPENABLE])
            for bank in range(len(rows)):
                closes = max(closes, closable[bank])
                rows[bank] = -1
            state[_HANDED] = closes + rules[_CLOSE_TO_OPEN]
            state[_OPENABLE] = state[_HANDED] + rules[_REFRESH_TO_OPEN]
            state[_DUE] += rules[_REFRESH]
            now = max(now, state[_HANDED] + 1)
        place = word // rules[_ROW_BEATS]
        bank = place % len(rows)
        row = place // len(rows)
        here = min(beats, rules[_ROW_BEATS] - word % rules[_ROW_BEATS])
        if rows[bank] != row:
            if rows[bank] >= 0:
                state[_OPENABLE] = max(now, closable[bank]) + rules[_CLOSE_TO_OPEN]
            now = max(now, state[_OPENABLE])
            closable[bank] = now + rules[_OPEN_TO_CLOSE]
            rows[bank] = row
            now += 1
        handed = max(now, state[_TAKEN_BEFORE] + 1)
        state[_TAKEN_BEFORE] = state[_TAKEN]
        state[_TAKEN] = max(handed + 1, state[_MOVED])
        first = max(handed + HAND_CYCLES, state[_MOVED] + rules[BEAT])
        if writes:
            first = max(first, state[_READ] + rules[_READ_TO_WRITE])
        last = first + (here - 1) * rules[BEAT]
        closes = last + rules[_READ_TO_CLOSE]
        if writes:
            closes = last + rules[_WRITE_TO_CLOSE]
        else:
            state[_READ] = last
        closable[bank] = max(closable[bank], closes)
        state[_HANDED] = handed
        state[_MOVED] = last
        segments[count, _FIRST] = first
        segments[count, _BEATS] = here
        word += here
        beats -= here
        count += 1
    return count


@native
def answer_cycle(segments: Table, count: int, rules: Ints) -> int:
    """When a write of so many segments is answered."""
    last = segments[count - 1, _FIRST] + (segments[count - 1, _BEATS] - 1) * rules[BEAT]
    return last + ANSWER_CYCLES


@native
def receive(
    segments: Table, count: int, beat: int, ready: int, beside: int, beat_cycles: int, free: int,
    received: Ints,
):  # fmt: skip
    """When the beats of a read are transferred: a beat is not before it is valid, its receiver is
    ready, and the bus is free. ``beside`` are cycles of padding during which the first may come."""
    valid = segments[0, _FIRST] + READ_BEAT
    first = max(max(valid, ready), free)
    received[VALID] = valid
    received[FIRST_BEAT] = first
    received[BESIDE] = 0
    if first < ready + beside:
        received[BESIDE] = 1
    last = first
    ready = max(first + beat_cycles, ready + beside)
    for number in range(count):
        valid = segments[number, _FIRST] + READ_BEAT
        more = segments[number, _BEATS] - 1
        if number == 0:
            valid += beat
            more -= 1
        if more >= 0:
            last = max(max(valid, ready) + more * beat_cycles, valid + more * beat)
            ready = last + beat_cycles
    received[LAST_BEAT] = last
    received[READY] = ready


def controller(memory: MemoryParams) -> tuple[np.ndarray, ...]:
    """``state``, ``rows``, ``closable``, ``rules`` and ``segments`` when the core starts."""
    part = PARTS[memory.part or ULX3S]  # without a part the loop takes them, and leaves them alone
    rules = [getattr(part.rules, field.name) for field in fields(Rules)]
    state = np.full(7, -NEVER // 2, np.int64)
    state[_HANDED], state[_DUE] = 0, FIRST_DUE
    state[_OPENABLE] = part.rules.refresh_to_open
    banks = 1 << part.bank_bits
    return (
        state, np.full(banks, -1, np.int64), np.zeros(banks, np.int64),
        np.array([*rules, part.row_beats], np.int64), np.zeros((_MOST_SEGMENTS, 2), np.int64),
    )  # fmt: skip


class SdramArbiter:
    """Grants the read port, to fetch before load, and models both channels of the memory.

    It decides only when every process waits, and then in the order in which things happen: what
    follows from one of them happens later.
    """

    def __init__(self, env: Environment, memory: MemoryParams):
        self.env, self.memory = env, memory
        self.fetch: ReadPort
        self.load: ReadPort
        self.controller = controller(memory)
        self.received = np.zeros(5, np.int64)
        #: First cycle in which the next grant is possible, and the same for the next beat read.
        self.free = self.next_beat = 0
        #: Last beats of the latest reads; a read is accepted when the oldest has finished.
        self.last_beats = deque([-1] * memory.outstanding, maxlen=memory.outstanding)
        #: The read that was granted and has not arrived: when it does, its port, the first word of
        #: its page, what it is, whether it is the last.
        self.held: tuple[int, ReadPort, int, tuple[int, int, int, int], bool] | None = None
        #: The latest arrival.
        self.arrived = -1
        self.sent: Callable[[int], None]
        self.answered: Callable[[int], None]
        #: Bursts of the STORE whose data are not sent yet; when the next is presented; the page;
        #: cycles of a beat.
        self.unsent: deque[tuple[int, int]] = deque()
        self.present = self.page = self.step = 0
        #: Writes that are complete, in order, and have not arrived: the cycle of the last beat, the
        #: first word, beats, whether it is its STORE's last.
        self.complete: deque[tuple[int, int, int, bool]] = deque()
        self.next_data = self.sent_bursts = 0
        self.answers: list[int] = []

    def decide(self) -> bool:
        """Let happen what is next until that wakes a process; return whether it did."""
        while not self.env.triggered:
            port, reads = self.load, NEVER
            if self.held:
                reads = self.held[0]
            else:
                if self.fetch.present <= max(self.load.present, self.free):
                    port = self.fetch
                if port.present < NEVER:
                    reads = max(port.present, self.free)
            writes = NEVER
            if self.complete:
                writes = max(self.complete[0][0], self.arrived) + 1
            if writes < reads:
                self._write(writes)
            elif self.held:
                self._read(*self.held)
            elif reads < NEVER:
                self._grant(port, reads)
            else:
                return False
        return True

    def _grant(self, port: ReadPort, cycle: int) -> None:
        """Grant the next burst of a port."""
        self.free = 1 + max(cycle, self.last_beats[0])
        ends = len(port.pieces) == 1
        self.held = self.free, port, port.page, port.pieces[0], ends
        port.pieces, port.present = port.pieces[1:], cycle + 1
        if ends:
            port.present = NEVER
            port.granted(cycle)

    def _schedule(self, cycle: int, word: int, beats: int, writes: bool) -> int:
        """A burst arrives in a cycle; return the number of its segments."""
        self.arrived = cycle
        return schedule(*self.controller, cycle, word, beats, int(writes))

    def _read(
        self, cycle: int, port: ReadPort, page: int, piece: tuple[int, int, int, int], ends: bool
    ) -> None:
        """The read that was granted arrives."""
        self.held = None
        padding, beside, beats, word = piece
        count = self._schedule(cycle, page + word, beats, False)
        receive(
            self.controller[-1], count, self.memory.cycles_per_beat, port.ready + padding, beside,
            port.beat_cycles, self.next_beat, self.received,
        )  # fmt: skip
        port.valid, port.first, last, port.ready, beside = self.received.tolist()
        port.overlaps += beside
        self.last_beats.append(last)
        self.next_beat = last + 1
        if ends:
            port.received(port.ready)

    def send(self, present: int, page: int, pieces: Sequence[tuple[int, int]], step: int) -> None:
        """As of :meth:`~vdla.sim.model.dma.WriteChannel.send`."""
        self.unsent.extend(pieces)
        self.present, self.page, self.step = present, page, step
        self._send()

    def _send(self) -> None:
        """Send the data of bursts, as far as it is known when their addresses are accepted."""
        while self.unsent:
            freed = self.sent_bursts - min(self.memory.outstanding, STORE_BURSTS)
            if freed >= len(self.answers):
                return
            accepted = max(self.present, self.answers[freed] + 1 if freed >= 0 else 0)
            beats, word = self.unsent.popleft()
            first = max(accepted + STORE_DATA + self.step - 1, self.next_data)
            last = first + (beats - 1) * self.step
            self.complete.append((last, self.page + word, beats, not self.unsent))
            self.sent_bursts += 1
            self.next_data = self.present = last + 1
            if not self.unsent:
                self.sent(self.present)

    def _write(self, cycle: int) -> None:
        """A write that is complete arrives."""
        _, word, beats, ends = self.complete.popleft()
        count = self._schedule(cycle, word, beats, True)
        answer = answer_cycle(self.controller[-1], count, self.controller[-2])
        self.answers.append(answer)
        if ends:
            self.answered(answer)
        self._send()
