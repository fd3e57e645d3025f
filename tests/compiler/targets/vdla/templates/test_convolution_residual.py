"""Convolutions to whose results another image is added, on the tensor core and the vector unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vdla.compiler.build import build
from vdla.compiler.choose.space import Knobs
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.ops.fused_pairs import QConvAdd
from vdla.compiler.graph.ops.integer import QAdd
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.cost.tiling import Tiling, rows_through_tmp
from vdla.compiler.targets.vdla.machine import ACCELERATOR, Budget, Context, Machine
from vdla.compiler.targets.vdla.rewrite.fuse_epilogues import fuse_epilogues
from vdla.compiler.targets.vdla.templates.fused_products import FusedProducts
from vdla.isa.params import PRESETS, HwParams
from vdla.sim.model.core import simulate

from ..machines import RTL_WINDOWS
from .test_matmul import VTA, check_rtl, check_values, cycles_of, inputs_of, requant_for

DEFAULT, SMALL = HwParams(), PRESETS["4x4"]
WINDOWS = find_target("sim", Options(HwParams(vector_window=3), VTA, 2, 1))


def residual(
    depth: int,
    channels: int,
    size: tuple[int, int],
    kernel: int = 1,
    fused: bool = True,
    swapped: bool = False,
) -> Graph:
    """An image, its convolution with random weights, and another image that is added to it, with
    another factor; bounds of a ReLU."""
    rng = np.random.default_rng(2)
    pad = kernel // 2
    conv = QConv2d((1, 1), (pad,) * 4, (1, 1), 1, 3, requant_for(depth * kernel * kernel))
    add = QAdd((300_000, 200_000), 18, 1234, -9, -60, 127)
    weight = rng.integers(-128, 128, (channels, depth, kernel, kernel)).astype(np.int8)
    result = (1, channels, *size)
    tensors = [
        Tensor("x", (1, depth, *size), "int8"),
        Tensor("z", result, "int8"),
        Tensor.constant("w", weight),
        Tensor.constant("b", rng.integers(-9999, 9999, channels).astype(np.int32)),
        *(Tensor(name, result, "int8") for name in "hy"),
    ]
    operands, addends = ("x", "w", "b"), ("z", "h") if swapped else ("h", "z")
    nodes = Node("conv", conv, operands, "h"), Node("add", add, addends, "y")
    if fused:
        nodes = (Node("node", QConvAdd(conv, add), (*operands, "z"), "y"),)
    return Graph("one", ("x", "z"), ("y",), nodes, {t.name: t for t in tensors})


CASES = {
    "whole blocks": (residual(64, 128, (6, 8)), DEFAULT),
    "channels that fill no blocks": (residual(37, 50, (3, 7)), DEFAULT),
    "3 x 3": (residual(16, 32, (14, 14), 3), DEFAULT),
    "more places than tmp has entries": (residual(32, 32, (20, 15)), DEFAULT),
    "one place": (residual(64, 300, (1, 1)), DEFAULT),
    "blocks of 4": (residual(24, 9, (5, 6)), SMALL),
    "little room": (residual(24, 9, (5, 6)), replace(SMALL, tmp_depth=12)),
    "two passes": (residual(40, 40, (5, 8)), HwParams(vector_passes=2)),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_interpreter(case: str) -> None:
    check_values(*CASES[case])


@pytest.mark.slow
@pytest.mark.parametrize(
    "knobs",
    [
        {"order": "weights", "oc_blocks": 2, "rows": 4, "cols": 4, "vthreads": 2},
        {"order": "pixels", "oc_blocks": 3, "rows": 2, "cols": 8, "vthreads": 3},
        {"order": "stream", "oc_blocks": 1, "rows": 8, "cols": 4, "ic_blocks": 2, "vthreads": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("window", [0, 3])
def test_tiles(knobs: Knobs, window: int) -> None:
    """Virtual threads use the entries of tmp one after the other."""
    hw = replace(DEFAULT, tmp_depth=96, vector_window=window)
    check_values(residual(64, 96, (8, 8)), hw, knobs)


def test_rows_that_pass_tmp() -> None:
    """A result has two entries of tmp, which are for one thread after the other."""
    graph, machine = residual(32, 32, (20, 4)), Machine(DEFAULT, VTA, 2)
    context = Context(Budget.whole(DEFAULT))
    workload = FusedProducts(machine).workload(graph, graph.nodes[0], context)
    for vthreads in (1, 2):
        tiling = Tiling(2, 20, 4, 2, "weights", vthreads)
        assert rows_through_tmp(tiling, workload.shape) == 10, "of 20, where 16 have room"


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("hw", [SMALL, RTL_WINDOWS], ids=["plain", "windows"])
def test_the_rtl_takes_the_same_cycles(hw: HwParams) -> None:
    check_rtl(residual(10, 9, (5, 6), 3), hw)


@pytest.mark.parametrize("case", ["first", "second", "3 x 3", "chosen so", "a factor of 0"])
def test_which_images_are_added(case: str) -> None:
    """Those of kernels of one place, unless the choice is another."""
    kernel, second = 3 if case == "3 x 3" else 1, case == "second"
    graph = residual(32, 32, (4, 5), kernel, fused=False, swapped=second)
    conv, add = (replace(node, target=ACCELERATOR) for node in graph.nodes)
    if case == "a factor of 0":
        add = replace(add, op=replace(add.op, factors=(300_000, 0)))
    graph = graph.with_nodes([conv, add])
    found = fuse_epilogues(graph, lambda *_: case != "chosen so").nodes
    if case not in ("first", "second"):
        assert [node.op for node in found] == [conv.op, add.op]
        return
    [node] = found
    assert node.inputs == ("x", "w", "b", "z")
    x, z = inputs_of(graph)
    others = graph["w"].data, graph["b"].data
    product = conv.op.evaluate(x, *others)
    expected = add.op.evaluate(*((z, product) if second else (product, z)))
    np.testing.assert_array_equal(node.op.evaluate(x, *others, z), expected)


@pytest.mark.fast(1)
@pytest.mark.parametrize("addition", ["apart", "fused"])
def test_the_choice_is_open(addition: str) -> None:
    graph = residual(64, 64, (8, 8), fused=False)
    compiled = build(graph, WINDOWS, knobs={"conv": {"addition": addition}})
    fused = ["QConvAdd"] if addition == "fused" else ["QConv2d", "QAdd"]
    assert [layer.op for layer in compiled.layers] == fused
    conv = compiled.layers[0]
    assert conv.knobs["addition"] == addition and conv.chosen_by == "user"
    (y,) = compiled.run(inputs_of(graph), lambda p, dram: simulate(p, dram, VTA))
    (expected,) = interpret(graph, *inputs_of(graph))
    np.testing.assert_array_equal(y, expected)


@pytest.mark.slow
def test_knobs_for_an_operator_leave_it_alone() -> None:
    """Who says how a convolution or an addition is computed has one."""
    graph = residual(64, 64, (8, 8), fused=False)
    for layer in "conv", "add":
        compiled = build(graph, WINDOWS, knobs={layer: {"vthreads": 1}})
        assert [layer.op for layer in compiled.layers] == ["QConv2d", "QAdd"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "depth, size, expected", [(64, (32, 32), "fused"), (256, (14, 14), "apart")]
)
def test_what_ends_first_is_taken(depth: int, size: tuple[int, int], expected: str) -> None:
    graph = residual(depth, 64, size, fused=False)
    cycles = {
        addition: cycles_of(build(graph, WINDOWS, knobs={"conv": {"addition": addition}}), graph)
        for addition in ("apart", "fused")
    }
    chosen = build(graph, WINDOWS)
    assert chosen.layers[0].knobs["addition"] == expected == min(cycles, key=lambda a: cycles[a])
    assert chosen.layers[0].chosen_by == "planner"
    assert cycles_of(chosen, graph) == cycles[expected]
