"""A template with a cost that is known everywhere, and trials that look it up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from vdla.compiler.choose.space import Knobs, Space, Workload
from vdla.compiler.choose.template import Decision, Plan
from vdla.compiler.tune.search import Outcome
from vdla.compiler.tune.task import Task

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
ORDERS = ("rows", "columns")


@dataclass(frozen=True)
class ToyWorkload(Workload):
    """``best``: the size of tiles in both dimensions that costs least."""

    best: int = 6


class Toy(Decision[ToyWorkload]):
    """Tiles of ``a`` by ``b``, of which at most 200 elements fit; ``estimated``: whether its cost
    model estimates."""

    name = "toy"

    def __init__(self, estimated: bool = False):
        self.estimated = estimated

    def space(self, workload: ToyWorkload) -> Space:
        def misfit(knobs: Knobs) -> str:
            return "too large" if int(knobs["a"]) * int(knobs["b"]) > 200 else ""

        return Space({"a": SIZES, "b": SIZES, "order": ORDERS, "spin": range(5)}, misfit)

    def plan(self, workload: ToyWorkload, fixed: Knobs) -> Plan:
        return Plan({"a": 4, "b": 4, "order": "rows", "spin": 0})

    def estimates(
        self, workload: ToyWorkload, columns: Mapping[str, np.ndarray]
    ) -> Mapping[str, np.ndarray]:
        if not self.estimated:
            return {}
        away = np.abs(np.log2(columns["a"] / workload.best))
        return {"cycles": 1000.0 + 100 * away, "floor": 900.0 + 90 * away}


@dataclass(frozen=True)
class ToyLayer:
    """A layer of the toy."""

    template: Any
    workload: ToyWorkload = ToyWorkload()
    graph: Any = None
    node: Any = None


def toy_task(estimated: bool = False, best: int = 6) -> Task:
    layer = ToyLayer(Toy(estimated), ToyWorkload(best))
    return Task("toy", "machine", layer, ("layer",))


def toy_cost(knobs: Knobs, best: int = 6) -> float:
    """Least, 1000, at tiles of ``best`` by ``best``, rows first, spin 3."""
    away = abs(np.log2(int(knobs["a"]) / best)) + abs(np.log2(int(knobs["b"]) / best))
    return 1000.0 + 100 * away + 50 * (knobs["order"] != "rows") + 7 * abs(int(knobs["spin"]) - 3)


def look_up(task: Task, batch: Sequence[Knobs]) -> Iterator[tuple[int, Outcome]]:
    """Trials that are made in the opposite order; tiles of 1 fail."""
    for index in reversed(range(len(batch))):
        knobs = batch[index]
        if knobs["a"] == 1:
            yield index, Outcome(None, "tiles of one")
        else:
            yield index, Outcome(toy_cost(knobs, task.layer.workload.best))  # type: ignore[attr-defined]
