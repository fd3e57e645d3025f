"""Float models as machine code: whole networks, the command line, models around int8 bodies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from vdla.cli import run_app
from vdla.compiler.onnx_backend import prepare

SHARED = Path(__file__).parents[2].parent / "shared" / "models"
RNG = np.random.default_rng(7)


def model(
    nodes: list[onnx.NodeProto], shapes: dict[str, tuple], outputs: list[str], **constants: object
) -> onnx.ModelProto:
    """A float model of operator set 17."""
    typed = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    made = [onnx.ValueInfoProto(name=name) for name in outputs]
    kept = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "net", typed, made, kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def network() -> onnx.ModelProto:
    """Convolution, normalisation, attention over places, a shape that is computed."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("Shape", ["r"], ["shape"], start=0, end=2),
        node("Concat", ["shape", "rest"], ["flat_shape"], axis=0),
        node("Reshape", ["r", "flat_shape"], ["flat"]),
        node("Transpose", ["flat"], ["places"], perm=[0, 2, 1]),
        node("MatMul", ["places", "flat"], ["scores"]),
        node("Softmax", ["scores"], ["weights"]),
        node("MatMul", ["weights", "places"], ["mixed"]),
        node("LayerNormalization", ["mixed", "ls"], ["norm"]),
        node("ReduceMean", ["norm"], ["mean"], axes=[1], keepdims=0),
        node("Gemm", ["mean", "wg"], ["y"], transB=1, alpha=0.5),
    ]
    return model(
        nodes, {"x": (2, 3, 8, 8)}, ["y", "weights"],
        w=floats(6, 3, 3, 3), b=floats(6), s=floats(6), m=floats(6), v=np.abs(floats(6)) + 0.1,
        rest=np.array([-1]), ls=floats(6), wg=floats(4, 6),
    )  # fmt: skip


@pytest.mark.slow
def test_a_network_equals_onnx() -> None:
    x = floats(2, 3, 8, 8)
    proto = network()
    expected = ReferenceEvaluator(proto).run(None, {"x": x})
    for target in ("cpu", "sim"):
        got = vdla.compile(proto, target).run(x)
        for a, b in zip(got, expected, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, 1e-4, 1e-5)


@pytest.mark.slow
def test_an_int8_body_within_a_float_model() -> None:
    """The accelerator takes what is quantised; the host's part is the same machine code."""
    node = helper.make_node
    nodes = [
        node("Sigmoid", ["x"], ["a"]),
        node("QuantizeLinear", ["a", "sx", "zx"], ["aq"]),
        node("DequantizeLinear", ["aq", "sx", "zx"], ["ad"]),
        node("DequantizeLinear", ["wq", "sw", "zw"], ["wd"]),
        node("Conv", ["ad", "wd"], ["c"], pads=[1, 1, 1, 1]),
        node("QuantizeLinear", ["c", "sy", "zw"], ["cq"]),
        node("DequantizeLinear", ["cq", "sy", "zw"], ["cd"]),
        node("GlobalMaxPool", ["cd"], ["p"]),
        node("Softmax", ["p"], ["y"], axis=1),
    ]
    scales = {n: np.float32(v) for n, v in (("sx", 1 / 255), ("sw", 0.01), ("sy", 0.05))}
    proto = model(
        nodes, {"x": (1, 16, 6, 6)}, ["y"], zx=np.int8(-128), zw=np.int8(0), **scales,
        wq=RNG.integers(-127, 127, (16, 16, 3, 3)).astype(np.int8),
    )  # fmt: skip
    proto.opset_import[0].version = 21  # the evaluator has no older DequantizeLinear
    x = floats(1, 16, 6, 6)
    sim, cpu = vdla.compile(proto, "sim"), vdla.compile(proto, "cpu")
    (simulated,), (native,) = sim.run(x), cpu.run(x)
    np.testing.assert_array_equal(simulated, native)
    np.testing.assert_allclose(native, ReferenceEvaluator(proto).run(None, {"x": x})[0], 1e-4)
    placed = {layer.op: layer.target for layer in sim.compiled.layers}
    assert placed["QConv2d"] == "accel" and placed["Map"] == "cpu"


def test_scalars_go_in_and_out() -> None:
    proto = model([helper.make_node("Exp", ["x"], ["y"])], {"x": ()}, ["y"])
    (y,) = vdla.compile(proto, "cpu").run(np.float32(1))
    assert y.shape == () and y == pytest.approx(np.e)


def test_the_command_line(tmp_path: Path) -> None:
    path, inputs, outputs = (tmp_path / n for n in ("net.onnx", "in.npz", "out.npz"))
    proto = network()
    onnx.save_model(proto, str(path))
    x = floats(2, 3, 8, 8)
    np.savez(inputs, x=x)
    command = ["run", str(path), "--input", str(inputs), "--output", str(outputs)]
    assert run_app([*command, "--target", "cpu", "--json", str(tmp_path / "report.json")]) == 0
    with np.load(outputs) as found:
        expected = ReferenceEvaluator(proto).run(None, {"x": x})
        np.testing.assert_allclose(found["y"], expected[0], 1e-4, 1e-5)


def test_mnist() -> None:
    """A trained network: all reference outputs."""
    folder = SHARED / "onnx_mnist"
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing: the models beside the repository are optional")
    prepared = prepare(onnx.load_model(str(folder / "mnist.onnx")))
    with np.load(folder / "mnist_ref.npz") as reference:
        for x, y in zip(reference["x0"], reference["y0"], strict=True):
            np.testing.assert_allclose(prepared([x])[0], y, 1e-4, 1e-3)
