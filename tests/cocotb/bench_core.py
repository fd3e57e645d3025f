"""The whole core with a memory that is not ours: cocotbext-axi's, which pauses every channel at
random. Results must be right in bytes; how long they take is up to the pauses.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from cocotbext.axi import AxiBus, AxiRam
from vdla.isa.opcodes import Unit
from vdla.isa.program import Program
from vdla.isa.reference import run as run_reference
from vdla.isa.regmap import CAUSES, CONTROL_START, OFFSETS
from vdla.isa.status import Status
from vdla.sim.verify.random_programs import random_program

from ..hw.core.monitor import StreamMonitor
from .configs import CONFIGS
from .memory import burst
from .streams import reset

#: What a master must hold still while it waits, per channel.
HELD = {
    "ar": ("addr", "len", "size", "burst", "id"),
    "aw": ("addr", "len", "size", "burst", "id"),
    "w": ("data", "strb", "last"),
}
MAX_CYCLES = 120_000


def pauses(rng: random.Random) -> Iterator[bool]:
    """Without end: now seldom, now often."""
    while True:
        odds = rng.choice((0.0, 0.2, 0.6, 0.9))
        for _ in range(rng.randrange(1, 100)):
            yield rng.random() < odds


class Core:
    """The core's registers as a host sees them, and its channels under watch."""

    def __init__(self, dut, params) -> None:
        self.dut, self.params = dut, params
        self.monitors = {channel: StreamMonitor(channel) for channel in HELD}

    async def watch(self) -> None:
        """Stream and burst rules of the three channels that the core drives."""
        while True:
            await RisingEdge(self.dut.clk)
            for channel, fields in HELD.items():
                payload, signals = 0, [self._signal(channel, name) for name in fields]
                for signal in reversed(signals):
                    payload = payload << len(signal) | int(signal.value)
                valid, ready = (int(self._signal(channel, n).value) for n in ("valid", "ready"))
                self.monitors[channel].sample(valid, ready, payload)
                if valid and channel != "w":
                    address, beats = int(signals[0].value), int(signals[1].value) + 1
                    whole = address | beats << 32
                    burst(whole, self.params.bus_bytes, self.params.max_burst_beats)

    def _signal(self, channel: str, name: str):
        return getattr(self.dut, f"axi_{channel}{name}")

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

    async def run(self, program: Program) -> Status:
        """Start a program and wait for its end."""
        await self.write("program_hash", int(program.params.hash, 16))
        await self.write("program_addr", program.program_addr)
        await self.write("insn_count", len(program.insns))
        await self.write("control", CONTROL_START)
        await ClockCycles(self.dut.clk, 2)
        for _ in range(MAX_CYCLES):
            await RisingEdge(self.dut.clk)
            if not self.dut.running.value:
                return Status(await self.read("status"))
        raise AssertionError(f"the program has not ended after {MAX_CYCLES} cycles")


@cocotb.test()
async def leaves_dram_like_the_reference(dut) -> None:
    params, seed = CONFIGS[os.environ["BENCH_CONFIG"]], int(os.environ["BENCH_SEED"])
    program = random_program(params, seed, 60)
    expected = program.dram_image()
    run_reference(program, expected)

    await reset(dut, "regs_addr", "regs_wdata", "regs_write")
    ram = AxiRam(AxiBus.from_prefix(dut, "axi"), dut.clk, dut.rst, size=program.dram_bytes)
    ram.write(0, program.dram_image().tobytes())
    reads, writes = ram.read_if, ram.write_if
    channels = (reads.ar_channel, reads.r_channel, writes.aw_channel, writes.w_channel,
                writes.b_channel)  # fmt: skip
    for k, channel in enumerate(channels):
        channel.set_pause_generator(pauses(random.Random(10 * seed + k)))
    core = Core(dut, params)
    cocotb.start_soon(core.watch())

    assert await core.run(program) == Status.DONE
    got = np.frombuffer(ram.read(0, program.dram_bytes), np.uint8)
    wrong = np.flatnonzero(got != expected)
    assert not wrong.size, f"{wrong.size} bytes of DRAM differ, the first at {wrong[0]:#x}"
    cycles = await core.read("cycles")
    for unit in Unit:
        name = unit.name.lower()
        counts = [await core.read(f"{name}_{cause}") for cause in CAUSES]
        assert sum(counts) == cycles, f"{name}: its counters must add up to all cycles"
        assert await core.read(f"{name}_ended") == sum(n.unit is unit for n in program.insns)
    dut._log.info("%d instructions in %d cycles", len(program.insns), cycles)
