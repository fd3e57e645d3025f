"""Products of matrices by AMX: executed by an emulation of its instructions, and as machine code
for a processor that has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir
from vdla.bench.net import Net
from vdla.bench.peers import in_uint8
from vdla.bench.workloads import TABLE_2, MatrixProduct, resnet18
from vdla.compiler.choose.space import Knobs
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.graph.arithmetic.requant import OFFSET, Requant
from vdla.compiler.graph.interpret import interpret as interpret_graph
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.ops.blocked.integer import BlockedDotConv2d
from vdla.compiler.graph.ops.blocked.matrix import BlockedMatrixConv2d
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.ops.linear import QDense
from vdla.compiler.graph.passes import run_passes as run_graph_passes
from vdla.compiler.targets.common.workload import workload_of
from vdla.compiler.targets.cpu import graph_code
from vdla.compiler.targets.cpu.graph_code import (
    build_cpu,
    compile_func,
    load_graph_code,
    on_blocks,
    run_passes,
)
from vdla.compiler.targets.cpu.llvm import emit_function
from vdla.compiler.targets.cpu.lowering import (
    choose_knobs,
    lower_node,
    new_chooser,
    template_of,
    uses_matrices,
)
from vdla.compiler.targets.cpu.micro_kernels import (
    DOT_WIDTH,
    TILE_PRODUCTS,
    TILE_STORE,
    TILE_SUMS,
    TILE_W,
    TILE_X,
)
from vdla.compiler.targets.cpu.processor import Processor, host_processor, optimise
from vdla.compiler.te.expr import Expr, Var
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import Tensor, compute, placeholder, reduce_axis, sum_of
from vdla.compiler.tir.ir import For, PrimFunc, Seq, TensorCall, walk_stmt
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.passes.unroll import copy_with
from vdla.isa.errors import VdlaError
from vdla.runtime.native import ENTRY_NAME

from ....processors import TILES, counts, on_processor
from ...interpret import interpret
from . import one_operator

#: A processor with AMX, to compile for.
SAPPHIRE_RAPIDS = Processor(
    "x86_64-unknown-linux-gnu", "sapphirerapids",
    tuple(f"+{name}" for name in (
        "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "amx-tile",
        "amx-int8",
    )),
)  # fmt: skip


@pytest.fixture
def tiles() -> Iterator[Processor]:
    """A processor with AMX, of which each instruction is counted."""
    with on_processor("amx", emulated=TILES):
        counts()
        yield host_processor()


# ---- one loop program ----------------------------------------------------------------------------


def without_tiles(known: Processor) -> Processor:
    """A processor, less AMX."""
    return replace(known, features=tuple(f for f in known.features if f[1:] not in TILES))


def product(depth: int, groups: int, steps: int) -> tuple[list[Tensor], PrimFunc]:
    """``y = x w`` for 16 rows of ``depth * steps`` elements and ``groups`` x 16 columns."""
    fours, products = depth // DOT_WIDTH, TILE_PRODUCTS[depth]
    x = placeholder((16, depth * steps), "uint8", "x")
    w = placeholder((groups, steps, fours, 16, DOT_WIDTH), "int8", "w")
    step, f, k = (reduce_axis(n, a) for n, a in ((steps, "s"), (fours, "f"), (DOT_WIDTH, "k")))

    def rule(g: Expr, m: Expr, n: Expr) -> Expr:
        element = x[m, step * depth + f * DOT_WIDTH + k].astype("int32")
        return sum_of(element * w[g, step, f, n, k].astype("int32"), (step, f, k))

    y = compute((groups, 16, 16), rule, "y")
    schedule = create_schedule(y)
    sums = schedule.cache_write(y, TILE_SUMS.name)
    x_tile = schedule.cache_read(x, TILE_X.name, [sums])
    w_tile = schedule.cache_read(w, TILE_W.name, [sums])
    out, stage = schedule[y], schedule[sums]
    out.unroll(y.axes[0])
    out.tensorize(y.axes[1], TILE_STORE)
    g, m, n = sums.axes
    stage.reorder(step, g, m, n, f, k)
    stage.unroll(g)
    stage.tensorize(m, products.product)
    for tile, axis, load in ((x_tile, 0, products.load_x), (w_tile, 2, products.load_w)):
        schedule[tile].compute_at(stage, step)
        schedule[tile].tensorize(tile.axes[axis], load)
    schedule[w_tile].unroll(w_tile.axes[0])
    return [x, w, y], lower(schedule, [x, w, y])


@pytest.mark.slow
@pytest.mark.parametrize("depth", TILE_PRODUCTS)
def test_instructions_are_their_declared_behaviour(tiles: Processor, depth: int) -> None:
    """On extreme values: the loop program interpreted, as loops on this processor, and with the
    instructions."""
    tensors, func = product(depth, groups=2, steps=2)
    rng = np.random.default_rng(depth)
    extremes = {"uint8": (0, 1, 255), "int8": (-128, -1, 127)}
    arrays = [rng.choice(extremes[t.dtype], t.shape).astype(t.dtype) for t in tensors[:2]]
    names = {s.intrinsic.name for s in walk_stmt(func.body) if isinstance(s, TensorCall)}
    assert len(names) == 4
    results = [np.full(tensors[2].shape, 99, np.int32) for _ in range(3)]
    interpret(func, *arrays, results[0])
    compile_func(func, without_tiles(host_processor()))(*arrays, results[1])
    assert counts()["products"] == 0
    compile_func(func, tiles)(*arrays, results[2])
    assert counts() == {
        "faults": 0, "products": 4, "loads": 6, "stores": 2, "configurations": 1, "releases": 1,
    }  # fmt: skip
    x, w = (array.astype(np.int64) for array in arrays)
    columns = w.transpose(1, 2, 4, 0, 3).reshape(x.shape[1], 32)
    expected = (x @ columns).reshape(16, 2, 16).transpose(1, 0, 2)
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_tiles_after_a_parallel_loop(tiles: Processor) -> None:
    """Each thread prepares its tiles and releases them; the thread that goes on prepares them
    again."""
    tensors, func = product(64, groups=1, steps=1)
    parallel = For(Var("p"), 2, "parallel", copy_with(func.body, {}))
    func = replace(func, body=Seq((parallel, func.body)))
    x, w = (np.ones(t.shape, t.dtype) for t in tensors[:2])
    y = np.zeros(tensors[2].shape, np.int32)
    compile_func(func, replace(tiles, threads=2))(x, w, y)
    executed = counts()
    assert (executed["faults"], executed["products"]) == (0, 3)
    assert executed["configurations"] == executed["releases"] + 1 >= 3
    np.testing.assert_array_equal(y, np.full(y.shape, 64))


def test_a_product_in_memory_is_refused(tiles: Processor) -> None:
    """Tensorized without tiles for its operands."""
    y = TILE_PRODUCTS[16].product.behaviour
    schedule = create_schedule(y)
    schedule[y].tensorize(y.axes[0], TILE_PRODUCTS[16].product)
    func = lower(schedule, [*y.inputs, y])
    with pytest.raises(VdlaError, match="expected operands of products of matrices in tiles"):
        compile_func(func, tiles)


def test_too_many_tiles_are_refused(tiles: Processor) -> None:
    _, func = product(64, groups=5, steps=1)
    with pytest.raises(VdlaError, match="expected at most 4 tiles in tile_sums"):
        compile_func(func, tiles)


# ---- one convolution -----------------------------------------------------------------------------


def convolution(draw) -> tuple[BlockedMatrixConv2d, list[np.ndarray]]:
    """Small ones of every kind: strides, dilations, borders, groups of 1 to 4 blocks."""
    integer = st.integers
    blocks, groups, features = (draw(integer(1, n), n) for n in (4, 2, 3))
    kernel, strides, dilations = ([draw(integer(1, n)) for _ in "hw"] for n in (3, 3, 2))
    pads = tuple(draw(integer(0, 2)) for _ in range(4))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    least = [max(1, span - pads[d] - pads[d + 2]) for d, span in enumerate(spans)]
    size = [draw(integer(n, n + 12)) for n in least]
    rng = np.random.default_rng(draw(integer(0, 999)))
    shape = (features, groups, *kernel, blocks * 4, 16, 4)
    x = rng.integers(-128, 128, (1, blocks * groups, *size, 16)).astype(np.int8)
    w = rng.integers(-128, 128, shape).astype(np.int8)
    bias = rng.integers(-(2**12), 2**12, (features, 16)).astype(np.int32)
    channels = blocks * groups * 16 * kernel[0] * kernel[1]
    factor = rng.uniform(0.5, 2, (features, 16)) / (250 * channels**0.5)
    columns = [bias, factor.astype(np.float32), rng.uniform(-9, 9, bias.shape).astype(np.float32)]
    one = np.ones(1, np.int32)
    op = BlockedMatrixConv2d(
        tuple(strides), pads, tuple(dilations), False, draw(integer(-9, 9)),
        Requant(one, 40 * one, -3, -120, 119), draw(st.booleans()),
    )  # fmt: skip
    lifted = draw(st.booleans())
    return op, [(x.astype(np.int16) + OFFSET).astype(np.uint8) if lifted else x, w, *columns]


@pytest.mark.slow
@settings(max_examples=25)
@given(st.data())
def test_convolutions_equal_their_operator(data: st.DataObject) -> None:
    """With any legal knobs."""
    op, arrays = convolution(data.draw)
    graph = one_operator.graph_of(op, [(a.shape, str(a.dtype)) for a in arrays])
    [node] = graph.nodes
    with on_processor("amx", emulated=TILES):
        counts()
        tiles = host_processor()
        template = template_of(graph, node, tiles)
        assert template.name == "matrix tiles"
        space = template.space(workload_of(graph, node))
        knobs = {name: data.draw(st.sampled_from(v), name) for name, v in space.knobs.items()}
        assert not space.refuse(knobs)
        func = lower_node(graph, node, tiles, knobs).func
        found = np.zeros(graph["y"].shape, graph["y"].dtype)
        compile_func(func, tiles)(*arrays, found)
        executed = counts()
    assert executed["faults"] == 0 and executed["products"] > 0
    np.testing.assert_array_equal(found, op.evaluate(*arrays))


# ---- models --------------------------------------------------------------------------------------


def small_resnet18() -> onnx.ModelProto:
    """ResNet-18 with few channels on a small image: tiles of 16, 32, 48 and 64 channels."""
    net = Net("small")
    x = net.max_pool(net.conv(net.input(1, 3, 56, 56), 16, 7, 2), 3, 2)
    for channels, stride in ((16, 1), (16, 1), (32, 2), (32, 1), (48, 2), (48, 1), (128, 2),
                             (128, 1)):  # fmt: skip
        y = net.conv(net.conv(x, channels, 3, stride), channels, 3, relu=False)
        if stride != 1:
            x = net.conv(x, channels, 1, stride, relu=False)
        x = net.add(y, x)
    net.output(net.dense(net.global_average(x), 10))
    return net.model()


def imported(model: onnx.ModelProto) -> Graph:
    return run_graph_passes(load_graph(model))


def eligible(graph: Graph, processor: Processor) -> list[str]:
    """Layers whose products can be of matrices."""
    given = {n.name: {"instruction": "matrices"} for n in graph.nodes if isinstance(n.op, QConv2d)}
    chooser = new_chooser(processor, given)
    return [
        n.name for n in graph.nodes
        if isinstance(n.op, QConv2d) and uses_matrices(graph, n, processor, chooser)
    ]  # fmt: skip


def run(graph: Graph, processor: Processor, x: np.ndarray, knobs: dict[str, Knobs]) -> np.ndarray:
    chooser = new_chooser(processor, knobs)
    [result] = load_graph_code(graph, processor, chooser).run(x)
    chooser.check_given()
    return result


@pytest.fixture(scope="module")
def small() -> tuple[Graph, np.ndarray, np.ndarray]:
    """A small ResNet-18, its input and what the interpreter computes."""
    graph = imported(small_resnet18())
    [source] = graph.inputs
    x = np.random.default_rng(7).normal(0, 2, graph[source].shape).astype(np.float32)
    return graph, x, interpret_graph(graph, x)[0]


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_network_equals_the_interpreter_and_the_products_of_four(
    tiles: Processor, small: tuple[Graph, np.ndarray, np.ndarray], threads: int
) -> None:
    """All of its convolutions but the first by tiles."""
    graph, x, expected = small
    processor = replace(tiles, threads=threads)
    layers = eligible(graph, processor)
    assert len(layers) == 19
    matrices = run(graph, processor, x, {n: {"instruction": "matrices"} for n in layers})
    executed = counts()
    assert executed["faults"] == 0 and executed["products"] > 1000
    assert executed["configurations"] == executed["releases"] >= 19
    dots = run(graph, processor, x, {n: {"instruction": "dots"} for n in layers})
    assert counts()["products"] == 0
    np.testing.assert_array_equal(matrices, expected)
    np.testing.assert_array_equal(dots, expected)
    assert np.unique(expected).size > 5


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["C11", "C4", "C10", "C12"])
def test_layers_equal_the_interpreter(tiles: Processor, name: str) -> None:
    """In the form for ONNX Runtime, whose zero points are not 0, and as the planner chooses."""
    layer = next(layer for layer in TABLE_2 if layer.name == name)
    graph = imported(in_uint8(layer.model(1)))
    [source] = graph.inputs
    x = np.random.default_rng(3).normal(1, 1, graph[source].shape).astype(np.float32)
    found = run(graph, tiles, x, {})
    executed = counts()
    assert executed["faults"] == 0 and executed["products"] > 0
    [expected] = interpret_graph(graph, x)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(build_cpu(graph).run(x)[0], expected)
    assert np.unique(found).size > 20


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("rows", "depth", "features", "by_tiles"),
    [(16, 64, 16, True), (37, 80, 40, True), (130, 192, 49, True), (64, 176, 96, True),
     (64, 72, 32, False), (3, 64, 32, False)],
)  # fmt: skip
def test_dense_layers_equal_the_interpreter(
    tiles: Processor, rows: int, depth: int, features: int, by_tiles: bool
) -> None:
    """In tiles of 16 to 64 elements; never where elements are no whole vectors, or rows are few."""
    graph = imported(in_uint8(MatrixProduct(rows, depth, features).model(1, True)))
    [source] = graph.inputs
    rng = np.random.default_rng(rows)
    x = rng.normal(1, 1, graph[source].shape).astype(np.float32)
    [dense] = (node.name for node in graph.nodes if isinstance(node.op, QDense))
    found = run(graph, tiles, x, {dense: {"instruction": "matrices"}} if by_tiles else {})
    executed = counts()
    assert executed["faults"] == 0 and (executed["products"] > 0) == by_tiles
    [expected] = interpret_graph(graph, x)
    np.testing.assert_array_equal(found, expected)
    assert np.unique(found).size > 20


# ---- choices -------------------------------------------------------------------------------------


def convolutions(graph: Graph, processor: Processor) -> list[type]:
    chooser = new_chooser(processor)
    kinds = (BlockedMatrixConv2d, BlockedDotConv2d)
    nodes = on_blocks(graph, processor, chooser).nodes
    return [type(node.op) for node in nodes if isinstance(node.op, kinds)]


@pytest.mark.slow
def test_a_processor_without_tiles_never_uses_them() -> None:
    """Not even if a person asks for it."""
    graph, without = imported(resnet18()), without_tiles(host_processor())
    if "+avx512vnni" in without.features:
        assert set(convolutions(graph, without)) == {BlockedDotConv2d}
    assert eligible(graph, without) == []
    chooser = new_chooser(without, {graph.nodes[2].name: {"instruction": "matrices"}})
    on_blocks(graph, without, chooser)
    with pytest.raises(VdlaError, match=r"expected (knobs .*'instruction'|layers with choices)"):
        chooser.check_given()


@pytest.mark.slow
def test_the_planner_uses_tiles_where_they_are_faster() -> None:
    """For all convolutions of ResNet-18 but the first, which has three channels; but not for its
    dense layer, which has one row, and not for one of few channels at few places."""
    found = convolutions(imported(resnet18()), SAPPHIRE_RAPIDS)
    assert found[0] is found[-1] is BlockedDotConv2d
    assert found[1:-1] == [BlockedMatrixConv2d] * 19
    net = Net("few")
    net.output(net.conv(net.input(1, 16, 2, 1), 16, 1))
    assert convolutions(imported(net.model()), SAPPHIRE_RAPIDS) == [BlockedDotConv2d]


# ---- machine code --------------------------------------------------------------------------------


def assembly(func: PrimFunc, processor: Processor) -> str:
    module = ir.Module("code")
    emit_function(run_passes(func, processor), module, "kernel", processor)
    return processor.target_machine().emit_assembly(optimise(module, processor))


def innermost_loops(text: str, instruction: str) -> list[list[str]]:
    """The instructions between each label and the branch back to it, of loops that have none
    inside and in which an instruction occurs."""
    found = []
    for label, body, target in re.findall(r"(?m)^(\S+):\s*$((?:.(?!^\S+:))*?)^\s+j\w+\s+(\S+)$",
                                          text, re.DOTALL):  # fmt: skip
        lines = [line.split("#")[0].strip() for line in body.splitlines()]
        if label == target and any(line.startswith(instruction) for line in lines):
            found.append([line for line in lines if line and not line.startswith(".")])
    return found


@pytest.mark.slow
def test_the_code_of_a_model_asks_for_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux's ``arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA)``, only where it is needed."""
    monkeypatch.setenv("VDLA_CACHE", str(tmp_path))
    texts = []

    def noting(module, processor: Processor):
        found = optimise(module, processor)
        texts.append(str(found))
        return found

    monkeypatch.setattr(graph_code, "optimise", noting)
    graph = imported(next(layer for layer in TABLE_2 if layer.name == "C12").model(1))
    for processor in (SAPPHIRE_RAPIDS, without_tiles(SAPPHIRE_RAPIDS)):
        graph_code.compile_graph(graph, processor)
    with_tiles, without = texts
    _, entry = with_tiles.split(f"@{ENTRY_NAME}(", 1)
    calls = re.findall(r"call .*?@(\w+\(.*\))", entry.partition("\n}")[0])
    assert calls[0] == "syscall(i64 158, i64 4131, i64 18)"
    assert "tdpbusd" in with_tiles
    assert "syscall" not in without and "tdpbusd" not in without


def test_code_for_a_processor_with_tiles() -> None:
    """Of C6: the inner loop has four loads and four products, on all eight tiles. Tiles are stored
    only after the reduction, and nothing is kept elsewhere meanwhile."""
    layer = next(layer for layer in TABLE_2 if layer.name == "C6")
    graph = imported(layer.model(1))
    chooser = new_chooser(SAPPHIRE_RAPIDS)
    blocked = on_blocks(graph, SAPPHIRE_RAPIDS, chooser)
    [node] = [n for n in blocked.nodes if isinstance(n.op, BlockedMatrixConv2d)]
    knobs = choose_knobs(blocked, node, SAPPHIRE_RAPIDS, chooser)
    assert (knobs["blocks"], knobs["positions"]) == (2, 2)
    text = assembly(lower_node(blocked, node, SAPPHIRE_RAPIDS, knobs).func, SAPPHIRE_RAPIDS)
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1
    [loop] = innermost_loops(text, "tdpbusd")
    tiles = [line.split()[0] for line in loop if "%tmm" in line]
    assert tiles == ["tileloadd"] * 4 + ["tdpbusd"] * 4
    assert {int(number) for line in loop for number in re.findall(r"%tmm(\d)", line)} == {*range(8)}
    assert not any("(%rsp)" in line or "(%rbp)" in line for line in loop)
    assert len(loop) < 20
    assert text.count("tdpbusd") == text.count("tilestored") == text.count("tilezero") == 4
    assert not innermost_loops(text, "tilestored")
