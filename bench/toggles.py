"""The energy of a layer in standard cells, by what toggles while it runs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..compiler.build import build
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

#: Cycles that are looked at, in so many windows that are spread evenly over the layer.
WINDOWS, WINDOW_CYCLES = 16, 128


def layer_energy(layer: ConvLayer, design: Design, memory: MemoryParams) -> tuple[int, Energy]:
    """The cycles of a layer with random inputs, and the energy of a cycle, of some of them.

    Raises
    ------
    VdlaError
        Where the Verilog of the design does not take the cycles or leave the bytes of the model.
    """
    found: list[tuple[int, Energy]] = []

    def execute(program: Program, dram: np.ndarray) -> None:
        found.append(program_energy(program, dram, design, memory))

    target = find_target("sim", Options(design.params, memory))
    compiled = build(layer.model(design.params.batch), target)
    if len(compiled.programs) != 1:
        raise VdlaError(
            f"layer: expected one that is one program, {layer.name} is {len(compiled.programs)}"
        )
    compiled.run(random_inputs(compiled.inputs), execute)
    return found[0]


def program_energy(
    program: Program, dram: np.ndarray, design: Design, memory: MemoryParams
) -> tuple[int, Energy]:
    """The same of a program; ``dram`` is changed in place. Errors as :func:`layer_energy`."""
    begun, wanted = dram.copy(), wanted_signals(design.netlist)
    cycles = simulate(program, dram, memory).cycles
    every = max(cycles // WINDOWS, WINDOW_CYCLES + 1)
    first = (every - WINDOW_CYCLES) // 2
    with TemporaryDirectory(prefix="vdla_toggles_") as folder:
        vcd = Path(folder) / "layer.vcd"
        window = Waves(vcd, first, first + WINDOW_CYCLES, every)
        simulator = RtlSimulator(design.params, design.text)
        result = simulator.run(program, begun, memory, waves=window)
        if result.cycles != cycles or not np.array_equal(begun, dram):
            raise VdlaError(
                f"toggles: expected {cycles:,} cycles and the model's bytes of the design for "
                f"standard cells, got {result.cycles:,} and others; this is a bug of its Verilog"
            )
        with vcd.open(encoding="utf-8") as lines:
            samples = Samples(lines, wanted)
    return cycles, energy_of(design.netlist, design.memories, design.timing, samples)
