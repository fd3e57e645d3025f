"""Small TensorFlow Lite models against what its reference kernels compute.

``golden/tflite_operators.npz`` holds the outputs of tflite-runtime 2.14's reference kernels
(``OpResolverType.BUILTIN_REF``) for the files and inputs of ``tflite_cases.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.arithmetic.fixed_point import lifted
from vdla.compiler.graph.arithmetic.lift import FRACTION_BITS, lift
from vdla.compiler.graph.arithmetic.requant import mean_requant, tflite_params, tflite_requant
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ops.integer import QAdd, QAddFixed
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.graph.passes.exact_add import equal_add
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.params import HwParams

from .tflite_cases import CASES, RELU, pairwise

GOLDEN = dict(np.load(Path(__file__).parent / "golden" / "tflite_operators.npz"))
#: Outputs that float32 functions of the C library decide; the others are exact.
FLOAT = {"float_network"}
LAST_BIT = {"logistic", "logistic_uint8", "tanh", "tanh_uint8"}


def assert_same(name: str, y: np.ndarray, expected: np.ndarray) -> None:
    """Equal, but for the order in which float operators add."""
    if name in FLOAT:
        np.testing.assert_allclose(y, expected, rtol=1e-5)
    else:
        np.testing.assert_array_equal(y, expected)


def test_every_case_has_a_reference() -> None:
    assert set(CASES) == set(GOLDEN)


@pytest.mark.parametrize("name", CASES)
def test_interpreter_is_exact(name: str) -> None:
    data, inputs = CASES[name]()
    (y,) = interpret(import_tflite(data), *inputs)
    assert len(np.unique(GOLDEN[name])) >= 5, "too few values occur for the test to mean anything"
    assert y.dtype == GOLDEN[name].dtype
    if name in LAST_BIT:
        assert np.abs(y.astype(int) - GOLDEN[name]).max() <= 1
        assert (y != GOLDEN[name]).mean() < 0.01
    else:
        assert_same(name, y, GOLDEN[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_cpu_equals_the_interpreter(name: str) -> None:
    data, inputs = CASES[name]()
    graph = import_tflite(data)
    (expected,) = interpret(graph, *inputs)
    (y,) = build_cpu(run_passes(graph)).run(*inputs)
    assert_same(name, y, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_simulator_equals_the_interpreter(name: str) -> None:
    data, inputs = CASES[name]()
    (expected,) = interpret(import_tflite(data), *inputs)
    module = vdla.compile(data, target="sim")
    (y,) = module.run(*inputs)
    assert_same(name, y, expected)


def test_mean_divides_exactly() -> None:
    for count in (1, 2, 3, 6, 49, 64, 125, 1000, 4096, 2**21):
        largest = 128 * count
        total = np.unique(np.linspace(-largest, largest, 30001).astype(np.int32))
        ties = np.arange(-count * 9, count * 9, max(count, 1), dtype=np.int32) + count // 2
        for values in (total, ties):
            wide = values.astype(np.int64)
            away = np.sign(wide) * ((np.abs(wide) + count // 2) // count)
            made = mean_requant(count, 0).apply(values[:, None])[:, 0]
            np.testing.assert_array_equal(made, np.clip(away, -128, 127))


def addition(rng: np.random.Generator) -> QAddFixed:
    """A TensorFlow Lite addition or subtraction with random scales and zero points."""
    a, b, spread = (np.float32(v) for v in np.exp(rng.uniform(-3, 1, 3)))
    y = np.float32(max(a, b) * spread)
    zero_a, zero_b, zero = (int(v) for v in rng.integers(-128, 128, 3))
    widest = 2 * float(max(a, b))
    params = (*tflite_params(float(a) / widest), *tflite_params(float(b) / widest))
    lo = int(rng.integers(-128, 60))
    requant = tflite_requant(np.array([widest / (2.0**20 * float(y))]), zero, lo)
    return QAddFixed(zero_a, zero_b, *params, bool(rng.integers(2)), requant)


@pytest.mark.slow
def test_additions_become_the_accelerators() -> None:
    rng = np.random.default_rng(2)
    pairs = np.meshgrid(*[np.arange(-128, 128).astype(np.int8)] * 2)
    found = 0
    for _ in range(60):
        fixed = addition(rng)
        op = equal_add(fixed)
        if op is not None:
            assert isinstance(op, QAdd)
            np.testing.assert_array_equal(op.evaluate(*pairs), fixed.evaluate(*pairs))
            found += 1
    assert found >= 57


@pytest.mark.fast(4)
@pytest.mark.parametrize("fused", [0, RELU])
@pytest.mark.parametrize("kind", ["ADD", "SUB"])
@pytest.mark.parametrize(
    "a, b, y",
    [(0.031, 0.052, 0.061), (0.5, 0.5, 1.0), (0.0393935, 0.1041949, 0.0509456), (1.0, 0.001, 0.7)],
)
def test_additions_run_on_the_accelerator(
    a: float, b: float, y: float, kind: str, fused: int
) -> None:
    scales = {"a": (a, -7), "b": (b, 100), "y": (y, -20)}
    data, inputs = pairwise(kind, **scales, shape=(1, 16, 16, 16), fused=fused)
    module = vdla.compile(data)
    (result,) = module.run(*inputs)
    (expected,) = interpret(import_tflite(data), *inputs)
    np.testing.assert_array_equal(result, expected)
    assert [la.target for la in module.compiled.layers if la.name.startswith(kind.lower())] == [
        "accel"
    ]


@pytest.mark.fast(1)
@pytest.mark.parametrize("vthreads", [1, 2, 4])
def test_additions_fit_small_scratchpads(vthreads: int) -> None:
    data, inputs = pairwise(shape=(1, 7, 6, 11))
    small = HwParams(block_in=8, block_out=8, tmp_depth=23, out_depth=9, inp_depth=31)
    (y,) = vdla.compile(data, hw=small, vthreads=vthreads).run(*inputs)
    (expected,) = interpret(import_tflite(data), *inputs)
    np.testing.assert_array_equal(y, expected)


def test_operands_are_lifted_exactly() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        op = addition(rng)
        x = np.arange(-128, 128, dtype=np.int32)
        for side in ((op.zero_a, op.mult_a, op.shift_a), (op.zero_b, op.mult_b, op.shift_b)):
            found = lift(*side)
            assert found is not None
            h = x * found.high + ((x * found.low + found.rest) >> FRACTION_BITS) + found.offset
            y = (h + (h >> 31) + (1 << found.shift >> 1)) >> found.shift if found.shift else h
            np.testing.assert_array_equal(y, lifted(x, *side))


@pytest.mark.slow
def test_an_addition_with_ties_is_exact_for_all_operands() -> None:
    """Round scales have ties that only three roundings in a row decide as TensorFlow Lite does."""
    ties = {"a": (0.031, -7), "b": (0.09, 4), "y": (0.1, 2)}
    data, _ = pairwise(**ties, shape=(1, 64, 64, 16))
    pairs = np.meshgrid(*[np.arange(-128, 128).astype(np.int8)] * 2)
    inputs = [side.reshape(1, 64, 64, 16) for side in pairs]
    graph = import_tflite(data)
    (node,) = [n for n in graph.nodes if isinstance(n.op, QAddFixed)]
    assert isinstance(node.op, QAddFixed) and equal_add(node.op) is None
    (y,) = vdla.compile(data).run(*inputs)
    (expected,) = interpret(graph, *inputs)
    np.testing.assert_array_equal(y, expected)
