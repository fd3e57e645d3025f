"""DRAM to scratchpads: one half requests bursts, running ahead by whole instructions; the other
places what arrives.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from ...isa.opcodes import LOADABLE, Opcode, Unit
from ...isa.params import HwParams
from ...isa.timing import LOAD_END
from .dma import Kinds, Pieces, ReadPort, Rows
from .shared import Shared
from .unit import UnitProcess


class Load(UnitProcess):
    """Runs LOAD instructions. A step models the requesting half; the cycles of the placing half
    follow from the grants.
    """

    unit = Unit.LOAD

    def __init__(self, shared: Shared):
        super().__init__(shared)
        self.plans = plans(shared).each()
        self.busy = np.array([plan.busy for plan in self.plans], np.int64)
        self.port = shared.arbiter.load = ReadPort(self._arrived)
        #: For each instruction that waits for the last grant of the one before, the cycle from
        #: which it could start. The first is under way.
        self.begun: deque[int] = deque()
        #: The placing half is idle from this cycle on.
        self.idle = 0
        in_flight = shared.params.loads_in_flight
        #: When the latest descriptors were taken, which frees their slots.
        self.taken = deque([-1] * in_flight, maxlen=in_flight)

    def step(self, number: int, cycle: int) -> None:
        """Take an instruction when the last burst of the one before is granted."""
        self.begun.append(cycle)
        if len(self.begun) == 1:
            self._request()

    def _request(self) -> None:
        """Take the first instruction of those that can begin; the placing half takes its descriptor
        when it is idle."""
        start = max(self.ready, self.begun[0], self.taken[0] + 1)
        plan = self.plans[len(self.queue.left)]
        self.queue.left.put(start)
        taken = max(self.idle, start + 1)
        self.taken.append(taken)
        self.port.request(start + 1, plan.pieces, taken + 1, plan.beat_cycles)

    def _arrived(self, grant: int, ready: int) -> None:
        number = len(self.ends)
        self.busy[number] -= self.port.overlaps
        self.port.overlaps = 0
        self.ready = grant + 1
        self.idle = ready + self.plans[number].behind
        self.end(number, self.idle - 1 + LOAD_END)
        self.begun.popleft()
        if self.begun:
            self._request()


class Plan(NamedTuple):
    """What a LOAD costs, wherever it starts.

    Attributes
    ----------
    pieces : its bursts
    behind : cycles of padding after the last burst
    busy : cycles in which the placing half has a beat or a padding entry, if a beat never comes
        together with padding
    beat_cycles : cycles that a beat occupies the placing half
    """

    pieces: Pieces
    behind: int
    busy: int
    beat_cycles: int


def plans(shared: Shared) -> Kinds[Plan]:
    """What the LOADs of a program cost."""
    params, fields = shared.params, shared.table.columns(Opcode.LOAD)
    entry_bytes = np.array([params.entry_bytes(name) for name in LOADABLE])[fields["memory"]]
    entry_bytes = np.where(fields["widen"], params.block_out, entry_bytes)
    pads = [fields[f"pad_{side}"] for side in ("top", "bottom", "left", "right")]

    def make(*row: int) -> Plan:
        return plan(Rows(*row[:6]), row[6:10], row[10], params, shared.memory.cycles_per_beat)

    rows = np.concatenate([Rows.of(fields), np.stack([*pads, entry_bytes], 1)], axis=1)
    return Kinds(make, rows)


def plan(
    rows: Rows, pads: tuple[int, ...], entry_bytes: int, params: HwParams, cycles_per_beat: int
) -> Plan:
    """What a LOAD with padding (top and bottom in rows, left and right in entries) costs."""
    top, bottom, left, right = pads
    row_entries = left + rows.x_size + right
    beat_cycles = max(1, params.bus_bytes // entry_bytes)
    # If an entry takes several beats, the first may come while the padding left of it is written.
    beside = left if entry_bytes > params.bus_bytes else 0
    if not rows.y_size:
        padding = rows.z_size * (top + bottom) * row_entries
        return Plan((), padding, padding, beat_cycles)
    pieces: list[tuple[int, int, int]] = []
    padding = busy = 0
    for y, bursts in rows.bursts(entry_bytes, params):
        padding += left - beside + (top * row_entries if y == 0 else 0)
        for number, beats in enumerate(bursts):
            first = beside if number == 0 else 0
            pieces.append((padding, first, (beats - 1) * max(beat_cycles, cycles_per_beat)))
            busy += padding + first + beats * beat_cycles
            padding = 0
        padding = right + (bottom * row_entries if y == rows.y_size - 1 else 0)
    return Plan(tuple(pieces), padding, busy + padding, beat_cycles)
