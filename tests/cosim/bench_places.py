"""A bench of a user's that does not know where the core is."""

from __future__ import annotations

import cocotb
from vdla.cosim import check_dram, find_bench
from vdla.isa.reference import run as run_reference
from vdla.isa.status import Status
from vdla.sim.verify.random_programs import random_program

from .configs import NARROW


@cocotb.test()
async def leaves_dram_like_the_reference(dut) -> None:
    program = random_program(NARROW, 4, 40)
    expected = program.dram_image()
    run_reference(program, expected)
    core = find_bench(dut, NARROW)
    await core.reset()
    assert await core.read("config_hash") == int(NARROW.hash, 16)
    core.attach_ram(program.dram_image())
    assert await core.run(program) == Status.DONE
    check_dram(core.contents(), expected)
    assert await core.check_counters(program) > 0
