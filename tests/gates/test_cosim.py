"""The netlist under co-simulation: what is visible of it is checked, and a wrong cell is found."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from vdla.cosim import Design, Session, Settings
from vdla.cosim.job import CHECKS
from vdla.hw.boards.ulx3s_bram import SMALL
from vdla.isa.memory import MemoryParams
from vdla.isa.reference import run as run_reference
from vdla.sim.verify.random_programs import random_program

from .netlist import LUT

MODEL = Settings(MemoryParams())
RAM = Settings(None, "heavy", seed=3)


@pytest.fixture(scope="module")
def gates() -> Design:
    return Design.gates(SMALL)


@pytest.mark.sweep
@pytest.mark.parametrize("settings", [MODEL, RAM], ids=["model", "ram"])
def test_random_programs(gates: Design, settings: Settings) -> None:
    """Scratchpads are spread over block RAMs; all else is checked, with the model cycles too."""
    program = random_program(SMALL, 1, 60)
    dram, expected = program.dram_image(), program.dram_image()
    run_reference(program, expected)
    result = Session(gates, settings).run(program, dram)
    assert result["first_divergence"] is None and np.array_equal(dram, expected)
    left_out = {"streams", "scratchpads"} | ({"cycles"} if settings.memory is None else set())
    assert set(CHECKS) - set(result["checks"]) == left_out


@pytest.mark.sweep
def test_a_wrong_lut(gates: Design) -> None:
    """One LUT of the tensor core's sums gives the inverse: a few random programs show it."""
    luts = [found for found in LUT.finditer(gates.verilog) if found[2].startswith("\\gemm.sum_")]
    chosen = random.Random(1).choice(luts)
    inverse = f"{int(chosen[1], 16) ^ 0xFFFF:04x}"
    wrong = replace(
        gates, verilog=gates.verilog.replace(chosen[0], chosen[0].replace(chosen[1], inverse, 1))
    )
    for seed in range(10):
        program = random_program(SMALL, seed, 60)
        found = Session(wrong, MODEL).run(program, program.dram_image())["first_divergence"]
        if found is not None:
            break
    assert found is not None and found["what"].startswith("DRAM")
