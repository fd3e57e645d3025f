"""The core in its AXI wrapper between a master and a memory that are not ours, cocotbext-axi's,
which pause every channel at random.
"""

from __future__ import annotations

import cocotb
from cocotbext.axi import AxiResp
from vdla.cosim import check_dram, find_bench, parameter
from vdla.isa.reference import run as run_reference
from vdla.isa.regmap import OFFSETS
from vdla.isa.status import Status
from vdla.sim.verify.random_programs import random_program

from .configs import NARROW


@cocotb.test()
async def runs_a_program(dut) -> None:
    seed = int(parameter("seed"))
    program = random_program(NARROW, seed, 60)
    expected = program.dram_image()
    run_reference(program, expected)
    core = find_bench(dut, NARROW)
    await core.reset()
    core.attach_ram(program.dram_image(), pauses="heavy", seed=seed)

    assert await core.read("config_hash") == int(NARROW.hash, 16)
    await core.write("insn_count", 7)
    # Half a register is refused, and changes nothing.
    assert (await core.host.write(OFFSETS["insn_count"], b"\1\1")).resp == AxiResp.SLVERR
    assert await core.read("insn_count") == 7
    assert await core.run(program) == Status.DONE
    check_dram(core.contents(), expected)
    await core.check_counters(program)
