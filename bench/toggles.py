"""The energy of a layer in standard cells, by what toggles while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..compiler.build import CompiledModel, build
from ..compiler.targets.base import Options
from ..compiler.targets.registry import find_target
from ..hw.asic.activity import Samples, wanted_signals
from ..hw.asic.energy import Energy, energy_of
from ..hw.asic.estimate import Design
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.program import Program
from ..sim.model.core import simulate
from ..sim.rtl.driver import RtlSimulator, Waves
from .measure import random_inputs
from .workloads import ConvLayer

#: Cycles that are looked at, in so many windows that are spread evenly over a program.
WINDOWS, WINDOW_CYCLES = 16, 128


def layer_energy(layer: ConvLayer, design: Design, memory: MemoryParams) -> tuple[int, Energy]:
    """The cycles of a layer with random inputs, and the energy of a cycle, of some of them.

    Raises VdlaError as :func:`sample_programs`.
    """
    target = find_target("sim", Options(design.params, memory))
    compiled = build(layer.model(design.params.batch), target)
    if len(compiled.programs) != 1:
        raise VdlaError(
            f"layer: expected one that is one program, {layer.name} is {len(compiled.programs)}"
        )
    [(cycles, samples)] = sample_programs(compiled, [design], memory)
    return cycles, energy_of(design.netlist, design.memories, design.timing, samples)


def sample_programs(
    compiled: CompiledModel, designs: Sequence[Design], memory: MemoryParams
) -> list[tuple[int, Samples]]:
    """Run a compiled network with random inputs, once, in the RTL of designs that have the same
    Verilog: for each program its cycles, and what the registers hold in some of them.

    Raises
    ------
    VdlaError
        Where the Verilog does not take the cycles or leave the bytes of the model.
    """
    wanted = set().union(*(wanted_signals(design.netlist) for design in designs))
    simulator = RtlSimulator(designs[0].params, designs[0].text)
    found: list[tuple[int, Samples]] = []

    def execute(program: Program, dram: np.ndarray) -> None:
        begun = dram.copy()
        cycles = simulate(program, dram, memory).cycles
        every = max(cycles // WINDOWS, WINDOW_CYCLES + 1)
        first = (every - WINDOW_CYCLES) // 2
        with TemporaryDirectory(prefix="vdla_toggles_") as folder:
            vcd = Path(folder) / "program.vcd"
            window = Waves(vcd, first, first + WINDOW_CYCLES, every)
            result = simulator.run(program, begun, memory, waves=window)
            if result.cycles != cycles or not np.array_equal(begun, dram):
                raise VdlaError(
                    f"toggles: expected {cycles:,} cycles and the model's bytes of the design for "
                    f"standard cells, got {result.cycles:,} and others; this is a bug of its"
                    " Verilog"
                )
            with vcd.open(encoding="utf-8") as lines:
                found.append((cycles, Samples(lines, wanted)))

    compiled.run(random_inputs(compiled.inputs), execute)
    return found
