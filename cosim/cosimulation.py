"""A program on a core under cocotb, compared as it runs with the reference and, where the memory is
our model, with the SimPy model's cycles.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge

from ..isa.opcodes import Unit
from ..isa.regmap import read_causes
from ..isa.status import Status
from ..runtime.result import SimResult
from ..sim.model.core import simulate
from .bench import parameter, reader
from .blocks import BLOCKS, find_rules
from .check import ProgramCheck
from .divergence import Diverged, diverged
from .dram import DramModel
from .job import CHECKS, RECORDING, Job, save_progress, save_result
from .places import find_bench
from .recorder import Recorder

#: Instructions between two messages about the progress.
PROGRESS_STEP = 64
#: How much later than SimPy an instruction may start or end before the core is given up.
PATIENCE_CYCLES = 2_000


class CoSimulation:
    """One program on a core with all checks that its place allows: those of starts, ends and
    scratchpads need what is not visible everywhere.

    Parameters
    ----------
    dut : the core, or a design with the core in it, see :func:`~vdla.cosim.places.find_bench`
    job : Job
        Program, memory contents and settings.
    folder : Path, optional
        Where progress and result are written for the process that waits for them.

    Attributes
    ----------
    bench : CoreBench
        Registers, memory and AXI rules.
    dram : DramModel or None
        The memory model, where there is one, once :meth:`prepare` has been called; its attributes
        inject faults.
    check : ProgramCheck
        What is compared, with the starts and ends so far.
    cycles : int
        The cycle that the core is in.

    Examples
    --------
    A bench for ``vdla cosim --bench``, which expects that a flipped bit is found::

        @cocotb.test()
        async def flips_a_bit(dut):
            cosim = CoSimulation.from_command(dut)
            await cosim.prepare()
            cosim.dram.on_read = lambda beat: setattr(beat, "data", beat.data ^ 1)
            with pytest.raises(Diverged):
                await cosim.run()
    """

    def __init__(self, dut: Any, job: Job, folder: Path | None = None) -> None:
        self.dut, self.job, self._folder = dut, job, folder
        program, memory = job.program, job.settings.memory
        self.bench = find_bench(dut, program.params)
        self.timing: SimResult | None = None
        if memory is not None and self.bench.started is not None:
            self.timing = simulate(program, job.dram.copy(), memory, values=False)
        self.check = ProgramCheck(program, job.dram, self.timing)
        self.dram: DramModel | None = None
        self.cycles = 0
        self._prepared = False
        tapped = {block: getattr(dut, block, None) for block in BLOCKS}
        self._taps: dict[str, Any] = {
            name: block.tap for name, block in tapped.items() if block is not None
        }
        self._rows: dict[tuple[str, int], Any] = {}
        self._broken: Diverged | None = None
        self._recorder: Recorder | None = None

    @classmethod
    def from_command(cls, dut: Any) -> CoSimulation:
        """What ``vdla cosim`` was called with."""
        folder = Path(parameter("job"))
        return cls(dut, Job.load(folder), folder)

    async def prepare(self, reset: bool = True) -> None:
        """Reset the core and put memory behind it. Without ``reset`` the design runs already, and
        the core has been reset by its register.
        """
        settings, dram = self.job.settings, self.job.dram
        if reset:
            await self.bench.reset(watch=False)
        for block, tap in self._taps.items():
            cocotb.start_soon(self._watch_streams(block, tap.broken))
        if settings.record:
            self._recorder = Recorder(self.dut, settings.record, self.job.program)
        if settings.memory is None or settings.memory.part:  # the board's own
            self.bench.attach_ram(dram, settings.pauses, settings.seed)
        else:
            self.dram = self.bench.attach_model(dram.copy(), settings.memory)
        self._prepared = True

    async def run(self) -> None:
        """Run the program to its end, or to the cycle ``until``.

        Raises
        ------
        Diverged
            At the first difference, and at the first broken rule of AXI or of a stream.
        """
        began = time.perf_counter()
        try:
            if not self._prepared:
                await self.prepare()
            await self.bench.start(self.job.program)
            if not await self.bench.begun() or await self._loop():
                await self._check_end()
        except Diverged as found:
            self._save(found, time.perf_counter() - began)
            raise
        except AssertionError as broken:
            rule, *_ = str(broken).splitlines() or ["an assertion of the bench"]
            error = diverged(self.job.program, None, rule, "the rule kept", "broken", self.cycles)
            self._save(error, time.perf_counter() - began)
            raise error from broken
        self._save(None, time.perf_counter() - began)

    async def _watch_streams(self, block: str, broken: Any) -> None:
        """Wait for the tap of a block to see a rule of a stream broken."""
        await broken.value_change
        seen = int(broken.value)
        rule = find_rules(block, self.job.program.params)[(seen & -seen).bit_length() - 1]
        what = f"stream {rule.stream}: {rule.rule}"
        self._broken = diverged(
            self.job.program, None, what, "the rule kept", "broken", self.cycles
        )

    def contents(self) -> np.ndarray:
        """DRAM now, uint8."""
        return self.bench.contents()

    def checks(self) -> list[str]:
        """Names of the checks that are made here, see :data:`~vdla.cosim.job.CHECKS`."""
        bench = self.bench
        made = {
            "axi": bench.axi is not None,
            "streams": bool(self._taps),
            "writes": bench.axi is not None,
            "starts and ends": bench.started is not None,
            "scratchpads": bench.started is not None and bool(bench.scratchpads),
            "cycles": self.timing is not None,
        }
        return [name for name in CHECKS if made.get(name, True)]

    # ---- cycle by cycle ----

    async def _loop(self) -> bool:
        """Follow the core, cycle by cycle; whether it has stopped."""
        bench, check, dram = self.bench, self.check, self.dram
        axi, running = bench.axi, bench.running
        runs = bench.runs if running is None else reader(running)
        started, ended = (
            None if strobe is None else reader(strobe) for strobe in (bench.started, bench.ended)
        )
        clock, until = RisingEdge(bench.clk), self.job.settings.until
        read_row = self._row if bench.scratchpads else None
        retired: list[int] = []
        limit = self._limit(0)
        while True:
            now = self.cycles
            if self._broken is not None:
                raise self._broken
            if not runs():
                return True
            transfers = [] if axi is None else axi.sample()
            for transfer in transfers:
                if transfer.channel == "w":
                    check.write(transfer, now)
            for index in retired:
                check.compare(index, read_row, now)
            retired.clear()
            starts = ends = 0
            if started is not None and ended is not None:
                starts, ends = started(), ended()
            elif transfers:
                limit = self._limit(now)
            if starts or ends:
                for unit in Unit:
                    if starts >> unit & 1:
                        check.start(unit, now)
                    if ends >> unit & 1:
                        retired.append(check.end(unit, now))
                limit = self._limit(now)
                if ends and self._folder and check.ended_count % PROGRESS_STEP == 0:
                    save_progress(self._folder, check.ended_count)
            if now >= limit:
                check.late(now)
                raise diverged(self.job.program, None, "end of the program", "", "none", now)
            if dram is not None:
                dram.step(now, transfers)
            if now == until:
                return False
            await clock
            self.cycles += 1

    def _limit(self, now: int) -> int:
        """The cycle in which a core is given up in which nothing starts or ends from now on; where
        that is not visible, nothing is transferred.
        """
        quiet = self.job.settings.quiet_cycles
        if self.timing is None:
            return now + quiet
        due = self.check.due() if self.bench.started is not None else None
        return (self.timing.cycles if due is None else due) + min(quiet, PATIENCE_CYCLES)

    def _row(self, memory: str, row: int) -> int:
        """A row of a scratchpad."""
        key = (memory, row)
        if key not in self._rows:
            self._rows[key] = self.bench.scratchpads[memory][row]
        return int(self._rows[key].value)

    async def _check_end(self) -> None:
        """After the core has stopped: status, what has not happened, memory, counters."""
        program, check, cycles = self.job.program, self.check, self.cycles
        status = Status(await self.bench.read("status"))
        if status != Status.DONE:
            register = await self.bench.read("error_index")
            index = register if register < len(program.insns) else None
            raise diverged(program, index, "status", "DONE", f"{status.name}: {status.doc}", cycles)
        if self.bench.started is not None:
            check.late(cycles)
        expected, got = check.finish(), self.contents()
        wrong = np.flatnonzero(expected != got)
        if wrong.size:
            at = int(wrong[0])
            raise diverged(
                program, None, f"DRAM {at:#x}", hex(expected[at]), hex(got[at]), cycles, at
            )
        values = await self.bench.read_all(("cycles", *_counter_names()))
        if self.bench.started is None:
            self.cycles = values["cycles"]
        counters = check.counters = read_causes(values.__getitem__)
        for unit, causes in counters.items():
            if sum(causes.values()) != values["cycles"]:
                what = f"sum of the counters of {unit}"
                raise diverged(program, None, what, values["cycles"], sum(causes.values()), cycles)
        if self.timing is not None and counters != self.timing.counters:
            raise diverged(program, None, "counters", self.timing.counters, counters, cycles)
        if self.timing is not None and values["cycles"] != self.timing.cycles:
            raise diverged(program, None, "cycles", self.timing.cycles, values["cycles"], cycles)

    def _save(self, error: Diverged | None, wall_s: float) -> None:
        if self._folder is None or not self._prepared:
            return
        result = {
            "cycles": self.cycles,
            "instructions": self.check.ended_count,
            "cycles_compared": self.timing is not None,
            "checks": self.checks(),
            "wall_s": wall_s,
            "first_divergence": None if error is None else error.divergence.to_dict(),
            "starts": self.check.starts,
            "ends": self.check.ends,
            "counters": self.check.counters,
        }
        if self._recorder is not None and error is None:
            self._recorder.recording().save(self._folder / RECORDING)
        save_progress(self._folder, self.check.ended_count)
        save_result(self._folder, result, self.contents())


def _counter_names() -> list[str]:
    """Registers that count cycles."""
    names: list[str] = []
    read_causes(lambda name: names.append(name) or 0)
    return names
