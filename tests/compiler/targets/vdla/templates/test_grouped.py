"""Convolutions in groups: which groups are taken together, and what is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import vdla
from hypothesis import given, settings
from hypothesis import strategies as st
from vdla.bench.net import Net
from vdla.compiler.build import build
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.machine import Machine
from vdla.compiler.targets.vdla.templates.convolution import Groups, Products
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import PRESETS, HwParams
from vdla.sim.model.core import simulate

from ....building import build_for, placed

VTA = MEMORY_PRESETS["vta"]
SMALL, BATCHED = PRESETS["4x4"], replace(PRESETS["8x8"], batch=2)


def grouped(
    groups: int,
    channels: tuple[int, int],
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
    images: int = 1,
    wide: bool = False,
) -> Graph:
    """One operator with random parameters; ``channels`` are a group's inputs and outputs. Weights
    are int16 if ``wide``.
    """
    rng = np.random.default_rng(0)
    inputs, outputs = groups * channels[0], groups * channels[1]
    shift = rng.integers(37, 40, outputs).astype(np.int32)
    requant = Requant(np.full(outputs, 2**30, np.int32), shift, 3)
    pads = (kernel[0] - 1, kernel[1] - 1, 1, 0)
    op = QConv2d(strides, pads, dilations, groups, -7, requant)
    limit, dtype = (255, np.int16) if wide else (127, np.int8)
    weight = rng.integers(-limit, limit + 1, (outputs, channels[0], *kernel)).astype(dtype)
    shape = (images, inputs, *size)
    result, _ = op.infer(
        (shape, "int8"), (weight.shape, str(weight.dtype)), ((outputs,), "int32")
    )  # fmt: skip
    tensors = [
        Tensor("x", shape, "int8"),
        Tensor.constant("w", weight),
        Tensor.constant("b", rng.integers(-3000, 3000, outputs).astype(np.int32)),
        Tensor("y", result, "int8"),
    ]
    node = Node("node", op, ("x", "w", "b"), "y")
    return Graph("one", ("x",), ("y",), (node,), {t.name: t for t in tensors})


def check_values(graph: Graph, hw: HwParams) -> None:
    """The accelerator computes what NumPy computes."""
    (node,) = placed(graph, hw).nodes
    assert isinstance(node.op, QConv2d)
    how = f"on the tensor core, in {node.op.groups} groups"
    assert (node.target, node.reason) == ("accel", how)
    x = np.random.default_rng(1).integers(-128, 128, graph["x"].shape).astype(np.int8)
    (expected,) = interpret(graph, x)
    assert len(np.unique(expected)) > 4
    compiled = build_for("sim", graph, hw, VTA)
    (got,) = compiled.run([x], lambda program, dram: simulate(program, dram, VTA))
    np.testing.assert_array_equal(got, expected)


TOGETHER = {
    "two of 8": ((46, 8, 8), Groups(2, 23, 1, 1)),
    "two of 8, the last by itself": ((19, 8, 8), Groups(2, 10, 1, 1)),
    "two of 24 are three blocks": ((14, 24, 24), Groups(2, 7, 3, 3)),
    "a group of two blocks": ((32, 32, 32), Groups(1, 32, 2, 2)),
    "more outputs than inputs": ((32, 2, 4), Groups(8, 4, 1, 2)),
    "more inputs than outputs": ((6, 48, 16), Groups(1, 6, 3, 1)),
    "half of the last three blocks is missing": ((5, 24, 24), None),
    "all together": ((3, 5, 5), None),
    "one": ((1, 64, 64), None),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_groups_fill_whole_blocks(case: str) -> None:
    (groups, inputs, outputs), expected = TOGETHER[case]
    graph = grouped(groups, (inputs, outputs), (4, 4), (1, 1))
    found = Products(Machine(HwParams(), VTA, 2)).find_groups(graph, graph.nodes[0])
    assert found == expected


CASES = {
    "pairs": (grouped(6, (8, 8), (9, 7), (3, 3)), HwParams()),
    "the last by itself": (grouped(5, (8, 8), (9, 7), (3, 3), (2, 2)), HwParams()),
    "blocks of a group": (grouped(3, (8, 12), (6, 5), (3, 2), dilations=(1, 2)), SMALL),
    "six together": (grouped(12, (6, 10), (5, 5), (1, 1), (2, 1)), BATCHED),
    "batch": (grouped(4, (8, 4), (5, 6), (3, 3), images=2), BATCHED),
    "two parts": (grouped(6, (2, 2), (6, 6), (3, 3), wide=True), SMALL),
    "two passes": (grouped(6, (8, 8), (6, 6), (3, 3)), HwParams(vector_passes=2)),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", CASES)
def test_accelerator_equals_the_interpreter(case: str) -> None:
    check_values(*CASES[case])


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_random_groups(data: st.DataObject) -> None:
    """Groups that make whole blocks, of any size, kernel, stride and dilation."""
    hw = data.draw(st.sampled_from([SMALL, replace(SMALL, batch=2), PRESETS["8x8"]]))
    whole = st.sampled_from([n * hw.block // 4 for n in (1, 2, 3, 4, 8)])
    channels = data.draw(st.tuples(whole, whole).filter(lambda pair: pair != (1, 1)))
    # As many groups as fill whole blocks, however many of them that takes.
    groups = 4 * data.draw(st.integers(2, 4))
    size, kernel = (data.draw(st.tuples(*[st.integers(*n)] * 2)) for n in ((4, 9), (1, 3)))
    strides, dilations = (data.draw(st.tuples(*[st.integers(1, 2)] * 2)) for _ in range(2))
    images = data.draw(st.integers(1, hw.batch))
    check_values(grouped(groups, channels, size, kernel, strides, dilations, images), hw)


@pytest.mark.parametrize("behind", [1, 2])
def test_no_tile_sees_padding_only(behind: int) -> None:
    """Rows of results beyond the image, of a kernel of one row: no load can make such a tile."""
    hw, (height, width) = SMALL, (4, 5)
    graph = grouped(8, (3, 1), (height, width), (1, 3))
    [node] = graph.nodes
    assert isinstance(node.op, QConv2d)
    node = replace(node, op=replace(node.op, pads=(0, 1, behind, 1)))
    y = replace(graph["y"], shape=(1, 8, height + behind, width))
    graph = replace(graph, nodes=(node,), tensors=graph.tensors | {"y": y})
    check_values(graph, hw)
    target = find_target("sim", Options(hw, VTA, 2, 1))
    with pytest.raises(VdlaError, match=f"a tile of 1 x {width} results would see padding only"):
        build(graph, target, knobs={"node": {"rows": 1, "cols": width}})


def test_products_of_blocks_and_no_more() -> None:
    """Two groups of eight channels fill a block, which is multiplied by itself alone: the tensor
    core does twice the products that a layer of RegNetY has.
    """
    graph = grouped(46, (8, 8), (7, 7), (3, 3))
    compiled = build_for("sim", graph, HwParams(), VTA)
    cycles = []
    x = np.zeros(graph["x"].shape, np.int8)
    compiled.run([x], lambda program, dram: cycles.append(simulate(program, dram, VTA).cycles))
    _, _, height, width = graph["y"].shape
    products = 23 * 9 * height * width
    assert products <= cycles[0] < 1.12 * products


@pytest.mark.more
@pytest.mark.slow
def test_the_rtl_takes_the_same_cycles() -> None:
    net = Net("groups")
    net.output(net.conv(net.input(1, 24, 6, 6), 36, 3, groups=6))
    x = np.random.default_rng(0).integers(-128, 128, (1, 24, 6, 6))
    runs = []
    for target in ("sim", "rtl"):
        module = vdla.compile(net.model(), target=target, hw=SMALL)
        runs.append((module.run(x.astype(np.float32) / 32)[0], module.report["cycles"]))
    (y, cycles), (z, others) = runs
    np.testing.assert_array_equal(y, z)
    assert cycles == others


def test_groups_that_fill_no_whole_blocks() -> None:
    """Few are computed with zeros between them; many stay on the host."""
    (few,) = placed(grouped(5, (24, 24), (4, 4), (3, 3))).nodes
    how = "on the tensor core, with zeros between its 5 groups"
    assert (few.target, few.reason) == ("accel", how)
    (many,) = placed(grouped(9, (24, 24), (4, 4), (3, 3))).nodes
    why = "convolution in 9 groups that do not fill whole blocks"
    assert (many.target, many.reason) == ("cpu", why)
