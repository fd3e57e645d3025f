"""A builder of ONNX models with random weights: float ones, and the same quantised (QDQ).

Scales are synthetic: each weight's scale is chosen from the operator's fan-in, so that values fill
the int8 range without saturating much. Timing on the accelerator does not depend on values.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Standard deviation of a value that fills int8 well, in quantisation steps.
STEPS = 40.0
ACTIVATION_SCALE = 0.05
OPSET = 17


class Net:
    """A model under construction: every operator's method appends nodes and returns the name of its
    float result.

    With ``quantized``, results of operators that the accelerator computes are quantised with
    :data:`ACTIVATION_SCALE` and zero point 0, and weights are stored as int8; without, weights are
    the float values that those integers stand for, so that both models compute nearly the same.
    """

    def __init__(self, name: str, quantized: bool = True):
        self.name = name
        self.quantized = quantized
        self.rng = np.random.default_rng([0, *name.encode()])
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.macs = 0

    def constant(self, name: str, value: np.ndarray) -> str:
        """A constant tensor."""
        unique = f"{name}_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, unique))
        return unique

    def input(self, *shape: int, name: str = "x") -> str:
        """A float input."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        self.shapes[name] = shape
        return name

    def token(self, batch: int, vocabulary: int, width: int) -> str:
        """The rows [batch, width] that an int64 input chooses from a table of ``vocabulary`` rows,
        stored as int8."""
        typed = helper.make_tensor_value_info("token", TensorProto.INT64, (batch,))
        self.inputs.append(typed)
        shape = (vocabulary, width)
        table = self.rng.integers(-127, 128, shape).astype(np.int8)
        if not self.quantized:
            real = table * np.float32(ACTIVATION_SCALE)
            return self._node("Gather", [self.constant("table", real), "token"], (batch, width))
        row = self._node("Gather", [self.constant("table", table), "token"], (batch, width))
        return self._node("DequantizeLinear", [row, *self._grid()], (batch, width))

    def output(self, value: str, name: str = "") -> None:
        """Make a value an output, under another name if one is given."""
        shape = self.shapes[value]
        if name:
            self.nodes.append(helper.make_node("Identity", [value], [name], name=name))
        info = helper.make_tensor_value_info(name or value, TensorProto.FLOAT, shape)
        self.outputs.append(info)

    # ---- operators of the accelerator ----

    def conv(
        self,
        x: str,
        channels: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        relu: bool = True,
        pad: int | None = None,
    ) -> str:
        """Convolution with bias and per-channel weights, padded by (kernel - 1) / 2 unless ``pad``
        says by how much, and a ReLU that quantisation absorbs.
        """
        n, c, height, width = self.shapes[x]
        pad = (kernel - 1) // 2 if pad is None else pad
        shape = (n, channels, *((s + 2 * pad - kernel) // stride + 1 for s in (height, width)))
        fan_in = c // groups * kernel * kernel
        self.macs += prod(shape) * fan_in
        weight = self._weight((channels, c // groups, kernel, kernel), fan_in)
        y = self._node(
            "Conv", [self.quantize(x), *weight], shape, kernel_shape=[kernel] * 2,
            strides=[stride] * 2, pads=[pad] * 4, group=groups,
        )  # fmt: skip
        return self.quantize(self._node("Relu", [y], shape) if relu else y)

    def conv_transpose(
        self, x: str, channels: int, kernel: int, stride: int, pad: int, relu: bool = True
    ) -> str:
        """Transposed convolution with bias and per-channel weights, and a ReLU."""
        n, c, height, width = self.shapes[x]
        size = [(s - 1) * stride - 2 * pad + kernel for s in (height, width)]
        self.macs += n * c * height * width * channels * kernel * kernel
        fan_in = c * kernel * kernel // (stride * stride)
        weight = self._weight((c, channels, kernel, kernel), fan_in, axis=1)
        shape = (n, channels, *size)
        y = self._node(
            "ConvTranspose", [self.quantize(x), *weight], shape, kernel_shape=[kernel] * 2,
            strides=[stride] * 2, pads=[pad] * 4,
        )  # fmt: skip
        return self.quantize(self._node("Relu", [y], shape) if relu else y)

    def dense(self, x: str, features: int, relu: bool = False) -> str:
        """Fully connected, with bias."""
        n, k = self.shapes[x]
        self.macs += n * features * k
        operands = [self.quantize(x), *self._weight((features, k), k)]
        y = self._node("Gemm", operands, (n, features), transB=1)
        return self.quantize(self._node("Relu", [y], (n, features)) if relu else y)

    def add(self, a: str, b: str, relu: bool = True) -> str:
        """Residual addition and ReLU."""
        total = self._node("Add", [a, b], self.shapes[a])
        return self.quantize(self._node("Relu", [total], self.shapes[a]) if relu else total)

    def max_pool(self, x: str, kernel: int, stride: int) -> str:
        """Max pooling with symmetric padding."""
        n, c, height, width = self.shapes[x]
        pad = (kernel - 1) // 2
        shape = (n, c, *((s + 2 * pad - kernel) // stride + 1 for s in (height, width)))
        y = self._node(
            "MaxPool", [x], shape, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4
        )
        return self.quantize(y)

    def global_average(self, x: str) -> str:
        """Global average pooling and flattening."""
        n, c = self.shapes[x][:2]
        return self.flatten(self.quantize(self._node("GlobalAveragePool", [x], (n, c, 1, 1))))

    def flatten(self, x: str) -> str:
        """[N, ...] to [N, K]."""
        n, *rest = self.shapes[x]
        return self.quantize(self._node("Flatten", [x], (n, prod(rest)), axis=1))

    def reshape(self, x: str, *shape: int) -> str:
        """The same elements in another shape."""
        wanted = self.constant("shape", np.array(shape, np.int64))
        return self.quantize(self._node("Reshape", [x, wanted], shape))

    # ---- operators that stay float ----

    def unary(self, kind: str, x: str) -> str:
        """Sigmoid, Tanh, ..."""
        return self._node(kind, [x], self.shapes[x])

    def binary(self, kind: str, a: str, b: str) -> str:
        """Add, Mul, ... of equal shapes."""
        return self._node(kind, [a, b], self.shapes[a])

    def split(self, x: str, parts: int) -> Sequence[str]:
        """Equal parts of the last dimension."""
        *lead, size = self.shapes[x]
        name = f"split_{len(self.nodes)}"
        names = [f"{name}_{i}" for i in range(parts)]
        self.nodes.append(helper.make_node("Split", [x], names, name=name, axis=len(lead)))
        self.shapes |= dict.fromkeys(names, (*lead, size // parts))
        return names

    def quantize(self, value: str) -> str:
        """The value, quantised to int8 and dequantised. It stays as it is in a float model, or if
        it is quantised already."""
        if not self.quantized or value.startswith("dequantizelinear"):
            return value
        shape, grid = self.shapes[value], self._grid()
        integer = self._node("QuantizeLinear", [value, *grid], shape)
        return self._node("DequantizeLinear", [integer, *grid], shape)

    def model(self, *output: str) -> onnx.ModelProto:
        """The finished model; ``output`` is as of :meth:`output`, a last one."""
        if output:
            self.output(*output)
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.constants)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=8)

    def _node(self, kind: str, inputs: list[str], shape: tuple[int, ...], **attributes) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}_y"], name=name, **attributes))
        self.shapes[f"{name}_y"] = shape
        return f"{name}_y"

    def _grid(self) -> list[str]:
        """Scale and zero point of activations."""
        if "scale" not in {constant.name for constant in self.constants}:
            scale, zero = np.array(ACTIVATION_SCALE, np.float32), np.array(0, np.int8)
            self.constants.append(numpy_helper.from_array(scale, "scale"))
            self.constants.append(numpy_helper.from_array(zero, "zero"))
        return ["scale", "zero"]

    def _weight(self, shape: tuple[int, ...], fan_in: int, axis: int = 0) -> list[str]:
        """Weights with a scale per output channel, which lie along ``axis``, and a bias."""
        channels = shape[axis]
        deviation = 127 / sqrt(3)  # of uniform int8
        scales = 1 / (deviation * sqrt(fan_in)) * self.rng.uniform(0.8, 1.2, channels)
        scales = scales.astype(np.float32)
        weight = self.rng.integers(-127, 128, shape).astype(np.int8)
        bias = self.rng.normal(0, STEPS / 4 / ACTIVATION_SCALE, channels).astype(np.int32)
        bias_scales = scales * np.float32(ACTIVATION_SCALE)
        if not self.quantized:
            column = scales.reshape([-1 if i == axis else 1 for i in range(len(shape))])
            real_bias = (bias * bias_scales).astype(np.float32)
            return [self.constant("weight", weight * column), self.constant("bias", real_bias)]
        return [
            self._stored("weight", weight, scales, axis),
            self._stored("bias", bias, bias_scales, 0),
        ]

    def _stored(self, name: str, value: np.ndarray, scales: np.ndarray, axis: int) -> str:
        """A constant of integers, dequantised."""
        zeros = self.constant(f"{name}_zero", np.zeros(scales.shape, value.dtype))
        operands = [self.constant(name, value), self.constant(f"{name}_scale", scales), zeros]
        return self._node("DequantizeLinear", operands, value.shape, axis=axis)
