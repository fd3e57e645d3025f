"""Models that ONNX Runtime's quantiser made, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from vdla.compiler.onnx_backend import prepare
from vdla.runtime.executable import LayerInfo

from ...test_quantised_models import last_scale

pytestmark = pytest.mark.filterwarnings("default")  # the quantiser's own
RNG = np.random.default_rng(3)
BEGIN = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Every test draws the same random numbers, whichever others ran before it."""
    RNG.bit_generator.state = BEGIN


class Net:
    """A float model in the making; ``op`` returns the name of the result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        result = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [result], f"n{result}", **attributes))
        return result

    def constant(self, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def model(self, shape: tuple[int, ...], output: str) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "net", [x], [y], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def floats(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.3).astype(np.float32)


def mobile() -> onnx.ModelProto:
    """MobileNetV2's: inverted residuals, ReLU6, the mean over the image, a dense layer."""
    net, bounds = Net(), (np.float32(0), np.float32(6))
    x = net.op("Conv", "x", floats(16, 3, 3, 3), floats(16), strides=[2, 2], pads=[1, 1, 1, 1])
    x = net.op("Clip", x, *bounds)
    y = net.op("Clip", net.op("Conv", x, floats(32, 16, 1, 1), floats(32)), *bounds)
    y = net.op("Conv", y, floats(32, 1, 3, 3), floats(32), group=32, pads=[1, 1, 1, 1])
    y = net.op("Conv", net.op("Clip", y, *bounds), floats(16, 32, 1, 1))
    y = net.op("Flatten", net.op("GlobalAveragePool", net.op("Add", x, y)))
    return net.model((1, 3, 12, 12), net.op("Gemm", y, floats(10, 16), floats(10), transB=1))


def grouped() -> onnx.ModelProto:
    """Groups, dilation, explicit padding, activations with an operator of their own."""
    net = Net()
    x = net.op("Conv", "x", floats(16, 4, 3, 3), group=2, dilations=[2, 2], pads=[2, 2, 2, 2])
    x = net.op("Pad", net.op("Relu", x), np.array([0, 0, 1, 0, 0, 0, 0, 1]), np.float32(0))
    x = net.op("Conv", x, floats(16, 2, 3, 3), floats(16), group=8, strides=[2, 1])
    x = net.op(
        "AveragePool", net.op("LeakyRelu", x, alpha=0.1), kernel_shape=[2, 2], strides=[2, 2]
    )
    x = net.op("ConvTranspose", net.op("Sigmoid", x), floats(16, 8, 2, 2), strides=[2, 2])
    x = net.op("Mul", net.op("Concat", x, x, axis=1), floats(1, 16, 1, 1))
    return net.model((1, 8, 12, 12), net.op("Softmax", x, axis=1))


def channels_last() -> onnx.ModelProto:
    """As tf2onnx writes it: transpositions at both ends, padding by itself, an unfused bias."""
    net = Net()
    x = net.op(
        "Pad", net.op("Transpose", "x", perm=[0, 3, 1, 2]), np.array([0, 0, 0, 0, 0, 0, 1, 1])
    )
    x = net.op("Relu", net.op("Conv", x, floats(8, 3, 3, 3), strides=[2, 2]))
    x = net.op("Conv", x, floats(8, 1, 3, 3), group=8, auto_pad="SAME_UPPER")
    x = net.op("Transpose", net.op("Add", x, floats(1, 8, 1, 1)), perm=[0, 2, 3, 1])
    x = net.op("MatMul", net.op("ReduceMean", x, axes=[1, 2], keepdims=0), floats(8, 5))
    return net.model((1, 16, 16, 3), net.op("Add", x, floats(5)))


def attention() -> onnx.ModelProto:
    net = Net()
    q, k, v = (net.op("MatMul", "x", floats(16, 16)) for _ in range(3))
    weights = net.op("MatMul", net.op("Add", q, floats(16)), net.op("Transpose", k, perm=[0, 2, 1]))
    weights = net.op("Softmax", net.op("Div", weights, np.float32(4)), axis=-1)
    return net.model((1, 6, 16), net.op("Add", net.op("MatMul", weights, v), "x"))


def line() -> onnx.ModelProto:
    """Convolutions over a line, as for sound: whole, depthwise, dilated."""
    net = Net()
    x = net.op("Relu", net.op("Conv", "x", floats(16, 8, 5), floats(16), strides=[2], pads=[2, 2]))
    x = net.op("Relu", net.op("Conv", x, floats(16, 1, 3), floats(16), group=16, pads=[1, 0]))
    x = net.op("Conv", net.op("Conv", x, floats(16, 16, 1)), floats(8, 16, 3), dilations=[2])
    return net.model((1, 8, 40), net.op("Relu", x))


def conv_next(layer_scale: float, doubled: bool) -> onnx.ModelProto:
    """A block of ConvNeXt as PyTorch exports it, and what halves the image behind it; with
    ``doubled``, the block's sum is added to itself.
    """
    net, channels = Net(), 16
    y = net.op("Conv", "x", floats(channels, 1, 7, 7), floats(channels), group=16, pads=[3] * 4)
    y = net.op("Transpose", y, perm=[0, 2, 3, 1])
    centred = net.op("Sub", y, net.op("ReduceMean", y, axes=[-1]))
    variance = net.op("ReduceMean", net.op("Pow", centred, np.float32(2)), axes=[-1])
    y = net.op("Div", centred, net.op("Sqrt", net.op("Add", variance, np.float32(1e-6))))
    y = net.op("Add", net.op("Mul", y, 1 + floats(channels)), floats(channels))
    y = net.op("Add", net.op("MatMul", y, floats(channels, 4 * channels)), floats(4 * channels))
    erf = net.op("Erf", net.op("Div", y, np.float32(2**0.5)))
    y = net.op("Mul", net.op("Mul", y, net.op("Add", erf, np.float32(1))), np.float32(0.5))
    y = net.op("Add", net.op("MatMul", y, floats(4 * channels, channels)), floats(channels))
    y = net.op("Mul", np.full(channels, layer_scale, np.float32), y)
    y = net.op("Add", net.op("Transpose", y, perm=[0, 3, 1, 2]), "x")
    y = net.op("Add", y, y) if doubled else y
    y = net.op("Conv", y, floats(2 * channels, channels, 2, 2), strides=[2, 2])
    return net.model((1, channels, 8, 8), y)


NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mobile": mobile, "grouped": grouped, "channels last": channels_last, "attention": attention,
    "line": line,
}  # fmt: skip


class Samples(CalibrationDataReader):
    def __init__(self, shape: tuple[int, ...]):
        self.rows: Iterator[Any] = iter([{"x": 4 * floats(*shape)} for _ in range(3)])

    def get_next(self) -> Any:
        return next(self.rows, None)


def expected(path: Path, x: np.ndarray) -> np.ndarray:
    """ONNX Runtime's result, operator by operator as the model is written."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1  # the state of an LSTM is quantised by threads' shares
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def shape_of(model: onnx.ModelProto) -> tuple[int, ...]:
    return tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)


@pytest.mark.short(7)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@pytest.mark.parametrize("name", NETS)
def test_static(name: str, form: QuantFormat, dtype: str, tmp_path: Path) -> None:
    """Equal on host and accelerator, and to ONNX Runtime but for ties of rounding."""
    layers = quantised(NETS[name](), form, dtype, tmp_path)
    total = sum(layer.macs for layer in layers)
    share = sum(layer.macs for layer in layers if layer.target == "accel") / total
    assert share >= {"grouped": 0.9}.get(name, 1.0)


def quantised(
    model: onnx.ModelProto, form: QuantFormat, dtype: str, folder: Path
) -> tuple[LayerInfo, ...]:
    """Quantise a model, compare its results, and return where its layers ran."""
    kind = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8}[dtype]
    source, path = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(model, source)
    quantize_static(
        source, path, Samples(shape_of(model)), quant_format=form, per_channel=dtype == "int8",
        activation_type=kind, weight_type=kind,
    )  # fmt: skip
    x = floats(*shape_of(model)) * 4
    accelerated = vdla.compile(path, "sim")
    [got], [host] = accelerated.run(x), vdla.compile(path, "cpu").run(x)
    np.testing.assert_array_equal(got, host)
    wanted = expected(path, x)
    steps = np.rint(np.abs(got - wanted) / last_scale(onnx.load(path)))
    assert steps.max() <= 1 and (steps == 0).mean() > 0.97
    return accelerated.compiled.layers


@pytest.mark.slow
@pytest.mark.short(2)
@pytest.mark.parametrize("doubled", [False, True])
@pytest.mark.parametrize("layer_scale", [1.0, 1e-6, 1e-9])
def test_conv_next(layer_scale: float, doubled: bool, tmp_path: Path) -> None:
    """Scaled by a small number, as before training, the block adds less than any step of int8."""
    layers = quantised(conv_next(layer_scale, doubled), QuantFormat.QDQ, "int8", tmp_path)
    sums = [layer.target for layer in layers if layer.op == "QAdd"]
    assert sums == ["accel"] * (1 + doubled)


@pytest.mark.short(3)
@pytest.mark.slow
@pytest.mark.parametrize("weights", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("name", NETS)
def test_dynamic(name: str, weights: QuantType, tmp_path: Path) -> None:
    source, path = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    model = NETS[name]()
    onnx.save(model, source)
    quantize_dynamic(source, path, weight_type=weights)
    x = floats(*shape_of(model)) * 4
    [got] = prepare(onnx.load(path)).run({"x": x})
    np.testing.assert_allclose(got, expected(path, x), 1e-5, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic_lstm(direction: str, per_channel: bool, tmp_path: Path) -> None:
    """Inputs and states are quantised step by step, each by its own range."""
    net, count, hidden = Net(), 2 if direction == "bidirectional" else 1, 8
    weights = [4 * floats(count, 4 * hidden, n) for n in (6, hidden)]
    y = net.op("LSTM", "x", *weights, floats(count, 8 * hidden), hidden_size=hidden,
               direction=direction)  # fmt: skip
    source, path = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(net.model((5, 3, 6), y), source)
    quantize_dynamic(source, path, per_channel=per_channel)
    model = onnx.load(path)
    assert [node.op_type for node in model.graph.node] == ["DynamicQuantizeLSTM"]
    x = floats(5, 3, 6) * 4
    [got] = prepare(model).run({"x": x})
    np.testing.assert_allclose(got, expected(path, x), 1e-5, 1e-6)
    assert np.abs(got - expected(source, x)).max() > 1e-4  # what quantisation costs


def test_lengths_of_a_dynamic_lstm_are_refused() -> None:
    weights = [np.ones((1, n, 8), np.int8) for n in (3, 2)]
    one = [np.ones(1, np.float32), np.zeros(1, np.int8)]
    lengths = np.array([2], np.int32)
    operands = [floats(4, 1, 3), *weights, None, lengths, None, None, None, *one, *one]
    with pytest.raises(vdla.VdlaError, match="sequence_lens is not supported"):
        _contrib("DynamicQuantizeLSTM", operands, hidden_size=2)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_means_of_resized_integers(dtype: str, tmp_path: Path) -> None:
    """The quantiser resizes the integers themselves; means lose their fraction."""
    net = Net()
    x = net.op("Conv", "x", floats(4, 3, 3, 3), floats(4))
    x = net.op("Resize", x, "", np.array([1, 1, 2, 2], np.float32), mode="linear")
    model = net.model((1, 3, 6, 7), net.op("Conv", x, floats(2, 4, 3, 3), floats(2)))
    quantised(model, QuantFormat.QOperator, dtype, tmp_path)
    assert "Resize" in {node.op_type for node in onnx.load(tmp_path / "int8.onnx").graph.node}


def test_why_products_of_dynamic_quantisation_stay(tmp_path: Path) -> None:
    source, path = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(mobile(), source)
    quantize_dynamic(source, path)
    layers = vdla.compile(path, "sim").compiled.layers
    reasons = {layer.reason for layer in layers if layer.macs}
    assert reasons == {"an int32 result; what leaves the accelerator is int8"}


# ---- operators of ONNX Runtime's domain by themselves ----


def _contrib(kind: str, arrays: list[Any], **attributes: Any) -> None:
    """One node, its first operand the input, against ONNX Runtime; None is an absent operand."""
    names = ["" if a is None else f"x{i}" if i else "x" for i, a in enumerate(arrays)]
    node = helper.make_node(kind, names, ["y"], "node", domain="com.microsoft", **attributes)
    x = np.asarray(arrays[0])
    kind_of_x = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node], "one", [helper.make_tensor_value_info("x", kind_of_x, x.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in zip(names, arrays, strict=True)
         if a is not None and n != "x"],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    [wanted] = session.run(None, {"x": x})
    [got] = vdla.compile(model, "cpu").run(x)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert len(np.unique(wanted)) > 2, f"too few values of {kind} for the test to mean anything"
    assert np.abs(got.astype(np.float64) - wanted).max() <= (1 if got.dtype.kind in "iu" else 1e-5)
    assert got.dtype.kind == "f" or (got == wanted).mean() > 0.97


def _stored(dtype: type, *shape: int) -> list[Any]:
    """Random integers, their scale and zero point, which is in their middle."""
    zero = 3 if np.issubdtype(dtype, np.signedinteger) else 130
    values = RNG.integers(zero - 60, zero + 60, shape).astype(dtype)
    return [values, np.float32(0.05), dtype(zero)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_operators(dtype: type) -> None:
    x, y = _stored(dtype, 1, 4, 5, 6), [np.float32(0.07), dtype(50)]
    share = [np.float32(1 / 256), dtype(np.iinfo(dtype).min)]  # of a result from 0 to 1
    _contrib("QLinearAdd", [*x, *_stored(dtype, 4, 1, 1), *y])
    _contrib("QLinearMul", [*x, *_stored(dtype, 1, 4, 5, 6), *y])
    _contrib("QLinearLeakyRelu", [*x, *y], alpha=0.2)
    _contrib("QLinearSigmoid", [*x, *share])
    _contrib("QLinearGlobalAveragePool", [*x, *y], channels_last=0)
    _contrib("QLinearAveragePool", [*x, *y], kernel_shape=[2, 3], pads=[1, 1, 0, 0])
    _contrib("QLinearSoftmax", [*x, *share], axis=1, opset=13)
    _contrib("QLinearSoftmax", [*x, *share], axis=2, opset=12)


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed: int) -> None:
    shape = (6, 8) if transposed else (8, 6)
    weight = RNG.integers(-100, 100, shape).astype(np.int8)
    scales, zeros = np.linspace(0.01, 0.02, 6, dtype=np.float32), np.zeros(6, np.int8)
    bias = RNG.integers(-500, 500, 6).astype(np.int32)
    x = _stored(np.uint8, 3, 8)
    y = [np.float32(0.5), np.uint8(20)]
    _contrib("QGemm", [*x, weight, scales, zeros, bias, *y], transB=transposed)
    _contrib("QGemm", [*x, weight, np.float32(0.02), np.int8(3), None, *y], transB=transposed)
    _contrib("QGemm", [*x, weight, scales, zeros, bias], transB=transposed)
    _contrib("QGemm", [*x, weight, scales, zeros, 20 * bias, *y], transB=transposed, alpha=0.5)


def test_another_layout_is_refused() -> None:
    x = _stored(np.int8, 1, 4, 5, 6)
    with pytest.raises(
        vdla.VdlaError, match=r"\(QLinearGlobalAveragePool\): supported is channels"
    ):
        _contrib("QLinearGlobalAveragePool", [*x, np.float32(1), np.int8(0)], channels_last=1)


def test_an_unknown_operator_names_its_domain() -> None:
    node = helper.make_node("QLinearAddd", ["x"], ["y"], "node", domain="com.microsoft")
    x = helper.make_tensor_value_info("x", TensorProto.INT8, [1])
    graph = helper.make_graph([node], "one", [x], [helper.make_empty_tensor_value_info("y")])
    with pytest.raises(vdla.VdlaError, match=r"'com.microsoft.QLinearAddd' .* names: QLinearAdd,"):
        vdla.compile(helper.make_model(graph), "cpu")
