"""Clocks :class:`tests.hw.fpga.multipliers.Compared` through all operands."""

from __future__ import annotations

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from vdla.cosim import parameter


@cocotb.test()
async def back_ends_agree(dut) -> None:
    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())
    await ClockCycles(dut.clk, int(parameter("cycles")) + 6)
    assert int(dut.done.value)
    assert int(dut.differs.value) == int(parameter("differs"))
