"""The cocotb benches of the datapath, one build each, kept for the next run."""

from __future__ import annotations

from pathlib import Path

import pytest
from vdla.hw.core.gemm import Gemm
from vdla.hw.core.queue import Queue
from vdla.hw.core.scratchpad import Scratchpad
from vdla.hw.core.token import TokenBank
from vdla.hw.core.vector import Vector
from vdla.isa.params import HwParams

from ...cocotb_runner import component_verilog, run_bench
from .bench import SMALL

BLOCKS = {
    "queue": lambda: Queue(24, 4),
    "token": lambda: TokenBank(HwParams(token_bits=4)),
    "scratchpad": lambda: Scratchpad("inp", SMALL, 2),
}
UNITS = {"gemm": Gemm, "vector": Vector}


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_block(block: str, tmp_path: Path) -> None:
    text = component_verilog(BLOCKS[block](), f"vdla_{block}")
    assert run_bench(f"vdla_{block}", text, f"hw.core.cocotb_{block}", tmp_path) == 1


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_unit(unit: str, tmp_path: Path) -> None:
    text = component_verilog(UNITS[unit](SMALL), f"vdla_{unit}")
    for seed in (1, 2):
        work = tmp_path / str(seed)
        work.mkdir()
        assert (
            run_bench(f"vdla_{unit}", text, "hw.core.cocotb_unit", work, unit=unit, seed=seed) == 1
        )
