"""Designs whose schedules are tuned: the explorer compiles as ``vdla.compile`` does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import vdla
from vdla.bench.sweep import Results, measure_point
from vdla.compiler.choose.records import Records, append
from vdla.explore.exploration import Exploration
from vdla.explore.ladder import Design, Ladder
from vdla.explore.proof import prove
from vdla.explore.report import make_report
from vdla.explore.spec import Spec
from vdla.sim.model.core import count_cycles

pytestmark = pytest.mark.more

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits_int8.onnx"
SPEC = Spec(
    networks={str(DIGITS): 1.0}, objectives=("cycles", "bram"), limits={},
    knobs={"acc_depth": (256, 512), "loads_in_flight": (1, 4)}, hw="4x4", search="random",
    trials=6,
)  # fmt: skip
TUNED = {"acc_depth": 512, "loads_in_flight": 1}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Exploration, Path]:
    """An exploration with records of one of its designs, and their file. They are the worst trials
    of each layer, so that other cycles come of them for certain.
    """
    folder = tmp_path_factory.mktemp("records")
    params, memory = SPEC.machine(TUNED)
    trials, file = folder / "trials.jsonl", folder / "records.jsonl"
    vdla.tune(str(DIGITS), records=trials, hw=params, memory=memory, trials=4, tuner="random")
    worst = {}
    for trial in sorted(Records.load(trials).trials, key=lambda trial: trial.cost or 0.0):
        worst[trial.key] = trial
    append(file, list(worst.values()))
    found = Exploration(replace(SPEC, records=str(file)), Results(folder / "r.jsonl"), 1)
    found.run()
    return found, file


def test_a_design_with_records_has_their_cycles(tuned: tuple) -> None:
    """Those of ``vdla.compile`` with the file; other designs are as without it."""
    found, file = tuned
    plain = Exploration(SPEC, Results(file.with_name("r.jsonl")), 1)
    plain.run()
    assert found.measured == plain.measured == 5
    params, memory = SPEC.machine(TUNED)
    for mine, its in zip(found.outcomes, plain.outcomes, strict=True):
        by = {layer["chosen_by"] for layer in mine.rows[0]["layers"]}
        if mine.design.params == params:
            assert mine.values["cycles"] > its.values["cycles"] and "record" in by
            module = vdla.compile(str(DIGITS), hw=params, memory=memory, records=file)
            assert mine.values["cycles"] == count_cycles(module.program.table, memory)
            (point,) = found.ladder.points(mine.design)
            assert measure_point(None, *point.job)["cycles"] == mine.values["cycles"]
        else:
            assert mine.values == its.values and "record" not in by


def test_the_report_says_who_chose(tuned: tuple) -> None:
    found, _ = tuned
    report = make_report(found)
    layers = [
        layer["chosen_by"]
        for design in (report["first"], *report["front"])
        for layer in design["networks"][DIGITS.name]["layers"]
    ]
    assert {by: layers.count(by) for by in {*layers} - {""}} == report["chosen_by"]
    assert report["chosen_by"]["planner"] > 0


@pytest.mark.slow
def test_a_tuned_design_has_its_cycles_in_rtl(tuned: tuple) -> None:
    found, _ = tuned
    params, _ = SPEC.machine(TUNED)
    outcome = next(one for one in found.outcomes if one.design.params == params)
    proof = prove(found, outcome, lambda _: None)
    assert proof["rtl_cycles"] == {DIGITS.name: outcome.values["cycles"]}


def test_without_a_file_they_are_those_of_the_variable(
    tuned: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the machine that they are of."""
    design, other = Design.of(SPEC, TUNED), Design.of(SPEC, TUNED | {"acc_depth": 256})
    assert not Ladder(SPEC).records(design).best()
    monkeypatch.setenv("VDLA_RECORDS", str(tuned[1]))
    ladder = Ladder(SPEC)
    assert ladder.records(design).best() and not ladder.records(other).best()
    (point,) = ladder.points(design)
    assert len(point.records) == len(ladder.records(design).best())
    assert replace(point, records=()).key != point.key
