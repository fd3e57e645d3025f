"""The digits network: the interpreter against ONNX Runtime on every test image."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.interpret import evaluate
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.ops.integer import QAdd
from vdla.compiler.graph.ops.linear import QDense
from vdla.compiler.graph.ops.movement import Reshape
from vdla.compiler.graph.ops.pooling import QAvgPool, QMaxPool
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.partition import assign_targets
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.vdla.target import Accelerator
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams

Images = tuple[np.ndarray, np.ndarray]


@pytest.fixture
def images(models: Path) -> Images:
    archive = np.load(models / "digits_test.npz")
    return archive["x"], archive["y"]


def logits_name(graph: Graph) -> str:
    """The int8 tensor before the last Dequantize."""
    return graph.nodes[-1].inputs[0]


def runtime_logits(path: Path, name: str, x: np.ndarray) -> np.ndarray:
    """The same tensor by ONNX Runtime with its default optimisations."""
    model = onnx.load_model(str(path))
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT8, None))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    logits = session.run([name], {"image": x})[0]
    # The extra output must not have changed the kernels: the file as it stands gives the same.
    plain = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = plain.run(None, {"image": x})[0]
    assert np.array_equal(expected, session.run(["logits"], {"image": x})[0])
    return logits


def test_integer_graph_agrees_with_onnx_runtime(models: Path, images: Images) -> None:
    x, y = images
    assert len(x) >= 360
    path = models / "digits_int8.onnx"
    graph = run_passes(import_onnx(path, Sizes(len(x))))
    name = logits_name(graph)
    ours, theirs = evaluate(graph, {"image": x})[name], runtime_logits(path, name, x)
    difference = np.abs(ours.astype(int) - theirs.astype(int))
    share = (difference == 0).mean()
    accuracy = [float((logits.argmax(axis=1) == y).mean()) for logits in (ours, theirs)]
    assert difference.max() <= 1
    assert share >= 0.995
    assert accuracy[0] >= 0.96 and abs(accuracy[0] - accuracy[1]) <= 0.003


def test_float_semantics_classifies_alike(models: Path, images: Images) -> None:
    x, y = images
    graph = import_onnx(models / "digits_int8.onnx", Sizes(len(x)))
    fused = run_passes(graph)
    name = logits_name(fused)
    before, after = evaluate(graph, {"image": x}), evaluate(fused, {"image": x})
    # float32 means of int8 values break exact ties either way, so a step or two may differ.
    assert np.abs(before[name].astype(int) - after[name]).max() <= 2
    accuracy = [(v[name].argmax(axis=1) == y).mean() for v in (before, after)]
    assert abs(accuracy[0] - accuracy[1]) <= 0.003


def test_whole_network_fuses(models: Path) -> None:
    accelerator = Accelerator(Options(HwParams(), MEMORY_PRESETS["vta"]))
    graph = assign_targets(run_passes(import_onnx(models / "digits_int8.onnx")), accelerator)
    kinds = [type(node.op) for node in graph.nodes if node.target == "accel"]
    residual = [QConv2d] * 4 + [QAdd]
    assert kinds == [*residual, QMaxPool, QConv2d, QAvgPool, Reshape, QDense]
    assert [node.name for node in graph.nodes if node.target == "cpu"] == [
        graph.nodes[0].name,
        graph.nodes[-1].name,
    ]


def test_float_model_reaches_its_accuracy(models: Path, images: Images) -> None:
    x, y = images
    graph = run_passes(import_onnx(models / "digits_float.onnx", Sizes(len(x))))
    (logits,) = (evaluate(graph, {"image": x})[name] for name in graph.outputs)
    session = ort.InferenceSession(
        str(models / "digits_float.onnx"), providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(logits, session.run(None, {"image": x})[0], rtol=1e-3, atol=1e-3)
    assert (logits.argmax(axis=1) == y).mean() >= 0.975


def test_committed_files_are_small(models: Path) -> None:
    """The language model has a bound of its own."""
    sizes = {path.name: path.stat().st_size for path in models.iterdir()}
    assert sizes.pop("words.gguf") < 400_000
    assert sum(sizes.values()) < 300_000


@pytest.mark.more
@pytest.mark.slow
def test_training_script_makes_such_files(models: Path, tmp_path: Path, monkeypatch) -> None:
    path = models.parent / "01_digits.py"
    spec = importlib.util.spec_from_file_location("digits_example", path)
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "digits_example", script)
    spec.loader.exec_module(script)
    monkeypatch.setattr("sys.argv", ["01_digits.py", "--out", str(tmp_path), "--epochs", "3"])
    script.main()
    archive = np.load(tmp_path / "digits_test.npz")
    committed = np.load(models / "digits_test.npz")
    assert np.array_equal(archive["x"], committed["x"])
    made = run_passes(import_onnx(tmp_path / "digits_int8.onnx", Sizes(len(archive["x"]))))
    kept = run_passes(import_onnx(models / "digits_int8.onnx"))
    assert [type(n.op) for n in made.nodes] == [type(n.op) for n in kept.nodes]
    values = evaluate(made, {"image": archive["x"]})
    assert (values[made.outputs[0]].argmax(axis=1) == archive["y"]).mean() > 0.5
