"""Numbers that describe a choice to a model, as many for every choice of a template.

*knob*: each number by its logarithm, each word as one of its values. *estimates*: what a
template's cost model computes for many choices at once, each by its logarithm and by its share of
the estimated cycles, which means the same in layers of any size. *loops*: of the lowered loop
program, for templates without estimates (``loop_features.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..choose.space import Knobs
from ..tir.ir import PrimFunc
from .candidates import Candidates, Point
from .loop_features import loop_features
from .task import Task

Points = Sequence[Point] | np.ndarray
#: Names of estimates: what comes nearest to a choice's cost, and what no code can beat.
CYCLES, FLOOR = "cycles", "floor"
#: Shares of the estimated cycles are told apart above this one.
LEAST_SHARE = 1e-3


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
        self._task, self._lower = task, lower
        self._rows: np.ndarray | None = None
        self._priors = np.zeros(candidates.count)
        self._is_known = np.zeros(candidates.count, bool)

    @property
    def has_estimates(self) -> bool:
        """Whether the template's cost model estimates many points at once."""
        return bool(self._task.estimates)

    def of(self, points: Points) -> np.ndarray:
        """float64 [points, features]."""
        self._compute(points)
        assert self._rows is not None
        return self._rows[points]

    def prior(self, points: Points) -> np.ndarray:
        """float64 [points]: the logarithm of what the template's cost model estimates; zeros
        without estimates.
        """
        self._compute(points)
        return self._priors[points]

    def _compute(self, points: Points) -> None:
        """Compute what is missing. With estimates, that is done for all points together."""
        missing = np.unique(np.asarray(points)[~self._is_known[points]])
        if not missing.size:
            return
        if self._rows is None and self.has_estimates:
            missing = self.candidates.all()
        rows, priors = self._computed(missing)
        if self._rows is None:
            self._rows = np.zeros((self.candidates.count, rows.shape[1]), np.float32)
        self._rows[missing], self._priors[missing] = rows, priors
        self._is_known[missing] = True

    def _computed(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        parts, priors = [knob_features(self.candidates, points)], np.zeros(len(points))
        found = self._task.estimates
        if found:  # the points are all points
            several = list(found.values())
            parts.append(np.log2(1.0 + np.stack(several, axis=1)))
            shares = np.stack([values / found[CYCLES] for values in several], axis=1)
            parts.append(np.log2(LEAST_SHARE + shares))
            priors = np.log(found[CYCLES])
        elif self._lower is not None:
            funcs = (self._lower(self.candidates.knobs(point)) for point in points)
            parts.append(np.stack([loop_features(func) for func in funcs]))
        return np.hstack(parts), priors
