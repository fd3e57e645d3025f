"""The bench that ``vdla fpga export --bench`` writes, outside of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from vdla.cli import run_app
from vdla.isa.params import HwParams
from vdla.sim.verify.random_programs import random_program

from .configs import NARROW


def export(folder: Path, *options: str) -> int:
    """Run the command with a small configuration."""
    knobs = folder / "hw.toml"
    knobs.write_text("".join(f"{k} = {v}\n" for k, v in asdict(NARROW).items()))
    return run_app(["fpga", "export", "--hw", str(knobs), "-o", str(folder / "ip"), *options])


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    """What a user types, in a process that knows nothing of the repository's tests."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHONPATH"))
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "bench"]
    return subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True)


@pytest.mark.sweep
@pytest.mark.slow
def test_the_bench_passes(tmp_path: Path) -> None:
    assert export(tmp_path, "--bench") == 0
    folder = tmp_path / "ip"
    assert {path.name for path in (folder / "bench").iterdir()} == {
        "bench_vdla_axi.py", "test_vdla_axi.py", "Makefile",
        "program.vdla", "dram.npy", "expected.npy",
    }  # fmt: skip
    done = run_pytest(folder)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.sweep
def test_the_bench_finds_damage(tmp_path: Path) -> None:
    assert export(tmp_path, "--bench") == 0
    folder = tmp_path / "ip"
    verilog = folder / "vdla_axi.v"
    text = verilog.read_text()
    begin = text.index("module \\vdla_axi.core.out (")
    assert "<= write__data;" in text[begin:]
    verilog.write_text(
        text[:begin] + text[begin:].replace("<= write__data;", "<= write__data | 1'h1;", 1)
    )
    done = run_pytest(folder)
    assert done.returncode == 1 and "2 failed" in done.stdout
    # Both cocotb tests: of memory, and of the instruction that is the first to go wrong.
    assert "bytes of DRAM differ" in done.stdout
    assert "of vector: out[" in done.stdout


@pytest.mark.sweep
def test_the_flow_of_cocotb(tmp_path: Path) -> None:
    """make runs both tests, each in a simulation of its own."""
    assert export(tmp_path, "--bench") == 0
    scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    done = subprocess.run(
        ["make"], cwd=tmp_path / "ip" / "bench", text=True,
        env=environment | {"PATH": scripts}, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert done.stdout.count("TESTS=1 PASS=1 FAIL=0 SKIP=0") == 2


def test_a_program_without_a_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.vdla").touch()
    assert export(tmp_path, "--program", str(tmp_path / "p.vdla")) == 2
    said = capsys.readouterr().err
    assert "program: expected --bench with it" in said and said.count("\n") == 1


def test_a_program_of_another_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random_program(HwParams.load("4x4"), 1).save(tmp_path / "p.vdla")
    assert export(tmp_path, "--bench", "--program", str(tmp_path / "p.vdla")) == 2
    said = capsys.readouterr().err
    assert "program: built for configuration" in said and said.count("\n") == 1
    assert not (tmp_path / "ip").exists()
