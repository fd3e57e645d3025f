"""What the simulator's process is to do and what it found, as files in a folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import plugins
from ..isa.memory import MemoryParams
from ..isa.program import Program

#: The file of a job's recording.
RECORDING = "recording.npz"
#: What is compared: after the end status, every byte of memory and the counters; while the program
#: runs AXI's rules, those of the streams at the core's blocks, bytes as they are written,
#: instructions' starts and ends in order, the entries that each leaves in a scratchpad, and every
#: cycle with SimPy.
CHECKS = (
    "status", "memory", "counters", "axi", "streams", "writes", "starts and ends", "scratchpads",
    "cycles",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """How a program is co-simulated.

    Attributes
    ----------
    memory : MemoryParams or None
        Our memory model with these latencies, or on the board its SDRAM, ``ulx3s``: cycles are
        compared with SimPy's. None: cocotbext-axi's AXI RAM, or the board's SDRAM.
    pauses : str
        Of the AXI RAM: off, light or heavy.
    seed : int
        Of the pauses.
    until : int or None
        The cycle after which to stop; None: the end of the program.
    quiet_cycles : int
        How long no instruction may start or end before the core is given up; with cycles to compare
        with, how late one may be.
    record : str
        A block whose ports are recorded; none if empty.
    """

    memory: MemoryParams | None
    pauses: str = "off"
    seed: int = 0
    until: int | None = None
    quiet_cycles: int = 100_000
    record: str = ""


@dataclass(frozen=True)
class Job:
    """A program, DRAM before its run (uint8), and settings."""

    program: Program
    dram: np.ndarray
    settings: Settings

    def save(self, folder: Path) -> None:
        """Write the files that :meth:`load` reads."""
        self.program.save(folder / "program.vdla")
        np.save(folder / "dram.npy", self.dram)
        (folder / "settings.json").write_text(json.dumps(asdict(self.settings)), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Job:
        """The job that was saved in a folder."""
        plugins.load_known()
        fields = json.loads((folder / "settings.json").read_text("utf-8"))
        memory = fields.pop("memory")
        settings = Settings(memory and MemoryParams(**memory), **fields)
        return cls(Program.load(folder / "program.vdla"), np.load(folder / "dram.npy"), settings)


def save_progress(folder: Path, done: int) -> None:
    """Say how many instructions have ended."""
    (folder / "progress").write_text(str(done), "utf-8")


def read_progress(folder: Path) -> int:
    """How many instructions have ended, as was said last."""
    try:
        return int((folder / "progress").read_text("utf-8"))
    except (OSError, ValueError):  # nothing yet, or just being written
        return 0


def save_result(folder: Path, result: dict[str, Any], dram: np.ndarray) -> None:
    """Keep what a run has found (JSON-ready), behind earlier runs of the job, and DRAM after it."""
    np.save(folder / "dram_after.npy", dram)
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def read_results(folder: Path) -> tuple[list[dict[str, Any]], np.ndarray | None]:
    """What every run has found, and DRAM after the last one; none where no run has ended."""
    path = folder / "results.jsonl"
    if not path.exists():
        return [], None
    results = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return results, np.load(folder / "dram_after.npy")
