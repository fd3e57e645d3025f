"""A model compiled for the system: programs for the core, code for the processor beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from ..compiler.build import build
from ..compiler.frontends.doors.opening import open_door
from ..compiler.targets.base import Options
from ..compiler.targets.cpu.processor import Processor
from ..compiler.targets.cpu.target import Cpu
from ..compiler.targets.vdla.target import Accelerator
from ..isa.errors import VdlaError
from ..isa.memory import load_platform
from ..isa.params import HwParams
from ..isa.sdram import PARTS, ULX3S
from ..module import Model, Module, Progress
from ..runtime.bundle import CodeFor, Settings
from ..runtime.native import as_input
from .firmware import build_firmware
from .image import build_image
from .simulator import SocSimulator

#: VexRiscv as ``hw/soc`` has it: RV32IM, whose floating point is functions.
PROCESSOR = Processor("riscv32-unknown-elf", "generic-rv32", ("+m",), "ilp32")


def compile_for_soc(
    model: Model,
    hw: HwParams | str | Path = "4x4",
    vthreads: int = 2,
    progress: Progress | None = None,
) -> Module:
    """A model for the system with the SDRAM of the ULX3S; programs are those of target ``sim``
    with ``--memory ulx3s``. It cannot run here.

    Parameters
    ----------
    model, vthreads, progress
        As for :func:`vdla.compile`.
    hw : HwParams, or the name of a preset or TOML file
        The core's configuration, with a bus of 64 bits.

    Raises
    ------
    VdlaError
        As :func:`vdla.compile`.
    """
    params, memory = load_platform(hw, ULX3S)
    options = Options(params, memory, vthreads)
    target = Accelerator(options, Cpu(options, PROCESSOR))
    compiled = build(open_door(model), target, progress=progress)
    features = tuple(name[1:] for name in PROCESSOR.features)
    code_for = CodeFor(PROCESSOR.triple, features)
    no_report = ""  # in which the model's digest would be
    return Module(compiled, Settings("sim", params, memory, vthreads, no_report, code_for))


class SocModel:
    """A model with inputs for the system.

    Parameters
    ----------
    module : of :func:`compile_for_soc`
    arrays : one per input; the model runs once per batch of them

    Attributes
    ----------
    params : the core's configuration
    firmware, image : what the processor's memory begins with; what is in flash
    simulator : the system in simulation, which is built when it is asked for

    Raises
    ------
    VdlaError
        For arrays that do not fit, a model that is too large, and where a tool is missing.
    """

    def __init__(self, module: Module, arrays: Sequence[np.ndarray]):
        self.params, self._part = module.params, module.memory.part
        given = [as_input(a, t.dtype) for a, t in zip(arrays, module.inputs, strict=True)]
        samples = module.batches(given)
        self.image = build_image(module.compiled, samples, PARTS[self._part].size_bytes)
        self.firmware = build_firmware(PARTS[self._part].size_bytes)

    @cached_property
    def simulator(self) -> SocSimulator:
        """The system in simulation. Raises VdlaError where a tool is missing."""
        return SocSimulator(self.params, self._part)

    def run(self) -> Iterator[str]:
        """The lines that the firmware prints, as they come.

        Raises
        ------
        VdlaError
            For a line that says an error.
        """
        for line in self.simulator.run(self.firmware, self.image):
            if line.startswith("error: "):
                raise VdlaError(f"soc: {line.removeprefix('error: ')}")
            yield line
