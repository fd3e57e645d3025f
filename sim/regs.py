"""Accounting: why every cycle of a unit passed, as the core's counters tell it
(``docs/timing.md``).
"""

from __future__ import annotations

from ..isa.opcodes import Unit
from ..isa.regmap import CAUSES, STALL_NAMES


class Account:
    """Cycles of one unit by cause; cycles before ``cursor`` are accounted for."""

    def __init__(self, unit: Unit):
        self.unit = unit
        self.cycles = dict.fromkeys(CAUSES, 0)
        self.cursor = 0

    def wait(self, until: int, visible: int, tokens: dict[Unit, int]) -> None:
        """Account for the cycles up to ``until`` (exclusive) in which the unit could have started
        an instruction that was at the head of its queue from ``visible``, and whose tokens could be
        taken from the given cycles."""
        if until <= self.cursor:
            return
        first = max(self.cursor, visible)
        self.cycles["empty"] += min(first, until) - self.cursor
        # The lowest-numbered unit whose token is missing is the cause.
        for other in Unit:
            available = tokens.get(other, 0)
            if available > first:
                self.cycles[f"token_{other.name.lower()}"] += min(available, until) - first
                first = min(available, until)
        self.cursor = until

    def add(self, cause: str, cycles: int) -> None:
        """Cycles of a cause, from the cursor on."""
        self.cycles[cause] += cycles
        self.cursor += cycles

    def finish(self, cycles: int) -> dict[str, int]:
        """Counters at the end of a run, named as reports name them."""
        self.cycles["empty"] += cycles - self.cursor
        name = self.unit.name.lower()
        return {
            STALL_NAMES[name] if cause == "stalled" else cause: count
            for cause, count in self.cycles.items()
        }
