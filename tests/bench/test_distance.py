"""Distances of operators from ONNX's definition: none where there is none, and those that are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
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


@pytest.mark.parametrize("kind", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("form", [QuantFormat.QOperator, QuantFormat.QDQ])
def test_every_integer_operator_is_compared(
    form: QuantFormat, kind: QuantType, tmp_path: Path
) -> None:
    """Also operators that have integers as results themselves, and one behind a computed shape."""
    rng = np.random.default_rng(0)
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w", "b"], ["c"], "c", pads=[1, 1, 1, 1]),
        make("Relu", ["c"], ["r"], "r"),
        make("Conv", ["r", "w2"], ["d"], "d", pads=[1, 1, 1, 1]),
        make("Add", ["d", "r"], ["s"], "s"),
        make("Sigmoid", ["s"], ["g"], "g"),
        make("MaxPool", ["g"], ["p"], "p", kernel_shape=[2, 2], strides=[2, 2]),
        make("Shape", ["p"], ["sizes"], "sizes"),
        make("Gather", ["sizes", "zero"], ["n"], "n", axis=0),
        make("Concat", ["n", "rest"], ["shape"], "shape", axis=0),
        make("Reshape", ["p", "shape"], ["f"], "f"),
        make("MatMul", ["f", "m"], ["y"], "y"),
    ]
    constants = {
        "w": rng.normal(0, 0.3, (8, 4, 3, 3)), "b": rng.normal(0, 0.3, 8),
        "w2": rng.normal(0, 0.3, (8, 8, 3, 3)), "m": rng.normal(0, 0.3, (72, 10)),
    }  # fmt: skip
    stored = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in constants.items()]
    stored += [numpy_helper.from_array(np.array(v), n) for n, v in (("zero", [0]), ("rest", [-1]))]
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", ["N", 4, 6, 6]), ("y", None))
    )
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], stored),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    onnx.save(model, tmp_path / "float.onnx")
    inputs = rng.normal(0, 1, (4, 1, 4, 6, 6)).astype(np.float32)

    class Reader(CalibrationDataReader):
        left: ClassVar[list[dict[str, np.ndarray]]] = [{"x": array} for array in inputs]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.left.pop() if self.left else None

    quantize_static(
        tmp_path / "float.onnx", tmp_path / "q.onnx", Reader(), quant_format=form,
        activation_type=kind, weight_type=QuantType.QInt8,
    )  # fmt: skip
    rows = distances(tmp_path / "q.onnx", [inputs[0]])
    kinds = [row.op for row in rows]
    assert {*kinds} >= {"Quantize", "QAdd", "QTable", "QMaxPool", "QDense"}
    assert kinds.count("QConv2d") == 2
    assert all(row.largest <= 1 for row in rows)


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
