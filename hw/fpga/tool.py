"""Runs the tools of the FPGA flow."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from ...isa.errors import VdlaError


def run_tool(tool: str, arguments: list[str], directory: Path) -> None:
    """Run a tool of this Python environment (or of the PATH) in a folder; VdlaError if it fails."""
    beside = Path(sys.executable).parent / tool
    program = str(beside) if beside.exists() else shutil.which(tool)
    if program is None:
        raise VdlaError(
            f"{tool} is not installed; install the extras: pip install 'vdla[rtl,fpga]'"
        )
    done = subprocess.run([program, *arguments], cwd=directory, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines()
        error = next((x for x in lines if "ERROR" in x), lines[-1] if lines else "no message")
        raise VdlaError(f"{tool} failed: {error.strip()} (log in {directory})")
