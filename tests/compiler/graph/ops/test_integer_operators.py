"""ONNX's operators on quantised integers: fused, on the accelerator, equal to ONNX's definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.passes import run_passes

DTYPES = ["int8", "uint8"]
#: (first operand, weight, result); of ONNX Runtime's kernels, int8 by uint8 is missing.
KINDS = [(x, w, y) for x in DTYPES for w in DTYPES for y in DTYPES]


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def model(
    nodes: list[onnx.NodeProto], x: np.ndarray, constants: dict[str, Any], output: str, dtype: str
) -> onnx.ModelProto:
    """A model of one input, like ``x``, and one output."""
    types = [helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in (x.dtype, dtype)]
    inputs = [helper.make_tensor_value_info("x", types[0], x.shape)]
    outputs = [helper.make_tensor_value_info(output, types[1], None)]
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "integers", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def everywhere(made: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """The output, which must be the same from sim and cpu, with all but the conversions at the
    edges on the accelerator."""
    module = vdla.compile(made)
    (y,) = module.run(x)
    np.testing.assert_array_equal(y, vdla.compile(made, "cpu").run(x)[0])
    on_host = {row["op"] for row in module.report["layers"] if row["target"] == "cpu"}
    assert on_host <= {"Recentre", "PackWindows", "Quantize", "Dequantize"}
    assert module.report["coverage"]["macs_on_accelerator"] > 0
    return y


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal; but results that the peer's float32 cannot tell from ties may differ by one."""
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert len(np.unique(theirs)) > 5, "too few values occur for the test to mean anything"
    difference = np.abs(ours.astype(int) - theirs)
    assert difference.max() <= 1 and (difference != 0).mean() <= 0.002


def peer(made: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(made.SerializeToString())
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


def definition(made: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """The output of ONNX's own evaluator."""
    (y,) = ReferenceEvaluator(made).run(None, {"x": x})
    return np.asarray(y)


def parameters(
    rng: np.random.Generator, kinds: tuple[str, str, str], channels: int, depth: int
) -> dict[str, Any]:
    """Scales and zero points: per channel for the weights, whose values fit int8 when their zero
    points are subtracted."""
    x, w, y = kinds
    return {
        "x_scale": np.float32(0.02),
        "x_zero": np.array(integers(rng, (), x)),
        "w_scale": rng.uniform(0.005, 0.01, channels).astype(np.float32),
        "w_zero": np.full(channels, 128 if w == "uint8" else 0, w),
        "y_scale": np.float32(0.02 * depth**0.5),
        "y_zero": np.array(integers(rng, (), y)),
    }


ORDER = ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"]


@pytest.mark.slow
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize(
    ("channels", "attributes"),
    [
        (20, {"pads": [1, 0, 1, 2], "strides": [2, 1]}),
        (24, {"group": 24, "auto_pad": b"SAME_UPPER"}),
        (16, {"dilations": [2, 1], "kernel_shape": [3, 3]}),
        (20, {"group": 2, "strides": [1, 2]}),
        (12, {"group": 12, "pads": [1, 1, 1, 1]}),
    ],
    ids=["padded", "depthwise", "dilated", "two groups", "depth multiplier"],
)
def test_qlinear_conv(kinds: tuple[str, str, str], channels: int, attributes: dict) -> None:
    rng = np.random.default_rng(len(attributes) + channels)
    groups = attributes.get("group", 1)
    x, w = integers(rng, (1, channels, 9, 9), kinds[0]), (24, channels // groups, 3, 3)
    constants = parameters(rng, kinds, 24, 9 * channels // groups)
    constants |= {"w": integers(rng, w, kinds[1]), "b": rng.integers(-5000, 5000, 24, np.int32)}
    node = helper.make_node("QLinearConv", [*ORDER, "b"], ["y"], "conv", **attributes)
    made = model([node], x, constants, "y", kinds[2])
    y = everywhere(made, x)
    if kinds[0] == kinds[2] and kinds[:2] != ("int8", "uint8"):
        same(y, peer(made, x))
    else:  # what ONNX Runtime has no kernel for
        same(y, definition(made, x))
    assert len(np.unique(y)) > 100


@pytest.mark.fast(1)
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_qlinear_matmul(kinds: tuple[str, str, str]) -> None:
    rng = np.random.default_rng(4)
    x = integers(rng, (1, 70), kinds[0])
    constants = parameters(rng, kinds, 40, 70) | {"w": integers(rng, (70, 40), kinds[1])}
    node = helper.make_node("QLinearMatMul", ORDER, ["y"], "product")
    made = model([node], x, constants, "y", kinds[2])
    same(everywhere(made, x), definition(made, x))


def test_qlinear_matmul_of_three_dimensions() -> None:
    """Rows are taken together; here on the host: they are more than one image."""
    rng = np.random.default_rng(5)
    x = integers(rng, (2, 3, 20), "int8")
    constants = parameters(rng, ("int8", "int8", "int8"), 8, 20) | {
        "w": integers(rng, (20, 8), "int8")
    }
    made = model([helper.make_node("QLinearMatMul", ORDER, ["y"])], x, constants, "y", "int8")
    y = vdla.compile(made, "cpu").run(x)[0]
    same(y, definition(made, x))


@pytest.mark.slow
def test_a_network_of_uint8() -> None:
    """Convolutions, pooling and a dense layer on uint8: one program, converted at the edges."""
    rng = np.random.default_rng(6)
    x = integers(rng, (1, 3, 12, 12), "uint8")
    kinds = ("uint8", "uint8", "uint8")
    constants: dict[str, Any] = {"shape": np.array([1, 32])}
    for i, shape in enumerate([(16, 3, 3, 3), (32, 16, 3, 3), (32, 10)]):
        depth = int(np.prod(shape)) // (10 if i == 2 else shape[0])
        made = parameters(rng, kinds, 10 if i == 2 else shape[0], depth)
        made |= {"w": integers(rng, shape, "uint8")}
        constants |= {f"{name}{i}": value for name, value in made.items()}
    first, second, third = ([f"{name}{i}" for name in ORDER[1:]] for i in range(3))
    nodes = [
        helper.make_node("QLinearConv", ["x", *first], ["a"], strides=[2, 2]),
        helper.make_node("MaxPool", ["a"], ["p"], kernel_shape=[2, 2], pads=[0, 0, 1, 1]),
        helper.make_node("QLinearConv", ["p", *second], ["c"], strides=[2, 2], pads=[0, 0, 1, 1]),
        helper.make_node("MaxPool", ["c"], ["m"], kernel_shape=[2, 2]),
        helper.make_node("Reshape", ["m", "shape"], ["f"]),
        helper.make_node("QLinearMatMul", ["f", *third], ["y"]),
    ]
    made = model(nodes, x, constants, "y", "uint8")
    graph = run_passes(import_onnx(made))
    assert sum(type(node.op).__name__ == "Recentre" for node in graph.nodes) == 2
    same(everywhere(made, x), peer(made, x))


def test_uint8_at_the_edges_of_qdq() -> None:
    """A model that reads uint8 pictures and returns uint8, QDQ in between."""
    rng = np.random.default_rng(7)
    x = integers(rng, (1, 4, 8, 8), "uint8")
    constants = parameters(rng, ("uint8", "int8", "uint8"), 16, 36)
    constants["w"] = integers(rng, (16, 4, 3, 3), "int8")
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wf"], axis=0),
        helper.make_node("Conv", ["xf", "wf"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "y_scale", "y_zero"], ["y"]),
    ]
    made = model(nodes, x, constants, "y", "uint8")
    same(everywhere(made, x), definition(made, x))


@pytest.mark.parametrize("zero", [1, -3])
def test_qdq_weights_with_zero_points(zero: int, builder: Any) -> None:
    """Scales are powers of two, so that the peer's float32 is exact."""
    rng = np.random.default_rng(8)
    builder.input("x", [1, 20])
    w = builder.constant("w", rng.integers(-120, 120, (20, 12), np.int8))
    w = builder.scaled("DequantizeLinear", w, "w_dq", 1 / 128, np.array(zero, np.int8))
    made = builder.model(
        [builder.qdq(builder.node("MatMul", [builder.qdq("x", 1 / 8, 3), w], "h"), 1 / 4, 7)]
    )
    x = rng.normal(0, 3, (1, 20)).astype(np.float32)
    y = everywhere(made, x)
    assert len(np.unique(y)) > 5
    np.testing.assert_array_equal(y, peer(made, x))


@pytest.mark.fast(1)
@pytest.mark.parametrize("zero", [0, 3, 255], ids=lambda zero: f"zero {zero}")
@pytest.mark.parametrize("groups", [1, 24])
def test_weights_beyond_int8(zero: int, groups: int) -> None:
    """uint8 less a zero point far from their middle: sums of two or three int8."""
    rng = np.random.default_rng(9)
    x = integers(rng, (1, 24, 9, 7), "uint8")
    constants = parameters(rng, ("uint8", "uint8", "uint8"), 24, 9 * 24 // groups)
    constants |= {"w": integers(rng, (24, 24 // groups, 3, 3), "uint8")}
    constants["w"][0, 0, 0, :2] = 0, 255
    constants["w_zero"] = np.full(24, zero, np.uint8)
    # In the middle, so that the sums, whose weights have one sign, are not all clamped.
    constants |= {"x_zero": np.uint8(128), "y_zero": np.uint8(128)}
    node = helper.make_node("QLinearConv", ORDER, ["y"], group=groups, pads=[1, 1, 0, 1])
    made = model([node], x, constants, "y", "uint8")
    same(everywhere(made, x), definition(made, x))


def test_dense_weights_beyond_int8() -> None:
    rng = np.random.default_rng(10)
    x = integers(rng, (1, 70), "uint8")
    constants = parameters(rng, ("uint8", "uint8", "uint8"), 40, 70)
    constants |= {"w": integers(rng, (70, 40), "uint8"), "w_zero": np.full(40, 90, np.uint8)}
    made = model([helper.make_node("QLinearMatMul", ORDER, ["y"])], x, constants, "y", "uint8")
    same(everywhere(made, x), definition(made, x))


def test_what_does_not_fit_is_right_on_the_host() -> None:
    """The result's steps are so small that no multiplier holds its scale: all values are
    clamped."""
    rng = np.random.default_rng(9)
    x = integers(rng, (1, 4, 5, 5), "uint8")
    constants = parameters(rng, ("uint8", "uint8", "uint8"), 6, 36)
    constants |= {"w": integers(rng, (6, 4, 3, 3), "uint8"), "y_scale": np.float32(1e-30)}
    made = model([helper.make_node("QLinearConv", ORDER, ["y"])], x, constants, "y", "uint8")
    np.testing.assert_array_equal(vdla.compile(made).run(x)[0], definition(made, x))


def test_equally_named_nodes_keep_their_constants() -> None:
    """ONNX allows it; the constants of scales were once told apart by the node's name alone."""
    x = np.array([[1.0, -2.0, 3.0]], np.float32)
    constants = {"a": np.float32(0.5), "b": np.float32(0.25), "zero": np.int8(0)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "a", "zero"], ["q"], "same"),
        helper.make_node("DequantizeLinear", ["q", "a", "zero"], ["d"], "same"),
        helper.make_node("QuantizeLinear", ["d", "b", "zero"], ["r"], "same"),
        helper.make_node("DequantizeLinear", ["r", "b", "zero"], ["y"], "same"),
    ]
    made = model(nodes, x, constants, "y", "float32")
    np.testing.assert_array_equal(vdla.compile(made, "cpu").run(x)[0], x)
