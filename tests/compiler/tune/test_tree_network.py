"""Loop programs as trees, and the network that ranks them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vdla.cli.app import run_app
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import compute, placeholder, reduce_axis, sum_of
from vdla.compiler.tir.ir import PrimFunc
from vdla.compiler.tir.lower import lower
from vdla.compiler.tune.loop_tree import LENGTH, TreeFeatures, loop_tree
from vdla.compiler.tune.quality import pairwise_accuracy

SIZES = (1, 2, 4, 8, 16, 32)


def product(rows: int, columns: int) -> PrimFunc:
    """A product of two matrices in tiles."""
    x, w = placeholder((32, 8), "float32", "x"), placeholder((8, 32), "float32", "w")
    k = reduce_axis(8, "k")
    y = compute((32, 32), lambda i, j: sum_of(x[i, k] * w[k, j], k), "y")
    s = create_schedule(y)
    i, j = y.axes
    outer, inner = zip(s[y].split(i, rows), s[y].split(j, columns), strict=True)
    s[y].reorder(*outer, k, *inner)
    return lower(s, [x, w, y], "product")


def test_a_tree_has_the_loops_and_statements_of_its_program() -> None:
    tree = loop_tree(product(4, 8))
    assert {len(row) for row in tree.rows} == {LENGTH}
    last = len(tree.rows) - 1
    assert tree.around[last] == last and not any(tree.rows[last])
    assert all(node < around for node, around in enumerate(tree.around[:-1]))
    extents = sorted(round(2 ** row[0] - 1) for row in tree.rows if row[0])
    assert extents.count(8) >= 3 and extents.count(4) >= 2, "i, j and k, outside and inside"
    whole, tiled = (len(loop_tree(product(*tile)).rows) for tile in ((32, 32), (4, 8)))
    assert whole <= tiled


def points_and_costs() -> tuple[list[int], np.ndarray]:
    """Products by the sizes of their tiles; those of 8 x 8 cost least."""
    points = list(range(len(SIZES) ** 2))
    away = [abs(np.log2(SIZES[p // 6] / 8)) + abs(np.log2(SIZES[p % 6] / 8)) for p in points]
    return points, 100.0 + 10 * np.array(away)


def features() -> TreeFeatures:
    return TreeFeatures(
        lambda point: product(SIZES[point // 6], SIZES[point % 6]), lambda p: np.zeros(len(p))
    )


@pytest.fixture(scope="module")
def network() -> Any:
    pytest.importorskip("jax", reason="jax is not installed")
    from vdla.compiler.tune.tree_network import TreeNetwork

    return TreeNetwork


@pytest.mark.slow
def test_the_network_ranks_what_it_has_not_seen(network: Any) -> None:
    points, costs = points_and_costs()
    order = np.random.default_rng(0).permutation(len(points))
    learned, asked = order[:20], order[20:]
    model, again = network(features()), network(features())
    assert not model.knows
    for one in (model, again):
        for _ in range(4):  # it goes on from what it has learned
            one.fit(learned.tolist(), costs[learned].tolist())
    assert model.knows
    scores = model.score(np.array(points))
    assert pairwise_accuracy(scores[asked], costs[asked]) > 0.75
    assert pairwise_accuracy(-scores[asked], costs[asked]) < 0.25
    assert np.array_equal(scores, again.score(np.array(points)))


@pytest.mark.slow
def test_what_fills_up_a_batch_changes_no_score(network: Any) -> None:
    points, costs = points_and_costs()
    model = network(features())
    model.fit(points, costs.tolist())
    alone = np.concatenate([model.score(np.array([point])) for point in points])
    np.testing.assert_allclose(model.score(np.array(points)), alone, rtol=1e-4, atol=1e-5)


def test_without_the_extra_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "vdla.compiler.tune.tree_network", raising=False)
    command = ["tune", "D9", "--tuner", "treernn", "--trials", "2"]
    assert run_app([*command, "--records", str(tmp_path / "records")]) == 2
    said = capsys.readouterr().err
    assert "needs the package 'jax'; install it with pip install 'vdla[treernn]'" in said
    assert not (tmp_path / "records").exists()
