"""Operators that TensorFlow Lite has and Micro does not, against NumPy; and other types of some."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tflite
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.errors import VdlaError

from .single.draft import Case, micro
from .single.table import draw
from .tflite_builder import TfliteBuilder

RNG = np.random.default_rng(11)
REAL = RNG.normal(size=(2, 3, 5)).astype(np.float32) * 2
OTHER = RNG.normal(size=(2, 3, 5)).astype(np.float32)
WHOLE = RNG.integers(-20, 20, (2, 3, 5)).astype(np.int32)
DIVISOR = np.where(WHOLE[::-1] == 0, 3, WHOLE[::-1] // 3 + 7).astype(np.int32) - 8
DIVISOR = np.where(DIVISOR == 0, -2, DIVISOR).astype(np.int32)
FLAGS = RNG.integers(0, 2, (2, 3, 5)).astype(np.bool_)


def normalised(x: np.ndarray, radius: int, bias: float, alpha: float, beta: float) -> np.ndarray:
    total = np.zeros_like(x, np.float64)
    for channel in range(x.shape[-1]):
        near = x[..., max(0, channel - radius) : channel + radius + 1].astype(np.float64)
        total[..., channel] = (near**2).sum(-1)
    return x * (bias + alpha * total) ** -beta


def gelu(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.reshape(-1)])


Row = tuple[str, list[object], np.ndarray, dict[str, object]]
ROWS: dict[str, Row] = {
    "abs": ("ABS", [WHOLE], np.abs(WHOLE), {}),
    "add64": ("ADD", [WHOLE.astype("i8"), DIVISOR.astype("i8")], (WHOLE + DIVISOR).astype("i8"),
              {}),
    "any": ("REDUCE_ANY", [FLAGS, ("c", [1])], FLAGS.any(1), {"table": "ReducerOptions"}),
    "floor_div": ("FLOOR_DIV", [WHOLE, DIVISOR], WHOLE // DIVISOR, {}),
    "floor_mod": ("FLOOR_MOD", [WHOLE, DIVISOR], WHOLE % DIVISOR, {}),
    "gelu": ("GELU", [REAL], gelu(REAL).reshape(REAL.shape), {"table": "GeluOptions"}),
    "gelu_near": (
        "GELU", [REAL],
        0.5 * REAL * (1 + np.tanh(math.sqrt(2 / math.pi) * (REAL + 0.044715 * REAL**3))),
        {"table": "GeluOptions", "Approximate": True},
    ),
    "lrn": (
        "LOCAL_RESPONSE_NORMALIZATION", [REAL[None]], normalised(REAL[None], 1, 1.5, 0.3, 0.7),
        {"table": "LocalResponseNormalizationOptions", "Radius": 1, "Bias": 1.5, "Alpha": 0.3,
         "Beta": 0.7},
    ),
    "neg": ("NEG", [WHOLE], -WHOLE, {}),
    "one_hot": (
        "ONE_HOT", [np.array([0, 2, 5, -1], np.int32), ("c", 3), ("f", 2.0), ("f", -1.0)],
        np.where(np.array([0, 2, 5, -1])[:, None] == np.arange(3), 2.0, -1.0),
        {"table": "OneHotOptions", "Axis": -1},
    ),
    "pow": ("POW", [np.abs(REAL), OTHER], np.abs(REAL) ** OTHER, {}),
    "prod": ("REDUCE_PROD", [REAL, ("c", [0, 2])], REAL.prod((0, 2), keepdims=True),
             {"table": "ReducerOptions", "KeepDims": True}),
    "rank": ("RANK", [REAL], np.array(3, np.int32), {}),
    "relu1": ("RELU_0_TO_1", [REAL], REAL.clip(0, 1), {}),
    "relun1": ("RELU_N1_TO_1", [REAL], REAL.clip(-1, 1), {}),
    "select": ("SELECT", [FLAGS, REAL, OTHER], np.where(FLAGS, REAL, OTHER), {}),
    "select_rows": ("SELECT", [FLAGS[:, 0, 0], REAL, OTHER],
                    np.where(FLAGS[:, :1, :1], REAL, OTHER), {}),
    "sign": ("SIGN", [REAL * (OTHER > 0)], np.sign(REAL * (OTHER > 0)), {}),
    "square": ("SQUARE", [WHOLE], WHOLE * WHOLE, {}),
    "sum": ("SUM", [WHOLE, ("c", [1])], WHOLE.sum(1).astype(np.int32), {"table": "ReducerOptions"}),
    "tile": ("TILE", [REAL, ("c", [2, 1, 3])], np.tile(REAL, (2, 1, 3)), {}),
    "cast_from_uint8": ("CAST", [np.arange(256, dtype=np.uint8)], np.arange(256.0), {}),
    "cast_to_uint8": ("CAST", [np.arange(256.0)[::-1] + 0.75], np.arange(256)[::-1], {}),
}  # fmt: skip


@pytest.mark.fast(4)
@pytest.mark.parametrize("name", ROWS)
def test_operator_against_numpy(name: str) -> None:
    kind, operands, wanted, options = ROWS[name]
    b, inputs, indices, arrays = TfliteBuilder(), [], [], []
    for operand in operands:
        if isinstance(operand, tuple):
            data = np.array(operand[1], np.int32 if operand[0] == "c" else np.float32)
            indices.append(b.tensor(data.shape, str(data.dtype), data=data))
            continue
        array = np.asarray(operand)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        arrays.append(array)
        inputs.append(b.tensor(array.shape, str(array.dtype)))
        indices.append(inputs[-1])
    wanted = np.asarray(wanted)
    dtype = "float32" if wanted.dtype.kind == "f" else str(wanted.dtype)
    dtype = "uint8" if name == "cast_to_uint8" else dtype
    y = b.tensor(wanted.shape, dtype)
    given = dict(options)
    b.operator(kind, indices, [y], str(given.pop("table", "")), **given)  # type: ignore[arg-type]
    graph = import_tflite(b.file(inputs, [y]))
    for made in (interpret(graph, *arrays), build_cpu(run_passes(graph)).run(*arrays)):
        assert made[0].dtype == dtype and made[0].shape == wanted.shape
        np.testing.assert_allclose(made[0], wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.fast(1)
@pytest.mark.parametrize("size", [(1, 16), (4, 6), (3, 7)])
@pytest.mark.parametrize("kind", ["COMPLEX_ABS", "REAL", "IMAG"])
def test_transforms_against_numpy(kind: str, size: tuple[int, int]) -> None:
    """Rows that are too short get zeros, rows that are too long are cut."""
    x = RNG.normal(size=(2, 3, 8)).astype(np.float32)
    wanted = np.fft.rfft2(x.astype(np.float64), size)
    b = TfliteBuilder()
    given, made = b.tensor(x.shape, "float32"), b.tensor(wanted.shape, "complex64")
    length = b.tensor((2,), "int32", data=np.array(size, np.int32))
    y = b.tensor(wanted.shape, "float32")
    b.operator("RFFT2D", [given, length], [made])
    b.operator(kind, [made], [y])
    graph = import_tflite(b.file([given], [y]))
    expected = {"COMPLEX_ABS": np.abs, "REAL": np.real, "IMAG": np.imag}[kind](wanted)
    for found in (interpret(graph, x), build_cpu(run_passes(graph)).run(x)):
        np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-5)


def test_complex_numbers_have_few_readers() -> None:
    b = TfliteBuilder()
    x, made = b.tensor((1, 8), "float32"), b.tensor((1, 5), "complex64")
    length = b.tensor((2,), "int32", data=np.array([1, 8], np.int32))
    y = b.tensor((5,), "complex64")
    b.operator("RFFT2D", [x, length], [made])
    b.operator("RESHAPE", [made], [y])
    with pytest.raises(VdlaError, match="only COMPLEX_ABS, REAL and IMAG read complex numbers"):
        import_tflite(b.file([x], [y]))


@pytest.mark.fast(1)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_largest_elements(dtype: str) -> None:
    x = (RNG.integers(-6, 6, (2, 3, 9)) * (1 if dtype == "int8" else 0.5)).astype(dtype)
    order = np.argsort(-x.astype(np.float64), axis=-1, kind="stable")[..., :4]
    b = TfliteBuilder()
    quant = {"scale": [0.5], "zero": [0]} if dtype == "int8" else {}
    given, count = b.tensor(x.shape, dtype, **quant), b.tensor((), "int32", data=np.array(4, "i4"))
    values, index = b.tensor((2, 3, 4), dtype, **quant), b.tensor((2, 3, 4), "int32")
    b.operator("TOPK_V2", [given, count], [values, index])
    graph = import_tflite(b.file([given], [values, index]))
    for found in (interpret(graph, x), build_cpu(run_passes(graph)).run(x)):
        np.testing.assert_array_equal(found[0], np.take_along_axis(x, order, -1))
        np.testing.assert_array_equal(found[1], order)


def test_simulated_quantisation() -> None:
    """Eight bits from -1 to 3: a zero point of 64, and steps of 4 / 255."""
    x = np.linspace(-2, 4, 301, dtype=np.float32)
    b = TfliteBuilder()
    given, y = b.tensor(x.shape, "float32"), b.tensor(x.shape, "float32")
    b.operator("FAKE_QUANT", [given], [y], "FakeQuantOptions", Min=-1.0, Max=3.0, NumBits=8)
    (made,) = interpret(import_tflite(b.file([given], [y])), x)
    step = 4 / 255
    wanted = (np.rint(x.astype(np.float64) / step).clip(-64, 191)) * step
    near = np.abs(x / step - np.rint(x / step)) < 0.49  # ties may go to either side
    np.testing.assert_allclose(made[near], wanted[near], atol=1e-5)
    assert (made[x < -1.1] == made[0]).all() and made[150] != made[0]


def test_a_range_is_known() -> None:
    b = TfliteBuilder()
    ends = [b.tensor((), "int32", data=np.array(v, np.int32)) for v in (7, -2, -3)]
    x, made, y = b.tensor((3,), "int32"), b.tensor((3,), "int32"), b.tensor((3,), "int32")
    b.operator("RANGE", ends, [made])
    b.operator("ADD", [x, made], [y], "AddOptions")
    graph = import_tflite(b.file([x], [y]))
    assert len(graph.nodes) == 1
    assert interpret(graph, np.zeros(3, np.int32))[0].tolist() == [7, 4, 1]


@pytest.mark.parametrize("ends", [(0, 3, 0), (0.0, float("inf"), 1.0)])
def test_a_range_without_end_is_refused(ends: tuple) -> None:
    dtype = "int32" if ends[2] == 0 else "float32"
    b = TfliteBuilder()
    given = [b.tensor((), dtype, data=np.array(v, dtype)) for v in ends]
    made = b.tensor((3,), dtype)
    b.operator("RANGE", given, [made])
    with pytest.raises(VdlaError, match="expected a finite range with a step, got 0"):
        import_tflite(b.file([], [made]))


def as_uint8(case: Case) -> tuple[bytes, list[np.ndarray]]:
    """The case of int8 with its tensors of uint8: zero points and values are 128 more."""
    data = bytearray(case.data)
    model = tflite.Model.GetRootAsModel(data, 0)
    graph = model.Subgraphs(0)
    for i in range(graph.TensorsLength()):
        tensor = graph.Tensors(i)
        if tensor.Type() != tflite.TensorType.INT8:
            continue
        at = tensor._tab.Pos + tensor._tab.Offset(6)
        data[at] = tflite.TensorType.UINT8
        zeros = tensor.Quantization().ZeroPointAsNumpy()
        zeros += 128
        if model.Buffers(tensor.Buffer()).DataLength():
            model.Buffers(tensor.Buffer()).DataAsNumpy()[:] ^= 128
    return bytes(data), [x.view(np.uint8) ^ 128 if x.dtype == np.int8 else x for x in case.inputs]


@pytest.mark.parametrize(
    "kind", ["CUMSUM", "DIV", "MAXIMUM", "MINIMUM", "PRELU", "SUM", "SQUARED_DIFFERENCE"]
)
def test_uint8_means_what_int8_means(kind: str) -> None:
    for number in range(5):
        case = draw(kind, "int8", number)
        data, inputs = as_uint8(case)
        (y,) = interpret(import_tflite(case.data), *case.inputs)
        (made,) = interpret(import_tflite(data), *inputs)
        assert made.dtype == np.uint8
        np.testing.assert_array_equal(made ^ 128, y.view(np.uint8))


# ---- integers of 4 bits --------------------------------------------------------------------------


def packed(values: np.ndarray) -> np.ndarray:
    halves = np.append(values.reshape(-1), [0] * (values.size % 2)).astype(np.uint8) & 15
    return halves[::2] | halves[1::2] << 4


@pytest.mark.parametrize("kind", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_weights_of_4_bits_are_exact(kind: str) -> None:
    pytest.importorskip("tflite_micro")
    for _ in range(3):
        b = TfliteBuilder()
        shapes = {
            "CONV_2D": ((1, 4, 4, 3), (5, 3, 3, 3), (1, 4, 4, 5), 5),
            "DEPTHWISE_CONV_2D": ((1, 4, 4, 3), (1, 3, 3, 3), (1, 4, 4, 3), 3),
        }
        given, stored, made, channels = shapes[kind]
        x, y = b.tensor(given, scale=[0.1], zero=[4]), b.tensor(made, scale=[0.2], zero=[-5])
        values = RNG.integers(-8, 8, stored)
        w = b.tensor(stored, "int4", [0.05] * channels, [0] * channels,
                     3 if kind.startswith("DEPTH") else 0, stored=packed(values))  # fmt: skip
        bias = b.tensor((channels,), "int32", data=RNG.integers(-90, 90, channels, np.int32))
        options: dict[str, object] = {"table": "Conv2DOptions", "StrideH": 1, "StrideW": 1}
        if kind == "DEPTHWISE_CONV_2D":
            options |= {"table": "DepthwiseConv2DOptions", "DepthMultiplier": 1}
        b.operator(kind, [x, w, bias], [y], str(options.pop("table")), **options)  # type: ignore[arg-type]
        value = RNG.integers(-128, 128, given).astype(np.int8)
        data = b.file([x], [y])
        (wanted,) = micro(Case(data, [value]))
        np.testing.assert_array_equal(interpret(import_tflite(data), value)[0], wanted)


def test_a_dense_layer_of_4_bits_is_that_of_8() -> None:
    values, x = RNG.integers(-8, 8, (3, 5)), RNG.integers(-128, 128, (2, 5)).astype(np.int8)
    found = []
    for dtype, stored in (("int4", packed(values)), ("int8", values.astype(np.int8))):
        b = TfliteBuilder()
        given, made = b.tensor((2, 5), scale=[0.1], zero=[4]), b.tensor((2, 3), scale=[0.2])
        w = b.tensor((3, 5), dtype, [0.05], [0], stored=stored)
        b.operator("FULLY_CONNECTED", [given, w], [made], "FullyConnectedOptions")
        found += interpret(import_tflite(b.file([given], [made])), x)
    np.testing.assert_array_equal(*found)


def test_a_computed_tensor_of_4_bits_is_refused() -> None:
    b = TfliteBuilder()
    x, y = b.tensor((4,), "int4", [0.1], [0]), b.tensor((4,), "int4", [0.1], [0])
    b.operator("ABS", [x], [y])
    with pytest.raises(VdlaError, match="type INT4, which is supported of constants"):
        import_tflite(b.file([x], [y]))
