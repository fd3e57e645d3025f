"""A Llama of transformers with the cache that it exports, and as torch.onnx writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import vdla  # noqa: E402
from transformers.integrations.executorch import (  # noqa: E402
    TorchExportableModuleWithStaticCache,
)
from vdla.isa.params import HwParams  # noqa: E402

from ..onnx.decoder_models import CONFIG, CONTEXT, ROWS, STATES, random_weights  # noqa: E402
from ..onnx.export_decoders import (  # noqa: E402
    exported,
    logits,
    transformers_model,
    with_static_cache,
)

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]  # warnings of torch's own

TOKENS = np.random.default_rng(3).integers(0, CONFIG["vocab_size"], (1, 40))


@pytest.fixture(scope="module")
def model() -> Any:
    return transformers_model(CONFIG, random_weights())


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("way", ["program", "module"])
def test_a_static_cache_is_states(model: Any, way: str, rows: int) -> None:
    """In a program that ``strict=True`` traces; given the module, that is done here."""
    program = with_static_cache(model, CONTEXT, rows)
    if way == "module":
        example = {
            "input_ids": torch.zeros(1, rows, dtype=torch.int64),
            "cache_position": torch.arange(rows),
        }
        step = TorchExportableModuleWithStaticCache(model)
        module = vdla.compile(step, "cpu", example_inputs=example)
    else:
        module = vdla.compile(program, "cpu")
    assert [t.name for t in module.inputs] == ["input_ids", "cache_position"]
    assert len(module.outputs) == 1
    wanted = logits(model, TOKENS)[0]
    for _ in range(2):
        found = [
            module.run(TOKENS[:, start : start + rows], np.arange(start, start + rows))[0][0]
            for start in range(0, TOKENS.shape[1], rows)
        ]
        np.testing.assert_allclose(np.concatenate(found), wanted, rtol=0, atol=1e-5)
        module.reset()


def test_text_with_a_static_cache(model: Any, tmp_path: Path) -> None:
    """It is what transformers' logits of the whole text say."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{i}": i for i in range(CONFIG["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "step.pt2"
    torch.export.save(with_static_cache(model, CONTEXT, 1), path)
    found = vdla.generate(
        path, "w3 w14 w15", 10, "cpu", CONTEXT, tokenizer=tmp_path / "tokenizer.json"
    )
    text = [3, 14, 15]
    for piece in found:
        assert piece.token == logits(model, np.array([text]))[0, -1].argmax()
        text.append(piece.token)
    assert len(text) == 13


def test_a_static_cache_in_int8(model: Any, tmp_path: Path) -> None:
    """A file of torch.export becomes ONNX with its caches as states, and one program."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    path = tmp_path / "step.pt2"
    torch.export.save(with_static_cache(model, CONTEXT, ROWS), path)
    samples = {"input_ids": TOKENS.reshape(-1, ROWS), "cache_position": np.arange(TOKENS.size)}
    made = vdla.quantize(path, samples)
    hw = HwParams(block_in=8, block_out=8, vector_table=2)
    module = vdla.compile(made.model, hw=hw, states=made.states, initial=made.initial)
    assert len(module.compiled.programs) == 1
    found = [
        module.run(TOKENS[:, start : start + ROWS], np.arange(start, start + ROWS))[0][0]
        for start in range(0, TOKENS.shape[1], ROWS)
    ]
    wanted = logits(model, TOKENS)[0]
    assert np.square(wanted).sum() > 25 * np.square(np.concatenate(found) - wanted).sum()


@pytest.mark.parametrize("dynamo", [True, False])
def test_what_torch_writes_as_onnx(model: Any, dynamo: bool) -> None:
    """As ``golden/decoders.npz`` has it, with whatever version of torch there is."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    written = exported(model, STATES, dynamo)
    [total] = [v for v in written.graph.input if v.name == "attention_mask"]
    dims = {total.type.tensor_type.shape.dim[1].dim_param: CONTEXT + 1, "sequence_length": 1}
    dims["past_sequence_length"] = CONTEXT
    module = vdla.compile(written, "cpu", states=STATES, dims=dims)
    found = []
    for place in range(TOKENS.shape[1]):
        mask = (np.arange(CONTEXT + 1) >= CONTEXT - place)[None].astype(np.int64)
        given = {"input_ids": TOKENS[:, place : place + 1], "position_ids": np.array([[place]])}
        found.append(module.run(attention_mask=mask, **given)[0][0])
    np.testing.assert_allclose(np.concatenate(found), logits(model, TOKENS)[0], rtol=0, atol=1e-5)


class Counts(torch.nn.Module):
    """Changes a buffer, or its input."""

    def __init__(self, changes_input: bool = False):
        super().__init__()
        self.layer, self.changes_input = torch.nn.Linear(4, 4), changes_input
        self.register_buffer("runs", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        if self.changes_input:
            x.add_(1)
        else:
            self.runs += 1
        return self.layer(x + self.runs)


def refusal(model: object) -> str:
    with pytest.raises(vdla.VdlaError) as error:
        vdla.quantize(model, np.zeros((4, 4), np.float32))
    return str(error.value)


def test_programs_that_are_no_onnx() -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    x = (torch.zeros(2, 4),)
    rows = ({0: torch.export.Dim("rows", max=8)},)
    open_sizes = torch.export.export(Counts().eval(), x, dynamic_shapes=rows)
    assert "expected fixed sizes of a program that changes 'runs', got open" in refusal(open_sizes)
    changed = torch.export.export(Counts(changes_input=True).eval(), x)
    assert "the model changes 'x' (user_input_mutation); return it as an" in refusal(changed)
    assert "expected a program of torch.export, got a torch.nn.Module" in refusal(Counts())


def test_a_program_without_a_cache() -> None:
    """Its open sizes stay open."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    layer, rows = torch.nn.Linear(4, 4).eval(), ({0: torch.export.Dim("rows", max=8)},)
    program = torch.export.export(layer, (torch.zeros(2, 4),), dynamic_shapes=rows)
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    made = vdla.quantize(program, x)
    assert made.states == {}
    found = vdla.compile(made.model, "cpu", shapes={"input": (3, 4)}).run(x)[0]
    wanted = layer(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.05)
