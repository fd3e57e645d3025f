"""Dense layers of more rows than the accelerator's batch, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(8)


def perceptron(*shape: int) -> onnx.ModelProto:
    """Quantised: two dense layers, and the sum of both through a sigmoid to a third."""
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def constant(value: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value), f"c{len(constants)}"))
        return constants[-1].name

    def op(kind: str, *names: str) -> str:
        nodes.append(helper.make_node(kind, names, [f"t{len(nodes)}"], f"n{len(nodes)}"))
        return nodes[-1].output[0]

    def pair(x: str, scale: float, zero: int) -> str:
        quant = constant(np.float32(scale)), constant(np.int8(zero))
        return op("DequantizeLinear", op("QuantizeLinear", x, *quant), *quant)

    def dense(x: str, width: int, channels: int) -> str:
        w = constant(RNG.integers(-128, 128, (width, channels)).astype(np.int8))
        w = op("DequantizeLinear", w, constant(np.float32(0.01)), constant(np.int8(0)))
        return pair(op("MatMul", x, w), 0.05, -7)

    first = dense(pair("x", 0.03, 5), shape[-1], 20)
    second = dense(first, 20, 20)
    y = pair(op("Sigmoid", pair(op("Add", first, second), 0.06, 2)), 1 / 256, -128)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info(dense(y, 20, 7), TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "rows", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def expected(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0]


@pytest.mark.slow
@pytest.mark.short(1)
@pytest.mark.parametrize("shape", [(37, 24), (2, 16), (1, 5, 17)], ids=str)
def test_rows_as_places(shape: tuple[int, ...]) -> None:
    """All products run on the accelerator, in one program with the element-wise operators between
    them."""
    model = perceptron(*shape)
    x = RNG.standard_normal(shape).astype(np.float32) * 3
    module = vdla.compile(model, "sim")
    [got], [host] = module.run(x), vdla.compile(model, "cpu").run(x)
    np.testing.assert_array_equal(got, host)
    wanted = expected(model, x)
    assert np.abs(got - wanted).max() <= 0.0501 and (got == wanted).mean() > 0.97
    layers = module.compiled.layers
    assert all(layer.target == "accel" for layer in layers if layer.macs)
    programs = [step for step in module.compiled.steps if hasattr(step, "insns")]
    assert len(programs) == 1


def test_rows_that_the_batch_holds_stay_rows() -> None:
    layers = vdla.compile(perceptron(1, 16), "sim").compiled.layers
    assert [layer.op for layer in layers].count("QDense") == 3


@pytest.mark.slow
def test_another_configuration() -> None:
    model = perceptron(9, 16)
    x = RNG.standard_normal((9, 16)).astype(np.float32) * 3
    [got] = vdla.compile(model, "sim", hw="8x8").run(x)
    [host] = vdla.compile(model, "cpu").run(x)
    np.testing.assert_array_equal(got, host)
