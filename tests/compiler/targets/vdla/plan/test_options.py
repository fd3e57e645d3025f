"""Which choices are taken for a whole program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from vdla.compiler.targets.vdla.plan.fuse_inverted_residual import BOUNDS
from vdla.compiler.targets.vdla.plan.options import MOST_STEPS, ProgramChoices, first_to_end

USUAL = ProgramChoices()


def searched(cycles_of: Callable[[ProgramChoices], float]) -> tuple[ProgramChoices, int]:
    """What is taken, and how many programs that needs."""
    seen: set[ProgramChoices] = set()

    def watched(choices: ProgramChoices) -> float:
        seen.add(choices)
        return cycles_of(choices)

    return first_to_end(watched), len(seen)


@pytest.mark.parametrize(
    "best",
    [
        USUAL, replace(USUAL, bound=BOUNDS[-1]), replace(USUAL, addition="joined"),
        replace(USUAL, wgt_eighths=4), replace(USUAL, share_steps=3),
        replace(USUAL, image_parts=8), ProgramChoices(BOUNDS[2], "joined", -2, 1, 8),
    ],
    ids=str,
)  # fmt: skip
def test_the_fewest_cycles_are_found(best: ProgramChoices) -> None:
    def cycles_of(choices: ProgramChoices) -> float:
        names = "bound", "addition", "wgt_eighths", "image_parts"
        wrong = sum(getattr(choices, name) != getattr(best, name) for name in names)
        return 1000 + wrong + abs(choices.share_steps - best.share_steps)

    found, programs = searched(cycles_of)
    assert found == best and programs <= 15


def test_of_equal_programs_the_usual_one_is_taken() -> None:
    assert searched(lambda choices: 1000) == (USUAL, 11)


@pytest.mark.parametrize("way", [1, -1])
def test_shares_have_an_end(way: int) -> None:
    found, _ = searched(lambda choices: 1000 - way * choices.share_steps)
    assert found.share_steps == way * MOST_STEPS
