"""Tables of exact cycles, and replays of explorers on them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from vdla.bench import tables, tuning
from vdla.bench.tables import TABLES, Table, load_table, make_table, table_path
from vdla.bench.workloads import ConvLayer
from vdla.cli.app import run_app
from vdla.compiler.tune import quality
from vdla.compiler.tune.features import CYCLES, FLOOR
from vdla.isa.errors import VdlaError
from vdla.sim.model.core import count_cycles

SMALL = ConvLayer("D99", 4, 32, 32, 3, 1, groups=32)
OTHER = ConvLayer("D98", 6, 32, 32, 3, 1, groups=32)
PRODUCTS = ConvLayer("C99", 4, 32, 64, 1, 1)


@pytest.fixture(scope="module")
def table() -> Table:
    return load_table(table_path(TABLES, "D8", "vta"))


@pytest.mark.slow
def test_a_table_has_the_cycles_of_its_choices(table: Table) -> None:
    points = table.candidates.all()
    assert len(points) == len(table.cycles) >= table.programs
    chosen = [int(np.nanargmin(table.cycles)), len(points) // 2]
    layer = table.task.layer
    for index in chosen:
        program = layer.program(table.candidates.knobs(int(points[index])))  # type: ignore[attr-defined]
        assert count_cycles(program.table, layer.machine.memory) == table.cycles[index]  # type: ignore[attr-defined]
    assert table.optimum <= table.planner < 1.2 * table.optimum


def test_no_program_beats_the_floor_of_the_cost_model(table: Table) -> None:
    for found in table, *(load_table(table_path(TABLES, name, "vta")) for name in ("C5", "D7")):
        floors = found.task.estimates[FLOOR]
        assert (floors <= found.cycles)[found.exact].all()
        reached = (floors > found.cycles / 4)[found.exact].mean()
        assert found is table or reached > 0.8, "a floor so low skips nothing"


def test_chance_in_closed_form_is_chance(table: Table) -> None:
    exact = tuning.closed_form(table)
    rng, costs = np.random.default_rng(0), table.cycles
    orders = [rng.permutation(costs) for _ in range(2000)]
    found = tuning.measures(table, [np.minimum.accumulate(order) for order in orders])
    for part in ("median", "p90"):
        expected, drawn = exact["trials_to_1pct"][part], found["trials_to_1pct"][part]
        assert abs(drawn - expected) <= max(3, 0.1 * expected)
    assert found["regret_area"] == pytest.approx(exact["regret_area"], rel=0.05)


@pytest.mark.more
def test_a_tuner_needs_a_quarter_of_the_trials_of_chance(table: Table) -> None:
    rows = {
        row["explorer"]: row for row in tuning.tuning_rows([table], ["planner", "random", "xgb"], 9)
    }
    needed = {name: row["trials_to_1pct"]["median"] for name, row in rows.items()}
    assert needed["xgb"] <= min(128, needed["random"] / 4)
    assert rows["xgb"]["regret_area"] < rows["random"]["regret_area"]
    assert rows["planner"]["regret_area"] == table.planner / table.optimum - 1


@pytest.mark.more
def test_the_model_ranks_what_it_has_not_seen(table: Table) -> None:
    (row,) = tuning.model_rows([table])
    assert row["learned_from"] == "64 trials"
    assert row["pairwise_accuracy"] >= 0.85 and row["recall_at_30"] >= 0.62


@pytest.mark.parametrize("layer", ["D7", "D8"])
def test_the_best_tilings_of_windows_are_told_apart(layer: str) -> None:
    """The best tiling by its estimate is the best."""
    near = load_table(table_path(TABLES, layer, "vta"))
    cycles = near.task.estimates[CYCLES]
    assert near.cycles[np.argmin(cycles)] == near.optimum
    assert quality.recall_of_sets(-cycles, near.cycles) >= 0.77


@pytest.mark.more
def test_optuna_is_replayed_too(table: Table) -> None:
    pytest.importorskip("optuna")
    curve = tuning._tpe_curve(table, 0)
    assert curve == sorted(curve, reverse=True) and curve[-1] < 1.2 * table.optimum


# ---- making --------------------------------------------------------------------------------------


@pytest.mark.more
def test_a_table_that_is_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TABLE_2", (SMALL,))
    whole = make_table("D99", "slow", tmp_path / "whole", {"vthreads": 2})
    assert np.isfinite(whole.cycles).all()

    class Stop(Exception):
        pass

    def stop(done: int, count: int) -> None:
        if done == 7:
            raise Stop

    folder = tmp_path / "parts"
    with pytest.raises(Stop):
        make_table("D99", "slow", folder, {"vthreads": 2}, stop)
    (part,) = folder.iterdir()
    part.write_text(part.read_text() + '["cut off')
    seen: list[int] = []
    make_table("D99", "slow", folder, {"vthreads": 2}, lambda done, count: seen.append(done))
    assert seen[0] == 8 and len(seen) == len(whole.cycles) - 7
    path = table_path(folder, "D99", "slow")
    assert [p.name for p in folder.iterdir()] == [path.name]
    assert path.read_bytes() == table_path(tmp_path / "whole", "D99", "slow").read_bytes()


@pytest.mark.slow
def test_hopeless_choices_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TABLE_2", (PRODUCTS,))
    monkeypatch.setattr(tables, "HOPELESS", np.inf)
    fixed = {"vthreads": 2, "order": "stream", "cols": 4}
    whole = make_table("C99", "vta", tmp_path / "whole", fixed)
    floors = tables._floors(whole.task, whole.candidates.columns(whole.candidates.all()))
    assert whole.exact.all()
    bound = float(np.median(floors))
    monkeypatch.setattr(tables, "HOPELESS", bound / whole.planner)
    seen: list[int] = []
    part = make_table("C99", "vta", tmp_path, fixed, lambda done, count: seen.append(count))
    assert (part.exact == (floors <= bound)).all() and {part.exact.sum()} == set(seen)
    assert not part.exact.all()
    assert (part.cycles == np.where(part.exact, whole.cycles, np.floor(floors))).all()
    assert part.programs < whole.programs


@pytest.mark.more
def test_a_part_of_a_table_is_what_models_learn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "TABLE_2", (SMALL, OTHER))
    part = make_table("D99", "slow", tmp_path, {"vthreads": 2}, part=9)
    assert part.exact.sum() == 9 == np.isfinite(part.cycles).sum()
    whole = make_table("D98", "slow", tmp_path, {"vthreads": 2})
    found = tuning.tables_in(tmp_path)
    assert [table.part for table in found] == [0, 9]
    _, points, costs = tuning._some_trials(part, 500)
    assert len(points) == len(costs) == 9 and np.isfinite(costs).all()
    assert {row["layer"] for row in tuning.tuning_rows(found, ["random"], 1)} == {"D98"}
    rows = tuning.model_rows(found)
    assert [row["learned_from"] for row in rows] == ["64 trials", "other layers"]
    assert tuning.base_for(whole, [whole]) is None


def test_other_files_are_refused(tmp_path: Path, table: Table) -> None:
    path = tmp_path / "D8_vta.json.gz"
    path.write_bytes(b"nothing")
    with pytest.raises(VdlaError, match="expected a table of vdla bench tuning"):
        load_table(path)
    part = tmp_path / "D8_vta.part"
    path.unlink()
    part.write_text(json.dumps({"version": 0}) + "\n")
    with pytest.raises(VdlaError, match="delete it"):
        make_table("D8", "vta", tmp_path, {"vthreads": 2})
    with pytest.raises(VdlaError, match="expected tables, got none"):
        tuning.tables_in(tmp_path)


@pytest.mark.slow
def test_the_command_prints_rows(
    tmp_path: Path, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "D8_vta.json.gz").write_bytes(table_path(TABLES, "D8", "vta").read_bytes())
    plot = tmp_path / "plot.png"
    command = ["bench", "tuning", "--tables", str(tmp_path), "--seeds", "2"]
    command += ["--explorers", "planner,random,sa", "--plot", str(plot), "--json", "-"]
    assert run_app(command) == 0
    body = json.loads(capsys.readouterr().out)
    assert [row["explorer"] for row in body["rows"]] == ["planner", "random", "sa"]
    assert {row["optimum"] for row in body["rows"]} == {table.optimum}
    assert set(body["rows"][1]["trials_to_1pct"]) == {"median", "p90"}
    assert plot.read_bytes()[1:4] == b"PNG"
    assert run_app(["bench", "tuning", "--explorers", "magic"]) == 2
    assert "explorers: expected some of planner" in capsys.readouterr().err
