"""What converters write besides operators: further subgraphs, unused tensors, weights of float16,
shapes that are computed."""

from __future__ import annotations

import numpy as np
import pytest
import tflite
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ops.convolution import Conv2d
from vdla.compiler.graph.ops.linear import Dense
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.errors import VdlaError

from .tflite_builder import TfliteBuilder


def dense(stored: np.ndarray, dtype: str, **quant: object) -> tuple[bytes, np.ndarray]:
    """A dense float layer whose weights pass through DEQUANTIZE."""
    b = TfliteBuilder()
    x, w = b.tensor((2, 4), "float32"), b.tensor((3, 4), dtype, data=stored, **quant)  # type: ignore[arg-type]
    wide, y = b.tensor((3, 4), "float32"), b.tensor((2, 3), "float32")
    b.operator("DEQUANTIZE", [w], [wide], "DequantizeOptions")
    b.operator("FULLY_CONNECTED", [x, wide], [y], "FullyConnectedOptions")
    rng = np.random.default_rng(2)
    return b.file([x], [y]), rng.normal(size=(2, 4)).astype(np.float32)


WEIGHTS = np.arange(-6, 6).reshape(3, 4)
STORED = {
    "float16": (WEIGHTS.astype(np.float16) / 4, {}, WEIGHTS / 4),
    "int8": (WEIGHTS.astype(np.int8), {"scale": [0.5], "zero": [2]}, (WEIGHTS - 2) / 2),
    "channels": (
        WEIGHTS.astype(np.int8),
        {"scale": [0.5, 0.25, 1.0], "zero": [0, 0, 0]},
        WEIGHTS * np.array([[0.5], [0.25], [1.0]]),
    ),
}


@pytest.mark.parametrize("name", STORED)
def test_weights_that_are_dequantised(name: str) -> None:
    stored, quant, real = STORED[name]
    data, x = dense(stored, "float16" if name == "float16" else "int8", **quant)
    graph = import_tflite(data)
    assert [type(node.op) for node in graph.nodes] == [Dense]
    for made in (interpret(graph, x), build_cpu(run_passes(graph)).run(x)):
        np.testing.assert_allclose(made[0], x @ real.T.astype(np.float32), 1e-5)


def test_a_float16_input_is_refused() -> None:
    b = TfliteBuilder()
    x, y = b.tensor((2, 4), "float16"), b.tensor((2, 4), "float32")
    b.operator("DEQUANTIZE", [x], [y], "DequantizeOptions")
    with pytest.raises(VdlaError, match="expected a constant float16 tensor, got the computed"):
        import_tflite(b.file([x], [y]))


def test_shapes_that_are_computed() -> None:
    """SHAPE, STRIDED_SLICE, PACK and RESHAPE, as Keras' Flatten is converted."""
    b = TfliteBuilder()
    x = b.tensor((2, 3, 4), "float32")
    shape, first, new = b.tensor((3,), "int32"), b.tensor((), "int32"), b.tensor((2,), "int32")
    begin, end, step = (b.tensor((1,), "int32", data=np.array([n], np.int32)) for n in (0, 1, 1))
    rest = b.tensor((), "int32", data=np.array(12, np.int32))
    y = b.tensor((2, 12), "float32")
    b.operator("SHAPE", [x], [shape], "ShapeOptions", OutType=tflite.TensorType.INT32)
    b.operator("STRIDED_SLICE", [shape, begin, end, step], [first], "StridedSliceOptions",
               ShrinkAxisMask=1)  # fmt: skip
    b.operator("PACK", [first, rest], [new], "PackOptions", ValuesCount=2)
    b.operator("RESHAPE", [x, new], [y])
    graph = import_tflite(b.file([x], [y]))
    assert len(graph.nodes) == 1
    value = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(interpret(graph, value)[0], value.reshape(2, 12))


def test_a_constant_output_stays() -> None:
    b = TfliteBuilder()
    x, y = b.tensor((2, 3), "float32"), b.tensor((2,), "int32")
    b.operator("SHAPE", [x], [y], "ShapeOptions", OutType=tflite.TensorType.INT32)
    graph = import_tflite(b.file([x], [y]))
    assert interpret(graph, np.zeros((2, 3), np.float32))[0].tolist() == [2, 3]


def test_constants_of_uint8_are_folded_as_uint8() -> None:
    """As TensorFlow Lite Micro computes it, without folding."""
    b = TfliteBuilder()
    stored = np.arange(250, 256, dtype=np.uint8)
    c = b.tensor((6,), "uint8", [0.5], [128], data=stored)
    same, x = b.tensor((2, 3), "uint8", [0.5], [128]), b.tensor((2, 3), "uint8", [0.5], [128])
    y = b.tensor((4, 3), "uint8", [0.5], [128])
    b.operator("RESHAPE", [c], [same])
    b.operator("CONCATENATION", [same, x], [y], "ConcatenationOptions", Axis=0)
    value = np.arange(6, dtype=np.uint8).reshape(2, 3)
    made = interpret(import_tflite(b.file([x], [y])), value)[0]
    np.testing.assert_array_equal(made, np.concatenate([stored.reshape(2, 3), value]))


def test_unused_tensors_of_any_type() -> None:
    """Strings, sizes of 0 and variables that no operator reads."""
    b = TfliteBuilder()
    x = b.tensor((1, 4, 4, 1), "float32")
    b.tensor((3,), "string")
    b.tensor((0, 2), "float32")
    b.tensor((2,), "float32", variable=True)
    w = b.tensor((2, 3, 3, 1), "float32", data=np.ones((2, 3, 3, 1), np.float32))
    y = b.tensor((1, 4, 4, 2), "float32")
    b.operator("CONV_2D", [x, w], [y], "Conv2DOptions", StrideH=1, StrideW=1)
    graph = import_tflite(b.file([x], [y]))
    assert [type(node.op) for node in graph.nodes if isinstance(node.op, Conv2d)]


@pytest.mark.parametrize("kind", ["string", "zero"])
def test_used_tensors_are_refused_by_name(kind: str) -> None:
    b = TfliteBuilder()
    y = b.tensor((4,), "float32")
    match kind:
        case "string":
            x, why = b.tensor((4,), "string", name="s"), "tensor 1 's' has type STRING"
        case _:
            x, why = b.tensor((0,), "float32", name="s"), "tensor 1 's': expected positive dimen"
    b.operator("ABS", [x], [y])
    with pytest.raises(VdlaError, match=why):
        import_tflite(b.file([], [y]))


def test_further_subgraphs_are_left() -> None:
    b = TfliteBuilder()
    x, y = b.tensor((4,), "float32"), b.tensor((4,), "float32")
    b.operator("ABS", [x], [y])
    data = b.file([x], [y], subgraphs=3)
    value = np.array([-1, 2, -3, 4], np.float32)
    np.testing.assert_array_equal(interpret(import_tflite(data), value)[0], np.abs(value))
