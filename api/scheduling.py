"""Schedules of tensor expressions that are found by search, without a template."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..compiler.choose.records import Records, append
from ..compiler.choose.space import Knobs
from ..compiler.choose.steps import STEPS
from ..compiler.targets.base import Options
from ..compiler.targets.cpu.target import Cpu
from ..compiler.targets.registry import find_target
from ..compiler.te.schedule import Schedule
from ..compiler.te.steps import Log, from_text
from ..compiler.te.tensor import Tensor
from ..compiler.tune.auto.evolution import Evolution
from ..compiler.tune.auto.expression import ExpressionLayer
from ..compiler.tune.auto.programs import BY_ITSELF
from ..compiler.tune.pool import Alone
from ..compiler.tune.search import Outcome, Search, make_explorer
from ..compiler.tune.task import Task
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams, load_platform
from ..isa.params import HwParams
from ..module import check_options
from .tuning import STEPS as TRIALS
from .tuning import new_record

#: Where expressions can be scheduled.
TARGETS = ("cpu", "sim", "rtl")


@dataclass(frozen=True)
class FoundSchedule:
    """The best schedule that a search has found.

    Attributes
    ----------
    log : its steps
    cost : cycles, or milliseconds on the processor
    curve : the least cost after each trial; infinite before the first that succeeded
    """

    layer: ExpressionLayer
    knobs: Knobs
    cost: float
    curve: tuple[float, ...]

    @property
    def log(self) -> Log:
        """The steps, which can be stored (``te.steps.to_text``) and made again (``replay``)."""
        text = str(self.knobs[STEPS])
        return from_text(text) if text else ()

    def schedule(self) -> Schedule:
        """A new schedule with these steps, for :func:`vdla.build_schedule`."""
        return self.layer.schedule(self.knobs)


def auto_schedule(
    args: Sequence[Tensor],
    target: str = "cpu",
    hw: HwParams | str | Path = "16x16",
    memory: MemoryParams | str | Path = "vta",
    trials: int = 64,
    seed: int = 0,
    records: str | Path | None = None,
    threads: int = 1,
    timeout_s: float = 60.0,
) -> FoundSchedule:
    """Search a schedule of a tensor expression: rules make schedules with open steps, and an
    evolutionary search decides these by what trials cost.

    Parameters
    ----------
    args : tensors
        The tensors that the expression reads, then the one that it computes. For the accelerator
        it is a sum of products of int8 in blocks of channels, and what is made of it element by
        element (``examples/05_own_schedule.py``).
    target : str
        ``cpu`` (milliseconds), ``sim`` or ``rtl`` (cycles).
    trials : int
        How many schedules are tried. On the processor, the default schedule is the first.
    seed : int
        The same seed makes the same trials, where these cost the same.
    records : path, optional
        A file that earlier trials are read from and all are added to.

    Raises
    ------
    VdlaError
        For a bad option, an expression that the target's rules do not fit, and if no trial
        succeeded.
    """
    check_options(target, None, trials=trials, threads=threads)
    if target not in TARGETS:
        raise VdlaError(f"target: expected one of {', '.join(TARGETS)}, got {target!r}")
    params, memory = load_platform(hw, memory)
    where = find_target(target, Options(params, memory, threads=threads))
    layer = ExpressionLayer(tuple(args), where)  # type: ignore[arg-type]
    task = Task(where.name, where.machine_key, layer, (layer.name,))  # type: ignore[arg-type]
    programs = layer.programs()
    programs.check(np.random.default_rng(seed))
    start = [BY_ITSELF] if isinstance(where, Cpu) else []
    search = Search(task, make_explorer(Evolution.name, task, programs, seed, start))
    path = None if records is None else Path(records)
    if path is not None and path.exists():
        search.resume(Records.load(path).of(task.key))

    def kept(knobs: Knobs, outcome: Outcome) -> None:
        if path is not None:
            append(path, [new_record(task.key, knobs, outcome, Evolution.name, seed)])

    with closing(Alone(TRIALS[target], timeout_s)) as device:
        search.run(device.measure, trials, kept=kept)
    if search.best is None:
        raise VdlaError(f"auto_schedule: expected a schedule for {where.title}, got none in "
                        f"{len(search.curve)} trials")  # fmt: skip
    return FoundSchedule(layer, search.best, search.best_cost, tuple(search.curve))
