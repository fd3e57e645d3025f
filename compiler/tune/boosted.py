"""A model of boosted trees (xgboost) that ranks choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from .features import Points

#: Trees of AutoTVM's depth. "mean" compares pairs at random, not only with the best: with
#: xgboost's default, ranks are little better than none.
PARAMETERS = {
    "objective": "rank:pairwise", "lambdarank_pair_method": "mean",
    "lambdarank_num_pair_per_sample": 32, "lambdarank_normalization": False,
    "max_depth": 3, "eta": 0.1, "nthread": 1, "verbosity": 0,
}  # fmt: skip
ROUNDS = 60
#: Trials that a model needs before it says anything by itself.
FEWEST = 8
#: What a unit of a base's scores weighs: the logarithm of estimated cycles, in units of a rank.
BASE_WEIGHT = 5.0
#: What a model of other tasks counts beside the estimates: they differ from task to task.
TRUST = 0.75

#: Scores by a model that learned from other tasks: features to scores.
Base = Callable[[np.ndarray], np.ndarray]


class Described(Protocol):
    """What describes points to a model (``features.py``, ``auto/programs.py``)."""

    @property
    def has_estimates(self) -> bool: ...
    def of(self, points: Points) -> np.ndarray:
        """float64 [points, features]."""
        ...

    def prior(self, points: Points) -> np.ndarray:
        """float64 [points]: the logarithm of an estimated cost; zeros without estimates."""
        ...


class BoostedTrees:
    """Learns from the trials of one task, on top of a base, which ranks points before there are
    trials: the estimates of the template's cost model, and ``base``, a model of other tasks.
    """

    def __init__(self, features: Described, seed: int = 0, base: Base | None = None):
        self.features, self.seed, self.base = features, seed, base
        self._trees: Any = None

    @property
    def knows(self) -> bool:
        """Whether it ranks points."""
        return self._trees is not None or self.base is not None or self.features.has_estimates

    @property
    def scores_all(self) -> bool:
        """Whether the features of all points are computed together."""
        return self.features.has_estimates

    def fit(self, points: Points, costs: Sequence[float]) -> None:
        """Learn from all trials of the task."""
        if len(points) < FEWEST or not np.isfinite(costs).any():
            return
        import xgboost

        data = self._matrix(points)
        data.set_label(_speeds(costs))
        data.set_group([len(points)])
        self._trees = xgboost.train({**PARAMETERS, "seed": self.seed}, data, ROUNDS)

    def score(self, points: Points) -> np.ndarray:
        """float64 [points]: the greater the faster."""
        if self._trees is None:
            return self._margin(points)
        return self._trees.predict(self._matrix(points), output_margin=True).astype(float)

    def _matrix(self, points: Points) -> Any:
        import xgboost

        return xgboost.DMatrix(
            self.features.of(points), base_margin=self._margin(points), nthread=1
        )

    def _margin(self, points: Points) -> np.ndarray:
        margin = -BASE_WEIGHT * self.features.prior(points)
        return margin if self.base is None else margin + self.base(self.features.of(points))


def train_base(tasks: Sequence[tuple[Described, Points, Sequence[float] | np.ndarray]]) -> Base:
    """A model of the trials of several tasks, whose features must have the same meaning: tasks of
    one template. Each task is ranked by itself. The model corrects the estimates of the template.
    """
    import xgboost

    rows = np.vstack([features.of(points) for features, points, _ in tasks])
    margin = -BASE_WEIGHT * np.concatenate([f.prior(points) for f, points, _ in tasks])
    data = xgboost.DMatrix(rows, base_margin=margin, nthread=1)
    data.set_label(np.concatenate([_speeds(costs) for *_, costs in tasks]))
    data.set_group([len(points) for _, points, _ in tasks])
    trees = xgboost.train({**PARAMETERS, "seed": 0, "base_score": 0.0}, data, ROUNDS)

    def score(rows: np.ndarray) -> np.ndarray:
        zero = np.zeros(len(rows))
        data = xgboost.DMatrix(rows, base_margin=zero, nthread=1)
        return TRUST * trees.predict(data, output_margin=True)

    return score


def _speeds(costs: Sequence[float] | np.ndarray) -> np.ndarray:
    """Speeds relative to the fastest; 0 for a trial that failed."""
    cost = np.asarray(costs, float)
    return cost.min() / cost
