"""Rotary embeddings as exporters write them, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from vdla.bench.distance import distances
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.ops.rotation import QRotate
from vdla.compiler.graph.passes import run_passes

HEADS, TOKENS, WIDTH, PLACES = 2, 16, 32, 40
TARGETS = ("cpu", "sim")
SCALE, ZERO, OUT = 0.05, 3, 0.06


class Queries:
    """A model of queries [1, tokens, heads * width] at places that are an input, and keys that
    their embedding is multiplied by."""

    def __init__(self, at_run_time: bool, is_float: bool = False) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        angles = np.arange(PLACES)[:, None] * 0.7 ** np.arange(WIDTH // 2)
        self.at_run_time, self.angles, self.is_float = at_run_time, angles, is_float
        flat = self.stored("x", SCALE, ZERO)
        if is_float:  # only results of products are quantised
            mixed = np.random.default_rng(5).normal(0, 0.1, (HEADS * WIDTH,) * 2)
            flat = self.op("MatMul", flat, self.constant(mixed.astype(np.float32)))
        rows = self.op("Reshape", flat, self.constant(np.array([1, TOKENS, HEADS, WIDTH])))
        self.x = self.op("Transpose", rows, perm=(0, 2, 1, 3))

    def constant(self, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(value, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def op(self, kind: str, *names: str, **attributes: object) -> str:
        count = len(self.nodes)
        self.nodes.append(helper.make_node(kind, names, [f"t{count}"], f"n{count}", **attributes))
        return self.nodes[-1].output[0]

    def stored(self, x: str, scale: float, zero: int) -> str:
        if self.is_float:
            return x
        quant = self.constant(np.array(scale, np.float32)), self.constant(np.array(zero, np.int8))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *quant), *quant)

    def table(self, values: np.ndarray) -> str:
        """Rows of a table, those of the places."""
        known = values.astype(np.float32)
        if not self.at_run_time:
            return self.constant(known[:TOKENS])
        return self.op("Gather", self.constant(known), "places")

    def tables(self, copies: int) -> tuple[str, str]:
        """Cosines and sines."""
        wide = np.tile(self.angles, (1, copies))
        return self.table(np.cos(wide)), self.table(np.sin(wide))

    def cut(self, x: str, first: int, end: int, step: int = 1) -> str:
        bounds = (self.constant(np.array([n])) for n in (first, end, 3, step))
        return self.op("Slice", x, *bounds)

    def model(self, rotated: str) -> onnx.ModelProto:
        y = self.stored(rotated, OUT, -2)
        turned = self.op("Transpose", self.stored("k", 0.1, 0), perm=(0, 1, 3, 2))
        z = self.stored(self.op("MatMul", y, turned), 1.0, 0)
        shapes = {"x": (1, TOKENS, HEADS * WIDTH), "k": (1, HEADS, TOKENS, WIDTH)}
        results = {z: None} if self.is_float else {y: None, z: None}
        ends = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
            for n, shape in {**shapes, **results}.items()
        ]
        places = [helper.make_tensor_value_info("places", TensorProto.INT64, (TOKENS,))]
        graph = helper.make_graph(
            self.nodes, "net", ends[:2] + places * self.at_run_time, ends[2:], self.constants
        )
        opset = helper.make_opsetid("", 23)
        return helper.make_model(graph, opset_imports=[opset], ir_version=11)


def _operator(net: Queries) -> str:
    axis = net.constant(np.array([0]))
    return net.op("RotaryEmbedding", net.x, *(net.op("Unsqueeze", t, axis) for t in net.tables(1)))


def _half_turned(net: Queries, *given: str) -> str:
    """``x * cos + concat(-x2, x1) * sin``, as Hugging Face writes it."""
    cos, sin = given or net.tables(2)
    first, second = net.cut(net.x, 0, WIDTH // 2), net.cut(net.x, WIDTH // 2, WIDTH)
    turned = net.op("Concat", net.op("Neg", second), first, axis=3)
    return net.op("Add", net.op("Mul", net.x, cos), net.op("Mul", turned, sin))


def _halves(net: Queries) -> str:
    """Both halves by themselves, one behind the other."""
    cos, sin = net.tables(1)
    first, second = net.cut(net.x, 0, WIDTH // 2), net.cut(net.x, WIDTH // 2, WIDTH)
    parts = (
        net.op("Sub", net.op("Mul", first, cos), net.op("Mul", second, sin)),
        net.op("Add", net.op("Mul", first, sin), net.op("Mul", second, cos)),
    )
    return net.op("Concat", *parts, axis=3)


def _split(net: Queries) -> str:
    """Halves as parts of a dimension of two."""
    cos, sin = net.tables(1)
    shape = net.constant(np.array([1, HEADS, TOKENS, 2, WIDTH // 2]))
    pairs = net.op("Reshape", net.x, shape)
    first, second = (net.op("Gather", pairs, net.constant(np.array(n)), axis=3) for n in (0, 1))
    axis, whole = net.constant(np.array([3])), net.constant(np.array([1, HEADS, TOKENS, WIDTH]))
    real = net.op("Sub", net.op("Mul", cos, first), net.op("Mul", sin, second))
    imaginary = net.op("Add", net.op("Mul", sin, first), net.op("Mul", cos, second))
    parts = (net.op("Unsqueeze", part, axis) for part in (real, imaginary))
    return net.op("Reshape", net.op("Concat", *parts, axis=3), whole)


def _interleaved(net: Queries) -> str:
    """Pairs of neighbours, which are not halves."""
    axis = net.constant(np.array([0]))
    tables = (net.op("Unsqueeze", t, axis) for t in net.tables(1))
    return net.op("RotaryEmbedding", net.x, *tables, interleaved=1)


def _wrong_sign(net: Queries) -> str:
    """No rotation: both products are added in both halves."""
    cos, sin = net.tables(2)
    first, second = net.cut(net.x, 0, WIDTH // 2), net.cut(net.x, WIDTH // 2, WIDTH)
    turned = net.op("Concat", second, first, axis=3)
    return net.op("Add", net.op("Mul", net.x, cos), net.op("Mul", turned, sin))


def _scaled(net: Queries) -> str:
    """Times the root of the scores' factor, as PyTorch exports attention."""
    moved = net.op("Reshape", _half_turned(net), net.constant(np.array([HEADS, 1, TOKENS, WIDTH])))
    scaled = net.op("Mul", moved, net.constant(np.array(1.5, np.float32)))
    return net.op("Reshape", scaled, net.constant(np.array([1, HEADS, TOKENS, WIDTH])))


FORMS: dict[str, Callable[[Queries], str]] = {
    "the operator": _operator,
    "half turned": _half_turned,
    "halves": _halves,
    "split": _split,
    "scaled": _scaled,
    "added in both halves": _wrong_sign,  # signs are in the sines
}


def rotations(model: onnx.ModelProto) -> int:
    return sum(isinstance(n.op, QRotate) for n in run_passes(import_onnx(model)).nodes)


def run_apart(model: onnx.ModelProto, x: dict[str, np.ndarray]) -> np.ndarray:
    """The embedding by ONNX Runtime, without its own fusions."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, x)[0]


def operands(at_run_time: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {
        "x": rng.normal(0, 40 * SCALE, (1, TOKENS, HEADS * WIDTH)).astype(np.float32),
        "k": rng.normal(0, 4, (1, HEADS, TOKENS, WIDTH)).astype(np.float32),
    }
    return found | {"places": np.arange(5, 5 + TOKENS)} if at_run_time else found


@pytest.mark.slow
@pytest.mark.short(3)
@pytest.mark.parametrize("at_run_time", [False, True], ids=["constant", "gathered"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_one_operator(form: str, at_run_time: bool) -> None:
    """Within two steps of ONNX Runtime; the accelerator computes what machine code does."""
    net = Queries(at_run_time)
    model, x = net.model(FORMS[form](net)), operands(at_run_time)
    assert rotations(model) == 1
    wanted = run_apart(model, x)
    host, sim = (vdla.compile(model, target).run(x) for target in TARGETS)
    assert np.abs(host[0] - wanted).max() <= 2.01 * OUT
    assert np.mean(np.abs(host[0] - wanted) < 1.01 * OUT) > 0.99
    for a, b in zip(host, sim, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.short(1)
@pytest.mark.parametrize("form", ["the operator", "half turned", "halves", "scaled"])
def test_the_quantiser_leaves_it_whole(form: str) -> None:
    """Whoever wrote the float model, what its queries become is one operator in integers."""
    net = Queries(False, is_float=True)
    model, x = net.model(FORMS[form](net)), operands(False)
    made = vdla.quantize(model, x).model
    assert rotations(made) == 1
    assert not [n.name for n in run_passes(import_onnx(made)).nodes if n.op.name == "Map"]
    wanted, host, sim = run_apart(model, x), *(vdla.compile(made, t).run(x)[0] for t in TARGETS)
    assert np.abs(host - wanted).max() < 0.03 * np.abs(wanted).max()
    np.testing.assert_array_equal(host, sim)


@pytest.mark.parametrize("form", ["the operator", "half turned", "halves"])
def test_the_file_says_how_cosines_are_rounded(form: str) -> None:
    """So ONNX Runtime turns by the same numbers."""
    net = Queries(False, is_float=True)
    model, x = net.model(FORMS[form](net)), operands(False)
    made = vdla.quantize(model, x).model
    [turned] = [d for d in distances(made, [*x.values()]) if d.op == "QRotate"]
    assert turned.largest <= 1 and turned.counts[0] > 0.99 * turned.elements


def test_cosines_of_neighbours_are_not_rounded() -> None:
    """Nothing would be gained: their embedding stays in float32."""
    net = Queries(False, is_float=True)
    made = vdla.quantize(net.model(_interleaved(net)), operands(False)).model
    [node] = [node for node in made.graph.node if node.op_type == "RotaryEmbedding"]
    constants = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    assert [constants[name] for name in node.input[1:3]] == [TensorProto.FLOAT] * 2


def test_neighbours_stay_in_float32() -> None:
    net = Queries(False)
    model, x = net.model(_interleaved(net)), operands(False)
    assert rotations(model) == 0
    wanted = run_apart(model, x)
    np.testing.assert_allclose(vdla.compile(model, "cpu").run(x)[0], wanted, atol=1.01 * OUT)


def test_factors_of_unknown_size_stay_in_float32() -> None:
    """Factors that are an input have no scale."""
    net = Queries(False)
    model = net.model(_half_turned(net, "cos", "sin"))
    for name in ("cos", "sin"):
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, (TOKENS, WIDTH))
        model.graph.input.append(value)
    assert rotations(model) == 0


@pytest.mark.parametrize("shape", [[], [0, 4]], ids=str)
def test_sums_of_numbers_are_no_rotation(shape: list[int], builder: Any) -> None:
    """Two products of a scalar, or of nothing, are added as they are written."""
    x = builder.qdq(builder.input("x", shape), 0.1, 3)
    parts = [
        builder.node("Mul", [x, builder.constant(n, np.float32(v))], f"x{n}")
        for n, v in (("a", 0.5), ("b", 0.25))
    ]
    model = builder.model([builder.qdq(builder.node("Add", parts, "sum"), 0.1, 0)])
    assert rotations(model) == 0
