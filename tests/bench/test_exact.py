"""ONNX's definition in exact numbers, against sums by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from vdla.bench.definition import exact_answers


def model(*nodes: onnx.NodeProto, **constants: Any) -> onnx.ModelProto:
    """Nodes from ``x`` to ``y``."""
    kept = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    infos = [helper.make_tensor_value_info(name, 1, None) for name in "xy"]
    return helper.make_model(
        helper.make_graph(nodes, "exact", infos[:1], infos[1:], kept),
        opset_imports=[helper.make_opsetid("", 17)],
    )


def test_a_sum_next_to_a_tie_is_rounded_exactly() -> None:
    """The sum is 2**24 + 1 + 2**24 steps of half a step, which float32 does not hold."""
    node = helper.make_node
    made = model(
        node("DequantizeLinear", ["big", "one"], ["w"]),
        node("QuantizeLinear", ["x", "one", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "one", "zero"], ["d"]),
        node("Conv", ["d", "w"], ["sum"]),
        node("QuantizeLinear", ["sum", "scale", "zero"], ["y"]),
        big=np.array([2**24, 1, -(2**24)], np.int32).reshape(1, 3, 1, 1),
        one=np.float32(1), scale=np.float32(2), zero=np.int8(0),
    )  # fmt: skip
    x = np.array([1, 3, 1], np.float32).reshape(1, 3, 1, 1)
    assert exact_answers(made, {"x": x}).item() == 2  # a tie: 1.5
    x = np.array([1, 1, 1], np.float32).reshape(1, 3, 1, 1)
    assert exact_answers(made, {"x": x}).item() == 0  # a tie: 0.5


def test_weights_of_a_scale_for_each_channel() -> None:
    made = model(
        helper.make_node("DequantizeLinear", ["w", "scales", "zeros"], ["d"], axis=0),
        helper.make_node("Add", ["x", "d"], ["y"]),
        w=np.array([[1, 2], [3, 4]], np.int8), scales=np.array([0.5, 2], np.float32),
        zeros=np.array([1, 2], np.int8),
    )  # fmt: skip
    np.testing.assert_array_equal(exact_answers(made, {"x": np.zeros((2, 2))}), [[0, 0.5], [2, 4]])
