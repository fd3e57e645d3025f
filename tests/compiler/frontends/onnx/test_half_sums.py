"""A sum of bfloat16 is rounded once; added up one term after another it would be far off."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import interpret

BFLOAT16 = ml_dtypes.bfloat16


@pytest.mark.parametrize(("terms", "lost"), [(197, 0.05), (1024, 0.25)])
def test_a_sum_of_bfloat16(terms: int, lost: float) -> None:
    """Of the powers in a softmax, beside their exact sum and NumPy's in their order."""
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [64, n])
        for name, n in (("x", terms), ("y", 1))
    )
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)
    model = helper.make_model(
        helper.make_graph([node], "sum", [x], [y], [axes]),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    scores = np.random.default_rng(0).normal(size=(64, terms)).astype(BFLOAT16)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    [made] = interpret(import_onnx(model), powers.astype(np.float32))
    exact = powers.astype(np.float64).sum(-1, keepdims=True)
    in_order = np.sum(powers, axis=-1, keepdims=True).astype(np.float64)
    assert np.abs(made / exact - 1).max() <= 2.0**-8
    assert np.abs(in_order / exact - 1).max() > lost
