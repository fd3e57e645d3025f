"""An architect asks what another machine would do: two configurations, compared, swept, drawn, and
their area."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vdla.cli import run_app

from ..pages.reading import read

MODEL = Path(__file__).parents[2] / "examples" / "models" / "digits_int8.onnx"
#: Two machines that an ECP5 has room for.
WIDE = "block_in = 8\nblock_out = 8\nbus_bits = 128\n"
SMALL = "block_in = 4\nblock_out = 4\nwgt_depth = 2048\n"
MEMORY = "bus_bits = 128\nread_latency_cycles = 40\n"


@pytest.fixture
def vdla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Runs commands in an empty folder, each with exit code 0, and returns what they print."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object, code: int = 0) -> str:
        capsys.readouterr()
        assert run_app([*map(str, words)]) == code, capsys.readouterr().err
        return capsys.readouterr().out

    return run


@pytest.mark.slow
def test_an_architect_compares_two_machines(vdla) -> None:
    for name, text in (("wide", WIDE), ("small", SMALL), ("memory", MEMORY)):
        Path(f"{name}.toml").write_text(text)
    # What follows from the knobs, before anything is run.
    vdla("config", "wide.toml", "--memory", "memory.toml", "--json", "wide.config.json")
    assert json.loads(Path("wide.config.json").read_text())["derived"]["peak_macs_per_cycle"] == 64
    # A bus that does not fit the memory is refused with what to do.
    vdla("config", "small.toml", "--memory", "memory.toml", code=2)
    Path("small.toml").write_text(SMALL + "bus_bits = 128\n")
    for name in ("wide", "small"):
        machine = ["--hw", f"{name}.toml", "--memory", "memory.toml"]
        made = ["--json", f"{name}.json", "--html", f"{name}.html"]
        text = vdla("run", MODEL, *machine, "--clock", 60, *made)
        assert "at 60 MHz" in text and "main stall" in text
    wide, small = (json.loads(Path(f"{n}.json").read_text()) for n in ("wide", "small"))
    assert wide["cycles"] < small["cycles"] and wide["outputs"] == small["outputs"]
    assert sum(row["cycles"] or 0 for row in wide["layers"]) == wide["cycles"]
    # What changed, and which layers it moved.
    pages = ["--json", "compared.json", "--html", "compared.html"]
    text = vdla("compare", "wide.json", "small.json", *pages)
    assert "knobs that changed" in text and "layers that moved most" in text
    compared = json.loads(Path("compared.json").read_text())
    changed = {row["knob"]: (row["a"], row["b"]) for row in compared["knobs_changed"]
               if row["where"] == "hw"}  # fmt: skip
    assert changed == {"block_in": (8, 4), "block_out": (8, 4), "wgt_depth": (1024, 2048)}
    (cycles,) = (row for row in compared["rows"] if row["metric"] == "cycles")
    assert cycles["ratio"] == small["cycles"] / wide["cycles"]

    for name in ("wide", "small", "compared"):
        page = read(Path(f"{name}.html").read_text())
        assert page.loads == [] and page.data


@pytest.mark.more
@pytest.mark.slow
def test_an_architect_sweeps_two_machines(vdla) -> None:
    """Does doubling a scratchpad help, and if not, why?"""
    for name, text in (("wide", WIDE), ("small", SMALL + "bus_bits = 128\n")):
        Path(f"{name}.toml").write_text(text)
    Path("memory.toml").write_text(MEMORY)
    machines = ["--hw", "wide.toml", "--hw", "small.toml", "--memory", "memory.toml"]
    made = ["--json", "swept.json", "--csv", "swept.csv", "--html", "swept.html"]
    vdla("sweep", MODEL, *machines, "--set", "acc_depth=1024,2048", *made)
    rows = json.loads(Path("swept.json").read_text())["rows"]
    assert [(row["hw"], row["knobs"]["acc_depth"]) for row in rows] == [
        ("wide", 1024), ("wide", 2048), ("small", 1024), ("small", 2048),
    ]  # fmt: skip
    assert rows[0]["cycles"] < rows[2]["cycles"] and 0.99 < rows[1]["changed"]["ratio"] <= 1
    assert "acc entries at most" in rows[1]["changed"]["why"]
    page = read(Path("swept.html").read_text())
    assert [row["cycles"] for row in page.rows("Results")] == [row["cycles"] for row in rows]
    assert len(Path("swept.csv").read_text().splitlines()) == 1 + len(rows)


@pytest.mark.slow
def test_an_architect_asks_for_the_area(vdla) -> None:
    """What cannot fit a device is said at once, with its memory bits, without invented zeros."""
    Path("large.toml").write_text(
        "block_in = 32\nblock_out = 32\ninp_depth = 8192\nwgt_depth = 512\n"
    )
    words = ["fpga", "estimate", "--board", "ulx3s-85f", "--hw", "large.toml"]
    text = vdla(*words, "--json", "area.json", code=1)
    area = json.loads(Path("area.json").read_text())
    assert not area["synthesised"] and "not synthesised" in text
    # One copy of inp for each of its two read ports.
    assert area["memory_bits"]["inp"] == 2 * 8192 * 32 * 8 and area["device_fraction"]["bram"] > 1
    assert area["lut"] is None and area["ff"] is None
