"""The usual way, to compare with: first the hardware, with the schedules that one setting gives;
then the schedules of what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..bench.sweep import VTHREADS
from .front import front
from .ladder import Ladder
from .search import Knobs
from .spec import SCHEDULE, Spec
from .surrogate import SurrogateSearch


class HardwareFirst:
    """Half of the trials for hardware, as :class:`~.surrogate.SurrogateSearch` proposes it; the
    other half for other schedules of the designs that are then on the front.
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
