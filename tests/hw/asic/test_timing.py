"""Longest paths: of netlists that are added up by hand, and of synthesised ones against OpenSTA."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from vdla.hw.asic.liberty import RISE, Library, load_liberty
from vdla.hw.asic.macros import DEFAULT, Macro, MacroTable, Tiled
from vdla.hw.asic.netlist import Bit, Instance, Memory, Netlist, Port
from vdla.hw.asic.synthesis import core_text, synthesise
from vdla.hw.asic.timing import Node, Timing, loads_pf
from vdla.isa.errors import VdlaError
from vdla.isa.params import PRESETS
from vdla.sim.rtl.toolchain import setup_yosys

from .circuits import OSU018, SMALL, small_text

CLOCK = 0
LIBRARY = load_liberty(SMALL)
MACRO = Macro(16, 8, 1, 10.0, 1.0, 1.0, access_ns=2.0, setup_ns=0.5, pin_pf=0.01)


def netlist(*cells: tuple[str, str, dict[str, Bit]], library: Library = LIBRARY) -> Netlist:
    """A netlist of cells: name, kind, nets."""
    instances = [
        Instance(name, library.cells[kind], nets | ({"CK": CLOCK} if "DFF" in kind else {}))
        for name, kind, nets in cells
    ]
    signals: dict[Bit, list[tuple[str, int]]] = {1: [("a.first", 0)], 4: [("b.last", 0)]}
    sources = {"a.first": "hw/core/a.py:1", "b": "hw/core/b.py:2"}
    return Netlist(library, instances, [], CLOCK, signals, sources, 0.0)


def chain() -> Netlist:
    """A flip-flop, NAND2 and XOR2 with a second reader between, a flip-flop."""
    return netlist(
        ("a.f", "DFF", {"D": 9, "Q": 1}), ("a.n", "NAND2", {"A": "1", "B": 1, "Y": 2}),
        ("b.x", "XOR2", {"A": 2, "B": 8, "Y": 3}), ("b.i", "INV4", {"A": 2, "Y": 5}),
        ("b.l", "DFF", {"D": 3, "Q": 4}),
    )  # fmt: skip


def test_a_path_added_up_by_hand() -> None:
    """In units of 10 ps and fF, as in the head of small.lib. CK to Q: 30 + 0.7 C; NAND2 from B: 8 +
    1.1 C + s / 5, XOR2 from A: 16 + 1.2 C + s / 5; to fall, four fifths of the first part. Slews:
    5 + 2 R C + s / 10.
    """
    found = Timing(chain(), []).longest_path()
    # Q rises with one pin of NAND2, 1.2 fF; its slew is 5 + 2 * 0.7 * 1.2, and s = 0 at the clock.
    first, slew = 30 + 0.7 * 1.2, 5 + 1.4 * 1.2
    # NAND2 falls with XOR2 and INV4 behind it, 2 + 4 fF.
    falls = first + 0.8 * 8 + 1.1 * 6 + 0.2 * slew
    falling = 0.8 * 5 + 2.2 * 6 + 0.1 * slew
    # Or it rises, because Q falls.
    rises = 0.8 * 30 + 0.7 * 1.2 + 8 + 1.1 * 6 + 0.2 * (0.8 * 5 + 1.4 * 1.2)
    rising = 5 + 2.2 * 6 + 0.1 * (0.8 * 5 + 1.4 * 1.2)
    assert falls > rises
    # XOR2 rises because of either; D has 1.1 fF. Slews are the slowest of either.
    slowest = max(falling, rising)
    last = max(falls + 0.2 * falling, rises + 0.2 * rising) + 16 + 1.2 * 1.1
    setup = 10 + 2 * (5 + 2.4 * 1.1 + 0.1 * slowest) / 100
    # Falling, XOR2 is quicker by a fifth of 16, and the setup 3 longer.
    faster = last - 0.2 * 16
    other = 13 + 2 * (4 + 2.4 * 1.1 + 0.1 * slowest) / 100
    assert found.ns == pytest.approx(0.01 * max(last + setup, faster + other), rel=1e-9)
    assert found.mhz == pytest.approx(1000 / found.ns) and found.end == "b.l"


def test_the_slowest_slew_counts_although_another_arrival_is_the_latest() -> None:
    """A comes late through buffers, B early and slowly, because it has ten INV4 as readers."""
    buffers = [(f"u{n}", "BUF8", {"A": 20 + n, "Y": 21 + n}) for n in range(5)]
    readers = [(f"i{n}", "INV4", {"A": 10, "Y": 40 + n}) for n in range(10)]
    made = netlist(
        ("f", "DFF", {"D": 9, "Q": 20}), ("g", "DFF", {"D": 9, "Q": 10}), *buffers, *readers,
        ("a", "AND2", {"A": 25, "B": 10, "Y": 30}), ("l", "DFF", {"D": 30, "Q": 31}),
    )  # fmt: skip
    arrivals = Timing(made, []).arrivals
    output = arrivals[Node(30, RISE)]
    assert output.cause == Node(25, RISE)
    slow = 5 + 2 * 0.7 * (40 + 1)  # of Q, with the pins of INV4 and AND2
    assert output.slew_ns == pytest.approx(0.01 * (5 + 2 * 0.8 * 1.1 + slow / 10))


def test_a_path_is_shown_by_signals() -> None:
    found = Timing(chain(), []).longest_path()
    first, last = found.steps(chain())
    assert (first["signal"], first["source"]) == ("a.first[0]", "hw/core/a.py:1")
    assert (last["signal"], last["source"]) == ("b.last[0]", "hw/core/b.py:2")
    assert (first["cells"], last["cells"], last["ns"]) == (0, 2, found.ns)


def memory(clocked: bool) -> Tiled:
    """A memory that reads net 12 at net 2, and writes net 3 at net 12; of two rows of macros."""
    read = Port(("1",), (2,), (12,), clocked)
    write = Port((8,), (12,), (3,))
    return Tiled(Memory("words.storage", 32, 1, (read,), (write,)), MACRO, 1, 2, 1)


def test_paths_through_memories() -> None:
    """To the address of a read that is clocked; through a memory that is read within the cycle, and
    to the address of its write."""
    made = chain()
    to_address = Timing(made, []).arrivals
    ns = max(one.ns for node, one in to_address.items() if node.net == 2)
    with_pins = Timing(made, [memory(True)])
    # The pin of the address is one for each of two macros, 10 fF each, at 1.1 units of 10 ps a fF.
    at = max(one.ns for node, one in with_pins.arrivals.items() if node.net == 2)
    assert at == pytest.approx(ns + 0.01 * 1.1 * 20)
    ends = {(end, round(length, 9)) for length, end, _, _ in with_pins.ends()}
    assert ("words.storage", round(at + 0.5, 9)) in ends
    # What is read comes 2 ns after the edge, and is an address 0.5 ns before the next one.
    assert ("words.storage", 2.5) in ends
    within = Timing(made, [memory(False)]).longest_path()
    assert within.ns == pytest.approx(at + 2.0 + 0.5)
    assert [arrival.cell for _, arrival in within.nodes] == ["a.f", "a.n", "words.storage"]


def test_ports_and_constants_begin_no_path() -> None:
    """Net 8 is a port of the core."""
    made = netlist(("i", "INV", {"A": 8, "Y": 2}), ("f", "DFF", {"D": 2, "Q": 3}))
    with pytest.raises(VdlaError, match="expected a path between registers"):
        Timing(made, []).longest_path()


def test_circles_are_refused() -> None:
    made = netlist(("i", "INV", {"A": 2, "Y": 3}), ("j", "INV", {"A": 3, "Y": 2}))
    with pytest.raises(VdlaError, match="expected logic without circles, got one through i"):
        Timing(made, []).longest_path()


# ---- OpenSTA -------------------------------------------------------------------------------------

needs_sta = pytest.mark.skipif(shutil.which("sta") is None, reason="the Debian package opensta")
needs_osu018 = pytest.mark.skipif(
    not OSU018.exists(), reason="the Debian package qflow-tech-osu018"
)
#: Thresholds and units as in both libraries.
HEAD = """library (macros) { delay_model : table_lookup; time_unit : "1ns"; voltage_unit : "1V";
current_unit : "1uA"; pulling_resistance_unit : "1kohm"; leakage_power_unit : "1nW";
capacitive_load_unit (1, pf); nom_voltage : 1.8;
""" + "".join(
    f"{edge}put_threshold_pct_{way} : 50; slew_{end}_threshold_pct_{way} : {percent};\n"
    for way in ("rise", "fall")
    for edge, (end, percent) in zip(("in", "out"), (("lower", 20), ("upper", 80)), strict=True)
)


def scalars(names: str, value: float) -> str:
    return " ".join(f'{name} (scalar) {{ values ("{value}"); }}' for name in names.split())


def macro_cell(number: int, tiled: Tiled) -> tuple[str, str]:
    """A memory as a cell of a Liberty file, and as an instance."""
    pins = ["pin (ck) { direction : input; clock : true; capacitance : 0; }"]
    nets = [f".ck({verilog_net(CLOCK_NET)})"]
    setup = 'timing () { related_pin : "ck"; timing_type : setup_rising; ' + scalars(
        "rise_constraint fall_constraint", tiled.macro.setup_ns
    )
    load = loads_pf(replace(EMPTY, instances=[]), [tiled])
    memory = tiled.memory
    for kind, ports in (("w", memory.writes), ("r", memory.reads)):
        for index, port in enumerate(ports):
            given = [*port.address, *dict.fromkeys(port.enable)]
            given += port.data if kind == "w" else ()
            names = [f"{kind}{index}_{place}" for place in range(len(given))]
            ends = f"{setup} }}" if kind == "w" or port.clocked else ""
            for name, net in zip(names, given, strict=True):
                # A net that several pins of the memory read has its load once.
                pin = f"direction : input; capacitance : {load.pop(net, 0)}; {ends}"
                pins.append(f"pin ({name}) {{ {pin} }}")
                nets.append(f".{name}({verilog_net(net)})")
            for place, net in enumerate(port.data if kind == "r" else ()):
                start = 'related_pin : "ck"; timing_type : rising_edge;'
                if not port.clocked:
                    start = f'related_pin : "{" ".join(names[: len(port.address)])}";'
                arc = f"timing () {{ {start} timing_sense : non_unate; "
                arc += scalars("cell_rise cell_fall", tiled.macro.access_ns)
                arc += scalars(" rise_transition fall_transition", 0.0)
                pins.append(f"pin (q{index}_{place}) {{ direction : output; {arc} }} }}")
                nets.append(f".q{index}_{place}({verilog_net(net)})")
    cell = f"cell (macro{number}) {{ area : 1; {' '.join(pins)} }}"
    return cell, f"macro{number} m{number} ({', '.join(nets)});"


CLOCK_NET: Bit = "clk"
EMPTY = netlist()


def verilog_net(net: Bit) -> str:
    return f"n{net}" if isinstance(net, int) else {"clk": "clk", "1": "1'b1"}.get(net, "1'b0")


def opensta_ns(made: Netlist, memories: list[Tiled], liberty: Path, work: Path) -> float:
    """The longest path as OpenSTA finds it."""
    cells, lines = zip(*(macro_cell(*each) for each in enumerate(memories)), strict=True)
    lines = [
        f"{one.cell.name} i{number} ("
        + ", ".join(f".{pin}({verilog_net('clk' if net == made.clock else net)})"
                    for pin, net in one.nets.items()) + ");"
        for number, one in enumerate(made.instances)
    ] + [*lines]  # fmt: skip
    wires = sorted(set(re.findall(r"\bn\d+\b", "\n".join(lines))))
    (work / "macros.lib").write_text(f"{HEAD}{' '.join(cells)} }}\n")
    (work / "top.v").write_text(
        "module top (clk);\ninput clk;\n" + "".join(f"wire {wire};\n" for wire in wires)
        + "\n".join(lines) + "\nendmodule\n"
    )  # fmt: skip
    (work / "run.tcl").write_text(
        f"read_liberty {liberty}\nread_liberty macros.lib\nread_verilog top.v\nlink_design top\n"
        "set_cmd_units -time ns\ncreate_clock -name clk -period 1000 [get_ports clk]\n"
        "report_checks -path_delay max -digits 6\n"
    )
    done = subprocess.run(
        ["sta", "-no_splash", "-exit", "run.tcl"],
        cwd=work, capture_output=True, text=True, timeout=600, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    slack = re.search(r"(-?[\d.]+) +slack", done.stdout)
    assert slack and "Error" not in done.stderr, done.stdout[-500:] + done.stderr[-500:]
    return 1000 - float(slack[1])


def compare(text: str, liberty: Path, work: Path) -> tuple[float, float]:
    """Our longest path and OpenSTA's, of one netlist."""
    setup_yosys()
    library, table = load_liberty(liberty), MacroTable.load(DEFAULT)
    made = synthesise(text, liberty, library)
    memories = [table.tiled(memory) for memory in made.memories]
    return Timing(made, memories).longest_path().ns, opensta_ns(made, memories, liberty, work)


@needs_sta
@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 12])
@pytest.mark.parametrize(
    "liberty", [SMALL, pytest.param(OSU018, marks=needs_osu018)], ids=["small", "osu018"]
)
def test_small_designs_are_as_long_as_opensta_says(bits: int, liberty: Path, tmp_path) -> None:
    """Of different kinds: a memory that is read within the cycle is in them."""
    ours, theirs = compare(small_text(bits), liberty, tmp_path)
    assert ours == pytest.approx(theirs, rel=0.01)


CORES = {
    "4x4": PRESETS["4x4"],
    "4x4, two passes, wide bus": replace(PRESETS["4x4"], vector_passes=2, bus_bits=128),
    "8x8": PRESETS["8x8"],
}


@needs_sta
@needs_osu018
@pytest.mark.sweep
@pytest.mark.parametrize("name", CORES)
def test_cores_are_as_long_as_opensta_says(name: str, tmp_path: Path) -> None:
    setup_yosys()
    ours, theirs = compare(core_text(CORES[name]), OSU018, tmp_path)
    print(f"{name}: {ours:.3f} ns, OpenSTA {theirs:.3f} ns")
    assert ours == pytest.approx(theirs, rel=0.1)
