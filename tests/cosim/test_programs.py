"""Programs co-simulated on a small core: nothing is found in a right one, and bugs are, where they
are.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from vdla.cli import run_app
from vdla.cosim import BenchFailure, Coverage, Design, Session, Settings
from vdla.cosim.check import ProgramCheck
from vdla.cosim.signal_list import write_signal_list
from vdla.hw.core.layouts import queued_insn
from vdla.isa.insn import Vector
from vdla.isa.memory import MEMORY_PRESETS, MemoryParams
from vdla.isa.opcodes import Unit, Units
from vdla.isa.program import Program
from vdla.isa.reference import run as run_reference
from vdla.sim.model.core import simulate
from vdla.sim.verify.random_programs import random_program

from .configs import NARROW

MODEL = Settings(MemoryParams())
RAM = Settings(None, "heavy", seed=3)


@pytest.fixture(scope="module")
def core() -> Design:
    return Design.core(NARROW)


@pytest.fixture(scope="module")
def program() -> Program:
    return random_program(NARROW, 1, 60)


def found(session: Session, program: Program) -> dict:
    """The divergence that there must be."""
    divergence = session.run(program, program.dram_image())["first_divergence"]
    assert divergence is not None
    return divergence


def test_a_window_leaves_results_out() -> None:
    """The check expects nothing of results that are not written."""
    params = replace(NARROW, vector_window=3)
    program = next(
        program
        for program in (random_program(params, seed) for seed in range(20))
        if any(isinstance(insn, Vector) and insn.unwritten for insn in program.insns)
    )
    expected = program.dram_image()
    run_reference(program, expected)
    found = ProgramCheck(program, program.dram_image()).finish()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    MODEL, Settings(replace(MEMORY_PRESETS["slow"], cycles_per_beat=3, outstanding=1)), RAM,
], ids=["vta", "slow", "ram"])  # fmt: skip
@pytest.mark.sweep
def test_a_right_core(core: Design, program: Program, settings: Settings) -> None:
    dram, expected = program.dram_image(), program.dram_image()
    run_reference(program, expected)
    told: list[tuple[int, int]] = []
    result = Session(core, settings).run(program, dram, lambda *args: told.append(args))
    assert result["first_divergence"] is None and np.array_equal(dram, expected)
    assert result["instructions"] == len(program.insns)
    assert result["cycles_compared"] == (settings.memory is not None)
    assert told[-1] == (len(program.insns), len(program.insns))


@pytest.mark.sweep
@pytest.mark.slow
def test_until(core: Design, program: Program) -> None:
    result = Session(core, replace(MODEL, until=300)).run(program, program.dram_image())
    assert result["cycles"] == 300 and result["first_divergence"] is None
    assert 0 < result["instructions"] < len(program.insns)


@pytest.mark.sweep
@pytest.mark.slow
def test_waves(core: Design, program: Program, tmp_path: Path) -> None:
    path = tmp_path / "w.vcd"
    session = Session(core, replace(MODEL, until=50), waves=path)
    session.run(program, program.dram_image())
    text = path.read_text()
    assert "$enddefinitions" in text and "axi_arvalid" in text and len(text) > 10_000


def test_a_list_of_signals_for_viewers(tmp_path: Path) -> None:
    """Handshakes of the core and its units; what is deeper, or has no name of ours, is left out."""
    waves = tmp_path / "w.vcd"
    waves.write_text(
        "$scope module $rootio $end\n$var wire 1 a clk $end\n$upscope $end\n"
        "$scope module core $end\n$var wire 1 b clk $end\n$var wire 4 c ended [3:0] $end\n"
        "$var wire 1 d $auto$7 $end\n$scope module gemm $end\n$var wire 1 e insn__valid $end\n"
        "$var wire 8 f other [7:0] $end\n$scope module lane $end\n$var wire 1 g uop__ready $end\n"
        "$upscope $end\n$upscope $end\n$upscope $end\n$enddefinitions $end\n#0\n"
    )
    write_signal_list(waves)
    assert (tmp_path / "w.gtkw").read_text().splitlines()[1:] == [
        "[timestart] 0", "-core", "core.clk", "core.ended[3:0]", "-core.gemm",
        "core.gemm.insn__valid",
    ]  # fmt: skip


@pytest.mark.sweep
def test_a_window_of_waves(core: Design, program: Program, tmp_path: Path) -> None:
    path = tmp_path / "w.vcd"
    session = Session(core, replace(MODEL, until=50), waves=path, waves_from=40)
    session.run(program, program.dram_image())
    cycles = [int(time) // 10_000 for time in re.findall(r"^#(\d+)$", path.read_text(), re.M)]
    # The cycles of the program begin after those that reset and start the core.
    assert 40 <= cycles[0] <= 50 and 10 <= cycles[-1] - cycles[0] <= 15


def in_module(core: Design, name: str, pattern: str, becomes: str) -> Design:
    """A core with the first match of a pattern in one of its modules replaced."""
    begin = core.verilog.index(f"module \\vdla_core.{name} (")
    end = core.verilog.index("endmodule", begin)
    text, count = re.subn(pattern, becomes, core.verilog[begin:end], count=1)
    assert count == 1
    return Design(core.top, core.verilog[:begin] + text + core.verilog[end:])


def connected(core: Design, text: str, becomes: str) -> Design:
    """A core with another connection of a port."""
    assert core.verilog.count(text) == 1
    return Design(core.top, core.verilog.replace(text, becomes))


@pytest.mark.slow
@pytest.mark.parametrize("memory, unit, settings", [
    pytest.param("acc", "gemm", MODEL, id="acc-model"),
    pytest.param("inp", "load", RAM, id="inp-ram", marks=pytest.mark.sweep),
    pytest.param("tmp", "vector", MODEL, id="tmp-model", marks=pytest.mark.sweep),
])  # fmt: skip
@pytest.mark.sweep
def test_a_stuck_bit(
    core: Design, program: Program, memory: str, unit: str, settings: Settings
) -> None:
    """The lowest bit of what is written to a scratchpad is 1: the first instruction that writes an
    even word is named, with the entry.
    """
    wrong = in_module(core, memory, "<= write__data;", "<= write__data | 1'h1;")
    divergence = found(Session(wrong, settings), program)
    assert divergence["unit"] == unit and divergence["what"].startswith(f"{memory}[")
    insn = program.insns[divergence["instruction"]]
    assert insn.unit is Unit[unit.upper()]
    assert int(divergence["expected"], 16) | 1 == int(divergence["got"], 16)


@pytest.mark.sweep
@pytest.mark.slow
def test_a_broken_rule_of_axi(core: Design, program: Program) -> None:
    wrong = connected(core, "address__valid(axi_awvalid)", "address__valid()")
    divergence = found(Session(wrong, MODEL), program)
    assert divergence["what"] == "axi w: data before their address" and divergence["cycle"] > 0


@pytest.mark.sweep
def test_a_broken_rule_of_a_stream(core: Design, program: Program) -> None:
    """The highest bit of the index beside an instruction changes while it waits for its tokens.
    Nothing else depends on it.
    """
    begin = core.verilog.index("\\vdla_core.gemm  gemm (")
    bits = queued_insn(NARROW).size
    text, count = re.subn(
        r"(\.unit__insn__payload\()(.*?)(\),\n)",
        rf"\1\2 ^ {{value_cycles[0], {bits - 1}'h0}}\3", core.verilog[begin:], count=1,
    )  # fmt: skip
    assert count == 1
    wrong = Design(core.top, core.verilog[:begin] + text)
    divergence = found(Session(wrong, RAM), program)
    assert divergence["what"] == "stream gemm unit__insn: payload stable until the transfer"
    assert divergence["got"] == "broken" and divergence["cycle"] > 0


@pytest.mark.more
@pytest.mark.slow
def test_a_deadlock(core: Design, program: Program) -> None:
    """No instruction gives a token: the core says so itself."""
    without = replace(program, insns=tuple(replace(i, push=Units.NONE) for i in program.insns))
    divergence = found(Session(core, MODEL), without)
    assert divergence["what"] == "status" and divergence["got"].startswith("DEADLOCK")
    assert divergence["instruction"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    pytest.param(replace(RAM, quiet_cycles=300), id="ram", marks=pytest.mark.sweep),
    pytest.param(replace(MODEL, quiet_cycles=1), id="model"),
])  # fmt: skip
@pytest.mark.sweep
def test_a_core_that_never_answers(core: Design, program: Program, settings: Settings) -> None:
    """Its store unit never sees that an address is taken: the first store never ends, and it is
    waited for no longer than was said.
    """
    wrong = connected(core, "address__ready(axi_awready)", "address__ready(1'h0)")
    divergence = found(Session(wrong, settings), program)
    stores = [i for i, insn in enumerate(program.insns) if insn.unit is Unit.STORE]
    assert divergence["got"] == "never"
    if settings.memory is None:
        assert divergence["what"] == "end" and divergence["instruction"] == stores[0]
    else:  # the second store starts late
        timing = simulate(program, program.dram_image(), settings.memory, values=False)
        assert divergence["what"] == "start" and divergence["instruction"] == stores[1]
        assert divergence["cycle"] == timing.starts[stores[1]] + 1


BENCH = """
import cocotb
from vdla.cosim import CoSimulation

@cocotb.test()
async def test(dut):
    {body}
"""


@pytest.mark.sweep
@pytest.mark.slow
def test_a_bench_that_runs_nothing(core: Design, program: Program, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(BENCH.format(body="pass"))
    session = Session(core, MODEL, bench=tmp_path / "own.py")
    with pytest.raises(BenchFailure, match="the bench ended without running the program"):
        session.run(program, program.dram_image())


@pytest.mark.sweep
@pytest.mark.slow
def test_a_program_file_from_the_command_line(program: Program, tmp_path: Path) -> None:
    """And its coverage is that of the SimPy model's run."""
    path, report, file = (tmp_path / name for name in ("p.vdla", "report.json", "coverage.json"))
    program.save(path)
    words = ["cosim", str(path), "--coverage", str(file), "--json", str(report)]
    assert run_app(words) == 0
    coverage, dram = Coverage(NARROW), program.dram_image()
    coverage.sample(program, dram, simulate(program, dram.copy(), MemoryParams()))
    assert Coverage.of_file(file, NARROW).hits == coverage.hits
    read = json.loads(report.read_text())
    assert read["first_divergence"] is None and read["cycles_compared"]
    assert read["instructions"] == len(program.insns) and read["programs"] == 1


@pytest.mark.parametrize("options, message", [
    (["--pauses", "some"], "pauses: expected one of off, light, heavy, got 'some'"),
    (["--pauses", "heavy"], "pauses: expected --axi-ram with 'heavy'; the memory model has none"),
    (["--hw", "8x8"], "program: built for configuration"),
    (["--memory", "wide"], "memory: expected a bus of 64 bits"),
    (["--input", "x.npz"], "input: expected a model; a program's inputs are random bytes"),
    (["--bench", "none.py"], "bench: expected a file that can be read, got none.py"),
])  # fmt: skip
def test_mistakes_are_one_line(
    program: Program, options: list[str], message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("x.npz").touch()
    path = tmp_path / "p.vdla"
    program.save(path)
    assert run_app(["cosim", str(path), *options]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
