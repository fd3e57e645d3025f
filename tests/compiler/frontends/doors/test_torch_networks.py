"""Networks of timm and transformers, with random parameters and few layers, through the three doors
of PyTorch: the same outputs to the bit, and those of torch within its own rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import vdla  # noqa: E402
from torch import library  # noqa: E402  # pyright: ignore[reportMissingImports]
from vdla.api.torch_backend import compile_graph  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]  # warnings of torch's own

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "vocab_size": 99, "max_position_embeddings": 64,
}  # fmt: skip


def image_model(name: str, **options: Any) -> Callable[[], tuple[Any, Any]]:
    def build() -> tuple[Any, Any]:
        timm = import_timm()
        model = timm.create_model(name, pretrained=False, num_classes=10, **options)
        return model, (torch.randn(1, 3, 64, 64),)

    return build


def import_timm() -> Any:
    """timm, or a skip. It imports torchvision, whose machine code does not load beside another
    build of torch; of its Python code only two operators have to be there."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pytest.skip("torchvision is not installed")
    except RuntimeError:
        operators = library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    return pytest.importorskip("timm", reason="timm is not installed")


def language_model(config: str, model: str, **options: Any) -> Callable[[], tuple[Any, Any]]:
    """A class of transformers with its configuration; tokens, of which the last two are padding."""

    def build() -> tuple[Any, Any]:
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        found = getattr(transformers, config)(**(SMALL | options))
        tokens = torch.randint(0, 99, (1, 12))
        mask = torch.ones_like(tokens)
        mask[:, -2:] = 0
        return getattr(transformers, model)(found), {"input_ids": tokens, "attention_mask": mask}

    return build


def vision_transformer() -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8)
    return transformers.ViTModel(config), {"pixel_values": torch.randn(1, 3, 32, 32)}


NETWORKS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "resnet10t": image_model("resnet10t"),
    "mobilenetv3": image_model("mobilenetv3_small_050"),
    "convnext": image_model("convnext_atto"),
    "regnetx": image_model("regnetx_002"),
    "efficientnet": image_model("efficientnet_b0"),
    "deit": image_model("deit_tiny_patch16_224", img_size=64, depth=2),
    "bert": language_model("BertConfig", "BertModel"),
    "gpt2": language_model(
        "GPT2Config", "GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=2, use_cache=False
    ),
    "distilbert": language_model(
        "DistilBertConfig", "DistilBertModel", dim=32, n_layers=2, n_heads=2, hidden_dim=64
    ),
    "llama": language_model("LlamaConfig", "LlamaForCausalLM", use_cache=False),
    "albert": language_model("AlbertConfig", "AlbertModel", embedding_size=16),
    "vit": vision_transformer,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_three_doors_give_the_same_bits(name: str) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    model, inputs = NETWORKS[name]()
    model.eval()
    named = isinstance(inputs, dict)
    positional, by_name = ((), inputs) if named else (inputs, {})
    arrays = [tensor.numpy() for tensor in (inputs.values() if named else inputs)]
    with torch.no_grad():
        wanted = tensors(model(*positional, **by_name))
        program = torch.export.export(model, positional, by_name)
        compiled = tensors(torch.compile(model, backend=compile_graph)(*positional, **by_name))
    exported = vdla.compile(program, "cpu").run(*arrays)
    direct = vdla.compile(model, "cpu", example_inputs=inputs).run(*arrays)
    assert len(exported) == len(direct) == len(compiled) == len(wanted)
    for a, b, c, theirs in zip(exported, direct, compiled, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c.numpy())
        np.testing.assert_allclose(a, theirs.numpy(), rtol=1e-3, atol=1e-4)


def tensors(result: Any) -> list[Any]:
    """The tensors of what a model returns, in order."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if leaf is not None]
