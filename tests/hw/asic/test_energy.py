"""Energy by toggles: by hand, by Verilator's values, and against all toggles of a netlist that
Verilator runs gate by gate.
"""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
from vdla.bench.measure import random_inputs
from vdla.bench.table2 import choose_layers
from vdla.bench.toggles import layer_energy
from vdla.bench.workloads import ConvLayer
from vdla.compiler.build import build
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.hw.asic.activity import Samples, evaluate, python_function
from vdla.hw.asic.energy import energy_of, toggle_weights
from vdla.hw.asic.estimate import Design, load
from vdla.hw.asic.macros import DEFAULT
from vdla.hw.asic.timing import Timing
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import PRESETS
from vdla.sim.model.core import simulate
from vdla.sim.rtl.driver import RtlSimulator
from vdla.sim.rtl.toolchain import setup_yosys

from .circuits import OSU018
from .gate_level import SCALE, gate_level
from .test_timing import CLOCK, chain, memory

VCD = """$timescale 1ns $end
 $scope module TOP $end
  $var wire 1 ! clk $end
  $scope module vdla_core $end
   $scope module a $end
    $var wire 2 " first [1:0] $end
   $upscope $end
   $var wire 1 # other $end
  $upscope $end
 $upscope $end
$enddefinitions $end
#7500
b1 "
1#
#8500
b10 "
#9500
0#
#20500
b11 "
1#
"""


def samples() -> Samples:
    return Samples(VCD.splitlines(keepends=True), {"a.first", "other"})


def test_samples_of_a_waveform() -> None:
    """Of cycles 7, 8, 9 and 20 only the first three are neighbours; bit 0 is sample 0."""
    found = samples()
    assert found.cycles == [7, 8, 9, 20] and found.pairs == 0b011
    assert [found.wave("a.first", bit) for bit in (0, 1)] == [0b1001, 0b1110]
    assert found.wave("other", 0) == 0b1011
    assert found.wave("a.first", 2) is found.wave("clk", 0) is None


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("A", "0101"), ("!A", "1010"), ("A'", "1010"), ("(A B)", "0001"), ("A B'", "0100"),
        ("A+B", "0111"), ("A ^ B", "0110"), ("!(A & B) | 0", "1110"), ("A B + !A !B", "1001"),
        ("A ^ B A", "0100"), ("(A+B)'", "1000"), ("1", "1111"), ("!A * B", "0010"),
    ],
)  # fmt: skip
def test_functions_of_liberty(text: str, table: str) -> None:
    """The table's digits are of BA = 00, 01, 10, 11."""
    code = python_function(text, "v[{!r}]")
    values = {"0": 0, "1": 1}
    found = [eval(code, {"v": values | {"A": n & 1, "B": n >> 1}}) & 1 for n in range(4)]
    assert "".join(map(str, found)) == table


@pytest.mark.parametrize("text", ["(A", "A)", "", "A $ B", "A + ", "!"])
def test_other_functions_are_refused(text: str) -> None:
    with pytest.raises(VdlaError, match="expected a function"):
        python_function(text, "{}")


def test_energy_added_up_by_hand() -> None:
    """The chain of test_timing.py: a.f drives net 1, NAND2 net 2, which XOR2 and INV4 read."""
    made = chain()
    values = evaluate(made, {1: 0b0110, 8: 0b0011, 4: 0}, 4)
    assert values[2] == 0b1001 and values[3] == values[2] ^ 0b0011 and values[5] == 0b0110
    timing = Timing(made, [])
    charge, inside = toggle_weights(made, timing)[2]
    assert charge == pytest.approx(1.2**2 / 2 * 6e-3)  # XOR2 and INV4: 2 + 4 fF
    slews = [arrival.slew_ns for node, arrival in timing.arrivals.items() if node.net == 1]
    # NAND2 takes 0.5 fJ and 0.001 of the slew in units of 10 ps; falling, the first is 0.75.
    from_b = 1e-3 * (0.5 * 1.25 + 0.001 * 100 * np.mean(slews))
    assert inside == pytest.approx((1e-3 * 0.625 + from_b) / 2)  # A is a constant, without a slew


def test_energy_of_samples() -> None:
    """Net 1 is ``a.first``; the other register and the port are in the waveform, too."""
    made = chain()
    made.signals[4], made.signals[8] = [("a.first", 1)], [("other", 0)]
    tiled = memory(True)
    made.memories.append(tiled.memory)
    made.signals[12] = made.signals[9] = [("other", 0)]
    timing = Timing(made, [tiled])
    found = energy_of(made, [tiled], timing, samples())
    assert found.cycles == 2
    # Net 1 is 1, 0, 0 and net 4 is 0, 1, 1 in the cycles 7, 8, 9: one change each in two cycles.
    weights = toggle_weights(made, timing)
    assert found.blocks["a"].clock_pj == pytest.approx(1.44 * 0.9e-3 + 1e-3 * 1.4)
    assert found.blocks["a"].switching_pj == pytest.approx((weights[1][0] + weights[2][0]) / 2)
    assert found.blocks["a"].leakage_nw == pytest.approx(50 + 14)
    # The address is net 2, which changes once, and the write's enable net 8, set in cycle 8 only.
    accesses = found.accesses["words.storage"]
    assert (accesses.reads, accesses.held, accesses.writes) == (0.5, 0.5, 0.5)
    assert found.blocks["words"].macros_pj == pytest.approx(0.5 * 1.0 + 0.5 * 1.0)
    row = next(row for row in found.rows(mhz=100.0) if row["block"] == "a")
    assert row["mw"] == pytest.approx(0.1 * row["pj"] + 64e-6)
    assert CLOCK not in weights


def test_a_register_that_the_waveform_lacks_is_refused() -> None:
    made = chain()
    with pytest.raises(VdlaError, match=r"^toggles: expected the register b\.last in the waveform"):
        energy_of(made, [], Timing(made, []), samples())


@pytest.fixture(scope="module")
def core() -> Design:
    setup_yosys()
    return Design.of(PRESETS["4x4"], OSU018, *load(OSU018, DEFAULT))


#: Layers that a replay of all gates takes a minute for, and how near the windows must come: those
#: of the first hold all of its cycles. VDLA_LAYERS=C8,C11 names others, of half an hour each.
LAYERS = [(ConvLayer("S1", 4, 8, 8, 1, 1), 1e-5), (ConvLayer("S2", 7, 16, 16, 3, 1), 0.15)]
if names := os.environ.get("VDLA_LAYERS"):
    LAYERS = [(layer, 0.15) for layer in choose_layers(names.split(","))]


@pytest.mark.sweep
@pytest.mark.skipif(not OSU018.exists(), reason="the Debian package qflow-tech-osu018")
def test_energy_of_layers_is_that_of_a_replay_of_all_gates(core: Design, tmp_path, capfd) -> None:
    """All cycles, gate by gate; the netlist computes the model's bytes in the model's cycles."""
    verilog = gate_level(core.netlist, core.text, core.timing, tmp_path / "weights.hex")
    gates, memory_params = RtlSimulator(core.params, verilog, netlist=True), MEMORY_PRESETS["vta"]
    for layer, near in LAYERS:
        compiled = build(layer.model(1), find_target("sim", Options(core.params, memory_params)))

        def replay(program, dram) -> None:
            image = dram.copy()
            cycles = simulate(program, dram, memory_params).cycles
            result = gates.run(program, image, memory_params)
            assert result.cycles == cycles and np.array_equal(image, dram)

        compiled.run(random_inputs(compiled.inputs), replay)
        printed = re.search(r"ENERGY (\d+) (\d+)", capfd.readouterr().out)
        assert printed is not None
        ran, total = int(printed[1]), int(printed[2]) / SCALE
        cycles, energy = layer_energy(layer, core, memory_params)
        assert abs(ran - cycles) <= 2
        nets = sum(block.switching_pj + block.internal_pj for block in energy.blocks.values())
        with capfd.disabled():
            print(f"{layer.name}: {nets:.1f} pJ, replay {total / ran:.1f}, in all {energy.pj:.1f}")
        # Of the nets alone, because the clock's pins take as much in either.
        assert nets == pytest.approx(total / ran, rel=near)
