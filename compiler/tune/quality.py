"""How well a model ranks what it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .boosted import BoostedTrees

#: Ansor's measure: of the best TOP of a test set of random programs, the share that is among the
#: TOP of the greatest scores. A set has TEST_SET programs; the measure is a mean over DRAWS sets.
TOP, TEST_SET, DRAWS = 30, 600, 6


def pairwise_accuracy(
    scores: Sequence[float] | np.ndarray, costs: Sequence[float] | np.ndarray
) -> float:
    """Of all pairs of different cost, the share whose cheaper one has the greater score."""
    score, cost = np.asarray(scores, float), np.asarray(costs, float)
    i, j = np.triu_indices(len(cost), 1)
    differ = cost[i] != cost[j]
    return float(((score[i] > score[j]) == (cost[i] < cost[j]))[differ].mean())


def recall(
    scores: Sequence[float] | np.ndarray, costs: Sequence[float] | np.ndarray, count: int = TOP
) -> float:
    """The share of the ``count`` cheapest that is among the ``count`` of the greatest scores."""
    score, cost = np.asarray(scores, float), np.asarray(costs, float)
    best = np.argsort(cost, kind="stable")[:count]
    return len({*best.tolist()} & {*np.argsort(-score, kind="stable")[:count].tolist()}) / len(best)


def recall_of_sets(scores: np.ndarray, costs: np.ndarray) -> float:
    """:func:`recall` in random test sets, as a mean; the same sets for the same number of costs."""
    found = []
    for seed in range(DRAWS):
        chosen = np.random.default_rng(seed).permutation(len(costs))[:TEST_SET]
        found.append(recall(scores[chosen], costs[chosen]))
    return float(np.mean(found))


def held_out_scores(
    new_model: Callable[[], BoostedTrees], points: Sequence[int], costs: Sequence[float]
) -> np.ndarray:
    """float64 [points]: the score of each trial by a model that did not learn from it. Of two
    random halves, each is scored by a model of the other.
    """
    order = np.random.default_rng(0).permutation(len(points))
    at, cost = np.asarray(points), np.asarray(costs, float)
    scores = np.zeros(len(points))
    for learned, asked in (np.array_split(order, 2), np.array_split(order, 2)[::-1]):
        model = new_model()
        model.fit(at[learned].tolist(), cost[learned].tolist())
        scores[asked] = model.score(at[asked])
    return scores
