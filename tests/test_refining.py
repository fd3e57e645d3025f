"""``vdla.refine`` and ``vdla refine``: all choices together, by the cycles of the whole program."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import vdla
from vdla.api import refining
from vdla.bench.measure import random_inputs
from vdla.bench.net import Net
from vdla.cli.app import run_app
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.tune import together
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams
from vdla.sim.model.core import count_cycles

VTA = MEMORY_PRESETS["vta"]
WINDOWS = HwParams(vector_window=3)


def model(programs: int = 1) -> onnx.ModelProto:
    """A block with a depthwise convolution and a residual addition, and a convolution; as one
    program or two."""
    net = Net("block")
    image = net.input(1, 32, 14, 14)
    image = net.conv(image, 32, 1) if programs == 1 else image  # else the host adds it
    inner = net.conv(net.conv(image, 96, 1), 96, 3, groups=96)
    image = net.add(image, net.conv(inner, 32, 1))
    net.output(net.conv(image, 64, 1))
    return net.model()


def cycles_of(file: Path | None, hw: HwParams, programs: int = 1, vthreads: int = 2) -> int:
    module = vdla.compile(model(programs), hw=hw, knobs=file, vthreads=vthreads)
    assert len(module.compiled.programs) == programs
    return sum(count_cycles(program.table, VTA) for program in module.compiled.programs)


@pytest.mark.more
@pytest.mark.parametrize("hw", [HwParams(), WINDOWS], ids=["plain", "windows"])
def test_programs_become_faster_and_compile_makes_them_again(tmp_path: Path, hw: HwParams) -> None:
    file = tmp_path / "knobs.json"
    report = vdla.refine(model(), file, hw, trials=40, vthreads=1)
    curve = report["curve"]
    assert report["trials"] == len(curve) - 1 == 40 and report["before"] == curve[0]
    assert curve == sorted(curve, reverse=True) and report["best"] == curve[-1] < curve[0]
    assert report["before"] == cycles_of(None, hw, vthreads=1)
    assert cycles_of(file, hw) == report["best"]
    assert json.loads(file.read_text()) == {row["name"]: row["knobs"] for row in report["layers"]}
    changed = [row for row in report["layers"] if "before" in row]
    assert len({json.dumps(row["knobs"]) for row in changed}) > 2, "changes add up"
    module = vdla.compile(model(), hw=hw, knobs=file)
    inputs = random_inputs(module.compiled.inputs, 0)
    expected = interpret(module.compiled.graph, *inputs)
    for got, wanted in zip(module.run(*inputs), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.more
def test_it_goes_on_from_the_file_and_is_the_same_again(tmp_path: Path) -> None:
    first, again, other = (tmp_path / name for name in ("a.json", "b.json", "c.json"))
    report = vdla.refine(model(), first, WINDOWS, trials=12, vthreads=1)
    assert vdla.refine(model(), again, WINDOWS, trials=12, vthreads=1)["curve"] == report["curve"]
    assert again.read_text() == first.read_text()
    assert (
        vdla.refine(model(), other, WINDOWS, trials=12, seed=1, vthreads=1)["curve"]
        != report["curve"]
    )
    later = vdla.refine(model(), first, WINDOWS, trials=12, seed=2, vthreads=1)
    assert later["before"] == report["best"] >= later["best"] == cycles_of(first, WINDOWS)


@pytest.mark.more
def test_all_programs_of_a_model_count(tmp_path: Path) -> None:
    file = tmp_path / "knobs.json"
    report = vdla.refine(model(programs=2), file, WINDOWS, trials=30, vthreads=1)
    assert report["before"] == cycles_of(None, WINDOWS, programs=2, vthreads=1)
    assert report["before"] > report["best"] == cycles_of(file, WINDOWS, programs=2)


@pytest.mark.slow
def test_no_trial_is_made_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    attempt = together.Together._attempt

    def watched(self: Any, part: Any, changed: Any) -> Any:
        seen.append(json.dumps(changed, sort_keys=True))
        return attempt(self, part, changed)

    monkeypatch.setattr(together.Together, "_attempt", watched)
    vdla.refine(model(), tmp_path / "k.json", WINDOWS, trials=30)
    assert len(seen) == len(set(seen)) == 31


def test_it_ends_where_nothing_is_left(tmp_path: Path) -> None:
    """A layer of one block and one place has virtual threads only."""
    net = Net("tiny")
    net.output(net.dense(net.input(1, 16), 16))
    report = vdla.refine(net.model(), tmp_path / "k.json", trials=500)
    assert report["exhausted"] and report["trials"] < 500 and not report["time_ended"]


@pytest.mark.more
def test_time_and_interrupts_keep_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(model().SerializeToString())
    Path("hw.toml").write_text("vector_window = 3\nvector_table = 0\ntmp_depth = 128\n")
    later = itertools.count(0, 100)  # seconds that pass between two looks at the clock
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + next(later))
    monkeypatch.setattr(refining, "time", clock)
    command = ["refine", "m.onnx", "--hw", "hw.toml", "--knobs", "k.json", "--json", "r.json"]
    assert run_app([*command, "--time", "950"]) == 0
    report = json.loads(Path("r.json").read_text())
    assert report["time_ended"] and 0 < report["trials"] < 200
    assert capsys.readouterr().err == "vdla: the time ended; k.json has the best choices\n"
    assert cycles_of(Path("k.json"), WINDOWS) == report["best"]
    attempts = iter([True] * 3)

    def interrupted(*_: Any) -> Any:
        if next(attempts, False):
            raise VdlaError("no program")
        raise KeyboardInterrupt

    search = together.Together(model(), *_target_and_knobs(Path("k.json")), 1)
    search._attempt = interrupted  # type: ignore[method-assign]
    monkeypatch.setattr(refining, "Together", lambda *_: search)
    assert run_app(command) == 2
    report = json.loads(Path("r.json").read_text())
    assert report["interrupted"] and report["trials"] == report["failed"] == 3
    assert "vdla: interrupted; k.json has the best choices" in capsys.readouterr().err
    assert cycles_of(Path("k.json"), WINDOWS) == report["best"]


def _target_and_knobs(file: Path) -> tuple[Any, Any]:
    from vdla.compiler.choose.files import load_knobs
    from vdla.compiler.targets.base import Options
    from vdla.compiler.targets.registry import find_target

    return find_target("sim", Options(WINDOWS, VTA, 2)), load_knobs(file)


def test_a_file_of_another_model_is_refused_and_stays(tmp_path: Path) -> None:
    file, text = tmp_path / "k.json", '{"other": {"rows": 1}}'
    file.write_text(text)
    with pytest.raises(VdlaError, match="knobs: expected layers with choices"):
        vdla.refine(model(), file, trials=1)
    assert file.read_text() == text


def test_a_model_without_a_layer_there_is_refused(tmp_path: Path) -> None:
    net = Net("host", quantized=False)
    net.output(net.dense(net.input(1, 16), 16))
    with pytest.raises(VdlaError, match="refine: expected a layer for the accelerator, got none"):
        vdla.refine(net.model(), tmp_path / "k.json")


@pytest.mark.slow
def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hw.toml").write_text("vector_window = 3\nvector_table = 0\ntmp_depth = 128\n")
    (tmp_path / "m.onnx").write_bytes(model().SerializeToString())
    words = ["refine", str(tmp_path / "m.onnx"), "--hw", str(tmp_path / "hw.toml"), "--trials"]
    assert run_app([*words, "12", "--vthreads", "1", "--knobs", str(tmp_path / "k.json")]) == 0
    shown = capsys.readouterr().out
    assert "% saved), 12 trials" in shown and "layers with other choices" in shown
