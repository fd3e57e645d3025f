"""The tap of a tensor core: it sees each rule of a stream broken, and nothing else."""

from __future__ import annotations

from itertools import product

import cocotb
from cocotb.triggers import RisingEdge
from vdla.cosim import reset

STREAM = ("unit__insn__valid", "unit__insn__ready", "unit__insn__payload")
FELL, CHANGED = 1, 2


async def shows(dut, *cycles: tuple[int, int, int]) -> int:
    """What the tap has seen broken after cycles of valid, ready and payload."""
    dut.broken.value = 0
    for cycle in (*cycles, (0, 0, 0)):
        for name, value in zip(STREAM, cycle, strict=True):
            getattr(dut, name).value = value
        await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    return int(dut.broken.value)


@cocotb.test()
async def rules(dut) -> None:
    """A word that waits for one cycle, and every pair of cycles after it."""
    await reset(dut, *STREAM)
    for second in product((0, 1), (0, 1), (5, 6)):
        valid, ready, payload = second
        ends = ((1, 1, payload),) if valid and not ready else ()
        expected = FELL if not valid else CHANGED if payload != 5 else 0
        assert await shows(dut, (1, 0, 5), second, *ends) == expected, second
        assert await shows(dut, (1, 1, 5), second, *ends) == 0, second


@cocotb.test()
async def a_reset_ends_what_waited(dut) -> None:
    """Valid may fall with a reset."""
    await reset(dut, *STREAM)
    dut.unit__insn__valid.value = 1
    await RisingEdge(dut.clk)
    dut.unit__insn__valid.value = 0
    dut.rst.value = 1
    await RisingEdge(dut.clk)
    dut.rst.value = 0
    assert await shows(dut) == 0
