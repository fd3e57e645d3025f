"""Convolutions whose results stay on chip until a window slides over them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from vdla.bench.measure import measure
from vdla.bench.net import Net
from vdla.compiler.build import build
from vdla.compiler.choose.chooser import Chooser
from vdla.compiler.choose.space import Knobs, Refusal
from vdla.compiler.choose.template import Plan
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.ops.fused_pairs import QConvTable, QConvWindow
from vdla.compiler.graph.ops.integer import QTable
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.cost.inverted_residual import Expansion, Part
from vdla.compiler.targets.vdla.expressions import Window
from vdla.compiler.targets.vdla.machine import ACCELERATOR, HOST, Budget, Context, Machine
from vdla.compiler.targets.vdla.plan import planner, program_plan
from vdla.compiler.targets.vdla.plan.program_plan import ProgramPlan
from vdla.compiler.targets.vdla.rewrite.fuse_inverted_residuals import fuse_inverted_residuals
from vdla.compiler.targets.vdla.target import Accelerator
from vdla.compiler.targets.vdla.templates.inverted_residual import InvertedResiduals
from vdla.isa.insn import Load
from vdla.isa.params import HwParams
from vdla.sim.model.core import simulate

from ..machines import RTL_WINDOWS
from .test_matmul import VTA, check_rtl, check_values, cycles_of, inputs_of, requant_for

DEFAULT = HwParams(vector_window=3, vector_table=2)
SMALL = RTL_WINDOWS


def block(
    depth: int,
    channels: int,
    size: tuple[int, int],
    kernel: int = 3,
    stride: int = 1,
    table: bool = False,
    pads: tuple[int, int, int, int] | None = None,
    fused: bool = True,
    zero_point: int = 3,
) -> Graph:
    """An image, a convolution of one place, perhaps a table in which neighbours differ, and the
    depthwise convolution of that, all with random weights."""
    rng = np.random.default_rng(2)
    border = pads or (kernel // 2,) * 4
    conv = QConv2d((1, 1), (0,) * 4, (1, 1), 1, 5, requant_for(depth))
    looked = QConvTable(conv, QTable(rng.permutation(np.arange(-128, 128)).astype(np.int8)))
    first = looked if table else conv
    last = QConv2d(
        (stride, stride), border, (1, 1), channels, zero_point, requant_for(kernel * kernel)
    )
    out = Window((kernel, kernel), (stride, stride), border).output(*size)
    tensors = [
        Tensor("x", (1, depth, *size), "int8"),
        *constants("w", "b", rng, (channels, depth, 1, 1)),
        *constants("v", "c", rng, (channels, 1, kernel, kernel)),
        Tensor("h", (1, channels, *size), "int8"),
        Tensor("y", (1, channels, *out), "int8"),
    ]
    nodes = Node("expand", first, ("x", "w", "b"), "h"), Node("filter", last, ("h", "v", "c"), "y")
    if fused:
        nodes = (Node("node", QConvWindow(first, last), ("x", "w", "b", "v", "c"), "y"),)
    return Graph("one", ("x",), ("y",), nodes, {t.name: t for t in tensors})


def constants(
    weight: str, bias: str, rng: np.random.Generator, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Random weights and biases."""
    return (
        Tensor.constant(weight, rng.integers(-128, 128, shape).astype(np.int8)),
        Tensor.constant(bias, rng.integers(-9999, 9999, shape[0]).astype(np.int32)),
    )


CASES = {
    "whole blocks": (block(32, 96, (14, 14)), DEFAULT),
    "channels that fill no blocks": (block(21, 50, (7, 9)), DEFAULT),
    "stride 2": (block(16, 32, (14, 14), stride=2), DEFAULT),
    "stride 2, odd": (block(16, 32, (13, 15), stride=2), DEFAULT),
    "5 x 5": (block(16, 48, (11, 12), 5), DEFAULT),
    "5 x 5, stride 2": (block(16, 48, (15, 14), 5, 2), DEFAULT),
    "no border": (block(16, 32, (9, 11), pads=(0, 0, 0, 0)), DEFAULT),
    "a border on two sides": (block(16, 32, (12, 12), stride=2, pads=(0, 0, 1, 1)), DEFAULT),
    "a border of 0": (block(16, 32, (9, 11), zero_point=0), DEFAULT),
    "places that no window sees": (block(16, 16, (8, 8), 3, 2, pads=(0,) * 4), DEFAULT),
    "table": (block(32, 96, (14, 14), table=True), DEFAULT),
    "table, 5 x 5, stride 2": (block(16, 32, (13, 13), 5, 2, table=True), DEFAULT),
    "values of 8 bits": (block(16, 32, (9, 9), table=True), replace(DEFAULT, vector_table=1)),
    "an image larger than tmp": (block(16, 32, (40, 37)), DEFAULT),
    "a larger tmp": (block(16, 32, (40, 37)), replace(DEFAULT, tmp_depth=512)),
    "one row": (block(16, 32, (1, 30)), DEFAULT),
    "blocks of 4": (block(6, 9, (10, 11)), SMALL),
    "blocks of 4, table": (block(6, 9, (10, 11), 5, table=True), SMALL),
    "little room": (block(6, 9, (10, 11), 5, 2), replace(SMALL, tmp_depth=36, acc_depth=64)),
    "two products": (block(16, 32, (9, 11), 5), replace(DEFAULT, vector_window=2)),
    "two passes": (block(40, 40, (6, 8)), replace(DEFAULT, vector_passes=2)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.short(6)
@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_interpreter(case: str) -> None:
    check_values(*CASES[case])


@pytest.mark.slow
@pytest.mark.short(4)
@pytest.mark.parametrize(
    ("kernel", "stride", "table"),
    [(3, 1, False), (5, 2, False), (3, 2, True), (5, 1, True)],
)
@pytest.mark.parametrize(
    "knobs",
    [
        {"rows": 1, "cols": 4, "vthreads": 1}, {"rows": 2, "cols": 1, "vthreads": 2},
        {"rows": 3, "cols": 3, "vthreads": 3},
    ],
    ids=str,
)  # fmt: skip
def test_tiles(kernel: int, stride: int, table: bool, knobs: Knobs) -> None:
    """Tiles at all borders and corners of the image, and tiles within it."""
    size = (7 * stride, 10 * stride) if knobs["rows"] != 3 else (9 * stride, 9 * stride)
    check_values(block(16, 48, size, kernel, stride, table), DEFAULT, knobs)


@pytest.mark.slow
def test_borders_are_written_once() -> None:
    """All channels and virtual threads have the same entries of a border, which nothing else
    writes."""
    graph = block(16, 16 * 8, (4, 4))
    program = build(graph, find_target("sim", Options(DEFAULT, VTA, 2, 1))).program
    assert len(graph.nodes) == 1
    zeros = [insn for insn in program.insns if getattr(insn, "op", "") == "mul"]
    assert len(zeros) == 4


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
def test_the_rtl_takes_the_same_cycles(kernel: int, stride: int, table: bool) -> None:
    check_rtl(block(6, 9, (9, 10), kernel, stride, table), SMALL)


def network(*kernels: tuple[int, int]) -> onnx.ModelProto:
    """Inverted residual blocks with kernels and strides, which make 24 channels of 8."""
    net = Net("blocks")
    x = net.input(1, 8, 16, 16)
    for kernel, stride in kernels:
        x = net.conv(net.conv(net.conv(x, 24, 1), 24, kernel, stride, groups=24), 8, 1)
    net.output(x)
    return net.model()


@pytest.mark.more
@pytest.mark.slow
def test_blocks_on_the_rtl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside operators of the tensor track: bytes and cycles."""
    fused = ProgramPlan(bound=9.0)
    monkeypatch.setattr(planner, "find_plan", lambda cycles_of, usual: fused)
    model = network((3, 1), (5, 2), (5, 1), (3, 2))
    found = measure(model, SMALL, VTA, ("sim", "rtl"))
    assert any(layer.op == "QConvWindow" for layer in found.compiled.layers)


@pytest.mark.slow
@pytest.mark.parametrize("expansion", ["apart", "fused"])
def test_the_choice_is_open(expansion: str) -> None:
    """Joined, the image between does not go over the bus, and both ways compute the same."""
    graph = block(32, 96, (14, 14), fused=False)
    target = find_target("sim", Options(DEFAULT, VTA, 2, 1))
    compiled = build(graph, target, knobs={"filter": {"expansion": expansion}})
    fused = ["QConvWindow"] if expansion == "fused" else ["QConv2d", "QConv2d"]
    assert [layer.op for layer in compiled.layers] == fused
    filtered = compiled.layers[-1]
    assert filtered.knobs["expansion"] == expansion and filtered.chosen_by == "user"
    assert sum(layer.macs for layer in compiled.layers) == 96 * 14 * 14 * (32 + 9)
    (y,) = compiled.run(inputs_of(graph), lambda p, dram: simulate(p, dram, VTA))
    (expected,) = interpret(graph, *inputs_of(graph))
    np.testing.assert_array_equal(y, expected)
    loads = [insn for insn in compiled.program.insns if isinstance(insn, Load)]
    loaded = sum(i.x_size * i.y_size * i.z_size for i in loads if i.memory == "inp")
    assert (loaded < 6 * 14 * 14) is (expansion == "fused")


@pytest.mark.slow
def test_knobs_for_an_operator_leave_it_alone() -> None:
    """Who says how a convolution is computed has one."""
    graph = block(32, 96, (14, 14), fused=False)
    target = find_target("sim", Options(DEFAULT, VTA, 2, 1))
    for layer in "expand", "filter":
        compiled = build(graph, target, knobs={layer: {"vthreads": 1}})
        assert [layer.op for layer in compiled.layers] == ["QConv2d", "QConv2d"]


@pytest.mark.slow
def test_the_graph_whose_program_ends_first_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of those whose joined operators may cost nothing, or anything, in either order."""
    graph = block(32, 96, (14, 14), fused=False)
    target = find_target("sim", Options(DEFAULT, VTA, 2, 1))
    for bounds in (0.0, 9.0), (9.0, 0.0):
        monkeypatch.setattr(program_plan, "BOUNDS", bounds)
        for cheap in 2, 1:
            with monkeypatch.context() as patch:
                patch.setattr(
                    planner.Planner, "_simulated",
                    lambda self, graph, *_, cheap=cheap: len(graph.nodes) != cheap,
                )  # fmt: skip
                compiled = build(graph, target)
            assert len(compiled.layers) == cheap
            assert ("rows" in compiled.layers[0].knobs) and compiled.layers[-1].knobs["expansion"]
        apart, fused = (
            cycles_of(build(graph, target, knobs={"filter": {"expansion": expansion}}), graph)
            for expansion in ("apart", "fused")
        )
        assert cycles_of(build(graph, target), graph) == fused < apart


@pytest.mark.parametrize(
    "case", ["fused", "table", "another reader", "an output", "on the host", "not depthwise",
             "refused"],
)  # fmt: skip
def test_which_convolutions_are_fused(case: str) -> None:
    """Those whose only reader is a depthwise convolution, on the accelerator, where that pays."""
    graph = block(32, 32, (8, 8), table=case == "table", fused=False)
    first, last = (replace(node, target=ACCELERATOR) for node in graph.nodes)
    if case == "on the host":
        first = replace(first, target=HOST)
    if case == "not depthwise":
        last = replace(last, op=replace(last.op, groups=1))
    graph = graph.with_nodes([first, last])
    if case == "another reader":
        other = replace(last, name="other", output="z")
        graph = graph.with_nodes([first, last, other], replace(graph["y"], name="z"))
        graph = replace(graph, outputs=("y", "z"))
    if case == "an output":
        graph = replace(graph, outputs=("y", "h"))
    asked: list[str] = []

    def fuses(source: Node, node: Node) -> bool:
        asked.append(source.name)
        return case != "refused"

    nodes = fuse_inverted_residuals(graph, fuses).nodes
    if case not in ("fused", "table"):
        assert nodes == graph.nodes and bool(asked) is (case == "refused")
        return
    [node] = nodes
    assert (node.name, node.inputs, node.output) == ("filter", ("x", "w", "b", "v", "c"), "y")
    (x,) = inputs_of(graph)
    others = [graph[name].data for name in "wbvc"]
    (expected,) = interpret(graph, x)
    np.testing.assert_array_equal(node.op.evaluate(x, *others), expected)


HANDLED = {
    "plain": ({}, {}, True), "a stride first": ({"strides": (2, 2)}, {}, False),
    "a border first": ({"pads": (1, 1, 1, 1)}, {}, False),
    "groups first": ({"groups": 32}, {}, False),
    "dilated": ({}, {"dilations": (2, 2)}, False), "groups": ({}, {"groups": 8}, False),
    "results of a border": ({}, {"pads": (3, 3, 3, 3)}, False),
}  # fmt: skip


@pytest.mark.parametrize("case", HANDLED)
def test_what_it_handles(case: str) -> None:
    first, last, expected = HANDLED[case]
    graph = block(32, 32, (8, 8))
    op = graph.nodes[0].op
    assert isinstance(op, QConvWindow) and isinstance(op.first, QConv2d)
    node = replace(
        graph.nodes[0], op=QConvWindow(replace(op.first, **first), replace(op.last, **last))
    )
    expanded = InvertedResiduals(Machine(DEFAULT, VTA, 2))
    assert expanded.handles(graph, node) is expected
    assert not InvertedResiduals(Machine(HwParams(), VTA, 2)).handles(graph, node)


def expansion(**changed: int) -> Expansion:
    sizes = {"ic_blocks": 2, "blocks": 6, "height": 28, "width": 28} | changed
    return Expansion(**sizes, window=Window((3, 3), (1, 1), (1,) * 4), sums=3, phases=1, passes=1)


def test_needs_and_refusals() -> None:
    """A part has room, or the scratchpad is named that is too small."""
    budget, template = Budget.whole(DEFAULT), InvertedResiduals(Machine(DEFAULT, VTA, 2))
    graph = block(32, 96, (28, 28))
    workload = template.workload(graph, graph.nodes[0], Context(budget))
    found = template.plan(workload, {})
    assert isinstance(found, Plan)
    assert not budget.lack(template.needs(workload, found.knobs))
    assert expansion().needs(Part(28, 28, 2), budget)["tmp"] == 30 * 30
    for name in ("tmp", "acc", "par", "out"):
        little = replace(workload, context=Context(replace(budget, **{name: 1})))
        refused = template.plan(little, {})
        assert isinstance(refused, Refusal) and f"{name} needs" in refused.reason
        assert template.cost_ratio(little) == np.inf


def test_parts_compute_what_they_share_twice() -> None:
    """28 rows in parts of 7 read 8 or 9, the first and the last one 8."""
    whole, parts = Part(28, 28, 2), Part(7, 28, 2)
    assert expansion().computed_positions(whole) == 28 * 28
    assert expansion().computed_positions(parts) == (8 + 9 + 9 + 8) * 28


def test_weights_that_have_room_are_loaded_once() -> None:
    budget, part = Budget.whole(DEFAULT), Part(7, 7, 2)
    assert expansion().stays(part, budget) == ("wgt", "par")
    assert expansion(blocks=200).stays(part, budget) == ("wgt",)
    assert expansion(blocks=200, ic_blocks=9).stays(part, budget) == ()
    assert expansion().stays(Part(28, 28, 2), budget) == ()  # there is one part


@pytest.mark.parametrize(("bound", "fused"), [(0.0, False), (99.0, True)])
def test_the_bound_decides(bound: float, fused: bool) -> None:
    target = find_target("sim", Options(DEFAULT, VTA))
    assert isinstance(target, Accelerator)
    graph = block(32, 96, (14, 14), fused=False)
    graph = graph.with_nodes([replace(node, target=ACCELERATOR) for node in graph.nodes])
    chooser = Chooser(target.name, target.machine_key)
    planned, trial = target.planner(chooser, graph).apply(ProgramPlan(bound=bound))
    assert any(isinstance(node.op, QConvWindow) for node in planned.nodes) == fused
    expected = "fused" if fused else "apart"
    assert [c.knobs["expansion"] for own in trial.made.values() for c in own
            if "expansion" in c.knobs] == [expected]  # fmt: skip
