"""The SimPy model of the core: the modules of ``hw/core/core.py``, joined in the same way."""

from __future__ import annotations

import time

import numpy as np

from ...isa.insn_table import InsnTable
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
from .loop import run_loop
from .regs import Moments
from .shared import Shared
from .store import Store
from .unit import UnitProcess
from .values import run as run_values
from .vector import Vector


class Core:
    """Simulates the timing of a program. Cycles never depend on values."""

    def __init__(self, program: Program, memory: MemoryParams):
        self.shared = shared = Shared(program.table, memory, program.program_addr)
        self.units: dict[Unit, UnitProcess] = {
            unit.unit: unit for unit in (Load(shared), Gemm(shared), Vector(shared), Store(shared))
        }
        fetch = Fetch(shared)
        queues = [self.units[unit].queue for unit in shared.unit_of]
        dispatch = Dispatch(shared.env, fetch.buffer, queues)
        for process in (fetch, dispatch, *self.units.values()):
            shared.env.process(process.run())

    def run(self) -> None:
        """Let the processes run until none can go on."""
        self.shared.env.settle(self.shared.arbiter.decide)

    def moments(self) -> Moments:
        """When everything happened."""
        count = len(self.shared.table)
        moments = Moments(*(np.full(count, -1, np.int64) for _ in Moments._fields))
        for unit, process in self.units.items():
            known = process.queue.entered, process.queue.left, process.ends, process.busy
            for column, cycles in zip(moments, known, strict=True):
                column[self.shared.indices[unit][: len(cycles)]] = cycles
        return moments


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
    memory.check(program.params, dram.size)
    core = Core(program, memory)
    core.run()
    moments = core.moments()
    # In the order of their starts: all that an instruction depends on has ended when it starts.
    order = np.argsort(moments.starts, kind="stable")
    order = order[moments.starts[order] >= 0] if values else order[:0]
    scratchpads = run_values(program, dram, order).scratchpads()
    return _result(program, core.shared, moments, scratchpads, begun)


def simulate_cycles(program: Program, memory: MemoryParams) -> SimResult:
    """What :func:`simulate` says of a program that the checker has passed, by the loop: without
    values (the result has no scratchpads), for searches.

    Raises VdlaError for a memory of another width.
    """
    begun = time.perf_counter()
    memory.check(program.params, program.dram_bytes)
    shared = Shared(program.table, memory, program.program_addr)
    return _result(program, shared, run_loop(shared), {}, begun)


def count_cycles(table: InsnTable, memory: MemoryParams, program_addr: int = 0) -> int:
    """The cycles that :func:`simulate_cycles` finds, without accounts. An SDRAM counts where the
    instructions lie.

    Raises VdlaError for a memory of another width.
    """
    memory.check_bus(table.params)
    return _cycles(run_loop(Shared(table, memory, program_addr)))


def _result(
    program: Program,
    shared: Shared,
    moments: Moments,
    scratchpads: dict[str, np.ndarray],
    begun: float,
) -> SimResult:
    """The result of a run that began at a time of ``time.perf_counter``."""
    finished, cycles = bool((moments.ends >= 0).all()), _cycles(moments)
    waiting = moments.waiting(shared)
    causes, counters = moments.causes(shared), {}
    for unit, own in shared.indices.items():
        total = causes[own].sum(axis=0)
        total[CAUSES.index("empty")] += cycles - total.sum()
        counters[unit.name.lower()] = named_causes(unit, total)
    return SimResult(
        status=Status.DONE if finished else Status.DEADLOCK,
        error_index=None if finished else min(index for index, _ in waiting.values()),
        cycles=cycles,
        starts=moments.starts.tolist(),
        ends=moments.ends.tolist(),
        counters=counters,
        scratchpads=scratchpads,
        causes=causes,
        report=""
        if finished
        else waiting_report(
            program,
            moments.starts.tolist(),
            {unit: mask for unit, (_, mask) in waiting.items()},
        ),
        wall_s=time.perf_counter() - begun,
    )


def _cycles(moments: Moments) -> int:
    return int(moments.ends.max(initial=0)) + DONE
