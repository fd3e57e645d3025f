"""Co-verification: reference, SimPy and RTL agree in every byte and cycle; where they do not,
``verify`` says where first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Gemm, Store, Vector
from vdla.isa.memory import MEMORY_PRESETS, MemoryParams
from vdla.isa.params import PRESETS, HwParams
from vdla.isa.program import Program
from vdla.isa.timing import GEMM_DEPTH
from vdla.runtime.result import SimResult
from vdla.sim.model import gemm as sim_gemm
from vdla.sim.model.core import simulate
from vdla.sim.rtl.driver import RtlSimulator
from vdla.sim.verify.campaign import compare, verify

from ...campaign.programs import tmp_chains, token_stream

#: The smallest legal buffers; the RTL of the other configurations is verified by `vdla verify`.
SMALL = HwParams(
    block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=8, uop_depth=8, par_depth=4,
    tmp_depth=8, out_depth=8, max_burst_beats=8, queue_depth=2, fetch_depth=2,
    loads_in_flight=1, stores_in_flight=1,
)  # fmt: skip
#: No depth is a power of two, vectors of two rows, a bus of 128 bits.
ODD = replace(
    SMALL, batch=2, block_in=8, block_out=8, inp_depth=37, wgt_depth=19, acc_depth=23, uop_depth=21,
    par_depth=11, tmp_depth=41, out_depth=29, bus_bits=128, max_burst_beats=16, queue_depth=3,
    fetch_depth=4, loads_in_flight=2, stores_in_flight=3, vector_passes=2,
)  # fmt: skip
#: Tiles of weights that may be packed: 5 beats instead of 8.
PACKED = replace(
    SMALL, block_in=8, block_out=8, wgt_depth=19, queue_depth=3, loads_in_flight=2,
    packed_weights=1,
)  # fmt: skip
VTA = MEMORY_PRESETS["vta"]


@pytest.mark.short(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "memory"),
    [
        (SMALL, VTA),
        (SMALL, MEMORY_PRESETS["slow"]),
        (PACKED, VTA),
        (SMALL, replace(VTA, outstanding=1, cycles_per_beat=3)),
        (ODD, MEMORY_PRESETS["wide"]),
    ],
    ids=["small-vta", "small-slow", "packed-vta", "small-narrow", "odd-wide"],
)
def test_no_difference(params: HwParams, memory: MemoryParams):
    report = verify(params, memory, programs=25, seed=4000)
    assert report["first_divergence"] is None
    assert report["byte_mismatches"] == report["cycle_mismatches"] == report["max_cycle_error"] == 0
    assert report["programs"] == 25 and report["instructions"] > 25 * 30
    assert report["cycles"] > report["instructions"]


@pytest.mark.slow
@pytest.mark.parametrize("directed", [tmp_chains, token_stream])
def test_no_difference_in_directed_programs(directed: Callable[[HwParams], Program]):
    program, memory = directed(ODD), replace(VTA, bus_bits=ODD.bus_bits)
    found = compare(program, program.dram_image(), memory, RtlSimulator(ODD).run)
    assert found["first_divergence"] is None and not found["byte_mismatches"]


def _reference_like(program: Program, dram: np.ndarray, memory: MemoryParams) -> SimResult:
    """Stands in for the RTL where a test is about the comparison."""
    return simulate(program, dram, memory)


def test_a_late_end_is_found_at_its_instruction():
    def early(program: Program, dram: np.ndarray, memory: MemoryParams) -> SimResult:
        with patch.object(sim_gemm, "GEMM_DEPTH", GEMM_DEPTH - 1):
            return simulate(program, dram, memory)

    params = PRESETS["4x4"]
    report = verify(params, VTA, programs=3, seed=0, rtl=_reference_like, sim=early)
    first = report["first_divergence"]
    assert report["cycle_mismatches"] and report["max_cycle_error"] >= 1
    assert not report["byte_mismatches"]
    assert first["unit"] == "gemm" and first["what"] == "end cycle"
    assert first["rtl"] - first["sim"] == 1 and first["text"].startswith("gemm")


@pytest.mark.parametrize("memory_name", ["acc", "out", "uop", "dram"])
def test_one_wrong_byte_is_found(memory_name: str):
    def wrong(program: Program, dram: np.ndarray, memory: MemoryParams) -> SimResult:
        result = simulate(program, dram, memory)
        target = dram if memory_name == "dram" else result.scratchpads[memory_name]
        target.reshape(-1)[0] ^= 1
        return result

    report = verify(PRESETS["4x4"], VTA, programs=1, rtl=wrong)
    assert report["byte_mismatches"] == 1 and not report["cycle_mismatches"]
    assert memory_name in report["first_divergence"]["what"]


def test_progress_and_totals():
    told: list[tuple[int, int]] = []
    report = verify(PRESETS["4x4"], VTA, 3, 9, lambda a, b: told.append((a, b)), _reference_like)
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert report["programs"] == 3 and report["first_divergence"] is None


def test_the_memory_must_fit_the_bus():
    with pytest.raises(VdlaError, match="128"):
        verify(SMALL, MEMORY_PRESETS["wide"], 1, rtl=_reference_like)


@pytest.mark.slow
def test_long_programs_without_tokens_agree():
    """Each unit on its own runs through its queue without waiting for anyone."""
    gemm = Gemm(uop_begin=0, uop_count=3, outer=5, inner=4)
    vector = Vector(op="max", src0="acc", src1="tmp", dst="tmp", extents=(1, 2, 3, 4))
    store = Store(base=0, dram_addr=8, x_size=3, y_size=2, y_stride=64)
    program = Program(SMALL, (gemm, vector, store, store, vector, gemm) * 6, {}, {}, 4096)
    rtl = RtlSimulator(SMALL).run(program, program.dram_image(), VTA)
    sim = simulate(program, program.dram_image(), VTA)
    assert (rtl.starts, rtl.ends, rtl.cycles) == (sim.starts, sim.ends, sim.cycles)
    assert rtl.counters == sim.counters
