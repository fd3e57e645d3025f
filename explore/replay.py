"""Searches compared on designs that are all known: how good a front each has after how many of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ..bench.sweep import VTHREADS, Results
from ..isa.errors import VdlaError
from .enumeration import Enumeration
from .exploration import Exploration
from .front import BOX, hypervolume
from .spec import SCHEDULE, Spec

#: Near enough to the front of all designs: this part of its hypervolume.
GOOD = 0.99


@dataclass(frozen=True)
class Method:
    """A search, and whether designs are left out that are beaten at their bound."""

    search: str
    prunes: bool


METHODS = {
    "random": Method("random", False),
    "nsga2": Method("nsga2", False),
    "tpe": Method("tpe", False),
    "random-bounds": Method("random", True),
    "nsga2-bounds": Method("nsga2", True),
    "tpe-bounds": Method("tpe", True),
    "surrogate": Method("surrogate", True),
    "hardware-first": Method("hardware-first", True),
}


def choose_methods(spec: Spec, names: Sequence[str] = ()) -> list[str]:
    """The names, or without some all methods that suit a space: a method that puts off the choice
    of schedules needs some.

    Raises VdlaError for a method that there is not, or that does not suit.
    """
    staged = VTHREADS in spec.knobs.get(SCHEDULE, ())
    known = [name for name in METHODS if name != "hardware-first" or staged]
    for name in names:
        if name not in known:
            raise VdlaError(f"methods: expected some of {', '.join(known)}, got {name!r}")
    return list(names) or known


def curve(table: Enumeration, method: Method, seed: int, trials: int) -> list[float]:
    """The hypervolume of the front after each design that a search has measured, without the first
    one; ``trials`` long. Where a search ends before, its last value stays.
    """
    spec = replace(table.spec, search=method.search, seed=seed, trials=trials + 1)
    found = Exploration(
        spec, Results(Path("/dev/null")), 1, measure=table.measure, prunes=method.prunes
    )
    found.run()
    box = _box(found)
    volumes, best = [], []
    for outcome in found.outcomes:
        if outcome.rung == "exact":
            best.append(tuple(outcome.values[name] for name in spec.objectives))
        if outcome.rows:
            volumes.append(hypervolume(best, box))
    return (volumes[1:] + volumes[-1:] * trials)[:trials]


def _box(exploration: Exploration) -> list[float]:
    values = exploration.outcomes[0].values
    return [BOX * values[name] for name in exploration.spec.objectives]


def replay_rows(
    table: Enumeration,
    methods: Sequence[str],
    seeds: int,
    trials: int,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[dict[str, Any]]:
    """A row for each method: the hypervolume as a part of that of all designs after some numbers
    of trials (``part_after``, medians over the seeds), ``regret`` (how much of it is missing, on
    the average over all trials and seeds), and the trials until 99 % of it (``trials_to_99pct``,
    the median; None where less than half of the seeds come there), with the ``curve`` of medians.
    """
    first = Exploration(table.spec, Results(Path("/dev/null")), 1, measure=table.measure)
    first.begin()
    whole = table.best(_box(first))
    rows = []
    for done, name in enumerate(methods):
        curves = []
        for seed in range(seeds):
            parts = curve(table, METHODS[name], seed, trials)
            curves.append([volume / whole for volume in parts])
            progress(done * seeds + seed + 1, len(methods) * seeds)
        rows.append({"method": name} | _measures(curves, trials))
    return rows


def _measures(curves: Sequence[Sequence[float]], trials: int) -> dict[str, Any]:
    needed = sorted(
        next((n for n, part in enumerate(one, 1) if part >= GOOD), trials + 1) for one in curves
    )
    middle = needed[(len(needed) - 1) // 2]
    medians = [median(parts) for parts in zip(*curves, strict=True)]
    marks = sorted({max(1, trials // 8), trials // 4 or 1, trials // 2 or 1, trials})
    return {
        "part_after": {str(n): medians[n - 1] for n in marks},
        "regret": sum(1 - part for one in curves for part in one) / (trials * len(curves)),
        "trials_to_99pct": middle if middle <= trials else None,
        "curve": medians,
    }
