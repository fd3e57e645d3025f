"""Tokens a second of a decoder on the CPU, in int8 and with weights of 4 bits, beside llama.cpp's
with the same file, whose weights it requantises to as many bits.

Both write one token behind the same text, in turns, on one thread; times are that thread's time on
the processor, as in :mod:`.cpu`. Before, both read the text token by token, and tell after each
which one they think comes next.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..generation import ROWS
from ..generation.calibration import TEXT
from ..generation.llama import check_context
from ..generation.loop import LanguageModel
from ..isa.errors import VdlaError
from .cpu import ROUNDS, Rival, alternate
from .measure import Progress, told

#: llama.cpp's format for weights of so many bits, and its number of it. Groups of 32 weights have a
#: scale in float16.
FORMATS = {8: ("Q8_0", 7), 4: ("Q4_0", 2)}
#: What brings llama.cpp.
PACKAGE = "llama-cpp-python"


def peer_text() -> str:
    """Says how llama.cpp is compared with, where it is not installed; else nothing."""
    if find_spec("llama_cpp") is not None:
        return ""
    return f"llama.cpp is not installed: pip install {PACKAGE} puts its times beside these"


def token_rows(
    path: str | Path,
    contexts: Sequence[int],
    weight_bits: Sequence[int],
    rounds: int = ROUNDS,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """One row for each number of bits and context. The token that is timed stands in the middle of
    the context: what is written until that is full takes as long on average. Without llama.cpp, its
    columns are None.

    Raises
    ------
    VdlaError
        For a file or number that does not fit, as :meth:`LanguageModel.load`, and other bits.
    """
    for bits in weight_bits:
        if bits not in FORMATS:
            raise VdlaError(f"weight bits: expected 4 or 8, got {bits!r}")
    jobs = [(f"{bits} bits, context {context}", (bits, context))
            for bits in weight_bits for context in contexts]  # fmt: skip
    for context in contexts:
        check_context(ROWS, context)
    return [_row(path, *job, rounds) for _, job in told(jobs, progress)]


def _row(path: str | Path, bits: int, context: int, rounds: int) -> dict[str, Any]:
    model = LanguageModel.load(path, "cpu", context, int8=True, weight_bits=bits)
    text = _text(model, context // 2)
    model.blocks.reset()
    ours = [
        token for place in range(0, len(text), ROWS) for token in _likeliest(model, text, place)
    ]
    model.read_all(text[:-1])
    rivals = [Rival(name, lambda: model.step(text)) for name in ("vdla", "again")]
    found: dict[str, Any] = {"weight_bits": bits, "context": context, "place": len(text) - 1}
    if peer_text():
        times = alternate(rivals, rounds)
        theirs = None
    else:
        with TemporaryDirectory() as folder:
            peer = _Llama(path, Path(folder), bits, context)
            theirs = peer.read(text, model.tokens.start)
            rivals.insert(1, Rival("llama.cpp", peer.again))
            times = alternate(rivals, rounds)
    ms = {name: 1000 * statistics.median(each) for name, each in times.items()}
    found |= {"ours_ms": ms["vdla"], "tokens_per_s": 1000 / ms["vdla"]}
    found["control"] = ms["again"] / ms["vdla"]
    if theirs is None:
        return found | dict.fromkeys(("peer", "peer_ms", "peer_tokens_per_s", "ratio", "agreed"))
    agreed = np.mean([a == b for a, b in zip(ours, theirs, strict=True)])
    return found | {
        "peer": f"llama.cpp {FORMATS[bits][0]}", "peer_ms": ms["llama.cpp"],
        "peer_tokens_per_s": 1000 / ms["llama.cpp"], "ratio": ms["vdla"] / ms["llama.cpp"],
        "agreed": float(agreed),
    }  # fmt: skip


def _text(model: LanguageModel, count: int) -> list[int]:
    """Tokens of a text, so many."""
    tokens = model.tokens.encode(TEXT)
    tokens = tokens[1:] if tokens[0] == model.tokens.start else tokens
    return (tokens * -(-count // len(tokens)))[:count]


def _likeliest(model: LanguageModel, text: list[int], place: int) -> list[int]:
    """The likeliest token behind each of those of a block that begins at a place."""
    start, logits = model.read(text, place)
    return [int(row.argmax()) for row in logits[place - start :][: len(text) - place]]


class _Llama:
    """llama.cpp with a file's weights in another format."""

    def __init__(self, path: str | Path, folder: Path, bits: int, context: int):
        import llama_cpp  # pyright: ignore[reportMissingImports]

        # It would tell of each tensor.
        self.silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.silent, None)
        settings: Any = llama_cpp.llama_model_quantize_default_params()
        name, settings.ftype = FORMATS[bits]
        settings.allow_requantize, settings.nthread = True, 1
        place = folder / f"{name}.gguf"
        names = (str(file).encode() for file in (path, place))
        if llama_cpp.llama_model_quantize(*names, settings):
            raise VdlaError(f"{path}: expected a file that llama.cpp makes {name} of, got an error")
        self.model: Any = llama_cpp.Llama(
            str(place), n_ctx=context, n_threads=1, n_threads_batch=1, verbose=False
        )
        self.last = 0

    def read(self, text: Sequence[int], start: int | None) -> list[int]:
        """The likeliest token behind each token of a text."""
        found, self.last = [], text[-1]
        self.model.reset()
        self.model.eval([] if start is None else [start])
        for token in text:
            self.model.eval([token])
            found.append(int(self._logits().argmax()))
        return found

    def again(self) -> None:
        """Compute the text's last token once more."""
        self.model.n_tokens -= 1
        self.model.eval([self.last])
        self._logits()

    def _logits(self) -> np.ndarray:
        """Those of the last token, float32 [words]."""
        return np.ctypeslib.as_array(
            self.model._ctx.get_logits_ith(-1), shape=(self.model.n_vocab(),)
        )
