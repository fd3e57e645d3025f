"""The small Llama of examples/models on the accelerator: one program, the same text everywhere."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.bench.distance import distances
from vdla.generation.gguf import LlamaFile, read_llama
from vdla.generation.llama import cache_names, step_model
from vdla.generation.loop import LanguageModel
from vdla.generation.quantised import (
    QuantisedStep,
    block_of,
    quantised_step,
    tokens_ahead,
)
from vdla.generation.tokens import read_tokens
from vdla.isa.program import Program

WORDS = Path(__file__).parents[2] / "examples" / "models" / "words.gguf"
ROWS, CONTEXT = 16, 256
PROMPTS = ("The accelerator", "A tile of the tensor core is", "docs/")


@pytest.fixture(scope="module")
def file() -> LlamaFile:
    return read_llama(WORDS)


@pytest.fixture(scope="module")
def step(file: LlamaFile) -> QuantisedStep:
    """The step in int8."""
    return quantised_step(file.config, file.weights, CONTEXT, read_tokens(file.fields))


@pytest.fixture(scope="module")
def model(file: LlamaFile, step: QuantisedStep) -> LanguageModel:
    return model_for("sim", file, step)


def compiled(target: str, file: LlamaFile, step: QuantisedStep) -> vdla.Module:
    states = cache_names(file.config)
    return vdla.compile(step.model, target, states=states, initial=step.caches)


def model_for(target: str, file: LlamaFile, step: QuantisedStep) -> LanguageModel:
    module, blocks = (compiled(target, file, step.with_sizes(rows, CONTEXT)) for rows in (1, ROWS))
    tokens = read_tokens(file.fields)
    return LanguageModel(module, blocks, tokens, ROWS, CONTEXT, True, len(tokens_ahead(tokens)))


def tokens_of(model: LanguageModel, prompt: str, count: int) -> list[int]:
    return [piece.token for piece in model.write(prompt, count, temperature=0.7, seed=5)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["module", "blocks"])
def test_a_step_is_one_program(kind: str, model: LanguageModel) -> None:
    """What the host computes comes before its first operator or behind its last one."""
    module = getattr(model, kind)
    steps = [isinstance(step, Program) for step in module.compiled.steps]
    assert steps == [False, True, False]
    layers = module.compiled.layers
    assert all(layer.target == "accel" for layer in layers if layer.macs)
    placed = {layer.op for layer in layers if layer.target == "accel"}
    assert "ReplaceEnd" in placed and "Concat" not in placed  # the caches stay where they are
    # Of shares and values, which a product reads turned: the cache of values lies so already.
    turned = {layer.name.split(".", 1)[1] for layer in layers if layer.op == "TransposeGroups"}
    assert turned == {"first.turned", "end.turned"}


@pytest.mark.parametrize("rows", [1, ROWS])
def test_a_block_without_room_behind_the_first_tokens(rows: int) -> None:
    """It would have to begin before the text."""
    with pytest.raises(vdla.VdlaError, match=rf"a block of {rows} tokens behind the 2 .* got "):
        LanguageModel.load(WORDS, "cpu", max(2, rows), rows, True)


@pytest.mark.slow
def test_sim_writes_what_the_cpu_does(model: LanguageModel, file: LlamaFile, step) -> None:
    """510 tokens, by chance and greedily, through all blocks of the context."""
    host = model_for("cpu", file, step)
    for prompt in PROMPTS:
        found = tokens_of(model, prompt, 170)
        assert found == tokens_of(host, prompt, 170)
        assert len(found) == 170 and len(set(found)) > 40
    greedy = [[piece.token for piece in m.write(PROMPTS[0], 60)] for m in (model, host)]
    assert greedy[0] == greedy[1]


@pytest.mark.slow
def test_a_token_is_that_of_a_block(model: LanguageModel) -> None:
    """The same logits, behind a full block and without one."""
    text = model.tokens.encode("The compiler of the accelerator chooses how each operator is made.")
    for count in (1, ROWS + 3):
        wanted = model.read_all(text[:count])
        model.read_all(text[: count - 1] or text[:1])
        np.testing.assert_array_equal(model.step(text[:count]), wanted)


@pytest.mark.slow
@pytest.mark.more
def test_a_mask_without_room(model: LanguageModel, file: LlamaFile, step: QuantisedStep) -> None:
    """The softmax of a block whose mask does not fit in ``inp`` is the host's."""
    text = model.tokens.encode("The compiler of the accelerator chooses how each operator is made.")
    wanted = model.read_all(text)
    large = replace(model_for("sim", file, step), rows=128)
    large.blocks = compiled("sim", file, step.with_sizes(128, CONTEXT))
    np.testing.assert_array_equal(large.read_all(text), wanted)
    assert len(large.blocks.compiled.programs) > 1


#: Loads a folder in another process, and writes the logits of two blocks.
LOADED = """
import sys, numpy as np, vdla
module, blocks = vdla.load(sys.argv[1]), np.load(sys.argv[2])
places = (np.array([1 + 16 * i]) for i in range(len(blocks)))
made = [module.run(tokens=b[None], position=p)[0] for b, p in zip(blocks, places)]
np.save(sys.argv[3], np.stack(made))
"""


@pytest.mark.slow
@pytest.mark.this_machine  # another process knows no other
def test_caches_in_a_saved_module_and_in_c(file: LlamaFile, step, tmp_path: Path) -> None:
    """The second block's logits, which need the first one's keys and values."""
    module = compiled("cpu", file, step)
    text = read_tokens(file.fields).encode("The compiler of the accelerator chooses how " * 2)
    blocks = [block_of(text, start, ROWS) for start in (0, ROWS)]
    place = [np.array([1 + n * ROWS]) for n in range(2)]
    wanted = [module.run(tokens=b, position=p)[0] for b, p in zip(blocks, place, strict=True)]
    module.save(tmp_path / "folder")
    np.save(tmp_path / "blocks.npy", np.concatenate(blocks))
    given = [tmp_path / "folder", tmp_path / "blocks.npy", tmp_path / "logits.npy"]
    subprocess.run([sys.executable, "-c", LOADED, *given], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "logits.npy"), np.stack(wanted))

    program, source = tmp_path / "run_model", WORDS.parents[1] / "04_c_api" / "run_model.c"
    library = [tmp_path / "folder" / "model.so", f"-Wl,-rpath,{tmp_path / 'folder'}"]
    subprocess.run(["gcc", "-I", tmp_path / "folder", source, *library, "-o", program], check=True)
    caches = b"".join(state.initial.tobytes() for state in module.compiled.states)
    for block, position, logits in zip(blocks, place, wanted, strict=True):
        (tmp_path / "in").write_bytes(block.tobytes() + position.tobytes() + caches)
        files = [tmp_path / "folder" / "model.bin", tmp_path / "in", tmp_path / "out"]
        subprocess.run([program, *files], check=True, capture_output=True)
        found = (tmp_path / "out").read_bytes()
        assert found[: logits.nbytes] == logits.tobytes()
        caches = found[logits.nbytes :]


@pytest.mark.slow
@pytest.mark.more
def test_rtl_writes_what_sim_does(model: LanguageModel, file: LlamaFile, step) -> None:
    """32 tokens, each in as many cycles."""
    wanted, rtl = tokens_of(model, PROMPTS[0], 32), model_for("rtl", file, step)
    assert tokens_of(rtl, PROMPTS[0], 32) == wanted
    for kind in ("blocks", "steps"):
        ours, theirs = (getattr(m.measured, kind) for m in (model, rtl))
        assert ours.cycles == theirs.cycles and ours.count == theirs.count > 0


@pytest.mark.slow
def test_the_words_are_those_of_the_documents(model: LanguageModel) -> None:
    """Of the words of a text, most are in the repository's documents."""
    root = Path(__file__).parents[2]
    known = {w for page in (root / "docs").rglob("*.md") for w in page.read_text().lower().split()}
    written = "".join(piece.text for piece in model.write(PROMPTS[0], 200)).lower().split()
    assert len(written) > 30
    assert np.mean([word in known for word in written[1:-1]]) > 0.8


@pytest.mark.slow
def test_each_operator_is_onnx_runtimes(file: LlamaFile, step: QuantisedStep) -> None:
    """But for less than one in a hundred elements, by one step."""
    first = len(tokens_ahead(read_tokens(file.fields)))
    block = block_of(read_tokens(file.fields).encode(PROMPTS[1] * 4), 0, ROWS)
    given = {"tokens": block, "position": np.array([first])} | step.caches
    found = distances(step.model, [given[value.name] for value in step.model.graph.input])
    assert {"QRotate", "QLayerNorm", "QMatMul"} <= {operator.op for operator in found}
    for operator in found:
        assert operator.largest <= 1, operator
        assert operator.counts[0] >= 0.99 * operator.elements, operator


@pytest.mark.slow
def test_int8_is_near_float(model: LanguageModel, file: LlamaFile) -> None:
    """The likeliest token of a block's places is mostly the same, after a block before it."""
    text = model.tokens.encode(
        "The compiler of the accelerator chooses how each operator is made. " * 2
    )
    float_step = vdla.compile(
        step_model(file.config, file.weights, ROWS, CONTEXT), "cpu", states=cache_names(file.config)
    )
    model.blocks.reset()
    alike = []
    for start in range(0, len(text) - ROWS, ROWS):
        block = block_of(text, start, ROWS)
        at = ((model.blocks, start + model.first), (float_step, start))
        rows = [m.run(tokens=block, position=np.array([p]))[0][0].argmax(-1) for m, p in at]
        alike += [*(rows[0] == rows[1])]
    assert len(alike) >= 2 * ROWS and np.mean(alike) > 0.7
