"""Networks of kinds that float models come in: quantised, then all on the accelerator, with the
values of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(0)
#: What the host does at the edges.
EDGES = {"Quantize", "Dequantize", "PackWindows", "Transpose"}


@dataclass
class Net:
    """Float nodes and constants in the making; methods return the name of a result."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        result = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [*inputs], [result], result, **attributes))
        return result

    def constant(self, value: Any) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def normal(self, *shape: int) -> str:
        scale = (2 / np.prod(shape[1:] or (4,))) ** 0.5
        return self.constant((RNG.standard_normal(shape) * scale).astype(np.float32))

    def conv(self, x: str, *weight: int, **attributes: Any) -> str:
        return self.op("Conv", x, self.normal(*weight), **attributes)

    def norm(self, x: str, channels: int) -> str:
        ranges = ((0.5, 1.5), (-0.3, 0.3), (-0.2, 0.2), (0.5, 1.5))
        drawn = (RNG.uniform(*r, channels).astype(np.float32) for r in ranges)
        return self.op("BatchNormalization", x, *map(self.constant, drawn))

    def relu6(self, x: str) -> str:
        return self.op("Clip", x, self.constant(np.float32(0)), self.constant(np.float32(6)))

    def model(self, y: str, *shape: int) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *shape])
        result = helper.make_tensor_value_info(y, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "net", [x], [result], self.constants)
        imports = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def mobile_net_v2() -> onnx.ModelProto:
    """Inverted residuals with batch normalisation and ReLU6."""
    net = Net()

    def block(x: str, channels: int, outputs: int, stride: int) -> str:
        wide = 6 * channels
        y = net.relu6(net.norm(net.conv(x, wide, channels, 1, 1), wide))
        y = net.conv(y, wide, 1, 3, 3, group=wide, strides=[stride] * 2, pads=[1] * 4)
        y = net.norm(net.conv(net.relu6(net.norm(y, wide)), outputs, wide, 1, 1), outputs)
        return net.op("Add", x, y) if stride == 1 and channels == outputs else y

    x = net.relu6(net.norm(net.conv("x", 16, 3, 3, 3, strides=[2, 2], pads=[1] * 4), 16))
    x = block(block(block(x, 16, 24, 2), 24, 24, 1), 24, 32, 2)
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    return net.model(net.op("Gemm", x, net.normal(10, 32), transB=1), 3, 32, 32)


def from_channels_last() -> onnx.ModelProto:
    """As converters write models of NHWC: transposed, explicitly padded, biases added, means; with
    groups, dilations and functions by table."""
    net = Net()
    x = net.op("Transpose", "x", perm=[0, 3, 1, 2])
    x = net.op("Pad", x, net.constant(np.array([0, 0, 0, 0, 0, 0, 1, 1])))
    x = net.op("Add", net.conv(x, 16, 3, 3, 3, strides=[2, 2]), net.normal(1, 16, 1, 1))
    x = net.conv(net.op("Relu", x), 32, 1, 3, 3, group=16, auto_pad="SAME_UPPER")
    x = net.conv(net.op("Sigmoid", x), 32, 16, 3, 3, group=2, dilations=[2, 2], pads=[2] * 4)
    x = net.op("ReduceMean", net.op("HardSwish", x), axes=[2, 3], keepdims=0)
    return net.model(
        net.op("Add", net.op("MatMul", x, net.normal(32, 10)), net.normal(10)), 20, 20, 3
    )


def inception() -> onnx.ModelProto:
    """Branches that are concatenated, flattened for a dense layer."""
    net = Net()
    x = net.op("Relu", net.conv("x", 16, 3, 3, 3, pads=[1] * 4))
    left = net.op("Relu", net.conv(x, 32, 16, 1, 1))
    right = net.op("Relu", net.conv(x, 24, 16, 3, 3, pads=[1] * 4))
    pooled = net.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
    x = net.op("Concat", left, pooled, right, axis=1)
    x = net.op("MaxPool", net.conv(x, 16, 72, 1, 1), kernel_shape=[4, 4], strides=[4, 4])
    flat = net.op("Flatten", x)
    heads = [net.op("Gemm", flat, net.normal(n, 256), transB=1) for n in (16, 7)]
    return net.model(net.op("Concat", *heads, axis=1), 3, 16, 16)


def dense_net() -> onnx.ModelProto:
    """Every layer reads all before it, through a concatenation of a concatenation."""
    net = Net()
    x = net.op("Relu", net.conv("x", 16, 3, 3, 3, pads=[1] * 4))
    for channels in (16, 32, 48):
        y = net.op("Relu", net.norm(x, channels))
        x = net.op("Concat", x, net.conv(y, 16, channels, 3, 3, pads=[1] * 4), axis=1)
    return net.model(net.op("GlobalAveragePool", x), 3, 9, 9)


def last_scale(model: onnx.ModelProto) -> float:
    """The scale of a quantised model's output: one step of it."""
    (last,) = (n for n in model.graph.node if model.graph.output[0].name in n.output)
    assert last.op_type == "DequantizeLinear"
    (scale,) = (t for t in model.graph.initializer if t.name == last.input[1])
    return float(numpy_helper.to_array(scale))


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("make", [mobile_net_v2, from_channels_last, inception, dense_net])
def test_all_on_the_accelerator(make: Callable[[], onnx.ModelProto]) -> None:
    model = make()
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    x = RNG.standard_normal((24, *shape)).astype(np.float32)
    made = vdla.quantize(model, x, bias_correction=True)
    assert [row["reason"] for row in made.report["layers"] if row["reason"]] == []
    (output,) = made.report["outputs"].values()
    assert output["sqnr_db"] > 30
    module = vdla.compile(made.model)
    y, z = module.run(x[:2])[0], vdla.compile(made.model, "cpu").run(x[:2])[0]
    np.testing.assert_array_equal(y, z)
    session = onnxruntime.InferenceSession(made.model.SerializeToString())
    (theirs,) = session.run(None, {"x": x[:2]})
    steps = np.rint(np.abs(y - np.asarray(theirs)) / last_scale(made.model))
    assert steps.max() <= 1 and steps.mean() <= 0.05  # ONNX Runtime computes some ties in float32
    assert {row["op"] for row in module.report["layers"] if row["target"] == "cpu"} <= EDGES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "again", "why"),
    [
        ((16, 20, 16), False, "20 channels are no whole blocks of 16"),
        ((16, 16, 16), True, "already"),
    ],
    ids=["uneven", "twice"],
)
def test_what_the_host_concatenates(channels: tuple[int, ...], again: bool, why: str) -> None:
    net = Net()
    parts = [net.op("Relu", net.conv("x", n, 3, 1, 1)) for n in channels]
    both = net.op("Concat", *parts, *parts[: 1 if again else 0], axis=1)
    last = net.conv(both, 8, sum(channels) + 16 * again, 1, 1)
    x = RNG.standard_normal((8, 3, 5, 5)).astype(np.float32)
    made = vdla.quantize(net.model(last, 3, 5, 5), x)
    module = vdla.compile(made.model)
    np.testing.assert_array_equal(
        module.run(x[:1])[0], vdla.compile(made.model, "cpu").run(x[:1])[0]
    )
    (row,) = (row for row in module.report["layers"] if row["op"] == "Concat")
    assert row["target"] == "cpu" and why in row["reason"]
