"""What designs take without synthesis, against what yosys made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from vdla.hw.fpga import sample
from vdla.hw.fpga.devices import ECP5_85F
from vdla.hw.fpga.resources import (
    SAMPLES,
    ResourceModel,
    Sample,
    block_rams,
    core_rams,
    features,
    load_samples,
    multipliers,
)
from vdla.hw.fpga.sample import add_samples, design
from vdla.isa.errors import VdlaError
from vdla.isa.params import PRESETS, HwParams

#: Rows, bits, read ports, parts with an enable, and the block RAMs that yosys 0.70 made of it.
MADE = (
    (8, 128, 1, 1, 0), (32, 256, 2, 1, 0), (17, 32, 2, 1, 0), (33, 64, 2, 1, 4), (48, 64, 2, 1, 4),
    (48, 512, 1, 8, 16), (16, 512, 1, 4, 0), (256, 128, 1, 1, 4), (64, 256, 1, 2, 8),
    (128, 34, 1, 1, 1), (1024, 64, 1, 1, 4), (2048, 128, 2, 1, 30), (192, 64, 2, 1, 4),
    (512, 23, 1, 1, 1), (700, 128, 1, 2, 8), (2048, 32, 2, 1, 8), (192, 512, 2, 1, 30),
    (4096, 64, 2, 1, 32), (768, 31, 1, 1, 2), (300, 128, 1, 2, 4), (768, 256, 2, 1, 30),
    (1024, 128, 1, 2, 8), (512, 256, 1, 2, 8), (600, 256, 1, 4, 16), (700, 512, 1, 4, 30),
    (50, 128, 1, 2, 4), (34, 512, 2, 1, 30), (1024, 128, 2, 1, 16), (40, 36, 1, 1, 1),
    # Other depths, whose last rows share blocks; and a short memory that is cheaper as tables.
    (1100, 37, 1, 1, 4), (2500, 128, 1, 1, 19), (3500, 128, 2, 1, 54), (9000, 40, 1, 1, 23),
    (1311, 128, 2, 2, 24), (48, 28, 1, 1, 0),
    (64, 32, 1, 1, 1), (128, 32, 1, 1, 1),  # the table of a lane, of int8 and of int16
)  # fmt: skip
#: Block RAMs of a board beside the scratchpads: the host link's and the SDRAM's buffers.
AROUND = 6


@pytest.mark.parametrize(("depth", "width", "reads", "parts", "made"), MADE)
def test_block_rams_are_those_of_yosys(
    depth: int, width: int, reads: int, parts: int, made: int
) -> None:
    assert block_rams(depth, width, reads, parts) == made


def test_whole_designs() -> None:
    """The samples of the package, among which are the designs that were built (docs/fpga.md)."""
    samples = load_samples(SAMPLES / "ulx3s-85f.jsonl")
    assert {PRESETS["8x8"], PRESETS["ecp5-85f"]} <= {s.params for s in samples}
    for s in samples:
        assert multipliers(s.params, ECP5_85F) == s.used["dsp"]
        assert core_rams(s.params) + AROUND == s.used["bram"]


def made_up(params: HwParams) -> Sample:
    """A sample that obeys a formula of the features."""
    known = features(params, ECP5_85F)
    lut = 5000 + 300 * known["lanes of the vector unit"] + 0.5 * known["bits of queues"]
    used = {"lut": round(lut), "ff": round(lut / 2), "dsp": multipliers(params, ECP5_85F)}
    return Sample(params, used | {"bram": core_rams(params) + AROUND}, {})


@pytest.mark.slow
def test_a_fit_finds_what_samples_obey() -> None:
    chosen = design(40, ECP5_85F, 16)
    model = ResourceModel.fit([made_up(params) for params in chosen[:30]], ECP5_85F)
    assert model.count == 30 and model.around_rams == AROUND
    assert max(most for _, most in model.error.values()) < 0.01
    for params in chosen[30:]:
        found, true = model.predict(params), made_up(params).used
        assert found["bram"] == true["bram"] and found["dsp"] == true["dsp"]
        assert found["lut"] == pytest.approx(true["lut"], rel=0.01)
    found = model.named_coefficients()["lut"]
    assert found["core"] == pytest.approx(5000, rel=0.05)
    assert found["lanes of the vector unit"] == pytest.approx(300, rel=0.05)


def clocked(params: HwParams) -> Sample:
    """A sample whose period grows with its lookup tables, and by sharing multipliers."""
    sample, shares = made_up(params), features(params, ECP5_85F)["pairs that share a multiplier"]
    period_ns = 12 + 3 * (shares > 0) + 0.0002 * sample.used["lut"]
    return replace(sample, placed_mhz=1000 / period_ns)


@pytest.mark.slow
def test_a_clock_is_that_of_placed_samples() -> None:
    chosen = design(40, ECP5_85F, 16)
    samples = [clocked(p) for p in chosen[:8]] + [made_up(p) for p in chosen[8:30]]
    model = ResourceModel.fit(samples, ECP5_85F)
    assert model.clock is not None and model.clock.count == 8
    assert model.clock.coefficients == pytest.approx([12, 3, 0.0002], rel=0.02)
    assert model.clock.error[1] < 0.01
    for params in chosen[30:]:
        true = clocked(params).placed_mhz
        assert true is not None and model.mhz(params) == pytest.approx(true, rel=0.01)


@pytest.mark.slow
def test_the_error_of_a_clock_is_of_placements_that_were_not_seen() -> None:
    chosen = design(20, ECP5_85F, 16)
    samples = [clocked(p) for p in chosen[:8]] + [made_up(p) for p in chosen[8:]]
    rate = samples[3].placed_mhz
    assert rate is not None
    samples[3] = replace(samples[3], placed_mhz=rate / 2)
    model = ResourceModel.fit(samples, ECP5_85F)
    assert model.clock is not None and model.clock.error[1] == pytest.approx(1, rel=0.01)


@pytest.mark.slow
def test_too_few_placements_are_refused() -> None:
    chosen = design(14, ECP5_85F, 8)
    samples = [clocked(p) for p in chosen[:3]] + [made_up(p) for p in chosen[3:]]
    model = ResourceModel.fit(samples, ECP5_85F)
    assert model.clock is None
    with pytest.raises(VdlaError, match=r"clock: expected at least 5 placed samples; make more"):
        model.mhz(chosen[0])


@pytest.mark.slow
def test_the_error_is_of_samples_that_were_not_seen() -> None:
    """One sample that differs from the formula is not explained by itself."""
    samples = [made_up(params) for params in design(30, ECP5_85F, 16)]
    odd = replace(samples[7], used=samples[7].used | {"lut": 2 * samples[7].used["lut"]})
    model = ResourceModel.fit([*samples[:7], odd, *samples[8:]], ECP5_85F)
    assert model.error["lut"][1] > 0.35
    assert model.error["ff"][1] < 0.01


@pytest.mark.slow
def test_coefficients_are_not_negative() -> None:
    samples = []
    for params in design(30, ECP5_85F, 16):
        one = made_up(params)
        less = 9000 - 20 * features(params, ECP5_85F)["accumulators"]
        samples.append(replace(one, used=one.used | {"lut": round(less)}))
    model = ResourceModel.fit(samples, ECP5_85F)
    assert (model.coefficients["lut"] >= 0).all() and np.any(model.coefficients["lut"] > 0)


def test_values_beyond_the_samples_are_named() -> None:
    samples = [made_up(params) for params in design(20, ECP5_85F, 8)]
    model = ResourceModel.fit(samples, ECP5_85F)
    assert model.beyond(samples[0].params) == []
    assert model.beyond(replace(samples[0].params, block_in=16, block_out=16)) == [
        "block_in", "block_out",
    ]  # fmt: skip


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(VdlaError, match="expected at least 13 samples, got 3; make more with vdla"):
        ResourceModel.fit([made_up(params) for params in design(3, ECP5_85F, 8)], ECP5_85F)


@pytest.mark.slow
def test_a_design_is_the_same_whenever_it_is_asked_for() -> None:
    assert design(12, ECP5_85F, 8)[:5] == design(5, ECP5_85F, 8)
    chosen = design(12, ECP5_85F, 8)
    assert len(set(chosen)) == 12 and {p.block for p in chosen} == {4, 8}
    for params in chosen:
        assert core_rams(params) < ECP5_85F.capacity["bram"]


def test_a_sample_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("amaranth_boards")
    from vdla.hw.boards import find_board

    board, asked = find_board("ulx3s-85f"), []

    def synthesise(_board, params, *_):
        asked.append(params)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return made_up(params).used

    monkeypatch.setattr(sample, "synthesise", synthesise)
    wanted, path = design(4, ECP5_85F, 8), tmp_path / "samples" / "s.jsonl"
    with pytest.raises(KeyboardInterrupt):
        add_samples(board, wanted, 0, path, lambda *_: None)
    assert [s.params for s in load_samples(path)] == wanted[:2]
    add_samples(board, wanted, 0, path, lambda *_: None)
    assert [s.params for s in load_samples(path)] == wanted
    assert asked == [*wanted[:3], *wanted[2:]]


def test_samples_are_placed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("amaranth_boards")
    from vdla.hw.boards import find_board

    board, asked = find_board("ulx3s-85f"), []

    def synthesise(_board, params, *_):
        asked.append(params)
        return made_up(params).used

    monkeypatch.setattr(sample, "synthesise", synthesise)
    monkeypatch.setattr(sample, "place_and_route", lambda *_, **__: {"placed_mhz": 61.5})
    wanted, path = design(3, ECP5_85F, 8), tmp_path / "s.jsonl"
    for placed in (0, 2, 2):
        add_samples(board, wanted, placed, path, lambda *_: None)
    # Those that were not placed are made again, with their placement, and count once.
    assert asked == [*wanted, *wanted[:2]]
    found = {s.params: s.placed_mhz for s in load_samples(path)}
    assert found == dict(zip(wanted, (61.5, 61.5, None), strict=True))
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize("text", ["text", "[1]\n", '{"params": {"wings": 1}}\n'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(text)
    with pytest.raises(VdlaError, match=r"s.jsonl: expected samples of vdla fpga sample, got"):
        load_samples(path)
