"""Explorers: repeatable, never the same point twice, and better than chance where they learn."""

from __future__ import annotations

import numpy as np
import pytest
from vdla.compiler.tune.annealing import ModelAnnealing
from vdla.compiler.tune.boosted import BoostedTrees, train_base
from vdla.compiler.tune.candidates import Candidates
from vdla.compiler.tune.explorer import Random
from vdla.compiler.tune.features import Features
from vdla.compiler.tune.quality import (
    held_out_scores,
    pairwise_accuracy,
    recall,
    recall_of_sets,
)
from vdla.compiler.tune.search import EXPLORERS, Outcome, Search, make_explorer

from .toys import look_up, toy_cost, toy_task


def searched(name: str, seed: int, trials: int, estimated: bool = False) -> Search:
    task = toy_task(estimated)
    search = Search(task, make_explorer(name, task, Candidates(task.space), seed, loops=None))
    search.run(look_up, trials)
    return search


def test_points_are_the_legal_knobs_in_order() -> None:
    space = toy_task().space
    candidates = Candidates(space)
    points = candidates.all().tolist()
    assert [candidates.knobs(point) for point in points] == list(space.points())
    assert [candidates.point(knobs) for knobs in space.points()] == points
    assert candidates.point({"a": 32, "b": 32, "order": "rows", "spin": 0}) is None
    shuffled = list(candidates.shuffled(np.random.default_rng(0)))
    assert sorted(shuffled) == points and shuffled != points


def test_neighbours_are_legal_and_differ_in_one_knob() -> None:
    candidates = Candidates(toy_task().space)
    points = candidates.all()
    moved = candidates.neighbours(points, np.random.default_rng(0))
    assert candidates.legal(moved).all()
    digits = [np.stack(np.unravel_index(p, candidates.sizes)) for p in (points, moved)]
    assert (digits[0] != digits[1]).sum(axis=0).max() == 1
    assert (moved != points).mean() > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPLORERS)
def test_the_same_seed_makes_the_same_trials_and_no_point_comes_twice(name: str) -> None:
    first, again, other = (searched(name, seed, 120) for seed in (1, 1, 2))
    assert first.tried == again.tried and first.curve == again.curve
    assert len(set(first.tried[0])) == len(first.tried[0]) == 120
    if name != "grid":
        assert other.tried != first.tried


@pytest.mark.slow
@pytest.mark.short(1)
@pytest.mark.parametrize("name", EXPLORERS)
def test_every_explorer_ends_with_the_optimum_when_nothing_is_left(name: str) -> None:
    search = searched(name, 0, 10_000)
    assert search.exhausted
    assert len(search.curve) == len(Candidates(toy_task().space).all())
    assert search.best == {"a": 6, "b": 6, "order": "rows", "spin": 3}
    assert search.best_cost == 1000.0 and search.failed > 0


def test_a_failed_trial_costs_a_trial_and_nothing_else() -> None:
    search = searched("random", 0, 200)
    failed = sum(not np.isfinite(cost) for cost in search.tried[1])
    assert search.failed == failed > 0
    assert np.isfinite(search.best_cost) and sorted(search.curve, reverse=True) == search.curve


def needed(name: str, seed: int, estimated: bool = False) -> int:
    """Trials until within 1 % of the optimum."""
    curve = np.array(searched(name, seed, 300, estimated).curve)
    good = np.flatnonzero(curve <= 1010)
    return int(good[0]) + 1 if good.size else 1000


@pytest.mark.more
def test_what_learns_needs_fewer_trials_than_chance() -> None:
    median = {name: np.median([needed(name, seed) for seed in range(5)]) for name in EXPLORERS}
    assert median["xgb"] <= median["random"] / 4
    assert median["sa"] < median["random"]
    estimated = np.median([needed("xgb", seed, True) for seed in range(5)])
    assert estimated <= median["xgb"]


def test_what_cannot_win_is_skipped_and_costs_no_trial() -> None:
    search = searched("random", 0, 10_000, estimated=True)
    assert search.best_cost == 1000.0
    everything = len(Candidates(toy_task().space).all())
    assert search.skipped > everything // 4
    assert len(search.curve) + search.skipped == everything


# ---- the walk ------------------------------------------------------------------------------------


class Slope:
    """A model that likes large numbers of points, and counts how often it learned."""

    knows = True

    def __init__(self, scores_all: bool = False) -> None:
        self.fits, self.scores_all = 0, scores_all

    def fit(self, points: object, costs: object) -> None:
        self.fits += 1

    def score(self, points: np.ndarray) -> np.ndarray:
        return np.asarray(points, float)


def test_chains_go_on_from_where_they_were_when_the_model_has_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ModelAnnealing, "steps", 5)
    candidates = Candidates(toy_task().space)
    model = Slope()
    explorer = ModelAnnealing(candidates, 0, model)
    heights = []
    for _ in range(12):
        points = explorer.ask(4)
        explorer.tell(points, [1.0] * len(points))
        heights.append(explorer.chains.mean())
    assert model.fits == 12
    # Five steps take a chain nowhere; sixty take it to the top.
    assert heights[0] < 0.75 * candidates.all().max() < 0.9 * heights[-1]


def test_scores_of_all_points_at_once_change_no_walk() -> None:
    candidates = Candidates(toy_task().space)
    walked = []
    for scores_all in (False, True):
        explorer = ModelAnnealing(candidates, 3, Slope(scores_all))
        asked = []
        for _ in range(4):
            asked += explorer.ask(8)
            explorer.tell(asked[-8:], [1.0] * 8)
        walked.append((asked, explorer.chains.tolist()))
    assert walked[0] == walked[1]


def test_a_plan_has_the_best_points_that_the_chains_came_to() -> None:
    candidates = Candidates(toy_task().space)
    explorer = ModelAnnealing(candidates, 0, Slope())
    points = explorer.ask(16)
    assert points == sorted(points, reverse=True)
    assert set(points) <= set(candidates.all()[-40:].tolist())


# ---- models --------------------------------------------------------------------------------------


def trials_of(best: int, seed: int, count: int) -> tuple[Features, np.ndarray, list[float]]:
    task = toy_task(best=best)
    candidates = Candidates(task.space)
    points = np.random.default_rng(seed).permutation(candidates.all())[:count]
    costs = [toy_cost(candidates.knobs(point), best) for point in points.tolist()]
    return Features(task, candidates), points, costs


def test_a_model_ranks_what_it_has_not_seen() -> None:
    features, points, costs = trials_of(6, 0, 400)
    costs[3] = np.inf  # a failed trial is the slowest
    model = BoostedTrees(features)
    assert not model.knows
    model.fit(points[:100], costs[:100])
    assert model.knows
    scores = model.score(points[100:])
    assert pairwise_accuracy(scores, costs[100:]) > 0.9
    assert recall(scores, costs[100:]) > 0.6


def test_shares_of_the_cycles_are_features() -> None:
    task = toy_task(estimated=True)
    candidates = Candidates(task.space)
    points = candidates.all()
    found = task.layer.template.estimates(task.layer.workload, candidates.columns(points))
    share = np.log2(1e-3 + found["floor"] / found["cycles"])
    rows = Features(task, candidates).of(points)
    assert any(np.allclose(column, share, atol=1e-5) for column in rows.T)
    assert np.isfinite(rows).all()


def test_a_model_of_other_tasks_ranks_without_a_trial() -> None:
    base = train_base([trials_of(best, best, 300) for best in (4, 8)])
    features, points, costs = trials_of(6, 1, 400)
    model = BoostedTrees(features, base=base)
    assert model.knows
    assert pairwise_accuracy(model.score(points), costs) > 0.85


def test_measures_of_ranks() -> None:
    assert pairwise_accuracy([3, 2, 1], [1.0, 2.0, 3.0]) == 1.0
    assert pairwise_accuracy([1, 2, 3], [1.0, 2.0, 3.0]) == 0.0
    assert pairwise_accuracy([1, 3, 2, 0], [1.0, 1.0, 2.0, 2.0]) == 0.75
    assert recall([4, 3, 2, 1], [1.0, 3.0, 2.0, 4.0], 2) == 0.5
    costs = np.arange(2000.0)
    assert recall_of_sets(-costs, costs) == 1.0 and recall_of_sets(costs, costs) == 0.0
    chance = np.random.default_rng(0).random(2000)
    assert recall_of_sets(chance, costs) < 0.15, "30 of 600 by chance are 0.05"


def test_a_trial_is_scored_by_a_model_that_did_not_learn_from_it() -> None:
    learned: list[set[int]] = []

    class Watched(BoostedTrees):
        def fit(self, points, costs) -> None:
            learned.append(set(points))
            super().fit(points, costs)

        def score(self, points):
            assert not learned[-1] & set(points.tolist())
            return super().score(points)

    features, points, costs = trials_of(6, 0, 120)
    scores = held_out_scores(lambda: Watched(features), points.tolist(), costs)
    assert len(learned) == 2 and learned[0] | learned[1] == set(points.tolist())
    assert pairwise_accuracy(scores, costs) > 0.85


# ---- going on ------------------------------------------------------------------------------------


def test_trials_of_records_count_and_are_not_made_again() -> None:
    from vdla.compiler.choose.records import Record

    whole = searched("random", 3, 100)
    task = toy_task()
    candidates = Candidates(task.space)
    records = [
        Record(task.key, candidates.knobs(point), cost if np.isfinite(cost) else None, "failed")
        for point, cost in zip(*whole.tried, strict=True)
    ]
    again = Search(task, Random(candidates, 4))
    again.resume([*records, records[0]])
    assert (again.curve, again.best, again.failed) == (whole.curve, whole.best, whole.failed)
    made: list[dict] = []
    again.run(look_up, 150, kept=lambda knobs, outcome: made.append(dict(knobs)))
    assert len(made) == 50 and len(again.curve) == 150
    assert not any(knobs in [dict(record.knobs) for record in records] for knobs in made)


def test_a_deadline_ends_the_search() -> None:
    task = toy_task()
    search = Search(task, Random(Candidates(task.space), 0))
    search.run(look_up, 100, deadline=0.0)
    assert search.curve == [] and not search.exhausted


def test_outcomes_in_any_order_belong_to_their_knobs() -> None:
    search = searched("random", 5, 60)
    candidates = search.explorer.candidates
    for point, cost in zip(*search.tried, strict=True):
        knobs = candidates.knobs(point)
        expected = np.inf if knobs["a"] == 1 else toy_cost(knobs)
        assert cost == expected
    assert Outcome(None, "x").cost is None
