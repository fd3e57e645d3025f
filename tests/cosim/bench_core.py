"""The whole core with a memory that is not ours: cocotbext-axi's, which pauses every channel at
random. Results must be right in bytes; how long they take is up to the pauses.
"""

from __future__ import annotations

import cocotb
from vdla.cosim import check_dram, find_bench, parameter
from vdla.isa.reference import run as run_reference
from vdla.isa.status import Status
from vdla.sim.verify.random_programs import random_program

from .configs import CONFIGS


@cocotb.test()
async def leaves_dram_like_the_reference(dut) -> None:
    params, seed = CONFIGS[parameter("config")], int(parameter("seed"))
    program = random_program(params, seed, 60)
    expected = program.dram_image()
    run_reference(program, expected)

    core = find_bench(dut, params)
    await core.reset()
    core.attach_ram(program.dram_image(), pauses="heavy", seed=seed)
    assert await core.run(program) == Status.DONE
    check_dram(core.contents(), expected)
    cycles = await core.check_counters(program)
    dut._log.info("%d instructions in %d cycles", len(program.insns), cycles)
