"""The step of a Llama against whole sequences in plain NumPy and ONNX Runtime; its files."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from vdla.generation.gguf import LlamaFile, read_llama
from vdla.generation.llama import cache_names, step_model
from vdla.generation.quantised import block_of

from . import tiny

ROWS, CONTEXT = 8, 48
TEXT = [int(token) for token in np.random.default_rng(5).integers(0, 256, 40)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LlamaFile:
    path = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    return read_llama(tiny.write_llama(path, tiny.random_weights()))


@pytest.fixture(scope="module")
def module(llama: LlamaFile) -> vdla.Module:
    step = step_model(llama.config, llama.weights, ROWS, CONTEXT)
    return vdla.compile(step, "cpu", states=cache_names(llama.config))


def blocks(module: vdla.Module, text: list[int], rows: int = ROWS) -> np.ndarray:
    """Logits [tokens, words], block by block."""
    module.reset()
    found = [
        module.run(tokens=block_of(text, start, rows), position=np.array([start]))[0][0]
        for start in range(0, len(text), rows)
    ]
    return np.concatenate(found)[: len(text)]


@pytest.mark.parametrize("tied", [False, True])
def test_blocks_are_the_whole_sequence(tied: bool, tmp_path: Path) -> None:
    """The oracle has neither blocks nor caches, and is written apart."""
    weights = tiny.random_weights(int(tied), tied)
    found = read_llama(tiny.write_llama(tmp_path / "tiny.gguf", weights))
    step = step_model(found.config, found.weights, ROWS, CONTEXT)
    made = vdla.compile(step, "cpu", states=cache_names(found.config))
    wanted = tiny.forward(weights, TEXT)
    np.testing.assert_allclose(blocks(made, TEXT), wanted, atol=2e-4)


def test_one_program_for_all_contexts(module: vdla.Module) -> None:
    """Nothing is compiled again, whatever the position."""
    compiled = module.compiled
    blocks(module, TEXT)
    assert module.compiled is compiled


def test_caches_are_no_caches(llama: LlamaFile, module: vdla.Module) -> None:
    """One block of all tokens, for which nothing is in the caches."""
    whole = step_model(llama.config, llama.weights, len(TEXT), len(TEXT))
    alone = vdla.compile(whole, "cpu", states=cache_names(llama.config))
    got = blocks(alone, TEXT, len(TEXT))
    np.testing.assert_allclose(got, blocks(module, TEXT), atol=1e-4)


def test_a_block_that_is_not_full_comes_again(module: vdla.Module) -> None:
    """What fills it up is never seen."""
    wanted = blocks(module, TEXT)
    blocks(module, TEXT[:16])
    for end in range(17, 25):
        block = block_of(TEXT[:end], 16, ROWS)
        block[0, end - 16 :] = 99
        [logits] = module.run(tokens=block, position=np.array([16]))
        np.testing.assert_array_equal(logits[0, : end - 16], wanted[16:end])


def test_onnx_runtime_computes_the_same(llama: LlamaFile, module: vdla.Module) -> None:
    step = step_model(llama.config, llama.weights, ROWS, CONTEXT)
    onnx.checker.check_model(step, full_check=True)
    session = onnxruntime.InferenceSession(step.SerializeToString())
    names = [value.name for value in session.get_outputs()]
    caches = {
        name: np.zeros((1, tiny.KV_HEADS, CONTEXT, tiny.HEAD_WIDTH), np.float32)
        for name in cache_names(llama.config)
    }
    found = []
    for start in range(0, len(TEXT), ROWS):
        given = {"tokens": block_of(TEXT, start, ROWS), "position": np.array([start])}
        made = dict(zip(names, session.run(None, given | caches), strict=True))
        caches = {name: made[after] for name, after in cache_names(llama.config).items()}
        found.append(np.asarray(made["logits"])[0])
    np.testing.assert_allclose(np.concatenate(found), blocks(module, TEXT), atol=1e-4)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
def test_weights_of_each_type(kind: str, tmp_path: Path) -> None:
    """As gguf's own functions store and read them; rows of queries in Hugging Face's order."""
    weights = tiny.random_weights()
    found = read_llama(tiny.write_llama(tmp_path / "tiny.gguf", weights, kind))
    assert {*found.weights} == {*weights}
    type_ = gguf.GGMLQuantizationType[kind]
    for name, value in weights.items():
        stored = value
        if value.ndim == 2:
            stored = gguf.dequantize(gguf.quantize(value, type_), type_)
        np.testing.assert_array_equal(found.weights[name], stored, strict=True)


def test_shape_of_the_model(llama: LlamaFile) -> None:
    c = llama.config
    assert (c.layers, c.width, c.heads, c.kv_heads) == (2, 32, 4, 2)
    assert (c.head_width, c.ffn, c.words, c.context) == (8, 64, 263, 128)
    assert c.epsilon == pytest.approx(1e-5) and c.rope_base == 10000


@pytest.mark.parametrize(("rows", "context"), [(16, 8), (16, 24), (0, 16)])
def test_context_is_whole_blocks(rows: int, context: int, llama: LlamaFile) -> None:
    with pytest.raises(vdla.VdlaError, match=f"whole blocks of {rows} tokens, got {context}"):
        step_model(llama.config, llama.weights, rows, context)


def test_damaged_files(tmp_path: Path) -> None:
    whole = tiny.write_llama(tmp_path / "whole.gguf", tiny.random_weights()).read_bytes()
    for end in (0, 3, 100, 5000, len(whole) // 2):
        path = tmp_path / f"{end}.gguf"
        path.write_bytes(whole[:end])
        with pytest.raises(vdla.VdlaError, match="gguf: expected a GGUF file: "):
            read_llama(path)


def test_other_files(tmp_path: Path) -> None:
    def refused(said: str, weights: dict[str, np.ndarray], **options: str) -> None:
        path = tiny.write_llama(tmp_path / "other.gguf", weights, **options)
        with pytest.raises(vdla.VdlaError, match=said) as error:
            read_llama(path)
        assert "\n" not in str(error.value)

    weights = tiny.random_weights()
    refused("expected architecture 'llama', got 'qwen2'", weights, architecture="qwen2")
    refused("expected a field 'llama.", weights, fields="none")
    without = {name: value for name, value in weights.items() if "blk.1.ffn_up" not in name}
    refused("expected a tensor 'blk.1.ffn_up.weight', got none", without)
    more = weights | {"blk.0.attn_q.bias": np.zeros(32, np.float32)}
    refused("'blk.0.attn_q.bias' is not of a plain Llama", more)
    wide = weights | {"output_norm.weight": np.zeros(16, np.float32)}
    refused(r"'output_norm.weight': expected \[32\], got \[16\]", wide)
    refused("expected F32, F16, Q8_0, Q4_0, Q4_1, got Q5_0", weights, kind="Q5_0")
