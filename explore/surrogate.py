"""A search that knows what needs no run: areas are exact for every design, so only what a run tells
is predicted, by Gaussian processes, and never below its bound.

A design is chosen for how much better than the front it may be: by its optimistic prediction, as in
searches with upper confidence bounds. Within a batch, what was chosen counts as if it were as
predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from random import Random
from typing import Any

import numpy as np

from .ladder import Design, Ladder
from .search import Knobs
from .spec import Spec

#: Designs that are spread over the space before the bounds or a prediction choose.
START = 2
#: The most candidates; of larger spaces a random part.
CANDIDATES = 4000
#: Points in the box of objectives, which tell how much of it a design may gain.
SAMPLES = 4096
#: Standard deviations by which predictions are optimistic.
OPTIMISM = 0.3
#: Lengths over which knobs matter, in parts of their ranges, that are tried.
_LENGTHS = (0.25, 0.5, 1.0, 2.0, 8.0)
#: With more designs than this, lengths stay: they hardly change, and the search for them takes
#: time.
_TUNED = 64
#: Variance of a linear trend, and of what neither trend nor neighbours explain.
_TREND, _NOISE = 4.0, 1e-4


class Process:
    """A Gaussian process with a linear trend, whose lengths are those that make the data likeliest.

    Parameters
    ----------
    places : float (designs, knobs), 0 to 1
    values : float (designs), of about unit variance
    lengths : where the search for lengths begins, one for each knob; changed in place
    """

    def __init__(self, places: np.ndarray, values: np.ndarray, lengths: np.ndarray):
        self.places, self.lengths = places, lengths
        self._mean = float(values.mean())
        self._values = values - self._mean
        if len(places) <= _TUNED:
            self._tune()
        self._factor = np.linalg.cholesky(self._covariance())
        self._weights = _solve(self._factor, self._values)

    def predict(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations at other places."""
        across = self._kernel(places, self.places)
        inner = np.linalg.solve(self._factor, across.T)
        own = 1.0 + _TREND * (1.0 + (places**2).sum(axis=1))
        left = np.maximum(own - (inner**2).sum(axis=0), 0.0)
        return self._mean + across @ self._weights, np.sqrt(left)

    def _tune(self) -> None:
        """Try lengths, knob by knob."""
        best = self._likelihood()
        for knob in range(len(self.lengths)):
            for length in _LENGTHS:
                before = self.lengths[knob]
                self.lengths[knob] = length
                found = self._likelihood()
                if found > best:
                    best = found
                else:
                    self.lengths[knob] = before

    def _kernel(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Matern's of order 5/2, and the trend."""
        apart = (one[:, None, :] - other[None, :, :]) / self.lengths
        far = np.sqrt(5.0 * (apart**2).sum(axis=2))
        return (1.0 + far + far**2 / 3.0) * np.exp(-far) + _TREND * (1.0 + one @ other.T)

    def _covariance(self) -> np.ndarray:
        return self._kernel(self.places, self.places) + _NOISE * np.eye(len(self.places))

    def _likelihood(self) -> float:
        factor = np.linalg.cholesky(self._covariance())
        fit = self._values @ _solve(factor, self._values)
        return float(-0.5 * fit - np.log(np.diag(factor)).sum())


def _solve(factor: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.linalg.solve(factor.T, np.linalg.solve(factor, values))


class SurrogateSearch:
    """Proposes what may gain most; see the module.

    Parameters
    ----------
    spec : the exploration
    ladder : knows areas and bounds; it must have learned from the first design before the first
        proposal
    corner : where the box of the hypervolume ends, for each objective
    """

    def __init__(self, spec: Spec, ladder: Ladder, corner: Sequence[float]):
        self._spec, self._ladder, self._corner = spec, ladder, np.array(corner, float)
        self._rng = np.random.default_rng(spec.seed)
        self._knobs: list[Knobs] = []
        self._asked: list[int] = []
        #: By index of the candidate, the objectives that a run gave.
        self._known: dict[int, np.ndarray] = {}
        self._lengths: list[np.ndarray] = []

    def ask(self) -> Knobs | None:
        """A candidate that was not asked for before; None where there are no more."""
        if not self._knobs:
            self._list_candidates()
        if not self._open.any():
            return None
        if self._open.sum() > len(self._open) - START:
            chosen = self._farthest()
        else:
            chosen = self._most_promising()
        self._open[chosen] = False
        self._asked.append(chosen)
        return self._knobs[chosen]

    def tell(self, values: Sequence[float], over: float, is_exact: bool) -> None:
        """The objectives of the oldest proposal that was not told about."""
        index = self._asked.pop(0)
        self._model = None
        if is_exact:
            self._known[index] = np.array(values, float)
            self._over[index] = over

    # ---- candidates

    def _list_candidates(self) -> None:
        """The designs that are legal and within the limits, as far as they need no run."""
        spec, bounds = self._spec, []
        for knobs in self._drawn():
            design = Design.of(spec, knobs)
            if design.params is None:
                continue
            bound = self._ladder.bound(design)
            if self._ladder.over(bound) == 0:
                self._knobs.append(knobs)
                bounds.append([bound[name] for name in spec.objectives])
        self._open = np.ones(len(self._knobs), bool)
        self._bounds = np.array(bounds, float).reshape(len(bounds), len(spec.objectives))
        values = np.array([[knobs[name] for name in spec.knobs] for knobs in self._knobs], float)
        # A feature that is off is 0, and as far from 1 as 1 from 2.
        places = np.log2(np.maximum(values, 0.5))
        places = places.reshape(len(self._knobs), len(spec.knobs))
        if len(places):
            low, wide = places.min(axis=0), np.ptp(places, axis=0)
            places = (places - low) / np.where(wide == 0, 1.0, wide)
        self._places = places
        self._nearest = np.full(len(places), np.inf)
        self._over: dict[int, float] = {}
        #: Which objectives only a run tells.
        names = ("cycles", "time_us", "dram_bytes", "energy_uj")
        self._of_run = [k for k, name in enumerate(spec.objectives) if name in names]
        self._lengths = [np.ones(len(spec.knobs)) for _ in self._of_run]
        self._model: Any = None

    def _drawn(self) -> list[Mapping[str, int]]:
        names, values = list(self._spec.knobs), list(self._spec.knobs.values())
        if self._spec.size <= CANDIDATES:
            return [dict(zip(names, one, strict=True)) for one in product(*values)]
        rng = Random(self._spec.seed)
        found = {tuple(rng.choice(few) for few in values) for _ in range(CANDIDATES)}
        return [dict(zip(names, one, strict=True)) for one in sorted(found)]

    # ---- choosing

    def _farthest(self) -> int:
        """The candidate that is farthest from all that were asked for; the first is drawn."""
        if self._open.all():
            chosen = int(self._rng.integers(len(self._open)))
        else:
            chosen = int(np.where(self._open, self._nearest, -1.0).argmax())
        apart = np.linalg.norm(self._places - self._places[chosen], axis=1)
        self._nearest = np.minimum(self._nearest, apart)
        return chosen

    def _most_promising(self) -> int:
        """The candidate whose optimistic prediction gains most of the box."""
        if self._model is None:
            self._model = self._predicted()
        hopeful, expected, left = self._model
        gains = np.zeros(len(hopeful))
        if len(left):
            gains = (hopeful[:, None, :] <= left[None, :, :]).all(axis=2).sum(axis=1).astype(float)
        # Where nothing is gained, what is nearest to the ideal may still be.
        gains += 1.0 / (2.0 + np.exp(hopeful.mean(axis=1) - hopeful.mean(axis=1).min()))
        rows = np.flatnonzero(self._open)
        best = int(rows[gains[rows].argmax()])
        beaten = (expected[best] <= left).all(axis=1) if len(left) else np.zeros(0, bool)
        self._model = (hopeful, expected, left[~beaten])
        return best

    def _predicted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Optimistic and expected objectives of all candidates, and points of the box that nothing
        known beats; all as logarithms.
        """
        bounds = np.log(np.maximum(self._bounds, 1e-9))
        hopeful, expected = bounds.copy(), bounds.copy()
        known = sorted(self._known)
        values = np.log([np.maximum(self._known[index], 1e-9) for index in known])
        for number, objective in enumerate(self._of_run):
            if len(known) < 2:
                continue
            # What is predicted is by how much a run is worse than its bound, if there is one.
            bound = bounds[:, objective]
            own = np.where(self._bounds[:, objective] > 0, bound, 0.0)
            worse = values[:, objective] - own[known]
            scale = max(float(worse.std()), 1e-6)
            process = Process(self._places[known], worse / scale, self._lengths[number])
            mean, deviation = process.predict(self._places)
            expected[:, objective] = np.maximum(own + scale * mean, bound)
            optimistic = own + scale * (mean - OPTIMISM * deviation)
            hopeful[:, objective] = np.maximum(optimistic, bound)
        good = [row for row, index in enumerate(known) if self._over[index] == 0]
        return hopeful, expected, self._not_beaten(hopeful, values[good])

    def _not_beaten(self, hopeful: np.ndarray, best: np.ndarray) -> np.ndarray:
        """Points of the box that some design may beat and no known one does."""
        low = np.exp(hopeful[self._open].min(axis=0))
        wide = np.maximum(self._corner - low, 1e-9)
        points = np.log(low + self._rng.random((SAMPLES, len(low))) * wide)
        if not len(best):
            return points
        beaten = (best[:, None, :] <= points[None, :, :]).all(axis=2).any(axis=0)
        return points[~beaten]
