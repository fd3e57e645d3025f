"""``vdla compare``: ratios, the layers that moved, and what it refuses."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from vdla.cli import run_app

DIGITS = Path(__file__).resolve().parent.parent / "examples" / "models" / "digits_int8.onnx"

RUN = {
    "command": "run", "model": "m.onnx", "model_sha256": "0" * 64, "target": "sim",
    "memory": "vta", "config_hash": "cafe", "vthreads": 2, "seed": 0, "batches": 1,
    "cycles": 1000, "macs": 5000, "utilisation": {"spatial": 0.5, "temporal": None},
    "stalls": {"gemm": {"busy": 10, "empty": 0}}, "dram": {"read_bytes": 64, "written_bytes": 32},
    "outputs": {"y": {"shape": [1], "sha256": "ab"}},
    "layers": [
        {"name": "one", "target": "accel", "cycles": 600, "macs": 1},
        {"name": "two", "target": "accel", "cycles": 300, "macs": 1},
        {"name": "three", "target": "accel", "cycles": 100, "macs": 1},
        {"name": "host", "target": "cpu", "cycles": None, "macs": 1},
    ],
}  # fmt: skip
TABLE2 = {
    "command": "bench table2", "memory": "vta",
    "rows": [
        {"layer": "C2", "cycles": 500, "roofline_fraction": 0.9, "vthreads": 2},
        {"layer": "C2", "cycles": 900, "roofline_fraction": 0.5, "vthreads": 1},
        {"layer": "C3", "cycles": 400, "roofline_fraction": 0.8, "vthreads": 2},
    ],
}  # fmt: skip
CPU = {
    "command": "bench cpu", "peak": {"int8_gops": 50.0},
    "rows": [{"name": "resnet18", "dtype": "int8", "ours_ms": 10.0, "peers_ms": {"ort": 12.0}}],
}  # fmt: skip


@pytest.fixture
def compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Compares two reports; gives the exit code and what was printed, as JSON or as it is."""

    def run(a: object, b: object, as_json: bool = True) -> tuple[int, Any]:
        for name, report in (("a.json", a), ("b.json", b)):
            (tmp_path / name).write_text(json.dumps(report))
        files = [str(tmp_path / name) for name in ("a.json", "b.json")]
        code = run_app(["compare", *files, *(["--json", "-"] if as_json else [])])
        out, err = capsys.readouterr()
        return code, err if code else json.loads(out) if as_json else out

    return run


def _changed(report: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return copy.deepcopy(report) | fields


def test_knobs_are_named_and_noise_is_left_out(compare) -> None:
    before = _changed(RUN, config={"acc_depth": 1024, "batch": 1}, wall_s=1.0)
    before["layers"][0]["knobs"] = {"rows": 7, "vthreads": 2}
    after = _changed(before, config={"acc_depth": 2048, "batch": 1}, wall_s=9.0)
    after["layers"][0]["knobs"]["rows"] = 14
    _, report = compare(before, after)
    assert report["knobs_changed"] == [
        {"where": "hw", "knob": "acc_depth", "a": 1024, "b": 2048},
        {"where": "one", "knob": "rows", "a": 7, "b": 14},
    ]
    assert not [row["metric"] for row in report["rows"] if "wall" in row["metric"]]
    _, text = compare(before, after, as_json=False)
    assert "acc_depth" in text and "2048" in text and "wall" not in text


def _coverage(on_host: int, macs: int = 5000) -> dict[str, int]:
    return {"macs_on_accelerator": macs, "macs_total": 5000, "operators_on_host": on_host,
            "operators_total": 36}  # fmt: skip


def test_more_work_of_the_host_is_said_first(compare) -> None:
    before, after = _changed(RUN, coverage=_coverage(13)), _changed(RUN, coverage=_coverage(2))
    after |= {"memory": "slow", "cycles": 1100}
    _, report = compare(before, after)
    (row,) = report["host_changed"]
    assert (row["where"], row["a"], row["b"]) == ("m.onnx", _coverage(13), _coverage(2))
    lines = compare(before, after, as_json=False)[1].splitlines()
    assert lines[0].startswith("m.onnx: not the same work, the host runs 13 of 36 operators in a.j")
    assert "2 of 36 operators in b.json" in " ".join(lines[:2])
    after["coverage"] = _coverage(13)
    assert compare(before, after)[1]["host_changed"] == []
    assert "not the same work" not in compare(before, after, as_json=False)[1]
    after["coverage"] = _coverage(13, 4000)
    text = " ".join(compare(before, after, as_json=False)[1].split())
    assert "13 of 36 operators and 20.0 % of the MACs in b.json" in text
    del after["coverage"]["operators_on_host"]
    assert compare(before, after)[1]["host_changed"] == [], "an older version does not say"


def test_more_work_of_the_host_in_one_of_the_networks(compare) -> None:
    rows = [{"model": m, "cycles": 100, "coverage": _coverage(3)} for m in ("dqn", "bert")]
    before = {"command": "bench networks", "memory": "vta", "rows": rows}
    after = copy.deepcopy(before)
    after["rows"][1]["coverage"] = _coverage(9)
    _, report = compare(before, after)
    assert [row["where"] for row in report["host_changed"]] == ["bert"]


def test_knobs_come_last_and_in_groups(compare) -> None:
    before = _changed(RUN, config={"acc_depth": 1024})
    before["layers"] = [
        {"name": f"conv{i}", "cycles": 10, "knobs": {"rows": i, "vthreads": 2, "order": 1}}
        for i in range(40)
    ]
    after = _changed(before, config={"acc_depth": 2048}, cycles=800)
    for layer in after["layers"]:
        layer["knobs"] = {"rows": 7, "vthreads": 2, "order": 1, "tile": 4}
    after["layers"][3]["knobs"]["order"] = 5
    assert len(compare(before, after)[1]["knobs_changed"]) == 1 + 39 + 40 + 1
    lines = compare(before, after, as_json=False)[1].splitlines()
    assert "metrics are equal" in lines[lines.index("knobs that changed".ljust(len(lines[-1]))) - 1]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert rows[-4:] == [
        ["hw", "acc_depth", "1024", "2048"],
        ["39 layers", "rows", "0, 1, 2, 3, 4, 5, ...", "7"],
        ["40 layers", "tile", "none", "4"],
        ["conv3", "order", "1", "5"],
    ]


def test_layers_of_networks(compare) -> None:
    layers = [{"name": "conv", "cycles": 70}, {"name": "dense", "cycles": 30}]
    rows = [{"model": "dqn", "cycles": 100, "cpu_ms": 3.0, "layers": layers}]
    before = {"command": "bench networks", "memory": "vta", "rows": rows}
    after = _changed(before)
    after["rows"][0] |= {"cycles": 90, "cpu_ms": 4.0}
    after["rows"][0]["layers"][0]["cycles"] = 60
    _, report = compare(before, after)
    assert [row["layer"] for row in report["layers_moved"]] == ["dqn/conv"]
    assert {row["metric"] for row in report["rows"]} == {"dqn.cycles"}


def test_fewer_cycles_at_a_slower_clock(compare) -> None:
    """Where clocks differ, time is the measure; where they are the same, or one is not known,
    cycles are."""
    layers = [{"name": "conv", "cycles": 70}, {"name": "dense", "cycles": 30}]
    rows = [{"model": "dqn", "cycles": 100, "clock_mhz": 60.0, "time_ms": 0.1, "layers": layers}]
    before = {"command": "bench networks", "memory": "vta", "rows": rows}
    after = _changed(before)
    after["rows"][0] |= {"cycles": 90, "clock_mhz": 40.0, "time_ms": 0.12}
    after["rows"][0]["layers"][0]["cycles"] = 60
    _, report = compare(before, after)
    moved = {row["layer"]: (row["measure"], row["ratio"]) for row in report["layers_moved"]}
    assert moved == {
        "dqn/conv": ("time_ms", pytest.approx(60 / 40 / (70 / 60))),
        "dqn/dense": ("time_ms", pytest.approx(1.5)),
    }
    assert "2 moved), in ms" in compare(before, after, as_json=False)[1]
    for clocks in ({"clock_mhz": 60.0}, {"clock_mhz": None}):
        after["rows"][0] |= clocks
        _, report = compare(before, after)
        assert [row["measure"] for row in report["layers_moved"]] == ["cycles"]


def test_two_runs(compare) -> None:
    after = _changed(RUN, cycles=800, memory="slow")
    after["layers"][1]["cycles"], after["layers"][2]["cycles"] = 120, 80
    after["dram"]["read_bytes"] = 128
    code, report = compare(RUN, after)
    assert code == 0 and report["command"] == "compare"
    rows = {row["metric"]: row for row in report["rows"]}
    assert rows["cycles"] == {"metric": "cycles", "a": 1000, "b": 800, "ratio": 0.8}
    assert rows["dram.read_bytes"]["ratio"] == 2
    assert rows["stalls.gemm.empty"]["ratio"] is None, "nothing is divided by zero"
    assert set(rows) == {
        "cycles", "macs", "utilisation.spatial", "stalls.gemm.busy", "stalls.gemm.empty",
        "dram.read_bytes", "dram.written_bytes",
    }  # fmt: skip
    assert [(row["layer"], row["delta"]) for row in report["layers_moved"]] == [
        ("two", -180), ("three", -20)
    ]  # fmt: skip
    assert report["layers_moved"][0]["ratio"] == pytest.approx(0.4)
    assert report["settings"]["memory"] == ["vta", "slow"]
    assert report["only_a"] == report["only_b"] == []
    _, text = compare(RUN, after, as_json=False)
    assert "memory: vta in a.json, slow in b.json" in text
    assert "0.400" in text and "(2 moved)" in text
    assert "5 of 7 metrics are equal" in text and "utilisation" not in text


def test_layers_of_one_side_only(compare) -> None:
    after = _changed(RUN, layers=[*RUN["layers"][:3], {"name": "new", "cycles": 5}])
    code, report = compare(RUN, after)
    assert code == 0
    assert (report["only_a"], report["only_b"]) == (["host"], ["new"])
    assert "only in b.json: new" in compare(RUN, after, as_json=False)[1]


def test_two_benchmarks(compare) -> None:
    after = copy.deepcopy(TABLE2)
    after["rows"][1]["cycles"] = 450
    code, report = compare(TABLE2, after)
    assert code == 0
    rows = {row["metric"]: row for row in report["rows"]}
    assert rows["C2 (2).cycles"]["ratio"] == 0.5
    assert rows["C2.cycles"]["ratio"] == rows["C3.roofline_fraction"]["ratio"] == 1
    assert [row["layer"] for row in report["layers_moved"]] == ["C2 (2)"]


def test_milliseconds_of_the_processor(compare) -> None:
    after = copy.deepcopy(CPU)
    after["rows"][0]["ours_ms"] = 5.0
    after["peak"]["int8_gops"] = 100.0
    _, report = compare(CPU, after)
    rows = {row["metric"]: row["ratio"] for row in report["rows"]}
    assert rows == {"peak.int8_gops": 2, "resnet18.ours_ms": 0.5, "resnet18.peers_ms.ort": 1}
    assert report["layers_moved"][0]["delta"] == -5


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (RUN, TABLE2, "reports of one command, got 'run' and 'bench table2'"),
        (RUN, _changed(RUN, model="n.onnx", model_sha256="1" * 64),
         "reports of one model, got 'm.onnx' (model_sha256 000000000000) and 'n.onnx'"),
        (TABLE2, _changed(TABLE2, rows=[{"layer": "D1", "cycles": 1}]),
         "about the same layers, got 'C2', ... and 'D1'"),
        (RUN, {"command": "verify"}, "b.json: expected a report of vdla run or vdla bench"),
        (RUN, [1], "b.json: expected a report of vdla run or vdla bench"),
        ({"command": "run"}, RUN, "a.json: expected a list 'layers' or 'rows'"),
    ],
)  # fmt: skip
def test_what_is_refused(compare, a: object, b: object, words: str) -> None:
    code, error = compare(a, b)
    assert code == 2
    assert words in error and error.startswith("vdla: ") and error.count("\n") == 1


@pytest.mark.parametrize("text", [None, "{", "\xff"])
def test_files_that_are_no_json(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.json"
    if text is not None:
        path.write_text(text, encoding="latin1")
    assert run_app(["compare", str(path), str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_real_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for memory in ("vta", "slow"):
        files.append(str(tmp_path / memory))
        assert run_app(["run", str(DIGITS), "--memory", memory, "--json", files[-1]]) == 0
    assert "main stall" in capsys.readouterr().out, "a file of JSON takes no table away"
    assert run_app(["compare", *files, "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    (cycles,) = (row for row in report["rows"] if row["metric"] == "cycles")
    runs = [json.loads(Path(path).read_text()) for path in files]
    assert [cycles["a"], cycles["b"]] == [run["cycles"] for run in runs]
    assert report["layers_moved"] and report["settings"]["memory"] == ["vta", "slow"]
