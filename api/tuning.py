"""Tune a model: try choices on the simulator, the RTL or this processor, and keep their costs."""

from __future__ import annotations

import getpass
import platform
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import plugins
from .._version import __version__
from ..compiler.build import build
from ..compiler.choose.records import Key, Record, Records, append
from ..compiler.choose.space import Knobs
from ..compiler.targets.base import Options, Target
from ..compiler.targets.cpu.layer import CpuLayer
from ..compiler.targets.gpu.layer import GpuLayer, time_calls
from ..compiler.targets.gpu.target import Gpu
from ..compiler.targets.registry import find_target
from ..compiler.targets.vdla.layer import Layer
from ..compiler.targets.vdla.target import Accelerator
from ..compiler.tune.annealing import TreeAnnealing
from ..compiler.tune.auto.evolution import Evolution
from ..compiler.tune.auto.gradient import Course, next_task
from ..compiler.tune.auto.programs import ProgramFeatures, Programs
from ..compiler.tune.boosted import FEWEST, BoostedTrees
from ..compiler.tune.candidates import Candidates
from ..compiler.tune.features import Features
from ..compiler.tune.pool import Alone, Pool, Steps
from ..compiler.tune.quality import TOP, held_out_scores, pairwise_accuracy, recall
from ..compiler.tune.search import (
    EXPLORERS,
    PLAN,
    TUNERS,
    Outcome,
    Search,
    make_explorer,
    make_programs,
)
from ..compiler.tune.task import Task, find_tasks
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams, load_platform
from ..isa.params import HwParams
from ..isa.program import Program
from ..module import check_options
from ..runtime.gpu.cuda import load_driver
from ..runtime.workers import check_address
from ..sim.model.core import count_cycles
from ..sim.runner import Runner

#: Rounds of a processor's trial, of which the least time counts; seconds of one round at least.
ROUNDS, ROUND_S = 5, 0.002
#: A gain of less than this part of a model's cycles is small; so many are tried together.
SMALL_GAIN, TOGETHER = 1e-4, 4
#: Of a processor's trials, so many of the best are measured again, in turns, in so many rounds.
FINALISTS, FINAL_ROUNDS = 5, 25

# ---- trials, as workers make them ----------------------------------------------------------------


def compile_program(layer: Layer, knobs: Knobs) -> Program:
    """The checked program of a layer."""
    return layer.program(knobs)


def simulated_cycles(layer: Layer, program: Program) -> int:
    """Its cycles by the SimPy model."""
    return count_cycles(program.table, layer.machine.memory, program.program_addr)


def rtl_cycles(layer: Layer, program: Program) -> int:
    """Its cycles by the RTL."""
    runner = Runner("rtl", layer.machine.params, layer.machine.memory)
    return runner.run(program, program.dram_image()).cycles


def kernel_ms(layer: CpuLayer | GpuLayer, knobs: Knobs) -> float:
    """The time of a layer's code on this processor, or on its device, in milliseconds."""
    (found,) = kernels_ms(layer, [knobs], ROUNDS)
    return found


def kernels_ms(layer: CpuLayer | GpuLayer, several: Sequence[Knobs], rounds: int) -> list[float]:
    """The times of several codes of a layer in milliseconds. They take turns, so that other load on
    the machine affects all of them; the least of each counts.
    """
    trials = [
        layer.trial(knobs) if isinstance(layer, GpuLayer) else time_calls(layer.kernel(knobs))
        for knobs in several
    ]
    repeats = []
    for trial in trials:
        trial(1)  # warms up caches
        repeats.append(max(1, int(ROUND_S / max(1e-7, trial(1)))))
    least = [np.inf] * len(trials)
    for _ in range(rounds):
        for index, (trial, count) in enumerate(zip(trials, repeats, strict=True)):
            least[index] = min(least[index], trial(count) / count * 1e3)
    return [float(value) for value in least]


STEPS = {
    "sim": Steps("vdla-sim", compile_program, simulated_cycles),
    "rtl": Steps("vdla-rtl", compile_program, rtl_cycles),
    **{name: Steps(name, None, kernel_ms) for name in ("cpu", "cuda", "opencl")},
}

# ---- tuning --------------------------------------------------------------------------------------


@dataclass
class Progress:
    """What a watcher is told before each task and after each trial.

    Attributes
    ----------
    number, tasks : the position of the task, from 0, and how many there are
    made, of : trials of the task, and how many there shall be
    begun : when its first trial of this call began (``time.monotonic``)
    ends : when the whole tuning ends; None without a limit
    """

    task: Task
    number: int
    tasks: int
    made: int
    of: int
    fresh: int
    best: float
    begun: float
    ends: float | None

    @property
    def trials_per_s(self) -> float:
        """Trials of this task in a second of this call."""
        passed = time.monotonic() - self.begun
        return self.fresh / passed if passed and self.fresh else 0.0


Watch = Callable[[Progress], None]


def tune(
    model: Any,
    target: str = "sim",
    records: str | Path = "records.jsonl",
    hw: HwParams | str | Path = "16x16",
    memory: MemoryParams | str | Path = "vta",
    trials: int = 64,
    tuner: str = "xgb",
    seed: int = 0,
    time_s: float | None = None,
    scheduler: str | None = None,
    workers: int = 0,
    timeout_s: float = 60.0,
    vthreads: int = 2,
    threads: int = 1,
    watch: Watch = lambda progress: None,
    precision: str = "float32",
) -> dict[str, Any]:
    """Search the choices of a model's layers, and keep every trial in a file of records.

    The same call goes on where an earlier one was stopped: trials that the file has are not made
    again, and count. With the file, ``compile(..., records=...)`` takes the best.

    Parameters
    ----------
    model : as for :func:`vdla.compile`
    target : str
        ``sim`` and ``rtl`` (cycles), ``cpu`` (milliseconds on this processor), or ``cuda`` and
        ``opencl`` (milliseconds on the first device, from a launch to its end).
    records : path
        The file that trials are read from and added to.
    trials : int
        For each workload; layers of equal workload are tuned once. The planner's choice is the
        first of them.
    tuner : str
        ``xgb``, ``treernn``, ``sa``, ``ga``, ``random`` or ``grid``; or ``auto``, which makes
        schedules by rules, without templates, and shares the trials among the workloads by what
        they gain. On the accelerator it schedules convolutions and dense layers.
    seed : int
        The same seed makes the same trials of an empty file.
    time_s : float, optional
        Seconds after which to stop, shared among the workloads.
    scheduler : str, optional
        The address of a Dask scheduler whose workers make the trials.
    workers : int
        Without ``scheduler``: worker processes of this machine; 0 is a single one without a
        scheduler.
    timeout_s : float
        Seconds after which a trial fails.
    watch : callable
        Called after each trial.
    precision : str
        With ``cuda``: as for :func:`vdla.compile`.

    Returns
    -------
    dict
        ``tasks`` with their best knobs and costs; ``total``, the whole model by the planner and by
        the records (cycles, of the accelerator alone); ``model``, how well the cost model ranks;
        ``interrupted``, whether Ctrl-C stopped it; ``time_ended``, whether ``time_s`` did.

    Raises
    ------
    VdlaError
        For a bad argument, a model that cannot be compiled, and a file that has no records.
    """
    plugins.load_known()
    check_options(target, None, trials=trials, vthreads=vthreads, threads=threads)
    for name, value, legal in (("target", target, STEPS), ("tuner", tuner, TUNERS)):
        if value not in legal:
            raise VdlaError(f"{name}: expected one of {', '.join(legal)}, got {value!r}")
    if scheduler is not None:
        check_address(scheduler)
    params, memory = load_platform(hw, memory)
    if target == "cuda":
        load_driver()
    elif precision != "float32":
        raise VdlaError(f"precision: expected target 'cuda' with {precision!r}, got {target!r}")
    options = Options(params, memory, vthreads, threads, precision=precision)
    where = find_target(target, options)
    if tuner in (Evolution.name, TreeAnnealing.name) and isinstance(where, Gpu):
        raise VdlaError(
            f"tuner: expected one of {', '.join(EXPLORERS)} for {target}, got {tuner!r}"
        )
    tuning = _Tuning(model, where, Path(records), tuner, seed)
    steps = STEPS[target]
    inside = scheduler is None and workers == 0
    pool = Alone(steps, timeout_s) if inside else Pool(steps, scheduler, workers, timeout_s)
    with closing(pool):
        return tuning.run(pool, trials, time_s, watch)


def new_record(
    key: Key, knobs: Knobs, outcome: Outcome, tuner: str, seed: int, preferred: bool = False
) -> Record:
    """The record of a trial that is made now, by this user on this machine."""
    return Record(
        key, dict(knobs), outcome.cost, outcome.error, tuner, seed,
        f"{getpass.getuser()}@{socket.gethostname()}",
        datetime.now(UTC).isoformat(timespec="seconds"),
        {"vdla": __version__, "python": platform.python_version()},
        round(outcome.seconds, 4) if outcome.seconds else None, preferred,
    )  # fmt: skip


class _Tuning:
    """The tuning of one model."""

    def __init__(self, model: Any, target: Target, path: Path, tuner: str, seed: int):
        self.model, self.target, self.path = model, target, path
        self.tuner, self.seed = tuner, seed
        self.known = Records.load(path) if path.exists() else Records()
        self.is_auto = tuner == Evolution.name
        self.tasks = find_tasks(model, target, by_steps=self.is_auto)
        if not self.tasks:
            raise VdlaError(f"tune: expected a layer with knobs for {target.title}, got none")
        self.searches: list[Search] = []

    def run(
        self, pool: Alone | Pool, trials: int, time_s: float | None, watch: Watch
    ) -> dict[str, Any]:
        """Search for every task, and compare the whole model."""
        ends = None if time_s is None else time.monotonic() + time_s
        rows: list[dict[str, Any]] = []
        total: dict[str, Any] = {"planner": None, "tuned": None}
        interrupted = False
        try:
            if self.is_auto:
                self._by_gradient(rows, pool, trials, ends, watch)
            else:
                self._one_by_one(rows, pool, trials, ends, watch)
            if isinstance(self.target, Accelerator):
                total = self._compare_models()
            else:
                self._measure_finalists(pool, rows)
        except KeyboardInterrupt:
            interrupted = True
        return {
            "target": self.target.name, "tuner": self.tuner, "tasks": rows, "total": total,
            "records": str(self.path), "model": _model_quality(self.searches),
            "interrupted": interrupted,
            "time_ended": ends is not None and not interrupted and self._lacks(trials),
        }  # fmt: skip

    def _lacks(self, trials: int) -> bool:
        """Whether more trials were wanted, and possible."""
        if self.is_auto and sum(len(s.curve) for s in self.searches) >= trials * len(self.tasks):
            return False
        return any(len(s.curve) < trials for s in self.searches if not s.exhausted)

    def _one_by_one(
        self, rows: list[dict[str, Any]], pool: Alone | Pool, trials: int, ends: float | None,
        watch: Watch,
    ) -> None:  # fmt: skip
        """All trials of a task, then those of the next one."""
        for task in self._in_turn():
            search = self._search(task)
            self.searches.append(search)
            number, count = len(rows), max(len(self.tasks), len(rows) + 1)
            deadline = None
            if ends is not None:  # the time that is left, shared among the tasks
                now = time.monotonic()
                deadline = now + max(0.0, ends - now) / (count - number)
            begun = time.monotonic()
            progress = self._progress(search, number, count, trials, ends)
            self._go_on(progress, search, pool, trials, deadline, watch)
            rows.append(self._row(search, progress.fresh, time.monotonic() - begun))

    def _by_gradient(
        self, rows: list[dict[str, Any]], pool: Alone | Pool, trials: int, ends: float | None,
        watch: Watch,
    ) -> None:  # fmt: skip
        """As many trials in all, each plan of them for the task that promises the largest gain."""
        self.searches = [self._search(task) for task in self.tasks]
        courses = [_course(search) for search in self.searches]
        fresh, seconds = [0] * len(courses), [0.0] * len(courses)
        left = trials * len(courses) - sum(len(search.curve) for search in self.searches)
        try:
            while left > 0 and (number := next_task(courses)) is not None:
                search, begun = self.searches[number], time.monotonic()
                if ends is not None and begun > ends:
                    break
                upto = len(search.curve) + min(PLAN, left)
                progress = self._progress(search, number, len(courses), upto, ends)
                self._go_on(progress, search, pool, upto, ends, watch)
                courses[number].best.append(search.best_cost)
                courses[number].ended = search.exhausted
                fresh[number] += progress.fresh
                seconds[number] += time.monotonic() - begun
                left -= progress.fresh
        finally:
            for search, made, spent in zip(self.searches, fresh, seconds, strict=True):
                rows.append(self._row(search, made, spent))

    def _in_turn(self) -> Iterator[Task]:
        """The tasks. Those that decide for others come first; then the others are asked for again,
        with the choices of the records.
        """
        first = [task for task in self.tasks if task.decides_for_others]
        yield from first
        if first:
            others = find_tasks(self.model, self.target, self.known)
            done = {task.key for task in first}
            self.tasks = [*first, *(task for task in others if task.key not in done)]
        yield from self.tasks[len(first) :]

    def _search(self, task: Task) -> Search:
        """The search for a task, with the trials that the file has."""
        candidates = make_programs(task) if self.is_auto else Candidates(task.space)
        first = _planned(task, candidates)
        start = [] if first is None else [first]
        search = Search(task, make_explorer(self.tuner, task, candidates, self.seed, start))
        search.resume(self.known.of(task.key))
        return search

    def _progress(
        self, search: Search, number: int, tasks: int, trials: int, ends: float | None
    ) -> Progress:
        made, best = len(search.curve), search.best_cost
        return Progress(
            search.task, number, tasks, made, trials, 0, best, time.monotonic(), ends
        )  # fmt: skip

    def _go_on(
        self, progress: Progress, search: Search, pool: Alone | Pool, trials: int,
        deadline: float | None, watch: Watch,
    ) -> None:  # fmt: skip
        """Go on with a search until it has so many trials."""
        task = progress.task
        watch(progress)

        def kept(knobs: Knobs, outcome: Outcome) -> None:
            self._keep(task, knobs, outcome.cost, outcome.error, outcome.seconds)
            progress.made, progress.fresh = progress.made + 1, progress.fresh + 1
            if outcome.cost is not None:
                progress.best = min(progress.best, outcome.cost)
            watch(progress)

        search.run(pool.measure, trials, deadline=deadline, kept=kept)

    def _row(self, search: Search, fresh: int, seconds: float) -> dict[str, Any]:
        """What the report says about a search that made ``fresh`` trials now."""
        task = search.task
        return {
            "workload": task.layer.workload.key, "template": task.key.template,
            "layers": list(task.layers), "trials": len(search.curve), "failed": search.failed,
            "skipped": search.skipped, "best": _number(search.best_cost),
            "planner": self._planner_cost(task), "best_knobs": search.best,
            "trials_per_s": fresh / seconds if fresh else None,
            "curve": [_number(cost) for cost in search.curve],
        }  # fmt: skip

    def _keep(
        self,
        task: Task,
        knobs: Knobs,
        cost: float | None,
        error: str = "",
        seconds: float = 0.0,
        preferred: bool = False,
    ) -> None:
        """Add a trial to the file and to what is known."""
        outcome = Outcome(cost, error, seconds)
        record = new_record(task.key, knobs, outcome, self.tuner, self.seed, preferred)
        append(self.path, [record])
        self.known.add(record)

    def _planner_cost(self, task: Task) -> float | None:
        """What the planner's choice costs, if it was tried."""
        plan = task.plan()
        trials = self.known.of(task.key) if plan is not None else []
        return next((t.cost for t in trials if plan is not None and t.knobs == plan.knobs), None)

    # ---- the whole model, on the accelerator

    def _compare_models(self) -> dict[str, Any]:
        """The cycles of the model by the planner and by the records. Layers run beside each other,
        so that one that is faster alone may slow the model down: then only those are kept, the
        largest gains first, with which the model becomes faster, and of the others the planner's
        choice is the preferred one.
        """
        planner = self._cycles(Records())
        tuned = self._cycles(self.known)
        if tuned > planner:
            self._keep_what_helps(planner)
            tuned = self._cycles(self.known)
        return {"planner": planner, "tuned": tuned}

    def _keep_what_helps(self, planner: int) -> None:
        helping, least = Records(), planner
        for group in self._by_gain(planner):
            keys = {task.key for task in group}
            best = [record for record in self.known.best() if record.key in keys]
            tried = Records([*helping.trials, *best])
            cycles = self._cycles(tried) if self._gain(group[0]) > 0 else planner
            if cycles < least:
                helping, least = tried, cycles
                continue
            for task in group:
                if (plan := task.plan()) is not None:
                    self._keep(task, plan.knobs, self._planner_cost(task), preferred=True)

    def _by_gain(self, planner: int) -> list[list[Task]]:
        """The tasks whose best choice is not the planner's, each by itself, the largest gain first.
        Of those that gain very little a few are together, since each try compiles the model; and
        those that gain nothing.
        """
        best = {record.key: record.knobs for record in self.known.best()}
        groups: list[list[Task]] = []
        small, nothing = list[Task](), list[Task]()
        for task in sorted(self.tasks, key=self._gain, reverse=True):
            plan, gain = task.plan(), self._gain(task)
            if plan is None or best.get(task.key, plan.knobs) == plan.knobs:
                continue
            if gain >= SMALL_GAIN * planner:
                groups.append([task])
            else:
                (small if gain > 0 else nothing).append(task)
        groups += [small[i : i + TOGETHER] for i in range(0, len(small), TOGETHER)]
        return [*groups, nothing] if nothing else groups

    def _gain(self, task: Task) -> float:
        """Cycles that the best trial of a task saves, in all of its layers."""
        best = [r.cost for r in self.known.best() if r.key == task.key and r.cost is not None]
        planner = self._planner_cost(task)
        return (planner - best[0]) * len(task.layers) if best and planner is not None else 0.0

    def _cycles(self, records: Records) -> int:
        """The cycles of all programs of the model."""
        compiled = build(self.model, self.target, records=records)
        memory = self.tasks[0].layer.machine.memory  # type: ignore[attr-defined]
        return sum(
            count_cycles(program.table, memory, program.program_addr)
            for program in compiled.programs
        )

    # ---- the best trials again, on a processor

    def _measure_finalists(self, pool: Alone | Pool, rows: list[dict[str, Any]]) -> None:
        """Measure the best trials of each task again, in turns with the planner's choice, which
        runs twice: the ratio of its two times is what differences mean. The fastest is preferred.
        """
        for task, row in zip(self.tasks, rows, strict=True):
            plan = task.plan()
            trials = [t for t in self.known.of(task.key) if t.cost is not None and not t.preferred]
            if plan is None or not trials:
                continue
            trials.sort(key=lambda trial: trial.cost or 0.0)
            several = [plan.knobs, *(t.knobs for t in trials[:FINALISTS]), plan.knobs]
            times = pool.call(kernels_ms, task, several, FINAL_ROUNDS)
            best = int(np.argmin(times[:-1]))
            self._keep(task, several[best], times[best], preferred=True)
            row |= {
                "best": times[best], "planner": times[0], "best_knobs": dict(several[best]),
                "control": times[-1] / times[0],
            }  # fmt: skip


def _course(search: Search) -> Course:
    """How far a search has come, with the trials that the file had."""
    task, layer = search.task, search.task.layer
    work = float(layer.graph.macs(layer.node))
    best = [search.best_cost] if search.curve else []
    return Course(len(task.layers), work, layer.node.op.name, best)


def _planned(task: Task, candidates: Candidates | Programs) -> int | None:
    plan = task.plan()
    return None if plan is None else candidates.point(plan.knobs)


def _number(cost: float) -> float | None:
    return float(cost) if np.isfinite(cost) else None


def _model_quality(searches: Sequence[Search]) -> dict[str, float | None]:
    """How well the model ranks trials that it did not learn from, as means over the tasks: pairs,
    and the best 30, where there are twice as many trials.
    """
    pairs, recalls = [], []
    for search in searches:
        points, costs = search.tried
        if len(points) < 2 * FEWEST or len(set(costs)) < 2:
            continue
        scores = held_out_scores(partial(_new_model, search), points, costs)
        pairs.append(pairwise_accuracy(scores, costs))
        if len(points) >= 2 * TOP:
            recalls.append(recall(scores, costs))
    return {
        "pairwise_accuracy": float(np.mean(pairs)) if pairs else None,
        "recall_at_30": float(np.mean(recalls)) if recalls else None,
    }


def _new_model(search: Search) -> BoostedTrees:
    candidates = search.explorer.candidates
    if isinstance(candidates, Programs):
        return BoostedTrees(ProgramFeatures(candidates))
    return BoostedTrees(Features(search.task, candidates))
