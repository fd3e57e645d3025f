"""Windows of few channels, packed by the host, give the convolution's own values."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.ops.layout import PackWindows
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.graph.verify import verify
from vdla.compiler.targets.vdla.rewrite.pack_windows import pack_windows
from vdla.isa.memory import MemoryParams
from vdla.isa.params import HwParams

from ....building import build_for, placed


def graph(channels: int, kernel: int, stride: int, pads: list[int]) -> Graph:
    """A quantised convolution of a picture of 9 x 11 pixels whose zero point is not 0."""
    rng = np.random.default_rng(5)
    constants = {
        "xs": np.array(0.05, np.float32), "xz": np.array(-9, np.int8),
        "w": rng.integers(-127, 128, (8, channels, kernel, kernel)).astype(np.int8),
        "ws": np.full(8, 0.01, np.float32), "wz": np.zeros(8, np.int8),
        "ys": np.array(0.2, np.float32), "yz": np.array(3, np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
        helper.make_node("Conv", ["xf", "wf"], ["c"], pads=pads, strides=[stride, stride]),
        helper.make_node("QuantizeLinear", ["c", "ys", "yz"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "ys", "yz"], ["y"]),
    ]
    made = helper.make_graph(
        nodes, "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, 9, 11])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, "h", "w"])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return run_passes(import_onnx(model, Sizes(1)))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kernel, stride", [(3, 1), (3, 2), (5, 2)])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 2, 0, 1]])
def test_same_values(channels: int, kernel: int, stride: int, pads: list[int]) -> None:
    plain = placed(graph(channels, kernel, stride, pads))
    packed = pack_windows(plain, lambda graph, node: True)
    verify(packed)
    assert any(isinstance(node.op, PackWindows) for node in packed.nodes)
    x = np.random.default_rng(6).normal(0, 3, (1, channels, 9, 11)).astype(np.float32)
    (expected,), (got,) = interpret(plain, x), interpret(packed, x)
    assert np.unique(expected).size > 10
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("channels, kernel", [(16, 3), (3, 1)])
def test_only_where_it_saves_multiplications(channels: int, kernel: int) -> None:
    plain = graph(channels, kernel, 1, [0, 0, 0, 0])
    compiled = build_for("sim", plain, HwParams(), MemoryParams.load("vta"))
    assert not any(isinstance(node.op, PackWindows) for node in compiled.graph.nodes)
