"""Which designs are looked at next: at random, or as Optuna's samplers propose.

A design is a place in a grid: for each knob the index of its value. Searches are asked and told in
a fixed order, so that a seed decides all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from random import Random
from typing import Any, Protocol

from .spec import Spec

#: A design's knobs.
Knobs = Mapping[str, int]
#: Trials of the first generation of NSGA-II, and of each that follows.
POPULATION = 24
#: The most designs that are looked at one by one.
CANDIDATES = 4000


class Search(Protocol):
    """Proposes designs."""

    def ask(self) -> Knobs | None:
        """A design; None where there are no more. It may have been asked for before."""
        ...

    def tell(self, values: Sequence[float], over: float, is_exact: bool) -> None:
        """The objectives of the oldest design that was not told about, by how much it exceeds
        limits, and whether the objectives are exact; else they are bounds.
        """
        ...


def drawn(spec: Spec) -> list[Knobs]:
    """The designs of a space; of a larger one than :data:`CANDIDATES` a random part."""
    names, values = list(spec.knobs), list(spec.knobs.values())
    if spec.size <= CANDIDATES:
        return [dict(zip(names, one, strict=True)) for one in product(*values)]
    rng = Random(spec.seed)
    found = {tuple(rng.choice(few) for few in values) for _ in range(CANDIDATES)}
    return [dict(zip(names, one, strict=True)) for one in sorted(found)]


class RandomSearch:
    """Every design once, in an order that the seed decides."""

    def __init__(self, spec: Spec, seed: int):
        self._knobs, self._size, self._rng = spec.knobs, spec.size, Random(seed)
        self._seen: set[int] = set()

    def ask(self) -> Knobs | None:
        """A design that was not asked for before."""
        if len(self._seen) == self._size:
            return None
        place = self._rng.randrange(self._size)
        while place in self._seen:
            place = (place + 1) % self._size
        self._seen.add(place)
        knobs = {}
        for name, values in self._knobs.items():
            place, index = divmod(place, len(values))
            knobs[name] = values[index]
        return knobs

    def tell(self, values: Sequence[float], over: float, is_exact: bool) -> None:
        """Nothing is learned."""


class OptunaSearch:
    """A sampler of Optuna, ``nsga2`` or ``tpe``."""

    def __init__(self, spec: Spec, name: str, seed: int):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        if name == "nsga2":
            sampler = optuna.samplers.NSGAIISampler(seed=seed, population_size=POPULATION)
        else:
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=POPULATION)
        minimise = [optuna.study.StudyDirection.MINIMIZE] * len(spec.objectives)
        self._study = optuna.create_study(directions=minimise, sampler=sampler)
        self._knobs, self._asked = spec.knobs, list[Any]()

    def ask(self) -> Knobs | None:
        """What the sampler proposes."""
        trial = self._study.ask()
        self._asked.append(trial)
        return {
            name: values[trial.suggest_int(name, 0, len(values) - 1)]
            for name, values in self._knobs.items()
        }

    def tell(self, values: Sequence[float], over: float, is_exact: bool) -> None:
        """Tell the sampler about its oldest proposal."""
        trial = self._asked.pop(0)
        trial.set_constraint("limits", over)
        self._study.tell(trial, list(values))
