"""Convolutions to whose results constants are added, on the tensor core and the vector unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vdla.compiler.choose.space import Knobs
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.ops.fused_pairs import QConvAddChannels
from vdla.compiler.graph.ops.group_matmul import QAddChannels
from vdla.compiler.targets.vdla.rewrite.fuse_epilogues import fuse_epilogues
from vdla.isa.errors import VdlaError
from vdla.isa.params import HwParams
from vdla.sim.model.core import simulate

from ....building import build_for, placed
from .test_matmul import DEFAULT, SMALL, VTA, check_rtl, check_values, inputs_of, requant_for


def operators(depth: int, channels: int, zero_point: int = 3) -> tuple[QConv2d, QAddChannels]:
    """A product whose results fill int8, and constants that move many of them to other values."""
    const = np.random.default_rng(0).integers(-(2**24), 2**24, channels).astype(np.int32)
    conv = QConv2d((1, 1), (0, 0, 0, 0), (1, 1), 1, zero_point, requant_for(depth))
    return conv, QAddChannels(205_000, 18, const, -9)


def product(depth: int, channels: int, places: int, fused: bool = True) -> Graph:
    """An image of ``depth`` channels, its product with random weights, and constants added."""
    rng = np.random.default_rng(2)
    conv, add = operators(depth, channels)
    shape, result = (1, depth, places, 1), (1, channels, places, 1)
    weight = rng.integers(-128, 128, (channels, depth, 1, 1)).astype(np.int8)
    tensors = [
        Tensor("x", shape, "int8"),
        Tensor.constant("w", weight),
        Tensor.constant("b", rng.integers(-9999, 9999, channels).astype(np.int32)),
        *(Tensor(name, result, "int8") for name in "hy"),
    ]
    operands = ("x", "w", "b")
    nodes = Node("conv", conv, operands, "h"), Node("add", add, ("h",), "y")
    if fused:
        nodes = (Node("node", QConvAddChannels(conv, add), operands, "y"),)
    return Graph("one", ("x",), ("y",), nodes, {t.name: t for t in tensors})


CASES = {
    "whole blocks": (product(64, 128, 48), DEFAULT),
    "channels that fill no blocks": (product(37, 50, 21), DEFAULT),
    "more places than tmp has entries": (product(32, 32, 300), DEFAULT),
    "places that are no even parts of tmp": (product(192, 64, 197), DEFAULT),
    "one place": (product(64, 300, 1), DEFAULT),
    "many blocks": (product(16, 1024, 20), DEFAULT),
    "blocks of 4": (product(24, 9, 30), SMALL),
    "little room": (product(24, 9, 30), replace(SMALL, tmp_depth=8)),
    "two passes": (product(40, 40, 40), HwParams(vector_passes=2)),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_interpreter(case: str) -> None:
    check_values(*CASES[case])


@pytest.mark.slow
@pytest.mark.parametrize(
    "knobs",
    [
        {"order": "weights", "oc_blocks": 2, "rows": 16, "vthreads": 2},
        {"order": "pixels", "oc_blocks": 3, "rows": 24, "vthreads": 3},
        {"order": "stream", "oc_blocks": 1, "rows": 48, "ic_blocks": 2, "vthreads": 1},
        {"order": "weights", "rows": 3, "vthreads": 16},
    ],
    ids=str,
)
def test_tiles(knobs: Knobs) -> None:
    """Also more rows than there is room for in tmp, and many virtual threads."""
    check_values(product(64, 96, 48), replace(DEFAULT, tmp_depth=32), knobs)


def test_rows_that_pass_tmp_in_uneven_parts_are_no_tile() -> None:
    """131 rows, where there is room for 128: as one row at a time they would take 131 passes."""
    reason = "a tile of 131 x 1 results does not pass tmp in even"
    with pytest.raises(VdlaError, match=reason):
        check_values(product(64, 96, 262), DEFAULT, {"rows": 131, "vthreads": 2})


def test_it_takes_less_than_both() -> None:
    """Nothing goes to DRAM between them, and the additions hide behind the products."""
    apart, together = (build_for("sim", product(256, 256, 128, j), DEFAULT, VTA) for j in (0, 1))
    x, cycles = inputs_of(product(256, 256, 128)), []
    for compiled in (apart, together):
        compiled.run(x, lambda p, dram: cycles.append(simulate(p, dram, VTA).cycles))
    alone = 16 * 16 * 128
    assert cycles[0] == cycles[1], "a pass joins both"
    assert cycles[1] < 1.2 * alone


@pytest.mark.more
@pytest.mark.slow
def test_the_rtl_takes_the_same_cycles() -> None:
    check_rtl(product(10, 9, 14), SMALL)


@pytest.mark.parametrize("reader", ["none", "an output", "another node", "groups"])
def test_which_additions_are_fused(reader: str) -> None:
    """Those of convolutions in one group whose results nothing else reads."""
    graph = placed(product(32, 32, 20, fused=False))
    conv, add = graph.nodes
    if reader == "an output":
        graph = replace(graph, outputs=("y", "h"))
    elif reader == "another node":
        other = replace(add, name="other", output="z")
        graph = graph.with_nodes([conv, add, other], replace(graph["y"], name="z"))
        graph = replace(graph, outputs=("y", "z"))
    elif reader == "groups":
        grouped = replace(conv, op=replace(conv.op, groups=2))
        weight = Tensor.constant("w", np.ones((32, 16, 1, 1), np.int8))
        graph = graph.with_nodes([grouped, add], weight)
    found = [node.op.name for node in fuse_epilogues(graph, lambda *_: False).nodes]
    assert found == (
        ["QConvAddChannels"] if reader == "none" else [node.op.name for node in graph.nodes]
    )
