"""Products of matrices and reductions of rows: tiles and lanes that divide nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdla.compiler.choose.space import Refusal
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.blocked.dense import PackColumns, PackedDense
from vdla.compiler.graph.ops.linear import QDense, QMatMul
from vdla.compiler.graph.ops.movement import Transpose
from vdla.compiler.graph.ops.reduction import Reduce
from vdla.compiler.targets.common.workload import OperatorWorkload
from vdla.compiler.targets.cpu.graph_code import build_cpu, compile_func
from vdla.compiler.targets.cpu.lowering import lower_node, templates_of
from vdla.compiler.targets.cpu.passes.block_channels import block_channels
from vdla.compiler.targets.cpu.processor import Processor, host_processor
from vdla.compiler.targets.cpu.templates.tiles import DenseTiles

from .one_operator import as_plain_loops, graph_of
from .whole_numbers import Model, Shape, compare, integers, kinds


@pytest.mark.slow
@settings(max_examples=40, derandomize=True)
@given(st.data())
def test_products_of_two_inputs_equal_onnx_runtime(data: st.DataObject) -> None:
    """The second factor as it is, or transposed by another operator, which something else may
    read, too."""
    draw = data.draw
    lead = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2), label="lead")
    rows, depth, columns = (draw(st.integers(1, 40), name) for name in ("rows", "depth", "columns"))
    order = draw(st.permutations(range(len(lead) + 2)), label="order")
    shape = (*lead, depth, columns)
    model = Model(a=(*lead, rows, depth), b=tuple(shape[order.index(i)] for i in range(len(order))))
    b = model.node("Transpose", "b", perm=[int(i) for i in np.argsort(np.argsort(order))])
    y = model.node("MatMul", "a", b)
    outputs = [y, model.node("Neg", b)] if draw(st.booleans(), "read again") else [y]
    found = kinds(compare(model.finish(*outputs)))
    assert ("PackedDense" in found) == (rows >= 4 and 2 * columns >= host_processor().vector_lanes)


def test_a_transposition_joins_the_packing() -> None:
    model = Model(a=(1, 3, 20, 24), b=(1, 18, 3, 24))
    b = model.node("Transpose", "b", perm=[0, 2, 3, 1])
    graph = compare(model.finish(model.node("MatMul", "a", b)))
    assert kinds(graph) == ["PackColumns", "PackedDense"]
    pack, _ = (node.op for node in graph.nodes)
    assert isinstance(pack, PackColumns) and pack.order == (0, 2, 3, 1)


def integer_dense(rows: int, depth: int, results: int, zero_point: int) -> Graph:
    """A dense layer of int8, each of whose results has a scale of its own."""
    rng = np.random.default_rng(rows * depth + results)
    requant = Requant(
        rng.integers(2**30, 2**31, results).astype(np.int32),
        rng.integers(38, 42, results).astype(np.int32), int(rng.integers(-128, 128)), lo=-100,
    )  # fmt: skip
    tensors = [
        Tensor("x", (rows, depth), "int8"),
        Tensor.constant("w", rng.integers(-128, 128, (results, depth)).astype(np.int8)),
        Tensor.constant("b", rng.integers(-(2**12), 2**12, results).astype(np.int32)),
        Tensor("y", (rows, results), "int8"),
    ]
    node = Node("dense", QDense(zero_point, requant), ("x", "w", "b"), "y")
    return Graph("one", ("x",), ("y",), (node,), {t.name: t for t in tensors})


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("rows", "depth", "results", "packed"),
    [(4, 4, 1, True), (5, 24, 16, True), (33, 60, 50, True), (197, 192, 64, True),
     (3, 16, 16, True), (1, 24, 40, True), (8, 6, 16, False)],
)  # fmt: skip
@pytest.mark.parametrize("zero_point", [-128, 0, 127])
def test_rows_of_int8_are_a_convolutions_places(
    rows: int, depth: int, results: int, packed: bool, zero_point: int
) -> None:
    """Blocks of results that are full and that are not; depths that are no fours stay."""
    graph = integer_dense(rows, depth, results, zero_point)
    blocked = block_channels(graph, 16, dots=True)
    assert ("BlockedDotConv2d" in kinds(blocked)) == packed
    assert kinds(block_channels(graph, 16)) == ["QDense"]
    x = np.random.default_rng(0).integers(-128, 128, (rows, depth)).astype(np.int8)
    [wanted] = interpret(graph, x)
    assert len(np.unique(wanted)) > min(wanted.size // 2, 20)
    for made in (interpret(blocked, x), build_cpu(graph).run(x)):
        np.testing.assert_array_equal(made[0], wanted)


def integer_product(rows: int, depth: int, columns: int, zeros: tuple[int, int]) -> Graph:
    """Two heads of int8, of which the second factor lies transposed."""
    requant = Requant(
        np.array([1_500_000_001], np.int32), np.array([43], np.int32), 5, lo=-120
    )  # fmt: skip
    tensors = [
        Tensor("a", (1, 2, rows, depth), "int8"),
        Tensor("b", (1, 2, columns, depth), "int8"),
        Tensor("t", (1, 2, depth, columns), "int8"),
        Tensor("y", (1, 2, rows, columns), "int8"),
    ]
    nodes = (
        Node("turn", Transpose((0, 1, 3, 2)), ("b",), "t"),
        Node("product", QMatMul(*zeros, requant), ("a", "t"), "y"),
    )
    return Graph("two", ("a", "b"), ("y",), nodes, {t.name: t for t in tensors})


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "zeros", "packed"),
    [(4, 1, 8, (0, 0), True), (19, 64, 33, (-128, 127), True), (7, 1023, 16, (0, 0), True),
     (5, 256, 24, (127, -128), True), (5, 257, 24, (-128, -128), False),
     (7, 1024, 16, (0, 0), False), (3, 16, 16, (1, 2), False)],
)  # fmt: skip
def test_products_of_int8_whose_sums_float32_holds(
    rows: int, depth: int, columns: int, zeros: tuple[int, int], packed: bool
) -> None:
    """Elements are as far from their zero points as they can be: every sum is the largest."""
    graph = integer_product(rows, depth, columns, zeros)
    blocked = block_channels(graph, 16)
    assert ("PackedDense" in kinds(blocked)) == packed
    assert all((kind in kinds(blocked)) != packed for kind in ("QMatMul", "Transpose"))
    rng = np.random.default_rng(1)
    shapes = [graph[name].shape for name in graph.inputs]
    far = [np.full(shape, -128 if zero >= 0 else 127, np.int8)
           for shape, zero in zip(shapes, zeros, strict=True)]  # fmt: skip
    for arrays in ([rng.integers(-128, 128, s).astype(np.int8) for s in shapes], far):
        [wanted] = interpret(graph, *arrays)
        for made in (interpret(blocked, *arrays), build_cpu(graph).run(*arrays)):
            np.testing.assert_array_equal(made[0], wanted)


OPERATORS: list[tuple[PackColumns | PackedDense | Reduce, list[Shape]]] = [
    (PackColumns(16, (0, 1)), [(5, 37)]),
    (PackColumns(16, (0, 2, 3, 1)), [(2, 19, 3, 7)]),
    (PackedDense(70), [(2, 3, 9, 33), (2, 3, 5, 33, 16)]),
    (PackedDense(64, hi=20.0), [(13, 8), (4, 8, 16), (4, 16)]),
    *[(Reduce(kind, (2,), True), [(2, 3, n)]) for kind in ("+", "max") for n in (4, 16, 67, 197)],
    (Reduce("min", (0, 2), False), [(4, 5, 21)]),
]


@pytest.mark.fast(1)
@pytest.mark.parametrize(("op", "shapes"), OPERATORS, ids=str)
def test_schedules_compute_what_plain_loops_do(op, shapes: list[Shape]) -> None:
    arrays = [integers(shape, i) for i, shape in enumerate(shapes)]
    result = as_plain_loops(op, arrays)
    np.testing.assert_array_equal(result, op.evaluate(*arrays).reshape(result.shape))


@pytest.mark.parametrize(
    ("cpu", "features", "shape", "expected"),
    [
        # Rows that share loaded weights, but for a single row; fewer that share sets of a cache.
        ("skylake-avx512", ("+avx512f", "+fma"), (128, 256, 64), (13, 2)),
        ("skylake-avx512", ("+avx512f", "+fma"), (128, 3072, 64), (6, 4)),
        ("skylake-avx512", ("+avx512f", "+fma"), (1, 512, 64), (1, 8)),
        ("haswell", ("+avx2", "+fma"), (128, 256, 128), (6, 2)),
    ],
)
def test_default_tiles(cpu, features, shape: Shape, expected: tuple[int, int]) -> None:
    rows, depth, blocks = shape
    processor = Processor("x86_64-unknown-linux-gnu", cpu, features)
    lanes, op = processor.vector_lanes, PackedDense(blocks * processor.vector_lanes)
    types = (((rows, depth), "float32"), ((blocks, depth, lanes), "float32"))
    workload = OperatorWorkload(op.name, (), types, ((rows, blocks * lanes), "float32"), op)
    template = next(t for t in templates_of(processor) if isinstance(t, DenseTiles))
    plan = template.plan(workload, {})
    assert (plan.knobs["rows"], plan.knobs["blocks"]) == expected
    fixed = template.plan(workload, {"rows": 1})
    assert fixed.knobs["rows"] == 1 and fixed.cycles >= plan.cycles
    refused = template.plan(workload, {"rows": 1, "blocks": 9})
    assert refused == Refusal("knob blocks: expected 1 to 8, got 9")
    if rows > 1:
        refused = template.plan(workload, {"rows": 4, "blocks": 8})
        assert refused == Refusal(f"8 x 4 sums need 32 registers of {processor.sums}")


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (3, 2), (2, 5), (9, 1)])
def test_every_tile_computes_the_same(rows: int, blocks: int) -> None:
    op, shapes = PackedDense(70, lo=-9.0), [(10, 24), (5, 24, 16), (5, 16)]
    graph = graph_of(op, [(shape, "float32") for shape in shapes])
    func = lower_node(
        graph, graph.nodes[0], host_processor(), {"rows": rows, "blocks": blocks}
    ).func
    arrays, result = [integers(s, i) for i, s in enumerate(shapes)], np.zeros((10, 70), np.float32)
    compile_func(func)(*arrays, result)
    np.testing.assert_array_equal(result, op.evaluate(*arrays))
