"""Co-simulation from outside of the simulator: build, run, wait, and read what was found."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..isa.errors import VdlaError
from ..isa.program import Program
from ..isa.sdram import PARTS
from .job import RECORDING, Job, Settings, read_progress, read_results
from .lines import LineCoverage
from .recording import Recording
from .runner import COVERAGE_FILE, WAVES_FILE, BenchFailure, Build, Design, run_bench
from .signal_list import write_signal_list

Progress = Callable[[int, int], None]
BENCH = f"{__package__}.core_test"
_POLL_S = 0.25


@dataclass(frozen=True)
class Session:
    """A core, and how programs are co-simulated on it.

    Attributes
    ----------
    design : Design
        The core, with the ports of ``Design.core``.
    settings : Settings
        Memory, pauses, where to stop.
    bench : path or None
        A file with cocotb tests to run in place of ours; they find the program by
        ``CoSimulation.from_command``.
    waves : Path or None
        A waveform to write (VCD); one nanosecond in it is a tenth of a cycle.
    waves_from : int
        The cycle in which it begins; 0: with the reset. Others only where the core is the design's
        top module.
    lines : Path or None
        A file of :class:`~vdla.cosim.lines.LineCoverage` that is added to (slower); the design has
        the lines of its source.
    recordings : list of Recording
        What has been recorded of the block that the settings name, one for each run without a
        divergence.
    """

    design: Design
    settings: Settings
    bench: Path | None = None
    waves: Path | None = None
    waves_from: int = 0
    lines: Path | None = None
    recordings: list[Recording] = field(default_factory=list)

    def run(
        self, program: Program, dram: np.ndarray, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Co-simulate a program; ``dram`` (uint8) is changed in place.

        Parameters
        ----------
        program : Program
            Of the core's configuration.
        dram : uint8 array
            The memory before the run.
        progress : callable, optional
            Called with instructions ended, and all.

        Returns
        -------
        dict
            Of the last run: ``cycles``, ``instructions`` (ended), ``cycles_compared`` (with SimPy),
            ``wall_s``, ``first_divergence`` (None, or the fields of ``Divergence``); ``starts``,
            ``ends`` and ``counters``, from which :class:`Coverage` samples. And
            ``expected_divergences``: those of a bench that has passed.

        Raises
        ------
        BenchFailure
            When the bench fails otherwise than by a divergence.
        VdlaError
            For missing tools, Verilog or benches that cannot be used, and programs that need more
            memory than the design has, or another one.
        """
        self._check_memory()
        room = self.design.memory_bytes
        if room is not None and dram.size > room:
            raise VdlaError(
                f"program: expected at most {room:,} bytes of DRAM, which the board has, got "
                f"{dram.size:,}"
            )
        with tempfile.TemporaryDirectory(prefix="vdla_cosim_") as name:
            work = Path(name)
            Job(program, dram, self.settings).save(work)
            build, design = Build(fast=True, coverage=self.lines is not None), self.design
            if self.waves is not None:
                build = replace(build, waves=True)
            if self.waves is not None and self.waves_from:
                build, design = replace(build, waves_from=self.waves_from), design.with_window()
            failure: BenchFailure | None = None
            try:
                with _watched(work, len(program.insns), progress):
                    run_bench(design, self.bench or BENCH, work, None, build, job=name)
            except BenchFailure as found:
                failure = found
            finally:
                if self.waves is not None and (work / WAVES_FILE).exists():
                    shutil.move(work / WAVES_FILE, self.waves)
                    write_signal_list(self.waves)
                if self.lines is not None and (work / COVERAGE_FILE).exists():
                    coverage = LineCoverage.load(self.lines)
                    coverage.add(design.verilog, work / COVERAGE_FILE)
                    coverage.save(self.lines)
            runs, after = read_results(work)
            if (work / RECORDING).exists():
                self.recordings.append(Recording.load(work / RECORDING))
        if after is None:
            raise failure or BenchFailure("the bench ended without running the program")
        if failure is not None and runs[-1]["first_divergence"] is None:
            raise failure
        expected = [run["first_divergence"] for run in runs if run["first_divergence"]]
        result = dict(runs[-1], expected_divergences=[])
        if failure is None and expected:  # the bench has passed, so it expected them
            result |= {"expected_divergences": expected, "first_divergence": None}
        dram[...] = after
        return result

    def _check_memory(self) -> None:
        """Raise VdlaError unless the memory is one that is behind the design."""
        memory, board = self.settings.memory, self.design.memory_bytes is not None
        if memory is None or bool(memory.part) == board:
            return
        if board:
            raise VdlaError(
                f"memory: expected {' or '.join(PARTS)}, which the board has, got {memory.label}"
            )
        raise VdlaError(
            f"memory: expected --on board with {memory.part}, whose controller the core has not"
        )


@contextmanager
def _watched(work: Path, total: int, progress: Progress | None) -> Iterator[None]:
    """Report the progress of the simulator's process meanwhile."""
    if progress is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_S):
            progress(read_progress(work), total)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        progress(read_progress(work), total)
