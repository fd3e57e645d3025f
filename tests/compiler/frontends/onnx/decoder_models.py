"""A Llama of two layers with random weights, as ONNX Runtime GenAI's builder writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_WIDTH, FFN, WORDS = 2, 32, 4, 2, 16, 64, 64
BASE, EPSILON, CONTEXT = 10000.0, 1e-6, 48
#: Tokens of a block of a prompt.
ROWS = 8
#: As numbers of Hugging Face's ``LlamaConfig``.
CONFIG = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": FFN,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_WIDTH, "max_position_embeddings": 128, "rms_norm_eps": EPSILON,
}  # fmt: skip
STATES = {
    f"past_key_values.{i}.{kind}": f"present.{i}.{kind}"
    for i in range(LAYERS) for kind in ("key", "value")
}  # fmt: skip


def random_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Weights [outputs, inputs] by Hugging Face's names."""
    random = np.random.default_rng(seed)

    def dense(rows: int, columns: int, scale: float = 1.5) -> np.ndarray:
        values = random.standard_normal((rows, columns)) * scale / np.sqrt(columns)
        return values.astype(np.float32)

    def gain() -> np.ndarray:
        return random.uniform(0.5, 1.5, WIDTH).astype(np.float32)

    found = {
        "model.embed_tokens.weight": dense(WORDS, WIDTH, 6), "model.norm.weight": gain(),
        "lm_head.weight": dense(WORDS, WIDTH),
    }  # fmt: skip
    sizes = {"q": (HEADS, WIDTH), "k": (KV_HEADS, WIDTH), "v": (KV_HEADS, WIDTH)}
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        for name, (heads, inputs) in sizes.items():
            found[f"{at}.self_attn.{name}_proj.weight"] = dense(heads * HEAD_WIDTH, inputs)
        found |= {
            f"{at}.self_attn.o_proj.weight": dense(WIDTH, HEADS * HEAD_WIDTH),
            f"{at}.mlp.gate_proj.weight": dense(FFN, WIDTH),
            f"{at}.mlp.up_proj.weight": dense(FFN, WIDTH),
            f"{at}.mlp.down_proj.weight": dense(WIDTH, FFN),
            f"{at}.input_layernorm.weight": gain(),
            f"{at}.post_attention_layernorm.weight": gain(),
        }
    return found


def in_groups(weight: np.ndarray, size: int = 16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A matrix [outputs, inputs] in integers of 4 bits: bytes, scales, and the matrix that they
    are."""
    outputs, inputs = weight.shape
    groups = weight.reshape(outputs, -1, size)
    scales = (np.abs(groups).max(axis=-1) / 7).astype(np.float32)
    steps = np.clip(np.rint(groups / scales[..., None]), -8, 7).astype(np.int8)
    nibbles = (steps + 8).astype(np.uint8)
    stored = nibbles[..., ::2] | nibbles[..., 1::2] << 4
    real = steps.astype(np.float32) * scales[..., None]
    return stored, scales, real.reshape(outputs, inputs)


def genai_model(weights: dict[str, np.ndarray], bits: int = 32, opset: int = 21) -> onnx.ModelProto:
    """The decoder in operators of ``com.microsoft``; with 4 bits its products are MatMulNBits."""
    return _Builder(weights, bits).model(opset)


class _Builder:
    def __init__(self, weights: dict[str, np.ndarray], bits: int):
        self.weights, self.bits = weights, bits
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def add(
        self, kind: str, name: str, *operands: str, outputs: Sequence[str] = (), own: bool = True,
        **attributes: Any,
    ) -> str:  # fmt: skip
        made = [name, *outputs]
        domain = "com.microsoft" if own else ""
        self.nodes.append(helper.make_node(kind, operands, made, name, domain=domain, **attributes))
        return name

    def constant(self, name: str, value: Any) -> str:
        self.constants[name] = np.asarray(value)
        return name

    def product(self, name: str, x: str) -> str:
        weight = self.weights[f"{name}.weight"]
        if self.bits == 32:
            matrix = self.constant(f"{name}.weight", np.ascontiguousarray(weight.T))
            return self.add("MatMul", name, x, matrix, own=False)
        stored, scales, _ = in_groups(weight)
        operands = (
            self.constant(f"{name}.weight_Q4", stored), self.constant(f"{name}.scales", scales)
        )  # fmt: skip
        outputs, inputs = weight.shape
        sizes = {"K": inputs, "N": outputs, "bits": 4, "block_size": 16, "accuracy_level": 1}
        return self.add("MatMulNBits", name, x, *operands, **sizes)

    def model(self, opset: int) -> onnx.ModelProto:
        w = self.weights
        speeds = BASE ** (-np.arange(HEAD_WIDTH // 2) * 2 / HEAD_WIDTH)
        angles = (np.arange(128)[:, None] * speeds).astype(np.float32)
        turns = [self.constant(f"{f.__name__}_cache", f(angles)) for f in (np.cos, np.sin)]
        count = self.add("ReduceSum", "count", "attention_mask", self.constant("one", [1]),
                         own=False, keepdims=0)  # fmt: skip
        last = self.add("Sub", "last", count, "one", own=False)
        filled = self.add("Cast", "seqlens_k", last, own=False, to=TensorProto.INT32)
        shape = self.add("Shape", "mask shape", "attention_mask", own=False)
        total = self.add("Gather", "total", shape, self.constant("axis", 1), own=False, axis=0)
        total = self.add("Cast", "total_sequence_length", total, own=False, to=TensorProto.INT32)
        table = self.constant("model.embed_tokens.weight", w["model.embed_tokens.weight"])
        x = self.add("Gather", "embedding", table, "input_ids", own=False)
        scale = self.constant("norm 0", w["model.layers.0.input_layernorm.weight"])
        epsilon = {"epsilon": EPSILON}
        normal = self.add("SimplifiedLayerNormalization", "normal 0", x, scale, own=False, axis=-1,
                          stash_type=1, **epsilon)  # fmt: skip
        for i in range(LAYERS):
            at = f"model.layers.{i}"
            q, k, v = (self.product(f"{at}.self_attn.{n}_proj", normal) for n in "qkv")
            caches = [name for name in STATES if f".{i}." in name]
            mixed = self.add(
                "GroupQueryAttention", f"{at}.attention", q, k, v, *caches, filled, total, *turns,
                outputs=[STATES[name] for name in caches], num_heads=HEADS, kv_num_heads=KV_HEADS,
                do_rotary=1, rotary_interleaved=0, scale=HEAD_WIDTH**-0.5, local_window_size=-1,
                softcap=0.0,
            )  # fmt: skip
            made = self.product(f"{at}.self_attn.o_proj", mixed)
            x, normal = self.skip(x, made, f"{at}.post_attention_layernorm", epsilon)
            gate, up = (self.product(f"{at}.mlp.{n}_proj", normal) for n in ("gate", "up"))
            share = self.add("Sigmoid", f"{at}.sigmoid", gate, own=False)
            gate = self.add("Mul", f"{at}.silu", gate, share, own=False)
            both = self.add("Mul", f"{at}.gated", gate, up, own=False)
            made = self.product(f"{at}.mlp.down_proj", both)
            after = f"model.layers.{i + 1}.input_layernorm" if i + 1 < LAYERS else "model.norm"
            x, normal = self.skip(x, made, after, epsilon)
        logits = self.product("lm_head", normal)
        self.nodes[-1].output[0] = "logits"
        assert logits
        places = ["batch_size", KV_HEADS, "past_sequence_length", HEAD_WIDTH]
        inputs = {
            "input_ids": (TensorProto.INT64, ["batch_size", "sequence_length"]),
            "attention_mask": (TensorProto.INT64, ["batch_size", "total_sequence_length"]),
        } | dict.fromkeys(STATES, (TensorProto.FLOAT, places))
        places = [*places[:2], "present_sequence_length", HEAD_WIDTH]
        outputs = {"logits": (TensorProto.FLOAT, ["batch_size", "sequence_length", WORDS])}
        outputs |= dict.fromkeys(STATES.values(), (TensorProto.FLOAT, places))
        graph = helper.make_graph(
            self.nodes, "llama",
            [helper.make_tensor_value_info(n, *kind) for n, kind in inputs.items()],
            [helper.make_tensor_value_info(n, *kind) for n, kind in outputs.items()],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )  # fmt: skip
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def skip(self, x: str, made: str, norm: str, epsilon: dict[str, float]) -> tuple[str, str]:
        """A sum, and the sum normalised."""
        scale = self.constant(f"{norm}.weight", self.weights[f"{norm}.weight"])
        total = f"{norm}.sum"
        normal = self.add(
            "SkipSimplifiedLayerNormalization", f"{norm}.y", x, made, scale,
            outputs=["", "", total], **epsilon,
        )  # fmt: skip
        return total, normal
