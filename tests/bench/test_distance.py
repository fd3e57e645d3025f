"""Distances of operators from ONNX's definition: none where there is none, and those that are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from vdla.bench.distance import STEPS, distances
from vdla.bench.workloads import mobilenet_v2, resnet18
from vdla.cli import run_app
from vdla.compiler.graph.ops.integer import QAdd
from vdla.isa.errors import VdlaError

MODELS = Path(__file__).parents[2] / "examples" / "models"


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.load(MODELS / "digits_test.npz")["x"][:8]


def test_operators_of_the_digits(images: np.ndarray) -> None:
    rows = {row.name: row for row in distances(MODELS / "digits_int8.onnx", [images])}
    assert {"stem", "sum", "pooled", "mean", "dense"} <= {*rows}
    for name, row in rows.items():
        assert row.elements and row.counts[0] > 0.95 * row.elements and row.largest <= 1, row
        assert name == "mean" or row.counts[0] == row.elements, row


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("make", [mobilenet_v2, resnet18])
def test_operators_of_whole_networks(make: Callable[[], onnx.ModelProto]) -> None:
    """At full size every operator has 999 of 1000 elements as ONNX defines them, others a step
    beside; pools and sums have all."""
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    rows = distances(make(), [image])
    assert {row.op for row in rows} > {"QConv2d", "QAdd", "QAvgPool", "QDense"}
    for row in rows:
        assert row.largest <= 1 and row.counts[0] >= 0.999 * row.elements, row
        assert row.op == "QConv2d" or row.counts[0] == row.elements, row


def test_a_wrong_operator_is_seen(images: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that are one or five steps too large, in that operator alone."""
    true = QAdd.evaluate
    for steps in (1, 5):

        def wrong(self: QAdd, *args: np.ndarray, steps: int = steps) -> np.ndarray:
            return np.minimum(true(self, *args).astype(np.int16) + steps, 127).astype(np.int8)

        monkeypatch.setattr(QAdd, "evaluate", wrong)
        rows = {row.name: row for row in distances(MODELS / "digits_int8.onnx", [images])}
        assert rows["sum"].largest == steps
        assert rows["sum"].counts[min(steps, STEPS)] > 0.9 * rows["sum"].elements
        assert all(row.largest <= 1 for name, row in rows.items() if name != "sum")


def test_asymmetric_uint8(images: np.ndarray) -> None:
    """The model's uint8 is compared with the graph's int8 of the same meaning."""
    model = onnx.load(MODELS / "digits_int8.onnx")
    for constant in model.graph.initializer:
        data = numpy_helper.to_array(constant)
        if data.dtype == np.int8 and data.size == 1:
            shifted = (data.astype(np.int16) + 128).astype(np.uint8)
            constant.CopyFrom(numpy_helper.from_array(shifted, constant.name))
    rows = distances(model, [images])
    assert len(rows) > 5 and all(row.largest <= 1 for row in rows)


def test_a_float_model_has_none(images: np.ndarray) -> None:
    with pytest.raises(VdlaError, match="expected a quantised model"):
        distances(MODELS / "digits_float.onnx", [images])


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    command = ["run", str(MODELS / "digits_int8.onnx"), "--target", "cpu"]
    assert run_app([*command, "--against", "onnxruntime", "--json", str(report)]) == 0
    assert "distance from ONNX's definition" in capsys.readouterr().out
    rows = json.loads(report.read_text())["distance"]
    assert {row["name"] for row in rows} >= {"stem", "dense"}
    assert run_app(["run", str(tmp_path), "--against", "onnxruntime"]) == 2
    assert "against: expected an ONNX model" in capsys.readouterr().err
