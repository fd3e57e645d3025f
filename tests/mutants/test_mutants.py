"""The mutation run itself: every mutant can be planted, a few cheap ones are, and one that nothing
sees is reported.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from vdla.sim.model.queue import Queue

from .__main__ import MUTANTS, _caught
from .checks import PARAMS
from .cosim import COSIM, UNSEEN, CosimCheck
from .plant import Mutant

ROOT = Path(__file__).parents[2]
CHEAP = ("forgotten micro-ops", "multiplier truncated", "negatives upwards", "do not wait")


@pytest.mark.slow
def test_every_mutant_can_be_planted() -> None:
    for mutant in (*MUTANTS, *COSIM):
        true = mutant.function.__code__
        with mutant.plant():
            assert mutant.function.__code__ != true, mutant.name
        assert mutant.function.__code__ == true
    assert len({(mutant.place, mutant.name) for mutant in MUTANTS}) == len(MUTANTS) >= 32


def test_the_readme_says_how_many() -> None:
    assert f"| {len(MUTANTS)} | `make mutants` |" in (ROOT / "docs" / "measured.md").read_text()


def test_every_room_has_mutants() -> None:
    rooms = Counter(mutant.place.partition(" ")[0] for mutant in MUTANTS)
    assert set(rooms) == {"rtl", "sim", "reference", "compiler", "explore", "checker"}


@pytest.mark.slow
def test_cheap_mutants_are_caught() -> None:
    command = [sys.executable, "-m", "tests.mutants", *CHEAP]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CHEAP)} of {len(CHEAP)} mutants caught" in done.stdout


def test_what_co_simulation_cannot_see_is_a_mutant() -> None:
    assert set(UNSEEN) < {mutant.name for mutant in COSIM}


@pytest.mark.more
@pytest.mark.slow
def test_co_simulation_catches_a_mutant() -> None:
    """With an end a cycle late the core does not pass what is run. (`make cosim` runs all of it on
    the right core first.)
    """
    late = next(mutant for mutant in COSIM if mutant.name == "off-by-one latency")
    check = CosimCheck(PARAMS, programs=2)
    with late.plant():
        found = check()
    assert found is not None and "end cycle" in found


def test_a_mutant_is_gone_after_its_check() -> None:
    true = Queue.rooms.__code__
    seen = []
    mutant = Mutant("late", "sim", Queue.rooms, "self.left", "self.entered", lambda: None)
    with mutant.plant():
        seen.append(Queue.rooms.__code__ != true)
    assert seen == [True] and Queue.rooms.__code__ is true


def test_a_survivor_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert not _caught(
        Mutant("late", "sim", Queue.rooms, "self.left", "self.entered", lambda: None)
    )
    assert "SURVIVED" in capsys.readouterr().out


def test_text_that_is_gone_is_an_error() -> None:
    with pytest.raises(LookupError, match="mend the mutant"):
        Mutant("stale", "sim", Queue.rooms, "no such text", "", lambda: None).code()
