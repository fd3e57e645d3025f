"""The SimPy model of the core: the modules of ``hw/core/core.py``, joined in the same way."""

from __future__ import annotations

import time

import numpy as np

from ...isa.memory import MemoryParams
from ...isa.opcodes import Unit
from ...isa.program import Program
from ...isa.regmap import CAUSES, named_causes
from ...isa.status import Status
from ...isa.timing import DONE
from ...runtime.result import SimResult
from ..deadlock import waiting_report
from .fetch import Dispatch, Fetch
from .gemm import Gemm
from .load import Load
from .shared import Shared
from .store import Store
from .unit import UnitProcess
from .values import run as run_values
from .vector import Vector


class Core:
    """Simulates the timing of a program. Cycles never depend on values."""

    def __init__(self, program: Program, memory: MemoryParams):
        self.shared = shared = Shared(program, memory)
        self.units: dict[Unit, UnitProcess] = {
            unit.unit: unit for unit in (Load(shared), Gemm(shared), Vector(shared), Store(shared))
        }
        fetch = Fetch(shared)
        queues = [self.units[unit].queue for unit in shared.unit_of]
        dispatch = Dispatch(shared.env, fetch.buffer, queues)
        for process in (fetch, dispatch, *self.units.values()):
            shared.env.process(process.run())

    @property
    def indices(self) -> dict[Unit, np.ndarray]:
        """The instructions of each unit, int64 [their number]."""
        return self.shared.indices

    def run(self) -> None:
        """Let the processes run until none can go on."""
        self.shared.env.settle(self.shared.arbiter.decide)

    def starts(self) -> np.ndarray:
        """int64 [instructions]: cycle of every start, -1 where there was none."""
        return self._in_order({unit: process.queue.left for unit, process in self.units.items()})

    def ends(self) -> np.ndarray:
        """int64 [instructions]: cycle of every end, -1 where there was none."""
        return self._in_order({unit: process.ends for unit, process in self.units.items()})

    def _in_order(self, cycles: dict[Unit, list[int]]) -> np.ndarray:
        merged = np.full(len(self.shared.program.insns), -1, np.int64)
        for unit, known in cycles.items():
            merged[self.indices[unit][: len(known)]] = known
        return merged


def simulate(
    program: Program, dram: np.ndarray, memory: MemoryParams, values: bool = True
) -> SimResult:
    """Simulate a program: its cycles, and its values too if ``values`` is set.

    Parameters
    ----------
    program : Program
    dram : uint8 array, changed in place; holds constants, instructions and inputs
    memory : the memory behind the core; its bus must have the configuration's width
    values : whether to compute values too (cycles never depend on them)

    Raises VdlaError for a memory of another width and AddressError where an instruction accesses
    beyond a memory.
    """
    begun = time.perf_counter()
    core = _run(program, memory)
    starts, ends = core.starts(), core.ends()
    # In the order of their starts: all that an instruction depends on has ended when it starts.
    order = np.argsort(starts, kind="stable")
    order = order[starts[order] >= 0] if values else order[:0]
    state = run_values(program, dram, order)
    finished = bool((ends >= 0).all())
    cycles = _cycles(ends)
    missing = {unit: process.missing() for unit, process in core.units.items()}
    waiting = [
        int(core.indices[unit][len(core.units[unit].queue.left)]) for unit in Unit if missing[unit]
    ]
    causes = np.zeros((len(program.insns), len(CAUSES)), np.int64)
    counters = {}
    for unit, process in core.units.items():
        passed = process.causes()
        causes[core.indices[unit][: len(passed)]] = passed
        total = passed.sum(axis=0)
        total[CAUSES.index("empty")] += cycles - total.sum()
        counters[unit.name.lower()] = named_causes(unit, total)
    return SimResult(
        status=Status.DONE if finished else Status.DEADLOCK,
        error_index=None if finished else min(waiting),
        cycles=cycles,
        starts=starts.tolist(),
        ends=ends.tolist(),
        counters=counters,
        scratchpads=state.scratchpads(),
        causes=causes,
        report="" if finished else waiting_report(program, starts.tolist(), missing),
        wall_s=time.perf_counter() - begun,
    )


def count_cycles(program: Program, memory: MemoryParams) -> int:
    """The cycles of a program that the checker has passed, without its values.

    Raises VdlaError for a memory of another width.
    """
    return _cycles(_run(program, memory).ends())


def _run(program: Program, memory: MemoryParams) -> Core:
    """The core after the program."""
    memory.check_bus(program.params)
    core = Core(program, memory)
    core.run()
    return core


def _cycles(ends: np.ndarray) -> int:
    return int(ends.max(initial=0)) + DONE
