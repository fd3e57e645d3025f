"""Layers and networks with random weights, as quantised (QDQ) ONNX models.

Scales are synthetic: each output scale is chosen from the operator's fan-in, so that values fill
the int8 range without saturating much. Timing on the accelerator does not depend on values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Standard deviation of a value that fills int8 well, in quantisation steps.
STEPS = 40.0
ACTIVATION_SCALE = 0.05


class QdqNet:
    """Builds a quantised model; every method appends nodes and returns the name of its float
    result, which is quantised with :data:`ACTIVATION_SCALE` and zero point 0.
    """

    def __init__(self, name: str, seed: int = 0):
        self.name = name
        self.rng = np.random.default_rng([seed, *name.encode()])
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.macs = 0
        self.scale = self.constant("scale", np.array(ACTIVATION_SCALE, np.float32))
        self.zero = self.constant("zero", np.array(0, np.int8))

    def constant(self, name: str, value: np.ndarray) -> str:
        """A constant tensor."""
        unique = f"{name}_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, unique))
        return unique

    def input(self, *shape: int) -> str:
        """A float input, quantised."""
        self.inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))
        self.shapes["x"] = shape
        return self._quantized("x")

    def output(self, value: str) -> None:
        """An output."""
        info = helper.make_tensor_value_info(value, TensorProto.FLOAT, self.shapes[value])
        self.outputs.append(info)

    def conv(
        self,
        x: str,
        channels: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        relu: bool = True,
    ) -> str:
        """Convolution with bias, symmetric padding of (kernel - 1) / 2, per-channel weights, and a
        ReLU that quantisation absorbs.
        """
        n, c, height, width = self.shapes[x]
        pad = (kernel - 1) // 2
        shape = (n, channels, *((s + 2 * pad - kernel) // stride + 1 for s in (height, width)))
        fan_in = c // groups * kernel * kernel
        self.macs += prod(shape) * fan_in
        weight, bias = self._weights((channels, c // groups, kernel, kernel), fan_in)
        y = self._node(
            "Conv", [x, weight, bias], shape, kernel_shape=[kernel] * 2, strides=[stride] * 2,
            pads=[pad] * 4, group=groups,
        )  # fmt: skip
        return self._quantized(self._node("Relu", [y], shape) if relu else y)

    def dense(self, x: str, features: int) -> str:
        """Fully connected, with bias."""
        n, k = self.shapes[x]
        self.macs += n * features * k
        weight, bias = self._weights((features, k), k)
        return self._quantized(self._node("Gemm", [x, weight, bias], (n, features), transB=1))

    def add(self, a: str, b: str) -> str:
        """Residual addition and ReLU."""
        total = self._node("Add", [a, b], self.shapes[a])
        return self._quantized(self._node("Relu", [total], self.shapes[a]))

    def max_pool(self, x: str, kernel: int, stride: int) -> str:
        """Max pooling with symmetric padding."""
        n, c, height, width = self.shapes[x]
        pad = (kernel - 1) // 2
        shape = (n, c, *((s + 2 * pad - kernel) // stride + 1 for s in (height, width)))
        y = self._node(
            "MaxPool", [x], shape, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4
        )
        return self._quantized(y)

    def global_average(self, x: str) -> str:
        """Global average pooling and flattening."""
        n, c = self.shapes[x][:2]
        y = self._quantized(self._node("GlobalAveragePool", [x], (n, c, 1, 1)))
        return self._quantized(self._node("Flatten", [y], (n, c), axis=1))

    def model(self) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.constants)
        opset = helper.make_opsetid("", 17)
        return helper.make_model(graph, opset_imports=[opset], ir_version=8)

    def _node(self, kind: str, inputs: list[str], shape: tuple[int, ...], **attributes) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}_y"], name=name, **attributes))
        self.shapes[f"{name}_y"] = shape
        return f"{name}_y"

    def _quantized(self, value: str) -> str:
        shape = self.shapes[value]
        integer = self._node("QuantizeLinear", [value, self.scale, self.zero], shape)
        return self._node("DequantizeLinear", [integer, self.scale, self.zero], shape)

    def _weights(self, shape: tuple[int, ...], fan_in: int) -> tuple[str, str]:
        """Dequantised int8 weights with a scale per output channel, and a bias."""
        channels = shape[0]
        deviation = 127 / sqrt(3)  # of uniform int8
        scales = 1 / (deviation * sqrt(fan_in)) * self.rng.uniform(0.8, 1.2, channels)
        scales = scales.astype(np.float32)
        weight = self.constant("weight", self.rng.integers(-127, 128, shape).astype(np.int8))
        scale = self.constant("weight_scale", scales)
        zero = self.constant("weight_zero", np.zeros(channels, np.int8))
        bias = self.rng.normal(0, STEPS / 4 / ACTIVATION_SCALE, channels).astype(np.int32)
        bias_scale = self.constant("bias_scale", scales * np.float32(ACTIVATION_SCALE))
        bias_zero = self.constant("bias_zero", np.zeros(channels, np.int32))
        bias_name = self.constant("bias", bias)
        return (
            self._node("DequantizeLinear", [weight, scale, zero], shape, axis=0),
            self._node("DequantizeLinear", [bias_name, bias_scale, bias_zero], (channels,), axis=0),
        )


# ---- table 2 of the TVM paper --------------------------------------------------------------------


@dataclass(frozen=True)
class ConvLayer:
    """A row of the paper's table 2: input size, channels in and out, kernel, stride."""

    name: str
    size: int
    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    groups: int = 1

    @property
    def out_size(self) -> int:
        """Height and width of the output."""
        return -(-self.size // self.stride)

    def model(self, batch: int = 1) -> onnx.ModelProto:
        """The layer as a model of its own."""
        net = QdqNet(self.name)
        x = net.input(batch, self.in_channels, self.size, self.size)
        net.output(net.conv(x, self.out_channels, self.kernel, self.stride, self.groups))
        return net.model()


def _depthwise(name: str, size: int, channels: int, stride: int) -> ConvLayer:
    return ConvLayer(name, size, channels, channels, 3, stride, groups=channels)


TABLE_2: tuple[ConvLayer, ...] = (
    ConvLayer("C1", 224, 3, 64, 7, 2),
    ConvLayer("C2", 56, 64, 64, 3, 1),
    ConvLayer("C3", 56, 64, 64, 1, 1),
    ConvLayer("C4", 56, 64, 128, 3, 2),
    ConvLayer("C5", 56, 64, 128, 1, 2),
    ConvLayer("C6", 28, 128, 128, 3, 1),
    ConvLayer("C7", 28, 128, 256, 3, 2),
    ConvLayer("C8", 28, 128, 256, 1, 2),
    ConvLayer("C9", 14, 256, 256, 3, 1),
    ConvLayer("C10", 14, 256, 512, 3, 2),
    ConvLayer("C11", 14, 256, 512, 1, 2),
    ConvLayer("C12", 7, 512, 512, 3, 1),
    _depthwise("D1", 112, 32, 1),
    _depthwise("D2", 112, 64, 2),
    _depthwise("D3", 56, 128, 1),
    _depthwise("D4", 56, 128, 2),
    _depthwise("D5", 28, 256, 1),
    _depthwise("D6", 28, 256, 2),
    _depthwise("D7", 14, 512, 1),
    _depthwise("D8", 14, 512, 2),
    _depthwise("D9", 7, 1024, 1),
)


# ---- networks ------------------------------------------------------------------------------------


def resnet18(batch: int = 1) -> onnx.ModelProto:
    """ResNet-18 (He et al. 2015, basic blocks, ImageNet)."""
    net = QdqNet("resnet18")
    x = net.max_pool(net.conv(net.input(batch, 3, 224, 224), 64, 7, 2), 3, 2)
    for channels, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
                             (512, 1)):  # fmt: skip
        y = net.conv(net.conv(x, channels, 3, stride), channels, 3, relu=False)
        if stride != 1:
            x = net.conv(x, channels, 1, stride, relu=False)
        x = net.add(y, x)
    net.output(net.dense(net.global_average(x), 1000))
    return net.model()


def mobilenet_v1(batch: int = 1) -> onnx.ModelProto:
    """MobileNet-V1 (Howard et al. 2017, width 1, ImageNet)."""
    net = QdqNet("mobilenet_v1")
    x = net.conv(net.input(batch, 3, 224, 224), 32, 3, 2)
    pairs = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5]
    for channels, stride in (*pairs, (1024, 2), (1024, 1)):
        depth = net.shapes[x][1]
        x = net.conv(net.conv(x, depth, 3, stride, groups=depth), channels, 1)
    net.output(net.dense(net.global_average(x), 1000))
    return net.model()


NETWORKS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "resnet18": resnet18,
    "mobilenet_v1": mobilenet_v1,
}
