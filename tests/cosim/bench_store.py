"""Store unit: stores of random programs into a memory at random speed, against the reference."""

from __future__ import annotations

import random

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge
from vdla.cosim import (
    StreamSink,
    UnitDriver,
    check_dram,
    parameter,
    reset,
    stored_words,
    unpack_burst,
    until,
)
from vdla.isa.opcodes import Unit
from vdla.isa.reference import State, execute
from vdla.sim.verify.random_programs import random_program

from .configs import CONFIGS


@cocotb.test()
async def writes_dram_like_the_reference(dut) -> None:
    params = CONFIGS[parameter("config")]
    seed = int(parameter("seed"))
    rng = random.Random(seed)
    program = random_program(params, seed, 200)
    insns = [insn for insn in program.insns if insn.unit is Unit.STORE]
    state = State(params, program.dram_image())
    state.out[...] = np.random.default_rng(seed).integers(-128, 128, state.out.shape, np.int8)
    dram, contents = state.dram.copy(), stored_words(state, "out")

    driver = UnitDriver(dut, params, rng, insns)
    inputs = ("address__ready", "beat__ready", "response", "response_error", "out__data")
    await reset(dut, *driver.INPUTS, *inputs)
    driver.start()
    address, beat = StreamSink(dut, "address", rng), StreamSink(dut, "beat", rng)

    async def reads() -> None:
        """The scratchpad: an address in one cycle, its data in the next."""
        while True:
            await RisingEdge(dut.clk)
            entry = int(dut.out__addr.value)
            dut.out__data.value = contents[entry] if entry < len(contents) else 0

    async def memory() -> None:
        done = taken = 0
        while True:
            while done == len(address.monitor.transfers):
                await RisingEdge(dut.clk)
            start, beats = unpack_burst(address.monitor.payloads[done], params)
            while len(beat.monitor.transfers) < taken + beats:
                await RisingEdge(dut.clk)
            for k, payload in enumerate(beat.monitor.payloads[taken : taken + beats]):
                write(start + k * params.bus_bytes, payload, last=k == beats - 1)
            done, taken = done + 1, taken + beats
            for _ in range(rng.randrange(12)):
                await RisingEdge(dut.clk)
            dut.response.value = 1
            await RisingEdge(dut.clk)
            dut.response.value = 0

    def write(where: int, payload: int, last: bool) -> None:
        size = params.bus_bytes
        data = (payload & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        strobes = payload >> (8 * size) & ((1 << size) - 1)
        assert payload >> (9 * size) == last, "the mark of the last beat"
        for lane in range(size):
            if strobes >> lane & 1:
                dram[where + lane] = data[lane]

    for task in (reads(), memory(), address.accept(), beat.accept()):
        cocotb.start_soon(task)
    await until(dut, driver.finished, 60_000, "the end of all stores")
    for insn in insns:
        execute(insn, state)
    check_dram(dram, state.dram)
