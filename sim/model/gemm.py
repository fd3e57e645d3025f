"""The tensor core: one iteration a cycle, always."""

from __future__ import annotations

from ...isa.opcodes import Opcode, Unit
from ...isa.timing import GEMM_DEPTH
from .shared import Shared
from .unit import UnitProcess


class Gemm(UnitProcess):
    """Runs GEMM instructions."""

    unit = Unit.GEMM
    drain = GEMM_DEPTH

    def __init__(self, shared: Shared):
        super().__init__(shared)
        fields = shared.program.columns(Opcode.GEMM)
        self.busy = fields["outer"] * fields["inner"] * fields["uop_count"]
        self.iterations = self.busy.tolist()

    def step(self, number: int, cycle: int) -> None:
        """Take an instruction in the cycle of the last iteration of the one before, or later."""
        start = max(self.ready, cycle)
        self.queue.left.put(start)
        self.ready = start + self.iterations[number]
        self.end(number, self.ready + GEMM_DEPTH)
