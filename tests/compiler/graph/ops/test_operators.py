"""Single operators against ONNX Runtime's integer and float kernels and ONNX's reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import evaluate, interpret
from vdla.compiler.graph.ops.convolution import QConv2d, QConvTranspose2d
from vdla.compiler.graph.ops.integer import QAdd
from vdla.compiler.graph.ops.linear import QDense, QMatMul
from vdla.compiler.graph.ops.movement import Reshape
from vdla.compiler.graph.ops.pooling import QAvgPool, QMaxPool
from vdla.compiler.graph.passes import run_passes

Case = tuple[type, Callable[[Any, np.random.Generator, str], str]]
CASES: dict[str, Case] = {}


def case(op: type, *names: str, **options: Any) -> Callable[[Any], Any]:
    """Register a model builder ``f(builder, rng, dtype, **options)``, which returns its result."""

    def register(function: Any) -> Any:
        for name in names or (function.__name__,):
            CASES[name] = (op, lambda b, rng, dtype: function(b, rng, dtype, **options))
        return function

    return register


def image(b: Any, dtype: str, name: str = "x", scale: float = 0.031, zero: int = -7) -> str:
    b.input(name, [2, 6, 9, 8])
    return b.qdq(name, scale, zero + (128 if dtype == "uint8" else 0), dtype)


def conv(
    b: Any,
    rng: np.random.Generator,
    dtype: str,
    kernel: tuple[int, int] = (3, 3),
    groups: int = 1,
    per_channel: bool = True,
    bias: bool = True,
    channels: int = 10,
    activation: str = "",
    **attributes: object,
) -> str:
    x = image(b, dtype)
    weight = rng.integers(-127, 128, (channels, 6 // groups, *kernel)).astype(np.int8)
    scale = rng.uniform(0.001, 0.01, channels if per_channel else ()).astype(np.float32)
    operands = [x, b.stored("w", weight, scale)]
    if bias:
        values = rng.integers(-4000, 4000, channels).astype(np.int32)
        operands.append(b.stored("b", values, np.float32(0.031) * scale))
    y = b.node("Conv", operands, "y", group=groups, **attributes)
    if activation == "relu":
        y = b.node("Relu", [y], "relu")
    if activation == "clip":
        low, high = (b.constant(f"bound{v}", np.float32(v)) for v in (-1.0, 2.5))
        y = b.node("Clip", [y, low, high], "clip")
    return y


CONVS: dict[str, dict[str, Any]] = {
    "padded": {"pads": [1, 1, 1, 1]},
    "strided": {"strides": [2, 3], "pads": [0, 1, 2, 1]},
    "dilated": {"dilations": [2, 1], "pads": [2, 0, 2, 0]},
    "same_upper": {"auto_pad": "SAME_UPPER", "strides": [2, 2], "kernel": (4, 3)},
    "same_lower": {"auto_pad": "SAME_LOWER", "kernel": (2, 3)},
    "pointwise": {"kernel": (1, 1), "channels": 17},
    "per_tensor": {"per_channel": False},
    "no_bias": {"bias": False},
    "relu": {"activation": "relu", "pads": [1, 1, 1, 1]},
    "clip": {"activation": "clip", "pads": [1, 1, 1, 1]},
    "depthwise": {"groups": 6, "channels": 6, "pads": [1, 1, 1, 1]},
    "grouped": {"groups": 3, "channels": 12},
}
for _name, _options in CONVS.items():
    case(QConv2d, f"conv_{_name}", **_options)(conv)


@case(QConvTranspose2d, "conv_transpose", strides=[2, 2], pads=[1, 1, 1, 1])
@case(QConvTranspose2d, "conv_transpose_ragged", strides=[3, 1], pads=[0, 2, 1, 0], relu=True)
def conv_transpose(
    b: Any, rng: np.random.Generator, dtype: str, relu: bool = False, **attributes: object
) -> str:
    weight = rng.integers(-127, 128, (6, 5, 4, 3)).astype(np.int8)
    scale = rng.uniform(0.001, 0.01, 5).astype(np.float32)
    bias = b.stored("b", rng.integers(-4000, 4000, 5).astype(np.int32), np.float32(0.031) * scale)
    operands = [image(b, dtype), b.stored("w", weight, scale, axis=1), bias]
    y = b.node("ConvTranspose", operands, "y", **attributes)
    return b.node("Relu", [y], "relu") if relu else y


def dense(b: Any, rng: np.random.Generator, dtype: str, kind: str, transposed: bool) -> str:
    b.input("x", [2, 40])
    x = b.qdq("x", 0.031, -7 + (128 if dtype == "uint8" else 0), dtype)
    weight = rng.integers(-127, 128, (11, 40)).astype(np.int8)
    scale = rng.uniform(0.001, 0.01, 11).astype(np.float32)
    if kind == "MatMul":
        return b.node("MatMul", [x, b.stored("w", weight.T.copy(), scale, axis=1)], "y")
    stored = weight if transposed else weight.T.copy()
    bias = b.stored("b", rng.integers(-4000, 4000, 11).astype(np.int32), np.float32(0.031) * scale)
    operands = [x, b.stored("w", stored, scale, axis=0 if transposed else 1), bias]
    return b.node("Gemm", operands, "y", transB=int(transposed))


case(QDense, "gemm", kind="Gemm", transposed=True)(dense)
case(QDense, "gemm_untransposed", kind="Gemm", transposed=False)(dense)
case(QDense, "matmul", kind="MatMul", transposed=False)(dense)


@case(QMatMul, "activations", shapes=((3, 7), (7, 5)))
@case(QMatMul, "activations_in_batches", shapes=((2, 4, 5, 9), (2, 4, 9, 3)))
@case(QMatMul, "activations_broadcast", shapes=((2, 1, 5, 9), (4, 9, 3)))
def of_activations(b: Any, rng: np.random.Generator, dtype: str, shapes: Any) -> str:
    offset = 128 if dtype == "uint8" else 0
    operands = []
    for name, shape, scale, zero in zip("xz", shapes, (0.031, 0.027), (-7, 11), strict=True):
        b.input(name, list(shape))
        operands.append(b.qdq(name, scale, zero + offset, dtype))
    return b.node("MatMul", operands, "y")


@case(QAdd, "add", relu=False)
@case(QAdd, "add_relu", relu=True)
def add(b: Any, rng: np.random.Generator, dtype: str, relu: bool) -> str:
    operands = [image(b, dtype), image(b, dtype, "second", 0.027, 11)]
    y = b.node("Add", operands, "y")
    return b.node("Relu", [y], "relu") if relu else y


def pool(b: Any, rng: np.random.Generator, dtype: str, kind: str, **attributes: object) -> str:
    return b.node(kind, [image(b, dtype)], "y", **attributes)


case(QMaxPool, "max_pool", kind="MaxPool", kernel_shape=[2, 3], strides=[2, 2])(pool)
case(QMaxPool, "max_pool_padded", kind="MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])(pool)
case(QAvgPool, "average_pool", kind="AveragePool", kernel_shape=[3, 2], strides=[2, 2])(pool)
case(
    QAvgPool,
    "average_pool_padded",
    kind="AveragePool",
    kernel_shape=[3, 3],
    pads=[1, 1, 1, 1],
    count_include_pad=1,
)(pool)
case(QAvgPool, "global_average_pool", kind="GlobalAveragePool")(pool)


@case(Reshape)
def flatten(b: Any, rng: np.random.Generator, dtype: str) -> str:
    return b.node("Flatten", [image(b, dtype)], "y")


@case(Reshape)
def reshape(b: Any, rng: np.random.Generator, dtype: str) -> str:
    shape = b.constant("shape", np.array([0, -1, 9], np.int64))
    return b.node("Reshape", [image(b, dtype), shape], "y")


def build(name: str, b: Any, dtype: str) -> tuple[onnx.ModelProto, str, type]:
    op, make = CASES[name]
    y = make(b, np.random.default_rng(3), dtype)
    same = op in (QMaxPool, Reshape)
    scale, zero = (0.031, -7) if same else (0.047, 9)
    if op in (QConv2d, QConvTranspose2d, QDense):
        scale = 0.11
    if op is QMatMul:
        scale = 0.31
    q = b.quantize(y, scale, zero + (128 if dtype == "uint8" else 0), dtype)
    b.scaled("DequantizeLinear", q, "real", scale, b_zero(zero, dtype))
    return b.model([q, "real"]), q, op


def b_zero(zero: int, dtype: str) -> np.ndarray:
    return np.array(zero + (128 if dtype == "uint8" else 0), dtype)


def random_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    shapes = {
        i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input
    }
    return {n: rng.uniform(-4.5, 4.5, s).astype(np.float32) for n, s in shapes.items()}


def references(
    model: onnx.ModelProto, q: str, feeds: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The quantised output by ONNX Runtime's integer and float kernels and ONNX's reference."""
    found = {}
    for label, level in (
        ("ort_integer", ort.GraphOptimizationLevel.ORT_ENABLE_ALL),
        ("ort_float", ort.GraphOptimizationLevel.ORT_DISABLE_ALL),
    ):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        found[label] = session.run([q], feeds)[0]
    newer = onnx.ModelProto()
    newer.CopyFrom(model)
    newer.opset_import[0].version = 19  # the first whose DequantizeLinear the evaluator has
    found["onnx"] = ReferenceEvaluator(newer).run([q], feeds)[0]
    return found


def identical(ours: np.ndarray, reference: np.ndarray) -> float:
    """Share of equal values; none may be off by more than one step."""
    difference = np.abs(ours.astype(int) - reference.astype(int))
    assert difference.max() <= 1
    return float((difference == 0).mean())


@pytest.mark.parametrize("name", CASES)
def test_integer_operator_agrees(name: str, builder: Any) -> None:
    model, q, op = build(name, builder, "int8")
    graph = run_passes(import_onnx(model))
    made = graph.producers()[q]
    assert type(made.op) is op
    feeds = random_inputs(model)
    ours = evaluate(graph, feeds)[q]
    assert len(np.unique(ours)) >= 8, "too few int8 values occur for the test to mean anything"
    for label, reference in references(model, q, feeds).items():
        assert identical(ours, reference) >= 0.995, label


@pytest.mark.fast(5)
@pytest.mark.parametrize("name", CASES)
def test_float_semantics_agrees(name: str, builder: Any) -> None:
    model, q, _op = build(name, builder, "int8")
    feeds = random_inputs(model)
    ours = evaluate(import_onnx(model), feeds)[q]
    assert identical(ours, references(model, q, feeds)["onnx"]) >= 0.995


@pytest.mark.parametrize(
    "name", ["conv_padded", "gemm", "add", "max_pool", "average_pool", "flatten"]
)
def test_unsigned_models_become_signed(name: str, builder: Any) -> None:
    model, q, op = build(name, builder, "uint8")
    del model.graph.output[0]
    feeds = random_inputs(model)
    graph = run_passes(import_onnx(model))
    assert type(graph.producers()[q].op) is op
    (ours,) = interpret(graph, *feeds.values())
    reference = ort.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, feeds)[0]
    step = builder_scale(graph)
    assert identical(np.rint(ours / step), np.rint(reference / step)) >= 0.995


def builder_scale(graph: Any) -> float:
    """The scale of the last Dequantize."""
    return float(graph.nodes[-1].op.quant.scale[0])
