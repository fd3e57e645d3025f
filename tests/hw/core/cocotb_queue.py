"""Queue under Verilator: random words through random stalls on both sides."""

from __future__ import annotations

import random

import cocotb
from cocotb.triggers import RisingEdge
from vdla.cosim import StreamMonitor, reset


@cocotb.test()
async def keeps_order_under_stalls(dut) -> None:
    rng = random.Random(1)
    await reset(dut, "i__valid", "i__payload", "o__ready")
    inlet, outlet = (StreamMonitor.watch(dut, port) for port in "io")
    for cycle in range(3000):
        await RisingEdge(dut.clk)
        transfer = dut.i__valid.value and dut.i__ready.value
        held = len(inlet.transfers) - len(outlet.transfers)
        assert 0 <= held <= 4
        eager = (cycle // 200) % 2
        if transfer or not dut.i__valid.value:
            dut.i__valid.value = rng.random() < (0.9 if eager else 0.3)
            dut.i__payload.value = rng.getrandbits(24)
        dut.o__ready.value = rng.random() < (0.3 if eager else 0.9)
    assert len(outlet.payloads) > 800
    assert outlet.payloads == inlet.payloads[: len(outlet.payloads)]
