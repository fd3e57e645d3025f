"""Runs yosys and the tools of the FPGA flow."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ..isa.errors import VdlaError


def run_tool(
    tool: str, arguments: list[str], directory: Path, stop: Callable[[str], bool] | None = None
) -> bool:
    """Run a tool of this Python environment (or of the PATH) in a folder.

    Parameters
    ----------
    tool, arguments, directory : what runs, and where
    stop : is called with every line that the tool prints; where it returns True, the tool is ended

    Returns
    -------
    bool
        Whether the tool ran to its end.

    Raises
    ------
    VdlaError
        If the tool fails or is not installed.
    """
    beside = Path(sys.executable).parent / tool
    program = str(beside) if beside.exists() else shutil.which(tool)
    if program is None:
        raise VdlaError(
            f"{tool} is not installed; install the extras: pip install 'vdla[rtl,fpga]'"
        )
    lines = []
    with subprocess.Popen(
        [program, *arguments], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace",
    ) as running:  # fmt: skip
        try:
            for line in running.stdout or ():
                lines.append(line.strip())
                if stop is not None and stop(line):
                    running.kill()
                    return False
        except BaseException:
            running.kill()
            raise
    if running.returncode:
        last = next((line for line in reversed(lines) if line), "no message")
        error = next((line for line in lines if "ERROR" in line), last)
        raise VdlaError(f"{tool} failed: {error} (log in {directory})")
    return True
