"""Text: the same on all targets, chosen by rule, and refusals in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.cli import run_app
from vdla.generation import loop, quantised
from vdla.generation.evened import MOST_OF_MEDIAN, evened, rotated
from vdla.generation.gguf import read_llama
from vdla.generation.loop import LanguageModel
from vdla.generation.quantised import block_of, quantised_step, tokens_ahead
from vdla.generation.sampling import sampler
from vdla.generation.tokens import Tokens, read_tokens

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
    prompt = len(read_tokens(fields_of(path)).encode(PROMPT))
    assert found["sim"]["prompt_tokens"] == prompt > 8
    for kind, count in (("blocks", -(-prompt // 8)), ("steps", 11)):
        runs = found["sim"][kind]
        assert runs["count"] == count and found["cpu"][kind]["cycles"] is None
        assert runs["cycles"] > 1000
    assert found["sim"]["steps"]["cycles"] < found["sim"]["blocks"]["cycles"]


@pytest.mark.more
def test_weights_of_four_bits(path: Path, tmp_path: Path) -> None:
    """The same text on a machine that unpacks them, with fewer bytes read, and on the CPU."""
    packed = tmp_path / "packed.toml"
    packed.write_text("block_in = 8\nblock_out = 8\npacked_weights = 1\nacc_depth = 1024\n")
    found = [
        LanguageModel.load(path, target, 32, rows, True, hw=packed, weight_bits=bits)
        for target, rows, bits in (("sim", 8, 4), ("cpu", 8, 4), ("sim", 1, 8))
    ]
    texts = [tokens_of(model) for model in found]
    assert texts[0] == texts[1] and len(set(texts[0])) > 6
    read = [model.module.report["dram"]["read_bytes"] for model in (found[0], found[2])]
    assert read[0] < read[1]  # most of what so small a model reads is no weight
    likely = [model.perplexity(PROMPT * 8) for model in (found[1], found[2])]
    assert abs(likely[0] / likely[1] - 1) < 0.3


def fields_of(path: Path) -> dict:
    return read_llama(path).fields


@pytest.mark.slow
def test_caches_of_the_int8_step_are_kept_in_files(path: Path, tmp_path: Path) -> None:
    """Integers, and the same text from a module that was saved."""
    model = LanguageModel.load(path, "cpu", 64, 8, int8=True, prompt=PROMPT)
    states = model.module.compiled.states
    assert len(states) == 4 and {state.initial.dtype for state in states} == {np.dtype("int8")}
    wanted = tokens_of(model)
    for name in ("module", "blocks"):
        getattr(model, name).save(tmp_path / name)
        setattr(model, name, vdla.load(tmp_path / name))
    assert tokens_of(model) == wanted
    block = block_of(model.tokens.encode(PROMPT), 0, 8)
    first, second = (model.blocks.run(tokens=block, position=np.array([8])) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    model.blocks.reset()
    [anew] = model.blocks.run(tokens=block, position=np.array([8]))
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
    other = LanguageModel(model.module, model.blocks, read_tokens(fields_of(path)), 8, 64, False)
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
        (["--weight-bits", "3", "--int8"], "weight bits: expected 4 or 8, got 3"),
        (["--weight-bits", "4"], "expected 8 where products are in float32, got 4"),
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


def with_outliers() -> dict[str, np.ndarray]:
    """Weights that make one channel of the residual stream, and one before ``ffn_down``, hundreds
    of times as large as the others."""
    weights = tiny.random_weights()
    weights["blk.0.ffn_down.weight"][3] *= 200
    weights["blk.1.ffn_up.weight"][5] *= 100
    weights["blk.1.ffn_down.weight"][:, 5] /= 100
    return weights


def test_rotated_and_evened_weights_are_the_same_decoder(tmp_path: Path) -> None:
    """In float64; and the channels that were too large are not any more."""
    weights = with_outliers()
    config = read_llama(tiny.write_llama(tmp_path / "t.gguf", weights)).config
    text = [5, 9, 200, 33, 7, 150]
    wanted = tiny.forward(weights, text)
    turned = rotated(config, weights)
    np.testing.assert_allclose(tiny.forward(turned, text), wanted, rtol=1e-3, atol=1e-3)
    rows = np.abs(turned["blk.0.ffn_down.weight"]).max(1)
    assert rows.max() < 4 * np.median(rows)
    most = np.ones(tiny.FFN, np.float32)
    most[[5, 8]] = 100, 3
    even = evened(config, turned, [np.ones(tiny.FFN), most])
    np.testing.assert_allclose(tiny.forward(even, text), wanted, rtol=1e-3, atol=1e-3)
    ratio = turned["blk.1.ffn_up.weight"] / even["blk.1.ffn_up.weight"]
    np.testing.assert_allclose(ratio[5], 100 / MOST_OF_MEDIAN, rtol=1e-5)
    assert (np.delete(ratio, 5, 0) == 1).all()


def with_start(tokens: Tokens, start: int | None) -> Tokens:
    tokens.start = start
    return tokens


def test_a_text_stands_behind_its_start_and_a_space(path: Path, monkeypatch) -> None:
    """The caches begin with their keys, whatever the block on which these are measured, and
    whatever their size."""
    monkeypatch.setattr(quantised, "TEXT", PROMPT)
    file = read_llama(path)
    tokens = with_start(read_tokens(file.fields), 3)
    ahead = tokens_ahead(tokens)
    assert ahead == [3, *tokens.encode(" ")] and len(ahead) == 2
    assert tokens_ahead(with_start(read_tokens(file.fields), None)) == []
    found = []
    for rows in (1, 8):
        monkeypatch.setattr(quantised, "_ROWS", rows)
        found.append(quantised_step(file.config, file.weights, 32, tokens))
    for name, cache in found[0].caches.items():
        np.testing.assert_allclose(cache, found[1].caches[name], atol=1e-5)
        assert cache[:, :, :2].any(-1).all() and not cache[:, :, 2:].any()
        for context in (24, 64):
            other = found[0].with_sizes(8, context).caches[name]
            assert other.shape[2] == context and not other[:, :, 2:].any()
            np.testing.assert_array_equal(other[:, :, :2], cache[:, :, :2])


@pytest.mark.parametrize("rows", [1, 16])
def test_a_long_context_has_the_weights_of_a_short_one(path: Path, rows, monkeypatch) -> None:
    """Scales come from caches of bounded size. With larger caches the same text has the same
    logits."""
    monkeypatch.setattr(quantised, "_PLACES", 32)
    text = read_tokens(read_llama(path).fields).encode(PROMPT)[:20]
    models = [LanguageModel.load(path, "cpu", context, rows, int8=True) for context in (32, 64)]
    short, long = (model.read_all(text) for model in models)
    np.testing.assert_array_equal(short, long)
    blocks = [model.blocks.run(np.zeros((1, rows), np.int64), np.array([0]))[0] for model in models]
    np.testing.assert_array_equal(*blocks)


@pytest.mark.slow
def test_outliers_leave_levels_for_the_others(tmp_path: Path) -> None:
    """The step in int8 finds the text nearly as likely as that in float32 does."""
    file = tiny.write_llama(tmp_path / "outlier.gguf", with_outliers())
    text = "the sand and the sea in the land of the inn " * 4
    found = [
        LanguageModel.load(file, "cpu", 64, 1, int8).perplexity(text) for int8 in (True, False)
    ]
    assert abs(found[0] / found[1] - 1) < 0.1


def test_perplexity_is_that_of_the_whole_sequence(path: Path, model: LanguageModel) -> None:
    """Of each piece of 64 tokens, as plain NumPy computes it; the last one is shorter."""
    text = PROMPT * 8
    tokens, losses = model.tokens.encode(text), []
    assert 64 < len(tokens) < 128
    for piece in (tokens[:64], tokens[64:]):
        logits = tiny.forward(tiny.random_weights(), piece)[:-1]
        shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        losses += [*-np.log(shares[np.arange(len(piece) - 1), piece[1:]])]
    assert model.perplexity(text) == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)
    with pytest.raises(vdla.VdlaError, match="at least two tokens, got 1"):
        model.perplexity("t")


def test_a_compiled_step_is_kept(path: Path, tmp_path: Path, monkeypatch) -> None:
    """The second model compiles nothing; one of another context, and damaged folders, are made."""
    monkeypatch.setenv("VDLA_CACHE", str(tmp_path))
    compiled = []
    real = loop.compile
    monkeypatch.setattr(loop, "compile", lambda *a, **k: compiled.append(1) or real(*a, **k))
    texts = [tokens_of(LanguageModel.load(path, "cpu", 64, 1)) for _ in range(2)]
    assert texts[0] == texts[1] and len(compiled) == 1
    LanguageModel.load(path, "cpu", 32, 1)
    assert len(compiled) == 2
    for manifest in tmp_path.glob("step_*/*.bin"):
        manifest.write_bytes(b"")
    assert tokens_of(LanguageModel.load(path, "cpu", 64, 1)) == texts[0] and len(compiled) == 3
    for context in (8, 16, 20, 24, 28):
        LanguageModel.load(path, "cpu", context, 1)
    assert len([*tmp_path.glob("step_*")]) == 6
    (tmp_path / "records.jsonl").touch()
    monkeypatch.setenv("VDLA_RECORDS", str(tmp_path / "records.jsonl"))
    LanguageModel.load(path, "cpu", 24, 1)
    assert len(compiled) == 9  # records may say otherwise
