"""Convolutions of one place with a stride: columns that they do not read are not loaded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vdla.compiler.build import build
from vdla.compiler.choose.space import Knobs
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor, infer
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Load
from vdla.isa.memory import MEMORY_PRESETS, MemoryParams
from vdla.isa.params import PRESETS, HwParams
from vdla.sim.model.core import simulate

from ..machines import RTL_WINDOWS
from .test_matmul import check_rtl, check_values, inputs_of, requant_for

WINDOW = HwParams(vector_window=3)
SMALL = replace(PRESETS["4x4"], vector_window=3)


def strided(
    size: tuple[int, int],
    stride: tuple[int, int] = (2, 2),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    depth: int = 40,
    channels: int = 24,
) -> Graph:
    rng = np.random.default_rng(5)
    conv = QConv2d(stride, pads, (1, 1), 1, 3, requant_for(depth))
    operands = [
        Tensor("x", (1, depth, *size), "int8"),
        Tensor.constant("w", rng.integers(-128, 128, (channels, depth, 1, 1)).astype(np.int8)),
        Tensor.constant("b", rng.integers(-9999, 9999, channels).astype(np.int32)),
    ]
    shape, dtype = infer(conv, tuple(operands), "node")
    tensors = [*operands, Tensor("y", shape, dtype)]
    node = Node("node", conv, ("x", "w", "b"), "y")
    return Graph("one", ("x",), ("y",), (node,), {t.name: t for t in tensors})


CASES = {
    "2 x 2": (strided((14, 16)), WINDOW),
    "odd rows and columns": (strided((13, 15)), WINDOW),
    "3 columns": (strided((9, 17), (1, 3)), WINDOW),
    "a border": (strided((11, 12), (2, 2), (1, 1, 1, 1)), WINDOW),
    "many results": (strided((14, 16), channels=400), WINDOW),
    "blocks of 4": (strided((10, 9), depth=10, channels=7), SMALL),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_interpreter(case: str) -> None:
    check_values(*CASES[case])


@pytest.mark.slow
@pytest.mark.parametrize(
    "knobs",
    [{"rows": 2, "cols": 3}, {"rows": 4, "cols": 7, "ic_blocks": 2}, {"rows": 1, "oc_blocks": 1}],
    ids=str,
)
@pytest.mark.parametrize("order", ["weights", "pixels", "stream"])
def test_tiles(knobs: Knobs, order: str) -> None:
    check_values(strided((16, 14)), WINDOW, {**knobs, "order": order})


def test_rows_of_tiles_are_even() -> None:
    """A load pads two dimensions, and these are columns and single entries."""
    with pytest.raises(VdlaError, match="skips columns, and its rows do not divide 7"):
        check_values(strided((14, 16)), WINDOW, {"rows": 4})


def loaded(graph: Graph, hw: HwParams, memory: MemoryParams) -> int:
    """Entries of the image that a program loads."""
    compiled = build(graph, find_target("sim", Options(hw, memory, 2, 1)))
    x = inputs_of(graph)
    (got,) = compiled.run(x, lambda program, dram: simulate(program, dram, memory))
    np.testing.assert_array_equal(got, interpret(graph, *x)[0])
    loads = [i for i in compiled.program.insns if isinstance(i, Load) and i.memory == "inp"]
    return sum(load.x_size * load.y_size * load.z_size for load in loads)


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("case", "hw", "memory", "skips"),
    [
        ("2 x 2", WINDOW, "vta", True),
        ("3 columns", WINDOW, "vta", True),
        ("many results", WINDOW, "vta", False),
        ("2 x 2", WINDOW, "slow", False),
        ("2 x 2", WINDOW, "wide", False),
    ],
)
def test_what_is_loaded(case: str, hw: HwParams, memory: str, skips: bool) -> None:
    """All columns where products take much longer, and where bursts of an entry do."""
    params, graph = replace(hw, bus_bits=MEMORY_PRESETS[memory].bus_bits), CASES[case][0]
    _, _, rows, cols = graph["y"].shape
    entries = loaded(graph, params, MEMORY_PRESETS[memory])
    assert entries == 3 * rows * cols if skips else entries > 3 * rows * cols


@pytest.mark.slow
def test_the_rtl_takes_the_same_cycles() -> None:
    graph, _ = CASES["blocks of 4"]
    check_rtl(graph, RTL_WINDOWS)
