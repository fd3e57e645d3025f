"""What converters write that the kernels read past: scales of biases, tables of options, shapes."""

from __future__ import annotations

import numpy as np
import pytest
import tflite
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.errors import VdlaError

from .single.draft import Case, micro
from .tflite_builder import TfliteBuilder

RNG = np.random.default_rng(51)


def whole(*shape: int, low: int = -128, high: int = 128, dtype: str = "int8") -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def assert_as_micro(data: bytes, *inputs: np.ndarray) -> None:
    """The interpreter and the CPU's code compute what TensorFlow Lite Micro computes."""
    pytest.importorskip("tflite_micro", reason="tflite-micro is there for Linux on x86-64 only")
    wanted = micro(Case(data, list(inputs)))
    graph = import_tflite(data)
    for found in (interpret(graph, *inputs), build_cpu(run_passes(graph)).run(*inputs)):
        for made, right in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(made, right)


def convolution(kind: str, axis: int, bias_scales: int) -> bytes:
    """A convolution of four channels whose bias has scales along a dimension."""
    b, depthwise = TfliteBuilder(), kind == "DEPTHWISE_CONV_2D"
    x, y = (b.tensor((1, 4, 4, 4), "int8", [s], [1]) for s in (0.1, 0.4))
    shape = (1, 3, 3, 4) if depthwise else (4, 3, 3, 4)
    scales, zeros = [0.01, 0.02, 0.03, 0.015], [0] * bias_scales
    w = b.tensor(shape, "int8", scales, [0] * 4, 3 if depthwise else 0, whole(*shape, low=-127))
    stored = whole(4, low=-900, high=900, dtype="int32")
    bias = b.tensor((4,), "int32", [0.001] * bias_scales, zeros, axis, stored)
    table = "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions"
    more = {"DepthMultiplier": 1} if depthwise else {}
    b.operator(kind, [x, w, bias], [y], table, StrideH=1, StrideW=1, **more)
    return b.file([x], [y])


@pytest.mark.parametrize("kind", ["CONV_2D", "DEPTHWISE_CONV_2D"])
@pytest.mark.parametrize("axis, scales", [(3, 4), (1, 4), (0, 3), (0, 7)])
def test_scales_of_a_bias_are_not_read(kind: str, axis: int, scales: int) -> None:
    assert_as_micro(convolution(kind, axis, scales), whole(1, 4, 4, 4))


@pytest.mark.parametrize("table", ["", "Pool2DOptions"], ids=["absent", "of another type"])
@pytest.mark.parametrize("kind", ["ADD", "SUB", "MUL", "CONCATENATION", "MEAN", "FULLY_CONNECTED"])
def test_options_of_another_type_are_the_defaults(kind: str, table: str) -> None:
    b = TfliteBuilder()
    x = b.tensor((2, 6), "int8", [0.1], [1])
    made = {"CONCATENATION": (4, 6), "MEAN": (2,), "FULLY_CONNECTED": (2, 3)}.get(kind, (2, 6))
    y = b.tensor(made, "int8", [0.1 if kind == "CONCATENATION" else 0.2], [1])
    if kind == "MEAN":
        other = b.tensor((1,), "int32", data=np.array([1], np.int32))
    elif kind == "FULLY_CONNECTED":
        other = b.tensor((3, 6), "int8", [0.1], [0], data=whole(3, 6, low=-127))
    else:
        other = b.tensor((2, 6), "int8", [0.1], [1 if kind == "CONCATENATION" else -4])
    b.operator(kind, [x, other], [y], table)
    given = [x] if kind in ("MEAN", "FULLY_CONNECTED") else [x, other]
    assert_as_micro(b.file(given, [y]), *[whole(2, 6) for _ in given])


def test_options_that_an_operator_needs_are_missed() -> None:
    """Zero strides are no default that computes something."""
    b = TfliteBuilder()
    x, y = b.tensor((1, 4, 4, 1), "int8", [0.1], [0]), b.tensor((1, 4, 4, 1), "int8", [0.1], [0])
    b.operator("MAX_POOL_2D", [x], [y], "MulOptions")
    with pytest.raises(VdlaError, match=r"MAX_POOL_2D.*at least 1x1, got"):
        import_tflite(b.file([x], [y]))


@pytest.mark.parametrize(
    "beta, scale, shape", [(1, 0.1, (3, 10)), (0.5, 1.0, (7,)), (1, 0.02, (2, 500)), (1, 20, (9,))]
)
def test_softmax_of_int8_to_int16(beta: float, scale: float, shape: tuple[int, ...]) -> None:
    b = TfliteBuilder()
    x, y = b.tensor(shape, "int8", [scale], [3]), b.tensor(shape, "int16", [2**-16], [-(2**15)])
    b.operator("SOFTMAX", [x], [y], "SoftmaxOptions", Beta=beta)
    assert_as_micro(b.file([x], [y]), whole(*shape))


def test_softmax_to_int16_of_another_scale_is_refused() -> None:
    b = TfliteBuilder()
    x, y = b.tensor((1, 4), "int8", [0.1], [0]), b.tensor((1, 4), "int16", [2**-15], [0])
    b.operator("SOFTMAX", [x], [y], "SoftmaxOptions", Beta=1)
    with pytest.raises(VdlaError, match=r"scale 1/65536 and zero point -32768, got .*, 0"):
        import_tflite(b.file([x], [y]))


SAME, VALID = tflite.Padding.SAME, tflite.Padding.VALID


def transposed(padding: int, kernel: int, size: int, constant: bool) -> bytes:
    """A transposed convolution with stride 2 of six rows to ``size`` rows."""
    b = TfliteBuilder()
    x, shape = b.tensor((1, 6, 1, 3), "float32"), np.array([1, size, 1, 2], np.int32)
    weight = np.arange(6 * kernel, dtype=np.float32).reshape(2, kernel, 1, 3) - 7
    w, y = b.tensor(weight.shape, "float32", data=weight), b.tensor(tuple(shape), "float32")
    given = b.tensor((4,), "int32", data=shape if constant else None)
    b.operator("TRANSPOSE_CONV", [given, w, x], [y], "TransposeConvOptions", Padding=padding,
               StrideH=2, StrideW=1)  # fmt: skip
    return b.file([x] if constant else [x, given], [y])


@pytest.mark.parametrize(
    "padding, kernel, size", [(SAME, 4, 12), (SAME, 5, 12), (VALID, 4, 14), (VALID, 1, 12)]
)
def test_a_computed_shape_follows_from_the_image(padding: int, kernel: int, size: int) -> None:
    x = RNG.normal(size=(1, 6, 1, 3)).astype(np.float32)
    (right,) = interpret(import_tflite(transposed(padding, kernel, size, True)), x)
    graph = import_tflite(transposed(padding, kernel, size, False))
    (found,) = interpret(graph, x, np.array(right.shape, np.int32))
    assert found.shape == (1, size, 1, 2)
    np.testing.assert_array_equal(found, right)


def test_a_computed_shape_that_does_not_follow_is_refused() -> None:
    with pytest.raises(VdlaError, match=r"computes shape \[1, 12, 1, 2\], the file says \[1, 13"):
        import_tflite(transposed(SAME, 4, 13, False))
