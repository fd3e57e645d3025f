"""Files that TensorFlow's own converter wrote, and recurrent layers, against its own interpreter.

``golden/tflite_converted.npz`` holds files of TensorFlow 2.21's converter, two runs' inputs and the
outputs of its reference kernels (``OpResolverType.BUILTIN_REF``); the networks have random weights.
``golden/tflite_recurrent.npz`` holds the outputs of those kernels (ai-edge-litert 2.3) for
``recurrent_cases.py``, by number, run and output.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret_runs
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.errors import VdlaError

from .recurrent_cases import KINDS, RUNS, recurrent_case
from .tflite_builder import TfliteBuilder

GOLDEN = Path(__file__).parent / "golden"
CONVERTED = dict(np.load(GOLDEN / "tflite_converted.npz"))
RECURRENT = dict(np.load(GOLDEN / "tflite_recurrent.npz"))
NAMES = sorted({key.split(":")[0] for key in CONVERTED})
ON_CPU = (
    "causal.int8", "conv3d.f", "dyns2b.f", "math2.f", "nms5.f", "o_eins.int8", "scatter_dyn.f",
    "stft.f",
)  # fmt: skip


def check(made: np.ndarray, wanted: np.ndarray) -> None:
    """Integers are exact; floats differ in their last bits."""
    assert made.dtype == wanted.dtype and made.shape == wanted.shape
    if wanted.dtype.kind != "f":
        np.testing.assert_array_equal(made, wanted)
        return
    limit = 2e-6 * max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=limit)


def stored(name: str, what: str) -> list[np.ndarray]:
    found = []
    while f"{name}:{what}_{len(found)}" in CONVERTED:
        found.append(CONVERTED[f"{name}:{what}_{len(found)}"])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_converted_file(name: str) -> None:
    graph = import_tflite(CONVERTED[f"{name}:file"].tobytes())
    runs = interpret_runs(graph, stored(name, "in0"), stored(name, "in1"))
    for number, made in enumerate(runs):
        wanted = stored(name, f"out{number}")
        assert len(made) == len(wanted)
        for pair in zip(made, wanted, strict=True):
            check(*pair)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_CPU)
def test_converted_file_on_the_cpu(name: str) -> None:
    module = build_cpu(run_passes(import_tflite(CONVERTED[f"{name}:file"].tobytes())))
    for pair in zip(module.run(*stored(name, "in0")), stored(name, "out0"), strict=True):
        check(*pair)


@pytest.mark.parametrize("number", range(len(KINDS) * 9))
def test_recurrent_layer(number: int) -> None:
    data, runs = recurrent_case(number)
    made = interpret_runs(import_tflite(data), *[[x] for x in runs])
    for run in range(RUNS):
        for output, value in enumerate(made[run]):
            check(value, RECURRENT[f"{number}.{run}.{output}"])


@pytest.mark.fast(1)
@pytest.mark.parametrize("number", range(len(KINDS)))
def test_recurrent_layer_on_the_cpu(number: int) -> None:
    data, runs = recurrent_case(number)
    graph = import_tflite(data)
    made = build_cpu(run_passes(graph)).run(runs[0], *graph.states)
    check(made[0], RECURRENT[f"{number}.0.0"])


# ---- sparse constants ----------------------------------------------------------------------------


def sparse_file(wrong: str = "") -> tuple[bytes, np.ndarray]:
    """A matrix [4, 4] in blocks of [2, 1], of which three are stored, and what it means."""
    b = TfliteBuilder()
    dense = np.zeros((4, 4), np.float32)
    dense[0:2, 1], dense[2:4, 0], dense[2:4, 3] = (1, 2), (3, 4), (5, 6)
    places = [1, 0, 9 if wrong == "place" else 3]
    segments = [0, 1, 2 if wrong == "segment" else 3]
    sparsity = b.sparsity([0, 1, 2], [0], [2, (segments, places), 2])
    values = np.arange(1, 6 if wrong == "count" else 7, dtype=np.float32)
    weight = b.tensor((4, 4), "float32", data=dense, stored=values, sparsity=sparsity)
    made, x, y = (b.tensor((4, 4), "float32") for _ in range(3))
    b.operator("DENSIFY", [weight], [made])
    b.operator("ADD", [x, made], [y], "AddOptions")
    return b.file([x], [y]), dense


def test_sparse_constant() -> None:
    data, dense = sparse_file()
    x = np.ones((4, 4), np.float32)
    [[made]] = interpret_runs(import_tflite(data), [x])
    np.testing.assert_array_equal(made, dense + 1)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("place", r"an element lies outside of \[4, 4\]"),
        ("segment", "expected 2 places, got 3"),
        ("count", "expected 6 elements, got 20 bytes"),
    ],
)
def test_damaged_sparse_constant(wrong: str, why: str) -> None:
    with pytest.raises(VdlaError, match=why):
        import_tflite(sparse_file(wrong)[0])
