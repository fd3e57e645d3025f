"""The cycles that docs/measured.md tells are those of the simulator.

``make test`` compares what takes seconds, ``make figures`` everything. The RTL takes the same
cycles, which ``make verify`` and others show.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import vdla
from vdla.bench.networks import make_model
from vdla.bench.table2 import choose_layers, table2_rows
from vdla.bench.workloads import NETWORKS, TABLE_2
from vdla.cli.output import percent
from vdla.compiler.build import CompiledModel, build
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.generation.loop import LanguageModel
from vdla.hw.built import find_built
from vdla.isa.memory import MEMORY_PRESETS, load_platform
from vdla.isa.params import PRESETS
from vdla.report.bounds import core_macs
from vdla.report.report import join_programs, significant, timed
from vdla.sim.model.core import simulate, simulate_cycles
from vdla.sim.verify.random_programs import random_program

from .campaign.configurations import PLATFORMS
from .campaign.networks import DIGITS, IMAGES
from .compiler.building import build_for
from .generation.test_smollm2 import MACHINES, PROMPT_ROW, ROW

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "measured.md").read_text()
VTA = MEMORY_PRESETS["vta"]
HW = PRESETS["16x16"]
DIGITS_ROW = "digits, cycles for one image (16x16, `vta`)"
TRANSFORMER_ROW = "digits transformer, cycles for one image (16x16, `vta`)"
TOKEN_ROW = "a token of that Llama in int8, 256 places in the caches (16x16, `vta`), one program"
TOKEN_ROW += "; of the roofline"
BOARD_ROW = "the same machine: digits, MobileNet-V2, ResNet-18"
PROGRAMS_ROW = re.compile(r"[\d,]+ random programs .* \(([\d,]+) cycles\)")
#: Networks by the beginning of their row, then by name.
NETWORK_ROWS = {
    "resnet18": "ResNet-18, all of it, one program",
    "mobilenet_v1": "MobileNet-V1, all of it, one program",
    "dcgan": "DCGAN's generator, int8, one program",
    "dqn": "DQN, int8, one program",
    "lstm_lm": "LSTM language model, int8",
}
LONG = {"resnet18", "mobilenet_v1"}


def tables() -> list[list[list[str]]]:
    """Every table of the page: its rows, the heading first; of each row the cells."""
    found: list[list[list[str]]] = [[]]
    for line in PAGE.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [[rows[0], *rows[2:]] for rows in found if rows]


def measured() -> dict[str, str]:
    """The figures of the first table by what they are of."""
    (table,) = (rows for rows in tables() if rows[0] == ["what", "figure", "command"])
    return {what: figure for what, figure, _ in table[1:]}


def figure_of(name: str) -> tuple[str, str]:
    """The row of a network: what it is, and the figure."""
    (row,) = (row for row in measured().items() if row[0].startswith(NETWORK_ROWS[name]))
    return row


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_every_figure_in_cycles_is_compared() -> None:
    """A new row must get a test here. Differences between the simulators are no figures of ours."""
    rows = {
        what: figure
        for what, figure in measured().items()
        if re.search(r"\d,\d{3}.*cycle|cycles for", f"{what} {figure}")
    }
    compared = {DIGITS_ROW, TRANSFORMER_ROW, TOKEN_ROW, BOARD_ROW}
    compared |= {figure_of(name)[0] for name in NETWORKS}
    compared |= {
        what for what in rows if what.startswith((PROMPT_ROW, *(ROW + kind for kind in MACHINES)))
    }
    assert {what for what in rows if not PROGRAMS_ROW.match(what)} == compared


@pytest.mark.slow
def test_digits() -> None:
    module = vdla.compile(DIGITS, "sim", "16x16", "vta")
    module.run(IMAGES[:1])
    assert module.report["cycles"] == number(measured()[DIGITS_ROW])


@pytest.mark.slow
def test_digits_transformer() -> None:
    model = DIGITS.with_name("digits_transformer_int8.onnx")
    module = vdla.compile(model, "sim", HW, "vta")
    module.run(IMAGES[:1])
    assert len(module.compiled.programs) == 1
    assert measured()[TRANSFORMER_ROW] == f"{module.report['cycles']:,}, in one program"


@pytest.mark.sweep
@pytest.mark.slow
def test_a_token() -> None:
    model = LanguageModel.load(DIGITS.with_name("words.gguf"), prompt="The accelerator")
    [*_] = model.write("The accelerator", 2)
    report = model.module.report
    assert report["programs"] == 1
    share = percent(report["roofline_fraction"])
    assert measured()[TOKEN_ROW] == f"{report['cycles']:,} cycles; {share}"


def board_cycles() -> list[int]:
    """Cycles of :data:`BOARD_ROW`."""
    return [number(cell) for cell in measured()[BOARD_ROW].split(" cycles")[0].split(", ")]


@pytest.mark.slow
def test_digits_on_the_boards_memory() -> None:
    module = vdla.compile(DIGITS, "sim", "8x8", "ulx3s")
    module.run(IMAGES[:1])
    assert module.report["cycles"] == board_cycles()[0]


@pytest.mark.sweep
@pytest.mark.parametrize("place, name", [(1, "mobilenet_v2"), (2, "resnet18")])
def test_networks_on_the_boards_memory(place: int, name: str) -> None:
    params, memory = load_platform("8x8", "ulx3s")
    model = make_model(name, 1, quantized=True)
    compiled = build(model, find_target("sim", Options(params, memory)))
    assert simulate_cycles(compiled.program, memory).cycles == board_cycles()[place]


def board_table() -> dict[str, list[str]]:
    """The table of networks on the board: of each the cells."""
    (table,) = (rows for rows in tables() if rows[0][0] == "on the board")
    return {name: cells for name, *cells in table[1:]}


def test_clocks_of_the_board_are_those_of_designs_that_were_routed() -> None:
    (table,) = (rows for rows in tables() if rows[0][0] == "on the board")
    for column, hw in ((1, "8x8"), (4, "ecp5-85f")):
        built = find_built(*load_platform(hw, "ulx3s"))
        assert built is not None
        assert table[0][column] == f"`{hw}`, {built.mhz:g} MHz: cycles"


@pytest.mark.sweep
@pytest.mark.parametrize("name", board_table())
def test_networks_on_the_board(name: str) -> None:
    model = DIGITS if name == "digits" else make_model(name, 1, quantized=True)
    expected: list[str] = []
    for hw in ("8x8", "ecp5-85f"):
        params, memory = load_platform(hw, "ulx3s")
        compiled = build(model, find_target("sim", Options(params, memory)))
        cycles = sum(simulate_cycles(p, memory).cycles for p in compiled.programs)
        time = timed(cycles, params, memory)
        rate = significant(time["images_per_s"], 3)
        expected += [f"{cycles:,}", f"{time['time_ms']:.2f}", rate]
    assert board_table()[name] == expected


# ---- layers ----


def layer_cells(name: str, memory: str) -> tuple[str, str, str]:
    """Of a layer: *perfect*, and with a memory its cycles and its percentage."""
    (table,) = (rows for rows in tables() if rows[0][:2] == ["layer", "perfect"])
    (cells,) = (row for row in table if row[0] == name)
    column = table[0].index(f"`{memory}`")
    return cells[1], cells[column], cells[column + 1]


def test_all_layers_are_in_the_table() -> None:
    (table,) = (rows for rows in tables() if rows[0][:2] == ["layer", "perfect"])
    assert [row[0] for row in table[1:]] == [layer.name for layer in TABLE_2]
    plain = [name for name, memory in MEMORY_PRESETS.items() if not memory.part]
    assert [f"`{name}`" for name in plain] == table[0][2::2]


@pytest.mark.parametrize(
    "memory",
    [
        pytest.param("vta", marks=pytest.mark.slow),
        pytest.param("wide", marks=pytest.mark.sweep),
        pytest.param("slow", marks=pytest.mark.sweep),
    ],
)
@pytest.mark.parametrize("name", [layer.name for layer in TABLE_2])
def test_layer(name: str, memory: str) -> None:
    preset = MEMORY_PRESETS[memory]
    params = replace(HW, bus_bits=preset.bus_bits)
    (row,) = table2_rows(choose_layers([name]), params, preset)
    perfect = row["vector_cycles"] or round(row["mac_cycles"])
    bounds = ("vector", "reads") if row["vector_cycles"] else ("compute",)
    assert row["bound_by"] in bounds or memory != "vta"
    reached = row["roofline_fraction"]
    assert layer_cells(name, memory) == (f"{perfect:,}", f"{row['cycles']:,}", percent(reached))


# ---- networks ----


def weight_bytes(model: onnx.ModelProto) -> int:
    """Bytes of the int8 weights of convolutions and dense layers; tables of words are none."""
    dequantized = {n.input[0] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    weights = (t for t in model.graph.initializer if t.name in dequantized and len(t.dims) > 1)
    return sum(math.prod(tensor.dims) for tensor in weights)


def on_core(compiled: CompiledModel) -> int:
    """MACs of the tensor core."""
    program = join_programs(compiled.programs)
    return sum(core_macs(layer, program) for layer in compiled.layers if layer.runs is not None)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.sweep if name in LONG else pytest.mark.slow)
        for name in NETWORKS
    ],
)
def test_network(name: str) -> None:
    params, model = HW, NETWORKS[name](1, True)
    target = find_target("sim", Options(params, VTA))
    compiled = build(model, target)
    cycles = sum(
        simulate(program, program.dram_image(), VTA, values=False).cycles
        for program in compiled.programs
    )
    what, figure = figure_of(name)
    assert figure.startswith(f"{cycles:,} cycles")
    macs = sum(layer.macs for layer in compiled.layers if layer.runs is not None)
    if " % of the MAC peak" in figure:
        reached = on_core(compiled) / (cycles * params.peak_macs_per_cycle)
        assert figure.endswith(f", {percent(reached)} of the MAC peak")
    if share := re.search(r"take (\d+ %) of the time", what):
        bus_cycles = weight_bytes(model) / params.bus_bytes
        assert share[1] == f"{100 * bus_cycles / cycles:.0f} %"
    assert macs == sum(layer.macs for layer in compiled.layers)
    assert measured()["MACs of the five networks that run on the accelerator"] == "100 %"


def modern_table() -> dict[str, list[str]]:
    """The table of other networks: of each its cells."""
    (table,) = (rows for rows in tables() if rows[0][:2] == ["network", "cycles"])
    return {name: cells for name, *cells in table[1:]}


@pytest.mark.more
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "mobilenet_v1" else pytest.mark.sweep)
        for name in modern_table()
    ],
)
def test_modern_networks(name: str) -> None:
    """In one program, all on the accelerator."""
    model = make_model(name, 1, quantized=True)
    compiled = build_for("sim", model, HW, VTA)
    [program] = compiled.programs
    cycles = simulate(program, program.dram_image(), VTA, values=False).cycles
    macs = sum(layer.macs for layer in compiled.layers if layer.runs is not None)
    assert macs == sum(layer.macs for layer in compiled.layers)
    reached = on_core(compiled) / HW.peak_macs_per_cycle / cycles
    assert modern_table()[name] == [f"{cycles:,}", percent(reached)]


# ---- random programs ----


@pytest.mark.sweep
def test_random_programs() -> None:
    """As many on each configuration as ``make verify`` has, in SimPy only."""
    (what,) = (what for what in measured() if "the eleven configurations" in what)
    told = PROGRAMS_ROW.match(what)
    assert told and "up to 16x16 without windows" in what
    platforms = [p for p in PLATFORMS if p.params.block_out <= 16 and not p.params.vector_window]
    assert len(platforms) == 11
    cycles = 0
    for platform in platforms:
        for seed in range(1000):
            program = random_program(platform.params, seed)
            dram = program.dram_image()
            cycles += simulate(program, dram, platform.memory, values=False).cycles
    assert cycles == number(told[1])
