"""One block recorded in a core and replayed by itself: ours is found right, and bugs are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from vdla.cli import run_app
from vdla.cosim import Design, Recording, Replacement, Settings, record, replay
from vdla.cosim.blocks import BLOCKS, block_signature, find_ports
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MemoryParams
from vdla.isa.opcodes import Unit
from vdla.isa.program import Program
from vdla.sim.verify.random_programs import random_program

from .configs import NARROW

pytestmark = pytest.mark.sweep

SEED, COUNT = 1, 60


@pytest.fixture(scope="module")
def program() -> Program:
    return random_program(NARROW, SEED, COUNT)


def recorded(block: str, program: Program) -> Recording:
    return record(block, program, program.dram_image(), Settings(MemoryParams()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(name, marks=() if name == "vector" else pytest.mark.sweep)
        for name in BLOCKS
        if name != "gemm"
    ],
)
def test_a_block_does_by_itself_what_was_recorded(
    block: str, program: Program, tmp_path: Path
) -> None:
    recorded(block, program).save(tmp_path / "a.rec")
    recording = Recording.load(tmp_path / "a.rec")
    ports = find_ports(block_signature(block, NARROW)) | {"rst": ("input", 1)}
    assert {name: (t.direction, t.bits) for name, t in recording.tracks.items()} == ports
    timed, in_order = replay(recording), replay(recording, untimed=True)
    assert timed["first_divergence"] is None and timed["cycles"] == recording.samples
    assert in_order["first_divergence"] is None and in_order["cycles"] != recording.samples


@pytest.fixture(scope="module")
def gemm(program: Program) -> Recording:
    """Twice the same, as of a model with two programs."""
    once = recorded("gemm", program)
    return Recording.join([once, once])


def changed(folder: Path, declarations: str = "", **outputs: str) -> Replacement:
    """Our tensor core in a module that gives other values to some outputs."""
    ports = find_ports(block_signature("gemm", NARROW)) | dict.fromkeys(
        ("clk", "rst"), ("input", 1)
    )
    lines = [f"{way} [{bits - 1}:0] {name}" for name, (way, bits) in ports.items()]
    wires = [f"wire [{bits - 1}:0] its_{n};" for n, (_, bits) in ports.items() if n in outputs]
    pins = [f".{name}({'its_' * (name in outputs)}{name})" for name in ports]
    text = [
        f"module gemm({', '.join(lines)});", *wires, declarations,
        *(f"assign {name} = {value};" for name, value in outputs.items()),
        f"inner block({', '.join(pins)});", "endmodule",
        Design.component(BLOCKS["gemm"](NARROW), "inner").verilog,
    ]  # fmt: skip
    (folder / "gemm.v").write_text("\n".join(text))
    return Replacement.parse(f"gemm={folder / 'gemm.v'}", NARROW)


@pytest.mark.slow
def test_a_wrong_bit(gemm: Recording, program: Program, tmp_path: Path) -> None:
    """It is seen in the first entry that is written, and the instruction is the first."""
    wrong = changed(tmp_path, acc_write__data="its_acc_write__data ^ 2")
    first = next(i for i, insn in enumerate(program.insns) if insn.unit is Unit.GEMM)
    for untimed, what in ((False, "port acc_write__data"), (True, "acc_write: item 0, recorded")):
        found = replay(gemm, wrong, untimed)["first_divergence"]
        assert found["what"].startswith(what) and found["instruction"] == first
        assert found["unit"] == "gemm" and found["text"].startswith("gemm")
        expected, got = (int(found[x].rpartition(" ")[2], 16) for x in ("expected", "got"))
        assert expected ^ got == 2


@pytest.mark.slow
def test_a_late_end_and_an_idle_address_are_right_in_order(gemm: Recording, tmp_path: Path) -> None:
    """Cycle by cycle, the late end is found, and the address does not count."""
    registers = "reg [4:0] late = 0; always @(posedge clk) late <= {its_unit__end, its_unit__push};"
    late = changed(
        tmp_path, registers, unit__end="late[4]", unit__push="late[3:0]",
        uop__addr="unit__busy ? its_uop__addr : ~its_uop__addr",
    )  # fmt: skip
    found = replay(gemm, late)["first_divergence"]
    assert (found["what"], found["expected"], found["got"]) == ("port unit__end", "0x1", "0x0")
    assert replay(gemm, late, untimed=True)["first_divergence"] is None


@pytest.mark.slow
def test_a_wrong_address_brings_other_data(gemm: Recording, tmp_path: Path) -> None:
    wrong = changed(tmp_path, inp__addr="its_inp__addr ^ 1")
    for untimed in (False, True):
        found = replay(gemm, wrong, untimed)["first_divergence"]
        assert "acc_write" in found["what"]


@pytest.mark.slow
def test_a_block_that_never_answers(
    gemm: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taking = ("unit__insn__ready", "unit__start", "unit__pop", "unit__end", "unit__error")
    changed(tmp_path, **dict.fromkeys((*taking, "acc_write__en"), "0"))
    gemm.save(tmp_path / "gemm.rec")
    options = ["--replace", f"gemm={tmp_path / 'gemm.v'}", "--untimed", "--quiet-cycles", "300"]
    assert run_app(["cosim", "--replay", str(tmp_path / "gemm.rec"), *options]) == 1
    assert "nothing for 300 cycles" in capsys.readouterr().out


@pytest.mark.slow
def test_another_block(gemm: Recording) -> None:
    other = Replacement("store", lambda: BLOCKS["store"](NARROW))
    with pytest.raises(VdlaError, match="expected a replacement for gemm, which was recorded"):
        replay(gemm, other)
    with pytest.raises(VdlaError, match="expected a block of fetch, load"):
        record("alu", random_program(NARROW, 1, 5), random_program(NARROW, 1, 5).dram_image(),
               Settings(MemoryParams()))  # fmt: skip
