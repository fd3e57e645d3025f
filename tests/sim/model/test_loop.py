"""The loop's cycles are those of the SimPy model, at every start and end of every program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vdla.isa.insn import Gemm, Load, Param, Vector
from vdla.isa.memory import MEMORY_PRESETS, MemoryParams
from vdla.isa.opcodes import Units
from vdla.isa.params import PRESETS, HwParams
from vdla.isa.program import Program
from vdla.isa.status import Status
from vdla.sim.model.core import Core, count_cycles, simulate, simulate_cycles
from vdla.sim.model.loop import run_loop
from vdla.sim.verify.random_programs import random_program

#: Queues, buffers and flights as short as they may be, so that everything waits for everything.
TIGHT = HwParams(
    block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=8, uop_depth=8, par_depth=32,
    tmp_depth=8, out_depth=8, max_burst_beats=8, queue_depth=2, fetch_depth=2,
    loads_in_flight=1, stores_in_flight=1, vector_table=1,
)  # fmt: skip
CONFIGS = {
    **PRESETS,
    "tight": TIGHT,
    "passes": replace(PRESETS["8x8"], vector_passes=4),
    "window": replace(PRESETS["4x4"], vector_passes=2, vector_window=3, tmp_depth=13),
    "packed": replace(PRESETS["8x8"], packed_weights=1),
    "batch": replace(PRESETS["8x8"], batch=2, bus_bits=128, tmp_depth=13, queue_depth=3),
}
MEMORIES = (
    MEMORY_PRESETS["vta"],
    MemoryParams(read_latency_cycles=1, write_latency_cycles=1, outstanding=1, cycles_per_beat=3),
    MemoryParams(read_latency_cycles=200, write_latency_cycles=90, outstanding=3),
    # So slow that the first beat of a burst waits for the last of the one before.
    MemoryParams(outstanding=8, cycles_per_beat=11),
    MEMORY_PRESETS["ulx3s"],
)


def _assert_equal(program: Program, memory: MemoryParams) -> None:
    core = Core(program, memory)
    core.run()
    pairs = zip(run_loop(core.shared), core.moments(), strict=True)
    assert all(np.array_equal(loop, model) for loop, model in pairs)


@pytest.mark.fast(1)
@pytest.mark.short(12)
@pytest.mark.parametrize(
    "memory", MEMORIES, ids=lambda memory: memory.part or f"outstanding {memory.outstanding}"
)
@pytest.mark.parametrize("name", list(CONFIGS))
def test_random_programs(name: str, memory: MemoryParams):
    params = CONFIGS[name]
    if memory.part:  # whose bus has one width
        params = replace(params, bus_bits=memory.bus_bits)
    for seed in range(20):
        program = random_program(params, 9000 + seed)
        _assert_equal(program, replace(memory, bus_bits=params.bus_bits))


def test_programs_that_never_end():
    """A token that is never given, one that is given too late, and loads behind them."""
    missing = Program(PRESETS["4x4"], (
        Load(memory="par", base=0, dram_addr=0, x_size=2),
        Gemm(uop_begin=0, uop_count=1, pop=Units.VECTOR),
        Param(par_base=0, pop=Units.GEMM, push=Units.GEMM),
        *[Load(memory="par", base=0, dram_addr=0, x_size=2)] * 40,
    ))  # fmt: skip
    _assert_equal(missing, MEMORY_PRESETS["vta"])
    found = simulate_cycles(missing, MEMORY_PRESETS["vta"])
    expected = simulate(missing, missing.dram_image(), MEMORY_PRESETS["vta"])
    assert found.status == Status.DEADLOCK and found.ends.count(-1) == 2
    assert (found.report, found.error_index) == (expected.report, expected.error_index)


def test_a_chain_of_vector_instructions():
    """Reads of tmp wait for writes of the instructions before."""
    step = Vector(op="add", src0="tmp", src1="imm", dst="tmp", extents=(1, 1, 1, 5))
    reduced = Vector(op="max", src0="tmp", src1="tmp", dst="tmp", extents=(1, 1, 3, 5), reduce=1)
    for passes in (1, 2, 4):
        params = replace(PRESETS["4x4"], vector_passes=passes)
        _assert_equal(Program(params, (step, step, reduced, step) * 5), MEMORY_PRESETS["vta"])


def test_counted_cycles_are_those_of_the_simulation():
    program = random_program(PRESETS["16x16"], 4711)
    memory = MEMORY_PRESETS["vta"]
    result = simulate(program, program.dram_image(), memory)
    found = simulate_cycles(program, memory)
    assert found.cycles == count_cycles(program.table, memory) == result.cycles
    assert (found.starts, found.ends) == (result.starts, result.ends)
    assert found.counters == result.counters and np.array_equal(found.causes, result.causes)
