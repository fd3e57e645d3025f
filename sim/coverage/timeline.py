"""What the starts, ends and counters of a run say: who waited for whom, and what ran at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ...isa.opcodes import Unit
from ...isa.program import Program
from ...runtime.result import SimResult
from .bins import name


@dataclass(frozen=True)
class Moments:
    """The timing of a run that has been written down."""

    starts: Sequence[int]
    ends: Sequence[int]
    counters: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Moments:
        """From the fields of a report."""
        return cls(fields["starts"], fields["ends"], fields["counters"])


#: When a program ran.
Timing: TypeAlias = SimResult | Moments


class Timeline:
    """A run in time.

    Parameters
    ----------
    program : Program
        What ran.
    timing : Timing
        When.
    """

    def __init__(self, program: Program, timing: Timing) -> None:
        self.insns, self.timing, self.params = program.insns, timing, program.params

    def waits(self) -> Iterator[str]:
        """For each instruction that starts in the cycle after a token's, the unit that gave it: the
        n-th pop of a unit from another takes the token of the n-th push.
        """
        given: dict[tuple[Unit, Unit], list[int]] = {}
        for index, insn in enumerate(self.insns):
            for other in Unit:
                if insn.push >> other & 1:
                    given.setdefault((insn.unit, other), []).append(self.timing.ends[index])
        taken = dict.fromkeys(given, 0)
        for index, insn in enumerate(self.insns):
            for other in Unit:
                if insn.pop >> other & 1:
                    pair = (other, insn.unit)
                    number = taken.get(pair, 0)
                    taken[pair] = number + 1
                    ends = given.get(pair, [])
                    if number < len(ends) and 0 <= ends[number] == self.timing.starts[index] - 1:
                        yield f"{name(insn.opcode)} for {name(other)}"

    def stalls(self) -> Iterator[str]:
        """Causes that any cycle had."""
        for unit, causes in self.timing.counters.items():
            yield from (f"{unit} {cause}" for cause, cycles in causes.items() if cycles)

    def overlap(self) -> Iterator[str]:
        """Sets of units that were in flight in one cycle, and how many instructions of one."""
        if not len(self.insns) or max(self.timing.ends) < 0:
            return
        sets, most = np.zeros(max(self.timing.ends) + 2, np.uint8), {}
        for unit in Unit:
            flying = self._in_flight(unit)
            sets |= (flying > 0).astype(np.uint8) << np.uint8(unit)
            most[unit] = int(flying.max())
        for units in np.unique(sets).tolist():
            if units:
                yield "+".join(name(unit) for unit in Unit if units >> unit & 1)
        yield from (f"two of {name(unit)}" for unit in Unit if most[unit] >= 2)
        if most[Unit.LOAD] > self.params.loads_in_flight:
            yield "the most of load"

    def _in_flight(self, unit: Unit) -> np.ndarray:
        """Instructions of a unit between start and end, both inclusive, by cycle."""
        size = max(self.timing.ends) + 2
        change = np.zeros(size, np.int32)
        for index, insn in enumerate(self.insns):
            if insn.unit == unit and self.timing.ends[index] >= 0:
                change[self.timing.starts[index]] += 1
                change[self.timing.ends[index] + 1] -= 1
        return np.cumsum(change, dtype=np.int32)
