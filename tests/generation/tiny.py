"""A tiny Llama with random weights as a GGUF file, and its forward pass in plain NumPy."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_WIDTH, FFN = 2, 32, 4, 2, 8, 64
EPSILON, BASE = 1e-5, 10000.0


def bytes_to_words() -> list[str]:
    """GPT-2's 256 words of one byte, in the order of bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def vocabulary() -> tuple[list[str], list[str]]:
    """Words and merges: all bytes, some pairs, and one control word."""
    pairs = [("t", "h"), ("th", "e"), ("i", "n"), ("Ġ", "the"), ("a", "n"), ("an", "d")]
    words = [*bytes_to_words(), *("".join(pair) for pair in pairs), "<|end|>"]
    return words, [" ".join(pair) for pair in pairs]


def random_weights(seed: int = 0, tied: bool = False) -> dict[str, np.ndarray]:
    """Weights by GGUF's names, in Hugging Face's order of rows."""
    random = np.random.default_rng(seed)
    words = len(vocabulary()[0])

    def dense(rows: int, columns: int) -> np.ndarray:
        scale = 1.5 / np.sqrt(columns)
        return (random.standard_normal((rows, columns)) * scale).astype(np.float32)

    def gain() -> np.ndarray:
        return random.uniform(0.5, 1.5, WIDTH).astype(np.float32)

    found = {"token_embd.weight": dense(words, WIDTH) * 4, "output_norm.weight": gain()}
    if not tied:
        found["output.weight"] = dense(words, WIDTH)
    for i in range(LAYERS):
        found |= {
            f"blk.{i}.attn_norm.weight": gain(),
            f"blk.{i}.attn_q.weight": dense(HEADS * HEAD_WIDTH, WIDTH),
            f"blk.{i}.attn_k.weight": dense(KV_HEADS * HEAD_WIDTH, WIDTH),
            f"blk.{i}.attn_v.weight": dense(KV_HEADS * HEAD_WIDTH, WIDTH),
            f"blk.{i}.attn_output.weight": dense(WIDTH, HEADS * HEAD_WIDTH),
            f"blk.{i}.ffn_norm.weight": gain(),
            f"blk.{i}.ffn_gate.weight": dense(FFN, WIDTH),
            f"blk.{i}.ffn_up.weight": dense(FFN, WIDTH),
            f"blk.{i}.ffn_down.weight": dense(WIDTH, FFN),
        }
    return found


def in_pairs(weight: np.ndarray) -> np.ndarray:
    """Rows of queries and keys as llama.cpp's converter puts them."""
    halves = weight.reshape(-1, 2, HEAD_WIDTH // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_llama(
    path: Path,
    weights: dict[str, np.ndarray],
    kind: str = "F32",
    architecture: str = "llama",
    pre: str = "gpt-2",
    model: str = "gpt2",
    fields: str = "all",
) -> Path:
    """A GGUF file; matrices are stored as ``kind``. ``fields`` may be "none"."""
    writer = gguf.GGUFWriter(path, architecture)
    if fields == "all":
        _add_fields(writer)
    words, merges = vocabulary()
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(words)
    writer.add_token_merges(merges)
    writer.add_token_types([1] * (len(words) - 1) + [3])
    writer.add_eos_token_id(len(words) - 1)
    for name, value in weights.items():
        turned = name.endswith(("attn_q.weight", "attn_k.weight"))
        stored = in_pairs(value) if turned else value
        if stored.ndim == 1 or kind == "F32":
            writer.add_tensor(name, np.ascontiguousarray(stored))
            continue
        type_ = gguf.GGMLQuantizationType[kind]
        data = gguf.quantize(stored, type_)
        writer.add_tensor(name, data, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_fields(writer: gguf.GGUFWriter) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(BASE)


def forward(weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Logits [tokens, words] of a whole sequence, without caches and blocks, in float64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    n = len(tokens)

    def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * gain

    def turned(x: np.ndarray) -> np.ndarray:
        half = HEAD_WIDTH // 2
        angles = np.outer(np.arange(n), BASE ** (-np.arange(half) * 2 / HEAD_WIDTH))
        turns = np.exp(1j * angles)[:, None, :]
        z = (x[..., :half] + 1j * x[..., half:]) * turns
        return np.concatenate([z.real, z.imag], -1)

    x = w["token_embd.weight"][tokens]
    for i in range(LAYERS):
        of = {name.split(".")[2]: v for name, v in w.items() if name.startswith(f"blk.{i}.")}
        y = norm(x, of["attn_norm"])
        q = turned((y @ of["attn_q"].T).reshape(n, HEADS, HEAD_WIDTH))
        k = turned((y @ of["attn_k"].T).reshape(n, KV_HEADS, HEAD_WIDTH))
        v = (y @ of["attn_v"].T).reshape(n, KV_HEADS, HEAD_WIDTH)
        mixed = np.zeros((n, HEADS, HEAD_WIDTH))
        for head in range(HEADS):
            other = head // (HEADS // KV_HEADS)
            for row in range(n):
                scores = k[: row + 1, other] @ q[row, head] / np.sqrt(HEAD_WIDTH)
                shares = np.exp(scores - scores.max())
                mixed[row, head] = shares / shares.sum() @ v[: row + 1, other]
        x = x + mixed.reshape(n, -1) @ of["attn_output"].T
        y = norm(x, of["ffn_norm"])
        gate = y @ of["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ of["ffn_up"].T)) @ of["ffn_down"].T
    head = w.get("output.weight", w["token_embd.weight"])
    return norm(x, w["output_norm.weight"]) @ head.T
