"""How long code takes that a tuner tries."""

from __future__ import annotations

import time
from collections.abc import Callable


def time_calls(call: Callable[[], None]) -> Callable[[int], float]:
    """Makes a trial of a call: it calls so many times, and returns the seconds that takes."""

    def trial(count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - begun

    return trial
