"""``vdla asic estimate`` from its options to its table, with a small design in the core's place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vdla.bench import toggles
from vdla.cli import run_app
from vdla.hw.asic import estimate

from .circuits import SMALL, small_text


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "core_text", lambda _: small_text())


@pytest.mark.slow
def test_area_and_path(small: None, tmp_path: Path, capsys) -> None:
    path = tmp_path / "report.json"
    command = ["asic", "estimate", "--liberty", str(SMALL), "--hw", "4x4", "--json", str(path)]
    assert run_app(command) == 0
    shown, report = capsys.readouterr().out, json.loads(path.read_text())
    assert report["command"] == "asic estimate" and report["library"] == "small"
    total = report["total"]
    assert total["area_um2"] == pytest.approx(sum(row["area_um2"] for row in report["blocks"]))
    assert report["path"]["mhz"] == pytest.approx(1000 / report["path"]["ns"])
    assert report["energy"] is None
    for text in ("left", "right", "words.storage", "1 of 16 x 8", f"{total['area_um2']:,.0f}",
                 f"longest path: {report['path']['ns']:.2f} ns", "words.read",
                 "the macros are for 1.8 V, the cells for another voltage"):  # fmt: skip
        assert text in shown, text


@pytest.mark.slow
def test_energy_of_a_layer(small: None, monkeypatch, tmp_path: Path, capsys) -> None:
    """What the sampling finds is multiplied by the layer's cycles and the clock."""
    energy = toggles.Energy(2048, 5.0)
    energy.blocks["gemm"].clock_pj, energy.blocks["gemm"].leakage_nw = 30.0, 2e6
    energy.blocks["acc"].macros_pj = 10.0
    monkeypatch.setattr(toggles, "layer_energy", lambda *_: (1_000_000, energy))
    path = tmp_path / "report.json"
    command = ["asic", "estimate", "--liberty", str(SMALL), "--layer", "C8", "--clock", "50"]
    assert run_app([*command, "--json", str(path)]) == 0
    found = json.loads(path.read_text())["energy"]
    assert (found["layer"], found["cycles"], found["pj_per_cycle"]) == ("C8", 1_000_000, 40.0)
    assert found["power_mw"] == pytest.approx(40 * 50 * 1e-3 + 2)
    # A million cycles of 40 pJ, and 2 mW for 20 ms.
    assert found["layer_uj"] == pytest.approx(40 + 40)
    assert [row["block"] for row in found["blocks"]] == ["gemm", "acc"]
    assert "C8: 80.0 uJ in 1,000,000 cycles, 4.0 mW at 50.0 MHz" in capsys.readouterr().out


def test_a_clock_needs_a_layer(capsys) -> None:
    assert run_app(["asic", "estimate", "--liberty", str(SMALL), "--clock", "50"]) == 2
    assert "clock: expected --layer with it" in capsys.readouterr().err
