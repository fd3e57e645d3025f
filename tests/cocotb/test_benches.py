"""Every hardware block and the core under cocotb and Verilator, one build each, kept for later."""

from __future__ import annotations

from pathlib import Path

import pytest
from vdla.hw.dma import BurstCutter, ReadArbiter
from vdla.isa.params import HwParams

from .runner import component_verilog, run_bench

SMALL = HwParams(
    block_in=4, block_out=4, inp_depth=48, wgt_depth=24, acc_depth=40, uop_depth=32, par_depth=16,
    tmp_depth=24, out_depth=40, max_burst_beats=16, queue_depth=4, fetch_depth=4,
    loads_in_flight=2, stores_in_flight=2, token_bits=6,
)  # fmt: skip
pytestmark = pytest.mark.slow


def test_cutter(tmp_path: Path) -> None:
    text = component_verilog(BurstCutter(SMALL), "vdla_cutter")
    sizes = {"bus_bytes": SMALL.bus_bytes, "longest": SMALL.max_burst_beats}
    assert run_bench("vdla_cutter", text, "bench_cutter", tmp_path, **sizes) == 1


def test_arbiter(tmp_path: Path) -> None:
    text = component_verilog(ReadArbiter(SMALL), "vdla_arbiter")
    assert run_bench("vdla_arbiter", text, "bench_arbiter", tmp_path) == 1
