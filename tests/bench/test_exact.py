"""ONNX's definition in exact numbers, against sums by hand and ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from vdla.bench.exact import exact_answers
from vdla.isa.errors import VdlaError


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


@pytest.mark.parametrize(
    ("kind", "shape", "settings", "constants"),
    [
        ("Conv", (2, 4, 9, 8), {"pads": [1, 0, 2, 1], "strides": [2, 1]}, ((6, 4, 3, 2), (6,))),
        ("Conv", (1, 4, 7, 7), {"group": 2, "pads": [1, 1, 1, 1]}, ((6, 2, 3, 3),)),
        ("Conv", (1, 4, 7, 7), {"group": 4, "strides": [2, 2]}, ((8, 1, 3, 3), (8,))),
        ("MaxPool", (1, 3, 9, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}, ()),
        ("AveragePool", (1, 3, 9, 9), {"kernel_shape": [3, 2], "strides": [2, 1]}, ()),
        ("GlobalAveragePool", (2, 3, 5, 4), {}, ()),
        ("Gemm", (3, 5), {"transB": 1}, ((4, 5), (4,))),
        ("Gemm", (3, 5), {}, ((5, 4), (4,))),
        ("HardSigmoid", (2, 40), {"alpha": 0.3, "beta": 0.4}, ()),
        ("HardSwish", (2, 40), {}, ()),
        ("Clip", (2, 40), {}, ((), ())),
        ("Mul", (2, 3, 4, 4), {}, ((2, 3, 1, 1),)),
        ("Flatten", (2, 3, 4), {}, ()),
    ],
)
def test_operators(
    kind: str, shape: tuple[int, ...], settings: dict[str, Any], constants: tuple[Any, ...]
) -> None:
    rng = np.random.default_rng(3)
    x = (3 * rng.standard_normal(shape)).astype(np.float32)
    values = {f"c{i}": rng.standard_normal(s).astype(np.float32) for i, s in enumerate(constants)}
    made = model(helper.make_node(kind, ["x", *values], ["y"], **settings), **values)
    wanted = ReferenceEvaluator(made).run(None, {"x": x})[0]
    np.testing.assert_allclose(exact_answers(made, {"x": x}), wanted, rtol=1e-5, atol=1e-5)


def test_weights_of_a_scale_for_each_channel() -> None:
    made = model(
        helper.make_node("DequantizeLinear", ["w", "scales", "zeros"], ["d"], axis=0),
        helper.make_node("Add", ["x", "d"], ["y"]),
        w=np.array([[1, 2], [3, 4]], np.int8), scales=np.array([0.5, 2], np.float32),
        zeros=np.array([1, 2], np.int8),
    )  # fmt: skip
    np.testing.assert_array_equal(
        exact_answers(made, {"x": np.zeros((2, 2), np.float32)}), [[0, 0.5], [2, 4]]
    )


def test_what_it_does_not_have_is_refused() -> None:
    x = {"x": np.zeros((1, 1, 5, 5), np.float32)}
    with pytest.raises(VdlaError, match=r"expected one of .*, got 'Erf'"):
        exact_answers(model(helper.make_node("Erf", ["x"], ["y"])), x)
    pool = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], dilations=[2, 2])
    with pytest.raises(VdlaError, match="expected windows without dilations"):
        exact_answers(model(pool), x)
    mean = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], pads=[1, 1, 0, 0])
    with pytest.raises(VdlaError, match="expected averages without padding"):
        exact_answers(model(mean), x)
