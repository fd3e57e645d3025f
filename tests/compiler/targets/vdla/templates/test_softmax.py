"""Softmax along the places of an image, on the vector unit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vdla.compiler.build import build
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.ops.softmax import QTableSoftmax
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.machine import vector_loops
from vdla.compiler.targets.vdla.templates.softmax import longest_row
from vdla.isa.insn import Load
from vdla.isa.params import PRESETS, HwParams
from vdla.isa.program import Program

from ....building import build_for
from ..machines import RTL_TABLES
from .test_matmul import VTA, check_rtl, check_values, one_operator

HW = HwParams(vector_table=2)
SMALL = replace(PRESETS["4x4"], vector_table=2)


def softmax(
    channels: int, places: int, out_scale: float = 1 / 255, zero_point: int = -128
) -> Graph:
    """Rows of random elements."""
    op = QTableSoftmax(2, 0.02, out_scale, zero_point)
    return one_operator(op, (1, channels, places, 1))


CASES = {
    "a tile": (softmax(32, 16), HW),
    "several tiles": (softmax(144, 37), HW),
    "small probabilities": (softmax(48, 50, 0.1 / 255), HW),
    "tiny probabilities": (softmax(48, 197, 1 / 40_000), HW),
    "another zero point": (softmax(16, 21, 1 / 60, 5), HW),
    "rows of 2 loops": (softmax(16, 1500, 1 / 4000), HW),
    "the longest rows": (softmax(16, 2048, 1 / 4096 / 255), HW),
    "blocks of 4": (softmax(12, 9), SMALL),
    "two passes": (softmax(48, 33), replace(HW, vector_passes=2)),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", CASES)
def test_softmax_equals_the_interpreter(case: str) -> None:
    check_values(*CASES[case])


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [(1, 1), (2, 20), (3, 13), (4, 13)], ids=str)
def test_tiles(knobs: tuple[int, int]) -> None:
    """Also tiles with a remainder in both dimensions."""
    graph = softmax(112, 39, 0.2 / 255)
    check_values(graph, HW, {"blocks": knobs[0], "positions": knobs[1]})


@pytest.mark.parametrize(("positions", "chunks"), [(13, 3), (20, 2)])
def test_a_tile_that_fills_inp_comes_in_chunks(positions: int, chunks: int) -> None:
    """Where ``inp`` has no room for two tiles; of 20 positions, the last chunk has 19."""
    graph, params = softmax(48, 39), replace(HW, inp_depth=64)
    knobs = {"blocks": 1, "positions": positions}
    check_values(graph, params, knobs)
    target = find_target("sim", Options(params, VTA, 2, 1))
    [program] = build(graph, target, knobs={"node": knobs}).programs
    loads = [insn for insn in program.insns if isinstance(insn, Load) and insn.memory == "inp"]
    assert len(loads) == 3 * chunks and sum(insn.entries for insn in loads) == 3 * 39


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("out_scale", [1 / 255, 0.1 / 255, 1 / 2048 / 255])
def test_the_rtl_takes_the_same_cycles(out_scale: float) -> None:
    check_rtl(softmax(24, 19, out_scale), RTL_TABLES)


@pytest.mark.slow
def test_what_it_costs() -> None:
    """Four passes over 4 heads of 128 keys and queries are 16,384 cycles; the planner knows what
    the inverses cost besides."""
    graph = softmax(512, 128)
    cycles = check_values(graph, HW)
    (layer,) = build_for("sim", graph, HW, VTA).layers
    assert layer.predicted_cycles is not None
    assert 0.8 * cycles < layer.predicted_cycles < 1.2 * cycles
    assert cycles < 2.3 * 16384


@pytest.mark.slow
@pytest.mark.parametrize(
    "params", [replace(HW, inp_depth=100), replace(SMALL, tmp_depth=23)], ids=["inp", "tmp"]
)
def test_the_longest_row_fits_and_one_more_does_not(params: HwParams) -> None:
    longest = longest_row(params)
    check_values(softmax(params.block, longest, 1 / 2000), params)
    [layer] = build_for("sim", softmax(params.block, longest + 1), params, VTA).layers
    assert layer.target == "cpu" and f"there is room for {longest}" in layer.reason


def test_a_row_is_loops_of_an_instruction() -> None:
    assert vector_loops(1023) == (1023,) and vector_loops(1024) == (2, 512)
    assert vector_loops(2048) == (4, 512) and vector_loops(2042) == (2, 1021)
    [layer] = build_for("sim", softmax(16, 1031), HW, VTA).layers
    assert layer.target == "cpu" and "no product of two loops" in layer.reason


def test_without_a_table_of_16_bits_there_is_no_row() -> None:
    assert longest_row(HwParams()) == longest_row(HwParams(vector_table=1)) == 0
    assert longest_row(HW) == 2048


def test_the_table_is_set_once() -> None:
    """All tiles have the same exponentials."""
    compiled = build_for("sim", softmax(144, 37), HW, VTA)
    (program,) = (step for step in compiled.steps if isinstance(step, Program))
    opcodes = [insn.opcode.name for insn in program.insns]
    assert opcodes.count("TABLE") == 1
