"""Gaussian processes: predictions from few designs, with how uncertain they are."""

from __future__ import annotations

import numpy as np

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
