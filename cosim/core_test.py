"""The bench of ``vdla cosim``: the program on the core, with all checks."""

from __future__ import annotations

import cocotb

from .cosimulation import CoSimulation


@cocotb.test()
async def program(dut) -> None:
    """Every instruction does what the reference says, when the SimPy model says."""
    await CoSimulation.from_command(dut).run()
