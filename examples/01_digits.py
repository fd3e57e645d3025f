"""Train a small CNN on handwritten digits in plain NumPy, and quantise it to int8 ONNX.

The images are scikit-learn's.

    python examples/01_digits.py [--out DIR] [--epochs N]

writes ``digits_float.onnx``, ``digits_int8.onnx`` (QDQ, int8 activations, int8 weights per channel)
and ``digits_test.npz`` (the test images ``x`` float32 [N,1,8,8] in 0..1 and their labels ``y``).
The committed files in ``examples/models`` were made so.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from sklearn.datasets import load_digits

TEST_IMAGES = 360
OPSET = 17
#: Input channels, output channels and stride of the convolutions; most channel counts are no
#: multiple of a block, on purpose.
LAYERS = ((1, 8, 1), (8, 24, 2), (24, 24, 1), (24, 24, 1), (24, 32, 1))


# ---- the data: 1797 images of 8x8 pixels, split once ----


def load_data(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images float32 [N,1,8,8] in 0..1, their labels, and the same for the test."""
    digits = load_digits()
    x = (digits.images[:, None] / 16).astype(np.float32)
    y = digits.target.astype(np.int64)
    order = rng.permutation(len(x))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return x[train], y[train], x[test], y[test]


def shifted(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each image moved by up to one pixel each way: the cheapest way to more data."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, cols = rng.integers(0, 3, (2, len(x)))
    return np.stack(
        [p[:, r : r + 8, c : c + 8] for p, r, c in zip(padded, rows, cols, strict=True)]
    )


# ---- layers with their gradients ----


@dataclass
class Conv:
    """A 3x3 convolution, padded by one, with bias; it keeps its gradient and Adam's moments."""

    weight: np.ndarray
    bias: np.ndarray
    stride: int = 1
    moments: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def random(cls, inputs: int, outputs: int, stride: int, rng: np.random.Generator) -> Conv:
        scale = np.sqrt(2 / (9 * inputs))
        weight = rng.normal(0, scale, (outputs, inputs, 3, 3)).astype(np.float32)
        return cls(weight, np.zeros(outputs, np.float32), stride)

    def forward(self, x: np.ndarray) -> np.ndarray:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        self.shape = padded.shape
        view = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        view = view[:, :, :: self.stride, :: self.stride].transpose(0, 2, 3, 1, 4, 5)
        self.columns = view.reshape(*view.shape[:3], -1)
        y = self.columns @ self.weight.reshape(len(self.weight), -1).T + self.bias
        return y.transpose(0, 3, 1, 2)

    def backward(self, grad: np.ndarray) -> np.ndarray:
        grad = grad.transpose(0, 2, 3, 1)
        n, height, width, outputs = grad.shape
        flat = grad.reshape(-1, outputs)
        self.grads = [
            (flat.T @ self.columns.reshape(len(flat), -1)).reshape(self.weight.shape),
            flat.sum(axis=0),
        ]
        spread = (flat @ self.weight.reshape(outputs, -1)).reshape(n, height, width, -1, 3, 3)
        back = np.zeros(self.shape, np.float32)
        s = self.stride
        for kh in range(3):
            for kw in range(3):
                rows, cols = slice(kh, kh + s * height, s), slice(kw, kw + s * width, s)
                back[:, :, rows, cols] += spread[..., kh, kw].transpose(0, 3, 1, 2)
        return back[:, :, 1:-1, 1:-1]


@dataclass
class Linear:
    """A dense layer, weight [outputs, inputs]."""

    weight: np.ndarray
    bias: np.ndarray
    moments: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def random(cls, inputs: int, outputs: int, rng: np.random.Generator) -> Linear:
        weight = rng.normal(0, np.sqrt(1 / inputs), (outputs, inputs)).astype(np.float32)
        return cls(weight, np.zeros(outputs, np.float32))

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return x @ self.weight.T + self.bias

    def backward(self, grad: np.ndarray) -> np.ndarray:
        self.grads = [grad.T @ self.x, grad.sum(axis=0)]
        return grad @ self.weight


class Network:
    """Two convolutions, a residual block, max pool, a convolution, average pool, a dense layer."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.convs = [
            Conv.random(inputs, outputs, stride, rng) for inputs, outputs, stride in LAYERS
        ]
        self.dense = Linear.random(32, 10, rng)

    def forward(self, x: np.ndarray) -> np.ndarray:
        stem, down, left, right, last = self.convs
        self.active: list[np.ndarray] = []
        trunk = self.relu(down.forward(self.relu(stem.forward(x))))
        branch = right.forward(self.relu(left.forward(trunk)))
        block = self.relu(trunk + branch)
        n, channels = block.shape[:2]
        self.cells = block.reshape(n, channels, 2, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5)
        pooled = self.cells.max(axis=(4, 5))
        features = self.relu(last.forward(pooled))
        return self.dense.forward(features.mean(axis=(2, 3)))

    def relu(self, x: np.ndarray) -> np.ndarray:
        self.active.append(x > 0)
        return np.maximum(x, 0)

    def backward(self, grad: np.ndarray) -> None:
        stem, down, left, right, last = self.convs
        in_stem, in_trunk, in_left, in_block, in_last = self.active
        grad = self.dense.backward(grad)[:, :, None, None] / 4
        grad = last.backward(grad * in_last)
        # Equal maxima all get the whole gradient: after a ReLU they are zeros, masked below.
        won = self.cells == self.cells.max(axis=(4, 5), keepdims=True)
        cells = won * grad[..., None, None]
        grad = cells.transpose(0, 1, 2, 4, 3, 5).reshape(in_block.shape) * in_block
        trunk = grad + left.backward(right.backward(grad) * in_left)
        stem.backward(down.backward(trunk * in_trunk) * in_stem)

    def layers(self) -> list[Conv | Linear]:
        """All that has weights."""
        return [*self.convs, self.dense]


def step(layers: list[Conv | Linear], rate: float, count: int, decay: float) -> None:
    """One step of AdamW; ``count`` starts at 1."""
    for layer in layers:
        layer.moments = layer.moments or [
            np.zeros_like(v) for v in (layer.weight, layer.bias) for _ in range(2)
        ]
        pairs = zip((layer.weight, layer.bias), layer.grads, strict=True)
        for index, (value, grad) in enumerate(pairs):
            mean, square = layer.moments[2 * index : 2 * index + 2]
            mean += 0.1 * (grad - mean)
            square += 0.001 * (grad * grad - square)
            unbiased = mean / (1 - 0.9**count)
            value -= rate * unbiased / (np.sqrt(square / (1 - 0.999**count)) + 1e-8)
            value -= rate * decay * value


def train(
    network: Network,
    x: np.ndarray,
    y: np.ndarray,
    epochs: int,
    rng: np.random.Generator,
    decay: float = 1e-4,
) -> None:
    """Cross entropy on shifted images, batches of 64, a cosine learning rate."""
    batch, count = 64, 0
    steps = epochs * (len(x) // batch)
    for epoch in range(epochs):
        order = rng.permutation(len(x))
        total = 0.0
        for start in range(0, len(x) - batch + 1, batch):
            chosen = order[start : start + batch]
            logits = network.forward(shifted(x[chosen], rng))
            logits -= logits.max(axis=1, keepdims=True)
            probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            right = (np.arange(batch), y[chosen])
            total -= np.log(probability[right] + 1e-12).sum()
            probability[right] -= 1
            network.backward((probability / batch).astype(np.float32))
            count += 1
            rate = 2e-3 * (1 + np.cos(np.pi * count / steps))
            step(network.layers(), rate, count, decay)
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1:3}: loss {total / len(x):.4f}")


# ---- ONNX ----


def export(network: Network) -> onnx.ModelProto:
    """The network as a float model with a symbolic batch."""
    names = ["stem", "down", "left", "right", "last"]
    weights, nodes = [], []

    def conv(index: int, x: str, y: str) -> None:
        layer, name = network.convs[index], names[index]
        weights.append(numpy_helper.from_array(layer.weight, f"{name}.weight"))
        weights.append(numpy_helper.from_array(layer.bias, f"{name}.bias"))
        attributes = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [layer.stride] * 2}
        operands = [x, f"{name}.weight", f"{name}.bias"]
        nodes.append(helper.make_node("Conv", operands, [y], name, **attributes))

    def unary(kind: str, x: str, y: str, **attributes: object) -> None:
        nodes.append(helper.make_node(kind, [x], [y], y, **attributes))

    conv(0, "image", "stem_out")
    unary("Relu", "stem_out", "stem_relu")
    conv(1, "stem_relu", "down_out")
    unary("Relu", "down_out", "trunk")
    conv(2, "trunk", "left_out")
    unary("Relu", "left_out", "left_relu")
    conv(3, "left_relu", "branch")
    nodes.append(helper.make_node("Add", ["trunk", "branch"], ["sum"], "sum"))
    unary("Relu", "sum", "block")
    unary("MaxPool", "block", "pooled", kernel_shape=[2, 2], strides=[2, 2])
    conv(4, "pooled", "last_out")
    unary("Relu", "last_out", "last_relu")
    unary("AveragePool", "last_relu", "mean", kernel_shape=[2, 2])
    unary("Flatten", "mean", "features")
    weights.append(numpy_helper.from_array(network.dense.weight, "dense.weight"))
    weights.append(numpy_helper.from_array(network.dense.bias, "dense.bias"))
    operands = ["features", "dense.weight", "dense.bias"]
    nodes.append(helper.make_node("Gemm", operands, ["logits"], "dense", transB=1))

    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])
    graph = helper.make_graph(nodes, "digits", [image], [logits], weights)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8, producer_name="vdla"
    )


class Calibration(CalibrationDataReader):
    """Training images in batches of 64, for the ranges of the activations."""

    def __init__(self, x: np.ndarray) -> None:
        self.batches = iter([{"image": x[i : i + 64]} for i in range(0, len(x), 64)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.batches, None)


def quantise(source: Path, target: Path, x: np.ndarray) -> None:
    """Static QDQ quantisation: asymmetric int8 activations, symmetric int8 weights per channel."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(target),
            Calibration(x),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
        )


def accuracy(path: Path, x: np.ndarray, y: np.ndarray) -> float:
    """Share of images that ONNX Runtime classifies right."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return float((session.run(None, {"image": x})[0].argmax(axis=1) == y).mean())


def main() -> None:
    """Train, export, quantise, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "models")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(options.seed)
    x_train, y_train, x_test, y_test = load_data(rng)
    network = Network(rng)
    train(network, x_train, y_train, options.epochs, rng)
    source, target = options.out / "digits_float.onnx", options.out / "digits_int8.onnx"
    onnx.save_model(export(network), str(source))
    quantise(source, target, x_train)
    np.savez_compressed(options.out / "digits_test.npz", x=x_test, y=y_test)
    for path in (source, target):
        print(f"{path.name}: accuracy {accuracy(path, x_test, y_test):.2%}")


if __name__ == "__main__":
    main()
