"""A Llama of transformers with the cache that it exports, and as torch.onnx writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import vdla  # noqa: E402
from transformers.integrations.executorch import (  # noqa: E402
    TorchExportableModuleWithStaticCache,
)

from ..onnx.decoder_models import CONFIG, CONTEXT, STATES, random_weights  # noqa: E402
from ..onnx.export_decoders import exported, logits, transformers_model  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]  # warnings of torch's own

TOKENS = np.random.default_rng(3).integers(0, CONFIG["vocab_size"], (1, 40))


@pytest.fixture(scope="module")
def model() -> Any:
    return transformers_model(CONFIG, random_weights())


def with_static_cache(model: Any) -> Any:
    settings = {"batch_size": 1, "max_cache_len": CONTEXT, "device": "cpu"}
    model.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=CONTEXT, cache_config=settings
    )
    return TorchExportableModuleWithStaticCache(model)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("way", ["program", "module"])
def test_a_static_cache_is_states(model: Any, way: str, rows: int) -> None:
    """In a program that ``strict=True`` traces; given the module, that is done here."""
    given = {
        "input_ids": torch.zeros(1, rows, dtype=torch.int64),
        "cache_position": torch.arange(rows),
    }
    step = with_static_cache(model)
    if way == "module":
        module = vdla.compile(step, "cpu", example_inputs=given)
    else:
        with torch.no_grad():
            program = torch.export.export(step, (), given, strict=True)
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
