"""Bit-serial products equal those of NumPy and ONNX Runtime, use the intended intrinsic, and are
reached from models."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from onnx import TensorProto, helper
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import interpret as interpret_graph
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.ops.linear import QDense
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu, compile_func, compile_graph
from vdla.compiler.targets.cpu.llvm_parallel import has_threads
from vdla.compiler.targets.cpu.lowering import new_chooser
from vdla.compiler.targets.cpu.passes.bit_serial import bit_serial
from vdla.compiler.targets.cpu.processor import CROSS_PROCESSORS
from vdla.compiler.targets.cpu.templates.bit_serial import POPCOUNT_DOT, schedule_planes
from vdla.compiler.te.schedule import Schedule, create_schedule
from vdla.compiler.te.tensor import Tensor, placeholder
from vdla.compiler.tir.ir import PrimFunc, TensorCall, walk_stmt
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.verify import verify
from vdla.compiler.topi.bit_serial import (
    PLAIN,
    Levels,
    bit_planes,
    bit_serial_conv2d,
    bit_serial_dense,
    pack_weights,
    unpack_weights,
)
from vdla.isa.errors import VdlaError

from ...conftest import Builder
from ...interpret import interpret

BIPOLAR = Levels(2, -1)


def scheduled(y: Tensor) -> Schedule:
    schedule = create_schedule(y)
    schedule_planes(schedule)
    return schedule


def program(
    shape: tuple[int, int, int], x_bits: int, packed: np.ndarray, bipolar: bool
) -> tuple[PrimFunc, Tensor]:
    rows, size, outputs = shape
    x, w = placeholder((rows, size), "uint8", "x"), placeholder(packed.shape, "uint32", "w")
    y = bit_serial_dense(x, w, outputs, x_bits, BIPOLAR if bipolar else PLAIN)
    func = lower(scheduled(y), [x, w, y])
    verify(func)
    return func, y


@pytest.mark.fast(1)
@pytest.mark.parametrize("seed", range(24))
def test_products_equal_numpy(seed: int) -> None:
    r, rng = Random(seed), np.random.default_rng(seed)
    shape = rows, size, outputs = r.randint(1, 3), r.randint(1, 100), r.randint(1, 40)
    x_bits, w_bits, bipolar = r.randint(1, 2), r.randint(1, 2), r.random() < 0.5
    w_bits = 1 if bipolar else w_bits
    x = rng.integers(0, 1 << x_bits, (rows, size)).astype(np.uint8)
    w = rng.integers(0, 1 << w_bits, (outputs, size))
    packed = pack_weights(w, w_bits)
    func, y = program(shape, x_bits, packed, bipolar)
    result = np.full(y.shape, 85, np.int32)
    compile_func(func)(x, packed, result)
    np.testing.assert_array_equal(result, x.astype(np.int32) @ (2 * w - 1 if bipolar else w).T)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_convolutions_equal_onnx_runtime(seed: int) -> None:
    r, rng = Random(seed), np.random.default_rng(seed)
    channels, outputs = r.randint(1, 70), r.randint(1, 20)
    kernel = (r.randint(1, 3), r.randint(1, 3))
    size = tuple(n + r.randint(0, 4) for n in kernel)
    strides, pads = (r.randint(1, 2), r.randint(1, 2)), [r.randint(0, 2) for _ in range(4)]
    bipolar, x_bits = r.random() < 0.5, r.randint(1, 2)
    w_bits = 1 if bipolar else r.randint(1, 2)
    image = rng.integers(0, 1 << x_bits, (r.randint(1, 2), *size, channels)).astype(np.uint8)
    weight = rng.integers(0, 1 << w_bits, (outputs, *kernel, channels))
    packed = pack_weights(weight, w_bits)
    batch, _, width, _ = image.shape
    flat = np.ascontiguousarray(image.transpose(0, 3, 1, 2)).reshape(batch, channels, -1)
    x, w = (placeholder(a.shape, str(a.dtype), "x") for a in (flat, packed))
    levels = BIPOLAR if bipolar else PLAIN
    y = bit_serial_conv2d(x, width, w, outputs, x_bits, strides, tuple(pads), levels)
    func = lower(scheduled(y), [x, w, y])
    verify(func)
    result = np.full(y.shape, 85, np.int32)
    compile_func(func)(flat, packed, result)
    meant = (2 * weight - 1 if bipolar else weight).astype(np.int8)
    np.testing.assert_array_equal(result, onnx_conv(image, meant, strides, pads))


def onnx_conv(
    image: np.ndarray, weight: np.ndarray, strides: tuple[int, int], pads: list[int]
) -> np.ndarray:
    """ONNX Runtime's ConvInteger, channels last."""
    arrays = {"x": image.transpose(0, 3, 1, 2), "w": weight.transpose(0, 3, 1, 2)}
    node = helper.make_node("ConvInteger", ["x", "w"], ["y"], strides=strides, pads=pads)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in arrays.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.INT32, None)
    graph = helper.make_graph([node], "conv", inputs, [output])
    imports = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {n: np.ascontiguousarray(a) for n, a in arrays.items()}
    return np.asarray(session.run(None, feeds)[0]).transpose(0, 2, 3, 1)


def test_interpreter_agrees() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 4, (2, 40)).astype(np.uint8), rng.integers(0, 4, (17, 40))
    packed = pack_weights(w, 2)
    func, y = program((2, 40, 17), 2, packed, False)
    calls = [s for s in walk_stmt(func.body) if isinstance(s, TensorCall)]
    assert {(c.intrinsic, c.variant) for c in calls} == {
        (POPCOUNT_DOT, "init"),
        (POPCOUNT_DOT, "update"),
    }
    result = np.full(y.shape, 85, np.int32)
    interpret(func, x, packed, result)
    np.testing.assert_array_equal(result, x.astype(np.int32) @ w.T)


def test_planes_are_numpys_bits() -> None:
    array = np.random.default_rng(0).integers(0, 256, (3, 64)).astype(np.uint8)
    x = placeholder((3, 64), "uint8", "x")
    planes = bit_planes(x, 8)
    result = np.zeros(planes.shape, np.uint32)
    compile_func(lower(create_schedule(planes), [x, planes]))(array, result)
    bits = np.unpackbits(array[..., None], axis=2, bitorder="little")  # [3, 64, 8]
    words = np.packbits(bits, axis=1, bitorder="little").transpose(0, 2, 1)  # [3, 8, 8 bytes]
    expected = np.ascontiguousarray(words).view("<u4").transpose(0, 2, 1)
    np.testing.assert_array_equal(result, expected)


def test_weights_of_more_bits_are_refused() -> None:
    with pytest.raises(
        VdlaError, match=r"bit-serial weights: expected values of 0 .. 1, got 0 .. 2"
    ):
        pack_weights(np.array([[0, 2]]), 1)


@pytest.mark.parametrize(
    ("values", "levels", "bits"),
    [
        ((0, 1), PLAIN, 1), ((0, 2), PLAIN, 2), ((0, 3), PLAIN, 2), ((0, 0), PLAIN, 1),
        ((-1, 1), BIPOLAR, 1), ((-1, 0, 1), Levels(1, -1), 2), ((-2, -1, 0, 1), Levels(1, -2), 2),
        ((0, 4), Levels(4, 0), 1), ((-9, -3, 3, 9), Levels(6, -9), 2), ((5, 5), Levels(1, 5), 1),
        ((0, 1, 4), Levels(1, 0), 3), ((-128, 127), Levels(255, -128), 1),
    ],
)  # fmt: skip
def test_levels(values: tuple[int, ...], levels: Levels, bits: int) -> None:
    weight = np.array(values, np.int8)
    assert Levels.of(weight) == (levels, bits)
    codes = levels.codes(weight)
    assert codes.min() >= 0 and codes.max() < 1 << bits
    np.testing.assert_array_equal(codes * levels.step + levels.offset, weight)


@pytest.mark.parametrize("shape", [(17, 40), (3, 2, 3, 33), (16, 1, 1, 32)])
def test_packed_weights_come_back(shape: tuple[int, ...]) -> None:
    codes = np.random.default_rng(0).integers(0, 4, shape)
    packed = pack_weights(codes, 2)
    np.testing.assert_array_equal(unpack_weights(packed, shape[0], shape[-1]), codes)


# ---- models --------------------------------------------------------------------------------------

WEIGHTS = ((0, 1), (-1, 1), (-1, 0, 1), (0, 1, 2, 3), (-2, -1, 0, 1), (-7, 3))


@dataclass
class Layers:
    """A float input clipped to codes, convolutions and a dense layer on codes, in QDQ form."""

    builder: Any
    r: Random
    rng: np.random.Generator

    def quantised(self, x: str, bits: int, zero: int) -> str:
        """Clipped to codes of this many bits, as uint8; on a scale of 1/2."""
        name = f"q{len(self.builder.nodes)}"
        top = self.builder.constant(f"{name}_top", np.float32(((1 << bits) - 1) * 0.5))
        low = self.builder.constant(f"{name}_low", np.float32(0))
        return self.builder.qdq(self.builder.node("Clip", [x, low, top], name), 0.5, zero, "uint8")

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.builder.nodes)}"
        data = self.rng.choice(self.r.choice(WEIGHTS), shape).astype(np.int8)
        stored = self.builder.constant(f"{name}_stored", data)
        return self.builder.scaled("DequantizeLinear", stored, name, np.float32(0.25), np.int8(0))


def model_of(builder: Any, seed: int) -> tuple[onnx.ModelProto, np.ndarray, int]:
    """A random model, its input, and how many of its layers can be bit-serial."""
    r, rng = Random(seed), np.random.default_rng(seed)
    net = Layers(builder, r, rng)
    channels, middle, outputs = r.randint(1, 40), r.randint(1, 40), r.randint(1, 20)
    size, kernel, stride = r.randint(3, 8), r.randint(1, 3), r.randint(1, 2)
    x = net.quantised(
        builder.input("x", [1, channels, size, size]), r.randint(1, 2), r.choice((0, 7))
    )
    pads = [r.randint(0, kernel - 1) for _ in range(4)]
    rows, columns = ((size + sum(pads[i::2]) - kernel) // stride + 1 for i in range(2))
    conv = builder.node(
        "Conv", [x, net.weight(middle, channels, kernel, kernel)], "conv", strides=[stride, stride],
        pads=pads,
    )  # fmt: skip
    y = net.quantised(conv, r.randint(1, 2), 0)
    pool = builder.node("MaxPool", [y], "pool", kernel_shape=[1, min(columns, 2)])
    features = middle * rows * (columns - min(columns, 2) + 1)
    flat = builder.node("Flatten", [builder.qdq(pool, 0.5, 0, "uint8")], "flat")
    last = builder.node("Gemm", [flat, net.weight(outputs, features)], "dense", transB=1)
    model = builder.model([builder.qdq(last, 1.0, 3)], opset=21)
    image = rng.normal(0.5, 1, (1, channels, size, size)).astype(np.float32)
    return model, image, 2


@pytest.mark.slow
@pytest.mark.short(5)
@pytest.mark.parametrize("seed", range(16))
def test_models_run_bit_by_bit(seed: int, builder: Any) -> None:
    """Exactly as on int8, as the interpreter and as ONNX Runtime."""
    model, image, count = model_of(builder, seed)
    graph = run_passes(import_onnx(model))
    products = [n.name for n in graph.nodes if isinstance(n.op, QConv2d | QDense)]
    assert len(products) == count
    results = {}
    for algorithm in ("bit-serial", "direct"):
        module = build_cpu(graph, knobs={name: {"algorithm": algorithm} for name in products})
        found = sum(node.op.name.startswith("BitSerial") for node in module.graph.nodes)
        assert found == (count if algorithm == "bit-serial" else 0)
        results[algorithm] = module.run(image)[0]
        if has_threads():
            given = {name: {"algorithm": algorithm, "parallel": True} for name in products}
            shared = build_cpu(graph, 3, given if algorithm == "bit-serial" else None)
            np.testing.assert_array_equal(shared.run(image)[0], results[algorithm])
        np.testing.assert_array_equal(results[algorithm], interpret_graph(graph, image)[0])
        np.testing.assert_array_equal(results[algorithm], interpret_graph(module.graph, image)[0])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (wanted,) = session.run(None, {"x": image})
    np.testing.assert_array_equal(results["direct"], np.asarray(wanted))


@pytest.mark.more
@pytest.mark.slow
def test_models_have_results_that_vary() -> None:
    seen = set[float]()
    for seed in range(16):
        model, image, _ = model_of(Builder(), seed)
        seen |= {*build_cpu(run_passes(import_onnx(model))).run(image)[0].reshape(-1)}
    assert len(seen) > 20


@pytest.mark.parametrize("bits", [2, 3])
def test_what_has_more_bits_stays(bits: int, builder: Any) -> None:
    """Elements of three bits, and weights of five values."""
    net = Layers(builder, Random(0), np.random.default_rng(0))
    x = net.quantised(builder.input("x", [1, 8]), bits, 0)
    names = []
    for name, values in (("few", (-1, 0, 1)), ("many", (-2, -1, 0, 1, 2))):
        data = np.resize(np.array(values, np.int8), (4, 8))
        stored = builder.constant(f"{name}_stored", data)
        w = builder.scaled("DequantizeLinear", stored, f"{name}_w", np.float32(1), np.int8(0))
        names.append(builder.qdq(builder.node("Gemm", [x, w], name, transB=1), 1.0, 0))
    graph = run_passes(import_onnx(builder.model(names, opset=21)))
    found = {
        n.name: n.op.name for n in bit_serial(graph).nodes if n.name in ("few_node", "many_node")
    }
    few = "BitSerialDense" if bits == 2 else "QDense"
    assert found == {"few_node": few, "many_node": "QDense"}


@pytest.mark.slow
def test_who_chooses(builder: Any) -> None:
    """A person chooses; otherwise the algorithm that takes fewer instructions on the processor is
    taken."""
    model, image, _ = model_of(builder, 1)
    module = vdla.compile(model, "cpu", knobs={"conv_node": {"algorithm": "direct"}})
    module.run(image)
    rows = {row["name"]: row for row in module.report["layers"]}
    assert rows["conv_node"]["knobs"]["algorithm"] == "direct"
    assert rows["conv_node"]["chosen_by"] == "user"
    assert rows["dense_node"]["chosen_by"] == "planner"
    with pytest.raises(
        VdlaError, match=r"'conv_node': knob algorithm: expected one of .*bit-serial"
    ):
        vdla.compile(model, "cpu", knobs={"conv_node": {"algorithm": "winograd4"}})
    with pytest.raises(VdlaError, match="layer 'dense_node': expected knobs"):
        vdla.compile(model, "cpu", knobs={"dense_node": {"bits": 1}})


@pytest.mark.fast(1)
@pytest.mark.parametrize("triple", CROSS_PROCESSORS)
def test_for_other_processors(triple: str, builder: Any) -> None:
    model, _, count = model_of(builder, 2)
    graph = run_passes(import_onnx(model))
    knobs = {name: {"algorithm": "bit-serial"} for name in ("conv_node", "dense_node")}
    processor = CROSS_PROCESSORS[triple]
    code = compile_graph(graph, processor, new_chooser(processor, knobs))
    assert sum(n.op.name.startswith("BitSerial") for n in code.graph.nodes) == count
    assert code.object_file[:4] == b"\x7fELF"
