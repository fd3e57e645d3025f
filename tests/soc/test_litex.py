"""The core in the LiteX system of ``examples/13_litex.py``, in Verilator."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.isa.regmap import CONTROL_START, OFFSETS
from vdla.isa.sdram import ULX3S
from vdla.isa.soc import INTERRUPT, WINDOW
from vdla.isa.status import Status
from vdla.sim.model.core import simulate
from vdla.sim.rtl import toolchain

from .networks import DIGITS, images

pytest.importorskip("litex")
pytestmark = pytest.mark.more
EXAMPLE = Path(__file__).parents[2] / "examples" / "13_litex.py"
BENCH = Path(__file__).with_name("litex_bench.cpp")
CORE, RAM = 0x9000_0000, 0x4000_0000
MOST_CYCLES = 1_000_000


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The system as the example writes it."""
    folder = tmp_path_factory.mktemp("litex")
    toolchain.setup_yosys()
    subprocess.run([sys.executable, str(EXAMPLE), str(folder)], check=True, capture_output=True)
    whole = folder / "whole.v"
    parts = [(folder / name).read_text() for name in ("top.v", "vdla_peripheral.v")]
    whole.write_text("".join(parts))
    toolchain.verilate(whole, "top", folder / "cpp")
    sources = [BENCH, *sorted((folder / "cpp").glob("*.cpp"))]
    toolchain.compile_shared(sources, [folder / "cpp"], folder / "top.so")
    library = ctypes.CDLL(str(folder / "top.so"))
    library.bench_new.restype = ctypes.c_void_p
    library.bench_delete.argtypes = [ctypes.c_void_p]
    number = ctypes.c_uint32
    library.bench_access.argtypes = [ctypes.c_void_p, number, ctypes.c_int, number]
    library.bench_access.restype = number
    library.bench_wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.bench_wait.restype = ctypes.c_uint64
    return library


def test_a_network_in_a_litex_system(bench: ctypes.CDLL) -> None:
    """Registers, memory through LiteX's converters, the interrupt: every byte of the memory is that
    of the simulator."""
    module = vdla.compile(DIGITS, "sim", "4x4", ULX3S)
    program, dram = module.program, module.compiled.dram([images(1)])
    system = bench.bench_new()

    def read(address: int) -> int:
        return bench.bench_access(system, address, 0, 0)

    def write(address: int, value: int) -> None:
        bench.bench_access(system, address, 1, value)

    config = int(program.params.hash, 16)
    assert read(CORE + OFFSETS["config_hash"]) == config
    words = np.resize(dram, -(-dram.size // 4) * 4).view("<u4")
    for number, word in enumerate(words):
        write(RAM + 4 * number, int(word))
    write(CORE + WINDOW, RAM)
    for name, value in (
        ("program_hash", config),
        ("program_addr", program.program_addr),
        ("insn_count", len(program.insns)),
        ("control", CONTROL_START),
    ):
        write(CORE + OFFSETS[name], value)
    assert 0 < bench.bench_wait(system, MOST_CYCLES) < MOST_CYCLES
    assert read(CORE + INTERRUPT) == 1
    assert read(CORE + OFFSETS["status"]) == Status.DONE
    write(CORE + INTERRUPT, 1)
    assert read(CORE + INTERRUPT) == 0
    simulate(program, dram, module.memory)
    found = np.array([read(RAM + 4 * n) for n in range(dram.size // 4)], "<u4")
    np.testing.assert_array_equal(found.view(np.uint8), dram[: found.nbytes])
    bench.bench_delete(system)
