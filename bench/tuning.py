"""Explorers on tables of exact cycles: how many trials each needs to come near the best choice."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..compiler.choose.records import Records
from ..compiler.choose.space import Knobs
from ..compiler.tune.annealing import ModelAnnealing, TreeAnnealing
from ..compiler.tune.boosted import Base, BoostedTrees, train_base
from ..compiler.tune.explorer import Random
from ..compiler.tune.features import Features
from ..compiler.tune.quality import pairwise_accuracy, recall, recall_of_sets
from ..compiler.tune.search import EXPLORERS, PLAN, Outcome, Search, make_explorer
from ..compiler.tune.task import Task
from ..isa.errors import VdlaError
from .measure import Progress, told
from .tables import Table, load_table

#: A choice is good enough within this part of the optimum.
WITHIN = 0.01
#: Trials after which a replay ends, and over which regret is averaged.
MOST_TRIALS, REGRET_TRIALS = 1024, 256
#: Others than those of ``vdla tune``: Optuna's, our model on top of one of other layers, the
#: planner's choice.
TPE, TRANSFER, PLANNER = "tpe", "xgb-transfer", "planner"
REPLAYED = (PLANNER, *reversed(EXPLORERS), TPE, TRANSFER)
#: Replayed where asked for: it needs an extra, and lowers what it looks at.
TREES = TreeAnnealing.name
#: Trials of each other layer that a transferred model learns from.
TRANSFERRED = 500
#: Trials of a layer that a model of the layer itself learns from.
LEARNED = 64


def tables_in(folder: Path) -> list[Table]:
    """The tables of a folder, by name.

    Raises
    ------
    VdlaError
        When there is none, and for a file that is none.
    """
    found = [load_table(path) for path in sorted(folder.glob("*.json.gz"))]
    if not found:
        raise VdlaError(
            f"{folder}: expected tables, got none; vdla bench tuning --make C8 makes one"
        )
    return found


def whole(tables: Sequence[Table]) -> list[Table]:
    """The tables of all choices, on which explorers are replayed."""
    return [table for table in tables if not table.part]


def tuning_rows(
    tables: Sequence[Table],
    explorers: Sequence[str],
    seeds: int,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """One row for each table and explorer: trials until within 1 % of the optimum (median and 90th
    percentile over the seeds, None where a replay ended before), and the regret area: how far the
    best so far is from the optimum, averaged over the first 256 trials and the seeds.

    The explorers do not begin with the planner's choice, which has a row of its own.
    """
    rows = []
    jobs = [(table, name) for table in whole(tables) for name in explorers or REPLAYED]
    for table, name in told(jobs, progress):
        found = _replayed(table, name, seeds, tables)
        if found is not None:
            rows.append(_row(table, name, found))
    return rows


def _replayed(
    table: Table, name: str, seeds: int, tables: Sequence[Table]
) -> dict[str, Any] | None:
    """The measures of one explorer on one table; None where there is nothing to transfer from."""
    match name:
        case Random.name:
            return closed_form(table)
        case "planner":
            regret = table.planner / table.optimum - 1
            good = 0 if regret <= WITHIN else None
            return {"trials_to_1pct": {"median": good, "p90": good}, "regret_area": regret}
        case "tpe":
            return measures(table, (_tpe_curve(table, seed) for seed in range(seeds)))
    base = None
    if name == TRANSFER:
        base = base_for(table, tables)
        if base is None:
            return None
    explorer = ModelAnnealing.name if name == TRANSFER else name
    return measures(table, (replay(table, explorer, seed, base) for seed in range(seeds)))


def _row(table: Table, name: str, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "layer": table.layer, "memory": table.memory, "explorer": name,
        "choices": len(table.cycles), "optimum": table.optimum, "planner": table.planner, **found,
    }  # fmt: skip


def replay(table: Table, name: str, seed: int, base: Base | None = None) -> list[float]:
    """The best cycles after each trial of an explorer of ``vdla tune``."""
    candidates, known = table.candidates, table.by_point
    search = Search(table.task, make_explorer(name, table.task, candidates, seed, base=base))

    def look_up(task: Task, batch: Sequence[Knobs]) -> Iterator[tuple[int, Outcome]]:
        for index, knobs in enumerate(batch):
            point = candidates.point(knobs)
            assert point is not None
            cost = known[point]
            yield index, Outcome(cost if np.isfinite(cost) else None)

    while len(search.curve) < MOST_TRIALS and not search.exhausted:
        search.run(look_up, min(MOST_TRIALS, len(search.curve) + PLAN))
        near = search.best_cost <= (1 + WITHIN) * table.optimum
        if search.best_cost <= table.optimum or (near and len(search.curve) >= REGRET_TRIALS):
            break  # nothing that is measured can change
    return search.curve


def _tpe_curve(table: Table, seed: int) -> list[float]:
    """The same for Optuna's tree-structured Parzen estimator. Points that are not legal or that it
    asked before cost it no trial.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    candidates, known = table.candidates, table.by_point
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True))
    curve: list[float] = []
    asked: set[int] = set()
    repeats = 0
    while len(curve) < REGRET_TRIALS and repeats < 4 * REGRET_TRIALS:
        trial = study.ask()
        digits = [
            trial.suggest_int(name, 0, size - 1)
            if all(type(value) is int for value in values)
            else trial.suggest_categorical(name, list(range(size)))
            for name, values, size in zip(
                candidates.names, candidates.values, candidates.sizes, strict=True
            )
        ]
        point = int(np.ravel_multi_index(digits, candidates.sizes))
        cost = known.get(point, np.inf)
        if np.isfinite(cost):
            study.tell(trial, float(np.log(cost)))
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        if point in asked or point not in known:
            repeats += 1
            continue
        asked.add(point)
        curve.append(min(cost, curve[-1]) if curve else cost)
        if curve[-1] <= table.optimum:
            break
    return curve


def measures(table: Table, curves: Iterable[Sequence[float]]) -> dict[str, Any]:
    """The measures of some replays."""
    needed, regrets = [], []
    worst = float(np.nanmax(table.cycles))
    for curve in curves:
        values = np.minimum(np.asarray(curve), worst)
        good = np.flatnonzero(values <= (1 + WITHIN) * table.optimum)
        needed.append(good[0] + 1 if good.size else np.inf)
        padded = np.full(REGRET_TRIALS, values[-1])
        padded[: len(values)] = values[:REGRET_TRIALS]
        regrets.append((padded / table.optimum - 1).mean())
    return {
        "trials_to_1pct": {
            "median": _finite(np.quantile(needed, 0.5, method="inverted_cdf")),
            "p90": _finite(np.quantile(needed, 0.9, method="inverted_cdf")),
        },
        "regret_area": float(np.mean(regrets)),
    }


def _finite(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None


def closed_form(table: Table) -> dict[str, Any]:
    """The measures of random search without repetition, without a replay: of N choices of which K
    are good, t trials miss with the probability (N-K choose t) / (N choose t).
    """
    costs = np.sort(np.nan_to_num(table.cycles, nan=np.nanmax(table.cycles)))
    count = len(costs)
    good = int((costs <= (1 + WITHIN) * table.optimum).sum())
    trials = np.arange(count)
    # The probability that the first t + 1 trials miss, for all t.
    miss = np.cumprod(np.maximum(count - good - trials, 0) / (count - trials))
    needed = {
        name: int(np.argmax(miss <= 1 - part)) + 1 for name, part in (("median", 0.5), ("p90", 0.9))
    }
    # The probability that the best of t trials is the i-th choice or a later one: its logarithm
    # grows by that of one more miss with each trial.
    ranks = np.arange(count)
    later = np.zeros(count)
    regret = 0.0
    with np.errstate(divide="ignore"):
        for t in range(min(REGRET_TRIALS, count)):
            later += np.log(np.maximum(count - ranks - t, 0) / (count - t))
            chances = np.exp(later) - np.append(np.exp(later[1:]), 0.0)
            regret += float((chances * costs).sum()) / table.optimum - 1
    return {"trials_to_1pct": needed, "regret_area": regret / min(REGRET_TRIALS, count)}


# ---- models --------------------------------------------------------------------------------------


def _some_trials(table: Table, count: int) -> tuple[Features, np.ndarray, np.ndarray]:
    """Features of a table, and random points of it with their costs, none of them hopeless."""
    features = Features(table.task, table.candidates)
    points = table.candidates.all()[table.exact]
    chosen = np.random.default_rng(0).permutation(points)[:count]
    return features, chosen, np.array([table.by_point[point] for point in chosen.tolist()])


def find_others(table: Table, tables: Sequence[Table]) -> list[Table]:
    """Tables of other layers with the same template: what may be learned without the layer."""
    template = table.task.layer.template.name
    return [
        other for other in tables
        if other.layer != table.layer and other.task.layer.template.name == template
    ]  # fmt: skip


def base_for(table: Table, tables: Sequence[Table]) -> Base | None:
    """A model of the other layers with the same template; None without any."""
    others = find_others(table, tables)
    if not others:
        return None
    return train_base([_some_trials(other, TRANSFERRED) for other in others])


def model_rows(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """How well models rank what they have not seen, for each table: a model of 64 trials of the
    layer the other choices, and a model of other layers all choices.

    ``recall_at_30`` is Ansor's: of the 30 best of 600 random legal choices, the share that is among
    the 30 of the greatest scores, a mean of six draws. ``recall_of_all`` is the same among all
    choices, whose 30 best often lie within 1 % of each other. Pairs are of choices that were
    measured, without hopeless ones. ``ms`` is the time of a prediction, features included.
    """
    rows = []
    for table in whole(tables):
        _, learned, costs = _some_trials(table, LEARNED)
        own = BoostedTrees(Features(table.task, table.candidates))
        own.fit(learned, costs.tolist())
        models = [(f"{LEARNED} trials", own, learned)]
        base = base_for(table, tables)
        if base is not None:
            model = BoostedTrees(Features(table.task, table.candidates), base=base)
            models.append(("other layers", model, learned[:0]))
        for name, model, seen in models:
            rows.append({
                "layer": table.layer, "memory": table.memory, "learned_from": name,
                **_quality(table, model, seen),
            })  # fmt: skip
    return rows


def _quality(table: Table, model: BoostedTrees, seen: np.ndarray) -> dict[str, float]:
    """The measures of a model on the choices that it has not ``seen``."""
    points = table.candidates.all()
    model.features = Features(table.task, table.candidates)  # computed now, and timed
    begun = time.perf_counter()
    scores = model.score(points)
    passed = time.perf_counter() - begun
    new = ~np.isin(points, seen)
    measured = new & table.exact & np.isfinite(table.cycles)
    costs = np.nan_to_num(table.cycles, nan=np.inf)
    return {
        "pairwise_accuracy": pairwise_accuracy(scores[measured], costs[measured]),
        "recall_at_30": recall_of_sets(scores[new], costs[new]),
        "recall_of_all": recall(scores[new], costs[new]),
        "ms": passed / len(points) * 1e3,
    }


# ---- pictures ------------------------------------------------------------------------------------


def draw_replays(tables: Sequence[Table], explorers: Sequence[str], png: Path) -> None:
    """Draw the best so far against trials, relative to the optimum, as geometric means over the
    tables and ten seeds.
    """
    lines: dict[str, np.ndarray] = {}
    for name in explorers or EXPLORERS:
        if name in EXPLORERS:
            some = [(table, seed) for table in whole(tables) for seed in range(10)]
            found = [_padded(replay(t, name, seed), t.optimum) for t, seed in some]
            lines[name] = np.exp(np.mean(np.log(found), axis=0))
    _draw(lines, "cycles of the best so far / optimum", png)


def draw_curves(records: Path, workloads: Sequence[str], png: Path) -> None:
    """Draw the best so far against trials of some workloads, relative to the best of all, for each
    explorer in a file of records; a geometric mean over the workloads.
    """
    found: dict[str, list[np.ndarray]] = {}
    trials = [t for t in Records.load(records).trials if t.key.workload in set(workloads)]
    for key in dict.fromkeys(trial.key for trial in trials):
        mine = [trial for trial in trials if trial.key == key and not trial.preferred]
        costs = [trial.cost for trial in mine if trial.cost is not None]
        for name in dict.fromkeys(trial.tuner for trial in mine):
            own = [np.inf if t.cost is None else t.cost for t in mine if t.tuner == name]
            if costs and np.isfinite(own).any():
                curve = np.minimum.accumulate(np.minimum(own, max(costs)))
                found.setdefault(name, []).append(_padded(curve, min(costs)))
    lines = {name: np.exp(np.mean(np.log(curves), axis=0)) for name, curves in found.items()}
    _draw(lines, "best so far / best of all", png)


def _padded(curve: Sequence[float] | np.ndarray, best: float) -> np.ndarray:
    """The first trials of a curve relative to ``best``; what is missing stays at its end."""
    values = np.asarray(curve, float)[:REGRET_TRIALS]
    return np.append(values, np.full(REGRET_TRIALS - len(values), values[-1])) / best


def _draw(lines: dict[str, np.ndarray], label: str, png: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for name, values in lines.items():
        axes.plot(np.arange(1, len(values) + 1), values, label=name)
    axes.set(xlabel="trials", ylabel=label, xscale="log")
    axes.legend()
    figure.savefig(png, dpi=150)
