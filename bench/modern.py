"""Networks that people run today, with random weights, in float32: transformers, networks with
squeeze-and-excitation, deep convolutional ones, and a recurrent one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np
import onnx

from ..isa.errors import VdlaError
from .net import Net

#: Rounds of channels of networks that scale their width.
CHANNEL_MULTIPLE = 8


class FloatNet(Net):
    """A float model under construction, with the operators of transformers."""

    def __init__(self, name: str):
        super().__init__(name, quantized=False)

    def tokens(self, count: int, vocabulary: int, width: int) -> str:
        """Rows [1, count, width] that an int64 input chooses, each plus one of its place."""
        info = onnx.helper.make_tensor_value_info("tokens", onnx.TensorProto.INT64, (1, count))
        self.inputs.append(info)
        table = self.random("table", vocabulary, width)
        rows = self._node("Gather", [table, "tokens"], (1, count, width))
        return self._node("Add", [rows, self.random("places", 1, count, width)], (1, count, width))

    def random(self, name: str, *shape: int, fan_in: int = 1) -> str:
        """A constant of normal numbers, divided by the square root of ``fan_in``."""
        values = self.rng.standard_normal(shape) / math.sqrt(fan_in)
        made = self.constant(name, values.astype(np.float32))
        self.shapes[made] = shape
        return made

    def number(self, value: float) -> str:
        """A constant of one element."""
        return self.constant("number", np.array(value, np.float32))

    def linear(self, x: str, features: int) -> str:
        """A product with weights along the last dimension, and a bias, as PyTorch exports them."""
        *lead, depth = self.shapes[x]
        shape = (*lead, features)
        self.macs += math.prod(shape) * depth
        product = self._node(
            "MatMul", [x, self.random("weight", depth, features, fan_in=depth)], shape
        )
        return self._node("Add", [self.random("bias", features), product], shape)

    def matmul(self, a: str, b: str) -> str:
        """A product of two computed tensors."""
        shape = (*self.shapes[a][:-1], self.shapes[b][-1])
        self.macs += math.prod(shape) * self.shapes[a][-1]
        return self._node("MatMul", [a, b], shape)

    def transpose(self, x: str, *order: int) -> str:
        """Dimension i of the result is dimension ``order[i]``."""
        return self._node("Transpose", [x], tuple(self.shapes[x][i] for i in order), perm=order)

    def scaled(self, x: str, factor: float) -> str:
        """Every element times a number."""
        return self._node("Mul", [x, self.number(factor)], self.shapes[x])

    def plus(self, x: str, constant: np.ndarray) -> str:
        """A constant added, which is broadcast."""
        return self._node("Add", [x, self.constant("added", constant)], self.shapes[x])

    def layer_norm(self, x: str) -> str:
        """Layer normalisation along the last dimension."""
        width = self.shapes[x][-1]
        operands = [x, self.random("gain", width), self.random("shift", width)]
        return self._node("LayerNormalization", operands, self.shapes[x], axis=-1)

    def softmax(self, x: str) -> str:
        """Softmax along the last dimension."""
        return self._node("Softmax", [x], self.shapes[x], axis=-1)

    def gelu(self, x: str) -> str:
        """GELU by the error function, as PyTorch exports it."""
        shape = self.shapes[x]
        inner = self.unary("Erf", self._node("Div", [x, self.number(math.sqrt(2))], shape))
        raised = self._node("Add", [inner, self.number(1.0)], shape)
        return self.scaled(self.binary("Mul", x, raised), 0.5)

    def times(self, x: str, factors: str) -> str:
        """The product with a tensor that is broadcast."""
        return self._node("Mul", [x, factors], self.shapes[x])

    def mlp(self, x: str, width: int) -> str:
        """Two layers with GELU between them."""
        return self.linear(self.gelu(self.linear(x, width)), self.shapes[x][-1])

    def attention(self, x: str, heads: int, mask: np.ndarray | None = None) -> str:
        """Self-attention over [groups, tokens, width]; ``mask`` is added to the scores."""
        groups, tokens, width = self.shapes[x]
        split = (groups, tokens, heads, width // heads)
        q, k, v = (self.reshape(self.linear(x, width), *split) for _ in range(3))
        scores = self.matmul(self.transpose(q, 0, 2, 1, 3), self.transpose(k, 0, 2, 3, 1))
        scores = self.scaled(scores, (width // heads) ** -0.5)
        scores = scores if mask is None else self.plus(scores, mask)
        mixed = self.matmul(self.softmax(scores), self.transpose(v, 0, 2, 1, 3))
        together = self.reshape(self.transpose(mixed, 0, 2, 1, 3), groups, tokens, width)
        return self.linear(together, width)

    def concat(self, *parts: str, axis: int) -> str:
        """Tensors one behind another along an axis."""
        shape = list(self.shapes[parts[0]])
        shape[axis] = sum(self.shapes[part][axis] for part in parts)
        return self._node("Concat", list(parts), tuple(shape), axis=axis)

    def rolled(self, x: str, places: int, axis: int) -> str:
        """Elements moved towards the start by ``places`` along an axis, around its end."""
        size = self.shapes[x][axis]
        cut = places % size
        return self.concat(self.cut(x, cut, size, axis), self.cut(x, 0, cut, axis), axis=axis)

    def cut(self, x: str, first: int, end: int, axis: int, step: int = 1) -> str:
        """Elements ``first`` to ``end`` along an axis."""
        shape = list(self.shapes[x])
        shape[axis] = len(range(first, end, step))
        bounds = [self.constant("cut", np.array([n], np.int64)) for n in (first, end, axis, step)]
        return self._node("Slice", [x, *bounds], tuple(shape))

    def silu(self, x: str) -> str:
        """``x * sigmoid(x)``."""
        return self.binary("Mul", x, self.unary("Sigmoid", x))

    def relu6(self, x: str) -> str:
        """``min(max(x, 0), 6)``."""
        return self._node("Clip", [x, self.number(0.0), self.number(6.0)], self.shapes[x])

    def squeezed(self, x: str, channels: int, gate: str) -> str:
        """Squeeze-and-excitation: each channel times a number made of all channels' means."""
        width = self.shapes[x][1]
        inner = self.conv(self.channel_means(x), channels, 1, relu=gate != "Sigmoid")
        inner = self.silu(inner) if gate == "Sigmoid" else inner
        return self.times(x, self.unary(gate, self.conv(inner, width, 1, relu=False)))

    def channel_means(self, x: str) -> str:
        """The mean of each channel, [N, C, 1, 1]."""
        return self._node("GlobalAveragePool", [x], (*self.shapes[x][:2], 1, 1))

    def token_mean(self, x: str) -> str:
        """The mean of all tokens, [1, width]."""
        shape = (1, self.shapes[x][-1])
        return self._node("ReduceMean", [x], shape, axes=[1], keepdims=0)

    def gru(self, x: str) -> str:
        """A GRU layer as wide as its input [steps, 1, width]."""
        return self._recurrent("GRU", x, 3, linear_before_reset=1)

    def lstm(self, x: str) -> str:
        """An LSTM layer as wide as its input [steps, 1, width]."""
        return self._recurrent("LSTM", x, 4)

    def _recurrent(self, kind: str, x: str, gates: int, **attributes: int) -> str:
        steps, _, width = self.shapes[x]
        weights = [self.random(name, 1, gates * width, width, fan_in=width) for name in ("w", "r")]
        operands = [x, *weights, self.random("b", 1, 2 * gates * width, fan_in=width)]
        self.macs += 2 * steps * gates * width * width
        shape = (steps, 1, 1, width)
        every = self._node(kind, operands, shape, hidden_size=width, **attributes)
        return self.reshape(every, steps, 1, width)

    def average_pool(self, x: str, size: int) -> str:
        """Means of windows that do not overlap."""
        n, c, height, width = self.shapes[x]
        shape = (n, c, height // size, width // size)
        return self._node("AveragePool", [x], shape, kernel_shape=[size] * 2, strides=[size] * 2)

    def patches(self, size: int, width: int, image: int = 224) -> str:
        """An image's patches as tokens [1, patches, width]."""
        side = image // size
        x = self.conv(self.input(1, 3, image, image), width, size, size, relu=False, pad=0)
        return self.transpose(self.reshape(x, 1, width, side * side), 0, 2, 1)


# ---- transformers --------------------------------------------------------------------------------


def bert(
    layers: int = 4, width: int = 256, heads: int = 4, tokens: int = 128, words: int = 1000
) -> onnx.ModelProto:
    """An encoder of BERT's kind (Devlin et al. 2018)."""
    net = FloatNet("bert")
    x = net.layer_norm(net.tokens(tokens, words, width))
    for _ in range(layers):
        x = net.layer_norm(net.binary("Add", x, net.attention(x, heads)))
        x = net.layer_norm(net.binary("Add", x, net.mlp(x, 4 * width)))
    return net.model(x)


def gpt2(
    layers: int = 4, width: int = 256, heads: int = 4, tokens: int = 64, words: int = 1000
) -> onnx.ModelProto:
    """A decoder of GPT-2's kind (Radford et al. 2019)."""
    net = FloatNet("gpt2")
    mask = np.triu(np.full((tokens, tokens), -1e9, np.float32), 1)[None, None]
    x = net.tokens(tokens, words, width)
    for _ in range(layers):
        x = net.binary("Add", x, net.attention(net.layer_norm(x), heads, mask))
        x = net.binary("Add", x, net.mlp(net.layer_norm(x), 4 * width))
    return net.model(net.linear(net.layer_norm(x), words))


def whisper_tiny() -> onnx.ModelProto:
    """The layers of Whisper-tiny's encoder (Radford et al. 2022), on 30 s of sound."""
    net = FloatNet("whisper_tiny")
    x = net.plus(net.input(1, 1500, 384), net.rng.standard_normal((1500, 384)).astype(np.float32))
    for _ in range(4):
        x = net.binary("Add", x, net.attention(net.layer_norm(x), 6))
        x = net.binary("Add", x, net.mlp(net.layer_norm(x), 1536))
    return net.model(net.layer_norm(x))


def vit_tiny(
    side: int = 224, patch: int = 16, width: int = 192, heads: int = 3, layers: int = 12
) -> onnx.ModelProto:
    """ViT-tiny (Dosovitskiy et al. 2020; Touvron et al. 2020): 12 layers, width 192, 3 heads; or
    one of other sizes."""
    net = FloatNet("vit_tiny")
    x = net.concat(net.random("class", 1, 1, width), net.patches(patch, width, side), axis=1)
    x = net.plus(x, net.rng.standard_normal(net.shapes[x]).astype(np.float32))
    for _ in range(layers):
        x = net.binary("Add", x, net.attention(net.layer_norm(x), heads))
        x = net.binary("Add", x, net.mlp(net.layer_norm(x), 4 * width))
    first = net.reshape(net.cut(net.layer_norm(x), 0, 1, 1), 1, width)
    return net.model(net.dense(first, 1000))


def mixer_s32() -> onnx.ModelProto:
    """MLP-Mixer S/32 (Tolstikhin et al. 2021)."""
    net = FloatNet("mixer_s32")
    x = net.patches(32, 512)
    for _ in range(8):
        mixed = net.mlp(net.transpose(net.layer_norm(x), 0, 2, 1), 256)
        x = net.binary("Add", x, net.transpose(mixed, 0, 2, 1))
        x = net.binary("Add", x, net.mlp(net.layer_norm(x), 2048))
    return net.model(net.dense(net.token_mean(net.layer_norm(x)), 1000))


def swin_tiny() -> onnx.ModelProto:
    """Swin-tiny (Liu et al. 2021): attention in windows of 7 x 7, which every other layer moves."""
    net, side, window = FloatNet("swin_tiny"), 56, 7
    x = net.layer_norm(net.patches(4, 96))
    for stage, layers in enumerate((2, 2, 6, 2)):
        width = 96 << stage
        if stage:
            x, side = _merged_patches(net, x, side), side // 2
        for layer in range(layers):
            moved = window // 2 if layer % 2 and side > window else 0
            y = net.reshape(net.layer_norm(x), 1, side, side, width)
            for axis in (1, 2) if moved else ():
                y = net.rolled(y, moved, axis)
            y = _in_windows(net, y, side, window, 3 << stage, moved)
            for axis in (1, 2) if moved else ():
                y = net.rolled(y, -moved, axis)
            x = net.binary("Add", x, net.reshape(y, 1, side * side, width))
            x = net.binary("Add", x, net.mlp(net.layer_norm(x), 4 * width))
    return net.model(net.dense(net.token_mean(net.layer_norm(x)), 1000))


def _in_windows(net: FloatNet, x: str, side: int, window: int, heads: int, moved: int) -> str:
    """Attention of [1, side, side, width] within windows."""
    width, count, places = net.shapes[x][-1], side // window, window * window
    x = net.reshape(x, count, window, count, window, width)
    x = net.reshape(net.transpose(x, 0, 2, 1, 3, 4), count * count, places, width)
    mask = net.rng.standard_normal((1, heads, places, places)).astype(np.float32)
    if moved:  # what lies beside each other only since it was moved sees nothing of each other
        parts = np.digitize(np.arange(side), (side - window, side - moved))
        area = (parts[:, None] * 3 + parts).reshape(count, window, count, window)
        area = area.transpose(0, 2, 1, 3).reshape(count * count, 1, places)
        apart = area.transpose(0, 2, 1) != area
        mask = mask + np.where(apart, np.float32(-100), np.float32(0))[:, None]
    x = net.reshape(net.attention(x, heads, mask), count, count, window, window, width)
    return net.reshape(net.transpose(x, 0, 2, 1, 3, 4), 1, side, side, width)


def _merged_patches(net: FloatNet, x: str, side: int) -> str:
    """Two by two tokens become one of twice the width."""
    width = net.shapes[x][-1]
    image = net.reshape(x, 1, side, side, width)
    parts = [net.cut(net.cut(image, i, side, 1, 2), j, side, 2, 2) for j in (0, 1) for i in (0, 1)]
    merged = net.reshape(net.concat(*parts, axis=3), 1, side * side // 4, 4 * width)
    return net.linear(net.layer_norm(merged), 2 * width)


# ---- convolutions --------------------------------------------------------------------------------


def convnext_atto() -> onnx.ModelProto:
    """ConvNeXt-atto (Liu et al. 2022; Wightman's smallest one)."""
    net = FloatNet("convnext_atto")
    x = net.conv(net.input(1, 3, 224, 224), 40, 4, 4, relu=False, pad=0)
    x = _channels_normed(net, x)
    for stage, layers in enumerate((2, 2, 6, 2)):
        width = 40 << stage
        if stage:
            x = net.conv(_channels_normed(net, x), width, 2, 2, relu=False, pad=0)
        for _ in range(layers):
            y = net.conv(x, width, 7, groups=width, relu=False)
            y = net.mlp(net.layer_norm(net.transpose(y, 0, 2, 3, 1)), 4 * width)
            y = net.times(y, net.random("scale", width))
            x = net.binary("Add", x, net.transpose(y, 0, 3, 1, 2))
    return net.model(net.dense(net.global_average(x), 1000))


def _channels_normed(net: FloatNet, x: str) -> str:
    return net.transpose(net.layer_norm(net.transpose(x, 0, 2, 3, 1)), 0, 3, 1, 2)


def efficientnet_b0() -> onnx.ModelProto:
    """EfficientNet-B0 (Tan and Le 2019)."""
    net = FloatNet("efficientnet_b0")

    def gated(x: str, before: int) -> str:
        return net.squeezed(x, max(1, before // 4), "Sigmoid")

    return _efficientnet(net, 224, net.silu, gated)


def efficientnet_lite0(side: int = 224) -> onnx.ModelProto:
    """EfficientNet-lite0 (Liu 2020): EfficientNet-B0 with ReLU6, without squeeze-and-excitation."""
    net = FloatNet("efficientnet_lite0")
    return _efficientnet(net, side, net.relu6, lambda x, _: x)


def _efficientnet(
    net: FloatNet,
    side: int,
    activation: Callable[[str], str],
    gate: Callable[[str, int], str],
) -> onnx.ModelProto:
    """Both networks; ``gate`` takes what a block has after its depthwise convolution, and how many
    channels came into the block."""
    x = activation(net.conv(net.input(1, 3, side, side), 32, 3, 2, relu=False))
    stages = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
              (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip
    for expansion, channels, count, first_stride, kernel in stages:
        for stride in (first_stride, *(1,) * (count - 1)):
            before = net.shapes[x][1]
            wide = expansion * before
            y = activation(net.conv(x, wide, 1, relu=False)) if expansion > 1 else x
            y = activation(net.conv(y, wide, kernel, stride, groups=wide, relu=False))
            y = net.conv(gate(y, before), channels, 1, relu=False)
            x = net.binary("Add", y, x) if stride == 1 and before == channels else y
    x = activation(net.conv(x, 1280, 1, relu=False))
    return net.model(net.dense(net.global_average(x), 1000))


def mobilenet_v3(side: int = 224) -> onnx.ModelProto:
    """MobileNet-V3 large (Howard et al. 2019)."""
    net = FloatNet("mobilenet_v3")

    def activated(x: str, kind: str) -> str:
        return net.unary("HardSwish" if kind == "h" else "Relu", x)

    x = activated(net.conv(net.input(1, 3, side, side), 16, 3, 2, relu=False), "h")
    rows = (
        (3, 16, 16, 0, "r", 1), (3, 64, 24, 0, "r", 2), (3, 72, 24, 0, "r", 1),
        (5, 72, 40, 1, "r", 2), (5, 120, 40, 1, "r", 1), (5, 120, 40, 1, "r", 1),
        (3, 240, 80, 0, "h", 2), (3, 200, 80, 0, "h", 1), (3, 184, 80, 0, "h", 1),
        (3, 184, 80, 0, "h", 1), (3, 480, 112, 1, "h", 1), (3, 672, 112, 1, "h", 1),
        (5, 672, 160, 1, "h", 2), (5, 960, 160, 1, "h", 1), (5, 960, 160, 1, "h", 1),
    )  # fmt: skip
    for kernel, wide, channels, squeezes, kind, stride in rows:
        before = net.shapes[x][1]
        y = activated(net.conv(x, wide, 1, relu=False), kind) if wide > before else x
        y = activated(net.conv(y, wide, kernel, stride, groups=wide, relu=False), kind)
        if squeezes:
            inner = -(-wide // 4 // CHANNEL_MULTIPLE) * CHANNEL_MULTIPLE
            y = net.squeezed(y, inner, "HardSigmoid")
        y = net.conv(y, channels, 1, relu=False)
        x = net.binary("Add", y, x) if stride == 1 and before == channels else y
    x = activated(net.conv(x, 960, 1, relu=False), "h")
    x = activated(net.dense(net.global_average(x), 1280), "h")
    return net.model(net.dense(x, 1000))


def regnety_002() -> onnx.ModelProto:
    """RegNetY of 200 million MACs (Radosavovic et al. 2020): groups of 8 channels."""
    net = FloatNet("regnety_002")
    x = net.conv(net.input(1, 3, 224, 224), 32, 3, 2)
    for width, depth in ((24, 1), (56, 1), (152, 4), (368, 7)):
        for layer in range(depth):
            before, stride = net.shapes[x][1], 1 if layer else 2
            y = net.conv(net.conv(x, width, 1), width, 3, stride, groups=width // 8)
            inner = net.conv(net.channel_means(y), round(before / 4), 1)
            y = net.times(y, net.unary("Sigmoid", net.conv(inner, width, 1, relu=False)))
            y = net.conv(y, width, 1, relu=False)
            x = x if layer else net.conv(x, width, 1, stride, relu=False)
            x = net.add(y, x)
    return net.model(net.dense(net.global_average(x), 1000))


def resnet50(side: int = 224) -> onnx.ModelProto:
    """ResNet-50 (He et al. 2015), with the stride at the 3 x 3 convolutions."""
    net = FloatNet("resnet50")
    x = net.max_pool(net.conv(net.input(1, 3, side, side), 64, 7, 2), 3, 2)
    for stage, count in enumerate((3, 4, 6, 3)):
        for layer in range(count):
            width, stride = 64 << stage, 2 if stage and not layer else 1
            y = net.conv(net.conv(x, width, 1), width, 3, stride)
            y = net.conv(y, 4 * width, 1, relu=False)
            x = x if layer else net.conv(x, 4 * width, 1, stride, relu=False)
            x = net.add(y, x)
    return net.model(net.dense(net.global_average(x), 1000))


def densenet121() -> onnx.ModelProto:
    """DenseNet-121 (Huang et al. 2016), its normalisations folded into scales and shifts."""
    net, growth = FloatNet("densenet121"), 32

    def normed(x: str) -> str:
        channels = net.shapes[x][1]
        scaled = net.times(x, net.random("scale", channels, 1, 1))
        shift = net.rng.standard_normal((channels, 1, 1)).astype(np.float32)
        return net.unary("Relu", net.plus(scaled, shift))

    x = net.max_pool(net.conv(net.input(1, 3, 224, 224), 64, 7, 2), 3, 2)
    for stage, count in enumerate((6, 12, 24, 16)):
        if stage:
            x = net.conv(normed(x), net.shapes[x][1] // 2, 1, relu=False)
            x = net.average_pool(x, 2)
        for _ in range(count):
            y = net.conv(net.conv(normed(x), 4 * growth, 1), growth, 3, relu=False)
            x = net.concat(x, y, axis=1)
    return net.model(net.dense(net.global_average(normed(x)), 1000))


# ---- recurrent -----------------------------------------------------------------------------------


def gru() -> onnx.ModelProto:
    """Two GRU layers of width 128 over 50 steps."""
    net = FloatNet("gru")
    return net.model(net.gru(net.gru(net.input(50, 1, 128))))


def lstm_layers() -> onnx.ModelProto:
    """Two LSTM layers of width 256 over 64 steps."""
    net = FloatNet("lstm_layers")
    return net.model(net.lstm(net.lstm(net.input(64, 1, 256))))


#: Builders by name; all are in float32, for one image or sentence.
MODERN: dict[str, Callable[[], onnx.ModelProto]] = {
    "bert": bert,
    "vit_tiny": vit_tiny,
    "gpt2": gpt2,
    "mixer_s32": mixer_s32,
    "swin_tiny": swin_tiny,
    "convnext_atto": convnext_atto,
    "gru": gru,
    "efficientnet_b0": efficientnet_b0,
    "mobilenet_v3": mobilenet_v3,
    "regnety_002": regnety_002,
    "resnet50": resnet50,
    "densenet121": densenet121,
}


#: Transformers at the size in which people run them: BERT-base and DistilBERT (128 tokens), GPT-2
#: small (64 tokens), ViT-base, the images' half of CLIP, Whisper-tiny's encoder.
FULL_SIZE: dict[str, Callable[[], onnx.ModelProto]] = {
    "bert_base": partial(bert, 12, 768, 12, 128, 30522),
    "distilbert": partial(bert, 6, 768, 12, 128, 30522),
    "gpt2_small": partial(gpt2, 12, 768, 12, 64, 50257),
    "vit_base": partial(vit_tiny, 224, 16, 768, 12, 12),
    "clip_vit_b32": partial(vit_tiny, 224, 32, 768, 12, 12),
    "whisper_tiny": whisper_tiny,
}


def check_names(names: Sequence[str], known: Collection[str]) -> None:
    """Raise VdlaError unless there are names, and networks of them."""
    for name in names or ("none",):
        if name not in known:
            raise VdlaError(f"models: expected one of {', '.join(known)}, got {name!r}")
