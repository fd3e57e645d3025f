"""Convolutions whose results are looked up in a table, on the tensor core and the vector unit; and
depthwise convolutions, on the vector unit alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vdla.compiler.choose.space import Knobs
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.ops.fused_pairs import QConvTable
from vdla.compiler.graph.ops.integer import QTable
from vdla.compiler.graph.ops.movement import Reshape
from vdla.compiler.graph.passes.fuse_tables import EVERY_INT8
from vdla.compiler.targets.vdla.machine import ACCELERATOR, HOST
from vdla.compiler.targets.vdla.rewrite.fuse_epilogues import fuse_epilogues, fuse_window_tables
from vdla.isa.insn import Table
from vdla.isa.params import PRESETS, HwParams
from vdla.sim.model.core import simulate

from ....building import build_for
from ..machines import RTL_TABLES
from .test_grouped import grouped
from .test_matmul import VTA, check_rtl, check_values, inputs_of, requant_for

DEFAULT = HwParams(vector_table=2)
SMALL = replace(PRESETS["4x4"], vector_table=1, par_depth=96)


def activated(
    depth: int, channels: int, size: tuple[int, int], kernel: int = 1, fused: bool = True
) -> Graph:
    """An image, its convolution with random weights, and a table in which neighbours differ."""
    rng = np.random.default_rng(2)
    pad = kernel // 2
    epilogue = requant_for(depth * kernel * kernel)
    conv = QConv2d((1, 1), (pad, pad, pad, pad), (1, 1), 1, 3, epilogue)
    table = QTable(rng.permutation(np.arange(-128, 128)).astype(np.int8))
    weight = rng.integers(-128, 128, (channels, depth, kernel, kernel)).astype(np.int8)
    tensors = [
        Tensor("x", (1, depth, *size), "int8"),
        Tensor.constant("w", weight),
        Tensor.constant("b", rng.integers(-9999, 9999, channels).astype(np.int32)),
        *(Tensor(name, (1, channels, *size), "int8") for name in "hy"),
    ]
    operands = ("x", "w", "b")
    nodes = Node("conv", conv, operands, "h"), Node("table", table, ("h",), "y")
    if fused:
        nodes = (Node("node", QConvTable(conv, table), operands, "y"),)
    return Graph("one", ("x",), ("y",), nodes, {t.name: t for t in tensors})


def windowed(channels: int, size: tuple[int, int], kernel: int, stride: int = 1) -> Graph:
    """An image, its depthwise convolution, and a table in which neighbours differ."""
    plain = grouped(channels, (1, 1), size, (kernel, kernel), (stride, stride))
    [node], table = plain.nodes, QTable(np.random.default_rng(2).permutation(EVERY_INT8))
    return plain.with_nodes([replace(node, op=QConvTable(node.op_as(QConv2d), table))])


CASES = {
    "whole blocks": (activated(64, 128, (6, 8)), DEFAULT),
    "channels that fill no blocks": (activated(37, 50, (3, 7)), DEFAULT),
    "3 x 3": (activated(16, 32, (14, 14), 3), DEFAULT),
    "more places than tmp has entries": (activated(32, 32, (20, 15)), DEFAULT),
    "one place": (activated(64, 300, (1, 1)), DEFAULT),
    "values of 8 bits": (activated(32, 32, (8, 8)), HwParams(vector_table=1)),
    "blocks of 4": (activated(24, 9, (5, 6)), SMALL),
    "little room": (activated(24, 9, (5, 6)), replace(SMALL, tmp_depth=8)),
    "two passes": (activated(40, 40, (5, 8)), replace(DEFAULT, vector_passes=2)),
    "depthwise": (windowed(40, (9, 11), 3), DEFAULT),
    "windows that slide": (windowed(70, (14, 15), 3), replace(DEFAULT, vector_window=3)),
    "in steps of two": (windowed(40, (14, 15), 5, 2), replace(DEFAULT, vector_window=3)),
    "windows in little room": (windowed(24, (20, 9), 3), replace(SMALL, tmp_depth=8)),
    "windows in two passes": (windowed(40, (9, 9), 3), replace(DEFAULT, vector_passes=2)),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_interpreter(case: str) -> None:
    check_values(*CASES[case])


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "knobs",
    [
        {"order": "weights", "oc_blocks": 2, "rows": 4, "cols": 4, "vthreads": 2},
        {"order": "pixels", "oc_blocks": 3, "rows": 2, "cols": 8, "vthreads": 3},
        {"order": "stream", "oc_blocks": 1, "rows": 8, "cols": 4, "ic_blocks": 2, "vthreads": 1},
    ],
    ids=str,
)
def test_tiles(knobs: Knobs) -> None:
    check_values(activated(64, 96, (8, 8)), replace(DEFAULT, tmp_depth=32), knobs)


@pytest.mark.slow
def test_nothing_goes_to_dram_in_between_and_the_table_is_set_once() -> None:
    """The look-ups hide behind the products."""
    graph = activated(256, 256, (8, 16), fused=False)
    hw, cycles = replace(DEFAULT, vector_window=3), []
    compiled = build_for("sim", graph, hw, VTA)
    compiled.run(inputs_of(graph), lambda p, dram: cycles.append(simulate(p, dram, VTA).cycles))
    assert [layer.op for layer in compiled.layers] == ["QConvTable"]
    assert sum(isinstance(insn, Table) for insn in compiled.program.insns) == 1
    assert cycles[0] < 1.2 * 16 * 16 * 128


@pytest.mark.more
@pytest.mark.slow
def test_the_rtl_takes_the_same_cycles() -> None:
    check_rtl(activated(10, 9, (5, 6), 3), RTL_TABLES)
    check_rtl(windowed(10, (5, 6), 3), RTL_TABLES)


@pytest.mark.parametrize("reader", ["none", "the host", "another node"])
def test_which_tables_are_fused(reader: str) -> None:
    """Those that are the only reader, on the accelerator."""
    graph = activated(32, 32, (4, 5), fused=False)
    conv, table = (replace(node, target=ACCELERATOR) for node in graph.nodes)
    if reader == "the host":
        table = replace(table, target=HOST)
    graph = graph.with_nodes([conv, table])
    if reader == "another node":
        other = replace(table, name="other", output="z")
        graph = graph.with_nodes([conv, table, other], replace(graph["y"], name="z"))
        graph = replace(graph, outputs=("y", "z"))
    nodes = fuse_epilogues(graph, lambda *_: False).nodes
    found = [node.op.name for node in nodes]
    assert found == (["QConvTable"] if reader == "none" else [n.op.name for n in graph.nodes])


@pytest.mark.parametrize("reader", ["none", "a reshape", "another node"])
def test_which_tables_are_fused_into_windows(reader: str) -> None:
    """Also those of a reshape that moves nothing, but none that is not alone."""
    plain = grouped(32, (1, 1), (4, 5), (3, 3))
    [conv], image = plain.nodes, plain["y"]
    conv = replace(conv, target=ACCELERATOR)
    row = replace(image, name="row", shape=(1, 32, image.shape[2] * image.shape[3], 1))
    looked_up = replace(row if reader == "a reshape" else image, name="z")
    before = "row" if reader == "a reshape" else "y"
    nodes = [conv, Node("table", QTable(EVERY_INT8), (before,), "z", ACCELERATOR)]
    if reader == "a reshape":
        nodes.insert(1, Node("rows", Reshape(row.shape), ("y",), "row", ACCELERATOR))
    if reader == "another node":
        nodes.append(Node("other", QTable(EVERY_INT8[::-1]), ("y",), "other", ACCELERATOR))
    graph = plain.with_nodes(nodes, row, looked_up, replace(image, name="other"))
    outputs = ("z", "other") if reader == "another node" else ("z",)
    graph = replace(graph, outputs=outputs)
    found = fuse_window_tables(graph)
    expected = {"none": ["QConvTable"], "a reshape": ["QConvTable", "Reshape"]}
    usual = [node.op.name for node in nodes]
    assert [node.op.name for node in found.nodes] == expected.get(reader, usual)
    x = inputs_of(graph)
    np.testing.assert_array_equal(interpret(found, *x)[0], interpret(graph, *x)[0])
