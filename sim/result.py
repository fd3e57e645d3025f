"""What a run of the machine tells: the same fields from the SimPy model and from the RTL."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..isa.status import Status


@dataclass
class RunResult:
    """One run of one program.

    Attributes
    ----------
    status : Status
        Why the core stopped.
    error_index : int or None
        The instruction in program order that stopped it; None where no instruction did.
    cycles : int
        Cycles of the run, from the first one in which the core runs to the report of its end.
    starts, ends : list of int
        Per instruction in program order, the cycle in which its unit took it and the cycle in which
        its tokens were pushed; -1 for never.
    counters : dict of dict
        Of each unit (``load``, ``gemm``, ``vector``, ``store``), cycles by cause; causes without a
        cycle are left out. They add up to ``cycles`` when the status is DONE.
    scratchpads : dict of numpy.ndarray
        uint8 [depth, bytes of an entry] by name; empty if values were not simulated.
    deadlock : str
        Who waits for whom, at which instruction; empty without a deadlock.
    wall_s : float
        Seconds that the run took.
    """

    status: Status
    error_index: int | None
    cycles: int
    starts: list[int]
    ends: list[int]
    counters: dict[str, dict[str, int]]
    scratchpads: dict[str, np.ndarray] = field(default_factory=dict)
    deadlock: str = ""
    wall_s: float = 0.0
