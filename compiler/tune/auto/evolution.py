"""Evolutionary search over logs of steps (as in Ansor)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from ..annealing import CostModel
from ..candidates import Point
from ..explorer import Explorer
from .builder import Kind, Opening, Program, as_in, at_random, inclined
from .programs import BY_ITSELF, Programs

#: Programs of a generation, and generations between two plans of trials (Ansor: 2,048 and 4).
POPULATION, GENERATIONS = 128, 4
#: The part of a first generation that was measured, at most; the others are random.
MEASURED = 0.5
#: How often a child is a changed parent; otherwise it is a cross of two (Ansor's).
MUTATION = 0.85
#: How often a change is of each kind (Ansor's); sketches are changed as often as locations.
MUTATIONS = {
    Kind.TILE: 0.9, Kind.UNROLL: 0.04, Kind.LOCATION: 0.05, Kind.SKETCH: 0.05, Kind.THREADS: 0.01,
}  # fmt: skip
#: The part of a plan that is random (Ansor's epsilon).
RANDOM_SHARE = 0.05
#: The part of random programs that are made with an inclination.
INCLINED = 0.5
#: Attempts at a new random program.
TRIES = 40


class Evolution(Explorer):
    """Programs that a model finds fastest, found by generations of changes and crosses.

    A *change* decides one open step of a log anew and keeps the others; a *cross* takes the steps
    of each stage from one of two logs. What is no option any more is decided at random.
    """

    name = "auto"

    def __init__(
        self, programs: Programs, seed: int, model: CostModel, start: Iterable[Point] = ()
    ):
        self.candidates = programs
        self.model = model
        self.rng = np.random.default_rng(seed)
        self._start = list(start)
        self._asked: set[Point] = set()
        self._costs: dict[Point, float] = {}

    def is_new(self, point: Point) -> bool:
        return point not in self._asked

    def skip(self, points: Sequence[Point] | np.ndarray) -> None:
        self._asked.update(int(point) for point in points)

    def ask(self, count: int) -> list[Point]:
        chosen: list[Point] = []
        for points in (self._start, self._proposed(count), self._random()):
            for point in points:
                if len(chosen) == count:
                    return chosen
                if self.is_new(point):
                    self._asked.add(point)
                    chosen.append(point)
        return chosen

    def tell(self, points: Sequence[Point], costs: Sequence[float]) -> None:
        self._costs.update(zip(points, costs, strict=True))
        self.model.fit(list(self._costs), list(self._costs.values()))

    def propose(self, count: int) -> Iterable[Point]:
        """The best new programs of some generations, by the model's scores."""
        population = self._first_generation()
        scores: dict[Point, float] = {}
        for generation in range(GENERATIONS + 1):
            self._score(population, scores)
            if generation < GENERATIONS:
                population = self._next_generation(population, scores)
        found = [point for point in scores if self.is_new(point)]
        best = sorted(found, key=lambda point: (-scores[point], point))
        return islice(filter(self.candidates.fits, best), count)

    def _proposed(self, count: int) -> Iterable[Point]:
        wanted = count - round(RANDOM_SHARE * count)
        return self.propose(wanted) if self.model.knows and wanted else ()

    def _random(self) -> Iterable[Point]:
        """Sound new programs at random, until none is found for a while."""
        idle = 0
        while idle < TRIES:
            point = self._made_at_random()
            if point is not None and self.is_new(point) and self._is_worth(point):
                idle = 0
                yield point
            else:
                idle += 1

    def _is_worth(self, point: Point) -> bool:
        return self.candidates.is_sound(point) and self.candidates.fits(point)

    # ---- generations

    def _first_generation(self) -> list[Point]:
        """The best that were measured, and random ones."""
        best = sorted((c, p) for p, c in self._costs.items() if np.isfinite(c) and p != BY_ITSELF)
        found = [point for _, point in best[: int(MEASURED * POPULATION)]]
        for _ in range(POPULATION - len(found)):
            point = self._made_at_random()
            if point is not None and self.candidates.is_sound(point):
                found.append(point)
        return found

    def _made_at_random(self) -> Point | None:
        """A program whose steps are decided by chance, or by chance and inclination."""
        kind = inclined if self.rng.random() < INCLINED else at_random
        return self.candidates.made(kind(self.rng))

    def _score(self, population: Sequence[Point], scores: dict[Point, float]) -> None:
        missing = [point for point in dict.fromkeys(population) if point not in scores]
        if missing:
            found = self.model.score(np.array(missing))
            scores.update(zip(missing, found.tolist(), strict=True))

    def _next_generation(
        self, population: Sequence[Point], scores: dict[Point, float]
    ) -> list[Point]:
        """Children of parents that are chosen by their rank."""
        order = sorted(dict.fromkeys(population), key=lambda point: (-scores[point], point))
        chances = 1.0 / (1.0 + np.arange(len(order)))
        chances /= chances.sum()
        found: list[Point] = []
        for _ in range(POPULATION):
            a, b = (
                self.candidates[order[int(i)]] for i in self.rng.choice(len(order), 2, p=chances)
            )
            if self.rng.random() < MUTATION:
                child = self._changed(a)
            else:
                child = self._crossed(a, b)
            if child is not None and self.candidates.is_sound(child):
                found.append(child)
        return found or list(population)

    def _changed(self, parent: Program) -> Point | None:
        """A log with one open step decided anew."""
        several = [each.opening for each in parent.decided]
        kinds = [kind for kind in MUTATIONS if any(o.kind is kind for o in several)]
        if not kinds:
            return None
        weights = np.array([MUTATIONS[kind] for kind in kinds])
        kind = kinds[int(self.rng.choice(len(kinds), p=weights / weights.sum()))]
        keys = [opening.key for opening in several if opening.kind is kind]
        key = keys[int(self.rng.integers(len(keys)))]
        return self.candidates.made(as_in(lambda _: parent, self.rng, (key,)))

    def _crossed(self, a: Program, b: Program) -> Point | None:
        """A log that has each stage's steps from one of two."""
        sides: dict[str, Program] = {}

        def parent(opening: Opening) -> Program:
            if opening.stage not in sides:
                sides[opening.stage] = a if self.rng.random() < 0.5 else b
            return sides[opening.stage]

        return self.candidates.made(as_in(parent, self.rng))
