"""Load unit: loads of random programs, from a memory at random speed, against the reference."""

from __future__ import annotations

import random

import cocotb
from cocotb.triggers import RisingEdge
from vdla.cosim import (
    ReadMemory,
    StreamSink,
    StreamSource,
    UnitDriver,
    parameter,
    reset,
    stored_words,
    until,
)
from vdla.isa.opcodes import LOADABLE, Unit
from vdla.isa.reference import State, execute
from vdla.sim.verify.random_programs import random_program

from .configs import CONFIGS


def mask(parts: int, bits: int) -> int:
    """A mask of the bits that are written of an entry whose parts have this many bits."""
    return sum(((1 << bits) - 1) << bits * n for n in range(parts.bit_length()) if parts >> n & 1)


@cocotb.test()
async def fills_the_scratchpads_like_the_reference(dut) -> None:
    params = CONFIGS[parameter("config")]
    seed = int(parameter("seed"))
    rng = random.Random(seed)
    program = random_program(params, seed, 90)
    insns = [insn for insn in program.insns if insn.unit is Unit.LOAD]
    dram = program.dram_image()
    state = State(params, dram.copy())
    written = {name: stored_words(state, name) for name in LOADABLE}

    driver = UnitDriver(dut, params, rng, insns)
    await reset(dut, *driver.INPUTS, "request__ready", "beat__valid", "beat__payload")
    driver.start()
    request, beat = StreamSink(dut, "request", rng), StreamSource(dut, "beat", rng)
    memory = ReadMemory(request, dram, params)

    async def writes() -> None:
        while True:
            await RisingEdge(dut.clk)
            for name, contents in written.items():
                parts = getattr(dut, f"{name}__en").value
                if int(parts):
                    address = int(getattr(dut, f"{name}__addr").value)
                    data = getattr(dut, f"{name}__data").value
                    enabled = mask(int(parts), len(data) // len(parts))
                    contents[address] = contents[address] & ~enabled | int(data) & enabled

    async def answer() -> None:
        async for word in memory.beats():
            await beat.send([word], gap=0.3)

    for task in (writes(), answer(), request.accept()):
        cocotb.start_soon(task)
    await until(dut, driver.finished, 60_000, "the end of all loads")
    for insn in insns:
        execute(insn, state)
    for name, contents in written.items():
        assert contents == stored_words(state, name), f"{name} differs from the reference"
    requested = sum(payload >> 32 for payload in request.monitor.payloads)
    assert requested == len(beat.monitor.payloads), "beats were requested and not taken"
