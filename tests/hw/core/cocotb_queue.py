"""Queue under Verilator: random words through random stalls on both sides."""

from __future__ import annotations

import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

from .monitor import StreamMonitor


@cocotb.test()
async def keeps_order_under_stalls(dut) -> None:
    rng = random.Random(1)
    for name in ("rst", "i__valid", "i__payload", "o__ready"):
        getattr(dut, name).value = 0
    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())
    inlet, outlet = StreamMonitor("i"), StreamMonitor("o")
    for cycle in range(3000):
        await RisingEdge(dut.clk)
        transfer = dut.i__valid.value and dut.i__ready.value
        for monitor, port in ((inlet, "i"), (outlet, "o")):
            monitor.sample(
                *(int(getattr(dut, f"{port}__{s}").value) for s in ("valid", "ready", "payload"))
            )
        held = len(inlet.transfers) - len(outlet.transfers)
        assert 0 <= held <= 4
        eager = (cycle // 200) % 2
        if transfer or not dut.i__valid.value:
            dut.i__valid.value = rng.random() < (0.9 if eager else 0.3)
            dut.i__payload.value = rng.getrandbits(24)
        dut.o__ready.value = rng.random() < (0.3 if eager else 0.9)
    assert len(outlet.payloads) > 800
    assert outlet.payloads == inlet.payloads[: len(outlet.payloads)]
