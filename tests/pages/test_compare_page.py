"""The page of ``vdla compare --html`` without a browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vdla.cli import run_app

from .reading import read

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits_int8.onnx"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Reports of digits with two memories, and other virtual threads."""
    folder = tmp_path_factory.mktemp("reports")
    paths = folder / "fast.json", folder / "slow.json"
    for path, options in zip(paths, ([], ["--memory", "slow", "--vthreads", "1"]), strict=True):
        assert run_app(["run", str(DIGITS), *options, "--json", str(path)]) == 0
    return paths


@pytest.mark.slow
def test_both_runs_are_side_by_side(reports, tmp_path: Path) -> None:
    html, compared = tmp_path / "c.html", tmp_path / "c.json"
    command = ["compare", *map(str, reports), "--html", str(html), "--json", str(compared)]
    assert run_app(command) == 0
    page, expected = read(html.read_text()), json.loads(compared.read_text())
    assert page.loads == []
    assert page.sections == [
        "What changed", "Layers that moved", "Units", "Roofline", "DRAM traffic",
    ]  # fmt: skip
    moved = page.rows("Layers that moved, in cycles")
    assert [row["layer"] for row in moved] == [row["layer"] for row in expected["layers_moved"]]
    assert [row["difference"] for row in moved] == [
        row["delta"] for row in expected["layers_moved"]
    ]
    assert page.facts["Memory, fast"] == "vta" and page.facts["Memory, slow"] == "slow"
    assert page.facts["Model"] == DIGITS.name
    settings = page.rows("Settings and knobs")
    assert {"of": "settings", "name": "memory", "fast": "vta", "slow": "slow"} in settings
    a, b = (json.loads(path.read_text()) for path in reports)
    assert f"fast: {a['cycles']:,} cycles. slow: {b['cycles']:,}" in page.text
    kinds = [chart["kind"] for chart in page.data]
    assert kinds == ["bars", "bars", "bars", "scatter", "scatter", "bars", "bars"]
    for chart, report in zip(page.data[5:], (a, b), strict=True):
        reads = sum(read for read, _ in chart["views"][0]["values"])
        assert reads == sum(x["dram"]["read_bytes"] for x in report["layers"] if x["dram"])


def test_both_have_the_same_scales(reports, tmp_path: Path) -> None:
    html = tmp_path / "c.html"
    assert run_app(["compare", *map(str, reports), "--html", str(html)]) == 0
    data = read(html.read_text()).data
    for a, b in ((data[1], data[2]), (data[5], data[6])):
        for one, other in zip(a["views"], b["views"], strict=True):
            ends = [max(v["longest"], *map(sum, v["values"])) for v in (one, other)]
            assert ends[0] == ends[1] > 0
    places = [
        {*((p["x"], p["y"]) for p in chart["points"]), *map(tuple, chart["also"]),
         *(tuple(corner) for line in chart["lines"] for corner in line["points"])}
        for chart in data[3:5]
    ]  # fmt: skip
    assert places[0] == places[1] and data[3]["points"] != data[4]["points"]


def test_reports_without_cycles_have_no_page(reports, tmp_path: Path, capsys) -> None:
    old = json.loads(reports[0].read_text())
    for layer in old["layers"]:
        del layer["dram"]
    (tmp_path / "old.json").write_text(json.dumps(old))
    html = tmp_path / "c.html"
    command = ["compare", str(tmp_path / "old.json"), str(reports[1]), "--html", str(html)]
    assert run_app(command) == 2
    assert capsys.readouterr().err == (
        "vdla: html: expected a report of vdla run on the accelerator by this version, got old;"
        " make it anew with vdla run --json\n"
    )
    assert not html.exists()


def test_files_of_one_name_are_told_apart(reports, tmp_path: Path) -> None:
    other = tmp_path / "fast.json"
    other.write_text(reports[1].read_text())
    html = tmp_path / "c.html"
    assert run_app(["compare", str(reports[0]), str(other), "--html", str(html)]) == 0
    page = read(html.read_text())
    assert {f"Memory, A: {reports[0]}", f"Memory, B: {other}"} <= set(page.facts)
