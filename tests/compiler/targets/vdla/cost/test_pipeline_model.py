"""The replay of tilings: many at once, one at a time, and its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from vdla.bench.tables import layer_task
from vdla.compiler.targets.vdla.cost.pipeline_model import replayed
from vdla.compiler.tune.candidates import Candidates

LATENCY, WRITE_LATENCY = 40.0, 20.0


def random_work(count: int) -> list[np.ndarray]:
    """Fields of work, as the planner makes them, of small tilings."""
    rng = np.random.default_rng(0)
    counts = [rng.integers(1, high, count) for high in (4, 9, 4)]
    slices = rng.integers(1, 5, count)
    cycles = [np.where(rng.random(count) < 0.3, 0.0, rng.uniform(0, 200, count)) for _ in range(7)]
    return [*counts, slices, *cycles]


@pytest.mark.parametrize("vthreads", [1, 2, 4])
def test_many_tilings_are_replayed_as_one_at_a_time(vthreads: int) -> None:
    work = random_work(60)
    together = replayed(work, LATENCY, WRITE_LATENCY, vthreads)
    alone = [
        replayed([column[i].item() for column in work], LATENCY, WRITE_LATENCY, vthreads).item()
        for i in range(60)
    ]
    assert together.tolist() == alone


def test_a_replay_is_between_the_busiest_unit_and_all_units_in_turn() -> None:
    changes, tiles, chunks, _, staying, inp, wgt, gemm, vector, store, fetch = random_work(200)
    groups, steps = changes * tiles, changes * tiles * chunks
    units = [
        changes * staying + steps * (inp + wgt), steps * gemm, groups * vector, groups * store,
        groups * fetch,
    ]  # fmt: skip
    for vthreads in (1, 2, 4):
        found = replayed(random_work(200), LATENCY, WRITE_LATENCY, vthreads)
        assert (found >= np.max(units[:4], axis=0)).all()
        # Every step may wait for a load, every tile for a store.
        waits = (changes + steps) * LATENCY + groups * WRITE_LATENCY
        assert (found <= np.sum(units, axis=0) + waits + WRITE_LATENCY).all()


def test_estimates_of_many_products_are_the_predictions_of_each() -> None:
    task = layer_task("C8", "slow")
    candidates, of = Candidates(task.space), task.layer
    points = np.random.default_rng(0).permutation(candidates.all())[:40]
    found = of.template.estimates(of.workload, candidates.columns(points))["cycles"]
    predicted = [of.template.predict(of.workload, candidates.knobs(p)) for p in points.tolist()]
    assert np.round(found).astype(int).tolist() == predicted
