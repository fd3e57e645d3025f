"""The core as a peripheral (``hw/soc``): registers over Wishbone, a memory that is not ours and
pauses at random (cocotbext-axi's), the interrupt.
"""

from __future__ import annotations

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiBus, AxiRam
from vdla.cosim import check_dram, parameter
from vdla.cosim.axi import pause_channels
from vdla.cosim.bench import reset, until
from vdla.isa.reference import run as run_reference
from vdla.isa.regmap import CONTROL_START, OFFSETS
from vdla.isa.soc import INTERRUPT, WINDOW
from vdla.isa.status import Status
from vdla.sim.verify.random_programs import random_program

from .configs import NARROW

_INPUTS = ("bus_cyc", "bus_stb", "bus_we", "bus_adr", "bus_dat_w", "bus_sel", "reset")
_MOST_CYCLES = 100_000


@cocotb.test()
async def runs_a_program_in_a_window(dut) -> None:
    """Memory around the window stays as it was."""
    seed = int(parameter("seed"))
    memory = AxiRam(AxiBus.from_prefix(dut, "axi"), dut.clk, dut.rst, size=1 << 24)
    pause_channels((memory.read_if, memory.write_if), "heavy", seed)
    await reset(dut, *_INPUTS)

    async def access(offset: int, value: int | None = None) -> int:
        """Read a register, or write it."""
        request = (1, 1, value is not None, offset // 4, value or 0, 15)
        for name, level in zip(_INPUTS, request, strict=False):
            getattr(dut, name).value = level
        await until(dut, lambda: dut.bus_ack.value, 20, f"an answer for register {offset:#x}")
        word = int(dut.bus_dat_r.value)
        dut.bus_cyc.value = dut.bus_stb.value = 0
        await RisingEdge(dut.clk)
        return word

    assert await access(OFFSETS["config_hash"]) == int(NARROW.hash, 16)
    program = random_program(NARROW, seed, 60)
    expected, size = program.dram_image(), 1 << (program.dram_bytes - 1).bit_length()
    window = size * seed
    memory.write(0, b"\xa5" * (window + size))
    memory.write(window, expected.tobytes())
    run_reference(program, expected)
    for offset, value in (
        (WINDOW, window), (OFFSETS["program_hash"], int(NARROW.hash, 16)),
        (OFFSETS["program_addr"], program.program_addr),
        (OFFSETS["insn_count"], len(program.insns)),
    ):  # fmt: skip
        await access(offset, value)
        assert await access(offset) == value, f"register {offset:#x}"
    assert not dut.irq.value and await access(INTERRUPT) == 0
    await access(OFFSETS["control"], CONTROL_START)
    await until(dut, lambda: dut.irq.value, _MOST_CYCLES, "the interrupt")
    assert await access(OFFSETS["status"]) == Status.DONE and await access(INTERRUPT) == 1
    check_dram(np.frombuffer(memory.read(window, expected.size), np.uint8), expected)
    around = memory.read(0, window) + memory.read(window + expected.size, size - expected.size)
    assert set(around) == {0xA5}
    await access(INTERRUPT, 1)
    assert not dut.irq.value and await access(INTERRUPT) == 0
