"""Programs one after the other on a core, with a reset by the register between them: each in a
folder of its own, compared as it runs. The first divergence ends the bench.
"""

from __future__ import annotations

from pathlib import Path

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles
from vdla.cosim import CoSimulation, Job, parameter
from vdla.isa.regmap import CONTROL_RESET


@cocotb.test()
async def programs(dut) -> None:
    held: dict[str, np.ndarray] = {}
    folders = sorted(Path(parameter("jobs")).iterdir())
    for number, folder in enumerate(folders):
        cosim = CoSimulation(dut, Job.load(folder), folder)
        if number:
            await cosim.bench.write("control", CONTROL_RESET)
            await ClockCycles(dut.clk, 2)
        scratchpads = cosim.check.state.scratchpads()
        for name, entries in held.items():  # the reset leaves memories as they are
            scratchpads[name][:] = entries
        held = scratchpads
        await cosim.prepare(reset=number == 0)
        await cosim.run()
