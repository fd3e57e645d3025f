"""Tensor core and vector unit under Verilator. The memories are the bench's own, so that a wrong
address, a late write or a write too many shows, whatever our scratchpads do; instructions come and
tokens are missing at random. Parameters by environment: BENCH_UNIT, BENCH_SEED.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge
from vdla.isa.reference import execute

from . import test_gemm, test_vector
from .bench import SMALL, raw, words
from .monitor import StreamMonitor

READS = {
    "gemm": {"uop": "uop", "inp": "inp", "wgt": "wgt", "acc": "acc"},
    "vector": {"acc": "acc", "inp": "inp", "par": "par", "tmp0": "tmp", "tmp1": "tmp"},
}
WRITES = {"gemm": {"acc_write": "acc"}, "vector": {"tmp_write": "tmp", "out_write": "out"}}
CASES = {"gemm": test_gemm.random_case, "vector": test_vector.random_case}


@cocotb.test()
async def computes_as_the_reference(dut) -> None:
    unit, seed = os.environ["BENCH_UNIT"], int(os.environ["BENCH_SEED"])
    rng = random.Random(seed)
    insns, state = CASES[unit](SMALL, seed, 60)
    reads, writes = READS[unit], WRITES[unit]
    memory = {name: words(state, name) for name in {*reads.values(), *writes.values()}}
    index_bits = len(dut.unit__insn__payload) - 8 * SMALL.insn_bytes
    payloads = [
        raw(insn, SMALL) | (k % (1 << index_bits)) << (8 * SMALL.insn_bytes)
        for k, insn in enumerate(insns)
    ]
    for name in ("rst", "unit__insn__valid", "unit__insn__payload", "unit__available"):
        getattr(dut, name).value = 0
    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())

    stream, starts, ends = StreamMonitor("insn"), [], []
    for cycle in range(20_000):
        await RisingEdge(dut.clk)
        valid, ready = int(dut.unit__insn__valid.value), int(dut.unit__insn__ready.value)
        stream.sample(valid, ready, int(dut.unit__insn__payload.value))
        assert not int(dut.unit__error.value)
        if dut.unit__start.value:
            pop = int(insns[len(starts)].pop)
            assert int(dut.unit__pop.value) == pop
            assert pop & ~int(dut.unit__available.value) == 0
            starts.append(cycle)
        if dut.unit__end.value:
            assert int(dut.unit__push.value) == int(insns[len(ends)].push)
            ends.append(cycle)
        # Memories as the contract has them: reads of this cycle miss writes of this cycle.
        for port, name in reads.items():
            address = int(getattr(dut, f"{port}__addr").value)
            row = memory[name][address] if address < len(memory[name]) else rng.getrandbits(8)
            getattr(dut, f"{port}__data").value = row
        for port, name in writes.items():
            if getattr(dut, f"{port}__en").value:
                address = int(getattr(dut, f"{port}__addr").value)
                memory[name][address] = int(getattr(dut, f"{port}__data").value)
        if len(ends) == len(insns):
            break
        taken = len(stream.transfers)
        if (valid and ready) or not valid:
            offer = taken < len(insns) and rng.random() < 0.6
            dut.unit__insn__valid.value = offer
            if offer:
                dut.unit__insn__payload.value = payloads[taken]
        dut.unit__available.value = rng.choice((15, 15, rng.randrange(16)))
    assert len(starts) == len(ends) == len(insns)
    assert stream.payloads == payloads
    for insn in insns:
        execute(replace(insn), state)
    for name, contents in memory.items():
        assert contents == words(state, name), f"{name} differs from the reference"
