"""The core in its AXI wrapper between a master and a memory that are not ours, cocotbext-axi's,
which pause every channel at random.
"""

from __future__ import annotations

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam, AxiResp
from vdla.cosim import check_dram, parameter, pause_channels
from vdla.isa.reference import run as run_reference
from vdla.isa.regmap import CONTROL_START, OFFSETS
from vdla.isa.status import Status
from vdla.sim.verify.random_programs import random_program

from .configs import NARROW

POLLS = 2000


@cocotb.test()
async def runs_a_program(dut) -> None:
    seed = int(parameter("seed"))
    program = random_program(NARROW, seed, 60)
    expected = program.dram_image()
    run_reference(program, expected)
    dut.aresetn.value = 0
    cocotb.start_soon(Clock(dut.aclk, 10, "ns").start())
    reset = {"reset": dut.aresetn, "reset_active_level": False}
    ram = AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.aclk, size=program.dram_bytes, **reset)
    host = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi"), dut.aclk, **reset)
    ram.write(0, program.dram_image().tobytes())
    sides = (ram.read_if, ram.write_if, host.read_if, host.write_if)
    assert pause_channels(sides, "heavy", seed) == 10
    await ClockCycles(dut.aclk, 4)
    dut.aresetn.value = 1

    async def write(name: str, value: int) -> None:
        assert (await host.write(OFFSETS[name], value.to_bytes(4, "little"))).resp == AxiResp.OKAY

    async def read(name: str) -> int:
        return int.from_bytes((await host.read(OFFSETS[name], 4)).data, "little")

    assert await read("config_hash") == int(NARROW.hash, 16)
    await write("insn_count", 7)
    # Half a register is refused, and changes nothing.
    assert (await host.write(OFFSETS["insn_count"], b"\1\1")).resp == AxiResp.SLVERR
    assert await read("insn_count") == 7
    await write("program_hash", int(NARROW.hash, 16))
    await write("program_addr", program.program_addr)
    await write("insn_count", len(program.insns))
    await write("control", CONTROL_START)
    for _ in range(POLLS):
        if await read("status") not in (Status.IDLE, Status.RUNNING):
            break
    assert await read("status") == Status.DONE
    check_dram(np.frombuffer(ram.read(0, program.dram_bytes), np.uint8), expected)
    assert await read("store_ended") == sum(type(n).__name__ == "Store" for n in program.insns)
