"""The times of loop programs: ``vdla run --target cpu --profile``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.bench.net import Net
from vdla.bench.profile import profile
from vdla.cli.app import run_app
from vdla.isa.errors import VdlaError

DIGITS = Path(__file__).parents[2] / "examples" / "models" / "digits_int8.onnx"


def test_times_are_of_the_calls_that_take_them() -> None:
    """A product of many operations takes most of the time, and all times sum to less than a run."""
    net = Net("wide", quantized=False)
    x = net.conv(net.input(1, 16, 32, 32), 128, 3)
    net.output(net.dense(net.global_average(x), 10))
    module = vdla.compile(net.model(), "cpu", profile=True)
    image = np.random.default_rng(0).normal(0, 1, (1, 16, 32, 32)).astype(np.float32)
    told = profile(module, [image], rounds=5)
    rows = {row["op"]: row for row in told["rows"]}
    assert max(rows.values(), key=lambda row: row["ms"])["op"] in (
        "BlockedConv2d", "BlockedWinograd"
    )  # fmt: skip
    assert sum(row["ms"] for row in told["rows"]) < told["run_ms"]
    assert told["rest_ms"] >= 0 and set(told["peaks"]) == {"FMA"}
    [same] = module.run(image)
    np.testing.assert_array_equal(same, vdla.compile(net.model(), "cpu").run(image)[0])


def test_a_run_tells_and_draws_them(tmp_path: Path) -> None:
    report, page = tmp_path / "report.json", tmp_path / "page.html"
    options = ["--target", "cpu", "--profile", "--json", str(report), "--html", str(page)]
    assert run_app(["run", str(DIGITS), *options]) == 0
    rows = json.loads(report.read_text())["profile"]["rows"]
    assert {"left", "right"} <= {row["name"] for row in rows}
    assert all(row["ms"] > 0 and 0 < row["share"] < 1 for row in rows)
    assert "Milliseconds by loop program" in page.read_text()


def test_only_the_cpu_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["run", str(DIGITS), "--profile"]) == 2
    assert "profile: expected target 'cpu' with it, got 'sim'" in capsys.readouterr().err
    with pytest.raises(VdlaError, match="profile=True"):
        profile(vdla.compile(DIGITS, "cpu"), [])
