"""Convolutions of a scaled image: their weights are scaled where that is less work."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ops.blocked.convolution import BlockedConv2d
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu

CHANNELS, RESULTS = 64, 48


def squeezed(
    size: int = 14, batch: int = 1, kernel: int = 1, groups: int = 1, swapped: bool = False,
    also: str = "",
) -> onnx.ModelProto:  # fmt: skip
    """A convolution, its results times a value for each channel, and another convolution. ``also``
    is another output of the model."""
    rng = np.random.default_rng(0)
    shapes = {"v": (CHANNELS, 3, 1, 1), "w": (RESULTS, CHANNELS // groups, kernel, kernel)}
    weights = [numpy_helper.from_array(rng.normal(0, 1, s).astype(np.float32), n)
               for n, s in shapes.items()]  # fmt: skip
    pads = [kernel // 2] * 4
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["h"]),
        helper.make_node("GlobalAveragePool", ["h"], ["m"]),
        helper.make_node("Sigmoid", ["m"], ["s"]),
        helper.make_node("Mul", ["s", "h"] if swapped else ["h", "s"], ["t"]),
        helper.make_node("Conv", ["t", "w"], ["y"], pads=pads, group=groups),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, (batch, 3, size, size))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
               for name in ("y", *([also] if also else []))]  # fmt: skip
    graph = helper.make_graph(nodes, "squeezed", [image], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("options", "scales"),
    [({}, True), ({"swapped": True}, True), ({"kernel": 5, "size": 40}, True),
     ({"also": "h"}, True), ({"also": "t"}, False), ({"size": 6}, False), ({"batch": 2}, False),
     ({"groups": 2}, False)],
    ids=str,
)  # fmt: skip
def test_it_equals_the_interpreter(options: dict, scales: bool) -> None:
    """An image of 6 x 6 has fewer elements than the weight."""
    graph = run_passes(load_graph(squeezed(**options), batch=options.get("batch", 1)))
    module = build_cpu(graph)
    x = np.random.default_rng(1).normal(0, 1, graph[graph.inputs[0]].shape).astype(np.float32)
    for got, expected in zip(module.run(x), interpret(graph, x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    *_, last = [n for n in module.graph.nodes if isinstance(n.op, BlockedConv2d)]
    assert (not module.graph[last.inputs[1]].is_constant) is scales
