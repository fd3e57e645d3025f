"""The workloads of the TVM paper: the layers of its table 2, and its five networks, with random
weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from .net import Net

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

    def model(self, batch: int = 1, quantized: bool = True) -> onnx.ModelProto:
        """The layer as a model of its own."""
        net = Net(self.name, quantized)
        x = net.input(batch, self.in_channels, self.size, self.size)
        return net.model(net.conv(x, self.out_channels, self.kernel, self.stride, self.groups))


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


# ---- products of transformers --------------------------------------------------------------------


@dataclass(frozen=True)
class MatrixProduct:
    """A matrix [``rows``, ``depth``] times a constant one [``depth``, ``columns``]."""

    rows: int
    depth: int
    columns: int

    @property
    def name(self) -> str:
        """Such as 128x768x3072."""
        return f"{self.rows}x{self.depth}x{self.columns}"

    def model(self, batch: int = 1, quantized: bool = True) -> onnx.ModelProto:
        """The product, with a bias, as a model of its own."""
        net = Net(self.name, quantized)
        return net.model(net.dense(net.input(batch * self.rows, self.depth), self.columns))


#: Of BERT-base (128 tokens), ViT-base (197), GPT-2 small (64) and Whisper-tiny (1,500), and two
#: smaller ones.
PRODUCTS = tuple(MatrixProduct(*sizes) for sizes in (
    (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (197, 768, 3072), (64, 768, 2304),
    (1500, 384, 1536), (512, 512, 512), (128, 256, 1024),
))  # fmt: skip


# ---- networks ------------------------------------------------------------------------------------


def resnet18(batch: int = 1, quantized: bool = True) -> onnx.ModelProto:
    """ResNet-18 (He et al. 2015, basic blocks, ImageNet)."""
    net = Net("resnet18", quantized)
    x = net.max_pool(net.conv(net.input(batch, 3, 224, 224), 64, 7, 2), 3, 2)
    for channels, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
                             (512, 1)):  # fmt: skip
        y = net.conv(net.conv(x, channels, 3, stride), channels, 3, relu=False)
        if stride != 1:
            x = net.conv(x, channels, 1, stride, relu=False)
        x = net.add(y, x)
    return net.model(net.dense(net.global_average(x), 1000))


def mobilenet_v1(batch: int = 1, quantized: bool = True) -> onnx.ModelProto:
    """MobileNet-V1 (Howard et al. 2017, width 1, ImageNet)."""
    net = Net("mobilenet_v1", quantized)
    x = net.conv(net.input(batch, 3, 224, 224), 32, 3, 2)
    pairs = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5]
    for channels, stride in (*pairs, (1024, 2), (1024, 1)):
        depth = net.shapes[x][1]
        x = net.conv(net.conv(x, depth, 3, stride, groups=depth), channels, 1)
    return net.model(net.dense(net.global_average(x), 1000))


def mobilenet_v2(batch: int = 1, quantized: bool = True, side: int = 224) -> onnx.ModelProto:
    """A network in the style of MobileNet-V2 (Sandler et al. 2018, width 1, ImageNet): inverted
    residuals, with ReLU in the place of ReLU6.
    """
    net = Net("mobilenet_v2", quantized)
    x = net.conv(net.input(batch, 3, side, side), 32, 3, 2)
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
              (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    for expansion, channels, count, first_stride in stages:
        for stride in (first_stride, *(1,) * (count - 1)):
            before = net.shapes[x][1]
            wide = expansion * before
            y = net.conv(x, wide, 1) if expansion > 1 else x
            y = net.conv(net.conv(y, wide, 3, stride, groups=wide), channels, 1, relu=False)
            x = net.add(y, x, relu=False) if stride == 1 and before == channels else y
    return net.model(net.dense(net.global_average(net.conv(x, 1280, 1)), 1000))


def dcgan(batch: int = 1, quantized: bool = True) -> onnx.ModelProto:
    """The generator of DCGAN (Radford et al. 2015): 100 numbers to a picture of 64 x 64."""
    net = Net("dcgan", quantized)
    x = net.dense(net.input(batch, 100), 1024 * 4 * 4, relu=True)
    x = net.reshape(x, batch, 1024, 4, 4)
    for channels in (512, 256, 128):
        x = net.conv_transpose(x, channels, 4, 2, 1)
    return net.model(net.unary("Tanh", net.conv_transpose(x, 3, 4, 2, 1, relu=False)))


def dqn(batch: int = 1, quantized: bool = True) -> onnx.ModelProto:
    """Deep Q-network (Mnih et al. 2015): four frames to the values of 18 actions."""
    net = Net("dqn", quantized)
    x = net.input(batch, 4, 84, 84)
    for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        x = net.conv(x, channels, kernel, stride, pad=0)
    return net.model(net.dense(net.dense(net.flatten(x), 512, relu=True), 18))


def lstm_lm(batch: int = 1, quantized: bool = True) -> onnx.ModelProto:
    """A step of an LSTM language model (Zaremba et al. 2014): two layers of 650, 10,000 words.

    States are inputs and outputs. Gates are float.
    """
    width, vocabulary = 650, 10_000
    net = Net("lstm_lm", quantized)
    x = net.token(batch, vocabulary, width)
    for layer in range(2):
        hidden = net.input(batch, width, name=f"h{layer}")
        cell = net.input(batch, width, name=f"c{layer}")
        gates = net.add(net.dense(x, 4 * width), net.dense(hidden, 4 * width), relu=False)
        i, f, o, new = net.split(gates, 4)
        kept = net.binary("Mul", net.unary("Sigmoid", f), cell)
        learned = net.binary("Mul", net.unary("Sigmoid", i), net.unary("Tanh", new))
        cell = net.binary("Add", kept, learned)
        x = net.binary("Mul", net.unary("Sigmoid", o), net.unary("Tanh", cell))
        net.output(x, f"h{layer}_out")
        net.output(cell, f"c{layer}_out")
    return net.model(net.dense(x, vocabulary), "logits")


#: Builders of whole networks, by batch and whether quantised.
NETWORKS: dict[str, Callable[[int, bool], onnx.ModelProto]] = {
    "resnet18": resnet18,
    "mobilenet_v1": mobilenet_v1,
    "dcgan": dcgan,
    "dqn": dqn,
    "lstm_lm": lstm_lm,
}
