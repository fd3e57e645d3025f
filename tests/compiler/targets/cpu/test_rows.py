"""Softmax and layer normalisation as one operator of rows: one loop each, right at every width."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import helper
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu

#: Widths with and without whole vectors, and one that is too long to be computed in rows.
WIDTHS = (16, 33, 128, 197, 1500, 5000)


def built(op_type: str, inputs: list[str], shape: tuple[int, ...], **attributes: object):
    """One operator as machine code; ``scale`` and ``bias`` are numbers of a row's elements."""
    infos = [
        helper.make_tensor_value_info(
            name, onnx.TensorProto.FLOAT, shape if name in ("x", "mask") else shape[-1:]
        )
        for name in inputs
    ]
    names, nodes = list(inputs), []
    if "mask" in names:
        nodes.append(helper.make_node("Add", ["x", "mask"], ["masked"]))
        names = ["masked"]
    nodes.append(helper.make_node(op_type, names, ["y"], **attributes))
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "rows", infos, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return build_cpu(run_passes(load_graph(model)))


@pytest.mark.parametrize("width", WIDTHS)
def test_softmax(width: int) -> None:
    """Of masked rows, too: where all but one element are left out, that one is 1."""
    rng, shape = np.random.default_rng(width), (2, 3, width)
    x = rng.normal(0, 5, shape).astype(np.float32)
    mask = np.where(rng.random(shape) < 0.5, -np.inf, 0).astype(np.float32)
    mask[1, 2] = -np.inf
    mask[:, :, width // 2] = 0
    module = built("Softmax", ["x", "mask"], shape, axis=-1)
    [got] = module.run(x, mask)
    wide = np.exp((x + mask).astype(np.float64) - (x + mask).max(-1, keepdims=True))
    # Differences from the maximum are rounded to float32.
    np.testing.assert_allclose(got, wide / wide.sum(-1, keepdims=True), rtol=5e-6, atol=1e-30)
    assert got[1, 2, width // 2] == 1
    assert (len(module.code.kernels) == 1) == (width <= 4096)


@pytest.mark.parametrize("width", WIDTHS)
def test_layer_normalization(width: int) -> None:
    rng, shape = np.random.default_rng(width), (4, width)
    x = rng.normal(3, 2, shape).astype(np.float32)
    scale, bias = (rng.normal(0, 1, width).astype(np.float32) for _ in range(2))
    module = built("LayerNormalization", ["x", "scale", "bias"], shape, axis=-1, epsilon=1e-5)
    [got] = module.run(x, scale, bias)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, centred / deviation * scale + bias, rtol=1e-4, atol=1e-5)
    assert (len(module.code.kernels) == 1) == (width <= 4096)
    assert math.isfinite(float(got.sum()))
