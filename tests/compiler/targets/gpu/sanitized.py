"""Emulated kernels that g++ compiled with sanitizers, in a process of their own, in which those are
loaded before Python."""

from __future__ import annotations

import ctypes
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from vdla.runtime.gpu.emulated import (
    COMPILER,
    ORDERS,
    EmulatedKernels,
    Emulation,
    emulated_library,
)
from vdla.runtime.gpu.program import KernelCall

ROOT = Path(__file__).parents[4]
#: What is compiled with each, beside the flags of every emulation. Shared memory is in sections.
FLAGS = {
    # Integers wrap where the text says so, not because of -fwrapv.
    "address": ("-fsanitize=address,undefined", "-fsanitize-sections=shared*", "-fno-wrapv",
                "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
    # What memcpy becomes inline is not watched.
    "thread": ("-fsanitize=thread", "-fno-builtin"),
}  # fmt: skip
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}


def run_sanitized(
    source: str,
    calls: Sequence[KernelCall],
    arrays: Mapping[str, np.ndarray],
    sanitizer: str,
    folder: Path,
) -> tuple[dict[str, np.ndarray], str]:
    """The arrays after these calls, in the last of the orders of threads, and what the sanitizer
    said. Each array is a memory of its own, by its name, with forbidden memory around it."""
    library = emulated_library(source, [*FLAGS[sanitizer], "-O1", "-g1"])
    given, made = folder / "given", folder / "made"
    given.write_bytes(pickle.dumps((library, list(calls), dict(arrays))))
    found = subprocess.run(
        [COMPILER, f"-print-file-name=lib{sanitizer[0]}san.so"], capture_output=True, text=True
    )
    # ThreadSanitizer knows no memory at random addresses.
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    done = subprocess.run(
        [*fixed, sys.executable, "-m", __spec__.name, given, made],
        cwd=ROOT, env=os.environ | OPTIONS | {"LD_PRELOAD": found.stdout.strip()},
        capture_output=True, text=True,
    )  # fmt: skip
    assert made.exists() or "Sanitizer" in done.stderr or "runtime error" in done.stderr, done
    return pickle.loads(made.read_bytes()) if made.exists() else {}, done.stderr


def _run(given: Path, made: Path) -> None:
    library, calls, arrays = pickle.loads(given.read_bytes())
    memory = {name: array.copy() for name, array in arrays.items()}
    for order in ORDERS:
        Emulation(EmulatedKernels(ctypes.CDLL(library)), memory, order).launch(calls)
    made.write_bytes(pickle.dumps(memory))


if __name__ == "__main__":
    _run(*map(Path, sys.argv[1:]))
