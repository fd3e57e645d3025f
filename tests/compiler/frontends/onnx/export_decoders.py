"""Make ``golden/decoders.npz``: what torch.onnx writes of a Llama of transformers, and its logits.

    python tests/compiler/frontends/onnx/export_decoders.py [NAME ...]

With names, it makes these and keeps the others. It needs torch, transformers and onnxscript. The
weights are those of ``decoder_models.py``; the files are kept without them.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

GOLDEN = Path(__file__).parent / "golden" / "decoders.npz"
#: Constants of more elements are weights.
LARGEST = 64
TOKENS = 40


def without_weights(model: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> bytes:
    """A model that names its weights, whose values it does not have; nor what compilers skip."""
    del model.graph.value_info[:], model.graph.metadata_props[:], model.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]
        node.ClearField("doc_string")
    for constant in model.graph.initializer:
        del constant.metadata_props[:]
        value = numpy_helper.to_array(constant)
        if value.size <= LARGEST:
            continue
        names = [(name, turned) for name, weight in weights.items() for turned in (False, True)
                 if np.array_equal(weight.T if turned else weight, value)]  # fmt: skip
        name, turned = names[0]
        model.metadata_props.add(key=constant.name, value=f"{name}{'.T' * turned}")
        constant.CopyFrom(onnx.TensorProto(
            name=constant.name, data_type=constant.data_type, dims=constant.dims
        ))  # fmt: skip
    return model.SerializeToString()


def with_weights(data: bytes, weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The model with its weights."""
    model = onnx.load_model_from_string(data)
    named = {item.key: item.value for item in model.metadata_props}
    for constant in model.graph.initializer:
        if constant.name in named:
            weight = weights[named[constant.name].removesuffix(".T")]
            value = weight.T if named[constant.name].endswith(".T") else weight
            constant.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), constant.name))
    return model


def transformers_model(config: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> Any:
    """transformers' Llama with these weights."""
    import torch
    import transformers

    made = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**config, tie_word_embeddings=False)
    ).eval()
    made.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    return made


def logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Of a whole sequence [1, tokens], without a cache."""
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(tokens)).logits.numpy()


def exported(
    model: Any, states: Mapping[str, str], dynamo: bool, opset: int = 18
) -> onnx.ModelProto:
    """The step with a cache that grows, as people export it. From operator set 23 on, torch's newer
    exporter writes Attention, RotaryEmbedding and RMSNormalization."""
    import torch
    from transformers import DynamicCache

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: Any) -> Any:
            cache = DynamicCache(config=model.config)
            for layer, (keys, values) in enumerate(past):
                cache.update(keys, values, layer)
            found = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
            return found.logits, *(t for c in cache.layers for t in (c.keys, c.values))

    c, batch, past, new = model.config, 2, 6, 3
    caches = [tuple(torch.zeros(batch, c.num_key_value_heads, past, c.head_dim) for _ in "kv")
              for _ in range(c.num_hidden_layers)]  # fmt: skip
    tokens = torch.zeros(batch, new, dtype=torch.int64)
    mask = torch.ones(batch, past + new, dtype=torch.int64)
    places = (past + torch.arange(new)).repeat(batch, 1)
    inputs = ["input_ids", "attention_mask", "position_ids", *states]
    given = (tokens, mask, places, caches)
    names: dict[str, Any] = {"input_names": inputs, "output_names": ["logits", *states.values()]}
    if dynamo:
        dim, any_size = torch.export.Dim, torch.export.Dim.DYNAMIC
        first, rows = dim("batch_size", max=64), dim("sequence_length", max=4096)
        cache = {0: first, 2: dim("past_sequence_length", max=4096)}
        row = {0: first, 1: rows}
        shapes = (row, {0: first, 1: any_size}, row, [(cache, cache) for _ in caches])
        program = torch.onnx.export(
            Step(), given, None, dynamo=True, opset_version=opset, dynamic_shapes=shapes, **names
        )
        return program.model_proto
    row, total = {1: "sequence_length"}, "total_sequence_length"
    axes = {"input_ids": row, "position_ids": row, "attention_mask": {1: total}}
    axes |= {name: {2: "past_sequence_length"} for name in states}
    axes |= {name: {2: total} for name in states.values()}
    axes = {name: {0: "batch_size", **sizes} for name, sizes in axes.items()}
    data = io.BytesIO()
    torch.onnx.export(
        Step(), given, data, dynamo=False, opset_version=17, dynamic_axes=axes, **names
    )
    return onnx.load_model_from_string(data.getvalue())


def with_static_cache(model: Any, places: int, rows: int) -> Any:
    """The step with a cache of a fixed length, as a program of torch.export."""
    import torch
    import transformers
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    settings = {"batch_size": 1, "max_cache_len": places, "device": "cpu"}
    model.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=places, cache_config=settings
    )
    example = {
        "input_ids": torch.zeros(1, rows, dtype=torch.int64), "cache_position": torch.arange(rows),
    }  # fmt: skip
    step = TorchExportableModuleWithStaticCache(model)
    with torch.no_grad():
        return torch.export.export(step, (), example, strict=True)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from decoder_models import CONFIG, CONTEXT, ROWS, STATES, random_weights
    from vdla.compiler.frontends.doors.torch_onnx import write_onnx

    weights = random_weights()
    model = transformers_model(CONFIG, weights)
    kept = dict(np.load(GOLDEN)) if sys.argv[1:] else {}
    if not kept:
        tokens = np.random.default_rng(1).integers(0, CONFIG["vocab_size"], (1, TOKENS))
        kept = {"tokens": tokens, "logits": logits(model, tokens)}
    made: dict[str, Callable[[], onnx.ModelProto]] = {
        "dynamo": lambda: exported(model, STATES, True),
        "script": lambda: exported(model, STATES, False),
        "attention": lambda: exported(model, STATES, True, 23),
        "static": lambda: write_onnx(with_static_cache(model, CONTEXT, ROWS))[0],
    }
    for name in sys.argv[1:] or made:
        kept[name] = np.frombuffer(without_weights(made[name](), weights), np.uint8)
    np.savez_compressed(GOLDEN, **kept)


if __name__ == "__main__":
    main()
