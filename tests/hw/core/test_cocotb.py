"""The cocotb benches of the datapath, one build each, kept for the next run."""

from __future__ import annotations

import pytest
from vdla.cosim import Design
from vdla.cosim.pytest_plugin import RunBench
from vdla.hw.core.gemm import Gemm
from vdla.hw.core.queue import Queue
from vdla.hw.core.scratchpad import Scratchpad
from vdla.hw.core.token import TokenBank
from vdla.hw.core.vector import Vector
from vdla.isa.params import HwParams

from .bench import SMALL

pytestmark = pytest.mark.more

BLOCKS = {
    "queue": lambda: Queue(24, 4),
    "token": lambda: TokenBank(HwParams(token_bits=4)),
    "scratchpad": lambda: Scratchpad("inp", SMALL, 2),
}
UNITS = {"gemm": Gemm, "vector": Vector}


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_block(block: str, vdla_rtl: RunBench) -> None:
    design = Design.component(BLOCKS[block](), f"vdla_{block}")
    assert vdla_rtl(design, f"cocotb_{block}.py") == 1


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_unit(unit: str, vdla_rtl: RunBench) -> None:
    design = Design.component(UNITS[unit](SMALL), f"vdla_{unit}")
    for seed in (1, 2):
        assert vdla_rtl(design, "cocotb_unit.py", unit=unit, seed=seed) == 1
