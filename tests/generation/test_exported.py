"""Text from decoders that others exported: what ONNX Runtime would write, in float and in int8."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from vdla.cli import run_app
from vdla.generation.loop import LanguageModel, generate

from ..compiler.frontends.onnx.decoder_models import (
    CONTEXT,
    HEAD_WIDTH,
    KV_HEADS,
    ROWS,
    STATES,
    WORDS,
    genai_model,
    random_weights,
)
from ..compiler.frontends.onnx.export_decoders import GOLDEN, with_weights

WEIGHTS = random_weights()
PROMPT = "w3 w14 w15 w9 w26"
TOKENS = 14
Write = Callable[..., list[int]]


def form_of(name: str) -> onnx.ModelProto:
    if name == "genai":
        return genai_model(WEIGHTS)
    return with_weights(np.load(GOLDEN)[name].tobytes(), WEIGHTS)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    made.save(str(path))
    return path


def written(path: Path, tokenizer: Path, **options: object) -> list[int]:
    settings = {"target": "cpu", "context": CONTEXT, "rows": ROWS} | options
    pieces = generate(path, PROMPT, TOKENS, tokenizer=tokenizer, **settings)  # type: ignore[arg-type]
    return [piece.token for piece in pieces]


def by_onnx_runtime() -> list[int]:
    """Each token of the whole text before it, without a cache."""
    session = onnxruntime.InferenceSession(form_of("dynamo").SerializeToString())
    text = [int(word[1:]) for word in PROMPT.split()]
    empty = dict.fromkeys(STATES, np.zeros((1, KV_HEADS, 0, HEAD_WIDTH), np.float32))
    for _ in range(TOKENS):
        given = {
            "input_ids": np.array([text]), "attention_mask": np.ones((1, len(text)), np.int64),
            "position_ids": np.arange(len(text))[None],
        }  # fmt: skip
        logits = session.run(["logits"], given | empty)[0]
        text.append(int(logits[0, -1].argmax()))
    return text[-TOKENS:]


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("form", ["attention", "dynamo", "genai", "script"])
def test_greedy_text_is_onnx_runtimes(
    form: str, rows: int, tmp_path: Path, tokenizer: Path
) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(form_of(form), path)
    wanted = by_onnx_runtime()
    assert written(path, tokenizer, rows=rows) == wanted
    assert len({*wanted}) > 4
    found = LanguageModel.load(path, "cpu", CONTEXT, rows, tokenizer=tokenizer)
    text = " ".join(f"w{i}" for i in np.random.default_rng(0).integers(0, WORDS, 60))
    whole = LanguageModel.load(path, "cpu", CONTEXT, 1, tokenizer=tokenizer)
    assert found.perplexity(text) == pytest.approx(whole.perplexity(text), rel=1e-5)


@pytest.mark.slow
def test_int8_is_the_files(tmp_path: Path, tokenizer: Path, capsys) -> None:
    """The accelerator and the CPU write the same from a quantised file."""
    model, path = form_of("attention"), tmp_path / "decoder_int8.onnx"
    rng = np.random.default_rng(1)
    runs = [
        {
            "input_ids": rng.integers(0, WORDS, (1, 1)), "position_ids": np.array([[i]]),
            "attention_mask": (np.arange(-CONTEXT, 1) >= -i).astype(np.int64)[None],
        }
        for i in range(20)
    ]  # fmt: skip
    samples = {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}
    [total] = [
        value.type.tensor_type.shape.dim[1].dim_param
        for value in model.graph.input if value.name == "attention_mask"
    ]  # fmt: skip
    dims = {"past_sequence_length": CONTEXT, "sequence_length": 1, total: CONTEXT + 1}
    made = vdla.quantize(model, samples, states=STATES, dims=dims)
    onnx.save(made.model, path)
    config = tmp_path / "hw.toml"
    config.write_text("block_in = 8\nblock_out = 8\nvector_table = 2\n")
    write = partial(written, path, tokenizer, hw=config)
    assert write(target="sim") == write(target="cpu")
    command = ["generate", str(path), "--prompt", PROMPT, "--tokenizer", str(tokenizer)]
    command += ["--context", str(CONTEXT), "--rows", str(ROWS), "--hw", str(config)]
    assert run_app([*command, "--tokens", "3"]) == 0
    told = capsys.readouterr().out
    assert "sim, int8: 5 tokens read, 3 written" in told and "cycles a token" in told


WRONG: dict[str, tuple[list[str], str]] = {
    "no tokenizer": ([], "expected a tokenizer.json (--tokenizer), which it has not"),
    "of another length": (["--context", "64"], "expected 64 in dimension 2 of input 'past_key_"),
    "asked for int8": (["--int8"], "expected no --int8, --float or --weight-bits with an exported"),
    "a long prompt": (["--prompt", "w1 " * 60], "expected a text of at most 48 tokens, got 60"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(name: str, tmp_path: Path, tokenizer: Path, capsys) -> None:
    options, said = WRONG[name]
    model, path = form_of("dynamo"), tmp_path / "decoder.onnx"
    for value in model.graph.input:
        if value.name in STATES:
            value.type.tensor_type.shape.dim[2].dim_value = CONTEXT
    onnx.save(model, path)
    command = ["generate", str(path), "--prompt", PROMPT, "--context", str(CONTEXT)]
    command += ["--tokenizer", str(tokenizer)] if name != "no tokenizer" else []
    assert run_app([*command, "--target", "cpu", *options]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("form", "said"),
    [("static", "expected runs of one token, or of an open number, got 8"),
     ("digits", "expected an output image.next for input 'image', got logits")],
)  # fmt: skip
def test_other_models_are_refused(form: str, said: str, tmp_path: Path, tokenizer: Path) -> None:
    path = Path("examples/models/digits_float.onnx")
    if form == "static":
        path = tmp_path / "static.onnx"
        onnx.save(form_of("static"), path)
    with pytest.raises(vdla.VdlaError) as error:
        written(Path(path), tokenizer)
    assert said in str(error.value)
