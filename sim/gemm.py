"""The tensor core: one iteration a cycle, always."""

from __future__ import annotations

from ..isa.opcodes import Unit
from .timing import GEMM_DEPTH
from .unit import UnitProcess


class Gemm(UnitProcess):
    """Runs GEMM instructions."""

    unit = Unit.GEMM
    drain = GEMM_DEPTH
    ready = 0

    def busy(self) -> list[int]:
        return [insn.iterations for insn in self.insns]

    def step(self, number: int, cycle: int) -> None:
        """Take an instruction in the cycle of the last iteration of the one before, or later."""
        start = max(self.ready, cycle)
        self.queue.left.put(start)
        self.ready = start + self.insns[number].iterations
        self.end(number, self.ready + GEMM_DEPTH)
