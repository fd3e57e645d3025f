"""The digits transformer: int8 on the accelerator against ONNX Runtime on every test image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import vdla
from vdla.compiler.quantize.draft import QUANTISED
from vdla.isa.params import HwParams
from vdla.module import Module

#: A table of 16 bits is what softmax needs.
HW = HwParams(vector_table=2)
MODELS = Path(__file__).parents[2] / "examples" / "models"
FLOAT, INT8 = "digits_transformer_float.onnx", "digits_transformer_int8.onnx"


@dataclass(frozen=True)
class Answers:
    """Logits [360, 10] and the labels [360]."""

    labels: np.ndarray
    module: Module
    sim: np.ndarray
    cpu: np.ndarray
    float32: np.ndarray
    int8: np.ndarray

    def accuracy(self, logits: np.ndarray) -> float:
        return float((logits.argmax(axis=1) == self.labels).mean())


@pytest.fixture(scope="module")
def answers() -> Answers:
    """Of the accelerator and the CPU; of ONNX Runtime, in float32 and of the int8 file."""
    archive = np.load(MODELS / "digits_test.npz")
    x = archive["x"]
    assert len(x) == 360
    module = vdla.compile(MODELS / INT8, "sim", HW)
    sim, cpu = module.run(x)[0], vdla.compile(MODELS / INT8, "cpu", HW).run(x)[0]
    real, ours = (
        ort.InferenceSession(str(MODELS / name), providers=["CPUExecutionProvider"])
        for name in (FLOAT, INT8)
    )
    feed = {"image": x}
    return Answers(archive["y"], module, sim, cpu, real.run(None, feed)[0], ours.run(None, feed)[0])


@pytest.mark.more
@pytest.mark.slow
def test_int8_on_the_machine_within_a_point_of_float(answers: Answers) -> None:
    """Float is the float file as ONNX Runtime runs it, which has none of our integers."""
    np.testing.assert_array_equal(answers.sim, answers.cpu)
    assert answers.accuracy(answers.float32) >= 0.97
    assert answers.accuracy(answers.sim) >= answers.accuracy(answers.float32) - 0.01


@pytest.mark.more
@pytest.mark.slow
def test_onnx_runtime_answers_alike(answers: Answers) -> None:
    """The int8 file, which ONNX Runtime computes with softmax and normalisation in float32."""
    agreement = (answers.sim.argmax(axis=1) == answers.int8.argmax(axis=1)).mean()
    assert agreement >= 0.99
    error = np.square(answers.sim - answers.int8).sum()
    assert 10 * np.log10(np.square(answers.int8).sum() / error) > 30
    kinds = {node.op_type for node in onnx.load_model(str(MODELS / FLOAT)).graph.node}
    assert "LayerNormalization" in kinds and not kinds & {*QUANTISED}


@pytest.mark.slow
def test_attention_is_on_the_accelerator(answers: Answers) -> None:
    """All products, softmaxes and tables, and the additions of positions and residuals; tables and
    additions as part of products."""
    report = answers.module.report
    assert report["coverage"]["macs_on_accelerator"] == report["coverage"]["macs_total"] > 0
    where: dict[str, list[str]] = {}
    for row in report["layers"]:
        where.setdefault(row["op"], []).append(row["target"])
    counts = {"QTableSoftmax": 2, "QGroupMatMul": 4, "QConvTable": 2, "QConvAdd": 5}
    assert {op: where[op] for op in counts} == {op: ["accel"] * n for op, n in counts.items()}
