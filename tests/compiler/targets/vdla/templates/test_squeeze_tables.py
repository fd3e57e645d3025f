"""Means and products for each channel that look up the values of an image by themselves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest
from vdla.bench.measure import Measurement, measure
from vdla.bench.modern import FloatNet
from vdla.compiler.choose.space import Knobs
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.fused_pairs import QTableMean, QTableMul
from vdla.compiler.graph.ops.integer import QMul, QTable
from vdla.compiler.graph.ops.pooling import QAvgPool
from vdla.compiler.targets.vdla.machine import ACCELERATOR
from vdla.compiler.targets.vdla.plan import planner
from vdla.compiler.targets.vdla.rewrite.fuse_tables_into_readers import fuse_tables_into_readers
from vdla.isa.params import PRESETS, HwParams

from ..machines import RTL_WINDOWS
from ..test_squeeze import mean, product, quantised
from .test_matmul import VTA, check_values, one_operator

DEFAULT = HwParams(vector_table=2)
SMALL = replace(PRESETS["4x4"], vector_table=1, par_depth=96)
WINDOW = replace(SMALL, vector_window=3)
#: A table in which neighbours differ.
TABLE = QTable(np.random.default_rng(2).permutation(np.arange(-128, 128)).astype(np.int8))


def mean_of_values(shape: tuple[int, ...], zero_point: int = 5) -> Graph:
    op = mean(shape, zero_point).nodes[0].op
    assert isinstance(op, QAvgPool)
    return one_operator(QTableMean(TABLE, op), shape)


def product_of_values(shape: tuple[int, ...], zeros: tuple[int, int] = (-7, 100)) -> Graph:
    op = product(shape, zeros).nodes[0].op
    assert isinstance(op, QMul)
    return one_operator(QTableMul(TABLE, op), shape, (*shape[:2], 1, 1))


CASES = {
    "mean of 28 x 28": (mean_of_values((1, 144, 28, 28)), DEFAULT),
    "mean of 7 x 7": (mean_of_values((1, 144, 7, 7), -20), DEFAULT),
    "mean of one place": (mean_of_values((1, 144, 1, 1)), DEFAULT),
    "mean by a table of 8 bits": (mean_of_values((1, 40, 7, 7)), HwParams(vector_table=1)),
    "mean in blocks of 4": (mean_of_values((1, 106, 12, 18)), SMALL),
    "product": (product_of_values((1, 37, 8, 9)), DEFAULT),
    "product of many places": (product_of_values((1, 48, 20, 30), (-128, 127)), DEFAULT),
    "product without zero points": (product_of_values((1, 16, 9, 9), (0, 0)), DEFAULT),
    "product by a table of 8 bits": (product_of_values((1, 20, 9, 9)), HwParams(vector_table=1)),
    "product in blocks of 4": (product_of_values((1, 6, 9, 11)), SMALL),
    "product of two passes": (
        product_of_values((1, 24, 9, 11)), replace(DEFAULT, vector_passes=2),
    ),
    "factors loaded once for a block": (product_of_values((1, 22, 9, 21)), WINDOW),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_interpreter(case: str) -> None:
    check_values(*CASES[case])


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "knobs", [{"positions": 7, "vthreads": 3}, {"positions": 63, "vthreads": 1}]
)
def test_tiles_of_products(knobs: Knobs) -> None:
    """Rows of several tiles, and a row that is one tile."""
    for hw in (DEFAULT, replace(DEFAULT, vector_window=3)):
        check_values(product_of_values((1, 40, 7, 9)), hw, knobs)


@pytest.mark.parametrize("knobs", [{"part": 7, "vthreads": 3}, {"part": 49, "vthreads": 2}])
def test_parts_of_means(knobs: Knobs) -> None:
    check_values(mean_of_values((1, 40, 7, 7)), DEFAULT, knobs)


def excited(side: int, gate: str = "Sigmoid") -> onnx.ModelProto:
    """A convolution, and a depthwise one with SiLU and squeeze-and-excitation, in float32."""
    net = FloatNet("excited")
    x = net.conv(net.input(1, 3, side, side), 24, 3, 1)
    x = net.silu(net.conv(x, 24, 3, groups=24, relu=False))
    net.output(net.conv(net.squeezed(x, 8, gate), 16, 1, relu=False))
    return quantised(net.model())


def operators_of(found: Measurement) -> Counter[str]:
    assert len(found.compiled.programs) == 1
    return Counter(layer.op for layer in found.compiled.layers)


@pytest.mark.more
def test_the_table_makes_no_image_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the convolution before them applies it, with the same values."""
    fused = measure(excited(28), DEFAULT, VTA, ("sim",))
    monkeypatch.setattr(planner, "fuse_tables_into_readers", lambda graph, _: graph)
    apart = measure(excited(28), DEFAULT, VTA, ("sim",))
    before, after = operators_of(apart), operators_of(fused)
    assert before - after == Counter(["QConvTable", "QMul", "QAvgPool"])
    assert after - before == Counter(["QConv2d", "QTableMul", "QTableMean"])
    for one, other in zip(apart.outputs, fused.outputs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.more
@pytest.mark.slow
def test_the_rtl_takes_the_same_cycles() -> None:
    """``measure`` compares every byte of DRAM, and the start and end of every instruction."""
    found = measure(excited(12), RTL_WINDOWS, VTA, ("sim", "rtl"))
    assert "QTableMul" in operators_of(found)
    assert found.cycles_of("sim") == found.cycles_of("rtl")


@pytest.mark.parametrize(
    "case, fuses",
    [
        ("mean and product", True),
        ("large mean", False),
        ("mean on the host", False),
        ("part of the image", False),
        ("values as factors", False),
        ("an output", False),
    ],
)
def test_which_tables_are_fused(case: str, fuses: bool) -> None:
    """Those of which every reader can look up values."""
    shape, one = (1, 32, 6, 6), (1, 32, 1, 1)
    pool, times = mean(shape).nodes[0].op, product(shape).nodes[0].op
    assert isinstance(pool, QAvgPool)
    if case == "part of the image":
        pool = replace(pool, kernel=(2, 2), strides=(5, 5))
    operands = ("t", "t") if case == "values as factors" else ("t", "f")
    nodes = [
        Node("table", TABLE, ("x",), "t", ACCELERATOR),
        Node("mean", pool, ("t",), "m", ACCELERATOR),
        Node("product", times, operands, "y", ACCELERATOR),
    ]
    if case == "mean on the host":
        nodes[1] = replace(nodes[1], target="cpu")
    tensors = [Tensor(name, shape, "int8") for name in "xty"]
    tensors += [Tensor(name, one, "int8") for name in "fm"]
    outputs = ("m", "y", "t") if case == "an output" else ("m", "y")
    graph = Graph("one", ("x", "f"), outputs, tuple(nodes), {t.name: t for t in tensors})
    found = fuse_tables_into_readers(
        graph, lambda places: case != "large mean" and places == 36
    ).nodes
    names = [node.op.name for node in found]
    assert names == (["QTableMean", "QTableMul"] if fuses else ["QTable", "QAvgPool", "QMul"])
