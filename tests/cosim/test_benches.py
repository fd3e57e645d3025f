"""Every hardware block and the core under cocotb and Verilator, one build each, kept for later."""

from __future__ import annotations

import pytest
from vdla.cosim import Build, Design
from vdla.cosim.pytest_plugin import RunBench
from vdla.hw.core.dma import BurstCutter, ReadArbiter
from vdla.hw.core.fetch import Fetch
from vdla.hw.core.load import Load
from vdla.hw.core.regs import Regs
from vdla.hw.core.store import Store
from vdla.hw.soc.peripheral import TOP as PERIPHERAL
from vdla.hw.soc.peripheral import peripheral_verilog

from .configs import CONFIGS, NARROW

pytestmark = [pytest.mark.sweep, pytest.mark.slow]
#: A core that shows all of its signals takes long to build, and its benches see its ports alone.
FAST = Build(fast=True)


def test_cutter(vdla_rtl: RunBench) -> None:
    design = Design.component(BurstCutter(NARROW), "vdla_cutter")
    sizes = {"bus_bytes": NARROW.bus_bytes, "longest": NARROW.max_burst_beats}
    assert vdla_rtl(design, "bench_cutter.py", **sizes) == 1


def test_arbiter(vdla_rtl: RunBench) -> None:
    design = Design.component(ReadArbiter(NARROW), "vdla_arbiter")
    assert vdla_rtl(design, "bench_arbiter.py") == 1


@pytest.mark.parametrize("config", [pytest.param("narrow", marks=pytest.mark.sweep), "wide"])
@pytest.mark.parametrize("unit", [Load, Store])
def test_memory_unit(unit: type, config: str, vdla_rtl: RunBench) -> None:
    name = unit.__name__.lower()
    design = Design.component(unit(CONFIGS[config]), f"vdla_{name}")
    for seed in (1, 2):
        assert vdla_rtl(design, f"bench_{name}.py", config=config, seed=seed) == 1


def test_fetch(vdla_rtl: RunBench) -> None:
    design = Design.component(Fetch(NARROW), "vdla_fetch")
    assert vdla_rtl(design, "bench_fetch.py") == 2


def test_regs(vdla_rtl: RunBench) -> None:
    design = Design.component(Regs(NARROW), "vdla_regs")
    assert vdla_rtl(design, "bench_regs.py", hash=NARROW.hash) == 1


@pytest.mark.parametrize("config", [pytest.param("narrow", marks=pytest.mark.sweep), "features"])
def test_core(config: str, vdla_rtl: RunBench) -> None:
    design = Design.core(CONFIGS[config])
    for seed in (1, 2, 3):
        assert vdla_rtl(design, "bench_core.py", FAST, config=config, seed=seed) == 1


def test_tap(vdla_rtl: RunBench) -> None:
    text = Design.core(NARROW).verilog
    tap = text[text.index("module vdla_tap_gemm(") :]
    design = Design("vdla_tap_gemm", tap[: tap.index("endmodule")] + "endmodule\n")
    assert vdla_rtl(design, "bench_tap.py") == 2


def test_peripheral(vdla_rtl: RunBench) -> None:
    design = Design(PERIPHERAL, peripheral_verilog(NARROW))
    for seed in (1, 2):
        assert vdla_rtl(design, "bench_peripheral.py", FAST, seed=seed) == 1


def test_axi_wrapper(vdla_rtl: RunBench) -> None:
    design = Design.ip(NARROW)
    for seed in (1, 2):
        assert vdla_rtl(design, "bench_axi.py", FAST, seed=seed) == 1
