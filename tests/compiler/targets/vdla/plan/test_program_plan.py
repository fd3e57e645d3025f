"""Which plan is taken for a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.compiler.targets.vdla.plan import planner
from vdla.compiler.targets.vdla.plan.program_plan import (
    BOUNDS,
    MOST_STEPS,
    ProgramPlan,
    find_plan,
)

USUAL = ProgramPlan()
DIGITS = Path(__file__).parents[5] / "examples" / "models" / "digits_int8.onnx"


def searched(cycles_of: Callable[[ProgramPlan], float]) -> tuple[ProgramPlan, int]:
    """What is taken, and how many programs that needs."""
    seen: set[ProgramPlan] = set()

    def watched(plan: ProgramPlan) -> float:
        seen.add(plan)
        return cycles_of(plan)

    return find_plan(watched), len(seen)


@pytest.mark.parametrize(
    "best",
    [
        USUAL, replace(USUAL, bound=BOUNDS[-1]), replace(USUAL, addition="fused"),
        replace(USUAL, wgt_eighths=4), replace(USUAL, share_steps=3),
        replace(USUAL, image_chunks=8), replace(USUAL, track="vector"),
        replace(USUAL, classifier="beside"),
        ProgramPlan(BOUNDS[2], "fused", -2, 1, 8, "vector", "beside"),
    ],
    ids=str,
)  # fmt: skip
def test_the_fewest_cycles_are_found(best: ProgramPlan) -> None:
    def cycles_of(plan: ProgramPlan) -> float:
        names = "bound", "addition", "wgt_eighths", "image_chunks", "track", "classifier"
        wrong = sum(getattr(plan, name) != getattr(best, name) for name in names)
        return 1000 + wrong + abs(plan.share_steps - best.share_steps)

    found, programs = searched(cycles_of)
    assert found == best and programs <= 18


def test_fused_additions_may_want_chunks() -> None:
    """Each of the two by itself costs cycles."""
    best = replace(USUAL, addition="fused", image_chunks=8)
    wrong = {USUAL: 1, replace(USUAL, addition="fused"): 2, replace(USUAL, image_chunks=8): 2}
    assert searched(lambda plan: 0 if plan == best else wrong.get(plan, 3))[0] == best


def test_of_equal_programs_the_usual_one_is_taken() -> None:
    assert searched(lambda plan: 1000) == (USUAL, 14)


@pytest.mark.slow
def test_normalisations_may_run_beside_products() -> None:
    """Where that takes fewer cycles; a knob says otherwise, with the same values."""
    model, image = DIGITS.with_name("digits_transformer_int8.onnx"), np.full((1, 1, 8, 8), 3.0)
    found = vdla.compile(model)
    layers = [layer for layer in found.compiled.layers if "track" in (layer.knobs or {})]
    assert {layer.op for layer in layers} == {"RowDigits", "QNormalise", "TransposeGroups"}
    assert found.compiled.plan["track"] == "vector"
    other = vdla.compile(model, knobs={layer.name: {"track": "tensor"} for layer in layers})
    outputs = [module.run(image.astype(np.float32))[0] for module in (found, other)]
    np.testing.assert_array_equal(*outputs)
    assert found.report["cycles"] < other.report["cycles"]


@pytest.mark.parametrize("way", [1, -1])
def test_shares_have_an_end(way: int) -> None:
    found, _ = searched(lambda plan: 1000 - way * plan.share_steps)
    assert found.share_steps == way * MOST_STEPS


@pytest.mark.slow
def test_the_report_has_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a saved module; and its layers have the knobs that follow."""
    plan = replace(USUAL, wgt_eighths=3, image_chunks=4)
    monkeypatch.setattr(planner, "find_plan", lambda *_: plan)
    module = vdla.compile(DIGITS)
    module.save(tmp_path / "saved")
    for each in module, vdla.load(tmp_path / "saved"):
        each.run(np.zeros((1, 1, 8, 8), np.float32))
        assert each.report["plan"] == asdict(plan)
        knobs = {row["name"]: row["knobs"] for row in each.report["layers"]}
        assert (knobs["left"]["wgt_eighths"], knobs["left"]["image_chunks"]) == (3, 4)
    assert vdla.compile(DIGITS, "cpu").compiled.plan == {}
