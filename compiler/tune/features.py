"""Numbers that describe a choice to a model, as many for every choice of a template.

*knob*: each number by its logarithm, each word as one of its values. *estimates*: what a
template's cost model computes for many choices at once. *loops*: of the lowered loop program, for
templates without estimates (``loop_features.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ..choose.space import Knobs
from ..tir.ir import PrimFunc
from .candidates import Candidates, Point
from .loop_features import loop_features
from .task import Task

Points = Sequence[Point] | np.ndarray
#: Names of estimates: what comes nearest to a choice's cost, and what no code can beat.
BOUND, FLOOR = "bound", "floor"


def knob_features(candidates: Candidates, points: Points) -> np.ndarray:
    """float64 [points, features] of the raw choices."""
    parts = []
    columns = candidates.columns(points)
    for name, values in candidates.space.knobs.items():
        column = columns[name]
        if all(type(value) is int for value in values):
            parts.append(np.log2(1.0 + column))
        else:
            parts += [(column == value).astype(float) for value in values]
    return np.stack(parts, axis=1)


class Features:
    """The features of a task's points; each is computed once."""

    def __init__(
        self, task: Task, candidates: Candidates, lower: Callable[[Knobs], PrimFunc] | None = None
    ):
        """``lower`` makes the loop program of some knobs; it is asked where the template has no
        estimates. Without it there are no features of loops.
        """
        self.candidates = candidates
        self._template, self._workload = task.layer.template, task.layer.workload
        self._lower = lower
        self._known: dict[Point, int] = {}
        self._rows: np.ndarray = np.zeros((0, 0))
        self._priors: np.ndarray = np.zeros(0)

    @property
    def has_estimates(self) -> bool:
        """Whether the template's cost model estimates many points at once."""
        return bool(self._estimates([0]))

    def of(self, points: Points) -> np.ndarray:
        """float64 [points, features]."""
        indices = self._indices(points)  # first: it makes rows
        return self._rows[indices]

    def prior(self, points: Points) -> np.ndarray:
        """float64 [points]: the logarithm of what the template's cost model estimates; zeros
        without estimates.
        """
        indices = self._indices(points)
        return self._priors[indices]

    def _indices(self, points: Points) -> list[int]:
        """The rows of points, after computing those that are missing."""
        asked = np.asarray(points).tolist()
        missing = [point for point in dict.fromkeys(asked) if point not in self._known]
        if missing:
            rows, priors = self._computed(missing)
            known = len(self._known)
            self._rows = np.vstack([self._rows, rows]) if known else rows
            self._priors = np.concatenate([self._priors, priors])
            self._known.update(zip(missing, range(known, known + len(missing)), strict=True))
        return [self._known[point] for point in asked]

    def _computed(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        parts, priors = [knob_features(self.candidates, points)], np.zeros(len(points))
        found = self._estimates(points)
        if found:
            parts.append(np.stack([np.log2(1.0 + values) for values in found.values()], axis=1))
            priors = np.log(found[BOUND])
        elif self._lower is not None:
            funcs = (self._lower(self.candidates.knobs(point)) for point in points)
            parts.append(np.stack([loop_features(func) for func in funcs]))
        return np.hstack(parts), priors

    def _estimates(self, points: Points) -> Mapping[str, np.ndarray]:
        return self._template.estimates(self._workload, self.candidates.columns(points))


def pairwise_accuracy(scores: Iterable[float], costs: Iterable[float]) -> float:
    """Of all pairs of different cost, the share whose cheaper one has the greater score."""
    score, cost = np.asarray(list(scores)), np.asarray(list(costs))
    i, j = np.triu_indices(len(cost), 1)
    differ = cost[i] != cost[j]
    return float(((score[i] > score[j]) == (cost[i] < cost[j]))[differ].mean())


def recall(scores: Iterable[float], costs: Iterable[float], count: int = 30) -> float:
    """The share of the ``count`` cheapest that is among the ``count`` of the greatest scores."""
    score, cost = np.asarray(list(scores)), np.asarray(list(costs))
    best = np.argsort(cost, kind="stable")[:count]
    return len({*best.tolist()} & {*np.argsort(-score, kind="stable")[:count].tolist()}) / len(best)
