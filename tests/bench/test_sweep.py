"""``vdla sweep``: its rows, what they say about each other, and that a sweep goes on where it was
stopped.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.bench import sweep
from vdla.bench.measure import random_inputs
from vdla.bench.networks import find_model, network_rows
from vdla.bench.sweep import (
    Results,
    compared,
    labels,
    machine,
    make_points,
    measure_point,
    measure_points,
    parse_sets,
)
from vdla.cli import run_app
from vdla.compiler.choose.records import Records, append
from vdla.compiler.tune.sandbox import Sandbox, TrialFailed
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MemoryParams, load_platform
from vdla.isa.params import PRESETS

from ..pages.reading import read

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits_int8.onnx"


def quiet(_done: int, _total: int) -> None:
    """No progress."""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that one sweep writes."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "small.toml").write_text("acc_depth = 1024\nwgt_depth = 512\n")
    command = [
        "sweep", str(DIGITS), "C8", "--hw", "16x16", "--hw", str(folder / "small.toml"),
        "--memory", "vta", "--memory", "slow", "--set", "inp_depth=2048,4096,15", "--clock", "50",
        "--workers", "2", "--results", str(folder / "r.jsonl"), "--csv", str(folder / "r.csv"),
        "--html", str(folder / "r.html"), "--json", str(folder / "r.json"),
    ]  # fmt: skip
    assert run_app(command) == 0
    return folder


@pytest.fixture(scope="module")
def rows(swept: Path) -> list[dict]:
    return json.loads((swept / "r.json").read_text())["rows"]


@pytest.mark.slow
def test_networks_and_sweeps_choose_as_compile_does(tmp_path: Path) -> None:
    """The planner's choices, or those of a file: each layer's worst of four trials."""
    params, memory = load_platform("8x8", "vta")
    trials, worst = tmp_path / "trials.jsonl", tmp_path / "worst.jsonl"
    model = find_model("dqn", 1)
    vdla.tune(model, records=trials, hw="8x8", trials=4, tuner="random")
    found = sorted(Records.load(trials).trials, key=lambda trial: trial.cost or 0.0)
    append(worst, list({trial.key: trial for trial in found}.values()))
    cycles = []
    for records in (None, worst):
        module = vdla.compile(model, hw="8x8", records=records)
        module.run(*random_inputs(module.inputs))
        (row,) = network_rows(["dqn"], params, memory, records=records)
        (point,) = make_points(["dqn"], ["8x8"], ["vta"], {}, records)
        swept = measure_point(None, *point.job)
        assert module.report["cycles"] == row["cycles"] == swept["cycles"]
        cycles.append(row["cycles"])
    assert cycles[0] < cycles[1]


@pytest.mark.more
@pytest.mark.slow
def test_every_combination_is_a_row(rows: list[dict]) -> None:
    seen = [(r["model"], r["hw"], r["memory"], r["knobs"]["inp_depth"]) for r in rows]
    assert seen == [
        (model, hw, memory, depth)
        for model in (DIGITS.name, "C8")
        for hw in ("16x16", "small")
        for memory in ("vta", "slow")
        for depth in (2048, 4096, 15)
    ]


@pytest.mark.more
@pytest.mark.slow
def test_cycles_are_those_of_a_run(rows: list[dict]) -> None:
    row = next(r for r in rows if (r["hw"], r["memory"]) == ("small", "slow") and r["cycles"])
    hw = replace(PRESETS["16x16"], acc_depth=1024, wgt_depth=512)
    module = vdla.compile(DIGITS, hw=hw, memory="slow")
    module.run(np.zeros((1, 1, 8, 8), np.float32))
    assert row["cycles"] == module.report["cycles"] and row["config_hash"] == hw.hash
    assert row["stalls"] == module.report["stalls"] and row["time_ms"] == row["cycles"] / 50_000
    named = {layer["name"]: layer["cycles"] for layer in row["layers"]}
    assert named == {
        r["name"]: r["cycles"] for r in module.report["layers"] if r["cycles"] is not None
    }


@pytest.mark.more
@pytest.mark.slow
def test_what_is_not_legal_is_a_row_with_the_reason(rows: list[dict]) -> None:
    for row in rows:
        if row["knobs"]["inp_depth"] == 15:
            assert row["error"] == "HwParams.inp_depth: expected 16..65536, got 15"
            assert "cycles" not in row and row["changed"] is None
        else:
            assert row["error"] is None and row["cycles"] > 0


@pytest.mark.slow
def test_a_machine_that_is_too_small_is_a_row_with_the_reason(tmp_path: Path) -> None:
    points = make_points(["C8"], ["16x16"], ["vta"], {"acc_depth": [8], "par_depth": [4]})
    found, _ = measure_points(points, Results(tmp_path / "r.jsonl"), 1, quiet)
    assert "cycles" not in found[0] and "par" in found[0]["error"]


@pytest.mark.slow
def test_rows_say_why_nothing_changed(rows: list[dict]) -> None:
    first, doubled = rows[0], rows[1]
    assert first["changed"]["ratio"] == 1 and first["changed"]["same_instructions"]
    assert doubled["knobs"] == {"inp_depth": 4096}
    most = doubled["most_in_use"]["inp"][0]
    assert f"of 4,096 inp entries at most {most:,} are in use" in doubled["changed"]["why"]
    assert most < 2048
    slow = rows[3]
    assert slow["memory"] == "slow" and slow["changed"]["ratio"] > 1.1
    waits = slow["stalls"]["load"]["dma"] / slow["cycles"]
    assert f"waits for DRAM in {100 * waits:.1f} %" in slow["changed"]["why"]


@pytest.mark.slow
def test_csv_and_page_have_the_same_numbers(swept: Path, rows: list[dict]) -> None:
    with (swept / "r.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["cycles"] for row in table] == [str(row.get("cycles") or "") for row in rows]
    assert [row["inp_depth"] for row in table] == [str(r["knobs"]["inp_depth"]) for r in rows]
    page = read((swept / "r.html").read_text())
    assert page.loads == []
    assert page.sections == ["All results", f"Model {DIGITS.name}", "Model C8"]
    shown = page.rows("Results")
    assert [row["cycles"] for row in shown] == [row.get("cycles", "") for row in rows]
    assert [row["machine"] for row in shown] == labels(rows)
    for view in page.data[0]["views"]:  # every bar is as long as its run
        mine = [row["cycles"] for row in rows if row["model"] == DIGITS.name and "cycles" in row]
        assert [sum(values) for values in view["values"]] == mine


@pytest.mark.slow
def test_the_same_command_measures_nothing_again(swept: Path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(Sandbox, "call", fail)
    results = swept / "r.jsonl"
    before = results.read_text()
    command = ["sweep", str(DIGITS), "--set", "inp_depth=2048,4096", "--results", str(results)]
    assert run_app([*command, "--json", str(swept / "again.json")]) == 0
    assert results.read_text() == before
    again = json.loads((swept / "again.json").read_text())["rows"]
    assert [row["cycles"] for row in again] == [
        row["cycles"] for row in json.loads((swept / "r.json").read_text())["rows"][:2]
    ]


@pytest.mark.more
@pytest.mark.slow
def test_what_crashed_is_tried_again(tmp_path: Path, monkeypatch) -> None:
    def crash(*_: object) -> None:
        raise TrialFailed("crashed: SIGSEGV")

    points = make_points(["C8"], ["16x16"], ["vta"], {})
    results = Results(tmp_path / "r.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr(Sandbox, "call", crash)
        found, interrupted = measure_points(points, results, 1, quiet)
    assert not interrupted and found[0]["error"] == "crashed: SIGSEGV" and not results.rows
    found, _ = measure_points(points, results, 1, quiet)
    assert found[0]["cycles"] == 27_686


def test_other_sources_are_measured_again(monkeypatch) -> None:
    (point,) = make_points(["C8"], ["16x16"], ["vta"], {})
    before = point.key
    monkeypatch.setattr(sweep, "source_digest", lambda *rooms: "others")
    assert point.key != before


@pytest.mark.slow
def test_a_model_that_changes_is_compiled_again(tmp_path: Path) -> None:
    """A worker of a scheduler lives on while files change."""
    model = tmp_path / "m.onnx"
    params, memory = machine("16x16", "vta", {})
    cycles = []
    for name in ("C8", "C9", "C8"):
        model.write_bytes(find_model(name, 1).SerializeToString())
        cycles.append(measure_point(None, str(model), params, memory)["cycles"])
    assert cycles[0] == cycles[2] != cycles[1]


@pytest.mark.slow
def test_a_compiled_model_is_used_again_where_its_programs_are_the_same(monkeypatch) -> None:
    params, memory = machine("16x16", "vta", {})
    sweep._work.cache_clear()
    first = measure_point(None, "C8", params, memory)
    monkeypatch.setattr(sweep, "build", lambda *_: pytest.fail("compiled again"))
    other = measure_point(None, "C8", replace(params, loads_in_flight=1), memory)
    assert other["cycles"] > first["cycles"]
    assert other["instructions_sha256"] == first["instructions_sha256"]
    monkeypatch.undo()
    sweep._work.cache_clear()
    again = measure_point(None, "C8", replace(params, loads_in_flight=1), memory)
    assert other | {"wall_s": 0} == again | {"wall_s": 0}


def heed_signals() -> None:
    """Where the tests run in the background of a shell, Ctrl-C is ignored, also by children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.more
@pytest.mark.slow
def test_ctrl_c_keeps_all_results(tmp_path: Path) -> None:
    count = 12  # so many that the first signal comes before the last point
    latencies = ",".join(map(str, range(16, 16 + 2 * count, 2)))
    command = [
        sys.executable, "-m", "vdla", "sweep", str(DIGITS), "--set",
        f"read_latency_cycles={latencies}", "--workers", "1", "--results", "r.jsonl",
        "--json", "r.json",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=heed_signals,
    )  # fmt: skip
    results = tmp_path / "r.jsonl"
    deadline = time.monotonic() + 600
    while not results.exists() or not results.read_text().count("\n"):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2 and "goes on" in error and error.count("\n") == 1, error
    kept = results.read_text()
    assert 0 < kept.count("\n") < count
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not again.stderr
    assert results.read_text().startswith(kept) and results.read_text().count("\n") == count
    cycles = [row["cycles"] for row in json.loads((tmp_path / "r.json").read_text())["rows"]]
    assert cycles == sorted(cycles) and len(cycles) == count


@pytest.mark.more
@pytest.mark.slow
def test_a_result_that_was_cut_short_is_measured_again(tmp_path: Path) -> None:
    points = make_points([str(DIGITS)], ["16x16"], ["vta"], {"acc_depth": [1024, 2048]})
    path = tmp_path / "r.jsonl"
    found, _ = measure_points(points, Results(path), 1, quiet)
    text = path.read_text()
    path.write_text(text[:-40])
    again, _ = measure_points(points, Results(path), 1, quiet)
    assert [row["cycles"] for row in again] == [row["cycles"] for row in found]
    assert len(Results(path).rows) == 2


@pytest.mark.parametrize("text", ['{"no": 1}\n', "[1]\n", "text\n", "text"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(VdlaError, match="expected results of vdla sweep"):
        Results(path)


def test_sets_are_read() -> None:
    assert parse_sets(["acc_depth=8,16", "outstanding=1"]) == {
        "acc_depth": [8, 16], "outstanding": [1],
    }  # fmt: skip
    for bad in ("acc_depth", "wings=1", "acc_depth=x", "acc_depth=", "acc_depth=1,,2"):
        with pytest.raises(VdlaError, match=r"^set: "):
            parse_sets([bad])
    with pytest.raises(VdlaError, match="once"):
        parse_sets(["acc_depth=8", "acc_depth=16"])


def test_knobs_of_memory_and_bus_reach_both() -> None:
    (point,) = make_points(["C8"], ["16x16"], ["vta"], {"bus_bits": [128], "outstanding": [2]})
    assert point.params == replace(PRESETS["16x16"], bus_bits=128)
    assert point.memory_params == MemoryParams(bus_bits=128, outstanding=2)


def test_rows_of_one_machine_are_compared_with_nothing() -> None:
    assert compared([]) == [] and labels([]) == []
