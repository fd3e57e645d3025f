"""More of anything never costs: more entries of a scratchpad, a wider bus, a shorter latency.

These are steps at which more did cost, while programs were not compared with those for less; by how
much stands beside each. ``make lattice`` walks from presets by chance, with whole networks.
"""

from __future__ import annotations

import random

import pytest

from .__main__ import main
from .designs import KNOBS, TOLERANCE, Design, Result, Step, walk


@pytest.mark.slow
@pytest.mark.short(4)
@pytest.mark.parametrize(
    ("network", "preset", "knobs"),
    [
        ("D9", "16x16", "par par"),  # 21.9 %
        ("C11", "16x16", "wgt wgt"),  # 3.0 %
        ("C11", "8x8", "inp acc bus"),  # 0.2 %
        ("dqn", "16x16", "latency latency"),  # 0.3 %
        ("D7", "16x16", "par"),  # 7.1 %
        ("C8", "16x16", "wgt wgt"),  # 0.8 %
        ("C6", "16x16", "inp"),  # 0.3 %
        ("C9", "16x16", "out"),  # 0.1 %
        ("dcgan", "16x16", "inp"),  # 0.3 %
        ("mobilenet_v3", "16x16", "out"),  # 1.3 %
        ("mobilenet_v3", "16x16", "par par"),  # 0.9 %
    ],
)
def test_more_never_costs(network: str, preset: str, knobs: str) -> None:
    less = Design.of_preset(preset)
    step = Step(network, less, less.more(knobs), knobs)
    assert not step.exception
    assert step.growth <= TOLERANCE and not step.is_finding


@pytest.mark.slow
def test_longer_instructions_are_an_exception() -> None:
    """2,048 entries of tmp need another bit in each address, and instructions 64 bytes."""
    less = Design.of_preset("16x16")
    step = Step("C8", less, less.more("tmp tmp"), "tmp tmp")
    assert step.exception == "instructions of 64 bytes, not 32: addresses are longer"
    assert step.growth > TOLERANCE and not step.is_finding
    half = Step("C8", less, less.more("tmp"), "tmp")
    assert not half.exception and half.growth <= 0


def test_walks() -> None:
    steps = list(walk("C8", "8x8", 12, random.Random(0)))
    assert len(steps) == 13 and {step.knobs.split()[-1] for step in steps} <= set(KNOBS)
    design = Design.of_preset("8x8")
    for step in steps[:-1]:
        assert step.less == design
        design = step.more
        assert design == step.less.doubled(step.knobs.split()[-1])
    assert (steps[-1].less, steps[-1].more) == (Design.of_preset("8x8"), design)
    assert steps == list(walk("C8", "8x8", 12, random.Random(0)))
    assert steps != list(walk("C8", "8x8", 12, random.Random(1)))


def test_a_finding_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where more entries take more cycles, the command says so and fails."""

    def more_costs(network: str, design: Design) -> Result:
        return Result(design.hw.inp_depth + design.hw.wgt_depth + design.hw.par_depth, 0)

    for module in ("designs", "__main__"):
        monkeypatch.setattr(f"{__package__}.{module}.result_of", more_costs)
    assert main(["D9", "--machines", "16x16", "--steps", "8"]) == 1
    assert "MORE COSTS" in capsys.readouterr().out


def test_unknown_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["C99"]) == 2 and main(["--machines", "17x17"]) == 2
    assert "'C99'" in (said := capsys.readouterr().err) and "'17x17'" in said
