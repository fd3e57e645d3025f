"""DRAM to scratchpads: one half requests bursts, running ahead by whole instructions; the other
places what arrives.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ..isa.insn import Load as LoadInsn
from ..isa.opcodes import Unit
from .dma import CACHED, Rows, Transfer
from .queue import History, Need, Queue
from .timing import LOAD_END
from .unit import UnitProcess

if TYPE_CHECKING:
    from .core import Core


class Plan(NamedTuple):
    """What a LOAD costs, wherever it starts.

    Attributes
    ----------
    pieces : per burst, cycles of padding before it, and cycles from its first beat to its last
    behind : cycles of padding behind the last burst
    busy : cycles in which the placing half has a beat or a padding entry
    beat_cycles : cycles that a beat occupies the placing half
    """

    pieces: tuple[tuple[int, int], ...]
    behind: int
    busy: int
    beat_cycles: int


class Load(UnitProcess):
    """Runs LOAD instructions. A step is the requesting half's; the placing half's cycles follow
    from the grants."""

    unit = Unit.LOAD

    def __init__(self, core: Core):
        super().__init__(core)
        #: Descriptors on their way to the placing half.
        self.waiting = Queue(core.env, core.params.loads_in_flight)
        #: The last grant of each instruction.
        self.granted = History(core.env)
        #: The placing half is idle from this cycle on.
        self.idle = 0
        self.plans = [self._plan(insn) for insn in self.insns]

    def _plan(self, insn: LoadInsn) -> Plan:
        entry_bytes = insn.dram_entry_bytes(self.params)
        rows = Rows.of(insn, insn.x_size * entry_bytes, self.params)
        pads = insn.pad_top, insn.pad_bottom, insn.pad_left, insn.pad_right
        beat_cycles = max(1, self.params.bus_bytes // entry_bytes)
        return plan(rows, pads, insn.row_entries, beat_cycles, self.core.memory.cycles_per_beat)

    def busy(self) -> list[int]:
        return [plan.busy for plan in self.plans]

    def slots(self, number: int) -> tuple[Need, ...]:
        before = ((self.granted, number - 1),) if number else ()
        return (*before, *self.waiting.room(number))

    def step(self, number: int, cycle: int) -> None:
        """Take an instruction when the last burst of the one before is granted; the placing half
        takes the descriptor when it is idle."""
        self.queue.left.put(cycle)
        taken = max(self.idle, cycle + 1)
        self.waiting.left.put(taken)
        plan = self.plans[number]

        def arrived(grant: int, ready: int) -> None:
            self.idle = ready + plan.behind
            self.end(number, self.idle - 1 + LOAD_END)
            self.granted.put(grant)

        if plan.pieces:
            self.core.arbiter.request_load(
                Transfer(cycle + 1, plan.pieces, taken + 1, plan.beat_cycles, arrived)
            )
        else:
            arrived(cycle, taken + 1)


@lru_cache(maxsize=CACHED)
def plan(
    rows: Rows,
    pads: tuple[int, int, int, int],
    row_entries: int,
    beat_cycles: int,
    cycles_per_beat: int,
) -> Plan:
    """What a LOAD with padding (top, bottom, left, right; in rows and entries) costs."""
    top, bottom, left, right = pads
    if not rows.y_size:
        padding = rows.z_size * (top + bottom) * row_entries
        return Plan((), padding, padding, beat_cycles)
    pieces: list[tuple[int, int]] = []
    padding = busy = 0
    for y, bursts in rows.bursts():
        padding += left + (top * row_entries if y == 0 else 0)
        for beats in bursts:
            pieces.append((padding, (beats - 1) * max(beat_cycles, cycles_per_beat)))
            busy += padding + beats * beat_cycles
            padding = 0
        padding = right + (bottom * row_entries if y == rows.y_size - 1 else 0)
    return Plan(tuple(pieces), padding, busy + padding, beat_cycles)
