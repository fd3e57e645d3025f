"""A genetic algorithm (as in AutoTVM)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .candidates import Candidates, Point
from .explorer import Explorer

POPULATION, ELITES, MUTATION = 100, 3, 0.1
#: Children that are made at once, and how often, at most.
CHILDREN, TRIES = 64, 20


class Genetic(Explorer):
    """Generations of ``POPULATION`` points. A child has each knob of one of two parents, which are
    chosen by speed; a knob changes with probability ``MUTATION``. The ``ELITES`` fastest points are
    parents in all generations. The first generation is random.
    """

    name = "ga"

    def __init__(self, candidates: Candidates, seed: int, start: Iterable[Point] = ()):
        super().__init__(candidates, seed, start)
        #: Speeds of the last generation with the elites, and of the one that is being tried.
        self._parents: dict[Point, float] = {}
        self._told: dict[Point, float] = {}

    def tell(self, points: Sequence[Point], costs: Sequence[float]) -> None:
        for point, cost in zip(points, costs, strict=True):
            self._told[point] = 1.0 / cost
            if len(self._told) == POPULATION:
                everyone = self._parents | self._told
                elites = sorted(everyone, key=lambda p: -everyone[p])[:ELITES]
                self._parents = self._told | {elite: everyone[elite] for elite in elites}
                self._told = {}

    def propose(self, count: int) -> Iterable[Point]:
        speeds = np.array(list(self._parents.values()))
        if not speeds.sum():
            return
        parents, chances = np.array(list(self._parents)), speeds / speeds.sum()
        sizes = np.array(self.candidates.sizes)[:, None]
        for _ in range(TRIES):
            pairs = self.rng.choice(parents, (2, CHILDREN), p=chances)
            a, b = (np.stack(np.unravel_index(side, self.candidates.sizes)) for side in pairs)
            children = np.where(self.rng.random(a.shape) < 0.5, a, b)
            any_value = (self.rng.random(a.shape) * sizes).astype(int)
            children = np.where(self.rng.random(a.shape) < MUTATION, any_value, children)
            made = np.asarray(np.ravel_multi_index(tuple(children), self.candidates.sizes))
            yield from made[self.candidates.legal(made)].tolist()
