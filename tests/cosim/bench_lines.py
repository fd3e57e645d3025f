"""Programs for coverage of the Verilog: random and steered ones, and those that must stop with an
error.
"""

from __future__ import annotations

from dataclasses import replace

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, RisingEdge
from vdla.cosim import CoreBench, DramModel, check_dram, parameter
from vdla.isa.encoding import layout, pack
from vdla.isa.insn import Gemm, Insn, Load, Param, Store, Uop, Vector, encode_uop, field_values
from vdla.isa.memory import MemoryParams
from vdla.isa.opcodes import Units
from vdla.isa.program import Program
from vdla.isa.reference import State, execute
from vdla.isa.regmap import CONTROL_RESET, CONTROL_START
from vdla.isa.status import Status
from vdla.sim.coverage.bins import bins
from vdla.sim.verify.random_programs import random_program
from vdla.sim.verify.steered import choose_holes, steered_program

from .configs import NARROW

MEMORY = MemoryParams(cycles_per_beat=2, outstanding=2)
RANDOM, STEERED = 8, 10
LIMIT = 200_000
LOAD = Load(memory="inp", base=0, dram_addr=0, x_size=1)
GEMM = Gemm(uop_begin=0, uop_count=1)
VECTOR = Vector(op="add", src0="acc", src1="imm", dst="tmp")
STORE = Store(base=0, dram_addr=64, x_size=1)
FAR = 1 << 20
#: Instructions that must stop the core, and the status.
FAULTS: dict[str, tuple[tuple[Insn, ...], Status]] = {
    "no rows": ((replace(LOAD, z_size=0),), Status.ILLEGAL),
    "no iterations": ((replace(GEMM, outer=0),), Status.ILLEGAL),
    "no extent": ((replace(VECTOR, extents=(1, 1, 0, 1)),), Status.ILLEGAL),
    "nothing to store": ((replace(STORE, x_size=0),), Status.ILLEGAL),
    "an own token": ((Param(par_base=0, pop=Units.VECTOR),), Status.ILLEGAL),
    "load beyond": ((replace(LOAD, base=NARROW.inp_depth),), Status.ADDRESS),
    "uops beyond": ((replace(GEMM, uop_begin=NARROW.uop_depth - 1, uop_count=2),), Status.ADDRESS),
    "a sum beyond": ((Load(memory="uop", base=0, dram_addr=8, x_size=1, push=Units.GEMM),
                      replace(GEMM, pop=Units.LOAD)), Status.ADDRESS),
    "vector beyond": ((replace(VECTOR, src0_base=NARROW.acc_depth),), Status.ADDRESS),
    "param beyond": ((Param(par_base=NARROW.par_depth - 2),), Status.ADDRESS),
    "store beyond": ((replace(STORE, base=NARROW.out_depth),), Status.ADDRESS),
    "read beyond DRAM": ((replace(LOAD, dram_addr=FAR),), Status.BUS),
    "write beyond DRAM": ((replace(STORE, dram_addr=FAR),), Status.BUS),
    "too many tokens": ((Param(par_base=0, push=Units.LOAD),) * 64, Status.TOKEN_OVERFLOW),
    "deadlock": ((replace(LOAD, pop=Units.GEMM),), Status.DEADLOCK),
    "no opcode": ((), Status.ILLEGAL),
    "another configuration": ((LOAD,), Status.BAD_CONFIG),
    "instructions beyond DRAM": ((LOAD,) * 9, Status.BUS),
}  # fmt: skip


def good_programs() -> list[Program]:
    """Random ones, and steered ones towards bins of every group."""
    every = [(group, name) for group, names in bins(NARROW).items() for name in names]
    steered = [steered_program(NARROW, s, choose_holes(every, s)) for s in range(STEERED)]
    numbers = steered_program(NARROW, 0, [bin_ for bin_ in every if bin_[0] == "numbers"], 80)
    return [*(random_program(NARROW, seed) for seed in range(RANDOM)), *steered, numbers]


async def run(bench: CoreBench, dram: np.ndarray) -> Status:
    """Follow a core that was started; returns how it stops."""
    memory = DramModel(bench.dut, dram, NARROW, MEMORY)
    for cycle in range(LIMIT):
        await RisingEdge(bench.dut.clk)
        if cycle > 1 and not bench.dut.running.value:
            return Status(await bench.read("status"))
        memory.step(cycle, bench.axi.sample())
    raise AssertionError(f"the program has not ended after {LIMIT} cycles")


@cocotb.test()
async def programs(dut) -> None:
    """All one after the other, or one that must fail."""
    name = parameter("fault")
    bench = CoreBench(dut, NARROW)
    await bench.reset(watch=False)
    if name == "none":
        # Scratchpads keep what the program before has left, in the reference, too.
        state = State(NARROW, np.zeros(0, np.uint8))
        for program in good_programs():
            dram, state.dram = program.dram_image(), program.dram_image()
            for insn in program.insns:
                execute(insn, state)
            await bench.write("control", CONTROL_RESET)
            await bench.start(program)
            assert await run(bench, dram) == Status.DONE
            check_dram(dram, state.dram)
        return
    insns, status = FAULTS[name]
    words = [pack(layout(n.opcode, NARROW), field_values(n)) for n in insns] or [0]
    size, uop = NARROW.insn_bytes, encode_uop(Uop(acc=NARROW.acc_depth, inp=0, wgt=0), NARROW)
    program = Program(NARROW, (Param(par_base=0),) * len(words), {8: uop}, {}, 8192)
    dram = program.dram_image()
    raw = b"".join(word.to_bytes(size, "little") for word in words)
    dram[8192 : 8192 + len(raw)] = np.frombuffer(raw, np.uint8)
    if name == "instructions beyond DRAM":
        dram = dram[: 8192 + 4 * size].copy()
    if name == "another configuration":
        await bench.write("program_hash", 1)
        await bench.write("control", CONTROL_START)
    else:
        await bench.start(program)
    assert await run(bench, dram) == status
    await bench.write("control", CONTROL_RESET)
    await ClockCycles(dut.clk, 4)
    assert await bench.read("status") == Status.IDLE
