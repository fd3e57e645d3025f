"""Every hardware block and the core under cocotb and Verilator, one build each, kept for later."""

from __future__ import annotations

from pathlib import Path

import pytest
from vdla.hw.boards.axi_ip import AxiCore
from vdla.hw.core.dma import BurstCutter, ReadArbiter
from vdla.hw.core.fetch import Fetch
from vdla.hw.core.load import Load
from vdla.hw.core.regs import Regs
from vdla.hw.core.store import Store
from vdla.hw.core.verilog import TOP, core_verilog, to_verilog
from vdla.hw.fpga.devices import XC7Z020
from vdla.sim.rtl import toolchain

from ..cocotb_runner import component_verilog, run_bench
from .configs import CONFIGS, NARROW

pytestmark = pytest.mark.slow


def test_cutter(tmp_path: Path) -> None:
    text = component_verilog(BurstCutter(NARROW), "vdla_cutter")
    sizes = {"bus_bytes": NARROW.bus_bytes, "longest": NARROW.max_burst_beats}
    assert run_bench("vdla_cutter", text, "cocotb.bench_cutter", tmp_path, **sizes) == 1


def test_arbiter(tmp_path: Path) -> None:
    text = component_verilog(ReadArbiter(NARROW), "vdla_arbiter")
    assert run_bench("vdla_arbiter", text, "cocotb.bench_arbiter", tmp_path) == 1


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("unit", [Load, Store])
def test_memory_unit(unit: type, config: str, tmp_path: Path) -> None:
    name = unit.__name__.lower()
    text = component_verilog(unit(CONFIGS[config]), f"vdla_{name}")
    for seed in (1, 2):
        work = tmp_path / str(seed)
        work.mkdir()
        settings = {"config": config, "seed": seed}
        assert run_bench(f"vdla_{name}", text, f"cocotb.bench_{name}", work, **settings) == 1


def test_fetch(tmp_path: Path) -> None:
    text = component_verilog(Fetch(NARROW), "vdla_fetch")
    assert run_bench("vdla_fetch", text, "cocotb.bench_fetch", tmp_path) == 2


def test_regs(tmp_path: Path) -> None:
    text = component_verilog(Regs(NARROW), "vdla_regs")
    assert run_bench("vdla_regs", text, "cocotb.bench_regs", tmp_path, hash=NARROW.hash) == 1


def test_core(tmp_path: Path) -> None:
    toolchain.setup_yosys()
    text = core_verilog(NARROW)
    for seed in (1, 2, 3):
        work = tmp_path / str(seed)
        work.mkdir()
        settings = {"config": "narrow", "seed": seed}
        assert run_bench(TOP, text, "cocotb.bench_core", work, **settings) == 1


def test_axi_wrapper(tmp_path: Path) -> None:
    toolchain.setup_yosys()
    text = to_verilog(AxiCore(NARROW, XC7Z020.technology(NARROW)), "vdla_axi")
    for seed in (1, 2):
        work = tmp_path / str(seed)
        work.mkdir()
        assert run_bench("vdla_axi", text, "cocotb.bench_axi", work, seed=seed) == 1
