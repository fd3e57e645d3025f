"""Products of two activations, transpositions in groups, and constants added to channels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from vdla.compiler.build import CompiledModel, build
from vdla.compiler.choose.space import Knobs
from vdla.compiler.choose.template import Plan
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor, infer
from vdla.compiler.graph.ops.base import Op
from vdla.compiler.graph.ops.group_matmul import QAddChannels, QGroupMatMul, TransposeGroups
from vdla.compiler.graph.ops.linear import QMatMul
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.machine import Budget, Context, Machine
from vdla.compiler.targets.vdla.templates.transpose import GroupsTransposed
from vdla.isa.insn import Load, Param
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import PRESETS, HwParams
from vdla.isa.program import Program
from vdla.sim.model.core import simulate
from vdla.sim.rtl.driver import RtlSimulator

from ....building import build_for, placed

VTA = MEMORY_PRESETS["vta"]
DEFAULT, SMALL = HwParams(), PRESETS["4x4"]


def one_operator(op: Op, *shapes: tuple[int, ...], constants: tuple[int, ...] = ()) -> Graph:
    """A graph of one operator of int8; some of its operands may be constants."""
    rng = np.random.default_rng(2)
    operands = [
        Tensor.constant(f"x{i}", rng.integers(-128, 128, shape).astype(np.int8))
        if i in constants else Tensor(f"x{i}", shape, "int8")
        for i, shape in enumerate(shapes)
    ]  # fmt: skip
    shape, dtype = infer(op, tuple(operands), "node")
    names = tuple(t.name for t in operands)
    tensors = [*operands, Tensor("y", shape, dtype)]
    inputs = tuple(t.name for t in operands if not t.is_constant)
    return Graph(
        "one", inputs, ("y",), (Node("node", op, names, "y"),), {t.name: t for t in tensors}
    )


def requant_for(depth: int, zero_points: tuple[int, int] = (0, 0)) -> Requant:
    """Results of products of ``depth`` random elements are spread over int8."""
    mean, deviation = abs(zero_points[0] * zero_points[1]) * depth, 74 * 74 * depth**0.5
    shift = 30 + int(np.log2((mean + deviation) / 64))
    return Requant(np.array([2**30], np.int32), np.array([shift], np.int32), 3)


def product(
    groups: int, depth: int, places: int, others: int, zero_points: tuple[int, int], block: int,
    more: int = 0, readers: tuple[int, int] = (1, 1),
) -> Graph:  # fmt: skip
    """A product of images in groups, filled up to whole blocks; the first image has ``more`` places
    than are multiplied. ``readers`` groups of the result read a group of either image."""
    requant = requant_for(depth, zero_points)
    width = -(-others // block) * block
    op = QGroupMatMul(groups, width, places, *zero_points, requant, *readers)
    first, second = (groups // count * depth for count in readers)
    return one_operator(op, (1, first, places + more, 1), (1, second, others, 1))


def transposition(groups: int, channels: int, places: int, fill: int, block: int) -> Graph:
    """An image whose channels and places change places in groups."""
    op = TransposeGroups(groups, -(-places // block) * block, fill)
    return one_operator(op, (1, groups * channels, places, 1))


def addition(channels: int, places: int) -> Graph:
    """A constant for each channel of an image."""
    const = np.random.default_rng(0).integers(-(2**28), 2**28, channels).astype(np.int32)
    return one_operator(QAddChannels(3028255, 23, const, -9), (1, channels, places, 1))


def inputs_of(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = [graph[name].shape for name in graph.inputs]
    return [rng.integers(-128, 128, shape).astype(np.int8) for shape in shapes]


def cycles_of(compiled: CompiledModel, graph: Graph) -> int:
    cycles: list[int] = []
    compiled.run(inputs_of(graph), lambda p, dram: cycles.append(simulate(p, dram, VTA).cycles))
    return cycles[0]


def test_a_transposition_fetches_few_instructions_beside_scarce_loads() -> None:
    """Of shares of three heads and 297 places: larger tiles, whose own cycles are a few more."""
    template = GroupsTransposed(Machine(PRESETS["16x16"], VTA, 2))
    budget = Budget.whole(PRESETS["16x16"])
    graph, plans = transposition(3, 304, 297, 0, 16), []
    for scarce in (False, True):
        context = Context(budget, beside=True, scarce_loads=scarce)
        workload = template.workload(graph, graph.nodes[0], context)
        plan = template.plan(workload, {})
        assert isinstance(plan, Plan)
        plans.append((plan.cycles or 0, -template.insns(workload, plan.knobs)))
    assert plans[0][0] < plans[1][0] and plans[0][1] < plans[1][1]


def varied(values: np.ndarray) -> bool:
    """Whether values are few, or not all alike."""
    return values.size < 100 or len(np.unique(values)) > 4


def check_values(graph: Graph, hw: HwParams, knobs: Knobs | None = None, vthreads: int = 2) -> int:
    """Accelerator and machine code compute what NumPy computes; returns the cycles."""
    x = inputs_of(graph)
    (expected,) = interpret(graph, *x)
    assert varied(expected)
    target = find_target("sim", Options(hw, VTA, vthreads, 1))
    compiled = build(graph, target, knobs={"node": knobs} if knobs else None)
    assert [layer.target for layer in compiled.layers] == ["accel"]
    cycles: list[int] = []
    (got,) = compiled.run(x, lambda p, dram: cycles.append(simulate(p, dram, VTA).cycles))
    np.testing.assert_array_equal(got, expected)
    (host,) = build_for("cpu", graph, hw, VTA).run(x, lambda program, dram: None)
    np.testing.assert_array_equal(host, expected)
    return cycles[0]


def check_rtl(graph: Graph, hw: HwParams) -> None:
    """SimPy model and RTL have the same results in the same cycles."""
    compiled, found = build_for("sim", graph, hw, VTA), []
    for run in (simulate, RtlSimulator(hw).run):
        cycles: list[int] = []
        (y,) = compiled.run(
            inputs_of(graph),
            lambda p, dram, run=run, cycles=cycles: cycles.append(run(p, dram, VTA).cycles),
        )
        found.append((y.tobytes(), cycles))
    assert found[0] == found[1]


PRODUCTS = {
    "whole blocks": (product(2, 32, 20, 32, (0, 0), 16), DEFAULT),
    "sums of weights": (product(2, 32, 20, 37, (5, 0), 16), DEFAULT),
    "sums of inputs": (product(2, 32, 20, 37, (0, -7), 16), DEFAULT),
    "sums of both": (product(3, 48, 21, 37, (9, -7), 16), DEFAULT),
    "zero points at the ends": (product(1, 208, 40, 64, (-128, 127), 16), DEFAULT),
    "one place": (product(4, 16, 1, 70, (3, 1), 16), DEFAULT),
    "one column": (product(4, 16, 50, 1, (3, 1), 16), DEFAULT),
    "some of the places": (product(3, 48, 21, 37, (9, -7), 16, more=11), DEFAULT),
    "an image that several read": (product(6, 32, 20, 37, (9, -7), 16, readers=(3, 1)), DEFAULT),
    "blocks that several read": (product(6, 32, 20, 16, (9, -7), 16, readers=(3, 1)), DEFAULT),
    "an image by far": (product(4, 32, 96, 32, (0, 0), 16, readers=(2, 1)), DEFAULT),
    "weights that several read": (product(6, 32, 20, 37, (9, -7), 16, readers=(1, 2)), DEFAULT),
    "both that several read": (product(6, 32, 20, 32, (0, 4), 16, readers=(3, 2)), DEFAULT),
    "a row of tiles that fill inp": (product(9, 528, 16, 64, (0, 0), 16, readers=(1, 3)), DEFAULT),
    "blocks of 8": (product(3, 24, 19, 21, (-9, 2), 8), PRESETS["8x8"]),
    "blocks of 4": (product(2, 8, 11, 10, (4, -2), 4), SMALL),
    "two passes": (product(2, 16, 20, 20, (4, -2), 16), HwParams(vector_passes=2)),
}
TRANSPOSITIONS = {
    "whole blocks": (transposition(2, 32, 48, 0, 16), DEFAULT),
    "places beyond the image": (transposition(3, 64, 37, -5, 16), DEFAULT),
    "many places": (transposition(1, 208, 197, -128, 16), DEFAULT),
    "one place": (transposition(2, 16, 1, 127, 16), DEFAULT),
    "blocks of 8": (transposition(2, 16, 21, 3, 8), PRESETS["8x8"]),
    "blocks of 4": (transposition(2, 8, 10, 3, 4), SMALL),
}


ADDITIONS = {
    "whole blocks": (addition(64, 50), DEFAULT),
    "channels that fill no blocks": (addition(37, 197), DEFAULT),
    "one place": (addition(300, 1), DEFAULT),
    "blocks of 4": (addition(9, 30), SMALL),
    "batch": (addition(20, 11), replace(PRESETS["8x8"], batch=2)),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", ADDITIONS)
def test_additions_equal_the_interpreter(case: str) -> None:
    check_values(*ADDITIONS[case])


def test_a_tile_of_additions_with_a_remainder() -> None:
    check_values(addition(37, 197), DEFAULT, {"positions": 66, "vthreads": 3})


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", PRODUCTS)
def test_products_equal_the_interpreter(case: str) -> None:
    check_values(*PRODUCTS[case])


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", TRANSPOSITIONS)
def test_transpositions_equal_the_interpreter(case: str) -> None:
    check_values(*TRANSPOSITIONS[case])


@pytest.mark.slow
@pytest.mark.short(4)
@pytest.mark.parametrize("order", ["weights", "pixels", "stream"])
@pytest.mark.parametrize("zero_points", [(0, 0), (5, 0), (0, 5), (-3, 5)], ids=str)
def test_orders_of_loops(order: str, zero_points: tuple[int, int]) -> None:
    """Tiles that divide neither places nor blocks of results, with and without threads."""
    graph = product(2, 32, 25, 70, zero_points, 16)
    knobs = {"oc_blocks": 2, "rows": 9, "order": order}
    check_values(graph, DEFAULT, knobs)
    check_values(graph, DEFAULT, knobs, vthreads=1)


@pytest.mark.fast(1)
@pytest.mark.parametrize("knobs", [(1, 1), (3, 2), (2, 7), (5, 7)], ids=str)
def test_tiles_of_transpositions(knobs: tuple[int, int]) -> None:
    """Also tiles with a remainder in both dimensions: a load for each row of tiles keeps the
    distance of the rows that are whole."""
    graph = transposition(1, 208, 197, -128, 16)
    check_values(graph, DEFAULT, {"tiles": knobs[0], "channel_blocks": knobs[1]})


@pytest.mark.more
@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_random_products(data: st.DataObject) -> None:
    hw = data.draw(st.sampled_from([SMALL, PRESETS["8x8"], DEFAULT]))
    groups, depth = data.draw(st.integers(1, 3)), hw.block * data.draw(st.integers(1, 4))
    places, others = (data.draw(st.integers(1, 40)) for _ in range(2))
    if hw is SMALL:  # tiles begin with a beat of 8 bytes
        others += others % 2
    zero_points = tuple(data.draw(st.sampled_from([0, -128, 127, 5])) for _ in range(2))
    graph = product(groups, depth, places, others, zero_points, hw.block)
    assume(varied(*interpret(graph, *inputs_of(graph))))
    check_values(graph, hw, vthreads=data.draw(st.integers(1, 3)))


@pytest.mark.slow
@settings(max_examples=30)
@given(st.data())
def test_random_transpositions(data: st.DataObject) -> None:
    hw = data.draw(st.sampled_from([PRESETS["8x8"], DEFAULT]))
    groups, channels = data.draw(st.integers(1, 3)), hw.block * data.draw(st.integers(1, 4))
    places, fill = data.draw(st.integers(1, 70)), data.draw(st.integers(-128, 127))
    graph = transposition(groups, channels, places, fill, hw.block)
    check_values(graph, hw, vthreads=data.draw(st.integers(1, 3)))


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize(
    "graph",
    [
        product(2, 8, 11, 10, (4, -2), 4), product(2, 8, 10, 12, (4, -2), 4, more=2),
        transposition(2, 8, 10, 3, 4),
    ],
    ids=["product", "some of the places", "transposition"],
)  # fmt: skip
def test_the_rtl_takes_the_same_cycles(graph: Graph) -> None:
    check_rtl(graph, SMALL)


@pytest.mark.parametrize(
    "graph", [product(3, 32, 20, 32, (0, 4), 16), transposition(3, 32, 48, 5, 16)],
    ids=["product", "transposition"],
)  # fmt: skip
def test_whole_blocks_have_one_set_of_parameters(graph: Graph) -> None:
    """It is loaded once, and no instruction says again that it holds."""
    [program] = (s for s in build_for("sim", graph, DEFAULT, VTA).steps if isinstance(s, Program))
    assert sum(isinstance(insn, Param) for insn in program.insns) == 1
    loads = [insn for insn in program.insns if isinstance(insn, Load) and insn.memory == "par"]
    assert sum(load.row_entries * load.rows * load.z_size for load in loads) == 3


def test_products_keep_the_tensor_core_busy() -> None:
    """Scores of four heads of 64 channels for 128 tokens: 16,384 steps of the tensor core."""
    assert check_values(product(4, 64, 128, 128, (0, 0), 16), DEFAULT) < 1.07 * 16384


@pytest.mark.slow
def test_the_planner_knows_what_sums_cost() -> None:
    """What it predicts for products with sums is near the simulator's cycles."""
    graph = product(3, 64, 197, 197, (9, -7), 16)
    (layer,) = build_for("sim", graph, DEFAULT, VTA).layers
    cycles = check_values(graph, DEFAULT)
    assert layer.predicted_cycles is not None
    assert 0.85 * cycles < layer.predicted_cycles < 1.15 * cycles


def test_what_is_read_behind_an_operand_is_memory() -> None:
    """The last tile of weights reaches beyond the image, which here is the last tensor."""
    graph = product(1, 16, 3, 17, (0, 0), 16)
    (step,) = build_for("sim", graph, DEFAULT, VTA).steps
    assert isinstance(step, Program)
    (region,) = (r for r in step.meta["inputs"] if r["name"] == "x1")
    end = region["address"] + region["bytes"]
    behind = {at: len(data) for at, data in step.image.items()}
    assert behind[end] == 15 * 16


@pytest.mark.parametrize("shapes", [((1, 4, 9, 32), (1, 4, 32, 7)), ((9, 32), (32, 7))], ids=str)
def test_matrices_become_images(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """A product that reads from the host and writes to it, whatever its rank."""
    graph = one_operator(QMatMul(3, -4, requant_for(32)), *shapes)
    x = inputs_of(graph)
    compiled = build_for("sim", graph, DEFAULT, VTA)
    ops = {layer.op: layer.target for layer in compiled.layers}
    assert ops["QGroupMatMul"] == "accel"
    (got,) = compiled.run(x, lambda program, dram: simulate(program, dram, VTA))
    np.testing.assert_array_equal(got, interpret(graph, *x)[0])


def test_channels_that_fill_no_blocks() -> None:
    """The host fills them up with the zero point."""
    graph = one_operator(QMatMul(3, -4, requant_for(21)), (2, 9, 21), (2, 21, 7))
    x = inputs_of(graph)
    compiled = build_for("sim", graph, DEFAULT, VTA)
    assert "Pad" in {layer.op for layer in compiled.layers}
    (got,) = compiled.run(x, lambda program, dram: simulate(program, dram, VTA))
    np.testing.assert_array_equal(got, interpret(graph, *x)[0])


A, B = (1, 4, 9, 32), (1, 4, 32, 8)
REFUSED = {
    "a product with a constant that is no weight of a dense layer": ((A, B), (1,), DEFAULT),
    "an activation as weights, which have no batch; the core has 2": (
        (A, B), (), replace(DEFAULT, batch=2)
    ),
    "a product of matrices that broadcast, or have no elements": ((A, B[1:]), (), DEFAULT),
    "7 places of 4 channels: a tile of weights begins at a multiple of 8 bytes": (
        (A, (1, 4, 32, 7)), (), SMALL
    ),
    "convolution 1x1: no tile fits with 2 virtual threads, wgt needs 129 entries of 64": (
        ((9, 256), (256, 8)), (), replace(SMALL, wgt_depth=64)
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_why_products_stay_on_the_host(why: str) -> None:
    shapes, constants, hw = REFUSED[why]
    graph = one_operator(QMatMul(3, -4, requant_for(32)), *shapes, constants=constants)
    (node,) = placed(graph, hw).nodes
    assert (node.target, node.reason) == ("cpu", why)
