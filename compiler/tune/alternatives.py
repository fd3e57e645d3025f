"""What the planner chose from: for each layer of a program its choice and the next best ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..build import CompiledModel
from ..choose.chooser import Chooser
from ..partition import split_parts
from ..targets.vdla.layer import Layer
from ..targets.vdla.target import Accelerator
from .candidates import Candidates

#: Units whose whole work a cost model estimates.
_UNITS = ("load", "gemm", "vector", "store", "fetch")


def find_alternatives(
    compiled: CompiledModel, target: Accelerator, most: int = 3
) -> Iterator[dict[str, Any]]:
    """For each layer with knobs on the accelerator: its ``name``, how many choices it has with its
    number of virtual threads (``choices``), how many of them are legal beside its neighbours
    (``legal``), and the ``best`` of these by predicted cycles, ``most`` and the chosen one:
    ``knobs``, ``cycles``, ``bound_by`` (the unit with the most work; None where the cost model does
    not say) and whether it is ``chosen``.
    """
    given = {layer.name: layer.knobs for layer in compiled.layers if layer.knobs}
    for where, part in split_parts(compiled.graph, target):
        if where is target:
            chooser = Chooser(target.name, target.machine_key, given)
            for layer in target.layers(part, chooser):
                yield _of_layer(layer, given.get(layer.node.name, {}), most)


def _of_layer(layer: Layer, chosen: Any, most: int) -> dict[str, Any]:
    space = layer.space
    if "vthreads" in chosen:
        space = replace(space, knobs={**space.knobs, "vthreads": [chosen["vthreads"]]})
    candidates = Candidates(space)
    points = candidates.all()
    columns = candidates.columns(points)
    known = layer.template.estimates(layer.workload, columns) if len(points) else {}

    def predict(place: int) -> int:
        knobs = candidates.knobs(int(points[place]))
        return layer.template.predict(layer.workload, knobs) or 0

    cycles = known["cycles"] if "cycles" in known else list(map(predict, range(len(points))))
    is_chosen = np.full(len(points), True)
    for name, values in columns.items():
        is_chosen &= values == chosen.get(name)
    best = np.argsort(cycles, kind="stable")
    shown = {*best[: most + 1].tolist(), *np.flatnonzero(is_chosen).tolist()}
    work = {unit: known[f"{unit} of all"] for unit in _UNITS if f"{unit} of all" in known}
    rows = [
        {
            "knobs": candidates.knobs(int(points[place])),
            "cycles": predict(place),
            "bound_by": max(work, key=lambda unit: work[unit][place]) if work else None,
            "chosen": bool(is_chosen[place]),
        }
        for place in best.tolist()
        if place in shown
    ]
    return {
        "name": layer.node.name,
        "choices": candidates.count,
        "legal": len(points),
        "best": sorted(rows, key=lambda row: row["cycles"]),
    }
