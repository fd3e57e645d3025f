"""The benches of the quantiser and of the distance from ONNX's definition, on small networks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from vdla.bench import definition, quantised
from vdla.bench.distance import distances
from vdla.bench.modern import FloatNet
from vdla.cli import run_app
from vdla.compiler.onnx_backend import VdlaRep
from vdla.compiler.quantize import quantize
from vdla.isa.errors import VdlaError

MODELS = Path(__file__).parents[2] / "examples" / "models"


def depthwise() -> onnx.ModelProto:
    """A depthwise convolution between two others."""
    net = FloatNet("depthwise")
    x = net.conv(net.input(1, 3, 8, 8), 16, 1)
    net.output(net.conv(net.conv(x, 16, 3, groups=16), 8, 1, relu=False))
    return net.model()


def tiny(side: int) -> onnx.ModelProto:
    """A convolution."""
    net = FloatNet("tiny")
    net.output(net.conv(net.input(1, 3, side, side), 8, 3, relu=False))
    return net.model()


def encoder() -> onnx.ModelProto:
    """A layer of an encoder."""
    net = FloatNet("encoder")
    x = net.tokens(6, quantised.VOCABULARY, 16)
    x = net.binary("Add", x, net.attention(net.layer_norm(x), 2))
    net.output(net.binary("Add", x, net.mlp(net.layer_norm(x), 32)))
    return net.model()


@pytest.mark.more
def test_uneven_channels_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost the plain quantiser much, and the smoothing one little."""
    networks = {"depthwise": depthwise, "encoder": encoder}
    for name, build in networks.items():
        model = build()
        samples = quantised.make_samples(model)
        one = {key: value[:1] for key, value in samples.items()}
        (y,), (z,) = (VdlaRep(m).run(one) for m in (model, quantised.uneven(model)))
        np.testing.assert_allclose(z, y, rtol=1e-3, atol=1e-4 * np.abs(y).max())
        monkeypatch.setitem(quantised.NETWORKS, name, build)
    steps: list[int] = []
    found = quantised.quantised_rows(
        [*networks], lambda done, total: steps.append(total - done), tmp_path / "int8"
    )
    saved = sorted((tmp_path / "int8").iterdir())
    assert [path.name for path in saved] == ["depthwise-int8.onnx", "encoder-int8.onnx"]
    kinds = {node.op_type for node in onnx.load(saved[1]).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    rows = {(row["network"], row["options"]): row for row in found}
    assert len(rows) == 8 and steps == [*range(8, 0, -1)]
    for name in networks:
        even, smooth = rows[name, "plain"], rows[f"{name}, uneven", "smoothing 0.5"]
        plain = rows[f"{name}, uneven", "plain"]
        assert even["sqnr_db"] - 4 < smooth["sqnr_db"] > plain["sqnr_db"] + 6
        assert smooth["smoothed"] == 2 > plain["smoothed"] == 0 and smooth["int8"] > 2


@pytest.mark.more
def test_inputs_that_onnxruntime_refuses() -> None:
    """Words beyond the vocabulary."""
    model = encoder()
    made = quantize(model, quantised.make_samples(model)).model
    assert distances(made, [np.full((1, 6), quantised.VOCABULARY - 1)])
    with pytest.raises(VdlaError, match=r"expected inputs that ONNX Runtime takes.* idx=1000 must"):
        distances(made, [np.full((1, 6), quantised.VOCABULARY)])


def test_operators_and_answers() -> None:
    model = onnx.load(MODELS / "digits_int8.onnx")
    images = [image[None] for image in np.load(MODELS / "digits_test.npz")["x"][:3]]
    found = distances(model, images[:1])
    rows = {row.what: row for row in definition.operators(found)}
    assert sum(row.elements for row in rows.values()) == sum(row.elements for row in found)
    assert rows["QConv2d"].equal == rows["QConv2d"].elements and rows["QAvgPool"].largest <= 1
    rows_of_answers = [*definition.answers(model, images)]
    ours, _, exactly, *_ = rows_of_answers
    assert len(rows_of_answers) == 5 and exactly.equal == 30
    for row in rows_of_answers:
        assert row.elements == 30 and row.largest <= 1
        assert row.error is not None and 0 <= row.error < 0.5
    assert ours.equal <= 30 and (ours.equal == 30) == (ours.largest == 0)
    assert all(row.error is None for row in definition.answers(model, images[:1]))


@pytest.mark.more
def test_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(quantised.NETWORKS, "depthwise", depthwise)
    monkeypatch.setitem(definition.NETWORKS, "tiny", tiny)
    assert run_app(["bench", "quantised", "--models", "depthwise"]) == 0
    assert capsys.readouterr().out.count("smoothing 0.5") == 2
    options = ["--models", "tiny", "--side", "32", "--images", "3"]
    assert run_app(["bench", "definition", *options, "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["side"], report["images"]) == (32, 3)
    assert {row["network"] for row in report["rows"]} == {"tiny"}
    (products,) = (row for row in report["rows"] if row["what"] == "QConv2d")
    assert products["equal"] == products["elements"] == 8 * 32 * 32
    assert [row["elements"] for row in report["rows"][-5:]] == [3 * 8 * 32 * 32] * 5


@pytest.mark.parametrize("models", ["alexnet", "bert,alexnet"])
@pytest.mark.parametrize("command", ["quantised", "definition"])
def test_an_unknown_network_is_refused(
    command: str, models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["bench", command, "--models", models]) == 2
    assert "vdla: models: expected one of " in capsys.readouterr().err
