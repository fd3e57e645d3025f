"""The static checker against programs that are wrong: every token that is dropped, and hazards
that an oracle of another kind has proved; and against programs that are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from vdla.isa.check import check
from vdla.isa.findings import Finding
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams
from vdla.isa.program import Program
from vdla.isa.reference import AddressError
from vdla.sim.verify.random_programs import random_program

from ..compiler.building import build_for
from ..compiler.test_build import conv_model
from .configurations import PLATFORMS, SMALLEST
from .insertions import INSERTIONS, Insertion, insert, single_deletions
from .interleavings import other_bytes, stuck

MODELS = Path(__file__).parents[2] / "examples" / "models"
SLOW = MEMORY_PRESETS["slow"]
#: Everything close together, and queues in which all of a short program fits.
CROWDED = replace(
    SMALLEST, queue_depth=32, inp_depth=64, wgt_depth=32, acc_depth=16, uop_depth=32, par_depth=40,
    tmp_depth=16, out_depth=16,
)  # fmt: skip
#: Instructions of a random program; each insertion runs it in twice as many orders.
LENGTH = 24

# ---- hazards -------------------------------------------------------------------------------------


@dataclass
class Campaign:
    """What became of the insertions: those proved to be hazards by kind, those not proved, and
    those that the checker missed. Of each kind, ``quota`` are proved.
    """

    quota: int
    proved: Counter[str] = field(default_factory=Counter)
    unproved: int = 0
    missed: list[tuple[int, str]] = field(default_factory=list)

    def run(self, seed: int) -> None:
        """Insertions into random programs from a seed on, until the quotas are reached."""
        while wanted := [i for i in INSERTIONS if self.proved[i.__name__] < self.quota]:
            self.insert(seed, wanted)
            seed += 1

    def insert(self, seed: int, insertions: list[Insertion]) -> None:
        """One insertion of each of some kinds into one random program."""
        program = random_program(CROWDED, seed, LENGTH)
        rng = np.random.default_rng(seed)
        for insertion in insertions:
            wrong = insert(program, insertion, rng)
            if wrong is None:
                continue
            if not _is_hazard(wrong):
                self.unproved += 1
                continue
            self.proved[insertion.__name__] += 1
            kinds = {finding.kind for finding in check(wrong)}
            if not kinds & {"raw", "war", "deadlock"}:
                self.missed.append((seed, insertion.__name__))


def _is_hazard(program: Program) -> bool:
    """Whether it is proved that the program may do something else than it means."""
    try:
        return stuck(program.insns) or other_bytes(program) is not None
    except AddressError:
        return False  # it leaves a memory in any order


@pytest.mark.slow
def test_hazards_are_found() -> None:
    campaign = Campaign(quota=3)
    campaign.run(seed=0)
    assert not campaign.missed


@pytest.mark.sweep
def test_hundreds_of_hazards_are_found() -> None:
    campaign = Campaign(quota=60)
    campaign.run(seed=1000)
    print(f"\nhazards proved and found: {dict(campaign.proved)}, not proved: {campaign.unproved}")
    assert not campaign.missed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_right_programs_have_one_meaning(seed: int) -> None:
    """The oracle finds nothing where the checker finds nothing."""
    program = random_program(CROWDED, seed, LENGTH)
    assert _hazards(program) == [] and not _is_hazard(program)


def _hazards(program: Program) -> list[Finding]:
    """The findings, without those of entries that nothing has written: random programs read such
    entries."""
    return [f for f in check(program) if f.kind != "uninitialised"]


# ---- tokens --------------------------------------------------------------------------------------


def _compiled() -> Iterator[Program]:
    """The digits network; that and a convolution on a small core with two virtual threads behind
    slow memory.
    """
    path = MODELS / "digits_int8.onnx"
    small = HwParams(block_in=8, block_out=8, inp_depth=150, wgt_depth=77, acc_depth=66,
                     uop_depth=20, par_depth=31, tmp_depth=37, out_depth=65)  # fmt: skip
    for model, params, memory in (
        (path, HwParams(), MEMORY_PRESETS["vta"]),
        (path, small, SLOW),
        (conv_model(16, 8), small, SLOW),
    ):
        program = build_for("sim", model, params, memory, vthreads=2).program
        assert program is not None
        yield program


def _undetected(program: Program, step: int = 1) -> tuple[int, list[tuple[int, str]]]:
    """How many token bits were deleted, one at a time (every ``step``-th), and those whose deletion
    the checker did not find."""
    deletions = single_deletions(program)[::step]
    missed = [
        (index, side)
        for index, side, wrong in deletions
        if not {f.kind for f in check(wrong, limit=20)}
        & ({"deadlock"} if side == "push" else {"tokens"})
    ]
    return len(deletions), missed


@pytest.mark.fast(1)
@pytest.mark.parametrize("seed", range(5))
def test_every_token_of_a_random_program_is_missed(seed: int) -> None:
    count, missed = _undetected(random_program(CROWDED, seed, 30))
    assert count > 10 and not missed


@pytest.mark.slow
def test_tokens_of_compiled_programs_are_missed() -> None:
    for program in _compiled():
        count, missed = _undetected(program, step=37)
        assert count and not missed


@pytest.mark.sweep
def test_every_token_of_compiled_programs_is_missed() -> None:
    total = 0
    for program in _compiled():
        count, missed = _undetected(program)
        assert not missed
        total += count
    print(f"\ntokens deleted and found to be missing: {total}")
    assert total > 200


# ---- false alarms --------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda platform: platform.name)
def test_random_programs_raise_no_alarm(platform) -> None:
    for seed in range(100):
        program = random_program(platform.params, seed)
        assert _hazards(program) == [], seed
