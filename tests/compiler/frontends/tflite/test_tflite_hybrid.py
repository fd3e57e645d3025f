"""Float layers with weights of int8 against what TensorFlow Lite's reference kernels compute.

``golden/tflite_hybrid.npz`` holds the outputs of TensorFlow 2.21's reference kernels
(``OpResolverType.BUILTIN_REF``) for the files and inputs of ``hybrid_cases.py``, by number;
``golden/tflite_hybrid_memory.npz`` those of tflite-runtime 2.14's in several runs of
``hybrid_memory_cases.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret, interpret_runs
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu

from .hybrid_cases import hybrid_case
from .hybrid_memory_cases import RUNS, hybrid_memory_case
from .tflite_builder import TfliteBuilder

GOLDEN = dict(np.load(Path(__file__).parent / "golden" / "tflite_hybrid.npz"))
MEMORY = dict(np.load(Path(__file__).parent / "golden" / "tflite_hybrid_memory.npz"))
ON_CPU = 12


@pytest.mark.parametrize("number", GOLDEN)
def test_interpreter_is_exact(number: str) -> None:
    data, x = hybrid_case(int(number))
    np.testing.assert_array_equal(interpret(import_tflite(data), x)[0], GOLDEN[number])


@pytest.mark.fast(1)
@pytest.mark.parametrize("number", range(ON_CPU))
def test_cpu_is_exact(number: int) -> None:
    data, x = hybrid_case(number)
    [made] = build_cpu(run_passes(import_tflite(data))).run(x)
    np.testing.assert_array_equal(made, GOLDEN[str(number)])


def test_halves_are_rounded_before_the_zero_point_is_added() -> None:
    """TensorFlow 2.21 computes these integers, from a scale of 1 and a zero point of 28."""
    x = np.array([[-100, 155, 0.5, -0.5, 1.5, -1.5, 100.5, -99.5, 127.5]], np.float32)
    b, count = TfliteBuilder(), x.shape[1]
    given, made = (b.tensor(x.shape, "float32") for _ in range(2))
    w = b.tensor((count, count), "int8", [1.0], [0], data=np.eye(count, dtype=np.int8))
    b.operator("FULLY_CONNECTED", [given, w], [made], "FullyConnectedOptions",
               AsymmetricQuantizeInputs=1)  # fmt: skip
    [found] = interpret(import_tflite(b.file([given], [made])), x)[0]
    assert found.tolist() == [-100, 155, 1, -1, 2, -2, 101, -100, 128]


@pytest.mark.parametrize("number", range(len(MEMORY) // RUNS))
def test_memories_differ_in_last_bits(number: int) -> None:
    """Float sums over time are in another order, and LSTMs have another library's functions."""
    data, runs = hybrid_memory_case(number)
    made = interpret_runs(import_tflite(data), *[[x] for x in runs])
    for run in range(RUNS):
        wanted = MEMORY[f"{number}.{run}"]
        limit = 2e-6 * max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(made[run][0], wanted, rtol=0, atol=limit)


@pytest.mark.fast(1)
@pytest.mark.parametrize("number", range(4))
def test_memories_on_the_cpu(number: int) -> None:
    data, runs = hybrid_memory_case(number)
    graph = import_tflite(data)
    made = build_cpu(run_passes(graph)).run(runs[0], *graph.states)
    np.testing.assert_allclose(made[0], MEMORY[f"{number}.0"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("asymmetric", [0, 1])
def test_a_scale_for_each_row_of_a_dense_layer(asymmetric: int) -> None:
    """As the layer with one scale and weights of one row, which the golden files prove."""
    rng = np.random.default_rng(asymmetric)
    weight, bias = rng.integers(-127, 128, (5, 9), np.int8), rng.normal(size=5).astype(np.float32)
    scales, x = rng.uniform(0.01, 0.1, 5), rng.normal(size=(3, 9)).astype(np.float32)

    def layer(rows: slice) -> np.ndarray:
        b = TfliteBuilder()
        count = len(bias[rows])
        given, made = b.tensor(x.shape, "float32"), b.tensor((3, count), "float32")
        w = b.tensor((count, 9), "int8", scales[rows].tolist(), [0] * count, data=weight[rows])
        c = b.tensor((count,), "float32", data=bias[rows])
        b.operator("FULLY_CONNECTED", [given, w, c], [made], "FullyConnectedOptions",
                   AsymmetricQuantizeInputs=asymmetric)  # fmt: skip
        return interpret(import_tflite(b.file([given], [made])), x)[0]

    parts = [layer(slice(i, i + 1)) for i in range(5)]
    np.testing.assert_array_equal(layer(slice(None)), np.concatenate(parts, axis=1))
