"""Where the accelerator's programs run: on the SimPy model, on the RTL, or on a board."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..isa.program import Program
from ..isa.status import Status

if TYPE_CHECKING:
    from ..runtime.result import SimResult
    from .rtl.driver import RtlSimulator

#: Where the accelerator's programs run, and run alike.
PLACES = ("sim", "rtl", "fpga")


@dataclass(frozen=True)
class Runner:
    """An accelerator of a configuration with a memory behind it.

    ``place`` says where programs run: ``rtl`` is the RTL, and ``fpga`` is the board at the serial
    ``port``. Any other name, such as ``sim`` or a target of the user's own, is the SimPy model.
    """

    place: str
    params: HwParams
    memory: MemoryParams
    port: str | None = None

    @cached_property
    def _rtl(self) -> RtlSimulator:
        """The RTL of the configuration: elaborated once, it runs every program."""
        from .rtl.driver import RtlSimulator

        return RtlSimulator(self.params)

    def run(self, program: Program, dram: np.ndarray) -> SimResult:
        """Run a program and measure its cycles; ``dram`` (uint8) is changed in place.

        Raises
        ------
        VdlaError
            When the core stops with an error, naming the instruction and what it is for.
        """
        if self.place == "rtl":
            result = self._rtl.run(program, dram, self.memory)
        elif self.place == "fpga":
            from ..runtime.board import run_on_board

            assert self.port is not None
            result = run_on_board(self.port, program, dram, self.memory)
        else:
            from .model.core import simulate

            result = simulate(program, dram, self.memory)
        if result.status != Status.DONE:
            status = Status(result.status)
            index = result.error_index
            where = "" if index is None else f" at {program.where(index)}"
            raise VdlaError(f"{self.place}: core stopped with {status.name}{where}: {status.doc}")
        return result
