"""Scratchpad under Verilator: random writes and reads, collisions among them."""

from __future__ import annotations

import random

import cocotb
from cocotb.triggers import RisingEdge
from vdla.cosim import reset


@cocotb.test()
async def reads_see_earlier_writes(dut) -> None:
    rng = random.Random(3)
    depth, bits = 24, len(dut.write__data)
    await reset(dut, "write__en", "read__0__addr", "read__1__addr")
    model, shown, collisions = [0] * depth, [None, None], 0
    for _ in range(3000):
        row, data, enable = rng.randrange(depth), rng.getrandbits(bits), rng.random() < 0.7
        addresses = [rng.choice((row, rng.randrange(depth))) for _ in shown]
        dut.write__addr.value, dut.write__data.value, dut.write__en.value = row, data, enable
        dut.read__0__addr.value, dut.read__1__addr.value = addresses
        await RisingEdge(dut.clk)
        for reader, expected in enumerate(shown):
            if expected is not None:
                assert int(getattr(dut, f"read__{reader}__data").value) == expected
        shown = [model[address] for address in addresses]
        collisions += enable and row in addresses
        if enable:
            model[row] = data
    assert collisions > 500
