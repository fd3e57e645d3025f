"""The RTL as a simulator: Amaranth to Verilog, Verilator to C++, a shared library cached by its
contents.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...isa.errors import VdlaError
from ...isa.memory import MemoryParams
from ...isa.opcodes import Unit
from ...isa.params import MEMORIES, HwParams
from ...isa.program import Program
from ...isa.regmap import CONTROL_START, OFFSETS, read_causes
from ...isa.sdram import CLOCKS, PARTS, PIN_CYCLES
from ...isa.status import Status
from ...runtime.cache import one_process
from ...runtime.result import NO_CAUSES, SimResult
from ..deadlock import waiting_report
from . import toolchain
from .kept import kept_text

HARNESS, CHIP = (Path(__file__).with_name(name) for name in ("harness.cpp", "chip.h"))
#: Where a program that never stops is cut off, unless the caller says otherwise.
MAX_CYCLES = 2_000_000_000
#: A netlist keeps its scratchpads in cells, which have no name that the harness knows.
NETLIST_FLAGS = ("-DVDLA_NETLIST", "-O1")
#: Waveforms are of a few thousand cycles, which are too few to pay for optimising the simulator.
WAVE_FLAGS = ("-DVM_TRACE=1", "-DVM_TRACE_VCD=1", "-O0")
#: Signals are traced up to this width, which rows of scratchpads have.
_TRACED = ("--trace-vcd", "--trace-max-width", "8192")
_STORAGE = re.compile(r"(reg \[\d+:0\] storage \[\d+:0\]);")
_RESET_PORT = re.compile(
    r"(module vdla_core\([^)]*)\brst, ([^)]*\);.*?)input rst;\s*wire rst;", re.DOTALL
)


@dataclass(frozen=True)
class Waves:
    """A waveform that is wanted: VCD file, first and last cycle; one cycle is one microsecond. With
    ``every``, those cycles of every so many, and of each only its end.
    """

    path: Path
    first: int
    last: int
    every: int = 0


class HangError(VdlaError):
    """A program did not end; with the cycles of the starts and ends that did happen."""

    def __init__(self, cycles: int, starts: list[int], ends: list[int]):
        super().__init__(f"rtl: the program has not ended after {cycles} cycles")
        self.cycles, self.starts, self.ends = cycles, starts, ends


class RtlSimulator:
    """The RTL of one configuration.

    Parameters
    ----------
    params : the configuration
    verilog : Verilog text of a core of that configuration; by default that of ``hw/core/core.py``
    netlist : the text is a synthesised netlist and the models of its cells; results then come
        without scratchpads
    """

    def __init__(self, params: HwParams, verilog: str | None = None, netlist: bool = False):
        self.params = params
        self._verilog, self._netlist = verilog, netlist
        self._libraries: dict[tuple[str, bool], ctypes.CDLL] = {}

    def _library(self, part: str = "", waves: bool = False) -> ctypes.CDLL:
        """The library with the controller of a part of SDRAM, or with a memory that the harness
        models; ``waves``: one that writes waveforms."""
        if (part, waves) not in self._libraries:
            self._libraries[part, waves] = self._load(part, waves)
        return self._libraries[part, waves]

    def _load(self, part: str, waves: bool) -> ctypes.CDLL:
        if part and self._verilog:
            raise VdlaError(f"rtl: expected no Verilog of one's own with the memory {part}")
        verilog = self._verilog or kept_verilog(self.params, part)
        flags = WAVE_FLAGS if waves else NETLIST_FLAGS if self._netlist else ()
        flags += (chip_flag(part),) if part else ()
        built = build_library(verilog, flags)
        try:
            library = ctypes.CDLL(str(built))
        except OSError:  # the cache's file is damaged
            built.unlink()
            library = ctypes.CDLL(str(build_library(verilog, flags)))
        pointer, size = ctypes.c_void_p, ctypes.c_uint64
        library.vdla_new.restype = pointer
        library.vdla_delete.argtypes = [pointer]
        library.vdla_write.argtypes = [pointer, ctypes.c_uint32, ctypes.c_uint32]
        library.vdla_read.argtypes = [pointer, ctypes.c_uint32]
        library.vdla_read.restype = ctypes.c_uint32
        library.vdla_run.argtypes = [pointer, pointer, size, pointer, size]
        library.vdla_run.restype = size
        library.vdla_trace.argtypes = [pointer, ctypes.c_int, ctypes.c_int, pointer]
        library.vdla_trace.restype = size
        library.vdla_memory.argtypes = [pointer, ctypes.c_char_p, pointer]
        library.vdla_memory.restype = pointer
        library.vdla_fault.argtypes = [pointer]
        library.vdla_fault.restype = ctypes.c_char_p
        if waves:
            library.vdla_waves.argtypes = [pointer, ctypes.c_char_p, size, size, size]
        return library

    def build(self) -> None:
        """Build or load the simulator now rather than on the first run."""
        self._library()

    def run(
        self,
        program: Program,
        dram: np.ndarray,
        memory: MemoryParams,
        max_cycles: int = MAX_CYCLES,
        waves: Waves | None = None,
    ) -> SimResult:
        """Run a program; ``dram`` (uint8, contiguous) is changed in place.

        ``waves`` asks for a waveform of a few cycles, for which a slower simulator is built.

        Raises VdlaError for a memory of another bus width or one that is too small or misused,
        HangError when ``max_cycles`` pass without an end.
        """
        memory.check(self.params, dram.size)
        started = time.perf_counter()
        library = self._library(memory.part, waves is not None)
        sim = library.vdla_new()
        try:
            if waves is not None:
                wanted = (waves.first, waves.last, waves.every)
                library.vdla_waves(sim, os.fsencode(waves.path), *wanted)
            return self._run(library, sim, program, dram, memory, max_cycles, started)
        finally:
            library.vdla_delete(sim)

    def _run(self, library, sim, program, dram, memory, max_cycles, started) -> SimResult:
        def read(name: str) -> int:
            return library.vdla_read(sim, OFFSETS[name])

        for name, value in (
            ("program_hash", int(program.params.hash, 16)),
            ("program_addr", program.program_addr),
            ("insn_count", len(program.insns)),
            ("control", CONTROL_START),
        ):
            library.vdla_write(sim, OFFSETS[name], value)
        settings = np.array(
            [memory.bus_bits // 8, memory.read_latency_cycles, memory.write_latency_cycles,
             memory.outstanding, memory.cycles_per_beat], np.uint64,
        )  # fmt: skip
        passed = library.vdla_run(
            sim, dram.ctypes.data, dram.size, settings.ctypes.data, max_cycles
        )
        if fault := library.vdla_fault(sim):
            raise VdlaError(f"rtl: the memory {memory.part} was misused: {fault.decode()}")
        starts, ends = (self._trace(library, sim, program, which) for which in (0, 1))
        if passed >= max_cycles:
            raise HangError(max_cycles, starts, ends)
        status = Status(read("status"))
        waiting = read("waiting")
        masks = [waiting >> (4 * unit) & 15 for unit in Unit]
        report = ""
        if status == Status.DEADLOCK:
            report = waiting_report(program, starts, dict(zip(Unit, masks, strict=True)))
        return SimResult(
            status=status,
            error_index=_error_index(status, read("error_index"), program, ends),
            cycles=read("cycles"),
            starts=starts,
            ends=ends,
            counters=read_causes(read),
            causes=NO_CAUSES,
            scratchpads={
                name: self._memory(library, sim, name)
                for name in (() if self._netlist else MEMORIES)
            },
            report=report,
            wall_s=time.perf_counter() - started,
        )

    def _trace(self, library, sim, program: Program, which: int) -> list[int]:
        """Cycles of starts or ends, from per-unit sequences to program order."""
        queues = []
        for unit in Unit:
            values = ctypes.POINTER(ctypes.c_uint64)()
            count = library.vdla_trace(sim, unit, which, ctypes.byref(values))
            queues.append(iter(values[:count]))
        return [next(queues[insn.unit], -1) for insn in program.insns]

    def _memory(self, library, sim, name: str) -> np.ndarray:
        from ...hw.core.scratchpad import rows

        size = ctypes.c_uint64()
        address = library.vdla_memory(sim, name.encode(), ctypes.byref(size))
        depth, width = self.params.depth(name), self.params.entry_bytes(name)
        raw = np.ctypeslib.as_array(
            ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (size.value,)
        )
        passes = rows(name, self.params)[0] // depth
        stored = raw.reshape(depth * passes, -1)[:, : width // passes]
        if passes > 1:  # neighbours are in different rows
            elements = stored.reshape(depth, passes, -1, width // self.params.lanes)
            stored = elements.swapaxes(1, 2).reshape(depth, width)
        return stored.copy()


def _error_index(status: Status, register: int, program: Program, ends: list[int]) -> int | None:
    """The instruction that stopped the core; None if no instruction of the program did."""
    match status:
        case Status.TOKEN_OVERFLOW:
            # Counters belong to no instruction; the culprit is one that pushed tokens in the last
            # cycle.
            last = max(ends)
            return next(i for i, insn in enumerate(program.insns) if insn.push and ends[i] == last)
        case Status.BAD_CONFIG:
            return None
        case _:
            return register if status.is_error else None


def kept_verilog(params: HwParams, part: str = "") -> str:
    """The Verilog of a configuration's core, with the controller of a part of SDRAM if one is
    named, kept in the cache folder."""

    def make() -> str:
        if part:
            from ...hw.boards.simulated import core_with_sdram_verilog

            return core_with_sdram_verilog(params, part)
        from ...hw.core.verilog import core_verilog

        return core_verilog(params)

    rooms = ("hw/core", "hw/boards", "isa") if part else ("hw/core", "isa")
    return kept_text(f"core {part}".strip(), params, rooms, make)


def chip_flag(part: str) -> str:
    """What tells the harness of a part: the fields of ``Part`` in ``chip.h``."""
    p = PARTS[part]
    clocks = [p.clocks(ns) for ns in (p.close_ns, p.open_ns, p.cycle_ns, p.write_ns, p.active_ns)]
    refresh = p.rules.refresh * CLOCKS
    fields = [
        p.column_bits, p.bank_bits, p.cas_clocks, PIN_CYCLES, CLOCKS,
        p.clocks(1000 * p.init_us), refresh, *clocks,
    ]  # fmt: skip
    return f"-DVDLA_SDRAM=Part{{{','.join(map(str, fields))}}}"


def build_library(verilog: str, flags: tuple[str, ...] = ()) -> Path:
    """The shared library of a core, able to write waveforms with WAVE_FLAGS, built unless the cache
    has it. Several processes that want the same one build it once.
    """
    waves = flags[: len(WAVE_FLAGS)] == WAVE_FLAGS
    text = _STORAGE.sub(r"\1 /*verilator public_flat_rd*/;", verilog)
    # Registers start with their initial values. As an input, the reset would make Verilator look
    # at the next state of every register twice a cycle.
    text = _RESET_PORT.sub(r"\1\2wire rst = 1'h0;", text, count=1)
    parts = [
        text,
        HARNESS.read_text("utf-8"),
        CHIP.read_text("utf-8"),
        repr(toolchain.versions()),
        *flags,
    ]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    target = toolchain.cache_dir() / f"{'waves' if waves else 'core'}_{key}.so"
    if target.exists():
        return target
    with one_process(target):
        if not target.exists():
            _build(text, target, waves, flags)
    return target


def _build(text: str, target: Path, waves: bool, flags: tuple[str, ...]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="build_", dir=target.parent))
    try:
        source = work / "core.v"
        source.write_text(text, "utf-8")
        toolchain.verilate(source, "vdla_core", work / "cpp", *(_TRACED if waves else ()))
        sources = [HARNESS, *sorted((work / "cpp").glob("*.cpp"))]
        if waves:
            sources.append(toolchain.verilator_root() / "include" / "verilated_vcd_c.cpp")
        library = work / "core.so"
        toolchain.compile_shared(sources, [work / "cpp"], library, *flags)
        os.replace(library, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
