"""What converters write besides operators: further subgraphs, unused tensors, weights of float16,
shapes that are computed."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tflite
import vdla
from vdla.compiler.frontends.sizes import Sizes
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


def test_tensors_of_float16_are_float32() -> None:
    """Also inputs; what is cast is rounded."""
    b = TfliteBuilder()
    x, half, y = b.tensor((4,), "float16"), b.tensor((4,), "float16"), b.tensor((4,), "float32")
    wide, flags = b.tensor((4,), "float32"), b.tensor((4,), "bool")
    b.operator("DEQUANTIZE", [x], [wide], "DequantizeOptions")
    b.operator("CAST", [wide], [half])
    b.operator("CAST", [half], [y])
    b.operator("CAST", [half], [flags])
    graph = import_tflite(b.file([x], [y, flags, half]))
    value = np.array([0.1, 0.0, -70000.0, 1e-9], np.float32)
    with np.errstate(over="ignore"):
        wanted = value.astype(np.float16).astype(np.float32)
    for made in (interpret(graph, value), build_cpu(run_passes(graph)).run(value)):
        np.testing.assert_array_equal(made[0], wanted)
        assert made[1].tolist() == [True, False, True, False]
        np.testing.assert_array_equal(made[2], wanted)


CAST = np.array([-300, -11.5, 130, 255.7, 40000, 3e9, -3e9, np.inf, np.nan], np.float32)
SATURATED = {
    "int8": [-128, -11, 127, 127, 127, 127, -128, 127, 0],
    "uint8": [0, 0, 130, 255, 255, 255, 0, 255, 0],
    "int16": [-300, -11, 130, 255, 32767, 32767, -32768, 32767, 0],
    "int32": [-300, -11, 130, 255, 40000, 2**31 - 1, -(2**31), 2**31 - 1, 0],
    "uint32": [0, 0, 130, 255, 40000, 3 * 10**9, 0, 2**32 - 1, 0],
}


@pytest.mark.parametrize("target", SATURATED)
def test_floats_saturate_when_they_become_integers(target: str) -> None:
    """As TensorFlow Lite Micro computes it; TensorFlow Lite in the case of uint8."""
    b = TfliteBuilder()
    x, y = b.tensor(CAST.shape, "float32"), b.tensor(CAST.shape, target)
    b.operator("CAST", [x], [y])
    graph = import_tflite(b.file([x], [y]))
    for made in (interpret(graph, CAST), build_cpu(run_passes(graph)).run(CAST)):
        assert made[0].dtype == target and made[0].tolist() == SATURATED[target]


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


def test_a_part_without_elements() -> None:
    """Of a concatenation, as the first step of a converted loop has it, which writes a list."""
    b = TfliteBuilder()
    parts = [np.zeros((n, 1, 3), np.float32) for n in (0, 6)]
    before, behind = (b.tensor(part.shape, "float32", data=part) for part in parts)
    x, y = b.tensor((1, 1, 3), "float32"), b.tensor((7, 1, 3), "float32")
    b.operator("CONCATENATION", [before, x, behind], [y], "ConcatenationOptions", Axis=0)
    value = np.arange(1, 4, dtype=np.float32).reshape(1, 1, 3)
    [made] = build_cpu(run_passes(import_tflite(b.file([x], [y])))).run(value)
    np.testing.assert_array_equal(made, np.concatenate([value, parts[1]]))


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
            x, why = b.tensor((0,), "float32", name="s"), r"computes shape \[0\], the file says"
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


def run(data: bytes, *inputs: np.ndarray) -> list[np.ndarray]:
    """What the interpreter and the CPU compute, which is the same."""
    graph = import_tflite(data)
    made = interpret(graph, *inputs)
    for y, z in zip(made, build_cpu(run_passes(graph)).run(*inputs), strict=True):
        np.testing.assert_array_equal(y, z)
    return made


SLICES = {
    "ellipsis": ([1, 0, 2], [2, 0, 3], [1, 1, 1], {"EllipsisMask": 2, "ShrinkAxisMask": 4},
                 np.s_[1:2, ..., 2]),
    "last": ([0, 1], [0, 3], [1, 1], {"EllipsisMask": 1}, np.s_[..., 1:3]),
    "new": ([0, 0, 1], [2, 0, 9], [1, 1, 2], {"NewAxisMask": 2, "BeginMask": 1},
            np.s_[:2, None, 1:9:2]),
    "both": ([0, 0, 0, -1], [0, 0, 0, 0], [1, 1, 1, 1],
             {"EllipsisMask": 1, "NewAxisMask": 6, "ShrinkAxisMask": 8},
             np.s_[..., None, None, -1]),
    "offset": ([1, 1], [1, 2], [1, 1], {"Offset": True}, np.s_[1:2, 1:3]),
    "back": ([-1, 4], [0, 0], [1, -2], {"ShrinkAxisMask": 1, "EndMask": 2}, np.s_[-1, 4::-2]),
}  # fmt: skip


@pytest.mark.parametrize("name", SLICES)
def test_slices_are_numpys(name: str) -> None:
    begin, end, strides, masks, index = SLICES[name]
    value = np.arange(2 * 5 * 3 * 4, dtype=np.float32).reshape(2, 5, 3, 4)
    wanted = value[index]
    b = TfliteBuilder()
    x, y = b.tensor(value.shape, "float32"), b.tensor(wanted.shape, "float32")
    parts = [
        b.tensor((len(v),), "int32", data=np.array(v, np.int32)) for v in (begin, end, strides)
    ]
    b.operator("STRIDED_SLICE", [x, *parts], [y], "StridedSliceOptions", **masks)
    np.testing.assert_array_equal(run(b.file([x], [y]), value)[0], wanted)


@pytest.mark.parametrize(
    "masks, index",
    [({"BeginMask": 2, "EndMask": 2, "ShrinkAxisMask": 1}, np.s_[1]),
     ({"BeginMask": 1, "EndMask": 1, "ShrinkAxisMask": 2}, np.s_[:, 2]),
     ({"ShrinkAxisMask": 3}, np.s_[1, 2]),
     ({"BeginMask": 1, "EndMask": 2, "ShrinkAxisMask": 4}, None)],
)  # fmt: skip
def test_slices_from_a_computed_begin_are_numpys(
    masks: dict[str, int], index: tuple | int | None
) -> None:
    """Of one element or of all; a dimension that is all of it needs both masks."""
    value = np.arange(2 * 5 * 3, dtype=np.float32).reshape(2, 5, 3)
    begin = np.array([1, 2, 0][: 3 if index is None else 2], np.int32)
    wanted = value[index if index is not None else np.s_[:, 2:, 0]]
    b = TfliteBuilder()
    x, y = b.tensor(value.shape, "float32"), b.tensor(wanted.shape, "float32")
    first = b.tensor(begin.shape, "int32")
    others = [b.tensor(v.shape, "int32", data=v) for v in (begin + 1, np.ones_like(begin))]
    b.operator("STRIDED_SLICE", [x, first, *others], [y], "StridedSliceOptions", **masks)
    data = b.file([x, first], [y])
    if index is None:
        with pytest.raises(VdlaError, match="in dimension 0: they decide a shape"):
            import_tflite(data)
        return
    np.testing.assert_array_equal(interpret(import_tflite(data), value, begin)[0], wanted)


def test_two_tensors_share_a_buffer() -> None:
    b = TfliteBuilder()
    data = np.arange(6, dtype=np.float32)
    first = b.tensor((2, 3), "float32", data=data.reshape(2, 3))
    b.buffers.pop()
    second = b.tensor((3, 2), "float32", data=data.reshape(3, 2))  # takes the popped place
    x, y = b.tensor((1, 3), "float32"), b.tensor((1, 2), "float32")
    z = b.tensor((1, 3), "float32")
    b.operator("FULLY_CONNECTED", [x, first], [y], "FullyConnectedOptions")
    b.operator("FULLY_CONNECTED", [y, second], [z], "FullyConnectedOptions")
    value = np.array([[1, -2, 3]], np.float32)
    wanted = value @ data.reshape(2, 3).T @ data.reshape(3, 2).T
    np.testing.assert_array_equal(run(b.file([x], [z]), value)[0], wanted)


def test_an_output_may_be_a_constant_an_input_or_there_twice() -> None:
    b = TfliteBuilder()
    x = b.tensor((2,), "float32")
    known = b.tensor((3,), "uint8", [0.5], [3], data=np.array([0, 128, 255], np.uint8))
    y = b.tensor((2,), "float32")
    b.operator("ABS", [x], [y])
    value = np.array([-1, 2], np.float32)
    found = run(b.file([x], [known, y, x, y]), value)
    for made, wanted in zip(found, ([0, 128, 255], [1, 2], [-1, 2], [1, 2]), strict=True):
        np.testing.assert_array_equal(made, wanted)


def test_missing_names_and_bias() -> None:
    b = TfliteBuilder()
    x, y = b.tensor((1, 2), "float32", name=""), b.tensor((1, 2), "float32", name="")
    w = b.tensor((2, 2), "float32", data=np.eye(2, dtype=np.float32), name="")
    b.operator("FULLY_CONNECTED", [x, w, -1], [y], "FullyConnectedOptions")
    value = np.array([[3, 4]], np.float32)
    np.testing.assert_array_equal(run(b.file([x], [y]), value)[0], value)


def test_a_signature_of_another_rank_says_nothing() -> None:
    """Converters write one for tensors whose rank they did not know."""
    b = TfliteBuilder()
    x, y = b.tensor((4,), "float32", signature=[-1, -1]), b.tensor((4,), "float32", signature=[])
    b.operator("ABS", [x], [y])
    graph = import_tflite(b.file([x], [y]), Sizes(3))
    assert graph["tensor_0"].shape == (4,)


def open_sums() -> bytes:
    """y = sum of |x| + w over an open dimension, which the file has as 1."""
    b = TfliteBuilder()
    x = b.tensor((1, 1, 4), "float32", signature=[-1, -1, 4], name="x")
    w = b.tensor((4,), "float32", name="w")
    axis = b.tensor((1,), "int32", data=np.array([1], np.int32))
    a, c = (b.tensor((1, 1, 4), "float32", signature=[-1, -1, 4]) for _ in range(2))
    y = b.tensor((1, 4), "float32", signature=[-1, 4])
    b.operator("ABS", [x], [a])
    b.operator("ADD", [a, w], [c], "AddOptions")
    b.operator("SUM", [c, axis], [y], "ReducerOptions")
    return b.file([x, w], [y])


def test_open_sizes_are_those_that_come() -> None:
    file, rng = open_sums(), np.random.default_rng(1)
    w = np.array([1, 2, 3, 4], np.float32)
    module = vdla.compile(file, "cpu", dims={"x.1": (1, 6)})
    for shape in ((1, 6, 4), (3, 6, 4), (1, 2, 4)):
        x = rng.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(module.run(x, w)[0], (abs(x) + w).sum(1), rtol=1e-5)
    with pytest.raises(vdla.VdlaError, match=r"expected 1 to 6 for dimension 'x\.1', got 7"):
        module.run(np.zeros((1, 7, 4), np.float32), w)
    known = vdla.compile(file, "cpu", shapes={"x": (1, 3, 4)}, values={"w": w})
    x = rng.standard_normal((1, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(known.run(x)[0], (abs(x) + w).sum(1), rtol=1e-5)
    with pytest.raises(vdla.VdlaError, match="values: expected inputs of the model"):
        vdla.compile(file, "cpu", values={"v": w})


def test_a_shape_without_elements_makes_a_scalar() -> None:
    b = TfliteBuilder()
    x, y = b.tensor((1, 1), "float32"), b.tensor((), "float32")
    none = b.tensor((0,), "int32")
    b.operator("RESHAPE", [x, none], [y])
    (made,) = run(b.file([x], [y]), np.full((1, 1), 7, np.float32))
    assert made.shape == () and made == 7


def test_inputs_and_outputs_of_other_types_than_the_network() -> None:
    """uint8 in, int8 inside, float32 and uint8 out, as converters write them."""
    b = TfliteBuilder()
    x = b.tensor((1, 4), "uint8", [0.5], [128])
    inside, made = b.tensor((1, 4), "int8", [0.5], [0]), b.tensor((1, 4), "int8", [0.25], [-3])
    real, other = b.tensor((1, 4), "float32"), b.tensor((1, 4), "uint8", [0.25], [125])
    b.operator("QUANTIZE", [x], [inside], "QuantizeOptions")
    b.operator("RELU", [inside], [made])
    b.operator("DEQUANTIZE", [made], [real], "DequantizeOptions")
    b.operator("QUANTIZE", [made], [other], "QuantizeOptions")
    value = np.array([[0, 127, 129, 130]], np.uint8)
    found = run(b.file([x], [real, other]), value)
    np.testing.assert_array_equal(found[0], [[0, 0, 0.5, 1]])
    np.testing.assert_array_equal(found[1], [[125, 125, 127, 129]])


@pytest.mark.parametrize(
    ("name", "shown"),
    [("MyOperator", "'MyOperator'"), ("\x01" * 200, "'" + r"\x01" * 14 + r"\x0...")],
)
def test_a_custom_operator_is_refused_by_name(name: str, shown: str) -> None:
    b = TfliteBuilder()
    x, y = b.tensor((4,), "float32"), b.tensor((4,), "float32")
    b.operator(name, [x], [y])
    with pytest.raises(VdlaError, match=re.escape(f"CUSTOM {shown} is not supported")):
        import_tflite(b.file([x], [y]))


def test_buffers_behind_the_tables() -> None:
    """As files of more than 2 GB have them, and for metadata that no operator reads."""
    b = TfliteBuilder(behind=True)
    x, y = b.tensor((2,), "float32"), b.tensor((2,), "float32")
    c = b.tensor((2,), "float32", data=np.array([1, 2], np.float32))
    b.operator("ADD", [x, c], [y], "AddOptions")
    data = b.file([x], [y])
    np.testing.assert_array_equal(run(data, np.array([5, 5], np.float32))[0], [6, 7])
    with pytest.raises(VdlaError, match="ends beyond the file"):
        import_tflite(data[:-4])
