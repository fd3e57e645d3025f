"""The synthesised netlist runs compiled programs with the bits and cycles of the RTL."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.hw.boards.ulx3s_bram import SMALL
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.program import Program
from vdla.runtime.result import SimResult
from vdla.sim.rtl.driver import HangError, RtlSimulator
from vdla.sim.verify.random_programs import random_program

from .netlist import Netlist

MODELS = Path(__file__).resolve().parents[2] / "examples" / "models"
MEMORY = MEMORY_PRESETS["vta"]
#: An erring netlist that does not end is given up after this many times the cycles of the RTL.
PATIENCE = 4
ERRORS = 12


@pytest.fixture(scope="module")
def gates() -> Netlist:
    # In the sums of the tensor core, every bit of which counts.
    return Netlist(SMALL, seed=1, errors=ERRORS, prefix="gemm.sum_")


@pytest.fixture(scope="module")
def rtl() -> RtlSimulator:
    return RtlSimulator(SMALL)


def observed(simulator: RtlSimulator, program: Program, dram: np.ndarray, limit: int):
    """Everything that can be seen from outside: memory, status, cycles of every instruction,
    counters.
    """
    image = dram.copy()
    result: SimResult = simulator.run(program, image, MEMORY, limit)
    return (
        image.tobytes(), result.status, result.error_index, result.cycles, result.starts,
        result.ends, result.counters,
    )  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> tuple[Program, np.ndarray]:
    """The digits network, compiled for this core, with one image in DRAM."""
    compiled = vdla.compile(MODELS / "digits_int8.onnx", hw=SMALL, memory=MEMORY).compiled
    image = np.load(MODELS / "digits_test.npz")["x"][: compiled.inputs[0].shape[0]]
    return compiled.program, compiled.dram([image])


@pytest.mark.sweep
def test_a_network(gates: Netlist, rtl: RtlSimulator, digits: tuple[Program, np.ndarray]) -> None:
    program, dram = digits
    expected = observed(rtl, program, dram, 1_000_000)
    assert expected[0] != dram.tobytes()
    assert observed(gates, program, dram, 1_000_000) == expected


@pytest.mark.sweep
def test_random_programs(gates: Netlist, rtl: RtlSimulator) -> None:
    for seed in range(20):
        program = random_program(SMALL, seed)
        dram = program.dram_image()
        assert observed(gates, program, dram, 100_000) == observed(rtl, program, dram, 100_000)


@pytest.mark.sweep
def test_a_wrong_lut_is_caught(
    gates: Netlist, rtl: RtlSimulator, digits: tuple[Program, np.ndarray]
) -> None:
    program, dram = digits
    expected = observed(rtl, program, dram, 1_000_000)
    survived = []
    for number, name in enumerate(gates.errors, 1):
        gates.error = number
        # It may hang, or show a status that does not exist.
        with suppress(HangError, ValueError):
            if observed(gates, program, dram, PATIENCE * expected[3]) == expected:
                survived.append(name)
    gates.error = 0
    assert survived == []
