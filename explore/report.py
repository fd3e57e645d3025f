"""The report of an exploration: JSON of all that its table and its page show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..report.report import header
from .energy import NAMES, EnergyTable, disagreed_order, kendall
from .exploration import Exploration, Outcome
from .spec import OBJECTIVES, Spec

_NO_PROOFS: Mapping[int, dict[str, Any]] = MappingProxyType({})


def make_report(
    exploration: Exploration, proofs: Mapping[int, dict[str, Any]] = _NO_PROOFS
) -> dict[str, Any]:
    """The report of an exploration that has measured its first design.

    ``first`` and ``front`` are designs with ``knobs``, the whole machine as ``toml``, ``values``,
    and of each network what was measured; ``designs`` are all that were measured, in order, without
    that. ``marks`` say how each value is known, ``chosen_by`` who made the choices for how many
    layers of the first design and the front. ``proofs`` are those of ``proof.py``, by their
    designs' places on the front. ``rankings`` are of what depends on somebody's table or library:
    ``of`` which objective, ``by`` their names, ``values`` of each design of the front by each,
    ``disagreed_order`` the designs, from 1, that they put into different orders, ``agreement`` the
    same in words, and :func:`kendall` for all ``designs`` within the limits. ``hypervolume`` is
    that after the first design and after each batch.
    """
    spec, on_front = exploration.spec, exploration.front
    choices = [
        layer["chosen_by"]
        for outcome in (exploration.outcomes[0], *on_front)
        for row in outcome.rows
        for layer in row["layers"]
        if layer["chosen_by"]
    ]
    first = exploration.outcomes[0]
    known = first.values
    marks = {name: mark for name, mark in exploration.ladder.marks().items() if name in known}
    rungs = dict(Counter(outcome.rung for outcome in exploration.outcomes))
    return header("explore", seed=spec.seed) | {
        "networks": {Path(name).name: weight for name, weight in spec.networks.items()},
        "objectives": list(spec.objectives),
        "shown": [*spec.objectives, *(name for name in known if name not in spec.objectives)],
        "limits": dict(spec.limits),
        "board": spec.board,
        "search": spec.search,
        "space": spec.size,
        "trials": spec.trials,
        "evaluated": exploration.measured,
        "rejected": {rung: count for rung, count in rungs.items() if rung != "exact"},
        "rungs": rungs,
        "hypervolume": exploration.hypervolumes,
        "marks": marks,
        "units": {name: unit for name, unit in OBJECTIVES.items() if name in known},
        "rankings": _rankings(exploration, on_front),
        "first": _design(spec, first) | _networks(exploration, first),
        "front": [
            _design(spec, one)
            | _networks(exploration, one)
            | _of_front(spec, marks, one, proofs.get(number))
            for number, one in enumerate(on_front)
        ],
        "designs": [_design(spec, outcome) for outcome in exploration.outcomes if outcome.rows],
        "chosen_by": dict(Counter(choices)),
        "interrupted": exploration.interrupted,
    }


def _rankings(exploration: Exploration, on_front: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Objectives of designs by everything that they depend on, and whether the orders hold."""
    spec, ladder = exploration.spec, exploration.ladder
    tables = [EnergyTable.load(name) for name in dict.fromkeys([*NAMES, spec.energy])]
    exact = [one for one in exploration.outcomes if one.rung == "exact"]

    def ranking(name: str, by: Sequence[str], values: Callable[[Outcome], list[float]]) -> Any:
        found, every = [*map(values, on_front)], [*map(values, exact)]
        disagreed = [[a + 1, b + 1] for a, b in disagreed_order(_columns(found))]
        return {
            "of": name, "by": list(by), "values": found, "disagreed_order": disagreed,
            "agreement": agreement(by, len(found), disagreed),
            "designs": len(exact), "kendall": kendall(_columns(every)),
        }  # fmt: skip

    def energies(one: Outcome) -> list[float]:
        return [_energy(exploration, one, table) for table in tables]

    found = [ranking("energy_uj", [table.name for table in tables], energies)]
    if ladder.silicon is not None:
        for name in sorted(spec.in_cells):

            def in_cells(one: Outcome, name: str = name) -> list[float]:
                return ladder.each_in_cells(name, one.design, one.cells or {})

            found.append(ranking(name, ladder.silicon.names, in_cells))
    return found


def _columns(values: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
    return [*zip(*values, strict=True)] or [()]


def fidelity(mark: str) -> str:
    """How a value is known, in a word: exact, which what is counted is, too, or by a model."""
    return "model" if "model of" in mark or "energies of" in mark else "exact"


def agreement(tables: Sequence[str], designs: int, disagreed: Sequence[Sequence[int]]) -> str:
    """Which orders of designs hold under every table, in words."""
    named, pairs = " and ".join(tables), ", ".join(f"{a} and {b}" for a, b in disagreed)
    if not pairs:
        return f"{named} put the designs on the front into the same order"
    part = 1 - len(disagreed) / (designs * (designs - 1) / 2)
    return (
        f"{named} agree on the order of {100 * part:.0f} % of the pairs of designs on the front;"
        f" not of {pairs}"
    )


def _design(spec: Spec, outcome: Outcome) -> dict[str, Any]:
    """What is said of every design."""
    (params, _), knobs = outcome.design.machine, outcome.design.every_knob
    return {
        "knobs": {name: knobs[name] for name in spec.knobs},
        "config_hash": params.hash,
        "toml": outcome.design.toml,
        "rung": outcome.rung,
        "reason": outcome.reason,
        "values": outcome.values,
    }


def _of_front(
    spec: Spec, marks: dict[str, str], outcome: Outcome, proof: dict[str, Any] | None
) -> dict[str, Any]:
    """What is said of a design of the front alone."""
    return {
        "objectives": {name: outcome.values[name] for name in spec.objectives},
        "fidelity": {name: fidelity(marks[name]) for name in spec.objectives},
        "rtl_equal": None if proof is None else "rtl_cycles" in proof,
        "proof": proof,
    }


def _networks(exploration: Exploration, outcome: Outcome) -> dict[str, Any]:
    """What was measured of each network, and where its energy goes."""
    kept = (
        "cycles", "macs", "vector_macs", "dram", "stalls", "layers", "bound_by",
        "roofline_fraction", "most_in_use",
    )  # fmt: skip
    design, table = outcome.design, exploration.ladder.energy
    params, memory = design.machine
    roof = {
        "macs_per_cycle": params.peak_macs_per_cycle,
        "bytes_per_cycle": params.bus_bytes / memory.cycles_per_beat,
    }
    return {
        "networks": {
            Path(name).name: {part: row.get(part) for part in kept}
            | {
                "roof": roof,
                "picojoules": None if row.get("error") else table.picojoules(row, params),
            }
            for name, row in zip(exploration.spec.networks, outcome.rows, strict=True)
        }
    }


def _energy(exploration: Exploration, outcome: Outcome, table: EnergyTable) -> float:
    """The energy of a design by a table, in microjoules an image."""
    (params, _), ladder = outcome.design.machine, exploration.ladder
    networks = exploration.spec.networks.items()
    return sum(
        weight / ladder.images(network, params) * sum(table.picojoules(row, params).values()) / 1e6
        for (network, weight), row in zip(networks, outcome.rows, strict=True)
    )


# ---- the front as a picture ----

#: Inches of each chart.
_WIDTH, _HEIGHT = 6.0, 4.5


def draw_front(report: dict[str, Any], path: Path) -> None:
    """Draw every other objective of an exploration's report against its first: all designs that
    were measured, the first one, and the front as steps.
    """
    from matplotlib.figure import Figure

    x, *others = report["objectives"]
    figure = Figure((_WIDTH * len(others), _HEIGHT), layout="constrained")
    for axes, y in zip(figure.subplots(1, len(others), squeeze=False)[0], others, strict=True):
        known = [d["values"] for d in report["designs"] if {x, y} <= set(d["values"])]
        axes.scatter([v[x] for v in known], [v[y] for v in known], s=8, color="0.7", label="others")
        front = [d["values"] for d in report["front"]]
        points = [v[x] for v in front], [v[y] for v in front]
        if len(others) == 1:
            axes.step(*points, where="post", color="C0", linewidth=1)
        axes.scatter(*points, s=20, color="C0", label="front")
        first = report["first"]["values"]
        axes.scatter([first[x]], [first[y]], s=40, marker="x", color="C1", label="first")
        axes.set(xlabel=f"{x}, {report['units'][x]}", ylabel=f"{y}, {report['units'][y]}")
        axes.set(xscale="log", yscale="log")
        axes.legend()
    figure.savefig(path, dpi=150, format="png")
