"""Co-verification on several workers: each takes programs of some seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...isa.memory import MemoryParams
from ...isa.params import HwParams
from ...runtime.workers import Workers
from ..coverage.coverage import Coverage
from ..rtl.driver import RtlSimulator
from .campaign import SAMPLED_PROGRAMS, verify

#: What a worker must have.
DEVICE = "vdla-rtl"
#: Programs that a worker runs at a time.
SHARE_PROGRAMS = 20


def verify_on(
    workers: Workers,
    params: HwParams,
    memory: MemoryParams,
    programs: int,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    coverage: Coverage | None = None,
) -> dict[str, Any]:
    """As :func:`verify`, with the same result. Programs that add to the ``coverage`` run in this
    process, because what is drawn depends on the programs before.
    """
    memory.check_bus(params)
    RtlSimulator(params)  # builds the RTL, which workers on this machine then find
    here = 0 if coverage is None else min(programs, SAMPLED_PROGRAMS)
    firsts = range(here, programs, SHARE_PROGRAMS)
    items = [
        (params, memory, min(SHARE_PROGRAMS, programs - first), seed + first) for first in firsts
    ]
    running = workers.each(verify, items)
    shares: dict[int, dict[str, Any]] = {}
    done = 0
    if coverage is not None:
        tell = None if progress is None else lambda count, _: progress(count, programs)
        shares[-1] = verify(params, memory, here, seed, tell, coverage=coverage)
        done = here
    for index, share in running:
        shares[index] = share
        done += share["programs"]
        if progress is not None:
            progress(done, programs)
    return _together([shares[index] for index in sorted(shares)])


def _together(shares: list[dict[str, Any]]) -> dict[str, Any]:
    """One report of several, in the order of their seeds."""
    largest = max(share["max_cycle_error"] for share in shares)
    counts = {
        key: sum(share[key] for share in shares)
        for key in shares[0]
        if key not in ("max_cycle_error", "first_divergence")
    }
    found = [first for share in shares if (first := share["first_divergence"]) is not None]
    # Steered programs come after all others.
    found.sort(key=lambda first: bool(first["wanted"]))
    return counts | {"max_cycle_error": largest, "first_divergence": next(iter(found), None)}
