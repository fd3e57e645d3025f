"""The mutants of the RTL under co-simulation: ``python -m tests.mutants --cosim NAME ...``.

What ``vdla cosim`` does is done with the core of each mutant: the directed programs that the other
check of the RTL begins with, random ones and a small network run on the Verilog under cocotb and
are compared as they run, with a reset by the register between them. The mutants that it cannot see
are listed, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import vdla
from vdla.cosim import BenchFailure, Build, Design, Job, Settings, run_bench
from vdla.cosim.blocks import tapped_core
from vdla.cosim.job import read_results
from vdla.hw.core.verilog import TOP
from vdla.isa.memory import MemoryParams
from vdla.isa.params import HwParams
from vdla.isa.program import Program
from vdla.sim.rtl import toolchain
from vdla.sim.verify.random_programs import random_program

from ..campaign.programs import tmp_chains, token_stream
from .checks import MEMORY, NARROW, PASSES, PROGRAMS, ROOT, rtl_differs
from .plant import Mutant
from .rtl import RTL

MODELS = ROOT / "examples" / "models"
BENCH = Path(__file__).with_name("bench_programs.py")
#: A core with every feature that a mutant may be planted in, and the same with a vector in one
#: pass: two passes are so far apart that some bugs do not show.
ALL = replace(PASSES, vector_table=2, vector_window=3, par_depth=51)
ONE_PASS = replace(ALL, vector_passes=1)
#: Tiles of weights that may be packed.
PACKED = replace(ONE_PASS, block_in=8, block_out=8, packed_weights=1)
_LEGAL = "the programs are legal"
#: Mutants that legal programs on these cores do not show.
UNSEEN = {
    "one entry beyond is legal": f"{_LEGAL}: no entry lies beyond a memory",
    "a table beyond par is legal": f"{_LEGAL}: no table lies beyond par",
    "a window wider than its row is legal": f"{_LEGAL}: no window is wider than its row",
    "the first scales are the last": "tiles of 8 x 8 have one beat of scales",
    "counter wraps unseen": f"{_LEGAL}: no counter of tokens overflows",
    "runs foreign programs": f"{_LEGAL}: they have the core's configuration",
    "deadlock seen only when all is fetched": f"{_LEGAL}: none deadlocks",
    "ignored reset": f"{_LEGAL}: none leaves a token behind, which is all that is not reset",
}


@dataclass(frozen=True)
class CosimCheck:
    """What co-simulation finds in the core of a configuration, as it is elaborated now.

    Attributes
    ----------
    params : HwParams
        The configuration.
    programs : int
        How many random programs are run.
    """

    params: HwParams
    programs: int = PROGRAMS

    def __call__(self) -> str | None:
        toolchain.setup_yosys()
        core = Design(TOP, tapped_core(self.params))  # what is kept has no mutants
        with TemporaryDirectory() as work, TemporaryDirectory() as jobs:
            for number, (name, program, dram, memory) in enumerate(self._runs()):
                folder = Path(jobs) / f"{number:02} {name}"
                folder.mkdir()
                Job(program, dram, Settings(memory)).save(folder)
            try:
                run_bench(core, BENCH, Path(work), None, Build(fast=True), jobs=jobs)
            except BenchFailure as failure:
                return _first_divergence(Path(jobs)) or str(failure).strip().splitlines()[-1]
        return None

    def _runs(self) -> Iterator[tuple[str, Program, np.ndarray, MemoryParams]]:
        """What is run: name, program, DRAM before, memory."""
        for directed in (tmp_chains, token_stream):
            program = directed(self.params)
            yield directed.__name__, program, program.dram_image(), MEMORY
        for seed in range(self.programs):
            program = random_program(self.params, seed)
            yield f"program {seed}", program, program.dram_image(), (MEMORY, NARROW)[seed % 2]
        program, dram = _digits(self.params)
        yield "digits", program, dram, MEMORY


def _first_divergence(jobs: Path) -> str | None:
    for folder in sorted(jobs.iterdir()):
        for result in read_results(folder)[0]:
            found = result["first_divergence"]
            if found is not None:
                where = f"{folder.name[3:]}, cycle {found['cycle']}"
                where += f", instruction {found['instruction']}"
                return f"{where}: {found['what']}, {found['expected']} {found['got']}"
    return None


@cache
def _digits(params: HwParams) -> tuple[Program, np.ndarray]:
    """The digits network with one image."""
    compiled = vdla.compile(MODELS / "digits_int8.onnx", hw=params, memory=MEMORY).compiled
    image = np.load(MODELS / "digits_test.npz")["x"][: compiled.inputs[0].shape[0]]
    return compiled.program, compiled.dram([image])


def _config(mutant: Mutant) -> HwParams:
    """The core in which a mutant shows."""
    if mutant.place == "rtl packed":
        return PACKED
    return ONE_PASS if mutant.check is rtl_differs else ALL


COSIM: tuple[Mutant, ...] = tuple(
    replace(mutant, check=CosimCheck(_config(mutant))) for mutant in RTL
)
