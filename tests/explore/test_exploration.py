"""Explorations: what they find against all designs, and that they go on where they were stopped.

Most measure with a formula in the place of compiler and simulator, which has the same bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from vdla.bench.sweep import Point, Results
from vdla.cli import run_app
from vdla.explore import exploration as exploring
from vdla.explore.enumeration import possible
from vdla.explore.exploration import Exploration, Outcome
from vdla.explore.front import front
from vdla.explore.ladder import Design, Ladder
from vdla.explore.report import make_report
from vdla.explore.spec import Spec
from vdla.isa.errors import VdlaError
from vdla.isa.params import HwParams

from ..pages.reading import read

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits_int8.onnx"
MACS = 226_112
SPEC = Spec(
    networks={str(DIGITS): 2.0},
    objectives=("cycles", "scratchpad_bytes"),
    limits={},
    knobs={
        "block": (4, 8, 16), "acc_depth": (64, 256, 512), "wgt_depth": (64, 512, 1024),
        "vector_passes": (1, 2, 4), "max_burst_beats": (8, 64),
    },
    search="random",
    trials=1000,
)  # fmt: skip


def formula(params: HwParams) -> dict[str, Any]:
    """What would be measured: cycles above the bound, less with more memory."""
    cycles = MACS / params.peak_macs_per_cycle * (1.5 + 90 / params.acc_depth)
    cycles *= 1 + 30 / params.wgt_depth + 0.2 * (params.vector_passes - 1)
    accesses = {n: {"read": 9, "written": 3} for n in ("inp", "wgt", "uop", "acc", "out")}
    return {
        "cycles": round(cycles),
        "coverage": {"macs_on_accelerator": MACS, "macs_total": MACS},
        "dram": {"read_bytes": 4000, "written_bytes": 500},
        "accesses": accesses | {n: {"read": 1, "written": 0} for n in ("par", "tmp")},
        "stalls": {}, "layers": [], "error": None,
    }  # fmt: skip


class Fake:
    """In the place of ``measure_points``; ends with Ctrl-C after some designs."""

    def __init__(self, most: int = 10_000):
        self.most, self.calls = most, 0
        self.fails: dict[tuple[int, int], str] = {}

    def __call__(self, points: Sequence[Point], results: Results, *_: Any) -> tuple[list, bool]:
        rows = []
        for point in points:
            params = point.params
            assert params is not None
            if point.key not in results.rows:
                if self.calls == self.most:
                    return rows, True
                self.calls += 1
                results.add(point.key, formula(params))
            row = results.rows[point.key]
            error = self.fails.get((params.block, params.acc_depth))
            rows.append({"error": error} if error else row)
        return rows, False


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    found = Fake()
    monkeypatch.setattr(exploring, "measure_points", found)
    return found


def explored(spec: Spec, path: Path) -> Exploration:
    found = Exploration(spec, Results(path), 1)
    found.run()
    return found


def told(outcomes: Sequence[Outcome]) -> list[tuple]:
    return [(dict(o.design.knobs), o.rung, o.values, o.over) for o in outcomes]


def everything(spec: Spec) -> list[tuple[float, float]]:
    """Cycles and bytes on the chip of all legal designs."""
    ladder, found = Ladder(spec), []
    names = list(spec.knobs)

    def visit(knobs: dict[str, int]) -> None:
        if len(knobs) < len(names):
            for value in spec.knobs[names[len(knobs)]]:
                visit(knobs | {names[len(knobs)]: value})
            return
        design = Design.of(spec, knobs)
        if design.params is not None:
            values = ladder.exact(design, [formula(design.params)])
            if not ladder.over(values):
                found.append((values["cycles"], values["scratchpad_bytes"]))

    visit({})
    return found


@pytest.mark.fast(1)
@pytest.mark.parametrize("limits", [{}, {"bram": 60.0}, {"cycles": 20_000.0, "dsp": 130.0}])
def test_the_front_is_that_of_all_designs(fake: Fake, tmp_path: Path, limits: dict) -> None:
    spec = replace(SPEC, limits=limits)
    found = explored(spec, tmp_path / "r.jsonl")
    known = everything(spec)
    first = found.outcomes[0]
    if first.rung == "exact":
        known.insert(0, (first.values["cycles"], first.values["scratchpad_bytes"]))
    expected = sorted(known[k] for k in front(known))
    best = [(o.values["cycles"], o.values["scratchpad_bytes"]) for o in found.front]
    assert best == expected
    assert len(found.outcomes) == 1 + spec.size
    rungs = {outcome.rung for outcome in found.outcomes}
    assert {"illegal", "exact"} <= rungs and ("limit" if limits else "bound") in rungs
    assert found.measured < spec.size  # what is pruned is not compiled
    assert fake.calls == found.measured


def test_no_run_is_below_its_bound(fake: Fake, tmp_path: Path) -> None:
    """Without windows, whose multiply-accumulates no run here uses."""
    spec = replace(SPEC, knobs={**SPEC.knobs, "vector_window": (0,)})
    found = explored(spec, tmp_path / "r.jsonl")
    for outcome in found.outcomes:
        if outcome.rung == "exact":
            bound = found.ladder.bound(outcome.design)
            assert 0 < bound["cycles"] < outcome.values["cycles"]
            assert bound["bram"] == outcome.values["bram"]


@pytest.mark.fast(1)
@pytest.mark.parametrize("search", ["random", "nsga2", "tpe"])
def test_a_resumed_search_equals_one_that_was_not_stopped(
    search: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(SPEC, search=search, seed=7, trials=30)
    monkeypatch.setattr(exploring, "measure_points", Fake())
    whole = explored(spec, tmp_path / "whole.jsonl")
    path = tmp_path / "parts.jsonl"
    for most in (0, 1, 13):
        monkeypatch.setattr(exploring, "measure_points", Fake(most))
        part = explored(spec, path)
        assert part.interrupted
        assert told(part.outcomes) == told(whole.outcomes)[: len(part.outcomes)]
    last = Fake()
    monkeypatch.setattr(exploring, "measure_points", last)
    resumed = explored(spec, path)
    assert told(resumed.outcomes) == told(whole.outcomes)
    assert whole.measured == 30 and last.calls == 30 - 14
    assert path.read_text() == (tmp_path / "whole.jsonl").read_text()
    other = explored(replace(spec, seed=8), path)
    assert told(other.outcomes) != told(whole.outcomes)


def test_no_designs_are_proposed_after_the_time(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = explored(SPEC, tmp_path / "whole.jsonl")
    fake.calls = 0
    monkeypatch.setattr(exploring.time, "monotonic", lambda: float(fake.calls))
    part = Exploration(SPEC, Results(tmp_path / "part.jsonl"), 1, time_s=6.0)
    part.run()
    # Those that were proposed when the time ended are measured.
    assert 6 <= part.measured < 6 + exploring.BATCH
    assert told(part.outcomes) == told(whole.outcomes)[: len(part.outcomes)]
    assert part.state.left_s == 0.0 and not part.interrupted


def test_designs_that_leave_more_to_the_host_do_not_count(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ladder = Ladder(SPEC)
    design = Design.of(SPEC, {})
    assert design.params is not None
    row = formula(design.params)
    ladder.learn(design, [row])
    less = row | {"coverage": {"macs_on_accelerator": MACS - 1, "macs_total": MACS}}
    with pytest.raises(VdlaError, match="more of it runs on the host than with the first"):
        ladder.exact(design, [less])
    assert ladder.exact(design, [row])["cycles"] == 2 * row["cycles"]


def test_what_does_not_compile_is_not_on_the_front(fake: Fake, tmp_path: Path) -> None:
    fake.fails[16, 512] = "acc is too small"
    found = explored(SPEC, tmp_path / "r.jsonl")
    failed = [o for o in found.outcomes if o.rung == "failed"]
    assert failed and all(o.design.knobs["acc_depth"] == 512 for o in failed)
    assert failed[0].reason == "digits_int8.onnx: acc is too small"
    assert not {id(o) for o in failed} & {id(o) for o in found.front}


def test_a_network_that_the_first_design_cannot_run(fake: Fake, tmp_path: Path) -> None:
    fake.fails[8, 1024] = "par is too small"
    with pytest.raises(VdlaError, match=r"the first design, 8x8: digits.*: par is too small"):
        explored(SPEC, tmp_path / "r.jsonl")


def test_what_needs_samples_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vdla.hw.fpga import resources

    monkeypatch.setattr(resources, "SAMPLES", tmp_path)
    with pytest.raises(VdlaError, match="resource model: expected at least 13 samples, got 0"):
        Ladder(replace(SPEC, objectives=("cycles", "lut")))
    with pytest.raises(VdlaError, match="board: expected one with an ECP5"):
        Ladder(replace(SPEC, board="pynq-z1", objectives=("cycles", "bram")))
    assert Ladder(replace(SPEC, board="pynq-z1")).of_machine(Design.of(SPEC, {})).keys() == {
        "scratchpad_bytes"
    }


@pytest.mark.slow
def test_time_is_cycles_at_the_modelled_clock(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vdla.hw.fpga import resources
    from vdla.hw.fpga.devices import ECP5_85F
    from vdla.hw.fpga.sample import design

    lines = []
    for number, params in enumerate(design(18, ECP5_85F, 16)):
        lut = 9000 + 400 * params.lanes
        used = {
            "lut": lut, "ff": 5000, "dsp": resources.multipliers(params, ECP5_85F),
            "bram": 2 + resources.core_rams(params),
        }  # fmt: skip
        placed_mhz = 1000 / (10 + 0.0003 * lut) if number < 6 else None
        lines.append(resources.Sample(params, used, {}, placed_mhz).to_line())
    monkeypatch.setattr(resources, "SAMPLES", tmp_path)
    (tmp_path / "ulx3s-85f.jsonl").write_text("".join(lines[6:]) + lines[0])
    timed = replace(SPEC, objectives=("time_us", "lut"), search="surrogate", trials=20)
    with pytest.raises(VdlaError, match="clock: expected at least 5 placed samples"):
        Ladder(timed)
    (tmp_path / "ulx3s-85f.jsonl").write_text("".join(lines))
    found = explored(timed, tmp_path / "r.jsonl")
    assert found.front and "6 placed samples, off by 0.0 %" in found.ladder.marks()["time_us"]
    queues = replace(timed, knobs={**timed.knobs, "queue_depth": (16, 256)})
    assert re.search("beyond its samples in .*queue_depth", Ladder(queues).marks()["lut"])
    assert "queue_depth" not in found.ladder.marks()["lut"]
    for one in found.outcomes:
        if one.rung == "exact":
            params = one.design.params
            assert params is not None
            mhz = 1000 / (10 + 0.0003 * (9000 + 400 * params.lanes))
            assert one.values["time_us"] == pytest.approx(one.values["cycles"] / mhz, rel=1e-3)
            assert found.ladder.bound(one.design)["time_us"] <= one.values["time_us"]
    most = 10 + 0.0003 * (9000 + 400 * 16)
    limited = replace(timed, limits={"period_ns": most})
    found = explored(limited, tmp_path / "limited.jsonl")
    assert found.front and all(one.values["period_ns"] <= most + 1e-6 for one in found.front)
    assert found.ladder.over({"period_ns": 1.5 * most}) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("limits", "knobs", "message"),
    [
        ({"bram": 2}, {}, r"limits: expected .* bram of at most 2, all have \d+ or more"),
        ({"cycles": 9}, {}, r"limits: expected .* cycles of at most 9, all have 1,4\d\d.* or more"),
        ({"dsp": 30, "cycles": 2000}, {}, "limits: expected a design with all of them at once"),
        ({}, {"acc_depth": (8, 9), "out_depth": (8,), "max_burst_beats": (7, 9)},
         "knobs: expected a legal design, got none; the last: HwParams.max_b"),
    ],
)  # fmt: skip
def test_limits_that_no_design_keeps_are_one_line(
    fake: Fake, tmp_path: Path, limits: dict, knobs: dict, message: str
) -> None:
    """After the first design, which says how much there is to compute."""
    spec = replace(SPEC, limits=limits, knobs=knobs or SPEC.knobs)
    with pytest.raises(VdlaError, match=message) as caught:
        explored(spec, tmp_path / "r.jsonl")
    assert "\n" not in str(caught.value) and fake.calls == 1


@pytest.mark.more
@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    """Real cycles: the command, its JSON, its page, and that it measures nothing twice."""
    (tmp_path / "spec.toml").write_text(
        f'objectives = ["cycles", "bram"]\nhw = "ecp5-85f"\n[networks]\n"{DIGITS}" = 1\n'
        "[limits]\nbram = 190\n[knobs]\nacc_depth = [512, 2048]\nwgt_depth = [256, 512]\n"
    )
    command = [
        "explore", str(tmp_path / "spec.toml"), "--trials", "3", "--workers", "1", "--results",
        str(tmp_path / "r.jsonl"), "--json", str(tmp_path / "r.json"), "--html",
        str(tmp_path / "r.html"), "--png", str(tmp_path / "r.png"),
    ]  # fmt: skip
    assert run_app(command) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["first"]["rung"] == "limit" and report["first"]["values"]["cycles"] == 6407
    assert report["evaluated"] == 3 and report["front"]
    for design in report["front"]:
        assert design["values"]["bram"] <= 190
        run = design["networks"][DIGITS.name]
        assert run["cycles"] == design["values"]["cycles"]
        assert sum(run["picojoules"].values()) / 1e6 == design["values"]["energy_uj"]
        path = tmp_path / "one.toml"
        path.write_text(design["toml"])
        assert HwParams.load(path).hash == design["config_hash"]
    page = read((tmp_path / "r.html").read_text())
    assert page.loads == [] and page.sections[:3] == ["Front", "Knobs", "Two designs"]
    shown = [row["cycles"] for row in page.rows("Designs") if row["design"] != "first"]
    assert shown == [design["values"]["cycles"] for design in report["front"]]
    for row in page.rows(f"Roofline, {DIGITS.name}"):
        allowed = min(256, 8 * row["MACs a byte"])  # of 16x16 and a bus of 64 bits
        assert 0.01 * allowed < row["MACs a cycle"] <= allowed
    [ranking] = report["rankings"]
    assert ranking["agreement"] in (tmp_path / "r.html").read_text()
    energies = [list(row.values())[1:] for row in page.rows("energy_uj by each table")]
    assert energies == ranking["values"]
    assert [one[0] for one in energies] == [d["values"]["energy_uj"] for d in report["front"]]
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    before = (tmp_path / "r.jsonl").read_text()
    assert run_app(command) == 0
    assert (tmp_path / "r.jsonl").read_text() == before
    assert json.loads((tmp_path / "r.json").read_text()) == report


@pytest.mark.parametrize("spec", [replace(SPEC, knobs={"bus_bits": (64, 128)}),
                                  replace(SPEC, memory="wide")])  # fmt: skip
def test_a_bus_that_the_board_does_not_have_is_refused(spec: Spec) -> None:
    with pytest.raises(VdlaError, match=r"bus_bits: expected 64, which the board ulx3s.*, got 128"):
        Ladder(spec)


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["10_explore.toml", "11_build.toml"])
def test_the_example_can_be_explored(name: str) -> None:
    spec = Spec.load(DIGITS.parents[1] / name)
    assert any(design.params is not None for design in possible(spec, Ladder(spec)))


def test_a_report_of_everything(fake: Fake, tmp_path: Path) -> None:
    found = explored(replace(SPEC, trials=5), tmp_path / "r.jsonl")
    report = make_report(found)
    assert report["evaluated"] == len(report["designs"]) == 5
    assert report["hypervolume"] == sorted(report["hypervolume"])
    assert report["hypervolume"][-1] == found.state.hypervolume > 0.2
    assert report["rejected"] == {r: n for r, n in report["rungs"].items() if r != "exact"}
    for design in report["front"]:
        assert design["objectives"] == {n: design["values"][n] for n in report["objectives"]}
        assert set(design["fidelity"].values()) == {"exact"} and design["rtl_equal"] is None
    assert set(report["marks"]) == set(report["shown"]) == set(report["units"])
    [ranking] = report["rankings"]
    energies = ranking["values"]
    for a, b in combinations(range(len(report["front"])), 2):
        same = [energies[a][n] < energies[b][n] for n in range(2)]
        equal = [energies[a][n] == energies[b][n] for n in range(2)]
        agreed = len({*same}) == len({*equal}) == 1
        assert agreed == ([a + 1, b + 1] not in ranking["disagreed_order"])


def test_a_feature_is_a_knob(fake: Fake, tmp_path: Path) -> None:
    """Its value 0, as which a configuration leaves it out, has no logarithm."""
    knobs = {"vector_table": (0, 1), "acc_depth": (64, 256, 512)}
    found = explored(replace(SPEC, knobs=knobs, search="surrogate"), tmp_path / "r.jsonl")
    report = make_report(found)
    assert {design["knobs"]["vector_table"] for design in report["designs"]} == {0, 1, 2}
    assert len(found.outcomes) == 1 + 6
