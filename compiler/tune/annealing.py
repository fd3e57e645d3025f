"""Simulated annealing: on measured costs, and on a model's scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

import numpy as np

from .candidates import Candidates, Point
from .explorer import Explorer

#: Chains of the walk on measured costs, its first temperature, and the factor of each step of all
#: chains. A temperature is a difference of logarithms of costs.
MEASURED_CHAINS, FIRST_TEMPERATURE, COOLING = 8, 0.1, 0.9
#: Chains of the walk on a model's scores, its steps, and steps without change after which it ends.
CHAINS, STEPS, PATIENCE = 128, 500, 50
#: The first temperature of that walk, as a part of the range of scores.
HEAT = 0.1
#: The part of a plan that is random (AutoTVM's).
RANDOM_SHARE = 0.05
#: Neighbours that are looked at, at most, for a new one.
TRIES = 40


class Annealing(Explorer):
    """Chains that move to a measured neighbour if it is cheaper, or by chance if it is not."""

    name = "sa"

    def __init__(self, candidates: Candidates, seed: int, start: Iterable[Point] = ()):
        super().__init__(candidates, seed, start)
        self._at: list[tuple[Point, float]] = []
        self._chain_of: dict[Point, int] = {}
        self._turn = 0
        self._temperature = FIRST_TEMPERATURE

    def propose(self, count: int) -> Iterable[Point]:
        if len(self._at) < MEASURED_CHAINS:
            return
        for _ in range(count):
            chain = self._turn % len(self._at)
            self._turn += 1
            here = np.array([self._at[chain][0]])
            for _ in range(TRIES):
                here = self.candidates.neighbours(here, self.rng)
                if self.is_new(point := int(here[0])):
                    self._chain_of[point] = chain
                    yield point
                    break

    def tell(self, points: Sequence[Point], costs: Sequence[float]) -> None:
        for point, cost in zip(points, costs, strict=True):
            chain = self._chain_of.pop(point, None)
            if len(self._at) < MEASURED_CHAINS:
                self._at.append((point, cost))
                continue
            self._temperature *= COOLING ** (1 / MEASURED_CHAINS)
            if chain is None:  # a random point may take the place of the worst one
                worst = max(range(len(self._at)), key=lambda i: self._at[i][1])
                if cost < self._at[worst][1]:
                    self._at[worst] = point, cost
            elif self._accepts(self._at[chain][1], cost):
                self._at[chain] = point, cost

    def _accepts(self, old: float, new: float) -> bool:
        if new <= old or not np.isfinite(old):
            return True
        return bool(self.rng.random() < np.exp(-np.log(new / old) / self._temperature))


class CostModel(Protocol):
    """Predicts which points are fast."""

    def fit(self, points: Sequence[Point], costs: Sequence[float]) -> None:
        """Learn from all trials; a cost is infinite where a trial failed."""
        ...

    def score(self, points: np.ndarray) -> np.ndarray:
        """float64 [points]: the greater the faster."""
        ...

    @property
    def knows(self) -> bool:
        """Whether scores say anything: it has learned, or has a base."""
        ...

    @property
    def scores_all(self) -> bool:
        """Whether all points are scored together in the time of some hundreds."""
        ...


class ModelAnnealing(Explorer):
    """Points that a model finds fastest, found by parallel chains on its scores. When the model has
    learned more, the chains go on from where they were (as in AutoTVM).
    """

    name = "xgb"
    #: Chains, and steps of a walk at most.
    chain_count, steps = CHAINS, STEPS

    def __init__(
        self, candidates: Candidates, seed: int, model: CostModel, start: Iterable[Point] = ()
    ):
        super().__init__(candidates, seed, start)
        self.model = model
        shuffled = candidates.shuffled(np.random.default_rng((seed, 2)))
        self.chains = np.array(list(islice(shuffled, self.chain_count)), np.int64)
        self._told: dict[Point, float] = {}
        #: The score of each point that the chains came to; nan of others.
        self._scores = np.full(candidates.count, np.nan)
        self._scores_of_all: np.ndarray | None = None

    def tell(self, points: Sequence[Point], costs: Sequence[float]) -> None:
        self._told.update(zip(points, costs, strict=True))
        self.model.fit(list(self._told), list(self._told.values()))
        self._scores.fill(np.nan)
        self._scores_of_all = None

    def propose(self, count: int) -> Iterable[Point]:
        if not self.model.knows or not self.chains.size:
            return []
        self.walk(count)
        # Of all points that the chains came to, the best; of equal scores the first in the space.
        found = np.flatnonzero(~np.isnan(self._scores) & ~self.known)
        best = found[np.argsort(-self._scores[found], kind="stable")]
        return best[: count - int(RANDOM_SHARE * count)].tolist()

    def walk(self, count: int) -> None:
        """Let the chains walk, until the best ``count`` new points stay the same for a while."""
        scores = self._scored(self.chains)
        heat = HEAT * (float(np.ptp(scores)) or 1.0)
        best, idle = self._best(np.zeros(0), self.chains, count), 0
        for step in range(self.steps):
            temperature = heat * (1.0 - step / self.steps)
            moves = self.candidates.neighbours(self.chains, self.rng)
            first = moves[np.isnan(self._scores[moves])]
            new = self._scored(moves)
            chances = np.exp(np.minimum(new - scores, 0.0) / temperature)
            moving = self.rng.random(len(moves)) < chances
            self.chains = np.where(moving, moves, self.chains)
            scores = np.where(moving, new, scores)
            changed = self._best(best, first, count)
            idle = idle + 1 if np.array_equal(best, changed) else 0
            best = changed
            if idle == PATIENCE:
                break

    def _best(self, scores: np.ndarray, points: np.ndarray, count: int) -> np.ndarray:
        """The best ``count`` of some scores and of those of new points, in order."""
        fresh = np.unique(points[~self.known[points]])
        return np.sort(np.concatenate([scores, self._scores[fresh]]))[-count:]

    def _scored(self, points: np.ndarray) -> np.ndarray:
        """The scores of points; each point is scored once until the model learns."""
        missing = np.unique(points[np.isnan(self._scores[points])])
        if missing.size:
            self._scores[missing] = self._by_model(missing)
        return self._scores[points]

    def _by_model(self, points: np.ndarray) -> np.ndarray:
        if not self.model.scores_all:
            return self.model.score(points)
        if self._scores_of_all is None:
            self._scores_of_all = np.full(self.candidates.count, np.nan)
            every = self.candidates.all()
            self._scores_of_all[every] = self.model.score(every)
        return self._scores_of_all[points]


class TreeAnnealing(ModelAnnealing):
    """The same with a model of loop programs (``tree_network.py``), each of which has to be lowered
    first: fewer points are looked at.
    """

    name = "treernn"
    chain_count, steps = 32, 20
