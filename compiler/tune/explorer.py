"""What proposes points, and the two explorers that do not learn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from .candidates import Candidates, Point


class Explorer(ABC):
    """Proposes points of a space, each at most once. The same seed and the same costs give the same
    points.

    Parameters
    ----------
    candidates : the space
    seed : of its random numbers
    start : points to propose before all others, such as the planner's choice
    """

    #: The name on the command line and in records.
    name: ClassVar[str]

    def __init__(self, candidates: Candidates, seed: int, start: Iterable[Point] = ()):
        self.candidates = candidates
        self.rng = np.random.default_rng(seed)
        self._start = list(start)
        #: For each point whether it was asked or skipped.
        self.known = np.zeros(candidates.count, bool)
        self._rest: Iterator[Point] = candidates.shuffled(np.random.default_rng((seed, 1)))

    def ask(self, count: int) -> list[Point]:
        """Up to ``count`` legal points that were not asked before; fewer where there are no more.

        Where the explorer itself proposes too few, the others are random.
        """
        chosen: list[Point] = []
        self._take(self._start[:count], chosen, count)
        del self._start[:count]
        if len(chosen) < count:
            self._take(self.propose(count - len(chosen)), chosen, count)
        if len(chosen) < count:
            self._take(self._rest, chosen, count)
        return chosen

    def skip(self, points: Sequence[Point] | np.ndarray) -> None:
        """Points that need not be proposed: they were tried before, or cannot win."""
        self.known[np.asarray(points, np.int64)] = True

    def is_new(self, point: Point) -> bool:
        """Whether a legal point was neither asked nor skipped."""
        return not self.known[point]

    def tell(self, points: Sequence[Point], costs: Sequence[float]) -> None:  # noqa: B027
        """What points cost; infinite for a trial that failed. Points need not have been asked."""

    @abstractmethod
    def propose(self, count: int) -> Iterable[Point]:
        """Legal points worth trying next, best first; any that are not new are ignored."""

    def _take(self, points: Iterable[Point], chosen: list[Point], count: int) -> None:
        for point in points:
            if self.is_new(point):
                self.known[point] = True
                chosen.append(point)
                if len(chosen) == count:
                    return


class Random(Explorer):
    """Points in random order."""

    name = "random"

    def propose(self, count: int) -> Iterable[Point]:
        return ()


class Grid(Explorer):
    """Points in the order of the space."""

    name = "grid"

    def __init__(self, candidates: Candidates, seed: int, start: Iterable[Point] = ()):
        super().__init__(candidates, seed, start)
        self._all = iter(candidates.all().tolist())

    def propose(self, count: int) -> Iterable[Point]:
        return self._all
