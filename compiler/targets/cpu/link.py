"""Object files to shared objects, with the machine's own compiler driver."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from ....isa.errors import VdlaError

LINKER = "g++"


def find_linker() -> None:
    """Raise VdlaError where there is no compiler driver."""
    if shutil.which(LINKER) is None:
        raise VdlaError(f"link: expected {LINKER} to make a shared object, found none; install it")


def link(object_file: bytes, parallel: bool = False) -> bytes:
    """A shared object of one object file; a ``parallel`` one needs OpenMP's library.

    Raises
    ------
    VdlaError
        Where g++ is missing, or when it fails; then with the first line of its message.
    """
    find_linker()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "model.o", Path(folder) / "model.so"
        source.write_bytes(object_file)
        command = [LINKER, "-shared", "-Wl,--as-needed", "-o", target, source, "-lm"]
        command += ["-lgomp"] * parallel
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise VdlaError(f"link: {LINKER} failed: {lines[0]}")
        return target.read_bytes()
