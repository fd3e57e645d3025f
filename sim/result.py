"""What a simulation tells, whichever simulator made it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..isa.status import Status


@dataclass(frozen=True, eq=False)
class SimResult:
    """The outcome of one program.

    Attributes
    ----------
    status : how the core stopped
    error_index : the instruction that stopped it, or None
    cycles : from the start to the report that it stopped
    starts, ends : per instruction in program order, the cycles of its start and its end; -1 where
        that did not happen
    counters : unit, cause, cycles (see docs/timing.md); the causes of a unit sum to ``cycles``
    causes : per instruction, its unit's cycles by cause since the one before it (a layer's stalls
        are their sums); empty where the simulator does not know
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
    causes: list[dict[str, int]] = field(repr=False)
    scratchpads: dict[str, np.ndarray] = field(repr=False)
    report: str
    wall_s: float
