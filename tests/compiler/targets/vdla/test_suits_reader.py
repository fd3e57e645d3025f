"""Operators of the vector unit whose results come in the order in which the tensor core reads them:
it multiplies the first rows while the others are made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vdla.compiler.build import CompiledModel, build
from vdla.compiler.choose.space import Knobs
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.cost.tiling import ProductShape, plan_tiles
from vdla.compiler.targets.vdla.machine import Budget, Context, Machine
from vdla.isa.errors import VdlaError
from vdla.isa.opcodes import Unit
from vdla.isa.params import PRESETS, HwParams
from vdla.runtime.result import SimResult
from vdla.sim.model.core import simulate

from .machines import RTL_TABLES
from .templates.test_matmul import VTA, check_rtl, inputs_of, one_operator, requant_for
from .templates.test_squeeze_tables import TABLE, product_of_values
from .test_squeeze import product

DEFAULT = HwParams(vector_table=2)
SMALL = replace(PRESETS["4x4"], vector_table=1, par_depth=96)


def read_by_products(graph: Graph, channels: int, kernel: int = 1) -> Graph:
    """The graph of one operator, and a convolution of its result."""
    rng, result = np.random.default_rng(3), graph["y"].shape
    depth, pad = result[1], kernel // 2
    epilogue = requant_for(depth * kernel * kernel)
    conv = QConv2d((1, 1), (pad,) * 4, (1, 1), 1, 3, epilogue)
    weight = rng.integers(-128, 128, (channels, depth, kernel, kernel)).astype(np.int8)
    bias = rng.integers(-9999, 9999, channels).astype(np.int32)
    tensors = [
        *graph.tensors.values(), Tensor.constant("w", weight), Tensor.constant("b", bias),
        Tensor("z", (1, channels, *result[2:]), "int8"),
    ]  # fmt: skip
    nodes = *graph.nodes, Node("conv", conv, ("y", "w", "b"), "z")
    return Graph("two", graph.inputs, ("z",), nodes, {t.name: t for t in tensors})


def looked_up(shape: tuple[int, ...]) -> Graph:
    return one_operator(TABLE, shape)


CASES = {
    "product": (read_by_products(product((1, 37, 20, 20)), 150), DEFAULT),
    "product by 3 x 3": (read_by_products(product((1, 37, 20, 20)), 40, 3), DEFAULT),
    "product of values": (
        read_by_products(product_of_values((1, 48, 20, 20)), 150),
        replace(DEFAULT, vector_window=3),
    ),
    "values": (read_by_products(looked_up((1, 37, 20, 20)), 150), DEFAULT),
    "product, blocks of 4": (read_by_products(product((1, 12, 10, 12)), 20), SMALL),
    "values, blocks of 4": (read_by_products(looked_up((1, 12, 10, 12)), 20), SMALL),
    "product, two passes": (
        read_by_products(product((1, 37, 20, 20)), 150), replace(DEFAULT, vector_passes=2),
    ),
}  # fmt: skip


def run(graph: Graph, hw: HwParams, knobs: Knobs | None = None) -> tuple[CompiledModel, SimResult]:
    """The compiled graph, whose results are the interpreter's, and its run."""
    target = find_target("sim", Options(hw, VTA, 2, 1))
    compiled = build(graph, target, knobs={"node": knobs} if knobs else None)
    x, runs = inputs_of(graph), []
    got = compiled.run(x, lambda program, dram: runs.append(simulate(program, dram, VTA)))
    for mine, expected in zip(got, interpret(graph, *x), strict=True):
        np.testing.assert_array_equal(mine, expected)
    (result,) = runs
    return compiled, result


def times(compiled: CompiledModel, result: SimResult, name: str, unit: Unit) -> list[int]:
    """When a layer's instructions of a unit start."""
    [layer] = [layer for layer in compiled.layers if layer.name == name]
    places = [i for first, last in layer.runs or () for i in range(first, last + 1)]
    return [result.starts[i] for i in places if compiled.program.insns[i].unit is unit]


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", CASES)
def test_the_tensor_core_begins_before_the_last_rows_are_there(case: str) -> None:
    """And the results are those of the interpreter."""
    compiled, result = run(*CASES[case])
    products = times(compiled, result, "conv", Unit.GEMM)
    assert min(products) < max(times(compiled, result, "node", Unit.VECTOR))


@pytest.mark.slow
def test_small_tiles_follow_a_slow_maker() -> None:
    """A convolution that waits for the first rows of a product, and one that does not."""
    waits = read_by_products(product((1, 256, 14, 14)), 128)
    free = replace(waits, inputs=("y",), nodes=waits.nodes[1:])
    rows = []
    for graph in (waits, free):
        *_, conv = run(graph, DEFAULT)[0].layers
        assert conv.name == "conv" and conv.knobs
        rows.append(conv.knobs["rows"])
    assert rows == [1, 7]


@pytest.mark.fast(1)
@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize(("places", "vthreads"), [(20, 2), (40, 1), (13, 3)])
@pytest.mark.parametrize("case", ["product", "values"])
def test_tiles(case: str, blocks: int, places: int, vthreads: int) -> None:
    graph, hw = CASES[case]
    run(graph, hw, {"blocks": blocks, "positions": places, "vthreads": vthreads})


@pytest.mark.parametrize("case", ["product", "values"])
def test_a_whole_image_that_is_read_at_once_has_one_block_at_a_time(case: str) -> None:
    """So has an image that nothing reads."""
    alone = {"product": product((1, 64, 7, 7)), "values": looked_up((1, 64, 7, 7))}[case]
    for graph in (read_by_products(alone, 64), alone):
        with pytest.raises(VdlaError, match="knob blocks: expected 1, got 2"):
            run(graph, DEFAULT, {"blocks": 2})


def test_factors_without_room_are_those_of_a_block_at_a_time() -> None:
    graph = read_by_products(product((1, 4 * SMALL.tmp_depth, 4, 5)), 4, kernel=3)
    run(graph, SMALL)
    with pytest.raises(VdlaError, match="knob blocks: expected 1, got 2"):
        run(graph, SMALL, {"blocks": 2})


@pytest.mark.slow
@pytest.mark.parametrize("case", ["product, blocks of 4", "values, blocks of 4"])
def test_the_rtl_takes_the_same_cycles(case: str) -> None:
    graph, _ = CASES[case]
    check_rtl(graph, RTL_TABLES)


def test_the_first_tile_is_small_where_its_image_takes_long() -> None:
    shape = ProductShape(ic_blocks=8, oc_blocks=8, oh=28, ow=28, kh=1, kw=1)
    machine, budget = Machine(DEFAULT, VTA, 2), Budget.whole(DEFAULT)
    firsts = []
    for cycles in (0, 5_000, 50_000):
        found = plan_tiles(shape, Context(budget, maker_cycles=cycles), machine)
        assert not isinstance(found, str)
        firsts.append((found[0].rows - 1) * shape.ow + found[0].cols)
    assert firsts[0] > firsts[1] >= firsts[2]


def test_a_table_behind_a_convolution_does_not_wait_for_whole_rows() -> None:
    """It follows that convolution, in the order in which its results lie in memory."""
    rng, (depth, channels, side) = np.random.default_rng(4), (64, 32, 20)
    conv = QConv2d((1, 1), (0,) * 4, (1, 1), 1, 3, requant_for(depth))
    weight = rng.integers(-128, 128, (channels, depth, 1, 1)).astype(np.int8)
    behind = read_by_products(looked_up((1, channels, side, side)), 150)
    tensors = {
        **behind.tensors, "x": Tensor("x", (1, depth, side, side), "int8"),
        "v": Tensor.constant("v", weight),
        "c": Tensor.constant("c", rng.integers(-9999, 9999, channels).astype(np.int32)),
    }  # fmt: skip
    nodes = Node("first", conv, ("x", "v", "c"), "x0"), *behind.nodes
    graph = Graph("three", ("x",), ("z", "x0"), nodes, tensors)  # else both are one operator
    run(graph, DEFAULT)
    with pytest.raises(VdlaError, match="knob blocks: expected 1, got 2"):
        run(graph, DEFAULT, {"blocks": 2})
