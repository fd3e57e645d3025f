"""An exploration: designs are proposed and climb the ladder of ``ladder.py`` as far as they
deserve, and the front of the best is kept.

What is measured of a network on a machine goes to a file of JSON lines, the same as that of ``vdla
sweep``. An exploration that goes on asks its search the same questions again and finds the answers
in the file: it ends as one that was never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ..bench.sweep import Point, Results, Row, measure_points
from ..compiler.tune.pool import Pool
from ..isa.errors import VdlaError
from .front import BOX, dominates, front, hypervolume
from .ladder import Design, Ladder
from .search import OptunaSearch, RandomSearch, Search, drawn
from .spec import Spec
from .surrogate import HardwareFirst, SurrogateSearch

#: Designs that are proposed before any of them is measured; fixed, so that the number of workers
#: changes nothing.
BATCH = 4
#: Proposals for each design that may be measured; a search that finds nothing new ends.
PROPOSALS = 50

#: Gives a row for each point, and whether Ctrl-C came between; see :func:`~..bench.sweep.
#: measure_points`.
Measure = Callable[
    [Sequence[Point], Results, int, Callable[[int, int], None], Pool | None],
    tuple[list[Row], bool],
]


@dataclass(frozen=True)
class Outcome:
    """What became of a design.

    Attributes
    ----------
    design : the design
    rung : ``illegal``, ``limit``, ``bound`` (beaten even at its bound), ``failed`` or ``exact``
    values : what is known of it, by the names of :data:`~.spec.OBJECTIVES`; exact for ``exact``
        and for limits that only a run shows, else with bounds
    reason : why it is not exact
    over : by how much limits are exceeded
    rows : what was measured of each network
    cells : what it takes in standard cells, where that is wanted
    """

    design: Design
    rung: str
    values: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    over: float = 0.0
    rows: Sequence[Row] = ()
    cells: Row | None = None


@dataclass(frozen=True)
class State:
    """How far an exploration is: designs that were compiled and simulated, those on the front, its
    hypervolume, the seconds since the begin, and those that are left of a limit (infinite without).
    """

    measured: int
    trials: int
    on_front: int
    hypervolume: float
    elapsed_s: float
    left_s: float


class Exploration:
    """Explores.

    Parameters
    ----------
    spec : what is explored
    results : the file of what is measured
    workers : processes that compile and simulate
    progress : is told the state after each batch
    measure : measures points, as ``vdla sweep`` does unless something else is given
    pool : workers that measure instead of processes here
    prunes : whether what is beaten at its bound is left out
    time_s : no designs are proposed after so many seconds

    Attributes
    ----------
    outcomes : of all designs, in the order in which they were proposed, each once; the first is the
        one that the search begins at
    interrupted : whether Ctrl-C ended it
    """

    def __init__(
        self,
        spec: Spec,
        results: Results,
        workers: int,
        progress: Callable[[State], None] = lambda _: None,
        measure: Measure | None = None,
        pool: Pool | None = None,
        prunes: bool = True,
        time_s: float = inf,
    ):
        if spec.size == 1:
            raise VdlaError("knobs: expected at least two combinations of values, got one")
        self.spec, self.results, self.workers = spec, results, workers
        self.progress, self.ladder = progress, Ladder(spec)
        self._measure, self._pool, self._prunes = measure or measure_points, pool, prunes
        self._time_s = time_s
        self.outcomes: list[Outcome] = []
        self.interrupted = False
        #: The hypervolume after the first design, and after each batch.
        self.hypervolumes: list[float] = []
        self._known: dict[tuple[int, ...], Outcome] = {}
        self._started = time.monotonic()

    def run(self) -> None:
        """Explore until the designs or the seconds are spent, no proposal is new or Ctrl-C ends
        it.

        Raises VdlaError where the first design cannot be measured, and where no design can be
        within the limits.
        """
        if not self.begin():
            return
        self._check_limits()
        search, proposed = make_search(self.spec, self.ladder), 0
        trials = self.spec.trials
        while self.measured < trials and proposed < PROPOSALS * trials and self._left_s > 0:
            asked = [knobs for _ in range(BATCH) if (knobs := search.ask()) is not None]
            if not asked:
                break
            proposed += len(asked)
            if not self._evaluate([Design.of(self.spec, knobs) for knobs in asked]):
                self._tell_progress()
                break
            for knobs in asked:
                outcome = self._known[self._place(knobs)]
                # What has no values is told as bad ones, or a sampler would ask for it again.
                is_known = all(name in outcome.values for name in self.spec.objectives)
                values = self._objectives(outcome) if is_known else self._box
                search.tell(values, outcome.over, is_known and bool(outcome.rows))
            self._tell_progress()

    def _tell_progress(self) -> None:
        state = self.state
        self.hypervolumes.append(state.hypervolume)
        self.progress(state)

    @property
    def measured(self) -> int:
        """Designs that were compiled and simulated."""
        return sum(bool(outcome.rows) for outcome in self.outcomes)

    @property
    def front(self) -> list[Outcome]:
        """The designs within all limits that no other beats, by the first objective."""
        exact = [outcome for outcome in self.outcomes if outcome.rung == "exact"]
        kept = [exact[index] for index in front([self._objectives(one) for one in exact])]
        return sorted(kept, key=self._objectives)

    @property
    def state(self) -> State:
        """How far it is."""
        on_front = self.front
        volume = 0.0
        if self.outcomes:
            volume = hypervolume([self._objectives(one) for one in on_front], self._box)
        left_s, elapsed_s = self._left_s, time.monotonic() - self._started
        return State(self.measured, self.spec.trials, len(on_front), volume, elapsed_s, left_s)

    @property
    def _left_s(self) -> float:
        return max(0.0, self._started + self._time_s - time.monotonic())

    @property
    def _box(self) -> tuple[float, ...]:
        """The corner of the box that the hypervolume is a part of."""
        return tuple(BOX * value for value in self._objectives(self.outcomes[0]))

    def _objectives(self, outcome: Outcome) -> tuple[float, ...]:
        return tuple(outcome.values[name] for name in self.spec.objectives)

    def _place(self, knobs: Any) -> tuple[int, ...]:
        return tuple(knobs[name] for name in self.spec.knobs)

    def begin(self) -> bool:
        """Measure the machine that the search begins at."""
        design = Design.of(self.spec, {})
        rows = self._measured([design])
        if self.interrupted:
            return False
        [first] = self._in_cells([self._exact(design, rows[0])])
        if self.interrupted:
            return False
        if first.rung == "failed":
            raise VdlaError(f"the first design, {self.spec.hw}: {first.reason}")
        self.outcomes.append(first)
        self.ladder.learn(design, rows[0], first.cells)
        self._tell_progress()
        return True

    def _check_limits(self) -> None:
        """Raise VdlaError where every design is known to exceed a limit, without a run of it."""
        ladder, bounds, error = self.ladder, [], ""
        for knobs in drawn(self.spec):
            design = Design.of(self.spec, knobs)
            if design.params is None:
                error = design.error
                continue
            bounds.append(ladder.bound(design))
            if not ladder.over(bounds[-1]):
                return
        if not bounds:
            raise VdlaError(f"knobs: expected a legal design, got none; the last: {error}")
        over = [
            f"{name} of at most {most:,g}, all have {least:,g} or more"
            for name, most in ladder.limits.items()
            if name in bounds[0] and (least := min(bound[name] for bound in bounds)) > most
        ]
        what = "; ".join(over) or "all of them at once, each exceeds one"
        raise VdlaError(f"limits: expected a design with {what}")

    def _evaluate(self, designs: Sequence[Design]) -> bool:
        """Let designs climb; False where Ctrl-C came between, or the budget ended first."""
        spent = False
        fresh: dict[tuple[int, ...], Design] = {}
        outcomes: dict[tuple[int, ...], Outcome] = {}
        best = [self._objectives(one) for one in self.front]
        left = self.spec.trials - self.measured
        for design in designs:
            place = self._place(design.knobs)
            if place in self._known or place in outcomes or place in fresh:
                continue
            outcome = self._cheap(design, best)
            if outcome is not None:
                outcomes[place] = outcome
            elif len(fresh) < left:
                fresh[place] = design
            else:
                spent = True
                break
        rows = self._measured(list(fresh.values()))
        if self.interrupted:
            return False
        exact = map(self._exact, fresh.values(), rows)
        outcomes |= zip(fresh, self._in_cells(list(exact)), strict=True)
        if self.interrupted:
            return False
        for design in designs:
            place = self._place(design.knobs)
            if place in outcomes and place not in self._known:
                self._known[place] = outcomes[place]
                self.outcomes.append(outcomes[place])
        return not spent

    def _cheap(self, design: Design, best: Sequence[Sequence[float]]) -> Outcome | None:
        """The outcome of a design that need not be compiled."""
        if design.params is None:
            return Outcome(design, "illegal", reason=design.error, over=1.0)
        bound = self.ladder.bound(design)
        over = self.ladder.over(bound)
        if over:
            return Outcome(design, "limit", bound, "exceeds a limit", over)
        mine = tuple(bound[name] for name in self.spec.objectives)
        if self._prunes and any(dominates(other, mine) for other in best):
            return Outcome(design, "bound", bound, "a design of the front beats even its bound")
        return None

    def _exact(self, design: Design, rows: Sequence[Row], cells: Row | None = None) -> Outcome:
        try:
            values = self.ladder.exact(design, rows, cells)
        except VdlaError as error:
            return Outcome(design, "failed", reason=str(error), over=1.0, rows=rows)
        if over := self.ladder.over(values):
            return Outcome(design, "limit", values, "exceeds a limit", over, rows, cells)
        return Outcome(design, "exact", values, rows=rows, cells=cells)

    def _in_cells(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes with what those within the limits, and the first design, take in standard
        cells, where that is wanted.
        """
        silicon, found = self.ladder.silicon, list(outcomes)
        wanted = ("exact",) if self.outcomes else ("exact", "limit")
        places = [place for place, one in enumerate(found) if one.rung in wanted]
        if silicon is None:
            return found
        points = [self.ladder.points(found[place].design) for place in places]
        try:
            measured = silicon.measure(points, self.results, self.workers)
        except KeyboardInterrupt:
            self.interrupted = True
            return found
        for place, cells in zip(places, measured, strict=True):
            found[place] = self._exact(found[place].design, found[place].rows, cells)
        return found

    def _measured(self, designs: Sequence[Design]) -> list[list[Row]]:
        """The rows of each design, one for each network."""
        points = [point for design in designs for point in self.ladder.points(design)]
        if not points:
            return []
        rows, self.interrupted = self._measure(
            points, self.results, self.workers, lambda done, total: None, self._pool
        )
        count = len(self.spec.networks)
        return list(_chunks(rows, count)) if not self.interrupted else []


def _chunks(rows: Sequence[Any], count: int) -> Iterator[list[Any]]:
    for first in range(0, len(rows), count):
        yield list(rows[first : first + count])


def make_search(spec: Spec, ladder: Ladder) -> Search:
    """The search that an exploration asks for; its ladder has learned from the first design."""
    match spec.search:
        case "random":
            return RandomSearch(spec, spec.seed)
        case "surrogate":
            return SurrogateSearch(spec, ladder)
        case "hardware-first":
            return HardwareFirst(spec, ladder)
        case name:
            return OptunaSearch(spec, name, spec.seed)
