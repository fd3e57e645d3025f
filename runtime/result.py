"""The result of a simulation, in the same form from every simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..isa.regmap import CAUSES
from ..isa.status import Status

#: The causes of a run whose simulator does not record them.
NO_CAUSES = np.zeros((0, len(CAUSES)), np.int64)


@dataclass(frozen=True, eq=False)
class SimResult:
    """The outcome of one program.

    Attributes
    ----------
    status : how the core stopped
    error_index : the instruction that stopped it, or None
    cycles : from the start until the core reports that it has stopped
    starts, ends : per instruction in program order, the cycles of its start and its end; -1 where
        that did not happen
    counters : unit, cause, cycles (see docs/timing.md); the causes of a unit sum to ``cycles``
    causes : int64 [instructions, causes]: for each instruction, the cycles of its unit by cause
        (``CAUSES``) since the unit's instruction before it, so that a layer's stalls are the sums
        over its instructions; no rows if the simulator does not record them
    scratchpads : name to uint8 [depth, bytes of an entry]
    report : for a deadlock, who waits for whom at which instruction; else empty
    wall_s : seconds that the simulation took
    """

    status: Status
    error_index: int | None
    cycles: int
    starts: list[int]
    ends: list[int]
    counters: dict[str, dict[str, int]]
    causes: np.ndarray = field(repr=False)
    scratchpads: dict[str, np.ndarray] = field(repr=False)
    report: str
    wall_s: float


def join(results: Sequence[SimResult]) -> SimResult:
    """Join the results of programs that ran one after the other. A single result stays as it is."""
    if len(results) == 1:
        return results[0]
    starts: list[int] = []
    ends: list[int] = []
    counters: dict[str, dict[str, int]] = {}
    before = 0
    for result in results:
        starts += [before + start for start in result.starts]
        ends += [before + end for end in result.ends]
        before += result.cycles
        for unit, causes in result.counters.items():
            total = counters.setdefault(unit, {})
            for cause, cycles in causes.items():
                total[cause] = total.get(cause, 0) + cycles
    return replace(
        results[-1],
        cycles=before,
        starts=starts,
        ends=ends,
        counters=counters,
        causes=np.concatenate([result.causes for result in results]),
        wall_s=sum(result.wall_s for result in results),
    )
