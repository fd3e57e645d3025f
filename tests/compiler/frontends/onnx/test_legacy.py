"""What ONNX Runtime still runs of old operator sets, against it; and sets that it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import interpret
from vdla.isa.errors import VdlaError

RNG = np.random.default_rng(3)
X = RNG.normal(size=(1, 4, 6, 6)).astype(np.float32)


def model(
    opset: int, *nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",),
    inputs: dict[str, np.ndarray] | None = None, **constants: np.ndarray,
) -> onnx.ModelProto:  # fmt: skip
    """Nodes from ``inputs``, by default ``x``; constants are no inputs."""
    given = {"x": X} if inputs is None else inputs
    graph = helper.make_graph(
        nodes, "old",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in given.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)


def assert_as_ort(made: onnx.ModelProto, **inputs: np.ndarray) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    feeds = inputs or {"x": X}
    found = interpret(import_onnx(made), *feeds.values())
    for a, b in zip(found, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "affine": ("Affine", {"alpha": 2.0, "beta": 0.3}),
    "crop": ("Crop", {"border": [1, 2, 1, 0]}),
    "crop to a size": ("Crop", {"border": [1, 2, 0, 0], "scale": [2, 3]}),
    "image scaler": ("ImageScaler", {"scale": 2.0, "bias": [0.1, 0.2, 0.3, 0.4]}),
    "parametric softplus": ("ParametricSoftplus", {"alpha": 2.0, "beta": 0.3}),
    "scale": ("Scale", {"scale": 3.0}),
    "scaled tanh": ("ScaledTanh", {"alpha": 2.0, "beta": 0.3}),
    "thresholded relu": ("ThresholdedRelu", {"alpha": 0.3}),
}


@pytest.mark.parametrize("opset", [1, 6, 7, 9])
@pytest.mark.parametrize("name", KINDS)
def test_operators_that_onnx_never_settled(name: str, opset: int) -> None:
    kind, attributes = KINDS[name]
    assert_as_ort(model(opset, helper.make_node(kind, ["x"], ["y"], **attributes)))


@pytest.mark.parametrize("opset", [7, 8])
def test_batch_normalization_of_elements(opset: int) -> None:
    values = {name: np.abs(RNG.normal(size=X.shape[1:])) + 0.1 for name in "abcd"}
    node = helper.make_node("BatchNormalization", ["x", *"abcd"], ["y"], spatial=0)
    assert_as_ort(model(opset, node, **values))


@pytest.mark.parametrize("directions", [None, [1]])
def test_scan_with_a_batch(directions: list[int] | None) -> None:
    row = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("s", "x", "t", "o")]
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Mul", ["t", "x"], ["o"])],
        "body", row[:2], row[2:],
    )  # fmt: skip
    more = {} if directions is None else {"directions": directions}
    node = helper.make_node(
        "Scan", ["", "first", "rows"], ["y", "z"], num_scan_inputs=1, body=body, **more
    )
    inputs = {
        "first": RNG.normal(size=(2, 3)).astype(np.float32),
        "rows": RNG.normal(size=(2, 4, 3)).astype(np.float32),
    }
    assert_as_ort(model(8, node, outputs=("y", "z"), inputs=inputs), **inputs)


def test_scan_with_lengths_is_refused() -> None:
    body = helper.make_graph([], "body", [], [])
    node = helper.make_node("Scan", ["x", "x"], ["y"], num_scan_inputs=1, body=body)
    with pytest.raises(VdlaError, match="sequence_lens of Scan before opset 9"):
        import_onnx(model(8, node))


RULES = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power,
    "Greater": np.greater, "Less": np.less,
}  # fmt: skip


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("axis, shape", [(1, (4,)), (1, (4, 6)), (-2, (6,)), (0, (1, 4))])
@pytest.mark.parametrize("kind", RULES)
def test_an_axis_says_where_an_operand_lies(
    kind: str, axis: int, shape: tuple[int, ...], opset: int
) -> None:
    """Before operator set 7; constants need not be inputs."""
    b, x = RNG.uniform(1, 3, shape).astype(np.float32), np.abs(X)
    node = helper.make_node(kind, ["x", "b"], ["y"], broadcast=1, axis=axis)
    (y,) = interpret(import_onnx(model(opset, node, b=b)), x)
    right = RULES[kind](x, b.reshape(*shape, *[1] * (4 - axis % 4 - len(shape))))
    np.testing.assert_allclose(y, right, rtol=1e-6)


def test_old_forms_without_another_meaning() -> None:
    values = {name: np.abs(RNG.normal(size=4)).astype(np.float32) + 0.1 for name in "abcd"}
    node = helper.make_node("BatchNormalization", ["x", *"abcd"], ["y"], is_test=1)
    (y,) = interpret(import_onnx(model(6, node, **values)), X)
    scale, bias, mean, variance = (v.reshape(4, 1, 1) for v in values.values())
    right = (X - mean) / np.sqrt(variance + 1e-5) * scale + bias
    np.testing.assert_allclose(y, right, rtol=1e-4, atol=1e-5)
    flat = helper.make_node("Reshape", ["x"], ["y"], shape=[0, -1], consumed_inputs=[0])
    np.testing.assert_array_equal(interpret(import_onnx(model(1, flat)), X)[0], X.reshape(1, -1))
    dropped = helper.make_node("Dropout", ["x"], ["y"], is_test=1, ratio=0.5)
    np.testing.assert_array_equal(interpret(import_onnx(model(6, dropped)), X)[0], X)


def test_a_border_beyond_the_image_is_refused() -> None:
    with pytest.raises(VdlaError, match=r"cannot cut \(-1, 6\) at \(4, 0\) from float32"):
        import_onnx(model(7, helper.make_node("Crop", ["x"], ["y"], border=[0, 4, 0, 3])))
