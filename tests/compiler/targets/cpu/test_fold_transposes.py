"""Transposes next to a change of layout become part of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu

from .whole_numbers import Model, kinds

CHANNELS = 20


def normed(
    also: str = "", to: tuple[int, ...] = (0, 2, 3, 1), back: tuple[int, ...] = (0, 3, 1, 2)
) -> onnx.ModelProto:
    """Two convolutions, between which channels are last for a softmax over them. ``also`` says
    which result is another output of the model."""
    model = Model(x=(2, 3, CHANNELS, CHANNELS))
    named = {"image": model.node("Conv", "x", model.weight(CHANNELS, 3, 3, 3), pads=[1] * 4)}
    named["last"] = model.node("Transpose", named["image"], perm=to)
    normed = model.node("Softmax", named["last"], axis=3)
    named["back"] = model.node("Transpose", normed, perm=back)
    y = model.node("Conv", named["back"], model.weight(8, CHANNELS, 3, 3), pads=[1] * 4)
    return model.finish(y, *([named[also]] if also else []))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "transposes"),
    [({}, 0), ({"also": "image"}, 1), ({"also": "last"}, 0), ({"also": "back"}, 1),
     ({"to": (0, 3, 2, 1)}, 1), ({"back": (0, 3, 2, 1)}, 1)],
    ids=str,
)  # fmt: skip
def test_it_equals_the_interpreter(options: dict, transposes: int) -> None:
    """Other orders, and what others read, stay. All dimensions but the batch are of one size, so
    that shapes do not tell them apart."""
    graph = run_passes(load_graph(normed(**options), Sizes(2)))
    module = build_cpu(graph)
    x = np.random.default_rng(1).normal(0, 1, graph[graph.inputs[0]].shape).astype(np.float32)
    for got, expected in zip(module.run(x), interpret(graph, x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert kinds(module.graph).count("Transpose") == transposes
