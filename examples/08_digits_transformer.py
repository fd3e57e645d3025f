"""Train a small vision transformer on handwritten digits in plain NumPy, and quantise it to int8.

The images and their split, the training loop and AdamW are those of ``01_digits.py``.

    python examples/08_digits_transformer.py [--out DIR] [--epochs N]

writes ``digits_transformer_float.onnx`` and ``digits_transformer_int8.onnx`` (QDQ, by
``vdla.quantize``). The committed files in ``examples/models`` were made so;
``09_run_digits_transformer.py`` runs them.
"""

from __future__ import annotations

import argparse
import importlib
import math
from pathlib import Path

import numpy as np
import onnx
import vdla
from onnx import TensorProto, helper, numpy_helper
from scipy.special import erf

digits = importlib.import_module("01_digits")

#: An image is 4 x 4 patches of 2 x 2 pixels. Sixteen tokens fill a block of the accelerator.
PATCH, SIDE = 2, 4
TOKENS = SIDE * SIDE
#: Heads of 16 channels fill a block, too.
WIDTH, HEADS, HIDDEN, BLOCKS = 32, 2, 64, 2
EPSILON = 1e-5
#: Of the weights, in AdamW: there are only 1,437 images to learn from.
DECAY = 0.1


# ---- layers with their gradients; x is [images, tokens, channels] ----


class Rows(digits.Linear):
    """A dense layer of every token."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        y = super().forward(x.reshape(-1, x.shape[-1]))
        return y.reshape(*x.shape[:-1], -1)

    def backward(self, grad: np.ndarray) -> np.ndarray:
        back = super().backward(grad.reshape(-1, grad.shape[-1]))
        return back.reshape(*grad.shape[:-1], -1)


class Embedding(digits.Linear):
    """A dense layer of every patch whose bias [1, tokens, channels] is the learned positions."""

    @classmethod
    def random(cls, inputs: int, outputs: int, rng: np.random.Generator) -> Embedding:
        weight = rng.normal(0, np.sqrt(1 / inputs), (outputs, inputs)).astype(np.float32)
        return cls(weight, rng.normal(0, 0.5, (1, TOKENS, outputs)).astype(np.float32))

    def backward(self, grad: np.ndarray) -> None:
        self.grads = [np.tensordot(grad, self.x, ((0, 1), (0, 1))), grad.sum(axis=0, keepdims=True)]


class LayerNorm:
    """Every token less its mean, divided by its standard deviation; then a gain and a bias."""

    def __init__(self) -> None:
        self.weight, self.bias = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
        self.moments: list[np.ndarray] = []

    def forward(self, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        self.inverse = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
        self.normed = centred * self.inverse
        return self.normed * self.weight + self.bias

    def backward(self, grad: np.ndarray) -> np.ndarray:
        self.grads = [(grad * self.normed).sum(axis=(0, 1)), grad.sum(axis=(0, 1))]
        grad = grad * self.weight
        along = (grad * self.normed).mean(axis=-1, keepdims=True)
        return (grad - grad.mean(axis=-1, keepdims=True) - self.normed * along) * self.inverse


class Attention:
    """Self-attention; 1 / sqrt(channels of a head) is in the weights of the queries."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rows = [Rows.random(WIDTH, WIDTH, rng) for _ in range(4)]
        self.rows[0].weight *= (WIDTH // HEADS) ** -0.5

    def forward(self, x: np.ndarray) -> np.ndarray:
        *inputs, output = self.rows
        self.q, self.k, self.v = (split(layer.forward(x)) for layer in inputs)
        self.share = softmax(self.q @ self.k.swapaxes(2, 3))
        return output.forward(join(self.share @ self.v))

    def backward(self, grad: np.ndarray) -> np.ndarray:
        *inputs, output = self.rows
        grad = split(output.backward(grad))
        share = grad @ self.v.swapaxes(2, 3)
        scores = self.share * (share - (share * self.share).sum(axis=-1, keepdims=True))
        grads = (
            scores @ self.k,
            scores.swapaxes(2, 3) @ self.q,
            self.share.swapaxes(2, 3) @ grad,
        )
        return sum(layer.backward(join(g)) for layer, g in zip(inputs, grads, strict=True))


def split(x: np.ndarray) -> np.ndarray:
    """[images, tokens, channels] as [images, heads, tokens, channels of a head]."""
    return x.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)


def join(x: np.ndarray) -> np.ndarray:
    """The inverse of :func:`split`."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(len(x), TOKENS, WIDTH)


def softmax(x: np.ndarray) -> np.ndarray:
    """Softmax along the last dimension."""
    power = np.exp(x - x.max(axis=-1, keepdims=True))
    return power / power.sum(axis=-1, keepdims=True)


class FeedForward:
    """Two dense layers of every token with GELU between them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rows = [Rows.random(WIDTH, HIDDEN, rng), Rows.random(HIDDEN, WIDTH, rng)]

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = self.rows[0].forward(x)
        self.below = 0.5 * (1 + erf(self.x / math.sqrt(2)))
        return self.rows[1].forward(self.x * self.below)

    def backward(self, grad: np.ndarray) -> np.ndarray:
        density = np.exp(-0.5 * self.x**2) / math.sqrt(2 * math.pi)
        slope = self.below + self.x * density
        return self.rows[0].backward(self.rows[1].backward(grad) * slope)


class Transformer:
    """Patches, blocks of attention and feed-forward layers on normalised tokens with residual
    additions, and a dense layer of every token: the logits are the mean of all tokens' logits."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.embedding = Embedding.random(PATCH * PATCH, WIDTH, rng)
        self.parts = [kind(rng) for _ in range(BLOCKS) for kind in (Attention, FeedForward)]
        self.norms = [LayerNorm() for _ in range(len(self.parts) + 1)]
        self.head = Rows.random(WIDTH, 10, rng)

    def layers(self) -> list:
        """All that has weights."""
        rows = [layer for part in self.parts for layer in part.rows]
        return [self.embedding, *rows, *self.norms, self.head]

    def forward(self, x: np.ndarray) -> np.ndarray:
        x = self.embedding.forward(patches(x))
        for norm, part in zip(self.norms, self.parts, strict=False):
            x = x + part.forward(norm.forward(x))
        return self.head.forward(self.norms[-1].forward(x)).mean(axis=1)

    def backward(self, grad: np.ndarray) -> None:
        grad = np.repeat(grad[:, None] / TOKENS, TOKENS, axis=1)
        grad = self.norms[-1].backward(self.head.backward(grad))
        for norm, part in zip(self.norms[-2::-1], self.parts[::-1], strict=True):
            grad = grad + norm.backward(part.backward(grad))
        self.embedding.backward(grad)


def patches(x: np.ndarray) -> np.ndarray:
    """Images [N,1,8,8] as [N, tokens, pixels of a patch]."""
    cells = x.reshape(len(x), SIDE, PATCH, SIDE, PATCH).swapaxes(2, 3)
    return cells.reshape(len(x), TOKENS, PATCH * PATCH)


# ---- ONNX ----


class Export:
    """Nodes and constants of the network as a float model with a symbolic batch."""

    def __init__(self, network: Transformer) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])
        self.network(network)
        graph = helper.make_graph(
            self.nodes, "digits_transformer", [image], [logits], self.constants
        )
        self.model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", digits.OPSET)], ir_version=8,
            producer_name="vdla",
        )  # fmt: skip

    def network(self, network: Transformer) -> None:
        """Everything, from ``image`` to ``logits``."""
        cells = self.reshaped("cells", "image", -1, SIDE, PATCH, SIDE, PATCH)
        cells = self.node("Transpose", "cells.turned", cells, perm=[0, 1, 3, 2, 4])
        rows = self.reshaped("patches", cells, -1, TOKENS, PATCH * PATCH)
        x = self.dense("embedding", network.embedding, rows)
        for index, (norm, part) in enumerate(zip(network.norms, network.parts, strict=False)):
            is_attention = isinstance(part, Attention)
            name = f"{'attention' if is_attention else 'feed_forward'}{index // 2}"
            y = self.normed(f"{name}.norm", norm, x)
            y = self.attention(name, part, y) if is_attention else self.feed_forward(name, part, y)
            x = self.node("Add", f"{name}.residual", x, y)
        votes = self.dense("head", network.head, self.normed("head.norm", network.norms[-1], x))
        self.node("ReduceMean", "logits", votes, axes=[1], keepdims=0)

    def attention(self, name: str, part: Attention, x: str) -> str:
        """Heads are the second dimension of queries, keys and values."""
        heads = []
        for letter, layer in zip("qkv", part.rows, strict=False):
            y = self.dense(f"{name}.{letter}", layer, x)
            y = self.reshaped(f"{name}.{letter}.heads", y, -1, TOKENS, HEADS, WIDTH // HEADS)
            order = [0, 2, 3, 1] if letter == "k" else [0, 2, 1, 3]
            heads.append(self.node("Transpose", f"{name}.{letter}.turned", y, perm=order))
        q, k, v = heads
        share = self.node("Softmax", f"{name}.share", self.node("MatMul", f"{name}.scores", q, k))
        mixed = self.node("MatMul", f"{name}.mixed", share, v)
        joined = self.node("Transpose", f"{name}.joined", mixed, perm=[0, 2, 1, 3])
        rows = self.reshaped(f"{name}.rows", joined, -1, TOKENS, WIDTH)
        return self.dense(f"{name}.output", part.rows[-1], rows)

    def feed_forward(self, name: str, part: FeedForward, x: str) -> str:
        """GELU is written out, as its operator is younger than this operator set."""
        wide, narrow = part.rows
        x = self.dense(f"{name}.wide", wide, x)
        two, one, half = (
            self.constant(f"{name}.{label}", np.array(value, np.float32))
            for label, value in (("root", math.sqrt(2)), ("one", 1), ("half", 0.5))
        )
        y = self.node("Erf", f"{name}.erf", self.node("Div", f"{name}.divided", x, two))
        y = self.node("Mul", f"{name}.product", x, self.node("Add", f"{name}.raised", y, one))
        return self.dense(f"{name}.narrow", narrow, self.node("Mul", f"{name}.gelu", y, half))

    def normed(self, name: str, norm: LayerNorm, x: str) -> str:
        """LayerNormalization along the channels."""
        gain = self.constant(f"{name}.gain", norm.weight)
        bias = self.constant(f"{name}.bias", norm.bias)
        return self.node("LayerNormalization", name, x, gain, bias, axis=-1, epsilon=EPSILON)

    def dense(self, name: str, layer: digits.Linear, x: str) -> str:
        """A product of tokens by a weight, and its bias or positions, as PyTorch exports them."""
        weight = self.constant(f"{name}.weight", layer.weight.T)
        product = self.node("MatMul", f"{name}.product", x, weight)
        return self.node("Add", name, product, self.constant(f"{name}.bias", layer.bias))

    def reshaped(self, name: str, x: str, *shape: int) -> str:
        return self.node("Reshape", name, x, self.constant(f"{name}.shape", np.array(shape)))

    def node(self, kind: str, name: str, *operands: str, **attributes: object) -> str:
        """Append a node; its result has its name."""
        self.nodes.append(helper.make_node(kind, operands, [name], name, **attributes))
        return name

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name


def main() -> None:
    """Train, export, quantise, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "models")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    # The same split as that of digits_test.npz, whatever the seed.
    x_train, y_train, x_test, y_test = digits.load_data(np.random.default_rng(1))
    rng = np.random.default_rng(options.seed)
    network = Transformer(rng)
    digits.train(network, x_train, y_train, options.epochs, rng, DECAY)
    model = Export(network).model
    onnx.checker.check_model(model, full_check=True)
    for kind, made in (("float", model), ("int8", vdla.quantize(model, x_train).model)):
        path = options.out / f"digits_transformer_{kind}.onnx"
        onnx.save_model(made, str(path))
        print(f"{path.name}: accuracy {digits.accuracy(path, x_test, y_test):.2%}")


if __name__ == "__main__":
    main()
