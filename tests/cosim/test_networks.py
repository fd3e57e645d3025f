"""Whole networks of others on the core, where their files are beside the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vdla.cli import run_app
from vdla.cosim.job import CHECKS

SHARED = Path(__file__).parents[3] / "shared" / "models"


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["mlperf_kws_int8", "mlperf_resnet8_int8"])
@pytest.mark.parametrize("options", [[], ["--axi-ram", "--pauses", "heavy"]], ids=["model", "ram"])
def test_a_network(name: str, options: list[str], tmp_path: Path) -> None:
    """All that is compared is equal: with our memory every cycle, too."""
    model, report = SHARED / name / "model.tflite", tmp_path / "report.json"
    if not model.exists():
        pytest.skip(f"{model} is not there")
    assert run_app(["cosim", str(model), *options, "--json", str(report)]) == 0
    told = json.loads(report.read_text())
    assert told["first_divergence"] is None and told["cycles"] > 15_000
    assert set(CHECKS) - set(told["checks"]) == ({"cycles"} if options else set())
