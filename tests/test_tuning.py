"""``vdla.tune`` and ``vdla tune``: trials that are kept, go on, and make a model faster."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import vdla
from vdla.api import tuning
from vdla.bench.workloads import ConvLayer
from vdla.cli.app import run_app
from vdla.compiler.choose.records import Key, Record, Records
from vdla.compiler.choose.template import Plan
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.plan.program_plan import SHARES
from vdla.compiler.tune import search
from vdla.compiler.tune.task import find_tasks
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams
from vdla.sim.model.core import count_cycles

DIGITS = Path(__file__).parents[1] / "examples" / "models" / "digits_int8.onnx"
SMALL = ConvLayer("small", 32, 32, 32, 3, 1)


def small(quantized: bool = True) -> Any:
    return SMALL.model(1, quantized)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A small layer, tuned from nothing; the planner is told to use one virtual thread."""
    file = tmp_path_factory.mktemp("tuned") / "records.jsonl"
    return vdla.tune(small(), records=file, memory="slow", trials=16, vthreads=1), file


@pytest.mark.more
@pytest.mark.slow
def test_a_layer_becomes_faster_and_compile_takes_the_best(tuned: Any) -> None:
    report, file = tuned
    (task,) = report["tasks"]
    assert task["trials"] == len(task["curve"]) == 16 and task["failed"] == 0
    assert task["curve"][0] == task["planner"], "the planner's choice comes first"
    assert task["best"] == min(task["curve"]) < task["planner"]
    # The planner's program also chooses what a layer by itself has as usual.
    planned = vdla.compile(small(), memory="slow", vthreads=1).program
    cycles = count_cycles(planned.table, MEMORY_PRESETS["slow"])
    assert cycles <= task["planner"]
    assert report["total"] == {"planner": cycles, "tuned": task["best"]}
    module = vdla.compile(small(), memory="slow", vthreads=1, records=file)
    (layer,) = (row for row in module.compiled.layers if row.runs is not None)
    assert layer.chosen_by == "record"
    reserved = {name: value for name, value in layer.knobs.items() if name in SHARES}
    best_knobs = {**task["best_knobs"], **reserved, "windows": "plain"}
    assert {**layer.knobs, "windows": "plain"} == best_knobs
    assert count_cycles(module.program.table, MEMORY_PRESETS["slow"]) == task["best"]


@pytest.mark.slow
def test_a_log_of_another_configuration_is_not_applied(tuned: Any) -> None:
    _, file = tuned
    for other in ({"memory": "vta"}, {"memory": "slow", "hw": "8x8"}):
        with_records = vdla.compile(small(), records=file, **other)
        plain = vdla.compile(small(), **other)
        assert {row.chosen_by for row in with_records.compiled.layers} <= {"planner", "default", ""}
        assert with_records.program.to_bytes() == plain.program.to_bytes()


@pytest.mark.slow
def test_a_user_is_told_that_no_record_is_for_this_configuration(
    tuned: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    _, file = tuned
    assert run_app(["run", str(DIGITS), "--memory", "wide", "--records", str(file)]) == 0
    assert f"{file} has no records of this configuration and memory" in capsys.readouterr().err
    assert run_app(["run", str(DIGITS), "--memory", "slow", "--records", str(file)]) == 0
    assert capsys.readouterr().err == ""


def test_the_variable_names_the_records(tuned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report, file = tuned
    monkeypatch.setenv("VDLA_RECORDS", str(file))
    module = vdla.compile(small(), memory="slow")
    assert "record" in {row.chosen_by for row in module.compiled.layers}
    assert report["records"] == str(file)


@pytest.mark.more
def test_the_same_seed_makes_the_same_trials(tuned: Any, tmp_path: Path) -> None:
    report, _ = tuned
    file = tmp_path / "again"
    again = vdla.tune(small(), records=file, memory="slow", trials=16, vthreads=1)
    assert again["tasks"][0]["curve"] == report["tasks"][0]["curve"]


@pytest.mark.more
def test_trials_are_kept_and_the_same_call_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "records"

    def stop(progress: tuning.Progress) -> None:
        if progress.made == 5:
            raise KeyboardInterrupt

    cut = vdla.tune(small(), records=file, memory="slow", trials=12, watch=stop)
    assert cut["interrupted"] and len(Records.load(file).trials) == 5
    seen: list[int] = []
    whole = vdla.tune(
        small(), records=file, memory="slow", trials=12, watch=lambda p: seen.append(p.made)
    )
    assert not whole["interrupted"] and seen == [5, *range(6, 13)]
    trials = Records.load(file).trials
    assert len(trials) == len({json.dumps(t.knobs) for t in trials}) == 12
    done = vdla.tune(small(), records=file, memory="slow", trials=12)
    assert done["tasks"][0]["curve"] == whole["tasks"][0]["curve"]
    assert Records.load(file).trials == trials
    assert {(t.tuner, t.seed, t.versions["vdla"]) for t in trials} == {("xgb", 0, vdla.__version__)}


@pytest.mark.more
def test_time_ends_between_two_trials_and_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.onnx").write_bytes(small().SerializeToString())
    later = itertools.count(0, 100)  # seconds that pass between two looks at the clock
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + next(later))
    monkeypatch.setattr(search, "time", clock)
    command = ["tune", "small.onnx", "--trials", "8", "--records", "r.jsonl"]
    assert run_app([*command, "--time", "300"]) == 0
    made = Records.load("r.jsonl").trials
    assert 0 < len(made) < 8
    assert "vdla: the time ended; r.jsonl has all trials" in capsys.readouterr().err
    assert run_app(command) == 0
    trials = Records.load("r.jsonl").trials
    assert trials[: len(made)] == made and len(trials) == 8
    assert capsys.readouterr().err == ""


@pytest.mark.more
def test_failed_trials_are_records_of_failures(tmp_path: Path) -> None:
    file = tmp_path / "records"
    report = vdla.tune(small(), records=file, trials=3, timeout_s=0.001)
    (task,) = report["tasks"]
    assert (task["trials"], task["failed"], task["best"]) == (3, 3, None)
    trials = Records.load(file).trials
    assert [(t.cost, t.error) for t in trials] == [(None, "took longer than 0.001 s")] * 3
    plain, found = (vdla.compile(small(), records=records) for records in (None, file))
    assert plain.program.to_bytes() == found.program.to_bytes()


@pytest.mark.more
def test_a_network_is_never_slower_than_by_the_planner(tmp_path: Path) -> None:
    file = tmp_path / "records"
    report = vdla.tune(DIGITS, records=file, trials=4)
    total = report["total"]
    assert len(report["tasks"]) == 8 and total["tuned"] <= total["planner"]
    module = vdla.compile(DIGITS, records=file)
    assert count_cycles(module.program.table, MEMORY_PRESETS["vta"]) == total["tuned"]

    # Records that promise much and are bad for the network: of them nothing is kept.
    bad = tmp_path / "bad"
    lines = []
    for line in file.read_text().splitlines():
        record = json.loads(line)
        record["cost"] = 1e6 - record["cost"]
        lines.append(json.dumps(record))
    bad.write_text("\n".join(lines) + "\n")
    worse = vdla.compile(DIGITS, records=bad)
    assert count_cycles(worse.program.table, MEMORY_PRESETS["vta"]) > total["planner"]
    again = vdla.tune(DIGITS, records=bad, trials=4)
    assert again["total"]["tuned"] <= again["total"]["planner"] == total["planner"]
    module = vdla.compile(DIGITS, records=bad)
    assert count_cycles(module.program.table, MEMORY_PRESETS["vta"]) == again["total"]["tuned"]


def test_small_gains_are_tried_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try compiles the model; with or without them, no model becomes slower."""
    small = {f"small{i}": (100, 90 + i) for i in range(6)}
    costs = {"large": (900, 500), **small, "nothing": (7, 7)}
    seen: list[list[str]] = []
    ours = tuning._Tuning.__new__(tuning._Tuning)
    ours.path, ours.tuner, ours.seed, ours.known = tmp_path / "r", "xgb", 0, Records()
    ours.tasks = [
        SimpleNamespace(
            key=Key("accel", "m", "t", name), layers=("a",), plan=lambda: Plan({"a": 1})
        )
        for name in costs
    ]  # type: ignore[assignment]
    for name, (planner, least) in costs.items():
        for cost, knob in ((least, 2), (planner, 1)):
            ours.known.add(Record(Key("accel", "m", "t", name), {"a": knob}, cost))

    def cycles(records: Records) -> int:
        seen.append([record.key.workload for record in records.trials])
        return 999_900 if "small0" not in seen[-1] else 1_000_001

    monkeypatch.setattr(ours, "_cycles", cycles)
    ours._keep_what_helps(1_000_000)
    names = list(small)
    assert seen == [["large"], ["large", *names[:4]], ["large", *names[4:]]]
    kept = {record.key.workload: record.knobs["a"] for record in ours.known.best()}
    assert {name for name, knob in kept.items() if knob == 2} == {"large"}


def test_layers_of_equal_workload_are_one_task() -> None:
    target = find_target("sim", Options(HwParams(), MEMORY_PRESETS["vta"]))
    from vdla.bench.net import Net

    net = Net("twice", True)
    x = net.input(1, 32, 8, 8)
    for _ in range(3):
        x = net.conv(x, 32, 3, 1)
    net.output(x)
    tasks = find_tasks(net.model(), target)
    assert [len(task.layers) for task in tasks] == [3]
    layer: Any = tasks[0].layer
    assert len(layer.graph.nodes) == 1, "a worker is sent this layer alone"


@pytest.mark.more
def test_a_processor_is_tuned_in_milliseconds(tmp_path: Path) -> None:
    file = tmp_path / "records"
    report = vdla.tune(small(False), "cpu", records=file, trials=4)
    assert report["tasks"] and report["total"]["tuned"] is None
    for task in report["tasks"]:
        assert 0 < task["best"] <= task["planner"] and 0.3 < task["control"] < 3
    trials = Records.load(file).trials
    preferred = [trial for trial in trials if trial.preferred]
    assert len(preferred) == len(report["tasks"])
    x = np.random.default_rng(0).normal(size=(1, 32, 32, 32)).astype(np.float32)
    plain, found = (vdla.compile(small(False), "cpu", records=r) for r in (None, file))
    np.testing.assert_allclose(found.run(x)[0], plain.run(x)[0], rtol=1e-4, atol=1e-4)
    assert "record" in {layer.chosen_by for layer in found.compiled.layers}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"target": "gpu"}, "target: expected one of sim, rtl, cpu, cuda, opencl, got 'gpu'"),
        (
            {"tuner": "magic"},
            "tuner: expected one of xgb, sa, ga, random, grid, treernn, auto, got 'magic'",
        ),
        ({"trials": 0}, "trials: expected an integer of at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(VdlaError, match=said):
        vdla.tune(small(), records=tmp_path / "records", **arguments)


# ---- the command line ----------------------------------------------------------------------------


@pytest.mark.more
def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, report, plot = tmp_path / "records", tmp_path / "report.json", tmp_path / "plot.png"
    command = ["tune", "D9", "--memory", "slow", "--records", str(file), "--tuner", "random"]
    command += ["--trials", "3", "--json", str(report), "--plot", str(plot)]
    assert run_app(command) == 0
    body = json.loads(report.read_text())
    assert body["command"] == "tune" and body["memory"] == "slow" and body["seed"] == 0
    assert body["tasks"][0]["trials"] == 3 and body["total"]["tuned"] <= body["total"]["planner"]
    assert plot.read_bytes()[1:4] == b"PNG"

    capsys.readouterr()
    assert run_app(["records", "best", str(file), "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["best"], row["knobs"]) == (body["tasks"][0]["best"], body["tasks"][0]["best_knobs"])
    assert row["config_hash"] == body["config_hash"] and row["trials"] == 3
    merged = tmp_path / "merged"
    assert run_app(["records", "merge", str(file), str(file), "-o", str(merged)]) == 0
    assert merged.read_text() == file.read_text()
    assert run_app(["records", "show", str(merged)]) == 0
    assert "slow" in capsys.readouterr().out
    assert run_app(["records", "show", str(merged), "--target", "cpu"]) == 2
    assert "target: expected one of the records' (accel), got 'cpu'" in capsys.readouterr().err
    assert run_app(["tune", "C99"]) == 2
    assert "model: expected a file, one of resnet18" in capsys.readouterr().err
    file.write_text(file.read_text()[:-20])
    assert run_app(command) == 2
    assert "truncated" in capsys.readouterr().err
