"""The SimPy model alone: cycles by hand from ``docs/timing.md``, accounting, deadlocks."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest
from amaranth.hdl import Fragment
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Gemm, Insn, Load, Param, Store, Vector
from vdla.isa.memory import MEMORY_PRESETS, MemoryParams
from vdla.isa.opcodes import Unit, Units
from vdla.isa.params import HwParams
from vdla.isa.program import Program
from vdla.isa.reference import run as run_reference
from vdla.isa.status import Status
from vdla.isa.timing import DONE, GEMM_DEPTH, LOAD_END, STORE_DATA, STORE_END, VECTOR_DEPTH
from vdla.runtime.result import SimResult
from vdla.sim.model.core import simulate
from vdla.sim.verify.random_programs import random_program

PARAMS = HwParams()
VTA = MEMORY_PRESETS["vta"]
#: An instruction of 16x16 takes this many beats; the first is dispatched in the cycle after them.
BEATS = PARAMS.insn_bytes // PARAMS.bus_bytes
#: The first request is granted in cycle 0 and accepted in cycle 1.
FIRST_BEAT = 1 + VTA.read_latency_cycles
FIRST_START = FIRST_BEAT + BEATS - 1 + 1 + 1


def _run(
    *insns: Insn,
    memory: MemoryParams = VTA,
    params: HwParams = PARAMS,
    dram_bytes: int = 1 << 16,
) -> SimResult:
    program = Program(params, insns, {}, {"dram_bytes": dram_bytes}, dram_bytes // 2)
    result = simulate(program, program.dram_image(), memory)
    assert result.status == Status.DONE
    for unit, causes in result.counters.items():
        assert sum(causes.values()) == result.cycles, unit
    return result


def test_gemm_takes_its_iterations_and_its_depth():
    result = _run(Gemm(uop_begin=0, uop_count=2, outer=3, inner=4))
    start = FIRST_START
    assert result.starts == [start]
    assert result.ends == [start + 24 + GEMM_DEPTH]
    assert result.cycles == result.ends[0] + DONE
    assert result.counters["gemm"]["busy"] == 25


def test_the_next_gemm_starts_in_the_cycle_of_the_last_iteration():
    first = Gemm(uop_begin=0, uop_count=1, outer=50)
    result = _run(first, first)
    assert result.starts[1] == result.starts[0] + 50
    assert result.counters["gemm"]["busy"] == 101


def test_param_issues_four_iterations():
    result = _run(Param(par_base=0))
    assert result.ends[0] == result.starts[0] + 4 + VECTOR_DEPTH


def test_a_read_of_tmp_waits_for_the_write_in_the_pipeline():
    chain = Vector(op="add", src0="tmp", src1="imm", dst="tmp", extents=(1, 1, 1, 5))
    result = _run(chain)
    last = result.starts[0] + 1 + 4 * (VECTOR_DEPTH + 1)
    assert result.ends == [last + VECTOR_DEPTH]
    assert result.counters["vector"]["hazard"] == 4 * VECTOR_DEPTH
    assert result.counters["vector"]["busy"] == 1 + 5


def test_reductions_write_only_once():
    reduced = Vector(op="add", src0="tmp", src1="imm", dst="tmp", extents=(1, 1, 1, 5), reduce=1)
    result = _run(reduced)
    assert result.counters["vector"]["hazard"] == 0
    assert result.ends == [result.starts[0] + 5 + VECTOR_DEPTH]


@pytest.mark.parametrize("entries", [1, 16, 17, 64])
def test_load_bursts_follow_each_other_without_a_gap(entries: int):
    result = _run(Load(memory="inp", base=0, dram_addr=0, x_size=entries))
    # Presented in start + 1, which is also the grant; accepted in the cycle after; two beats each.
    first = result.starts[0] + 2 + VTA.read_latency_cycles
    assert result.ends == [first + 2 * entries - 1 + LOAD_END]
    assert result.counters["load"]["busy"] == 2 * entries + 1


@pytest.mark.parametrize(
    ("block", "plain", "packed"), [(8, 8, 1 + 4), (16, 32, 1 + 16), (32, 128, 2 + 64)]
)
def test_a_packed_tile_takes_the_beats_of_its_scales_and_of_half_its_weights(
    block: int, plain: int, packed: int
):
    params = HwParams(block_in=block, block_out=block, wgt_depth=64, packed_weights=1)
    load = Load(memory="wgt", base=0, dram_addr=0, x_size=60)
    for widen, beats in ((0, plain), (1, packed)):
        result = _run(replace(load, widen=widen), params=params, dram_bytes=1 << 17)
        first = result.starts[0] + 2 + VTA.read_latency_cycles
        assert result.ends == [first + 60 * beats - 1 + LOAD_END]
        assert result.counters["load"]["busy"] == 60 * beats + 1


def test_padding_takes_a_cycle_an_entry():
    load = Load(memory="inp", base=0, dram_addr=0, x_size=2, pad_left=1, pad_right=2, pad_bottom=1)
    plain = _run(replace(load, pad_left=0, pad_right=0, pad_bottom=0))
    padded = _run(load)
    # The left padding is worked off while the burst is under way.
    assert padded.ends[0] - plain.ends[0] == 2 + 5
    assert padded.counters["load"]["busy"] == plain.counters["load"]["busy"] + 1 + 2 + 5


def test_padding_only_needs_no_memory():
    result = _run(Load(memory="inp", base=0, dram_addr=0, x_size=3, y_size=0, pad_top=2))
    # Descriptor visible and taken in start + 1, worked off from start + 2.
    assert result.ends == [result.starts[0] + 2 + 6 - 1 + LOAD_END]


def test_a_burst_ends_at_a_page():
    inside = _run(Store(base=0, dram_addr=4096 - 32, x_size=2))
    across = _run(Store(base=0, dram_addr=4096 - 16, x_size=2))
    start = inside.starts[0]
    last = start + 1 + STORE_DATA + 3
    assert inside.ends == [last + VTA.write_latency_cycles + STORE_END]
    # The second burst is presented in the cycle after the first one's last beat.
    assert across.ends[0] - inside.ends[0] == STORE_DATA


def test_slow_beats():
    memory = replace(VTA, cycles_per_beat=3)
    load = Load(memory="inp", base=0, dram_addr=0, x_size=4)
    result = _run(load, memory=memory)
    first = result.starts[0] + 2 + memory.read_latency_cycles
    assert result.ends == [first + 7 * 3 + LOAD_END]


def test_a_token_is_taken_in_the_cycle_after_its_push():
    load = Load(memory="inp", base=0, dram_addr=0, x_size=8, push=Units.GEMM)
    result = _run(load, Gemm(uop_begin=0, uop_count=1, pop=Units.LOAD))
    assert result.starts[1] == result.ends[0] + 1
    visible = result.starts[0] + 1
    gap = BEATS - 1 if BEATS > 1 else 0
    assert result.counters["gemm"]["token_load"] == result.starts[1] - visible - gap


@pytest.mark.parametrize("seed", range(3))
def test_values_are_the_reference_and_never_change_cycles(seed: int):
    program = random_program(PARAMS, 50 + seed)
    dram, expected = program.dram_image(), program.dram_image()
    state = run_reference(program, expected)
    timed = simulate(program, program.dram_image(), VTA, values=False)
    result = simulate(program, dram, VTA)
    assert (result.starts, result.ends) == (timed.starts, timed.ends)
    assert result.counters == timed.counters
    assert np.array_equal(dram, expected)
    for name, contents in state.scratchpads().items():
        assert np.array_equal(result.scratchpads[name], contents), name


def test_a_deadlock_names_units_and_instructions():
    insns = (
        Load(memory="inp", base=0, dram_addr=0, x_size=1, pop=Units.GEMM, push=Units.GEMM),
        Gemm(uop_begin=0, uop_count=1, pop=Units.LOAD, push=Units.LOAD),
        Param(par_base=0),
    )
    program = Program(PARAMS, insns)
    result = simulate(program, program.dram_image(), VTA)
    assert result.status == Status.DEADLOCK and result.error_index == 0
    assert result.starts[:2] == [-1, -1] and result.ends[2] > 0
    assert result.report == (
        "deadlock: load at LOAD instruction 0 waits for gemm; "
        "gemm at GEMM instruction 1 waits for load"
    )


def test_the_memory_must_have_the_width_of_the_bus():
    program = random_program(PARAMS, 1)
    with pytest.raises(VdlaError, match="128"):
        simulate(program, program.dram_image(), MEMORY_PRESETS["wide"])


@pytest.mark.parametrize(
    "module", ["core", "dma", "fetch", "gemm", "load", "queue", "regs", "store", "token", "vector"]
)
def test_modules_are_called_as_in_the_hardware(module: str):
    hardware = importlib.import_module(f"vdla.hw.core.{module}")
    model = importlib.import_module(f"vdla.sim.model.{module}")
    if module == "regs":  # registers count what the model accounts for
        registers, nothing = hardware.Regs(PARAMS), np.zeros(0, np.int64)
        counts = model.account(*[nothing] * 4, np.zeros((0, len(Unit)), np.int64))
        assert len(registers.values_of) == len(Unit)
        assert len(registers.cause) == (counts.shape[1] - 1).bit_length()
        Fragment.get(registers, None)  # Amaranth warns of a component that nobody elaborates
    else:
        main_class = {"dma": "ReadArbiter", "token": "TokenBank"}.get(module, module.capitalize())
        assert hasattr(hardware, main_class) and hasattr(model, main_class)
