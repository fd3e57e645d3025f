"""Small networks of the kinds in ``bench/modern.py``, quantised by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from vdla.bench.modern import FloatNet
from vdla.compiler.onnx_backend import VdlaRep

pytestmark = pytest.mark.filterwarnings("default")  # the quantiser's own
WORDS = 50


def encoder() -> onnx.ModelProto:
    """A layer of BERT."""
    net = FloatNet("encoder")
    x = net.layer_norm(net.tokens(8, WORDS, 32))
    x = net.layer_norm(net.binary("Add", x, net.attention(x, 2)))
    net.output(net.layer_norm(net.binary("Add", x, net.mlp(x, 64))))
    return net.model()


def patches() -> onnx.ModelProto:
    """A layer of a vision transformer, and one of MLP-Mixer."""
    net = FloatNet("patches")
    x = net.concat(net.random("class", 1, 1, 24), net.patches(8, 24, 24), axis=1)
    x = net.binary("Add", x, net.attention(net.layer_norm(x), 3))
    mixed = net.mlp(net.transpose(net.layer_norm(x), 0, 2, 1), 16)
    x = net.binary("Add", x, net.transpose(mixed, 0, 2, 1))
    net.output(net.dense(net.token_mean(net.layer_norm(x)), 10))
    return net.model()


def squeezed() -> onnx.ModelProto:
    """Inverted residuals with squeeze-and-excitation, of EfficientNet and of MobileNet-V3."""
    net = FloatNet("squeezed")
    x = net.silu(net.conv(net.input(1, 3, 16, 16), 16, 3, 2, relu=False))
    y = net.silu(net.conv(x, 32, 5, groups=16, relu=False))
    x = net.binary("Add", net.conv(net.squeezed(y, 8, "Sigmoid"), 16, 1, relu=False), x)
    y = net.unary("HardSwish", net.conv(x, 32, 1, relu=False))
    x = net.binary("Add", net.conv(net.squeezed(y, 8, "HardSigmoid"), 16, 1, relu=False), x)
    net.output(net.dense(net.global_average(x), 10))
    return net.model()


def dense_blocks() -> onnx.ModelProto:
    """A block of DenseNet behind the beginning of a ResNet."""
    net = FloatNet("dense_blocks")
    x = net.max_pool(net.conv(net.input(1, 3, 16, 16), 16, 7, 2), 3, 2)
    for _ in range(2):
        y = net.plus(net.times(x, net.random("scale", net.shapes[x][1], 1, 1)), np.float32(0.5))
        x = net.concat(x, net.conv(net.unary("Relu", y), 8, 3, relu=False), axis=1)
    net.output(net.dense(net.global_average(net.average_pool(x, 2)), 10))
    return net.model()


NETS: list[Callable[[], onnx.ModelProto]] = [encoder, patches, squeezed, dense_blocks]


class Samples(CalibrationDataReader):
    def __init__(self, rows: list[dict[str, np.ndarray]]):
        self.rows = iter(rows)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.rows, None)


def samples(model: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    rng, (value,) = np.random.default_rng(4), model.graph.input
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    if value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
        return [{value.name: rng.integers(0, WORDS, shape)} for _ in range(3)]
    return [{value.name: rng.standard_normal(shape).astype(np.float32)} for _ in range(3)]


def as_written(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """ONNX Runtime's result, operator by operator, on one thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, inputs)[0])


@pytest.mark.slow
@pytest.mark.short(3)
@pytest.mark.parametrize("make", NETS)
@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic(make: Callable[[], onnx.ModelProto], per_channel: bool, tmp_path: Path) -> None:
    """Equal but for the last bits of float sums."""
    onnx.save(model := make(), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx", per_channel=per_channel)
    made, (x, *_) = onnx.load(tmp_path / "int8.onnx"), samples(model)
    assert {n.op_type for n in made.graph.node} & {"MatMulInteger", "ConvInteger"}
    got, wanted = VdlaRep(made).run(x)[0], as_written(made, x)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    assert np.abs(wanted - as_written(model, x)).max() > 1e-4 * np.abs(wanted).max()


@pytest.mark.slow
@pytest.mark.short(3)
@pytest.mark.parametrize("make", NETS)
@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_static(make: Callable[[], onnx.ModelProto], kind: QuantType, tmp_path: Path) -> None:
    """Much nearer to ONNX Runtime's result than that is to the float network's: some values between
    two integers become the other one."""
    onnx.save(model := make(), tmp_path / "float.onnx")
    rows = samples(model)
    quantize_static(
        tmp_path / "float.onnx", tmp_path / "int8.onnx", Samples(rows), activation_type=kind,
        quant_format=QuantFormat.QOperator, weight_type=kind, per_channel=kind == QuantType.QInt8,
    )  # fmt: skip
    made = onnx.load(tmp_path / "int8.onnx")
    assert {n.op_type for n in made.graph.node} & {"QLinearMatMul", "QLinearConv", "QGemm"}
    got, wanted = VdlaRep(made).run(rows[0])[0], as_written(made, rows[0])
    real = as_written(model, rows[0])
    assert np.square(got - wanted).mean() <= np.square(wanted - real).mean() / 2
