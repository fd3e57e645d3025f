"""Encoders of transformers as torch.onnx writes them, with random parameters, in int8 on the
accelerator. docs/measured.md tells how much of the MAC peak each reaches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

import vdla  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]  # warnings of torch's own

PAGE = (Path(__file__).parents[4] / "docs" / "measured.md").read_text()
#: How its row on the page begins.
ROW = "YOLOS-tiny, SegFormer-B0"


class Encoder(torch.nn.Module):
    """A model of one input and one output."""

    def __init__(self, kind: str, config: str, given: str, output: str, **sizes: Any):
        super().__init__()
        self.model = getattr(transformers, kind)(getattr(transformers, config)(**sizes))
        self.given, self.output = given, output

    def forward(self, x: Any) -> Any:
        return getattr(self.model(**{self.given: x}), self.output)


def yolos() -> Encoder:
    return Encoder(
        "YolosModel", "YolosConfig", "pixel_values", "last_hidden_state", hidden_size=192,
        num_attention_heads=3, intermediate_size=768, image_size=[224, 224],
    )  # fmt: skip


def segformer() -> Encoder:
    return Encoder("SegformerModel", "SegformerConfig", "pixel_values", "last_hidden_state")


def clip() -> Encoder:
    return Encoder(
        "CLIPVisionModel", "CLIPVisionConfig", "pixel_values", "pooler_output", patch_size=32
    )


def whisper() -> Any:
    found = Encoder(
        "WhisperModel", "WhisperConfig", "input_features", "last_hidden_state", d_model=384,
        encoder_layers=4, decoder_layers=1, encoder_attention_heads=6, encoder_ffn_dim=1536,
    )  # fmt: skip
    found.model = found.model.encoder
    return found


def t5() -> Encoder:
    return Encoder("T5EncoderModel", "T5Config", "input_ids", "last_hidden_state")


def distilbert() -> Encoder:
    return Encoder("DistilBertModel", "DistilBertConfig", "input_ids", "last_hidden_state")


IMAGES, TOKENS = (1, 3, 224, 224), (1, 128)
ENCODERS: dict[Callable[[], Any], tuple[int, ...]] = {
    yolos: IMAGES, segformer: IMAGES, clip: IMAGES, whisper: (1, 80, 3000), t5: TOKENS,
    distilbert: TOKENS,
}  # fmt: skip


def told() -> list[int]:
    """Percents on the page, in the order of :data:`ENCODERS`."""
    [row] = re.findall(rf"^\| {ROW}[^|]*\| ([^|]*) % \|", PAGE, re.M)
    return [int(number) for number in row.split(", ")]


@pytest.mark.parametrize(
    ("make", "opset"), [*((make, None) for make in ENCODERS), (distilbert, 23), (yolos, 23)],
    ids=lambda x: getattr(x, "__name__", x),
)  # fmt: skip
def test_encoder_is_one_program(make: Callable[[], Any], opset: int | None, tmp_path: Path) -> None:
    """It has the CPU's values to the bit, and at least the page's share of the MAC peak; also where
    the exporter writes ONNX's Attention, which it does from operator set 23 on."""
    torch.manual_seed(0)
    rng, shape = np.random.default_rng(1), ENCODERS[make]
    samples = (
        rng.integers(0, 30_000, (2, *shape[1:]))
        if shape == TOKENS
        else rng.normal(size=(2, *shape[1:])).astype(np.float32)
    )
    path = tmp_path / "encoder.onnx"
    first = torch.from_numpy(samples[:1])
    with torch.no_grad():
        torch.onnx.export(
            make().eval(), (first,), path, dynamo=True, external_data=False, verbose=False,
            opset_version=opset,
        )  # fmt: skip
    model = vdla.quantize(path, samples, measures_error=False).model
    accelerator, cpu = (vdla.compile(model, target) for target in ("sim", "cpu"))
    [found], [wanted] = (module.run(samples[:1]) for module in (accelerator, cpu))
    np.testing.assert_array_equal(found, wanted)
    report = accelerator.report
    assert report["programs"] == 1
    share = dict(zip(ENCODERS, told(), strict=True))[make]
    assert 100 * report["utilisation"]["end_to_end"] >= share
