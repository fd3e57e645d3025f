"""Traces: what must hold in each, the same bytes from SimPy and RTL, and one written out."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vdla
from vdla.cli import run_app
from vdla.isa.asm import assemble, parse_insn
from vdla.isa.insn import Gemm
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.opcodes import Unit, Units
from vdla.isa.params import PRESETS
from vdla.isa.program import Program
from vdla.isa.status import Status
from vdla.sim.model.core import simulate
from vdla.sim.trace import trace, write_trace
from vdla.sim.verify.random_programs import random_program

MODELS = Path(__file__).resolve().parents[2] / "examples" / "models"
DIGITS = MODELS / "digits_int8.onnx"
VTA = MEMORY_PRESETS["vta"]

#: Two products that overlap in the tensor core, and a token in each direction.
ASSEMBLY = """\
.config {"block_in": 4, "block_out": 4}
.meta {"layers": [{"name": "conv/1", "op": "QConv2d", "runs": [[1, 1], [3, 4]]}]}
load memory=uop base=0 dram_addr=0x0 x_size=1 push=gemm
load memory=inp base=0 dram_addr=0x100 x_size=2 push=gemm
gemm uop_begin=0 uop_count=1 outer=3 init=1 pop=load push=load
gemm uop_begin=0 uop_count=1 outer=3 pop=load push=vector
load memory=inp base=0 dram_addr=0x200 x_size=2 pop=gemm
vector op=add src0=acc src1=imm dst=tmp extents=1,1,1,1 pop=gemm
"""


def _run(program: Program) -> dict[str, Any]:
    return trace(program, simulate(program, program.dram_image(), VTA))


def _events(events: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in events["traceEvents"] if event["ph"] == phase]


def _check(events: dict[str, Any], program: Program) -> None:
    """What must hold in the trace of a program that ended."""
    slices = _events(events, "X")
    assert [s["args"]["index"] for s in slices] == list(range(len(program.insns)))
    names = {e["pid"]: e["args"]["name"] for e in _events(events, "M") if "name" in e["args"]}
    threads = defaultdict(list)
    for piece, insn in zip(slices, program.insns, strict=True):
        assert names[piece["pid"]] == insn.unit.name.lower()
        assert parse_insn(piece["args"]["asm"]) == insn
        assert 0 <= piece["ts"] and piece["ts"] + piece["dur"] <= events["otherData"]["cycles"]
        threads[piece["pid"], piece["tid"]].append(piece)
    for pieces in threads.values():  # the format's rule: slices of one thread never cross
        for before, after in pairwise(pieces):
            assert before["ts"] + before["dur"] <= after["ts"]
    _check_tokens(events, program)


def _check_tokens(events: dict[str, Any], program: Program) -> None:
    """Every pop is the point of one arrow, whose tail lies in its giver's last cycle, before it."""
    slices = _events(events, "X")
    ends = {(s["pid"], s["tid"], s["ts"] + s["dur"] - 1): s["args"]["index"] for s in slices}
    starts = {(s["pid"], s["tid"], s["ts"]): s["args"]["index"] for s in slices}
    tails = {e["id"]: e for e in _events(events, "s")}
    popped = defaultdict(list)
    order = defaultdict(list)
    for head in _events(events, "f"):
        tail = tails.pop(head["id"])
        giver = ends[tail["pid"], tail["tid"], tail["ts"]]
        taker = starts[head["pid"], head["tid"], head["ts"]]
        assert tail["ts"] < head["ts"]
        assert program.insns[giver].push >> program.insns[taker].unit & 1
        popped[taker].append(program.insns[giver].unit)
        order[program.insns[giver].unit, program.insns[taker].unit].append((giver, taker))
    assert not tails
    for index, insn in enumerate(program.insns):
        assert sorted(popped[index]) == [unit for unit in Unit if insn.pop >> unit & 1]
    for pairs in order.values():  # between two units, the order of pushes is the order of pops
        assert [giver for giver, _ in sorted(pairs)] == [
            giver for giver, _ in sorted(pairs, key=lambda pair: pair[1])
        ]


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    program = random_program(PRESETS["4x4"], seed)
    _check(_run(program), program)


def test_overlapping_instructions_take_threads() -> None:
    program = assemble(ASSEMBLY)
    pieces = [s for s in _events(_run(program), "X") if s["args"]["opcode"] == "gemm"]
    first, second = pieces
    assert second["ts"] < first["ts"] + first["dur"], "the test needs an overlap"
    assert (first["tid"], second["tid"]) == (0, 1)


def test_golden(golden, tmp_path: Path) -> None:
    program = assemble(ASSEMBLY)
    _check(_run(program), program)
    write_trace(tmp_path / "t.json", _run(program))
    text = (tmp_path / "t.json").read_text()
    assert json.loads(text) == _run(program)
    golden("trace.json", text)


def test_a_deadlock_is_drawn_up_to_where_it_stopped() -> None:
    gemm = Gemm(uop_begin=0, uop_count=1)
    program = Program(PRESETS["4x4"], (gemm, replace(gemm, pop=Units.STORE), gemm))
    result = simulate(program, program.dram_image(), VTA)
    assert result.status == Status.DEADLOCK
    events = trace(program, result)
    assert [s["args"]["index"] for s in _events(events, "X")] == [0]
    assert not _events(events, "f")


def test_an_instruction_that_never_ended_lasts_to_the_end_of_the_run() -> None:
    program = assemble(ASSEMBLY)
    result = simulate(program, program.dram_image(), VTA)
    cut = replace(result, ends=[-1 if i == 2 else e for i, e in enumerate(result.ends)])
    events = trace(program, cut)
    piece = _events(events, "X")[2]
    assert piece["ts"] + piece["dur"] == result.cycles and piece["args"]["end"] == -1
    assert len(_events(events, "s")) == len(_events(events, "f")) == 3, "its token is not drawn"


@pytest.mark.slow
def test_digits() -> None:
    module = vdla.compile(DIGITS)
    module.run(np.load(MODELS / "digits_test.npz")["x"][:1])
    _check(module.trace, module.program)
    layers = {layer.name: layer for layer in module.compiled.layers if layer.runs}
    found = defaultdict(list)
    for piece in _events(module.trace, "X"):
        found[piece["args"]["node"]].append(piece["args"]["index"])
        assert piece["args"]["op"] == layers[piece["args"]["node"]].op
    assert found == {
        name: [index for first, last in layer.runs for index in range(first, last + 1)]
        for name, layer in layers.items()
    }


@pytest.mark.more
@pytest.mark.slow
def test_both_simulators_draw_the_same(tmp_path: Path) -> None:
    for target in ("sim", "rtl"):
        path = str(tmp_path / target)
        command = ["run", str(DIGITS), "--target", target, "--trace", path]
        assert run_app([*command, "--json", str(tmp_path / "report.json")]) == 0
    assert (tmp_path / "sim").read_bytes() == (tmp_path / "rtl").read_bytes()


@pytest.mark.slow
def test_the_host_has_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["run", str(DIGITS), "--target", "cpu", "--trace", str(tmp_path / "t")]) == 2
    error = capsys.readouterr().err
    assert error == "vdla: trace: target 'cpu' has no cycles; use sim or rtl\n"
    assert not (tmp_path / "t").exists()
    with pytest.raises(vdla.VdlaError, match="nothing was run"):
        _ = vdla.compile(DIGITS).trace
