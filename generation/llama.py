"""One step of a Llama decoder as an ONNX model: a block of tokens, behind those in its caches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..compiler.frontends.onnx.decoders import HIDDEN
from ..isa.errors import VdlaError
from .gguf import EMBEDDING, HEAD, LAST_NORM, LAYER, LlamaConfig, weight_name

#: The first operator set with TensorScatter.
OPSET = 24
#: Cosines and sines.
Turns = tuple[str, str]


def cache_names(config: LlamaConfig) -> dict[str, str]:
    """The inputs that are caches, and the outputs that they become."""
    kinds = [(layer, kind) for layer in range(config.layers) for kind in ("key", "value")]
    return {f"past_key_values.{i}.{kind}": f"present.{i}.{kind}" for i, kind in kinds}


def gated_name(layer: int) -> str:
    """The product that ``ffn_down`` reads."""
    return f"layer {layer} gated"


def stream_names(config: LlamaConfig) -> list[str]:
    """The residual stream: the embedding, and the sums that each layer makes of it."""
    sums = [f"layer {i} {sum}" for i in range(config.layers) for sum in ("attended", "out")]
    return ["embedding", *sums]


def small_products(config: LlamaConfig) -> list[str]:
    """The weights that may have 4 bits: of all products but the head and ``ffn_down``, where 4 bits
    cost a quarter of what they cost altogether."""
    kinds = [kind for kind in LAYER if not kind.endswith("norm") and kind != "ffn_down"]
    return [weight_name(layer, kind) for layer in range(config.layers) for kind in kinds]


def product_name(weight: str) -> str:
    """The node of a product by a weight."""
    return f"{weight} y"


def step_model(
    config: LlamaConfig, weights: Mapping[str, np.ndarray], rows: int, context: int
) -> onnx.ModelProto:
    """The step of ``rows`` tokens that follow each other.

    Inputs are ``tokens`` int64 [1, rows], ``position`` int64 [1], which is how many tokens the
    caches have, at most context - rows, and ``past_key_values.N.key`` and ``.value`` float32
    [1, kv_heads, context, head_width]. Outputs are ``logits`` float32 [1, rows, words], and the
    caches with this block at ``position``: ``present.N.key`` and ``.value``. A block of fewer
    tokens is filled up with any others; it comes again at the same position when it has more.

    Raises
    ------
    VdlaError
        Unless context is whole blocks.
    """
    check_context(rows, context)
    return _Step(config, weights, rows, context).model()


def check_context(rows: int, context: int) -> None:
    """Raise VdlaError unless a context is whole blocks."""
    if rows < 1 or context < rows or context % rows:
        raise VdlaError(f"context: expected whole blocks of {rows} tokens, got {context}")


class _Step:
    """The model while it is made."""

    def __init__(
        self, config: LlamaConfig, weights: Mapping[str, np.ndarray], rows: int, context: int
    ):
        self.config, self.weights, self.rows, self.context = config, weights, rows, context
        #: Heads of queries whose rows are those of one matrix: of one token, all that read one head
        #: of keys. A block has enough rows without.
        self.together = config.heads // config.kv_heads if rows == 1 else 1
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def model(self) -> onnx.ModelProto:
        c = self.config
        turns = self.turns("", 1), self.turns("queries' ", self.together)
        mask = self.mask()
        table = self.weights[EMBEDDING]
        x = self.add("Gather", "embedding", self.constant(EMBEDDING, table), "tokens")
        for layer in range(c.layers):
            x = self.attention(layer, x, turns, mask)
            x = self.ffn(layer, x)
        x = self.norm(x, LAST_NORM)
        head = self.constant("head", np.ascontiguousarray(self.weights.get(HEAD, table).T))
        self.add("MatMul", "logits", x, head)
        cache = (TensorProto.FLOAT, (1, c.kv_heads, self.context, c.head_width))
        inputs = {
            "tokens": (TensorProto.INT64, (1, self.rows)),
            "position": (TensorProto.INT64, (1,)),
        }
        outputs = {"logits": (TensorProto.FLOAT, (1, self.rows, c.words))}
        states = cache_names(c)
        inputs |= dict.fromkeys(states, cache)
        outputs |= dict.fromkeys(states.values(), cache)
        graph = helper.make_graph(
            self.nodes, "llama",
            [helper.make_tensor_value_info(n, *kind) for n, kind in inputs.items()],
            [helper.make_tensor_value_info(n, *kind) for n, kind in outputs.items()],
            self.constants,
        )  # fmt: skip
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=11
        )

    def turns(self, of: str, heads: int) -> tuple[str, str]:
        """Cosines and sines of rotary embedding [1, heads * rows, head_width / 2]."""
        half = self.config.head_width // 2
        speeds = self.config.rope_base ** (-np.arange(half) / half)
        angles = np.arange(self.context)[:, None] * speeds
        offsets = self.constant(f"{of}offsets", np.tile(np.arange(self.rows), (1, heads)))
        places = self.add("Add", f"{of}places", "position", offsets)
        cos, sin = (
            self.add("Gather", f"{of}{name}", self.constant(f"{of}{name}.table", table), places)
            for name, table in (
                ("cos", np.cos(angles).astype(np.float32)),
                ("sin", np.sin(angles).astype(np.float32)),
            )
        )
        return cos, sin

    def mask(self) -> str:
        """What is added to scores [1, 1, rows, context + rows]: a token sees all tokens before the
        block, and of the block those up to itself."""
        columns = np.arange(self.context + self.rows)
        row = np.arange(self.rows)[:, None]
        own = (columns >= self.context) & (columns - self.context <= row)
        columns = np.where(columns < self.context, columns, self.context)
        before = self.add("Less", "is before", self.constant("columns", columns), "position")
        seen = self.add("Or", "is seen", before, self.constant("own", own[None, None]))
        numbers = (self.constant(n, np.float32(v)) for n, v in (("seen", 0), ("hidden", HIDDEN)))
        return self.add("Where", "mask", seen, *numbers)

    def attention(self, layer: int, x: str, turns: tuple[Turns, Turns], mask: str) -> str:
        c = self.config
        matrices = (1, c.heads // self.together, self.together * self.rows, c.head_width)
        at = f"layer {layer}"
        normal = self.norm(x, weight_name(layer, "attn_norm"))
        # The scores' factor is in the weights of the queries.
        q = self.product(normal, weight_name(layer, "attn_q"), 1 / math.sqrt(c.head_width))
        k, v = (self.product(normal, weight_name(layer, f"attn_{n}")) for n in "kv")
        q = self.reshape(f"{at} queries", self.heads(q, c.heads), matrices)
        k, q = (
            self.add("RotaryEmbedding", f"{at} {name} turned", y, *of)
            for name, y, of in zip(
                ("keys", "queries"), (self.heads(k, c.kv_heads), q), turns, strict=True
            )
        )
        all_keys = []
        for kind, new in (("key", k), ("value", self.heads(v, c.kv_heads))):
            past, present = f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}"
            self.add("TensorScatter", present, past, new, "position", axis=-2)
            joined = self.add("Concat", f"{at} {kind}s", past, new, axis=-2)
            all_keys.append(self.for_queries(joined, f"{at} {kind}s"))
        keys, values = all_keys
        turned = self.add("Transpose", f"{at} keys of queries", keys, perm=[0, 1, 3, 2])
        scores = self.add("MatMul", f"{at} scores", q, turned)
        scores = self.add("Add", f"{at} scores seen", scores, mask)
        shares = self.add("Softmax", f"{at} shares", scores, axis=-1)
        mixed = self.add("MatMul", f"{at} mixed", shares, values)
        heads = (1, c.heads, self.rows, c.head_width)
        mixed = self.reshape(f"{at} mixed by head", mixed, heads)
        mixed = self.add("Transpose", f"{at} tokens", mixed, perm=[0, 2, 1, 3])
        mixed = self.reshape(f"{at} joined", mixed, (1, self.rows, c.heads * c.head_width))
        made = self.product(mixed, weight_name(layer, "attn_output"))
        return self.add("Add", f"{at} attended", x, made)

    def for_queries(self, keys: str, name: str) -> str:
        """Keys or values once for each matrix of queries: several of these share one."""
        c, places = self.config, self.context + self.rows
        if c.heads == c.kv_heads:
            return keys
        matrices = c.heads // self.together
        each = (1, c.kv_heads, matrices // c.kv_heads, places, c.head_width)
        one = self.reshape(f"{name} by group", keys, (*each[:2], 1, *each[3:]))
        shape = self.constant(f"{name} shape", np.array(each))
        repeated = self.add("Expand", f"{name} of group", one, shape)
        return self.reshape(f"{name} by head", repeated, (1, matrices, places, c.head_width))

    def ffn(self, layer: int, x: str) -> str:
        at = f"layer {layer}"
        normal = self.norm(x, weight_name(layer, "ffn_norm"))
        gate, up = (self.product(normal, weight_name(layer, f"ffn_{n}")) for n in ("gate", "up"))
        gate = self.add("Mul", f"{at} silu", gate, self.add("Sigmoid", f"{at} sigmoid", gate))
        both = self.add("Mul", gated_name(layer), gate, up)
        down = self.product(both, weight_name(layer, "ffn_down"))
        return self.add("Add", f"{at} out", x, down)

    def norm(self, x: str, name: str) -> str:
        scale = self.constant(name, self.weights[name])
        epsilon = self.config.epsilon
        return self.add("RMSNormalization", f"{name} y", x, scale, axis=-1, epsilon=epsilon)

    def product(self, x: str, name: str, factor: float = 1.0) -> str:
        weight = np.ascontiguousarray(self.weights[name].T * np.float32(factor))
        return self.add("MatMul", product_name(name), x, self.constant(name, weight))

    def heads(self, x: str, count: int) -> str:
        """[1, rows, channels] as [1, count, rows, head_width]."""
        shaped = self.reshape(f"{x} shaped", x, (1, self.rows, count, self.config.head_width))
        return self.add("Transpose", f"{x} of heads", shaped, perm=[0, 2, 1, 3])

    def reshape(self, name: str, x: str, shape: Sequence[int]) -> str:
        return self.add("Reshape", name, x, self.constant(f"{name} shape", np.array(shape)))

    def add(self, kind: str, name: str, *operands: str, **attributes: Any) -> str:
        """A node whose result has its name."""
        self.nodes.append(helper.make_node(kind, operands, [name], name, **attributes))
        return name

    def constant(self, name: str, value: np.ndarray | np.generic) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name
