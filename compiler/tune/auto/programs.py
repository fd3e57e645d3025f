"""Programs by rules as points of a search, and their features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...choose.space import Knobs, KnobValue
from ...choose.steps import STEPS
from ...te.errors import ScheduleError
from ...te.steps import Log, from_text, to_text
from ...tir.ir import PrimFunc
from ..candidates import Point
from ..features import Points
from ..loop_features import LENGTH, loop_features
from .builder import Picker, Program, at_random, following

#: The point of empty steps: what the target does by itself, without the search.
BY_ITSELF: Point = 0


class Programs:
    """All programs that a search has seen. Points count them; point 0 is the target's own choice.

    Parameters
    ----------
    make : makes a program; its argument decides the open steps
    lower : the loop program of some knobs
    refuse : why some knobs need not be tried, or an empty string: what lowering does not see, such
        as scratchpads that are too small
    """

    def __init__(
        self,
        make: Callable[[Picker], Program],
        lower: Callable[[Knobs], PrimFunc],
        refuse: Callable[[Knobs], str] = lambda knobs: "",
    ):
        self._make, self._lower, self._refuse = make, lower, refuse
        self._programs: list[Program] = [Program((), ())]
        self._points: dict[Log, Point] = {(): BY_ITSELF}
        self._rows: dict[Point, np.ndarray | None] = {}

    def __len__(self) -> int:
        return len(self._programs)

    def __getitem__(self, point: Point) -> Program:
        return self._programs[point]

    def check(self, rng: np.random.Generator) -> None:
        """Make a program at random.

        Raises
        ------
        ScheduleError
            When the rules do not fit the expression.
        """
        self._make(at_random(rng))

    def made(self, pick: Picker) -> Point | None:
        """The point of a program that is made now; None where what is decided does not go
        together.
        """
        try:
            program = self._make(pick)
        except ScheduleError:
            return None
        return self._added(program)

    def _added(self, program: Program) -> Point:
        point = self._points.setdefault(program.log, len(self._programs))
        if point == len(self._programs):
            self._programs.append(program)
        return point

    def knobs(self, point: Point) -> dict[str, KnobValue]:
        """The knobs of a point: the log as text."""
        log = self._programs[point].log
        return {STEPS: to_text(log) if log else ""}

    def point(self, knobs: Knobs) -> Point | None:
        """The point of some knobs; None if no program by these rules has the log."""
        text = str(knobs.get(STEPS, ""))
        if not text:
            return BY_ITSELF
        try:
            log = from_text(text)
            program = self._make(following(log))
        except ScheduleError:
            return None
        return self._added(program) if program.log == log else None

    def columns(self, points: Points) -> dict[str, np.ndarray]:
        """No knob of a program is a number."""
        return {}

    def is_sound(self, point: Point) -> bool:
        """Whether a program can be lowered."""
        return self._row(point) is not None

    def fits(self, point: Point) -> bool:
        """Whether a program that can be lowered is worth a trial."""
        return not self._refuse(self.knobs(point))

    def features(self, points: Sequence[Point] | np.ndarray) -> np.ndarray:
        """float64 [points, features] of the loop programs; zeros where there is none."""
        rows = (self._row(int(point)) for point in points)
        return np.stack([np.zeros(LENGTH) if row is None else row for row in rows])

    def _row(self, point: Point) -> np.ndarray | None:
        if point not in self._rows:
            try:
                self._rows[point] = loop_features(self._lower(self.knobs(point)))
            except ScheduleError:
                self._rows[point] = None
        return self._rows[point]


class ProgramFeatures:
    """The features of programs, for a model."""

    has_estimates = False

    def __init__(self, programs: Programs):
        self.programs = programs

    def of(self, points: Points) -> np.ndarray:
        """float64 [points, features]."""
        return self.programs.features(points)

    def prior(self, points: Points) -> np.ndarray:
        """float64 [points]: nothing is known before there are trials."""
        return np.zeros(len(points))
