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
        self._before = dict(self.cycles)

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

    def since_last(self) -> dict[str, int]:
        """What was accounted for since the last call: the share of one instruction, named as in
        reports."""
        now, before = dict(self.cycles), self._before
        self._before = now
        return self._named({cause: now[cause] - before[cause] for cause in CAUSES})

    def finish(self, cycles: int) -> dict[str, int]:
        """Counters at the end of a run, named as reports name them."""
        self.cycles["empty"] += cycles - self.cursor
        return self._named(self.cycles)

    def _named(self, cycles: dict[str, int]) -> dict[str, int]:
        stalled = STALL_NAMES[self.unit.name.lower()]
        return {stalled if cause == "stalled" else cause: n for cause, n in cycles.items()}
