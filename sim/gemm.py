"""The tensor core: one iteration a cycle, always."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..isa.insn import Gemm as GemmInsn
from ..isa.opcodes import Unit
from .timing import GEMM_DEPTH
from .unit import UnitProcess


class Gemm(UnitProcess):
    """Runs GEMM instructions."""

    unit = Unit.GEMM

    def run(self) -> Generator[Any, Any, None]:
        """Take an instruction in the cycle of the last iteration of the one before, or later."""
        ready = 0
        while True:
            taken = yield from self.take()
            assert isinstance(taken.insn, GemmInsn)
            start = max(ready, taken.earliest)
            yield from self.start(taken, start)
            self.account.wait(start, taken.visible, taken.tokens)
            if start == self.account.cursor:
                self.account.add("busy", 1)
            ready = start + taken.insn.iterations
            self.account.add("busy", taken.insn.iterations)
            self.end(taken, ready + GEMM_DEPTH)
