"""Convolutions of a scaled image: their weights are scaled where that is less work."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ops.blocked.convolution import BlockedConv2d
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu

from .whole_numbers import Model

CHANNELS, RESULTS = 64, 48


def squeezed(
    size: int = 14, batch: int = 1, kernel: int = 1, groups: int = 1, swapped: bool = False,
    twice: bool = False, also: str = "",
) -> onnx.ModelProto:  # fmt: skip
    """A convolution, its results times a value for each channel, and another convolution; if
    ``twice``, another image is scaled by the same values. ``also`` says which result is another
    output of the model."""
    model = Model(x=(batch, 3, size, size))
    image = model.node("Conv", "x", model.weight(CHANNELS, 3, 1, 1))
    values = model.node("Sigmoid", model.node("GlobalAveragePool", image))
    weight = model.weight(RESULTS, CHANNELS // groups, kernel, kernel)
    outputs, named = [], {"image": image}
    for source in (image, *([model.node("Relu", image)] if twice else [])):
        operands = (values, source) if swapped else (source, values)
        named["scaled"] = model.node("Mul", *operands)
        pads = [kernel // 2] * 4
        outputs.append(model.node("Conv", named["scaled"], weight, pads=pads, group=groups))
    return model.finish(*outputs, *([named[also]] if also else []))


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("options", "scales"),
    [({}, 1), ({"swapped": True}, 1), ({"twice": True}, 2), ({"kernel": 5, "size": 40}, 1),
     ({"also": "image"}, 1), ({"also": "scaled"}, 0), ({"size": 6}, 0), ({"batch": 2}, 0),
     ({"groups": 2}, 0)],
    ids=str,
)  # fmt: skip
def test_it_equals_the_interpreter(options: dict, scales: int) -> None:
    """An image of 6 x 6 has fewer elements than the weight."""
    graph = run_passes(load_graph(squeezed(**options), Sizes(options.get("batch", 1))))
    module = build_cpu(graph)
    x = np.random.default_rng(1).normal(0, 1, graph[graph.inputs[0]].shape).astype(np.float32)
    for got, expected in zip(module.run(x), interpret(graph, x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    weights = [n.inputs[1] for n in module.graph.nodes if isinstance(n.op, BlockedConv2d)]
    assert sum(not module.graph[name].is_constant for name in weights) == scales
