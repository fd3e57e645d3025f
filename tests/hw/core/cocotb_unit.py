"""Tensor core and vector unit under Verilator. The memories are the bench's own, so that a wrong
address, a late write or a write too many shows, whatever our scratchpads do; instructions come and
tokens are missing at random. Parameters: unit, seed.
"""

from __future__ import annotations

import random
from dataclasses import replace

import cocotb
from cocotb.triggers import RisingEdge
from vdla.cosim import UnitDriver, parameter, reset, stored_words, until
from vdla.isa.reference import execute

from . import test_gemm, test_vector
from .bench import SMALL

READS = {
    "gemm": {"uop": "uop", "inp": "inp", "wgt": "wgt", "acc": "acc"},
    "vector": {"acc": "acc", "inp": "inp", "par": "par", "tmp0": "tmp", "tmp1": "tmp"},
}
WRITES = {"gemm": {"acc_write": "acc"}, "vector": {"tmp_write": "tmp", "out_write": "out"}}
CASES = {"gemm": test_gemm.random_case, "vector": test_vector.random_case}


@cocotb.test()
async def computes_as_the_reference(dut) -> None:
    unit, seed = parameter("unit"), int(parameter("seed"))
    rng = random.Random(seed)
    insns, state = CASES[unit](SMALL, seed, 60)
    reads, writes = READS[unit], WRITES[unit]
    memory = {name: stored_words(state, name) for name in {*reads.values(), *writes.values()}}

    async def memories() -> None:
        """As the contract has them: reads of this cycle miss writes of this cycle."""
        while True:
            await RisingEdge(dut.clk)
            for port, name in reads.items():
                address = int(getattr(dut, f"{port}__addr").value)
                row = memory[name][address] if address < len(memory[name]) else rng.getrandbits(8)
                getattr(dut, f"{port}__data").value = row
            for port, name in writes.items():
                if getattr(dut, f"{port}__en").value:
                    address = int(getattr(dut, f"{port}__addr").value)
                    memory[name][address] = int(getattr(dut, f"{port}__data").value)

    driver = UnitDriver(dut, SMALL, rng, insns)
    await reset(dut, *driver.INPUTS, *(f"{port}__data" for port in reads))
    cocotb.start_soon(memories())
    driver.start()
    await until(dut, driver.finished, 20_000, "the end of all instructions")
    await RisingEdge(dut.clk)  # the memories see the cycle of the last end
    assert driver.starts == len(insns)
    assert driver.source.monitor.payloads == driver.payloads
    for insn in insns:
        execute(replace(insn), state)
    for name, contents in memory.items():
        assert contents == stored_words(state, name), f"{name} differs from the reference"
