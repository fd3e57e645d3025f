"""Trained TensorFlow Lite models: every tensor equal to the reference interpreter's, everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import evaluate
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.memory import load_platform
from vdla.module import Module
from vdla.runtime.bundle import Settings

from ...building import build_for

MODELS = Path(__file__).parents[5] / "shared" / "models"
INT8 = sorted(path.parent for path in MODELS.glob("*_int8/model.tflite"))
pytestmark = pytest.mark.skipif(not INT8, reason="needs ../shared/models")
DATA = [data for folder in INT8 for data in (folder / "random.npz", folder / "real.npz")]
CASES = [pytest.param(d, id=f"{d.parent.name}-{d.stem}") for d in DATA if d.exists()]
#: Samples that are run, of each file; the first are as good as any.
SAMPLES = 4
#: Share of multiply-accumulates that the accelerator does at least.
ACCELERATED = 0.99


def model_of(data: Path) -> Path:
    return data.parent / "model.tflite"


def references(data: Path) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Input, and every tensor of the file by index (``t<index>``; the output alone if that is all
    there is), of some samples."""
    arrays, layers = np.load(data), data.with_name(f"{data.stem}_layers.npz")
    traced = dict(np.load(layers)) if layers.exists() else {}
    for i in range(min(SAMPLES, len(arrays["x0"]))):
        yield (
            arrays["x0"][i : i + 1],
            {
                **{name: values[i] for name, values in traced.items()},
                "output": arrays["y0"][i : i + 1],
            },
        )


def everything(graph: Graph) -> Graph:
    """The graph with the result of every node as an output."""
    return replace(graph, outputs=tuple(node.output for node in graph.nodes))


def check(
    graph: Graph, outputs: tuple[str, ...], values: dict[str, np.ndarray], expected: dict
) -> int:
    """Compare what we computed with what the file of tensors holds; returns how many there were."""
    np.testing.assert_array_equal(values[outputs[0]], expected["output"])
    compared = 0
    for name, value in values.items():
        index, _, layout = name.partition(".")
        if graph[name].is_constant or index not in expected or layout not in ("", "nchw"):
            continue
        value = value.transpose(0, 2, 3, 1) if layout == "nchw" else value
        np.testing.assert_array_equal(value, expected[index], err_msg=f"tensor {name}")
        compared += 1
    return compared


def layers_in(data: Path) -> int:
    """Intermediate tensors to compare at least: all that operators compute, but the last one."""
    if not data.with_name(f"{data.stem}_layers.npz").exists():
        return 0
    return len(import_tflite(model_of(data)).nodes) - 4


@pytest.mark.fast(1)
@pytest.mark.parametrize("data", CASES)
def test_every_tensor_in_the_interpreter(data: Path) -> None:
    graph = import_tflite(model_of(data))
    for x, expected in references(data):
        values = evaluate(graph, {graph.inputs[0]: x})
        assert check(graph, graph.outputs, values, expected) >= layers_in(data)


@pytest.mark.slow
@pytest.mark.parametrize("data", CASES)
def test_every_tensor_on_the_cpu(data: Path) -> None:
    graph = import_tflite(model_of(data))
    whole = run_passes(everything(graph))
    module = build_cpu(whole)
    for x, expected in references(data):
        values = dict(zip(whole.outputs, module.run(x), strict=True))
        assert check(whole, graph.outputs, values, expected) >= layers_in(data)


@pytest.mark.fast(2)
@pytest.mark.parametrize("data", CASES)
def test_every_tensor_in_the_simulator(data: Path) -> None:
    graph = import_tflite(model_of(data))
    params, memory = load_platform("16x16", "vta")
    compiled = build_for("sim", everything(graph), params, memory)
    module = Module(compiled, Settings("sim", params, memory, 2, ""))
    names = [tensor.name for tensor in module.compiled.outputs]
    samples = list(references(data))
    results = module.run(np.concatenate([x for x, _ in samples]))
    for i, (_, expected) in enumerate(samples):
        values = {n: result[i : i + 1] for n, result in zip(names, results, strict=True)}
        assert check(graph, graph.outputs, values, expected) >= layers_in(data)


@pytest.mark.fast(1)
@pytest.mark.parametrize("target", ["cpu", "sim"])
@pytest.mark.parametrize(
    ("name", "atol"),
    # Scores up to 43, whose sums come in another order: 5e-6 apart where they are near 0.
    [("mlperf_ad01_fp32", 1e-5), ("mlperf_resnet8_fp32", 1e-6)],
)
def test_float_models(name: str, atol: float, target: str) -> None:
    data = np.load(MODELS / name / "random.npz")
    (y,) = vdla.compile(MODELS / name / "model.tflite", target=target).run(data["x0"])
    np.testing.assert_allclose(y, data["y0"], rtol=1e-4, atol=atol)


@pytest.mark.fast(1)
@pytest.mark.parametrize("folder", INT8, ids=[folder.name for folder in INT8])
def test_share_of_the_accelerator(folder: Path) -> None:
    module = vdla.compile(folder / "model.tflite", target="sim")
    layers = module.compiled.layers
    share = sum(la.macs for la in layers if la.target == "accel") / sum(la.macs for la in layers)
    assert share >= ACCELERATED
    assert all(layer.reason and "float" not in layer.reason for layer in layers)


@pytest.mark.fast(1)
@pytest.mark.parametrize("target", ["cpu", "sim"])
def test_all_samples_of_the_smallest_model(target: str) -> None:
    folder = MODELS / "mlperf_ad01_int8"
    data = np.load(folder / "real.npz")
    (y,) = vdla.compile(folder / "model.tflite", target=target).run(data["x0"])
    np.testing.assert_array_equal(y, data["y0"])
