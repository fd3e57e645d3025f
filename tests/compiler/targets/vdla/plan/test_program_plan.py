"""Which plan is taken for a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from vdla.compiler.targets.vdla.plan.program_plan import (
    BOUNDS,
    MOST_STEPS,
    ProgramPlan,
    find_plan,
)

USUAL = ProgramPlan()


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
        USUAL, replace(USUAL, bound=BOUNDS[-1]), replace(USUAL, addition="joined"),
        replace(USUAL, wgt_eighths=4), replace(USUAL, share_steps=3),
        replace(USUAL, image_parts=8), ProgramPlan(BOUNDS[2], "joined", -2, 1, 8),
    ],
    ids=str,
)  # fmt: skip
def test_the_fewest_cycles_are_found(best: ProgramPlan) -> None:
    def cycles_of(plan: ProgramPlan) -> float:
        names = "bound", "addition", "wgt_eighths", "image_parts"
        wrong = sum(getattr(plan, name) != getattr(best, name) for name in names)
        return 1000 + wrong + abs(plan.share_steps - best.share_steps)

    found, programs = searched(cycles_of)
    assert found == best and programs <= 15


def test_of_equal_programs_the_usual_one_is_taken() -> None:
    assert searched(lambda plan: 1000) == (USUAL, 11)


@pytest.mark.parametrize("way", [1, -1])
def test_shares_have_an_end(way: int) -> None:
    found, _ = searched(lambda plan: 1000 - way * plan.share_steps)
    assert found.share_steps == way * MOST_STEPS
