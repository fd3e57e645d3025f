"""What is said to be proved of designs was run: in RTL, by random programs, through placement."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vdla.bench.sweep import Results
from vdla.cli import run_app
from vdla.explore import proof
from vdla.explore.exploration import Exploration
from vdla.explore.spec import Spec
from vdla.hw.boards import find_board
from vdla.hw.fpga import synthesis
from vdla.hw.fpga.synthesis import Result
from vdla.isa.errors import VdlaError
from vdla.isa.params import PRESETS, HwParams
from vdla.isa.program import Program

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits_int8.onnx"
SPEC = Spec(
    networks={str(DIGITS): 1.0}, objectives=("cycles", "bram"), limits={},
    knobs={"acc_depth": (256, 512)}, hw="4x4", search="random", trials=2,
)  # fmt: skip


class Placer:
    """In the place of ``synthesis.build``: reaches a clock, and misses any that is faster."""

    def __init__(self, routed_mhz: float | None, placed_mhz: float | None):
        self.routed_mhz, self.placed_mhz = routed_mhz, placed_mhz
        self.asked: list[float] = []

    def __call__(self, _board: Any, _params: Any, _folder: Path, freq_mhz: float, **_: Any):
        self.asked.append(freq_mhz)
        rates = {"fmax_mhz": self.routed_mhz, "placed_mhz": self.placed_mhz}
        body = {name: [] if rate is None else [rate] for name, rate in rates.items()}
        if self.routed_mhz is None and self.placed_mhz is not None:
            body["fmax_mhz"] = [None]
            if freq_mhz <= self.placed_mhz:
                body["fmax_mhz"] = [self.placed_mhz]
                return Result(body)
        met = self.routed_mhz is not None and self.routed_mhz >= freq_mhz
        return Result(body, [] if met else ["missed"])


@pytest.mark.parametrize(
    ("routed", "placed", "asked", "met"),
    [
        (61.0, 60.5, [60.0], True),
        (50.0, 49.0, [60.0, 47.0], True),  # 95 % of what was routed
        (None, 40.0, [60.0, 38.0], True),  # too slow to be routed at the board's clock
        (None, None, [60.0], False),  # does not fit
    ],
)
def test_a_slower_clock_is_tried(
    routed: float | None, placed: float | None, asked: list[float], met: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    placer = Placer(routed, placed)
    monkeypatch.setattr(synthesis, "build", placer)
    result = proof.place(find_board("ulx3s-85f"), PRESETS["4x4"], tmp_path, lambda _: None)
    assert placer.asked == asked and (not result.missed) == met


def test_the_clock_is_not_tried_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each placement is slower than what the one before has promised."""
    rates = iter([50.0, 40.0, 30.0])

    def build(_board: Any, _params: Any, _folder: Path, freq_mhz: float, **_: Any) -> Result:
        return Result({"fmax_mhz": [next(rates)], "placed_mhz": [60.0]}, [f"missed {freq_mhz:g}"])

    monkeypatch.setattr(synthesis, "build", build)
    result = proof.place(find_board("ulx3s-85f"), PRESETS["4x4"], tmp_path, lambda _: None)
    assert result.missed == ["missed 38"]


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Exploration:
    found = Exploration(SPEC, Results(tmp_path_factory.mktemp("e") / "r.jsonl"), 1)
    found.run()
    return found


@pytest.mark.more
@pytest.mark.slow
def test_a_design_is_built(
    explored: Exploration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthesis, "build", Placer(61.0, 60.0))
    best = explored.front[0]
    found = proof.build(explored, best, tmp_path, lambda _: None)
    assert found["rtl_cycles"] == {DIGITS.name: best.values["cycles"]}
    assert found["verify"]["programs"] == proof.PROGRAMS
    assert found["verify"]["byte_mismatches"] == found["verify"]["cycle_mismatches"] == 0
    assert "routed at 61.0 MHz" in found["text"]
    assert json.loads((tmp_path / "proof.json").read_text()) == found
    assert HwParams.load(tmp_path / "design.toml") == best.design.params
    programs = [Program.load(path) for path in sorted(tmp_path.glob("digits_int8_*.vdla"))]
    assert programs
    for program in programs:
        program.check_params(HwParams.load(tmp_path / "design.toml"))


@pytest.mark.more
@pytest.mark.slow
def test_other_cycles_in_rtl_are_refused(explored: Exploration) -> None:
    """Records of another simulator, say."""
    best = explored.front[0]
    wrong = [row | {"cycles": row["cycles"] + 1} for row in best.rows]
    cycles = f"{best.rows[0]['cycles']:,}"
    with pytest.raises(VdlaError, match=rf"digits_int8.*cycles in RTL, as explored, got {cycles};"):
        proof.prove(explored, replace(best, rows=wrong), lambda _: None)


@pytest.mark.more
def test_the_command_builds_the_best_and_proves_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = []

    def prove(_exploration: Any, outcome: Any, _progress: Any) -> dict[str, Any]:
        done.append((outcome.design.params.block, None))
        return {"rtl_cycles": {}, "text": "run"}

    def build(_exploration: Any, outcome: Any, folder: Path, _progress: Any) -> dict[str, Any]:
        done.append((outcome.design.params.block, folder.name))
        return {"rtl_cycles": {}, "text": "built", "fpga": {}, "missed": ["timing is missed"]}

    monkeypatch.setattr(proof, "prove", prove)
    monkeypatch.setattr(proof, "build", build)
    (tmp_path / "spec.toml").write_text(
        f'objectives = ["cycles", "bram"]\nsearch = "random"\n[networks]\n"{DIGITS}" = 1\n'
        "[knobs]\nblock = [4, 8]\n"
    )
    command = [
        "explore", str(tmp_path / "spec.toml"), "--trials", "3", "--workers", "1", "--build", "1",
        "--prove", "9", "-o", str(tmp_path / "built"), "--results", str(tmp_path / "r.jsonl"),
        "--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html"),
    ]  # fmt: skip
    assert run_app(command) == 1  # no bitstream
    assert "vdla: timing is missed" in capsys.readouterr().err.splitlines()
    report = json.loads((tmp_path / "r.json").read_text())
    front = report["front"]
    assert len(front) == len(done) > 1
    assert done == [
        (d["knobs"]["block"], None if n else d["config_hash"]) for n, d in enumerate(front)
    ]
    assert [d["proof"]["text"] for d in front] == ["built"] + ["run"] * (len(front) - 1)
    page = (tmp_path / "r.html").read_text()
    assert f"{len(front)} ran in RTL" in page and "1 went through placement" in page
