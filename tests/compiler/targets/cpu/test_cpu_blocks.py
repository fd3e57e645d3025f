"""Blocks of channels on the CPU: against ONNX Runtime and against their own unscheduled loops.

Values are small integers in float32, whose sums are exact in any order: results must be equal.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdla.bench.net import Net
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor, dump, infer
from vdla.compiler.graph.ops.base import Op
from vdla.compiler.graph.ops.blocked.convolution import BlockedConv2d, BlockedDepthwise
from vdla.compiler.graph.ops.blocked.dense import PackedDense
from vdla.compiler.graph.ops.blocked.pooling import BlockedPool
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.ops.integer import QAdd
from vdla.compiler.graph.ops.layout import FromBlocks, ToBlocks
from vdla.compiler.graph.ops.pooling import AvgPool, MaxPool, QMaxPool
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu, compile_func
from vdla.compiler.targets.cpu.passes.block_channels import block_channels
from vdla.compiler.targets.cpu.processor import host_processor
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams

from ....processors import on_processor
from ...building import build_for
from .one_operator import as_plain_loops, scheduled
from .whole_numbers import Model, Shape, compare, integers, kinds


@pytest.mark.slow
@settings(max_examples=40, derandomize=True)
@given(st.data())
def test_convolutions_equal_onnx_runtime(data: st.DataObject) -> None:
    draw = data.draw
    each = draw(st.sampled_from((None, None, 1, 1, 2, 8, 16, 32)), "channels of a group")
    n = draw(st.integers(1, 2), "batch")
    groups = draw(st.integers(1, max(2, 48 // each)), "groups") if each else 1
    channels = groups * (each or draw(st.integers(1, 40), "channels"))
    features = channels if each else draw(st.integers(1, 70), "features")
    kernel = [draw(st.integers(1, 4)) for _ in range(2)]
    dilations = [draw(st.integers(1, 2)) for _ in range(2)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = [draw(st.integers(0, 2)) for _ in range(4)]
    size = [draw(st.integers(r, r + 18)) for r in reach]
    model = Model(x=(n, channels, *size))
    weight = model.weight(features, channels // groups, *kernel)
    bias = [model.weight(features)] if draw(st.booleans(), "bias") else []
    y = model.node(
        "Conv", "x", weight, *bias, kernel_shape=kernel, dilations=dilations, pads=pads,
        strides=[draw(st.integers(1, 3)) for _ in range(2)], group=groups,
    )  # fmt: skip
    if draw(st.booleans(), "relu"):
        y = model.node("Relu", y)
    found = kinds(compare(model.finish(y)))
    assert ("BlockedDepthwise" if 1 < groups == channels else "BlockedConv2d") in found


#: Channels, and how many a group has: two groups and a half, groups of whole blocks, all in one
#: block.
GROUPED = [(24, 8), (40, 8), (64, 16), (96, 32), (12, 2)]


@pytest.mark.fast(1)
@pytest.mark.parametrize(("channels", "each"), GROUPED)
def test_groups_of_integers(channels: int, each: int) -> None:
    """As the graph before, in blocks of every width, by fours and not, and as machine code."""
    net = Net("grouped")
    x = net.conv(net.input(1, channels, 7, 9), channels, 3, 2, groups=channels // each)
    net.output(net.conv(x, 8, 1))
    model = net.model()
    graph = run_passes(import_onnx(model))
    image = np.random.default_rng(1).normal(0, 2, (1, channels, 7, 9)).astype(np.float32)
    [expected] = interpret(graph, image)
    assert len(np.unique(expected)) > 20
    for block, dots in product((4, 8, 16), (False, True)):
        blocked = block_channels(graph, block, dots)
        fits = each % block == 0 or block % each == 0
        kind = "BlockedDotConv2d" if dots else "BlockedQConv2d"
        assert [type(node.op).__name__ for node in blocked.nodes].count(kind) == 1 + fits
        np.testing.assert_array_equal(interpret(blocked, image)[0], expected)
    np.testing.assert_array_equal(
        build_for("cpu", model, HwParams(), MEMORY_PRESETS["vta"]).run_cpu([image])[0], expected
    )


def test_groups_of_other_sizes_are_computed_plainly() -> None:
    model = Model(x=(1, 20, 5, 5))
    found = kinds(
        compare(model.finish(model.node("Conv", "x", model.weight(20, 5, 3, 3), group=4)))
    )
    assert found == ["Conv2d"]


@pytest.mark.slow
@settings(max_examples=20, derandomize=True)
@given(st.data())
def test_pooling_on_blocks_equals_onnx_runtime(data: st.DataObject) -> None:
    draw = data.draw
    channels = draw(st.integers(1, 40), "channels")
    kernel = [draw(st.sampled_from((1, 2, 4))) for _ in range(2)]
    pads = [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
    model = Model(x=(1, 8, *(draw(st.integers(k, k + 20)) for k in kernel)))
    y = model.node("Conv", "x", model.weight(channels, 8, 1, 1))
    kind = draw(st.sampled_from(("MaxPool", "AveragePool")))
    count = {"count_include_pad": 1} if kind == "AveragePool" else {}
    strides = [draw(st.integers(1, 3)) for _ in range(2)]
    y = model.node(kind, y, kernel_shape=kernel, pads=pads, strides=strides, **count)
    assert "BlockedPool" in kinds(compare(model.finish(y)))


@pytest.mark.slow
@settings(max_examples=15, derandomize=True)
@given(st.integers(1, 5), st.integers(1, 90), st.integers(1, 150), st.booleans())
def test_dense_layers_equal_onnx_runtime(n: int, size: int, features: int, turned: bool) -> None:
    model = Model(x=(n, size))
    weight = model.weight(*((features, size) if turned else (size, features)))
    y = model.node("Gemm", "x", weight, model.weight(features), transB=int(turned))
    assert "PackedDense" in kinds(compare(model.finish(y)))


def residual_block() -> onnx.ModelProto:
    """Two branches that are added, a pooling, an operator that knows no blocks, an output that is
    read again."""
    model = Model(x=(1, 3, 9, 9))
    first = model.node(
        "Relu", model.node("Conv", "x", model.weight(20, 3, 3, 3), pads=[1, 1, 1, 1])
    )
    left = model.node("Conv", first, model.weight(20, 20, 1, 1), model.weight(20))
    right = model.node("Conv", first, model.weight(20, 1, 3, 3), pads=[1] * 4, group=20)
    total = model.node("Relu", model.node("Add", left, right))
    pooled = model.node("MaxPool", total, kernel_shape=[3, 3], strides=[2, 2])
    turned = model.node("Transpose", pooled, perm=[0, 2, 3, 1])
    again = model.node("Add", model.node("Transpose", turned, perm=[0, 3, 1, 2]), pooled)
    return model.finish(again, total, turned)


def test_a_network_changes_layout_only_where_it_must(golden) -> None:
    graph = run_passes(import_onnx(residual_block(), Sizes(1)))
    golden("block_channels_before.txt", dump(graph))
    golden("block_channels.txt", dump(block_channels(graph, 16)))


@pytest.mark.slow
def test_a_network_on_blocks_computes_the_same() -> None:
    model = residual_block()
    compare(model)
    graph = run_passes(import_onnx(model, Sizes(1)))
    x = integers((1, 3, 9, 9))
    for block in (4, 8, 16):
        found = interpret(block_channels(graph, block), x)
        for ours, theirs in zip(found, interpret(graph, x), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("channels", "maps"), [(16, True), (20, False)])
def test_functions_of_elements_need_full_blocks(channels: int, maps: bool) -> None:
    model = Model(x=(1, 16, 5, 5))
    y = model.node("Conv", "x", model.weight(channels, 16, 1, 1))
    y = model.node("Mul", model.node("Abs", y), model.number(3))
    made = model.finish(model.node("Conv", y, model.weight(16, channels, 1, 1)))
    assert len(np.unique(interpret(import_onnx(made), integers((1, 16, 5, 5)))[0])) > 5
    found = kinds(compare(made))
    assert (found.count("FromBlocks") == 1) == maps


def test_what_is_read_twice_is_not_joined() -> None:
    """The convolution's own value is an output: the addition stays by itself."""
    model = Model(x=(1, 16, 4, 4))
    y = model.node("Conv", "x", model.weight(16, 16, 1, 1))
    found = kinds(compare(model.finish(y, model.node("Add", y, "x"))))
    assert found.count("Add") == 1


OPERATORS: list[tuple[list[Shape]]] = [
    (ToBlocks(16), [(2, 20, 3, 5)]),
    (ToBlocks(16, last=True), [(2, 3, 5, 20)]),
    (ToBlocks(16, last=True), [(1, 3, 5, 32)]),
    (FromBlocks(20), [(2, 2, 3, 5, 16)]),
    (FromBlocks(20, last=True), [(2, 2, 3, 5, 16)]),
    (FromBlocks(32, last=True), [(1, 2, 3, 5, 16)]),
    (
        BlockedConv2d((1, 1), (1, 1, 1, 1), (1, 1), lo=0.0),
        [(1, 2, 9, 17, 16), (4, 2, 3, 3, 16, 16), (4, 16), (1, 4, 9, 17, 16)],
    ),
    (
        BlockedConv2d((2, 1), (3, 0, 2, 1), (1, 2), hi=50.0),
        [(2, 3, 12, 45), (3, 3, 5, 3, 16), (3, 16)],
    ),
    (
        BlockedConv2d((1, 1), (1, 1, 1, 1), (1, 1)),
        [(1, 4, 9, 17, 16), (8, 2, 3, 3, 16, 16), (8, 16)],
    ),
    (
        BlockedDepthwise((1, 2), (1, 0, 1, 0), (1, 1), lo=0.0, hi=6.0),
        [(1, 3, 6, 33, 16), (3, 3, 3, 16), (3, 16)],
    ),
    (BlockedPool(MaxPool((3, 3), (2, 2), (1, 1, 1, 1), lo=0.0)), [(1, 2, 9, 31, 16)]),
    (BlockedPool(AvgPool((2, 2), (1, 1), (1, 0, 1, 0))), [(1, 2, 5, 19, 16)]),
    (PackedDense(70, lo=0.0), [(3, 33), (5, 33, 16), (5, 16)]),
]


@pytest.mark.fast(1)
@pytest.mark.parametrize(("op", "shapes"), OPERATORS, ids=lambda v: type(v).__name__)
def test_schedules_compute_what_plain_loops_do(op: Op, shapes: list[Shape]) -> None:
    result = as_plain_loops(op, [integers(shape, i) for i, shape in enumerate(shapes)])
    assert np.ptp(result) > 0


def test_a_convolution_is_a_tile_of_vector_registers() -> None:
    """The loop over the input's channels has an instruction for each vector of the tile, 2 blocks
    by 14 places, and no sum is in memory."""
    op = BlockedConv2d((1, 1), (1, 1, 1, 1), (1, 1), lo=0.0)
    shapes = [(1, 2, 9, 14, 16), (4, 2, 3, 3, 16, 16), (4, 16)]
    with on_processor("avx512-vnni"):
        kernel = compile_func(scheduled(op, [(shape, "float32") for shape in shapes]))
    calls = [ln for ln in kernel.code.llvm_ir.splitlines() if "@llvm.fmuladd.v16f32(" in ln]
    assert len([ln for ln in calls if "declare" not in ln]) == 28
    assert "alloca" not in kernel.code.llvm_ir


@pytest.mark.slow
@settings(max_examples=25, derandomize=True)
@given(st.data())
def test_transposed_convolutions_equal_onnx_runtime(data: st.DataObject) -> None:
    draw = data.draw
    channels, features = draw(st.integers(1, 36)), draw(st.integers(1, 36))
    kernel = [draw(st.integers(1, 5)) for _ in range(2)]
    strides = [draw(st.integers(1, 3)) for _ in range(2)]
    pads = [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
    extra = [draw(st.integers(0, s - 1)) for s in strides]
    size = [draw(st.integers(3, 12)) for _ in range(2)]
    model = Model(x=(draw(st.integers(1, 2)), channels, *size))
    weight = model.weight(channels, features, *kernel)
    bias = [model.weight(features)] if draw(st.booleans(), "bias") else []
    y = model.node(
        "ConvTranspose", "x", weight, *bias, kernel_shape=kernel, strides=strides, pads=pads,
        output_padding=extra,
    )  # fmt: skip
    assert "BlockedConvTranspose2d" in kinds(compare(model.finish(model.node("Relu", y))))


@pytest.mark.more
@pytest.mark.slow
@settings(max_examples=20, derandomize=True)
@given(st.data())
def test_integer_convolutions_equal_the_interpreter(data: st.DataObject) -> None:
    """Behind one another, so that the second reads blocks; added and pooled on blocks, too."""
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    depthwise, channels = draw(st.booleans(), "depthwise"), draw(st.integers(1, 40), "channels")
    size = [draw(st.integers(13, 30)) for _ in range(2)]
    tensors, nodes = [Tensor("x", (1, draw(st.integers(1, 20)), *size), "int8")], []

    def add(op: Op, *inputs: str) -> str:
        name = f"y{len(nodes)}"
        found = {t.name: t for t in tensors}
        shape, dtype = infer(op, tuple(found[i] for i in inputs), name)
        tensors.append(Tensor(name, shape, dtype))
        nodes.append(Node(name, op, inputs, name))
        return name

    def conv(x: str, features: int, groups: int, kernel: int, stride: int) -> str:
        inputs = next(t for t in tensors if t.name == x).shape[1]
        shape = (features, inputs // groups, kernel, kernel)
        index = len(tensors)
        weight = rng.integers(-128, 128, shape).astype(np.int8)
        bias = rng.integers(-(2**20), 2**20, features).astype(np.int32)
        tensors.append(Tensor.constant(f"w{index}", weight))
        tensors.append(Tensor.constant(f"b{index}", bias))
        count = draw(st.sampled_from((1, features)))
        requant = Requant(
            rng.integers(2**30, 2**31, count).astype(np.int32),
            draw(st.sampled_from((24, 36))) + rng.integers(0, 8, count).astype(np.int32),
            int(rng.integers(-128, 128)), lo=draw(st.sampled_from((-128, 0))), hi=127,
        )  # fmt: skip
        before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        pads = (before, after, after, before)
        op = QConv2d((stride, 1), pads, (1, 1), groups, int(rng.integers(-128, 128)), requant)
        return add(op, x, f"w{index}", f"b{index}")

    first = conv("x", channels, 1, draw(st.integers(1, 3)), draw(st.integers(1, 2)))
    second = conv(first, channels, channels if depthwise else 1, draw(st.integers(1, 4)), 1)
    total = add(QAdd((3, -2), 2, 5, 1), first, first)
    third = conv(second, draw(st.integers(1, 20)), 1, 1, 1)  # its source has no other reader
    pooled = add(QMaxPool((2, 2), (2, 1), (1, 0, 0, 1), lo=-100), third)
    graph = Graph("q", ("x",), (total, pooled), tuple(nodes), {t.name: t for t in tensors})
    assert kinds(block_channels(graph)).count("ToBlocks") <= 1
    lifted = [t.dtype for t in block_channels(graph, dots=True).tensors.values()]
    assert lifted.count("uint8") == 2  # what the image became, and what the third reads
    x = rng.integers(-128, 128, graph["x"].shape).astype(np.int8)
    wanted = interpret(graph, x)
    blocked = block_channels(graph, host_processor().vector_lanes, draw(st.booleans(), "dots"))
    for found in (build_cpu(graph).run(x), interpret(blocked, x)):
        for ours, expected in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("constant", [(32, 1, 1), (1, 32, 1, 1), None])
def test_numbers_for_each_channel_stay_in_blocks(constant: Shape | None) -> None:
    """Factors of a constant, or of what is computed from all of the channel."""
    model = Model(x=(1, 16, 4, 4))
    y = model.node("Conv", "x", model.weight(32, 16, 1, 1))
    if constant is None:
        factors = model.node("Conv", model.node("GlobalAveragePool", y), model.weight(32, 32, 1, 1))
    else:
        factors = model.weight(*constant)
    scaled = model.node("Mul", y, factors)
    graph = compare(model.finish(model.node("Conv", scaled, model.weight(16, 32, 1, 1))))
    found = kinds(graph)
    assert found.count("Map") == 1 and found[0] == "ToBlocks" and found[-1] == "FromBlocks"
    assert not {"ToBlocks", "FromBlocks"} & set(found[1:-1])


def test_computed_numbers_for_each_channel_may_have_three_dimensions() -> None:
    model = Model(x=(1, 16, 4, 4), s=(32, 1, 1))
    y = model.node("Conv", "x", model.weight(32, 16, 1, 1))
    compare(model.finish(model.node("Mul", y, model.node("Neg", "s"))))
