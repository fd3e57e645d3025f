"""The points of a space of knobs as numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ..choose.space import Knobs, KnobValue, Space

#: The number of a point, as if it had a digit for each knob; the last knob varies fastest.
Point = int
_UNKNOWN = -1


class Candidates:
    """The points of a space. Whether a point is legal is asked once."""

    def __init__(self, space: Space):
        self.space = space
        self.names = tuple(space.knobs)
        self.values: tuple[Sequence[KnobValue], ...] = tuple(space.knobs.values())
        self.sizes: tuple[int, ...] = tuple(map(len, self.values))
        self.count = math.prod(self.sizes)
        self._arrays = [np.array(values) for values in self.values]
        self._legal = np.full(self.count, _UNKNOWN, np.int8)
        self._open = [i for i, size in enumerate(self.sizes) if size > 1]

    def knobs(self, point: Point) -> dict[str, KnobValue]:
        """The knobs of a point."""
        digits = np.unravel_index(point, self.sizes)
        return {n: v[int(i)] for n, v, i in zip(self.names, self.values, digits, strict=True)}

    def point(self, knobs: Knobs) -> Point | None:
        """The point of some knobs; None if the space does not have it."""
        if self.space.refuse(knobs):
            return None
        digits = [
            next(i for i, value in enumerate(values) if value == knobs[name])
            for name, values in zip(self.names, self.values, strict=True)
        ]
        return int(np.ravel_multi_index(digits, self.sizes))

    def columns(self, points: Sequence[Point] | np.ndarray) -> dict[str, np.ndarray]:
        """The values of each knob for many points, as arrays."""
        digits = np.unravel_index(np.asarray(points, np.int64), self.sizes)
        return {name: self._arrays[i][digits[i]] for i, name in enumerate(self.names)}

    def legal(self, points: Sequence[Point] | np.ndarray) -> np.ndarray:
        """bool [points]: whether the values of each go together."""
        points = np.asarray(points, np.int64)
        asked = np.unique(points[self._legal[points] == _UNKNOWN])
        if asked.size:
            fits = self.space.fits
            if fits is not None:
                self._legal[asked] = fits(self.columns(asked))
            else:
                self._legal[asked] = [not self.space.misfit(self.knobs(p)) for p in asked.tolist()]
        return self._legal[points] == 1

    def all(self) -> np.ndarray:
        """int64: all legal points in order."""
        points = np.arange(self.count)
        return points[self.legal(points)]

    def shuffled(self, rng: np.random.Generator) -> Iterator[Point]:
        """All legal points in random order, each once."""
        order = rng.permutation(self.count)
        for begin in range(0, self.count, 256):
            some = order[begin : begin + 256]
            yield from some[self.legal(some)].tolist()

    def neighbours(self, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """For each point another one that differs in one knob, as often by one step as by any;
        where that is not legal, the point itself.
        """
        if not self._open:
            return points
        digits = np.stack(np.unravel_index(points, self.sizes))
        rows = np.arange(len(points))
        knob = np.array(self._open)[rng.integers(len(self._open), size=len(points))]
        size, old = np.array(self.sizes)[knob], digits[knob, rows]
        step = np.clip(old + rng.choice((-1, 1), len(points)), 0, size - 1)
        jump = (old + 1 + (rng.random(len(points)) * (size - 1)).astype(int)) % size
        digits[knob, rows] = np.where(rng.random(len(points)) < 0.5, step, jump)
        moved = np.asarray(np.ravel_multi_index(tuple(digits), self.sizes))
        return np.where(self.legal(moved), moved, points)
