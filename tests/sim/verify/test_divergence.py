"""Bugs planted in the RTL: ``verify`` names the instruction and leaves a waveform that shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vdla.cli import run_app
from vdla.isa.asm import format_insn
from vdla.isa.insn import Load
from vdla.isa.opcodes import Unit
from vdla.isa.program import Program
from vdla.sim.model.core import simulate
from vdla.sim.rtl import toolchain
from vdla.sim.rtl.driver import HangError, RtlSimulator, Waves
from vdla.sim.verify import campaign as verification
from vdla.sim.verify.campaign import save_divergence, verify
from vdla.sim.verify.random_programs import random_program

from ...mutants.checks import MEMORY, PARAMS, build_rtl
from ...mutants.rtl import RTL
from .vcd import Vcd


def _mutant(name: str, place: str) -> RtlSimulator:
    """The RTL with a bug, hardly optimised."""
    (mutant,) = (m for m in RTL if (m.name, m.place) == (name, place))
    with mutant.plant():
        return build_rtl()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_shared = toolchain.compile_shared
    monkeypatch.setattr(
        toolchain, "compile_shared", lambda *arguments: compile_shared(*arguments, "-O0")
    )


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_late_end_leaves_its_waveform(tmp_path: Path) -> None:
    rtl = _mutant("off-by-one latency", "rtl gemm")
    first = verify(PARAMS, MEMORY, 20, rtl=rtl.run)["first_divergence"]
    assert (first["what"], first["unit"], first["rtl"] - first["sim"]) == ("end cycle", "gemm", 1)
    program = random_program(PARAMS, first["program"])
    assert first["text"] == format_insn(program.insns[first["instruction"]])
    found = save_divergence(tmp_path / "new", PARAMS, MEMORY, first, rtl)
    assert Program.load(found["saved"]["program"]) == program
    _check_waves(Path(found["saved"]["waves"]), found["waves_cycles"], program, rtl, first)


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_wrong_padding_is_found_where_it_is_first_written() -> None:
    rtl = _mutant("wrong padding value", "rtl load")
    first = verify(PARAMS, MEMORY, 20, rtl=rtl.run)["first_divergence"]
    insns = random_program(PARAMS, first["program"]).insns
    padded = [index for index, insn in enumerate(insns) if isinstance(insn, Load) and _pads(insn)]
    assert first["instruction"] == padded[0]
    insn = insns[padded[0]]
    assert first["what"] == f"{insn.memory} contents"
    assert insn.base <= first["address"][0] < insn.base + insn.entries
    assert (first["reference"], first["rtl"]) == (insn.pad_value & 255, ~insn.pad_value & 255)


def _pads(insn: Load) -> bool:
    return any((insn.pad_top, insn.pad_bottom, insn.pad_left, insn.pad_right))


def _check_waves(path, window, program: Program, rtl: RtlSimulator, first: dict) -> None:
    """The window, the unit's signals, and the starts and ends that the simulation reported."""
    begin, end = window
    vcd = Vcd.read(path)
    assert begin <= first["cycle"] <= end and begin <= first["ends"]["rtl"] <= end
    assert f"TOP.vdla_core.{first['unit']}" in vcd.scopes
    result = rtl.run(program, program.dram_image(), MEMORY)
    last = min(end, result.cycles)
    # The rising edge before cycle 0 is outside the run.
    assert [vcd.times[0], vcd.times[-1]] == [1000 * begin or 500, 1000 * last + 500]
    units = [insn.unit for insn in program.insns]
    for signal, cycles in (("started", result.starts), ("ended", result.ends)):
        happened = {(unit, cycle) for unit, cycle in zip(units, cycles, strict=True)}
        for cycle in range(begin, last + 1):
            mask = sum(1 << unit for unit in Unit if (unit, cycle) in happened)
            assert vcd.at(f"TOP.{signal}", cycle) == mask, (signal, cycle)


def test_the_first_of_many_wrong_bytes_is_found() -> None:
    """Bytes go wrong in every instruction from one on; only the end of a program shows them."""
    program = random_program(PARAMS, 3)
    culprit = len(program.insns) // 2

    def wrong(run: Program, dram: np.ndarray, memory: Any):
        result = simulate(run, dram, memory)
        if len(run.insns) > culprit:
            result.scratchpads["tmp"][5, 2] ^= 1
            dram[7] ^= 1
        return result

    first = verify(PARAMS, MEMORY, 1, seed=3, rtl=wrong)["first_divergence"]
    assert (first["instruction"], first["address"]) == (culprit, [5, 2])
    assert first["reference"] ^ first["rtl"] == 1
    assert first["text"] == format_insn(program.insns[culprit])
    assert first["starts"]["sim"] == first["starts"]["rtl"] == first["cycle"]


def test_a_wrong_counter_is_traced_to_an_instruction() -> None:
    def wrong(run: Program, dram: np.ndarray, memory: Any):
        result = simulate(run, dram, memory)
        result.counters["gemm"]["busy"] += len(run.insns) > 6
        return result

    report = verify(PARAMS, MEMORY, 1, rtl=wrong)
    first = report["first_divergence"]
    assert (first["what"], first["instruction"]) == ("counter busy of gemm", 6)
    assert first["rtl"] - first["sim"] == 1 and report["cycle_mismatches"] == 1


def test_a_hang_is_a_divergence_at_the_instruction_that_hangs() -> None:
    def hang(run: Program, dram: np.ndarray, memory: Any):
        result = simulate(run, dram, memory)
        ends = [end if end < result.ends[9] else -1 for end in result.ends]
        raise HangError(1000, result.starts, ends)

    first = verify(PARAMS, MEMORY, 1, rtl=hang)["first_divergence"]
    assert (first["what"], first["instruction"], first["rtl"]) == ("end cycle", 9, -1)


def test_the_command_shows_both_sides_and_names_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waves: list[Waves] = []

    class Late(RtlSimulator):
        """The SimPy model as an RTL whose last instruction ends late."""

        def run(self, program, dram, memory, max_cycles=0, waves_wanted=None):
            result = simulate(program, dram, memory)
            result.ends[-1] += 1234
            if waves_wanted is not None:
                waves.append(waves_wanted)
                waves_wanted.path.write_text("waves")
            return result

    monkeypatch.setattr(verification, "RtlSimulator", Late)
    folder = tmp_path / "here"
    command = ["verify", "--programs", "2", "--hw", "4x4", "--waves", str(folder)]
    assert run_app([*command, "--json", "-"]) == 1
    first = json.loads(capsys.readouterr().out)["first_divergence"]
    assert first["rtl"] - first["sim"] == 1234
    assert first["waves_cycles"] == [waves[0].first, waves[0].last]
    assert waves[0].last - first["ends"]["rtl"] == first["cycle"] - waves[0].first == 100
    assert run_app(command) == 1
    shown = capsys.readouterr().out
    assert first["text"] in shown and f"{first['sim']:,}" in shown and f"{first['rtl']:,}" in shown
    for name in ("divergence.vcd", "divergence.vdla"):
        assert str(folder / name) in shown and (folder / name).exists()
