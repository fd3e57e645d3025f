"""Products of few rows: weights of 4 bits, and second factors that lie as they are."""

from __future__ import annotations

import numpy as np
import pytest
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor, infer
from vdla.compiler.graph.ops.base import Op
from vdla.compiler.graph.ops.blocked.four_bits import FourBitRows, pack_groups
from vdla.compiler.graph.ops.linear import QDense, QMatMul
from vdla.compiler.graph.ops.movement import Pad, Reshape, Transpose
from vdla.compiler.targets.cpu.graph_code import CpuModule, build_cpu
from vdla.compiler.targets.cpu.passes import block_channels
from vdla.compiler.targets.cpu.processor import host_processor

from .one_operator import as_plain_loops
from .whole_numbers import kinds

pytestmark = pytest.mark.each_processor


def four_bit_weights(results: int, depth: int, seed: int = 0) -> np.ndarray:
    """Scales of groups of 16 times 4 bits, int8 [results, depth]; the first row has the least
    products that there are, the second one the largest."""
    rng = np.random.default_rng(seed)
    scales = rng.integers(1, 17, (results, -(-depth // 16))).repeat(16, 1)[:, :depth]
    weights = rng.integers(-8, 8, (results, depth))
    for row, extreme in zip(range(results), (-8, 7), strict=False):
        scales[row], weights[row] = 16, extreme
    return (weights * scales).astype(np.int8)


def dense(weights: np.ndarray, rows: int, zero_point: int = 3) -> Graph:
    """A dense layer of int8, each of whose results has a scale of its own."""
    results, depth = weights.shape
    rng = np.random.default_rng(depth)
    requant = Requant(
        rng.integers(2**30, 2**31, results).astype(np.int32),
        rng.integers(40, 44, results).astype(np.int32), -5, lo=-120,
    )  # fmt: skip
    tensors = [
        Tensor("x", (rows, depth), "int8"),
        Tensor.constant("w", weights),
        Tensor.constant("b", rng.integers(-(2**12), 2**12, results).astype(np.int32)),
        Tensor("y", (rows, results), "int8"),
    ]
    node = Node("dense", QDense(zero_point, requant), ("x", "w", "b"), "y")
    return Graph("one", ("x",), ("y",), (node,), {t.name: t for t in tensors})


def as_bytes(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> CpuModule:
    """The module whose weights are all of 8 bits."""
    with monkeypatch.context() as patched:
        patched.setattr(block_channels, "pack_groups", lambda weight, block: None)
        return build_cpu(graph)


@pytest.mark.parametrize(
    ("rows", "depth", "results"),
    [(1, 16, 16), (1, 64, 48), (1, 20, 5), (2, 36, 33), (3, 100, 17), (1, 12, 1), (1, 30, 7)],
)
@pytest.mark.parametrize("zero_point", [-128, 127])
def test_weights_of_4_bits_give_the_bits_of_int8(
    rows: int, depth: int, results: int, zero_point: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Depths that are no groups, and results that are no blocks; elements as far from their zero
    points as they can be, too."""
    graph = dense(four_bit_weights(results, depth), rows, zero_point)
    found, plain = build_cpu(graph), as_bytes(graph, monkeypatch)
    taken = host_processor().has("avx512vnni") and depth % 4 == 0
    assert ("FourBitRows" in kinds(found.graph)) == taken
    assert "FourBitRows" not in kinds(plain.graph)
    x = np.random.default_rng(0).integers(-128, 128, (rows, depth)).astype(np.int8)
    far = np.full_like(x, -128 if zero_point > 0 else 127)
    for given in (x, far):
        [wanted] = interpret(graph, given)
        for module in (found, plain):
            np.testing.assert_array_equal(module.run(given)[0], wanted)
        np.testing.assert_array_equal(interpret(found.graph, given)[0], wanted)


def test_weights_of_4_bits_take_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a byte, and a byte for 16 of them; where a weight does not fit, or rows are many, a
    whole one. All else, such as the bias, is as large."""
    weights = four_bit_weights(64, 256)
    graph = dense(weights, 1)
    saved = as_bytes(graph, monkeypatch).code.parameters.nbytes
    saved -= build_cpu(graph).code.parameters.nbytes
    least = weights.size - weights.size // 2 - weights.size // 16
    assert saved == (least if host_processor().has("avx512vnni") else 0)
    other = weights.copy()
    other[40, 17:19] = 127, 126
    assert pack_groups(other, 16) is None
    for unpacked in (dense(other, 1), dense(weights, 4)):
        assert "FourBitRows" not in kinds(build_cpu(unpacked).graph)


def test_the_schedule_of_4_bits_computes_what_plain_loops_do() -> None:
    packed = pack_groups(four_bit_weights(40, 48), 16)
    assert packed is not None
    rng, one = np.random.default_rng(1), np.ones((3, 16), np.int32)
    requant = Requant(one[0, :1], 40 * one[0, :1], 2)
    op = FourBitRows((1, 1), (0, 0, 0, 0), (1, 1), False, 7, requant)
    x = rng.integers(-128, 128, (1, 1, 1, 2, 48)).astype(np.int8)
    arrays = [x, *packed, -999 * one, one << 30, 41 * one]
    np.testing.assert_array_equal(as_plain_loops(op, arrays), op.evaluate(*arrays))


def attention(
    rows: int,
    depth: int,
    columns: int,
    readers: int,
    turned: bool,
    zeros: tuple[int, int],
    exchanged: bool = False,
) -> Graph:
    """A product of four heads with matrices of which ``readers`` heads share one: those that follow
    each other, or, ``exchanged``, others."""
    tensors = [
        Tensor("a", (1, 4, rows, depth), "int8"),
        Tensor("b", (1, 4 // readers, *((columns, depth) if turned else (depth, columns))), "int8"),
    ]
    nodes, name = list[Node](), "b"

    def add(new: str, op: Op, *inputs: str) -> str:
        operands = [next(t for t in tensors if t.name == given) for given in inputs]
        tensors.append(Tensor(new, *infer(op, operands, new)))
        nodes.append(Node(new, op, inputs, new))
        return new

    if readers > 1:
        _, groups, *matrix = tensors[1].shape
        name = add("by group", Reshape((1, groups, 1, *matrix)), name)
        name = add("of group", Pad("wrap", (*[0] * 7, readers - 1, 0, 0)), name)
        if exchanged:
            name = add("exchanged", Transpose((0, 2, 1, 3, 4)), name)
        name = add("by head", Reshape((1, 4, *matrix)), name)
    if turned:
        name = add("turned", Transpose((0, 1, 3, 2)), name)
    requant = Requant(np.array([1_500_000_001], np.int32), np.array([43], np.int32), 5, lo=-120)
    y = add("y", QMatMul(*zeros, requant), "a", name)
    return Graph("two", ("a", "b"), (y,), tuple(nodes), {t.name: t for t in tensors})


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "readers", "zeros"),
    [(1, 64, 33, 2, (0, 0)), (1, 33, 64, 4, (-128, 127)), (3, 7, 100, 1, (127, -128)),
     (2, 5, 3, 2, (1, 2))],
)  # fmt: skip
def test_factors_are_read_where_they_lie(
    rows: int, depth: int, columns: int, readers: int, zeros: tuple[int, int], turned: bool
) -> None:
    graph = attention(rows, depth, columns, readers, turned, zeros)
    module = build_cpu(graph)
    assert set(kinds(module.graph)) == {"Reshape", "QSharedMatMul"}
    rng = np.random.default_rng(1)
    shapes = [graph[name].shape for name in graph.inputs]
    far = [np.full(shape, -128 if zero >= 0 else 127, np.int8)
           for shape, zero in zip(shapes, zeros, strict=True)]  # fmt: skip
    for arrays in ([rng.integers(-128, 128, s).astype(np.int8) for s in shapes], far):
        [wanted] = interpret(graph, *arrays)
        for made in (interpret(module.graph, *arrays), module.run(*arrays)):
            np.testing.assert_array_equal(made[0], wanted)


def test_heads_in_another_order_are_repeated() -> None:
    """Heads that share a matrix do not follow each other."""
    graph = attention(1, 16, 20, 2, True, (0, 0), exchanged=True)
    module = build_cpu(graph)
    assert {"Pad", "QSharedMatMul"} < set(kinds(module.graph))
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-128, 128, graph[n].shape).astype(np.int8) for n in graph.inputs]
    np.testing.assert_array_equal(module.run(*arrays)[0], interpret(graph, *arrays)[0])


def test_many_rows_pack_their_factor() -> None:
    assert "PackColumns" in kinds(build_cpu(attention(4, 8, 8, 2, True, (0, 0))).graph)
