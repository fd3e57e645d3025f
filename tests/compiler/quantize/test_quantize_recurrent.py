"""A GRU through the quantiser: steps of products, sums and tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import evaluate
from vdla.compiler.quantize.draft import Draft
from vdla.compiler.quantize.prepare import prepare
from vdla.compiler.quantize.recurrent import LEAST_HIDDEN
from vdla.isa.params import HwParams

STEPS, WIDTH = 3, 16


def gru(hidden: int = LEAST_HIDDEN, first: bool = False, **attributes: Any) -> onnx.ModelProto:
    """One GRU layer over an input [steps, 1, width]; ``first`` gives it a state to begin with."""
    rng = np.random.default_rng(0)
    two = 2 if attributes.get("direction") == "bidirectional" else 1
    shapes = {"w": (two, 3 * hidden, WIDTH), "r": (two, 3 * hidden, hidden), "b": (two, 6 * hidden)}
    if first:
        shapes["h"] = (two, 1, hidden)
    weights = [
        numpy_helper.from_array((rng.standard_normal(s) / np.sqrt(s[-1])).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    operands = ["x", "w", "r", "b", "", "h"] if first else ["x", "w", "r", "b"]
    node = helper.make_node("GRU", operands, ["y", "last"], hidden_size=hidden, **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (STEPS, 1, WIDTH))
    results = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "gru", [x], results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def values(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    graph = import_onnx(model)
    found = evaluate(graph, {graph.inputs[0]: x})
    return [found[name] for name in graph.outputs]


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((4 * STEPS, 1, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("linear", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_steps_compute_the_same(x: np.ndarray, direction: str, linear: int, first: bool) -> None:
    """Before anything is quantised."""
    model = gru(first=first, direction=direction, linear_before_reset=linear)
    draft = Draft.load(model)
    prepare(draft)
    assert "GRU" not in {node.op_type for node in draft.nodes}
    real, made = values(model, x[:STEPS]), values(draft.finish(), x[:STEPS])
    for a, b in zip(real, made, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


@pytest.mark.slow
def test_products_are_int8_and_exact_on_every_target(x: np.ndarray) -> None:
    """All steps share scales and one weight; interpreter, CPU and simulator agree."""
    model = gru(linear_before_reset=1)
    made = vdla.quantize(model, x)
    types = {row["type"] for row in made.report["layers"] if row["op"] in ("Gemm", "Tanh")}
    assert types == {"int8"}
    assert made.model.ByteSize() < model.ByteSize() / 2
    expected = values(made.model, x[:STEPS])
    for module in (vdla.compile(made.model, "cpu"), vdla.compile(made.model, hw=HwParams())):
        found = module.run(x[:STEPS])
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_array_equal(a, b)
    real = values(model, x[:STEPS])[0]
    assert 10 * np.log10(np.square(real).sum() / np.square(real - expected[0]).sum()) > 28


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"hidden": 64}, "its state has 64 channels"), ({"clip": 1.0}, "no clip")],
)
def test_what_stays_float_says_why(x: np.ndarray, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(vdla.VdlaError, match=reason):
        vdla.quantize(gru(**options), x)
