"""GGUF files of the llama architecture: their shape, weights and tokenizer, as NumPy and Python."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..isa.errors import VdlaError

#: Storage types that are read.
TYPES = ("F32", "F16", "Q8_0", "Q4_0", "Q4_1")
#: Weights of a layer, and of the whole.
LAYER = (
    *("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
    *("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"),
)
EMBEDDING, LAST_NORM, HEAD = "token_embd.weight", "output_norm.weight", "output.weight"


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and numbers of a decoder of the llama architecture.

    Attributes
    ----------
    heads, kv_heads : of queries; of keys and values, each for heads / kv_heads of queries
    ffn : channels between the products of the second half of a layer
    words : tokens that there are
    context : the most positions that it was trained for
    epsilon : what RMS normalisation adds to the mean of squares
    rope_base : of the angles of rotary embedding
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    words: int
    context: int
    epsilon: float
    rope_base: float


@dataclass(frozen=True, eq=False)
class LlamaFile:
    """What a file has.

    Attributes
    ----------
    stored : tensors as the package has them, by GGUF's names
    fields : the other fields by name, such as those of the tokenizer
    """

    config: LlamaConfig
    stored: dict[str, Any]
    fields: dict[str, Any]

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """float32 by GGUF's names; products are [outputs, inputs], and rows of queries and keys are
        as Hugging Face's Llama has them: rotary embedding turns the halves of a head. Without
        ``output.weight``, the embedding is the head."""
        import gguf

        found = {}
        for name, shape in _shapes(self.config).items():
            if name in self.stored:
                tensor = self.stored[name]
                data = gguf.dequantize(tensor.data, tensor.tensor_type)
                found[name] = np.asarray(data, np.float32).reshape(shape)
        for layer in range(self.config.layers):
            for kind in ("attn_q", "attn_k"):
                name = weight_name(layer, kind)
                found[name] = _in_halves(found[name], self.config.head_width)
        return found


def weight_name(layer: int, kind: str) -> str:
    """The name of a layer's weight, one of ``LAYER``."""
    return f"blk.{layer}.{kind}.weight"


def read_llama(path: str | Path) -> LlamaFile:
    """Read a GGUF file.

    Raises
    ------
    VdlaError
        For another file, architecture or storage type, and for weights that are missing, unknown or
        of another shape.
    """
    import gguf

    try:
        reader = gguf.GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except OSError:
        raise
    except Exception as error:  # whatever damaged bytes make of the package
        raise VdlaError(f"{path}: expected a GGUF file: {error}") from None
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise VdlaError(f"{path}: expected architecture 'llama', got {architecture!r}")
    stored = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(str(path), fields, stored)
    expected = _shapes(config)
    for name, shape in expected.items():
        tensor = stored.get(name)
        if tensor is None:
            if name == HEAD:
                continue
            raise VdlaError(f"{path}: expected a tensor {name!r}, got none")
        kind = tensor.tensor_type.name
        if kind not in TYPES:
            raise VdlaError(f"{path}: tensor {name!r}: expected {', '.join(TYPES)}, got {kind}")
        found = tuple(map(int, reversed(tensor.shape)))
        if found != shape:
            raise VdlaError(f"{path}: tensor {name!r}: expected {[*shape]}, got {[*found]}")
    if others := {*stored} - {*expected}:
        raise VdlaError(f"{path}: tensor {min(others)!r} is not of a plain Llama")
    return LlamaFile(config, stored, fields)


def _config(path: str, fields: dict[str, Any], stored: dict[str, Any]) -> LlamaConfig:
    def field(name: str, default: Any = None) -> Any:
        value = fields.get(f"llama.{name}", default)
        if value is None:
            raise VdlaError(f"{path}: expected a field 'llama.{name}', got none")
        return value

    scaling = field("rope.scaling.type", "none")
    if scaling != "none":
        raise VdlaError(f"{path}: expected rotary embedding without scaling, got {scaling!r}")
    width, heads = int(field("embedding_length")), int(field("attention.head_count"))
    kv_heads = int(field("attention.head_count_kv", heads))
    head_width = int(field("attention.key_length", width // max(1, heads)))
    whole = heads > 0 < kv_heads and heads % kv_heads == 0 and head_width % 2 == 0
    if not whole or int(field("rope.dimension_count", head_width)) != head_width:
        raise VdlaError(
            f"{path}: expected heads of an even width, all of it turned, for whole groups, got"
            f" {heads} and {kv_heads} of {head_width}"
        )
    embedding = stored.get(EMBEDDING)
    words = int(embedding.shape[1]) if embedding is not None and len(embedding.shape) == 2 else 0
    return LlamaConfig(
        layers=int(field("block_count")),
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        ffn=int(field("feed_forward_length")),
        words=words,
        context=int(field("context_length")),
        epsilon=float(field("attention.layer_norm_rms_epsilon")),
        rope_base=float(field("rope.freq_base", 10000.0)),
    )


def _shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """The weights that there are, and their shapes."""
    c = config
    queries, keys = c.heads * c.head_width, c.kv_heads * c.head_width
    layer = {
        "attn_norm": (c.width,), "attn_q": (queries, c.width), "attn_k": (keys, c.width),
        "attn_v": (keys, c.width), "attn_output": (c.width, queries), "ffn_norm": (c.width,),
        "ffn_gate": (c.ffn, c.width), "ffn_up": (c.ffn, c.width), "ffn_down": (c.width, c.ffn),
    }  # fmt: skip
    found = {weight_name(i, kind): layer[kind] for i in range(c.layers) for kind in layer}
    ends = {EMBEDDING: (c.words, c.width), LAST_NORM: (c.width,), HEAD: (c.words, c.width)}
    return ends | found


def _in_halves(weight: np.ndarray, head_width: int) -> np.ndarray:
    """Rows of queries or keys, of which rotary embedding turns neighbours in a GGUF file, in the
    order in which it turns halves."""
    pairs = weight.reshape(-1, head_width // 2, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)
