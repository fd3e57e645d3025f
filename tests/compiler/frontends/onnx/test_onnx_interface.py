"""Inputs, outputs, names and metadata as no exporter should write them, against ONNX Runtime on
host and accelerator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper

X = np.array([[-1.5, 2, 0.25], [3, -0.5, 1]], np.float32)


def value(name: str, shape: Sequence[Any] | None = (2, 3)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def constant(name: str, data: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(data, np.float32), name)


def model(
    nodes: Sequence[tuple[str, str, str]],
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
    constants: Sequence[onnx.TensorProto] = (),
    name: str = "",
) -> onnx.ModelProto:
    """Nodes are operator, inputs and outputs separated by commas; all have the same name."""
    protos = [helper.make_node(k, i.split(","), o.split(","), name) for k, i, o in nodes]
    values = [value(n) for n in inputs], [value(n, None) for n in outputs]
    graph = helper.make_graph(protos, "", *values, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


W = constant("w", [[1, -2, 3], [0, 5, -1]])

MODELS: dict[str, onnx.ModelProto] = {
    "an input as output": model([("Relu", "x", "y")], outputs=("y", "x")),
    "a constant as output": model([("Relu", "x", "y")], outputs=("w", "y"), constants=[W]),
    "one output twice": model([("Relu", "x", "y")], outputs=("y", "y")),
    "a constant that is an input, too": model(
        [("Add", "x,w", "y")], inputs=("x", "w"), constants=[W]
    ),
    "an input nobody reads": model([("Neg", "x", "y")], inputs=("u", "x")),
    "no inputs": model([("Relu", "w", "y")], inputs=(), constants=[W]),
    "a constant result": model(
        [("Relu", "w", "z"), ("Neg", "x", "y")], outputs=("z", "y"), constants=[W]
    ),
    "names of all kinds": model([("Relu", "x", "/a/b [1] é"), ("Neg", "/a/b [1] é", "y z")],
                                outputs=("y z",)),
    "names as made here": model([("Softmax", "x", "n.0"), ("Softmax", "n.0", "n"),
                                 ("Neg", "n", "y")]),
    "one input as two outputs": model(
        [("Identity", "x", "y"), ("Identity", "x", "z")], outputs=("y", "z", "x")
    ),
}  # fmt: skip


def expected(proto: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feed)


@pytest.mark.parametrize("target", ["cpu", "sim"])
@pytest.mark.parametrize("name", MODELS)
def test_interface(name: str, target: str) -> None:
    given = {t.name for t in MODELS[name].graph.initializer}
    names = [i.name for i in MODELS[name].graph.input if i.name not in given]
    wanted = expected(MODELS[name], dict.fromkeys(names, X))
    got = vdla.compile(MODELS[name], target).run(*[X] * len(names))
    assert len(got) == len(wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_nodes_of_one_name() -> None:
    """ONNX Runtime refuses them; here names are for people."""
    proto = model([("Relu", "x", "a"), ("Neg", "a", "b"), ("Add", "a,b", "y")], name="node")
    [got] = vdla.compile(proto, "sim").run(X)
    np.testing.assert_array_equal(got, np.zeros_like(X))


def _metadata(proto: onnx.ModelProto) -> None:
    proto.metadata_props.add(key="a", value="b")
    proto.metadata_props.add(key="a", value="c")
    proto.doc_string = "x" * 10_000
    proto.producer_name = "\n\x00"
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    proto.graph.value_info.append(value("nobody"))
    proto.graph.value_info.append(value("y", [7]))
    proto.graph.output[0].CopyFrom(value("y", [7, 7]))


def test_metadata_that_says_something_else() -> None:
    proto = model([("Relu", "x", "y")])
    _metadata(proto)
    [got] = vdla.compile(proto, "cpu").run(X)
    np.testing.assert_array_equal(got, np.maximum(X, 0))


def _sparse(proto: onnx.ModelProto) -> None:
    indices = numpy_helper.from_array(np.array([0, 2]), "i")
    proto.graph.initializer.pop()
    sparse = helper.make_sparse_tensor(constant("w", [1, 2]), indices, [3])
    proto.graph.sparse_initializer.append(sparse)


def _negative(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims[0] = -3


def _attribute(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].attribute.append(helper.make_attribute("axes", 1))


def _operand(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input.append("x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_sparse, "constant 'w' is sparse; store all its elements"),
        (_negative, r"constant 'w' is damaged: shape \[-3, 3\]"),
        (_attribute, r"node 'Add_0' \(Add\): expected attributes axis, broadcast, .* got 'axes'"),
        (_operand, r"node 'Add_0' \(Add\): expected at most 2 operands, got 3"),
    ],
)
def test_refusals(change: Callable[[onnx.ModelProto], None], message: str) -> None:
    proto = model([("Add", "x,w", "y")], constants=[W])
    change(proto)
    with pytest.raises(vdla.VdlaError, match=message) as caught:
        vdla.compile(proto, "cpu")
    assert "\n" not in str(caught.value)
