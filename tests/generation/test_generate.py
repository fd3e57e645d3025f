"""Text: the same on all targets, chosen by rule, and refusals in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.cli import run_app
from vdla.generation.gguf import read_llama
from vdla.generation.llama import step_model
from vdla.generation.loop import LanguageModel
from vdla.generation.quantised import block_of, quantised_step
from vdla.generation.sampling import sampler
from vdla.generation.tokens import read_tokens

from . import tiny

PROMPT = "the sand and the sea"
SMALL = ["--context", "32", "--rows", "8", "--hw", "4x4"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llama(tmp_path_factory.mktemp("llama") / "t.gguf", tiny.random_weights())


@pytest.fixture(scope="module")
def model(path: Path) -> LanguageModel:
    return LanguageModel.load(path, "cpu", 64, 8)


def tokens_of(model: LanguageModel, **options: float) -> list[int]:
    return [piece.token for piece in model.write(PROMPT, 20, **options)]  # type: ignore[arg-type]


def test_greedy_text_is_that_of_the_whole_sequence(model: LanguageModel) -> None:
    text = model.tokens.encode(PROMPT)
    weights, wanted = tiny.random_weights(), []
    for _ in range(20):
        wanted.append(int(tiny.forward(weights, text + wanted)[-1].argmax()))
    assert tokens_of(model) == wanted
    assert tokens_of(model) == wanted  # the caches begin anew


@pytest.mark.slow
def test_sim_and_cpu_write_the_same(path: Path, tmp_path: Path, capsys) -> None:
    command = ["generate", str(path), "--prompt", PROMPT, "--tokens", "12", *SMALL, "--int8"]
    found = {}
    for target in ("sim", "cpu"):
        report = tmp_path / f"{target}.json"
        assert run_app([*command, "--target", target, "--json", str(report)]) == 0
        found[target] = json.loads(report.read_text())
        assert found[target]["text"] in capsys.readouterr().out
    assert found["sim"]["tokens"] == found["cpu"]["tokens"]
    assert len(set(found["sim"]["tokens"])) > 6
    assert found["sim"]["cycles_of_run"] > 1000 and found["cpu"]["cycles_of_run"] is None
    prompt = len(read_tokens(fields_of(path)).encode(PROMPT))
    assert found["sim"]["prompt_tokens"] == prompt > 8
    assert found["sim"]["runs"] == 12 + (prompt - 1) // 8


def fields_of(path: Path) -> dict:
    return read_llama(path).fields


@pytest.mark.slow
def test_caches_of_the_int8_step_are_kept_in_files(path: Path, tmp_path: Path) -> None:
    """Integers, and the same text from a module that was saved."""
    model = LanguageModel.load(path, "cpu", 64, 8, int8=True, prompt=PROMPT)
    states = model.module.compiled.states
    assert len(states) == 4 and {state.initial.dtype for state in states} == {np.dtype("int8")}
    wanted = tokens_of(model)
    model.module.save(tmp_path / "saved")
    model.module = vdla.load(tmp_path / "saved")
    assert tokens_of(model) == wanted
    block = block_of(model.tokens.encode(PROMPT), 0, 8)
    first, second = (model.module.run(tokens=block, position=np.array([8])) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    model.module.reset()
    [anew] = model.module.run(tokens=block, position=np.array([8]))
    assert not np.array_equal(anew, first[0])


def test_tokens_by_chance(model: LanguageModel) -> None:
    greedy = tokens_of(model)
    assert tokens_of(model, temperature=1.0, top_k=1) == greedy
    drawn = [tokens_of(model, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and greedy not in drawn


def test_shares_of_samples() -> None:
    """As often as the softmax says, and none but the likeliest ones."""
    logits = np.log(np.array([1, 4, 2, 3], np.float32))
    sample = sampler(0.5, 3, 0)
    counts = np.bincount([sample(logits) for _ in range(5000)], minlength=4) / 5000
    np.testing.assert_allclose(counts, np.array([0, 16, 4, 9]) / 29, atol=0.02)
    assert sampler()(np.array([1, 3, 3, 2], np.float32)) == 1


def test_the_last_token_ends_a_text(path: Path, model: LanguageModel) -> None:
    greedy = tokens_of(model)
    other = LanguageModel(model.module, read_tokens(fields_of(path)), 8, 64, False)
    assert other.tokens.last == {262}
    other.tokens.last = frozenset({greedy[5]})
    assert tokens_of(other) == greedy[: greedy.index(greedy[5])]


def test_a_full_context(model: LanguageModel) -> None:
    room = 64 - len(model.tokens.encode(PROMPT)) + 1
    written, text = [], model.write(PROMPT, 100)
    with pytest.raises(vdla.VdlaError, match="at most 64 tokens, got 65; --context makes room"):
        written.extend(text)
    assert len(written) == room
    written = [piece.token for piece in model.write(PROMPT, room)]
    assert len(written) == room
    with pytest.raises(vdla.VdlaError, match="at most 64 tokens, got 100; --context"):
        model.write("x" * 100)


def test_text_of_several_bytes(path: Path) -> None:
    """A character comes when its last byte is there; control words have no text."""
    tokens = read_tokens(fields_of(path))
    text = "the €uro, and Ünder 12 🌊<|end|>!"
    found = tokens.encode(text)
    decoder = tokens.decoder()
    pieces = [decoder.add(token) for token in found]
    assert "".join(pieces) == text.replace("<|end|>", "")
    assert "" in pieces and "🌊" in pieces and 262 in found


def test_digits_apart_and_other_tokenizers(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    weights = tiny.random_weights()
    smollm = tiny.write_llama(tmp_path / "smollm.gguf", weights, pre="smollm")
    assert len(read_tokens(fields_of(smollm)).encode("1234")) == 4
    other = tiny.write_llama(tmp_path / "other.gguf", weights, pre="nobody's")
    with pytest.raises(vdla.VdlaError, match=r"got 'gpt2' of \"nobody's\"; --tokenizer names"):
        read_tokens(fields_of(other))
    spm = tiny.write_llama(tmp_path / "spm.gguf", weights, model="llama")
    with pytest.raises(vdla.VdlaError, match=r"expected 'gpt2' .*, got 'llama'"):
        read_tokens(fields_of(spm))
    file = tmp_path / "tokenizer.json"
    made = Tokenizer(models.WordLevel({"a": 3, "b": 5, "?": 0}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(str(file))
    assert read_tokens(fields_of(other), file).encode("b a c") == [5, 3, 0]
    with pytest.raises(vdla.VdlaError, match="at most the model's 263 tokens, got 300"):
        made.add_tokens([f"word {i}" for i in range(297)])
        made.save(str(file))
        LanguageModel.load(other, "cpu", tokenizer=file)
    file.write_text("{}")
    with pytest.raises(vdla.VdlaError, match=r"tokenizer.json: expected a tokenizer: "):
        read_tokens({}, file)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--prompt", ""], "prompt: expected at least one token"),
        (["--prompt", "x" * 40], "at most 32 tokens, got 40; --context makes room for more"),
        (["--target", "moon"], "expected"),
        (["--context", "20"], "context: expected whole blocks of 8 tokens, got 20"),
        (["--temperature", "-1"], "temperature"),
        (["--top-k", "-1"], "top-k"),
        (["--tokens", "0"], "tokens"),
    ],
)
def test_refusals(options: list[str], said: str, path: Path, capsys) -> None:
    command = ["generate", str(path), "--prompt", PROMPT, "--target", "cpu", *SMALL, *options]
    assert run_app(command) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and said in err


def test_packages_that_are_missing(path: Path, monkeypatch, capsys) -> None:
    for package in ("tokenizers", "gguf"):
        monkeypatch.setitem(sys.modules, package, None)
        assert run_app(["generate", str(path), "--prompt", "x"]) == 2
        assert f"needs the package {package!r}; install it with pip install 'vdla[llm]'" in (
            capsys.readouterr().err
        )


def test_from_python(path: Path) -> None:
    pieces = vdla.generate(path, PROMPT, 3, "cpu", 32, 8)
    assert [type(piece.token) for piece in pieces] == [int] * 3


@pytest.mark.parametrize("outlier", [1, 1000])
def test_results_with_outliers_stay_float(outlier: float, tmp_path: Path) -> None:
    """A channel that is a thousand times as large as the others would leave them no levels."""
    weights = tiny.random_weights()
    weights["blk.0.ffn_down.weight"][3] *= outlier
    found = read_llama(tiny.write_llama(tmp_path / "outlier.gguf", weights))
    step = step_model(found.config, found.weights, 8, 32)
    made = quantised_step(step, found.config, read_tokens(found.fields), PROMPT)
    constants = {constant.name for constant in made.graph.initializer}
    products = (node for node in made.graph.node if node.op_type in ("Gemm", "MatMul"))
    kept = {node.name for node in products if node.input[1] in constants}
    assert kept == (set() if outlier == 1 else {"blk.0.ffn_down.weight y"})
    sums = {node.name for node in made.graph.node if node.op_type == "Add"}
    read = {name for node in made.graph.node for name in node.input if "Quant" in node.op_type}
    stays = {name for name in sums if name.startswith("layer") and name not in read}
    assert ("layer 0 out" in stays) == (outlier != 1)
