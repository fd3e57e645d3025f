"""One block of a core by itself: recording and replaying it, from outside of the simulator."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..isa.errors import VdlaError
from ..isa.program import Program
from .blocks import BLOCKS
from .job import Settings
from .recording import Recording
from .replace import Replacement
from .runner import WAVES_FILE, Build, Design, run_bench
from .session import Session
from .signal_list import write_signal_list

BENCH = f"{__package__}.replay_test"
QUIET_CYCLES = 10_000


def record(
    block: str, program: Program, dram: np.ndarray, settings: Settings, design: Design | None = None
) -> Recording:
    """Record the traffic at the ports of a block while a program runs on a core.

    Parameters
    ----------
    block : str
        fetch, load, gemm, vector or store.
    program : Program
    dram : uint8 array
        The memory before the run; it is changed in place.
    settings : Settings
        Memory and pauses; ``until`` ends the recording early.
    design : Design, optional
        The core; by default that of the program's configuration.

    Raises
    ------
    VdlaError
        For an unknown block, and where the core diverges from what it should do.
    """
    check_block(block)
    session = Session(design or Design.core(program.params), replace(settings, record=block))
    found = session.run(program, dram)["first_divergence"]
    if found is not None:
        raise VdlaError(f"record: expected a core without a divergence, got one in {found['what']}")
    return session.recordings[-1]


def replay(
    recording: Recording,
    replacement: Replacement | None = None,
    untimed: bool = False,
    quiet_cycles: int = QUIET_CYCLES,
    waves: Path | None = None,
) -> dict[str, Any]:
    """Drive a block with what was recorded, and compare what it does.

    Parameters
    ----------
    recording : Recording
    replacement : Replacement, optional
        The block; by default the core's own.
    untimed : bool
        Compare the order of what goes through the ports, not the cycles.
    quiet_cycles : int
        Untimed: how long the block may do nothing.
    waves : Path, optional
        A waveform to write (VCD).

    Returns
    -------
    dict
        ``cycles``, ``wall_s``, ``first_divergence`` (None, or the fields of ``Divergence``).
    """
    block = recording.block
    if replacement is None:
        design = Design.component(BLOCKS[block](recording.params), block)
    else:
        if replacement.block != block:
            raise VdlaError(
                f"replay: expected a replacement for {block}, which was recorded, "
                f"got one for {replacement.block}"
            )
        design = replacement.alone()
    with tempfile.TemporaryDirectory(prefix="vdla_replay_") as name:
        work = Path(name)
        recording.save(work / "recording.npz")
        try:
            run_bench(
                design, BENCH, work, None, Build(fast=True, waves=waves is not None),
                recording=str(work / "recording.npz"), result=str(work / "result.json"),
                untimed=str(untimed), quiet_cycles=quiet_cycles,
            )  # fmt: skip
        finally:
            if waves is not None and (work / WAVES_FILE).exists():
                shutil.move(work / WAVES_FILE, waves)
                write_signal_list(waves)
        return json.loads((work / "result.json").read_text("utf-8"))


def check_block(block: str) -> None:
    """Raise VdlaError unless a block of this name can be recorded."""
    if block not in BLOCKS:
        raise VdlaError(f"record: expected a block of {', '.join(BLOCKS)}, got {block!r}")
