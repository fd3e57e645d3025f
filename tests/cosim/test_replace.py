"""Blocks of a user's own in the core: ports are checked, right ones pass, wrong ones are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from vdla.cosim import Design, Session, Settings
from vdla.cosim.blocks import BLOCKS
from vdla.cosim.replace import PortMismatch, Replacement, core_with
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MemoryParams
from vdla.isa.params import PRESETS
from vdla.sim.verify.random_programs import random_program

from .configs import NARROW

PARAMS = PRESETS["4x4"]
MINE = Path(__file__).parents[2] / "examples" / "07_cosim" / "my_gemm.sv"


@pytest.mark.parametrize("text, message", [
    ("gemm", "replace: expected BLOCK=FILE.v or BLOCK=FILE.py:CLASS"),
    ("alu=a.v", "with a block of fetch, load, gemm, vector, store, got 'alu=a.v'"),
    ("gemm=nothing.v", "replace: expected a file for gemm, 'nothing.v' is none"),
])  # fmt: skip
def test_what_is_no_block(text: str, message: str) -> None:
    with pytest.raises(VdlaError) as caught:
        Replacement.parse(text, PARAMS)
    assert message in str(caught.value)


def changed(folder: Path, *changes: tuple[str, str]) -> str:
    """The argument for the example's tensor core with other text."""
    text = MINE.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "my_gemm.sv").write_text(text)
    return f"gemm={folder / 'my_gemm.sv'}"


@pytest.mark.slow
def test_every_wrong_port_has_its_line(tmp_path: Path) -> None:
    changes = (
        ("input [32:0] uop__data", "input [30:0] uop__data"),
        ("output acc_write__en", "input acc_write__en"),
        ("assign acc_write__en = s[8].valid;", ""),
        ("unit__stalled,", "unit__slow,"),
    )
    with pytest.raises(PortMismatch) as caught:
        Replacement.parse(changed(tmp_path, *changes), PARAMS)
    said = [line.partition("my_gemm.sv: ")[2] for line in caught.value.lines]
    assert sorted(said) == [
        "port acc_write__en: expected output of 1 bits, got input of 1 bits",
        "port unit__slow: not a port of the block",
        "port unit__stalled: expected output of 1 bits, there is none",
        "port uop__data: expected input of 33 bits, got input of 31 bits",
    ]


@pytest.mark.slow
def test_a_configuration_with_other_ports() -> None:
    with pytest.raises(PortMismatch, match="port uop__data: expected input of"):
        Replacement.parse(f"gemm={MINE}", NARROW)


@pytest.mark.slow
def test_no_module_of_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.v").write_text("module b(input x); endmodule module c(input x); endmodule")
    with pytest.raises(VdlaError, match=r"expected a module 'gemm' or 'a', got .*b, c"):
        Replacement.parse(f"gemm={tmp_path / 'a.v'}", PARAMS)


@pytest.mark.sweep
def test_a_bug_that_a_network_does_not_show(tmp_path: Path) -> None:
    """Without the second forwarding path, an accumulator that two iterations in a distance of two
    share is wrong; random programs have such loops.
    """
    path = changed(tmp_path, ("s[9].valid && s[9].acc == s[7].acc ? result[9] : ", ""))
    session = Session(
        core_with(PARAMS, [Replacement.parse(path, PARAMS)]), Settings(MemoryParams())
    )
    for seed in range(10):
        program = random_program(PARAMS, seed, 60)
        found = session.run(program, program.dram_image())["first_divergence"]
        if found is not None:
            break
    assert found is not None
    assert found["unit"] == "gemm" and found["what"].startswith("acc[")


@pytest.mark.slow
def test_verilog_of_cores_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made anew for another configuration, another module in a block's place, and with the
    lines of its sources; but not for another text of that module.
    """
    made: list[object] = []

    def core_verilog(*what: object, **how: object) -> str:
        made.append((what, how))
        return f"module number {len(made)}"

    monkeypatch.setenv("VDLA_CACHE", str(tmp_path))
    monkeypatch.setattr("vdla.cosim.blocks.core_verilog", core_verilog)

    def gemm(module: str, text: str) -> Replacement:
        return Replacement("gemm", lambda: BLOCKS["gemm"](NARROW), module, text)

    def texts() -> list[str]:
        designs = [
            Design.core(NARROW),
            Design.core(PARAMS),
            Design.core(NARROW, sources=True),
            core_with(NARROW, [gemm("mine", "first text")]),
            core_with(NARROW, [gemm("mine", "second text")]),
            core_with(NARROW, [gemm("other", "first text")]),
        ]
        return [design.verilog for design in designs]

    first = texts()
    assert len(made) == 5 and texts() == first and len(made) == 5
    assert len(set(first)) == 6 and first[3].endswith("first text")
    core_with(NARROW, [gemm("", "")])  # a component of Python, which may depend on anything
    core_with(NARROW, [gemm("", "")])
    assert len(made) == 7


OWN = '''
from vdla.hw.core.{module} import {name}

class Mine({name}):
    """Another class with the same ports."""
'''


@pytest.mark.sweep
@pytest.mark.slow
def test_an_amaranth_component(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN.format(module="store", name="Store"))
    replacement = Replacement.parse(f"store={tmp_path / 'own.py'}:Mine", NARROW)
    program = random_program(NARROW, 2, 60)
    session = Session(core_with(NARROW, [replacement]), Settings(MemoryParams()))
    assert session.run(program, program.dram_image())["first_divergence"] is None


@pytest.mark.parametrize("module, name, block, message", [
    ("store", "Store", "load=own.py:Mine", "own.py:Mine: port "),
    ("store", "Store", "store=own.py:Other", "own.py: expected a class for store as own.py:CLASS"),
])  # fmt: skip
def test_a_component_that_does_not_fit(
    module: str, name: str, block: str, message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN.format(module=module, name=name))
    with pytest.raises(VdlaError) as caught:
        Replacement.parse(block, NARROW)
    assert message in str(caught.value)
