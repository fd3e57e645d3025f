"""The tensor core: one iteration a cycle, always."""

from __future__ import annotations

import numpy as np

from ...isa.opcodes import Opcode, Unit
from ...isa.timing import GEMM_DEPTH
from .shared import Shared
from .unit import UnitProcess


class Gemm(UnitProcess):
    """Runs GEMM instructions."""

    unit = Unit.GEMM

    def __init__(self, shared: Shared):
        super().__init__(shared)
        self.busy = iterations(shared)
        self.iterations = self.busy.tolist()

    def step(self, number: int, cycle: int) -> None:
        """Take an instruction in the cycle of the last iteration of the one before, or later."""
        start = max(self.ready, cycle)
        self.queue.left.put(start)
        self.ready = start + self.iterations[number]
        self.end(number, self.ready + GEMM_DEPTH)


def iterations(shared: Shared) -> np.ndarray:
    """Of every GEMM of a program, int64 [their number]."""
    fields = shared.table.columns(Opcode.GEMM)
    return fields["outer"] * fields["inner"] * fields["uop_count"]
