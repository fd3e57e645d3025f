"""The whole core in a cocotb bench: its registers as a host sees them, its AXI port under watch."""

from __future__ import annotations

from typing import Any

import numpy as np
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from cocotbext.axi import AxiBus, AxiRam

from ..isa.opcodes import Unit
from ..isa.params import HwParams
from ..isa.program import Program
from ..isa.regmap import CAUSES, CONTROL_START, OFFSETS
from ..isa.status import Status
from .axi import AxiMonitor, pause_channels
from .bench import reset

_REGISTER_PORTS = ("regs_addr", "regs_wdata", "regs_write")


class CoreBench:
    """A core (ports of ``core_verilog``: ``clk``, ``rst``, ``axi_*``, ``regs_*``, ``running``, ...)
    with its AXI rules asserted.

    Parameters
    ----------
    dut : the core
    params : HwParams
        Its configuration.

    Examples
    --------
    ::

        bench = CoreBench(dut, program.params)
        await bench.reset()
        ram = bench.attach_ram(program.dram_image(), pauses="heavy", seed=1)
        assert await bench.run(program) == Status.DONE
        dram = bench.contents(ram)
    """

    def __init__(self, dut: Any, params: HwParams) -> None:
        self.dut, self.params = dut, params
        self.axi = AxiMonitor(dut, params)

    async def reset(self, watch: bool = True) -> None:
        """Start the clock, reset the core, and watch its AXI port from then on; without ``watch``
        the bench calls ``axi.sample`` itself.
        """
        await reset(self.dut, *_REGISTER_PORTS)
        if watch:
            self.axi.start()

    def attach_ram(self, dram: np.ndarray, pauses: str = "off", seed: int = 0) -> AxiRam:
        """cocotbext-axi's memory behind the core, with these contents (uint8).

        ``pauses`` is off, light or heavy: how often each channel pauses, at random from ``seed``.
        """
        dut = self.dut
        ram = AxiRam(AxiBus.from_prefix(dut, "axi"), dut.clk, dut.rst, size=dram.size)
        ram.write(0, dram.tobytes())
        pause_channels((ram.read_if, ram.write_if), pauses, seed)
        return ram

    async def write(self, name: str, value: int) -> None:
        """Write a register."""
        dut = self.dut
        dut.regs_addr.value, dut.regs_wdata.value, dut.regs_write.value = OFFSETS[name], value, 1
        await RisingEdge(dut.clk)
        dut.regs_write.value = 0

    async def read(self, name: str) -> int:
        """Read a register."""
        self.dut.regs_addr.value = OFFSETS[name]
        await FallingEdge(self.dut.clk)
        return int(self.dut.regs_rdata.value)

    async def start(self, program: Program) -> None:
        """Start a program that is in memory; returns at the edge that begins its cycle 0."""
        await self.write("program_hash", int(program.params.hash, 16))
        await self.write("program_addr", program.program_addr)
        await self.write("insn_count", len(program.insns))
        await self.write("control", CONTROL_START)
        await ClockCycles(self.dut.clk, 1)

    async def run(self, program: Program, limit: int = 120_000) -> Status:
        """Start a program and wait for its end.

        Raises AssertionError after ``limit`` cycles.
        """
        await self.start(program)
        await RisingEdge(self.dut.clk)
        for _ in range(limit):
            await RisingEdge(self.dut.clk)
            if not self.dut.running.value:
                return Status(await self.read("status"))
        raise AssertionError(f"the program has not ended after {limit} cycles")

    async def check_counters(self, program: Program) -> int:
        """Assert that every instruction has ended, and that the counters of each unit add up to all
        cycles; after the end of a program. Returns the cycles.
        """
        cycles = await self.read("cycles")
        for unit in Unit:
            name = unit.name.lower()
            counts = [await self.read(f"{name}_{cause}") for cause in CAUSES]
            assert sum(counts) == cycles, f"{name}: its counters must add up to all cycles"
            ended = sum(insn.unit is unit for insn in program.insns)
            assert await self.read(f"{name}_ended") == ended
        return cycles


def check_dram(got: np.ndarray, expected: np.ndarray) -> None:
    """Raise AssertionError with the first address at which two memories (uint8) differ."""
    wrong = np.flatnonzero(got != expected)
    assert not wrong.size, (
        f"{wrong.size} bytes of DRAM differ, the first at {wrong[0]:#x}: expected "
        f"{expected[wrong[0]]:#04x}, got {got[wrong[0]]:#04x}"
    )
