"""Tokens a second beside llama.cpp's: what is asked of it, and what is said without it."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vdla.bench.tokens import token_rows
from vdla.cli import run_app
from vdla.isa.errors import VdlaError

ROOT = Path(__file__).resolve().parents[2]
WORDS = ROOT / "examples" / "models" / "words.gguf"


class Llama:
    """Stands for llama.cpp's: knows how many tokens it has read, and notes each."""

    made: Llama

    def __init__(self, path: str, n_ctx: int, n_threads: int, n_threads_batch: int, verbose: bool):
        assert (n_threads, n_threads_batch, verbose) == (1, 1, False)
        assert Path(path).read_bytes() == WORDS.read_bytes()
        self.n_tokens, self.places, self.room = 0, list[tuple[int, int]](), n_ctx
        self._ctx = SimpleNamespace(get_logits_ith=self.logits)
        Llama.made = self

    def reset(self) -> None:
        self.n_tokens = 0

    def n_vocab(self) -> int:
        return 512

    def eval(self, tokens: Sequence[int]) -> None:
        self.places += [(self.n_tokens + i, token) for i, token in enumerate(tokens)]
        self.n_tokens += len(tokens)
        assert self.n_tokens <= self.room

    def logits(self, which: int) -> Any:
        assert which == -1
        self.values = np.zeros(512, np.float32)
        self.values[7] = 1
        return np.ctypeslib.as_ctypes(self.values)


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package in place of llama.cpp's, which copies files."""

    def requantise(source: bytes, target: bytes, settings: Any) -> int:
        assert settings.allow_requantize and settings.ftype == 2
        Path(target.decode()).write_bytes(Path(source.decode()).read_bytes())
        return 0

    package: Any = SimpleNamespace(
        Llama=Llama, llama_model_quantize=requantise, llama_log_callback=lambda told: told,
        llama_log_set=lambda told, data: None,
        llama_model_quantize_default_params=SimpleNamespace, __spec__=True,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "llama_cpp", package)


@pytest.mark.slow
def test_both_compute_the_same_token_again_and_again(peer: None) -> None:
    [row] = token_rows(WORDS, [32], [4], rounds=2)
    read, again = Llama.made.places[:17], Llama.made.places[17:]
    assert [place for place, _ in read] == [*range(17)]  # behind the token for a text's start
    assert set(again) == {read[-1]} and len(again) == 2 * (2 + 2)  # warm rounds, and each twice
    assert (row["peer"], row["place"], row["agreed"]) == ("llama.cpp Q4_0", 15, 0)
    assert row["ratio"] == pytest.approx(row["ours_ms"] / row["peer_ms"])
    assert row["tokens_per_s"] == pytest.approx(1000 / row["ours_ms"])


@pytest.mark.slow
def test_without_llama_cpp(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        "vdla.bench.tokens.find_spec", lambda name: None if name == "llama_cpp" else known(name)
    )
    command = ["bench", "tokens", str(WORDS), "--contexts", "32", "--weight-bits", "4"]
    assert run_app([*command, "--rounds", "1", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "pip install llama-cpp-python" in report["note"]
    [row] = report["rows"]
    assert row["ours_ms"] > 0 and row["ratio"] is None and row["peer"] is None
    assert run_app([*command, "--rounds", "1"]) == 0
    assert "llama.cpp is not installed" in capsys.readouterr().out


def test_other_bits_are_refused() -> None:
    with pytest.raises(VdlaError, match="weight bits: expected 4 or 8, got 3"):
        token_rows(WORDS, [32], [3])
