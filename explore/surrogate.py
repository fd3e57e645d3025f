"""A search that knows what needs no run: areas are exact for every design, so only what a run tells
is predicted, by Gaussian processes, and never below its bound.

A design is chosen for the part of the box of objectives that it is expected to gain: the expected
improvement of the hypervolume. The first machine is a design that is known before any is proposed,
so the search begins with the designs that would be best if all were as far from their bounds as
that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..bench.sweep import VTHREADS
from .front import BOX, front
from .ladder import Design, Ladder
from .search import Knobs, drawn
from .spec import IN_CELLS, SCHEDULE, Spec

#: Points in the box of objectives, which tell how much of it a design may gain, and how often they
#: are drawn at most to find so many that no known design beats.
SAMPLES, DRAWS = 1000, 40
#: What is known of the spread of logarithms before any run: so much, as if from one design.
SPREAD = 0.3
#: What only a run tells, or a synthesis.
OF_RUN = ("cycles", "time_us", "dram_bytes", "energy_uj", *IN_CELLS)
#: The logistic curve over so many standard deviations is nearly the normal distribution.
_LOGISTIC = 1.702
#: Standard deviations beyond which a chance is as good as none, or certain.
_CERTAIN = 8.0


class SurrogateSearch:
    """Proposes what is expected to gain most; see the module.

    Parameters
    ----------
    spec : the exploration
    ladder : knows areas and bounds; it must have learned from the first design before the first
        proposal
    """

    def __init__(self, spec: Spec, ladder: Ladder):
        self._spec, self._ladder = spec, ladder
        self._rng = np.random.default_rng(spec.seed)
        self._knobs: list[Knobs] | None = None
        self._asked: list[int] = []
        #: By index of the candidate, the objectives that a run gave, and by how much it exceeds
        #: limits.
        self._known: dict[int, np.ndarray] = {}
        self._over: dict[int, float] = {}
        self._is_predicted = False

    def ask(self) -> Knobs | None:
        """A candidate that was not asked for before; None where there are no more."""
        if self._knobs is None:
            self._knobs = self._list_candidates()
        if not self._open.any():
            return None
        if not self._is_predicted:
            self._predict()
        chosen = self._most_promising()
        self._open[chosen] = False
        self._asked.append(chosen)
        return self._knobs[chosen]

    def tell(self, values: Sequence[float], over: float, is_exact: bool) -> None:
        """The objectives of the oldest proposal that was not told about."""
        index = self._asked.pop(0)
        self._is_predicted = False
        if is_exact:
            self._known[index] = np.array(values, float)
            self._over[index] = over

    # ---- candidates

    def _list_candidates(self) -> list[Knobs]:
        """The designs that are legal and within the limits, as far as they need no run; after them
        comes the first machine, which is known and no candidate.
        """
        spec, ladder = self._spec, self._ladder
        found, bounds = [], []
        for knobs in drawn(spec):
            design = Design.of(spec, knobs)
            if design.params is None:
                continue
            bound = ladder.bound(design)
            if ladder.over(bound) == 0:
                found.append(knobs)
                bounds.append(self._objectives(bound))
        first = Design.of(spec, {})
        bounds.append(self._objectives(ladder.bound(first)))
        self._open = np.array([True] * len(found) + [False])
        self._bounds = np.array(bounds, float)
        self._places = self._spread([*found, first.every_knob])
        self._known[len(found)] = np.array(self._objectives(ladder.first), float)
        self._over[len(found)] = ladder.over(ladder.first)
        self._corner = BOX * self._known[len(found)]
        self._of_run = [k for k, name in enumerate(spec.objectives) if name in OF_RUN]
        self._lengths = [np.ones(len(spec.knobs)) for _ in self._of_run]
        return found

    def _objectives(self, values: Mapping[str, float]) -> list[float]:
        return [values[name] for name in self._spec.objectives]

    def _spread(self, designs: Sequence[Knobs]) -> np.ndarray:
        """Places of designs, -0.5 to 0.5 for those that are candidates."""
        values = np.array([[knobs[name] for name in self._spec.knobs] for knobs in designs], float)
        # A feature that is off is 0, and as far from 1 as 1 from 2.
        places = np.log2(np.maximum(values, 0.5))
        candidates = places[:-1] if len(places) > 1 else places
        low, wide = candidates.min(axis=0), np.ptp(candidates, axis=0)
        return (places - low) / np.where(wide == 0, 1.0, wide) - 0.5

    # ---- choosing

    def _predict(self) -> None:
        """Learn from all that is known."""
        known = sorted(self._known)
        values = np.array([self._known[index] for index in known])
        #: For each objective of a run, logarithms of its bound (1 where there is none), what is
        #: predicted of the logarithm by how much it is worse, and the scale of that.
        self._predicted: list[tuple[np.ndarray, Prediction, float]] = []
        for lengths, k in zip(self._lengths, self._of_run, strict=True):
            own = np.log(np.where(self._bounds[:, k] > 0, self._bounds[:, k], 1.0))
            # How far beyond the box a run ends does not matter, but would stretch the scale.
            seen = np.clip(values[:, k], 1e-9, self._corner[k])
            worse = np.log(seen) - own[known]
            around = float(((worse - worse.mean()) ** 2).sum())
            scale = float(np.sqrt((SPREAD**2 + around) / (1 + len(worse))))
            process = Process(self._places[known], worse / scale, lengths)
            self._predicted.append((own, process.predict(self._places), scale))
        good = [row for row, index in enumerate(known) if self._over[index] == 0]
        self._points = self._not_beaten(values[good])
        #: The chance that no design beats a point that was chosen since.
        self._left = np.ones(len(self._points), np.float32)
        self._is_predicted = True

    def _not_beaten(self, best: np.ndarray) -> np.ndarray:
        """Points of the box that some design may beat and no known one does."""
        low = self._bounds.copy()
        for k, (own, worse, scale) in zip(self._of_run, self._predicted, strict=True):
            hopeful = own + scale * (worse.mean - 2.0 * np.sqrt(worse.variance))
            low[:, k] = np.maximum(low[:, k], np.exp(hopeful))
        least = low[self._open].min(axis=0)
        wide, found, count = np.maximum(self._corner - least, 1e-9), [], 0
        for _ in range(DRAWS):
            points = least + self._rng.random((SAMPLES, len(least))) * wide
            beaten = (best[:, None, :] <= points[None, :, :]).all(axis=2).any(axis=0)
            found.append(points[~beaten])
            count += len(found[-1])
            if count >= SAMPLES:
                break
        return np.vstack(found)[:SAMPLES]

    def _most_promising(self) -> int:
        """The candidate that is expected to gain most of what those chosen before it leave."""
        rows = np.flatnonzero(self._open)
        chances = self._chances(rows)
        gains = chances @ self._left
        if gains.any():
            best = int(gains.argmax())
        else:
            best = int(self._expected(rows).mean(axis=1).argmin())
        self._left = self._left * (1.0 - chances[best])
        chosen = int(rows[best])
        for _, worse, _ in self._predicted:
            worse.believe(chosen)
        return chosen

    def _chances(self, rows: np.ndarray) -> np.ndarray:
        """The chance that each candidate beats each point of the box."""
        chances = np.ones((len(rows), len(self._points)), np.float32)
        for k, bounds in enumerate(self._bounds[rows].T):
            chances *= bounds[:, None] <= self._points[:, k]
        for k, (own, worse, scale) in zip(self._of_run, self._predicted, strict=True):
            mean = own[rows] + scale * worse.mean[rows]
            deviation = np.maximum(scale * np.sqrt(worse.variance[rows]), 1e-4)
            away = (np.log(self._points[:, k]) - mean[:, None]) / deviation[:, None]
            away = np.clip(away, -_CERTAIN, _CERTAIN).astype(np.float32)
            chances *= 1.0 / (1.0 + np.exp(-_LOGISTIC * away))
        return chances

    def _expected(self, rows: np.ndarray) -> np.ndarray:
        """Logarithms of the expected objectives of candidates."""
        expected = np.log(np.maximum(self._bounds[rows], 1e-9))
        for k, (own, worse, scale) in zip(self._of_run, self._predicted, strict=True):
            mean = own[rows] + scale * worse.mean[rows]
            expected[:, k] = np.maximum(expected[:, k], mean)
        return expected


class HardwareFirst:
    """The usual way, to compare with: first the hardware, with the schedules that one setting
    gives; then the schedules of what was found. Half of the trials are for hardware, as
    :class:`SurrogateSearch` proposes it; the other half for other schedules of the designs that are
    then on the front.
    """

    def __init__(self, spec: Spec, ladder: Ladder):
        fixed = {**spec.knobs, SCHEDULE: (VTHREADS,)}
        self._spec = spec
        self._search = SurrogateSearch(replace(spec, knobs=fixed), ladder)
        self._asked: list[Knobs] = []
        self._seen: set[tuple[int, ...]] = set()
        #: Designs with exact values within limits, and these.
        self._found: list[tuple[Knobs, tuple[float, ...]]] = []
        self._measured = 0

    def ask(self) -> Knobs | None:
        """Hardware, then a schedule; None where neither is left."""
        knobs = None
        if self._measured < self._spec.trials // 2:
            knobs = self._search.ask()
        knobs = knobs or self._other_schedule()
        if knobs is not None:
            self._asked.append(knobs)
            self._seen.add(tuple(knobs.values()))
        return knobs

    def _other_schedule(self) -> Knobs | None:
        values = [values for _, values in self._found]
        for index in sorted(front(values), key=lambda index: values[index]):
            knobs, _ = self._found[index]
            for value in self._spec.knobs[SCHEDULE]:
                other = {**knobs, SCHEDULE: value}
                if tuple(other.values()) not in self._seen:
                    return other
        return None

    def tell(self, values: Sequence[float], over: float, is_exact: bool) -> None:
        """The objectives of the oldest proposal that was not told about."""
        knobs = self._asked.pop(0)
        self._measured += is_exact
        if knobs[SCHEDULE] == VTHREADS:
            self._search.tell(values, over, is_exact)
        if is_exact and over == 0:
            self._found.append((knobs, tuple(values)))


# ---- Gaussian processes: predictions from few designs, with how uncertain they are ---------------

#: Lengths over which knobs matter, in parts of their ranges, that are tried.
_LENGTHS = (0.25, 0.5, 1.0, 2.0, 8.0)
#: With more designs than this, lengths stay: they hardly change, and the search for them takes
#: time.
_TUNED = 64
#: Variance of a linear trend, and of what neither trend nor neighbours explain.
_TREND, _NOISE = 1.0, 1e-4


class Process:
    """A Gaussian process with a linear trend, whose lengths are those that make the data likeliest.

    Parameters
    ----------
    places : float (designs, knobs), about -0.5 to 0.5
    values : float (designs), of about unit variance
    lengths : where the search for lengths begins, one for each knob; changed in place
    """

    def __init__(self, places: np.ndarray, values: np.ndarray, lengths: np.ndarray):
        self.places, self.lengths = places, lengths
        self._mean = float(values.mean())
        self._values = values - self._mean
        if 1 < len(places) <= _TUNED:
            self._tune()
        self._factor = np.linalg.cholesky(self._covariance())
        self._weights = _solve(self._factor, self._values)

    def predict(self, places: np.ndarray) -> Prediction:
        """What is expected at other places."""
        across = self.kernel(places, self.places)
        inner = np.linalg.solve(self._factor, across.T)
        own = 1.0 + _TREND * (1.0 + (places**2).sum(axis=1))
        variance = np.maximum(own - (inner**2).sum(axis=0), 0.0)
        return Prediction(self, places, self._mean + across @ self._weights, variance, inner)

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

    def kernel(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Matern's of order 5/2, and the trend."""
        near, there = one / self.lengths, other / self.lengths
        squares = (near**2).sum(axis=1)[:, None] + (there**2).sum(axis=1) - 2.0 * near @ there.T
        far = np.sqrt(5.0 * np.maximum(squares, 0.0))
        return (1.0 + far + far**2 / 3.0) * np.exp(-far) + _TREND * (1.0 + one @ other.T)

    def _covariance(self) -> np.ndarray:
        return self.kernel(self.places, self.places) + _NOISE * np.eye(len(self.places))

    def _likelihood(self) -> float:
        factor = np.linalg.cholesky(self._covariance())
        fit = self._values @ _solve(factor, self._values)
        return float(-0.5 * fit - np.log(np.diag(factor)).sum())


class Prediction:
    """What a process expects at places.

    Attributes
    ----------
    mean, variance : float (places)
    """

    def __init__(
        self,
        process: Process,
        places: np.ndarray,
        mean: np.ndarray,
        variance: np.ndarray,
        inner: np.ndarray,
    ):
        self.mean, self.variance = mean, variance
        self._process, self._places, self._inner = process, places, inner

    def believe(self, index: int) -> None:
        """Take one of the places to be as predicted: its neighbours are then less uncertain."""
        row = self._process.kernel(self._places[index : index + 1], self._places)[0]
        row = row - self._inner[:, index] @ self._inner
        row /= np.sqrt(self.variance[index] + _NOISE)
        self._inner = np.vstack([self._inner, row])
        self.variance = np.maximum(self.variance - row**2, 0.0)


def _solve(factor: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.linalg.solve(factor.T, np.linalg.solve(factor, values))
