"""Networks tuned on many machines, and the records of the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vdla.bench import tuned
from vdla.bench.workloads import ConvLayer
from vdla.cli.app import run_app
from vdla.compiler.choose.records import Key, Record, Records, append
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.tune.task import tasks_of
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MemoryParams
from vdla.isa.params import HwParams
from vdla.isa.platform import load_platform


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that takes no time."""
    layer = ConvLayer("D99", 4, 32, 32, 3, 1, groups=32)
    monkeypatch.setattr(tuned, "MODELS", {"small": layer.model})


def test_networks_are_tuned_once_and_the_records_that_help_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the second machine nothing is better than the planner's choice."""
    costs = iter([(80.0, 90), (110.0, 100), (80.0, 90)])

    def tune(
        network: Any, target: str, records: Path, hw: HwParams, memory: MemoryParams, trials: int
    ) -> dict[str, Any]:
        (task,) = tasks_of(network, find_target(target, Options(hw, memory)))
        cost, whole = next(costs)
        append(records, [Record(task.key, {"rows": 1}, cost, tuner="xgb", seed=0, who="me")])
        row = {"template": task.key.template, "workload": task.key.workload, "planner": 100.0}
        total = {"planner": 100, "tuned": whole}
        return {"interrupted": False, "total": total, "tasks": [{**row, "trials": trials}]}

    monkeypatch.setattr(tuned, "tune", tune)
    rows = tuned.tuned_rows((), ["16x16", "8x8"], ["slow"], tmp_path, 12)
    assert [(row["hw"], row["tuned"], row["trials"]) for row in rows] == [
        ("16x16", 90, 12), ("8x8", 100, 12),
    ]  # fmt: skip
    (best,) = Records.load(tmp_path / tuned.BEST).trials
    assert (best.knobs, best.cost, best.tuner, best.who) == ({"rows": 1}, 80.0, "xgb", "")
    # What is done is not tuned again: the costs would be others.
    assert tuned.tuned_rows((), ["16x16", "8x8"], ["slow"], tmp_path, 12) == rows
    (tmp_path / tuned.DONE).unlink()
    assert tuned.tuned_rows((), ["16x16"], ["slow"], tmp_path, 12) == rows[:1]
    assert len(Records.load(tmp_path / tuned.BEST).trials) == 1, "each workload once"
    with pytest.raises(StopIteration):
        tuned.tuned_rows((), ["16x16"], ["vta"], tmp_path, 12)


def test_records_of_other_machines_do_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same workload, cheaper on another machine, whose trials are in the same file."""
    (task,) = tasks_of(
        tuned.MODELS["small"](1, True), find_target("sim", Options(*load_platform("16x16", "vta")))
    )
    other = Record(task.key._replace(machine="another"), {"rows": 9}, 1.0)
    append(tmp_path / tuned.TRIALS, [other])
    row = {"template": task.key.template, "workload": task.key.workload, "planner": 100.0}

    def tune(network: Any, target: str, records: Path, *rest: Any) -> dict[str, Any]:
        append(records, [Record(task.key, {"rows": 1}, 80.0)])
        total = {"planner": 100, "tuned": 90}
        return {"interrupted": False, "total": total, "tasks": [{**row, "trials": 1}]}

    monkeypatch.setattr(tuned, "tune", tune)
    tuned.tuned_rows((), ["16x16"], ["vta"], tmp_path, 1)
    (best,) = Records.load(tmp_path / tuned.BEST).trials
    assert best.key == task.key and best.knobs == {"rows": 1}


def test_only_what_beats_the_planner_helps() -> None:
    task = {"template": "t", "workload": "w", "planner": 100.0}
    better = Record(Key("accel", "m", "t", "w"), {"size": 2}, 90.0, who="me", when="now", seconds=1)
    slower = Record(Key("accel", "m", "t", "w"), {"size": 3}, 101.0)
    kept = Record(Key("accel", "m", "t", "w"), {"size": 1}, 100.0, preferred=True)
    other = Record(Key("accel", "m", "t", "v"), {"size": 2}, 9.0)
    (found,) = tuned.helping(Records([slower, better, other]), [task])
    assert (found.knobs, found.cost, found.who, found.seconds) == ({"size": 2}, 90.0, "", None)
    assert tuned.helping(Records([slower, better, kept]), [task]) == []


def test_means_are_geometric() -> None:
    rows = [
        {"model": "a", "memory": "vta", "hw": "8x8", "planner": 100, "tuned": 50},
        {"model": "b", "memory": "vta", "hw": "16x16", "planner": 100, "tuned": 2},
    ]
    means = tuned.geometric_means(rows)
    assert means["all"] == means["vta"] == pytest.approx(0.1)
    assert means["a"] == means["8x8"] == pytest.approx(0.5)


def test_bad_names_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VdlaError, match="models: expected names from small, got 'large'"):
        tuned.tuned_rows(["large"], (), (), tmp_path, 2)
    with pytest.raises(VdlaError):
        tuned.tuned_rows((), ["7x7"], (), tmp_path, 2)
    (tmp_path / tuned.DONE).write_text("{}\n")
    with pytest.raises(VdlaError, match="expected networks of vdla bench tuned"):
        tuned.tuned_rows((), ["8x8"], ["vta"], tmp_path, 2)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = {"model": "small", "memory": "slow", "hw": "8x8", "planner": 200, "tuned": 150}
    (tmp_path / tuned.DONE).write_text(json.dumps(done) + "\n")
    command = ["bench", "tuned", "--machines", "8x8", "--memories", "slow", "--trials", "3"]
    assert run_app([*command, "--folder", str(tmp_path), "--json", "-"]) == 0
    body = json.loads(capsys.readouterr().out)
    (row,) = body["rows"]
    assert row == done and body["geometric_means"]["slow"] == pytest.approx(0.75)
    assert run_app([*command, "--folder", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "geometric mean, small" in told and "25.0 %" in told
