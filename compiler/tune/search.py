"""The loop of a tuner: ask an explorer, skip what cannot win, measure, tell, keep."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ..choose.records import Record
from ..choose.space import Knobs
from ..targets.cpu.layer import CpuLayer
from ..targets.cpu.templates.by_steps import expression_of_workload
from ..targets.vdla.expressions import gemm_intrin
from ..targets.vdla.layer import Layer as VdlaLayer
from ..targets.vdla.templates.convolution import ProductsWorkload
from ..targets.vdla.templates.searched import ProductsBySteps
from ..tir.ir import PrimFunc
from .annealing import Annealing, ModelAnnealing, TreeAnnealing
from .auto.accelerator import accelerator_program
from .auto.evolution import Evolution
from .auto.programs import ProgramFeatures, Programs
from .auto.rules import processor_program
from .boosted import Base, BoostedTrees
from .candidates import Candidates, Point
from .explorer import Explorer, Grid, Random
from .features import FLOOR, Features
from .genetic import Genetic
from .loop_tree import TreeFeatures
from .task import Layer, Task, loop_program

#: The explorers that learn no model, by name.
WITHOUT_MODEL: dict[str, type[Explorer]] = {
    kind.name: kind for kind in (Annealing, Genetic, Random, Grid)
}
#: The explorers by name; :func:`make_explorer` makes them.
EXPLORERS = (ModelAnnealing.name, *WITHOUT_MODEL)
#: All tuners: the explorers of knobs, one that needs an extra, and the AutoScheduler.
TUNERS = (*EXPLORERS, TreeAnnealing.name, Evolution.name)
#: Trials after which an explorer learns.
PLAN = 8


@dataclass(frozen=True)
class Outcome:
    """What a trial gave: its cost, None with an ``error`` if it failed, and how long it took."""

    cost: float | None
    error: str = ""
    seconds: float = 0.0


#: Measures some knobs of a task; yields outcomes with the index of their knobs, in any order.
Measure = Callable[[Task, Sequence[Knobs]], Iterable[tuple[int, Outcome]]]


def make_programs(task: Task) -> Programs:
    """The programs by rules of a task that is scheduled by steps."""
    layer = task.layer
    match layer:
        case CpuLayer(workload=workload, processor=processor):
            output = expression_of_workload(workload).output
            space = layer.template.space(workload)
            sizes = {"lanes": processor.vector_lanes, "threads": processor.threads}
            make = partial(processor_program, output, **sizes)
        case VdlaLayer(
            template=ProductsBySteps() as template, workload=ProductsWorkload() as workload
        ):
            output, space = template.output(workload), template.space(workload)
            gemm = gemm_intrin(layer.machine.params)
            make = partial(accelerator_program, output, gemm=gemm)
        case _:
            raise TypeError(f"{layer} is not scheduled by steps")
    return Programs(make, partial(loop_program, layer), space.refuse_values)


def make_explorer(
    name: str,
    task: Task,
    candidates: Candidates | Programs,
    seed: int,
    start: Iterable[Point] = (),
    base: Base | None = None,
    loops: Callable[[Layer, Knobs], PrimFunc] | None = loop_program,
) -> Explorer:
    """The explorer of a name; one with a model learns from the task's features, on a ``base``.
    ``loops`` makes the loop program of a layer, for features; None: without them.
    """
    if isinstance(candidates, Programs):
        return Evolution(candidates, seed, BoostedTrees(ProgramFeatures(candidates), seed), start)
    if name == ModelAnnealing.name:
        features = Features(task, candidates, partial(loops, task.layer) if loops else None)
        return ModelAnnealing(candidates, seed, BoostedTrees(features, seed, base), start)
    if name == TreeAnnealing.name:
        from .tree_network import TreeNetwork  # needs an extra

        return TreeAnnealing(candidates, seed, TreeNetwork(_trees(task, candidates), seed), start)
    return WITHOUT_MODEL[name](candidates, seed, start)


def _trees(task: Task, candidates: Candidates) -> TreeFeatures:
    def lowered(point: Point) -> PrimFunc:
        return loop_program(task.layer, candidates.knobs(point))

    features = Features(task, candidates)
    return TreeFeatures(lowered, features.prior, features.has_estimates)


@dataclass
class Search:
    """The trials of a task.

    Attributes
    ----------
    curve : the best cost after each trial; infinite before the first that succeeded
    skipped : points that were not tried because no code of theirs can beat the best one
    exhausted : whether no point is left that could win
    tried : the points, and what they cost
    """

    task: Task
    explorer: Explorer
    curve: list[float] = field(default_factory=list)
    best: Knobs | None = None
    failed: int = 0
    skipped: int = 0
    exhausted: bool = False
    tried: tuple[list[Point], list[float]] = field(default_factory=lambda: ([], []))

    @property
    def best_cost(self) -> float:
        """The least cost so far."""
        return self.curve[-1] if self.curve else np.inf

    def resume(self, records: Iterable[Record]) -> None:
        """Take earlier trials of the task as if they had been made here."""
        points, outcomes = [], []
        for record in records:
            point = self.explorer.candidates.point(record.knobs)
            if point is not None and point not in points:
                points.append(point)
                outcomes.append(Outcome(record.cost, record.error))
        self.explorer.skip(points)
        self._tell(points, outcomes)

    def run(
        self,
        measure: Measure,
        trials: int,
        plan: int = PLAN,
        deadline: float | None = None,
        kept: Callable[[Knobs, Outcome], None] = lambda knobs, outcome: None,
    ) -> None:
        """Go on until there are ``trials`` in all, nothing is left, or ``deadline`` has passed
        (``time.monotonic``). ``kept`` is told of each trial as soon as it is made.
        """
        candidates = self.explorer.candidates
        while len(self.curve) < trials and not self.exhausted:
            if deadline is not None and time.monotonic() > deadline:
                return
            self._skip_hopeless()
            points = self.explorer.ask(min(plan, trials - len(self.curve)))
            self.exhausted = not points
            batch = [candidates.knobs(point) for point in points]
            outcomes: dict[int, Outcome] = {}
            for index, outcome in measure(self.task, batch):
                outcomes[index] = outcome
                kept(batch[index], outcome)
                if deadline is not None and time.monotonic() > deadline:
                    break
            made = sorted(outcomes)
            self._tell([points[index] for index in made], [outcomes[index] for index in made])

    def _tell(self, points: Sequence[Point], outcomes: Sequence[Outcome]) -> None:
        costs = [np.inf if o.cost is None else o.cost for o in outcomes]
        self.tried[0].extend(points)
        self.tried[1].extend(costs)
        self.failed += sum(outcome.cost is None for outcome in outcomes)
        for point, cost in zip(points, costs, strict=True):
            if cost < self.best_cost:
                self.best = self.explorer.candidates.knobs(point)
            self.curve.append(min(cost, self.best_cost))
        if points:
            self.explorer.tell(points, costs)

    def _skip_hopeless(self) -> None:
        """Skip all points whose floor, by the template's cost model, is not below the best cost."""
        if not self._points.size or not np.isfinite(self.best_cost):
            return
        hopeless = self._points[self._floors >= self.best_cost]
        self.skipped += int((~self.explorer.known[hopeless]).sum())
        self.explorer.skip(hopeless)

    def __post_init__(self) -> None:
        self._points = np.zeros(0, np.int64)
        self._floors = np.zeros(0)
        candidates = self.explorer.candidates
        if isinstance(candidates, Candidates) and self.task.estimates:
            self._points = candidates.all()
            self._floors = self.task.estimates[FLOOR]
