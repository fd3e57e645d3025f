"""The SimPy model of the core: the modules of ``hw/core.py``, joined in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import simpy

from ..isa.memory import MemoryParams
from ..isa.opcodes import Unit
from ..isa.params import HwParams
from ..isa.program import Program
from ..isa.reference import State, execute
from ..isa.status import Status
from .deadlock import waiting_report
from .dma import ReadArbiter
from .fetch import Fetch
from .gemm import Gemm
from .load import Load
from .result import SimResult
from .store import Store
from .timing import DONE
from .token import TokenBank
from .unit import UnitProcess
from .vector import Vector


class Core:
    """One run of a program."""

    def __init__(
        self,
        program: Program,
        dram: np.ndarray,
        memory: MemoryParams,
        values: bool,
        progress: Callable[[int, int], None] | None,
    ):
        self.params: HwParams = program.params
        self.insns = program.insns
        self.memory = memory
        self.state = State(self.params, dram)
        self.values, self.progress = values, progress
        self.starts = [-1] * len(self.insns)
        self.ends = [-1] * len(self.insns)
        self.causes: list[dict[str, int]] = [{} for _ in self.insns]
        self.done = 0
        self.env = simpy.Environment()
        self.tokens = TokenBank(self.env)
        self.arbiter = ReadArbiter(self.env, memory)
        self.units: dict[Unit, UnitProcess] = {
            Unit.LOAD: Load(self),
            Unit.GEMM: Gemm(self),
            Unit.VECTOR: Vector(self),
            Unit.STORE: Store(self),
        }
        self.fetch = Fetch(self)

    def started(self, index: int, cycle: int) -> None:
        """An instruction starts; everything that it depends on has ended, so its values can be
        computed.
        """
        self.starts[index] = cycle
        if self.values:
            execute(self.insns[index], self.state)
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, len(self.insns))

    def ended(self, index: int, cycle: int) -> None:
        """An instruction ends in ``cycle``."""
        self.ends[index] = cycle


def simulate(
    program: Program,
    dram: np.ndarray,
    memory: MemoryParams,
    values: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> SimResult:
    """Run a program in time.

    Parameters
    ----------
    program : Program
    dram : uint8 array, changed in place; holds constants, instructions and inputs
    memory : the memory behind the core; its bus must have the configuration's width
    values : whether to compute values too (cycles never depend on them)
    progress : called with (instructions started, instructions in all)

    Raises VdlaError for a memory of another width and AddressError where an instruction leaves a
    memory.
    """
    memory.check_bus(program.params)
    begun = time.perf_counter()
    core = Core(program, dram, memory, values, progress)
    core.env.run()
    finished = min(core.ends, default=0) >= 0
    cycles = max(core.ends, default=0) + DONE
    missing = {unit: process.missing() for unit, process in core.units.items()}
    waiting = [process.head[0] for process in core.units.values() if process.head is not None]
    return SimResult(
        status=Status.DONE if finished else Status.DEADLOCK,
        error_index=None if finished else min(waiting),
        cycles=cycles,
        starts=core.starts,
        ends=core.ends,
        counters={
            unit.name.lower(): process.account.finish(cycles)
            for unit, process in core.units.items()
        },
        scratchpads=core.state.scratchpads(),
        causes=core.causes,
        report="" if finished else waiting_report(core.insns, core.starts, missing),
        wall_s=time.perf_counter() - begun,
    )
