"""Every operator of TensorFlow Lite Micro, by type, against its own kernels.

Three cases of each operator and type, or as many as ``VDLA_FUZZ`` says (``make operators``). The
table in docs/tflite.md says what is expected of each.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu

from .single.draft import Draft, micro
from .single.table import (
    EXACT,
    NONE,
    REFUSED,
    ROUNDED,
    ROWS,
    TOLERANCE,
    TYPES,
    cells,
    draw,
    outcome,
)

pytest.importorskip("tflite_micro", reason="tflite-micro is there for Linux on x86-64 only")

CASES = int(os.environ.get("VDLA_FUZZ", "3"))
CELLS = cells()
#: Cases that are compiled for the CPU, too.
ON_CPU = max(2, CASES // 10)
#: What a case may be, by the table's word for its operator and type.
ALLOWED = {
    EXACT: {EXACT, NONE},
    ROUNDED: {EXACT, ROUNDED, NONE},
    REFUSED: {EXACT, ROUNDED, REFUSED, NONE},
    NONE: {NONE},
}
#: Operators that the table says are exact in some type.
EXACT_AT_LEAST = 111


def test_the_table_has_every_operator() -> None:
    assert {kind for kind, _ in CELLS} == {*ROWS}
    integers = {kind for (kind, dtype), word in CELLS.items() if word == EXACT}
    assert len(integers) >= EXACT_AT_LEAST


@pytest.mark.fast(23)
@pytest.mark.parametrize("kind", ROWS)
def test_operator_is_what_the_table_says(kind: str) -> None:
    for dtype in TYPES:
        word = CELLS[kind, dtype]
        for number in range(CASES if word else 1):
            assert outcome(draw(kind, dtype, number)) in ALLOWED[word], (dtype, number)


def test_inverse_roots_of_every_int16() -> None:
    """With a scale whose multiplier shows every rounding of the kernel: in float32 it is wrong."""
    d = Draft(np.random.default_rng(0), "int16")
    values = np.arange(1, 1 << 15, dtype=np.int16)
    x = d.x(values.shape, quant=(0.001, 0), values=values)
    case = d.case("RSQRT", [x], [d.y(values.shape, quant=(0.0001, 0))])
    (y,) = interpret(import_tflite(case.data), values)
    np.testing.assert_array_equal(y, micro(case)[0])


@pytest.mark.parametrize("half", [2, 5, 1000])
def test_the_bound_of_int16_is_rounded_in_float32(half: int) -> None:
    """A bound between two steps goes away from zero, also where float64 would say otherwise."""
    d = Draft(np.random.default_rng(0), "int16")
    scale, values = float(np.float32(6.0 / (half + 0.5))), np.array([32767], np.int16)
    x = d.x(values.shape, quant=(scale, 0), values=values)
    case = d.case("RELU6", [x], [d.y(values.shape, quant=(scale, 0))])
    (y,) = interpret(import_tflite(case.data), values)
    np.testing.assert_array_equal(y, micro(case)[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROWS)
def test_cpu_equals_the_interpreter(kind: str) -> None:
    """Bit for bit, also of float32 where the table says so."""
    for dtype in TYPES:
        word = CELLS[kind, dtype]
        if word not in (EXACT, ROUNDED):
            continue
        for number in range(ON_CPU):
            case = draw(kind, dtype, number)
            if outcome(case) not in (EXACT, ROUNDED):
                continue
            graph = import_tflite(case.data)
            made = build_cpu(run_passes(graph)).run(*case.inputs, *graph.states)
            expected = interpret(graph, *case.inputs)
            for y, wanted in zip(made[: len(expected)], expected, strict=True):
                if word == ROUNDED:
                    np.testing.assert_allclose(y, wanted, rtol=TOLERANCE, atol=TOLERANCE)
                else:
                    np.testing.assert_array_equal(y, wanted, f"{dtype}, case {number}")
