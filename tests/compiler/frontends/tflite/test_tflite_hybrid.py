"""Float layers with weights of int8 against what TensorFlow Lite's reference kernels compute.

``golden/tflite_hybrid.npz`` holds the outputs of tflite-runtime 2.14's reference kernels
(``OpResolverType.BUILTIN_REF``) for the files and inputs of ``hybrid_cases.py``, by number.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.errors import VdlaError

from .hybrid_cases import hybrid_case
from .tflite_builder import TfliteBuilder

GOLDEN = dict(np.load(Path(__file__).parent / "golden" / "tflite_hybrid.npz"))
ON_CPU = 12


@pytest.mark.parametrize("number", GOLDEN)
def test_interpreter_is_exact(number: str) -> None:
    data, x = hybrid_case(int(number))
    np.testing.assert_array_equal(interpret(import_tflite(data), x)[0], GOLDEN[number])


@pytest.mark.parametrize("number", range(ON_CPU))
def test_cpu_is_exact(number: int) -> None:
    data, x = hybrid_case(number)
    [made] = build_cpu(run_passes(import_tflite(data))).run(x)
    np.testing.assert_array_equal(made, GOLDEN[str(number)])


def test_a_scale_for_each_row_of_a_dense_layer_is_refused() -> None:
    b = TfliteBuilder()
    x, y = b.tensor((1, 4), "float32"), b.tensor((1, 2), "float32")
    w = b.tensor((2, 4), "int8", [0.1, 0.2], [0, 0], data=np.ones((2, 4), np.int8))
    b.operator("FULLY_CONNECTED", [x, w], [y], "FullyConnectedOptions")
    with pytest.raises(VdlaError, match=r"a weight matrix of one scale .* and 2 scales"):
        import_tflite(b.file([x], [y]))
