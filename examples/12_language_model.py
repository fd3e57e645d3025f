"""Train a small Llama on the text of this repository in plain NumPy, and write it as GGUF.

The text is the prose of README.md and docs/**/*.md, without tables and code, then the docstrings
of all Python files, in the order of paths. A file is a document; every tenth one is held out.

    python examples/12_language_model.py [--out DIR] [--steps N]

writes ``words.gguf`` as llama.cpp reads it, matrices in Q8_0, norms in float32. It needs the extra
``llm``. The committed file in ``examples/models`` was made so, from the text of its day.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Form
from scipy.special import expit
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

digits = importlib.import_module("01_digits")
transformer = importlib.import_module("08_digits_transformer")
softmax = transformer.softmax

ROOT = Path(__file__).resolve().parents[1]
#: A step learns from so many tokens: from short windows first, which take half the time, and
#: from windows of the whole context in the last steps.
TOKENS, SHORT, LONG_SHARE = 2048, 64, 0.2
RATE, WARM_STEPS, DECAY = 6e-3, 100, 0.1


@dataclass(frozen=True)
class Config:
    """Sizes as :class:`gguf.GGUFWriter` names them; widths are multiples of the accelerator's block
    of 16 and of Q8_0's 32. ``rope_dimension_count`` is the width of a head."""

    vocab_size: int = 512
    context_length: int = 256
    embedding_length: int = 96
    block_count: int = 4
    feed_forward_length: int = 160
    head_count: int = 3
    head_count_kv: int = 1
    rope_dimension_count: int = 32
    rope_freq_base: float = 10_000.0
    layer_norm_rms_eps: float = transformer.EPSILON


# ---- the text ----


def documents() -> list[str]:
    """The prose of each file that has some."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [path.read_text(encoding="utf-8") for path in pages]
    for path in sorted(ROOT.glob("[a-z]*/**/*.py")):
        parts = path.read_text(encoding="utf-8").split('"' * 3)
        pairs = zip(parts[::2], parts[1::2], strict=False)
        said = [inspect.cleandoc(text) for code, text in pairs if not code.split("\n")[-1].strip()]
        texts.append("\n\n".join(said))
    return [text for text in map(prose, texts) if text]


def prose(text: str) -> str:
    """Paragraphs of one line, without tables, code, targets of links and marks."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"^( {4}|\||>>>).*$|^[A-Z]\w+\n---+$", "", text, flags=re.M)
    text = re.sub(r" ?\(\[[^]]*\]\([^)]*\)\)", "", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r":\w+:`|[`*]|^#+ ", "", text, flags=re.M)
    text = re.sub(r"(?<!\n)\n(?!\n|- |\d+\. )", " ", text)
    return re.sub(r"\s*\n\s*", "\n", re.sub(r" +", " ", text)).strip()


def learned_words(texts: list[str], count: int) -> Tokenizer:
    """What begins a document, all bytes, and the most frequent pairs, in GPT-2's way."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    sizes = {"vocab_size": count, "special_tokens": ["<|endoftext|>"], "initial_alphabet": letters}
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(**sizes, show_progress=False))
    return tokenizer


# ---- layers with their gradients; x is [windows, tokens, channels] ----


class Rows(transformer.Rows):
    """A dense layer of every token, whose bias stays 0."""

    def backward(self, grad: np.ndarray) -> np.ndarray:
        back = super().backward(grad)
        self.grads[1] = np.zeros_like(self.bias)
        return back


class RMSNorm:
    """Every token divided by the root of its mean square; then a gain."""

    def __init__(self, width: int) -> None:
        self.weight, self.bias = np.ones(width, np.float32), np.zeros(0, np.float32)
        self.moments: list[np.ndarray] = []

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.inverse = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + transformer.EPSILON)
        self.normed = x * self.inverse
        return self.normed * self.weight

    def backward(self, grad: np.ndarray) -> np.ndarray:
        self.grads = [(grad * self.normed).sum(axis=(0, 1)), self.bias]
        grad = grad * self.weight
        along = (grad * self.normed).mean(axis=-1, keepdims=True)
        return (grad - self.normed * along) * self.inverse


class Attention:
    """Causal self-attention with rotary positions. Heads are [windows, heads of keys, heads of
    queries for one of keys, tokens, channels]."""

    def __init__(self, config: Config, rng: np.random.Generator) -> None:
        self.kv_heads, self.head_width = config.head_count_kv, config.rope_dimension_count
        width, kv_width = config.embedding_length, self.kv_heads * self.head_width
        self.rows = [Rows.random(width, each, rng) for each in (width, kv_width, kv_width, width)]
        self.rows[3].weight /= config.block_count
        rates = config.rope_freq_base ** (-np.arange(0, 1, 2 / self.head_width))
        angles = np.outer(np.arange(config.context_length), rates)
        self.turns = np.exp(1j * angles).astype(np.complex64)
        self.later = np.triu(np.full((config.context_length,) * 2, -np.inf, np.float32), 1)

    def forward(self, x: np.ndarray) -> np.ndarray:
        *inputs, output = self.rows
        q, k, self.v = (self.split(layer.forward(x)) for layer in inputs)
        self.q, self.k = turned(q, self.turns), turned(k, self.turns)
        scores = self.q @ self.k.swapaxes(3, 4) * self.head_width**-0.5
        self.share = softmax(scores + self.later[: x.shape[1], : x.shape[1]])
        return output.forward(join(self.share @ self.v))

    def backward(self, grad: np.ndarray) -> np.ndarray:
        *inputs, output = self.rows
        grad = self.split(output.backward(grad))
        share = grad @ self.v.swapaxes(3, 4)
        share -= (share * self.share).sum(axis=-1, keepdims=True)
        scores, back = self.share * share * self.head_width**-0.5, self.turns.conj()
        q = turned(scores @ self.k, back)
        k = turned(scores.swapaxes(3, 4) @ self.q, back).sum(axis=2, keepdims=True)
        v = (self.share.swapaxes(3, 4) @ grad).sum(axis=2, keepdims=True)
        return sum(layer.backward(join(x)) for layer, x in zip(inputs, (q, k, v), strict=True))

    def split(self, x: np.ndarray) -> np.ndarray:
        """The heads of x [windows, tokens, channels]."""
        heads = x.reshape(*x.shape[:2], self.kv_heads, -1, self.head_width)
        return heads.transpose(0, 2, 3, 1, 4)


def join(x: np.ndarray) -> np.ndarray:
    """The inverse of :meth:`Attention.split`."""
    return x.transpose(0, 3, 1, 2, 4).reshape(len(x), x.shape[3], -1)


def turned(x: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Neighbours as complex numbers, turned by their positions; other files turn halves."""
    pairs = (x[..., ::2] + 1j * x[..., 1::2]) * turns[: x.shape[3]]
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)


class FeedForward:
    """SwiGLU: a product of two dense layers, one of them through SiLU; then a third."""

    def __init__(self, config: Config, rng: np.random.Generator) -> None:
        width, hidden = config.embedding_length, config.feed_forward_length
        sizes = ((width, hidden), (width, hidden), (hidden, width))
        self.rows = [Rows.random(inputs, outputs, rng) for inputs, outputs in sizes]
        self.rows[2].weight /= config.block_count

    def forward(self, x: np.ndarray) -> np.ndarray:
        gate, up, down = self.rows
        self.x, self.factor = gate.forward(x), up.forward(x)
        self.below = expit(self.x)
        return down.forward(self.x * self.below * self.factor)

    def backward(self, grad: np.ndarray) -> np.ndarray:
        gate, up, down = self.rows
        grad = down.backward(grad)
        slope = self.below * (1 + self.x * (1 - self.below))
        return up.backward(grad * self.x * self.below) + gate.backward(grad * self.factor * slope)


class Llama:
    """Embedded tokens, residual layers of normalised tokens, and the embedding as the head."""

    def __init__(self, config: Config, rng: np.random.Generator) -> None:
        self.config, width = config, config.embedding_length
        self.embedding = Rows.random(width, config.vocab_size, rng)
        self.embedding.weight /= 5
        kinds = (Attention, FeedForward)
        self.parts = [kind(config, rng) for _ in range(config.block_count) for kind in kinds]
        self.norms = [RMSNorm(width) for _ in range(len(self.parts) + 1)]

    def layers(self) -> dict[str, Rows | RMSNorm]:
        """All that has weights, by its name in a GGUF file."""
        named = {"token_embd": self.embedding, "output_norm": self.norms[-1]}
        kinds = (("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
                 ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"))  # fmt: skip
        for index, (norm, part) in enumerate(zip(self.norms, self.parts, strict=False)):
            for name, layer in zip(kinds[index % 2], (norm, *part.rows), strict=True):
                named[f"blk.{index // 2}.{name}"] = layer
        return named

    def forward(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [windows, length, words] of the tokens that follow tokens [windows, length]."""
        self.tokens = tokens
        x = self.embedding.weight[tokens]
        for norm, part in zip(self.norms, self.parts, strict=False):
            x = x + part.forward(norm.forward(x))
        return self.embedding.forward(self.norms[-1].forward(x))

    def backward(self, grad: np.ndarray) -> None:
        grad = self.norms[-1].backward(self.embedding.backward(grad))
        for norm, part in zip(self.norms[-2::-1], self.parts[::-1], strict=True):
            grad = grad + norm.backward(part.backward(grad))
        np.add.at(self.embedding.grads[0], self.tokens, grad)


# ---- training ----


def loss_and_slope(model: Llama, windows: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean cross entropy in nats of windows [N, length + 1], and its gradient by the logits."""
    share = softmax(model.forward(windows[:, :-1]))
    right = (*np.indices(share.shape[:2]), windows[:, 1:])
    loss = -float(np.log(share[right] + 1e-12).mean())
    share[right] -= 1
    return loss, share / windows[:, 1:].size


def held_out_loss(model: Llama, tokens: np.ndarray, length: int) -> float:
    """Mean cross entropy of windows of ``length``, side by side in tokens [N]."""
    batches = (len(tokens) - 1) // TOKENS
    starts = np.arange(0, batches * TOKENS, length).reshape(batches, -1, 1)
    windows = tokens[starts + np.arange(length + 1)]
    return float(np.mean([loss_and_slope(model, batch)[0] for batch in windows]))


def train(model: Llama, learned: np.ndarray, held: np.ndarray, steps: int) -> None:
    """Windows from anywhere in the text; a cosine learning rate."""
    rng, losses = np.random.default_rng(1), []
    for count in range(1, steps + 1):
        length = model.config.context_length if count > (1 - LONG_SHARE) * steps else SHORT
        starts = rng.integers(0, len(learned) - length, (TOKENS // length, 1))
        loss, slope = loss_and_slope(model, learned[starts + np.arange(length + 1)])
        losses.append(loss)
        model.backward(slope)
        rate = RATE * min(1, count / WARM_STEPS) * (1 + np.cos(np.pi * count / steps)) / 2
        digits.step(list(model.layers().values()), rate, count, DECAY)
        if count % 250 == 0:
            loss, held_out = np.mean(losses[-250:]), held_out_loss(model, held, length)
            print(f"step {count}: loss {loss:.3f}, held out {held_out:.3f}", flush=True)


# ---- GGUF ----


def save(path: Path, model: Llama, tokenizer: Tokenizer) -> None:
    """The model and its words as a file of the architecture ``llama``."""
    file = gguf.GGUFWriter(path, "llama")
    file.add_name(path.stem)
    file.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    file.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for field, value in asdict(model.config).items():
        getattr(file, f"add_{field}")(value)
    words = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(words)
    file.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(words) - 1))
    file.add_token_merges([" ".join(pair) for pair in merges])
    file.add_bos_token_id(0)
    file.add_eos_token_id(0)
    file.add_add_bos_token(False)
    for name, layer in model.layers().items():
        form = Form.Q8_0 if layer.weight.ndim == 2 else Form.F32
        file.add_tensor(f"{name}.weight", gguf.quantize(layer.weight, form), raw_dtype=form)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def restore(path: Path, model: Llama) -> None:
    """Give the model the weights of a file of :func:`save`, as float32."""
    layers = model.layers()
    for each in gguf.GGUFReader(path).tensors:
        name = each.name.removesuffix(".weight")
        layers[name].weight = gguf.dequantize(each.data, each.tensor_type)


def main() -> None:
    """Learn words, train, write, read back, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "models")
    parser.add_argument("--steps", type=int, default=3000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    texts = documents()
    tokenizer = learned_words(texts, Config.vocab_size)
    tokens = [[0, *tokenizer.encode(text).ids] for text in texts]
    held = np.concatenate(tokens[9::10])
    learned = np.concatenate([each for index, each in enumerate(tokens) if index % 10 != 9])
    print(f"{len(learned):,} tokens to learn from, {len(held):,} held out")
    model = Llama(Config(), np.random.default_rng(1))
    train(model, learned, held, options.steps)
    path = options.out / "words.gguf"
    before = np.exp(held_out_loss(model, held, Config.context_length))
    save(path, model, tokenizer)
    restore(path, model)
    after = np.exp(held_out_loss(model, held, Config.context_length))
    print(f"{path.name}: {path.stat().st_size:,} bytes", end=", ")
    print(f"perplexity of a token {after:.3f}, before Q8_0 {before:.3f}")


if __name__ == "__main__":
    main()
