"""Explorations in standard cells: with a formula in the place of synthesis and RTL, with a small
circuit in the core's place, and (``make gates``) with the core in cells of others.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from vdla.bench.sweep import Results
from vdla.cli import run_app
from vdla.explore import exploration as exploring
from vdla.explore.ladder import Design, Ladder
from vdla.explore.report import make_report
from vdla.explore.silicon import Silicon
from vdla.explore.spec import Spec
from vdla.hw.asic import estimate
from vdla.hw.asic.estimate import load
from vdla.hw.asic.macros import DEFAULT
from vdla.isa.errors import VdlaError
from vdla.isa.params import HwParams

from ..hw.asic.circuits import OSU018, SMALL, small_text
from .test_exploration import DIGITS, SPEC, Fake, explored

CELLS = replace(
    SPEC, objectives=("cycles", "area_um2", "toggles_uj"), liberty=(str(SMALL), str(SMALL))
)


def in_cells(params: HwParams) -> dict:
    """Area and energy of a run. The second library has large RAM: other designs are smaller."""
    ram = params.acc_depth + params.wgt_depth
    areas = [params.block**2 + weight * ram / 10 for weight in (1.0, 10.0)]
    return {"areas_um2": areas, "toggles_uj": [[area / params.block] for area in areas]}


@pytest.fixture
def silicon(monkeypatch: pytest.MonkeyPatch) -> list[HwParams]:
    """A formula measures; the designs that it was asked for."""
    asked: list[HwParams] = []

    def measured(_self: Silicon, points: list) -> dict:
        asked.append(points[0].params)
        return in_cells(points[0].params)

    monkeypatch.setattr(exploring, "measure_points", Fake())
    monkeypatch.setattr(Silicon, "_measured", measured)
    return asked


@pytest.mark.parametrize("search", ["random", "surrogate", "nsga2"])
def test_the_front_in_cells(silicon: list[HwParams], tmp_path: Path, search: str) -> None:
    spec = replace(CELLS, search=search, trials=40)
    found = explored(spec, tmp_path / "r.jsonl")
    measured = [one for one in found.outcomes if one.rung == "exact"]
    assert len(measured) >= 40 and len(silicon) == len({one.hash for one in silicon})
    for one in measured:
        params, _ = one.design.machine
        area = in_cells(params)["areas_um2"][0]
        # Twice an image: that is the network's weight.
        assert one.values["area_um2"] == area
        assert one.values["toggles_uj"] == pytest.approx(2 * area / params.block)
    best = min(found.front, key=lambda one: one.values["area_um2"])
    assert best.values["area_um2"] == min(one.values["area_um2"] for one in measured)
    count = len(silicon)
    again = explored(spec, tmp_path / "r.jsonl")
    assert len(silicon) == count, "what is measured is not measured again"
    assert [one.values for one in again.outcomes] == [one.values for one in found.outcomes]


def test_the_report_says_which_orders_hold(silicon: list[HwParams], tmp_path: Path) -> None:
    found = explored(replace(CELLS, trials=60), tmp_path / "r.jsonl")
    report = make_report(found)
    energy, area, toggles = report["rankings"]
    assert [energy["of"], area["of"], toggles["of"]] == ["energy_uj", "area_um2", "toggles_uj"]
    assert area["by"] == ["small with macros of " + load(SMALL, DEFAULT)[1].name] * 2
    wanted = [in_cells(one.design.machine[0])["areas_um2"] for one in found.front]
    assert area["values"] == wanted
    for a, b in area["disagreed_order"]:
        (one, other), (left, right) = wanted[a - 1], wanted[b - 1]
        assert (one < left, one > left) != (other < right, other > right)
    assert area["disagreed_order"] and "not of" in area["agreement"]
    assert report["marks"]["area_um2"].startswith("counted in a netlist, small with macros")
    assert report["front"][0]["fidelity"] == {
        "cycles": "exact", "area_um2": "exact", "toggles_uj": "model",
    }  # fmt: skip


def test_an_area_can_be_a_limit(silicon: list[HwParams], tmp_path: Path) -> None:
    """The first design is measured in any case; what exceeds other limits never is."""
    limits = {"area_um2": 200.0, "scratchpad_bytes": 150_000.0}
    found = explored(replace(CELLS, objectives=("cycles",), limits=limits), tmp_path / "r.jsonl")
    first, *others = found.outcomes
    assert first.rung == "limit" and first.values["area_um2"] > 200
    over = [one for one in others if one.rung == "limit" and one.rows]
    assert over and all(one.values["area_um2"] > 200 for one in over)
    assert found.front and all(one.values["area_um2"] <= 200 for one in found.front)
    # The device of the default board holds none of the larger ones: it is no limit here.
    assert all(params.scratchpad_bytes <= 150_000 for params in silicon[1:])
    assert "bram" not in found.ladder.limits


def test_a_design_that_cannot_be_made(
    silicon: list[HwParams], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(_self: Silicon, points: list) -> dict:
        if points[0].params.block == 16:
            raise VdlaError("yosys: no cell for a flip-flop")
        return in_cells(points[0].params)

    monkeypatch.setattr(Silicon, "_measured", measured)
    found = explored(CELLS, tmp_path / "r.jsonl")
    failed = [one for one in found.outcomes if one.rung == "failed"]
    assert failed and {one.design.machine[0].block for one in failed} == {16}
    assert all(one.reason == "yosys: no cell for a flip-flop" for one in failed)
    assert "yosys" not in (tmp_path / "r.jsonl").read_text(), "the next run tries again"
    with pytest.raises(VdlaError, match="the first design, 16x16: yosys: no cell"):
        explored(replace(CELLS, hw="16x16"), tmp_path / "other.jsonl")


def test_ctrl_c_while_cells_are_made(
    silicon: list[HwParams], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Silicon._measured

    def measured(self: Silicon, points: list) -> dict:
        if len(silicon) == 6:
            raise KeyboardInterrupt
        return real(self, points)

    with monkeypatch.context() as patch:
        patch.setattr(Silicon, "_measured", measured)
        stopped = explored(CELLS, tmp_path / "r.jsonl")
    assert stopped.interrupted and 1 <= stopped.measured <= 6
    resumed = explored(CELLS, tmp_path / "r.jsonl")
    whole = explored(CELLS, tmp_path / "whole.jsonl")
    assert [o.values for o in resumed.outcomes] == [o.values for o in whole.outcomes]


GOOD = f"""
objectives = ["cycles", "area_um2"]
liberty = ["{SMALL}"]
[networks]
"{DIGITS}" = 1
[knobs]
block = [4, 8]
"""
BAD = [
    (f'liberty = ["{SMALL}"]', "", "liberty: expected a list of files for area_um2, got none"),
    (f'["{SMALL}"]', '"cells.lib"', "liberty: expected a list of files, got 'cells.lib'"),
    (f'["{SMALL}"]', "[3]", "liberty: expected text, got 3"),
    (f'["{SMALL}"]', '["none.lib"]', "liberty: expected a file, got 'none.lib'"),
    ('"area_um2"', '"bram"', "liberty: expected area_um2 or toggles_uj as an objective or a limit"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=[new for _, new, _ in BAD])
def test_bad_files_are_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    path = tmp_path / "spec.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(VdlaError, match=message) as caught:
        Spec.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["liberty", "macros"])
def test_files_are_read_before_the_work(tmp_path: Path, name: str) -> None:
    (tmp_path / "other").write_text("something else")
    spec = replace(CELLS, **{name: (str(tmp_path / "other"),)})
    with pytest.raises(VdlaError, match="other: expected "):
        Ladder(spec)


@pytest.mark.slow
def test_areas_are_those_of_the_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two libraries with two tables, in order; a small circuit is in the core's place."""
    monkeypatch.setattr(estimate, "core_text", lambda _: small_text())
    double = tmp_path / "double.lib"
    double.write_text(SMALL.read_text().replace("area : 1.0;", "area : 2.0;"))
    other = tmp_path / "other.toml"
    other.write_text(DEFAULT.read_text().replace("area_um2 = ", "area_um2 = 2"))
    files = (str(SMALL), str(double)), (str(DEFAULT), str(other))
    spec = replace(CELLS, objectives=("area_um2",), liberty=files[0], macros=files[1])
    ladder, design = Ladder(spec), Design.of(spec, {})
    assert ladder.silicon is not None
    [row] = ladder.silicon.measure([ladder.points(design)], Results(tmp_path / "r.jsonl"), 1)
    wanted = []
    for liberty in files[0]:
        for macros in files[1]:
            report = tmp_path / "report.json"
            command = ["asic", "estimate", "--liberty", liberty, "--macros", macros]
            assert run_app([*command, "--json", str(report)]) == 0
            wanted.append(json.loads(report.read_text())["total"]["area_um2"])
    assert row["areas_um2"] == wanted and len(set(wanted)) == 4 and row["toggles_uj"] == []


@pytest.mark.sweep
@pytest.mark.skipif(not OSU018.exists(), reason="the Debian package qflow-tech-osu018")
def test_energies_are_those_of_the_estimate(tmp_path: Path) -> None:
    """Of a layer, which is one program, at the clock of the longest path."""
    spec = replace(
        CELLS, networks={"C12": 1.0}, objectives=("area_um2", "toggles_uj"), hw="4x4",
        liberty=(str(OSU018),),
    )  # fmt: skip
    ladder, design = Ladder(spec), Design.of(spec, {})
    assert ladder.silicon is not None
    [row] = ladder.silicon.measure([ladder.points(design)], Results(tmp_path / "r.jsonl"), 1)
    path = tmp_path / "report.json"
    command = ["asic", "estimate", "--liberty", str(OSU018), "--hw", "4x4", "--layer", "C12"]
    assert run_app([*command, "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert row["areas_um2"] == [report["total"]["area_um2"]]
    assert row["toggles_uj"] == [[pytest.approx(report["energy"]["layer_uj"])]]
