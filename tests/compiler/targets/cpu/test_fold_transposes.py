"""Transposes next to a change of layout become part of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu

CHANNELS = 20


def normed(
    also: str = "", to: tuple[int, ...] = (0, 2, 3, 1), back: tuple[int, ...] = (0, 3, 1, 2)
) -> onnx.ModelProto:
    """Two convolutions, between which channels are last for a softmax over them. ``also`` is
    another output of the model."""
    rng = np.random.default_rng(0)
    shapes = {"v": (CHANNELS, 3, 3, 3), "w": (8, CHANNELS, 3, 3)}
    weights = [numpy_helper.from_array(rng.normal(0, 1, shape).astype(np.float32), name)
               for name, shape in shapes.items()]  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1] * 4),
        helper.make_node("Transpose", ["a"], ["b"], perm=to),
        helper.make_node("Softmax", ["b"], ["c"], axis=3),
        helper.make_node("Transpose", ["c"], ["d"], perm=back),
        helper.make_node("Conv", ["d", "w"], ["y"], pads=[1] * 4),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, CHANNELS, CHANNELS))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
               for name in ("y", *([also] if also else []))]  # fmt: skip
    graph = helper.make_graph(nodes, "normed", [image], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("options", "transposes"),
    [({}, 0), ({"also": "a"}, 1), ({"also": "b"}, 0), ({"also": "d"}, 1),
     ({"to": (0, 3, 2, 1)}, 1), ({"back": (0, 3, 2, 1)}, 1)],
    ids=str,
)  # fmt: skip
def test_it_equals_the_interpreter(options: dict, transposes: int) -> None:
    """Other orders, and what others read, stay. All dimensions but the batch are of one size, so
    that shapes do not tell them apart."""
    graph = run_passes(load_graph(normed(**options), batch=2))
    module = build_cpu(graph)
    x = np.random.default_rng(1).normal(0, 1, graph[graph.inputs[0]].shape).astype(np.float32)
    for got, expected in zip(module.run(x), interpret(graph, x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    kinds = [node.op.name for node in module.graph.nodes]
    assert kinds.count("Transpose") == transposes
