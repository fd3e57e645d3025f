"""Bit-serial products are those of NumPy and ONNX Runtime, by the intrinsic that was meant."""

from __future__ import annotations

from random import Random

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from vdla.compiler.targets.cpu.bitserial import (
    POPCOUNT_DOT,
    bit_planes,
    conv2d,
    dense,
    pack_weights,
    scheduled,
)
from vdla.compiler.targets.cpu.graph_code import compile_func
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import Tensor, placeholder
from vdla.compiler.tir.interpret import interpret
from vdla.compiler.tir.ir import PrimFunc, TensorCall, walk_stmt
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.verify import verify
from vdla.isa.errors import VdlaError


def program(
    shape: tuple[int, int, int], x_bits: int, packed: np.ndarray, bipolar: bool
) -> tuple[PrimFunc, Tensor]:
    rows, size, outputs = shape
    x, w = placeholder((rows, size), "uint8", "x"), placeholder(packed.shape, "uint32", "w")
    y = dense(x, w, outputs, x_bits, bipolar)
    func = lower(scheduled(y), [x, w, y])
    verify(func)
    return func, y


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
    x, w = (placeholder(a.shape, str(a.dtype), "x") for a in (image, packed))
    y = conv2d(x, w, outputs, x_bits, strides, tuple(pads), bipolar)
    func = lower(scheduled(y), [x, w, y])
    verify(func)
    result = np.full(y.shape, 85, np.int32)
    compile_func(func)(image, packed, result)
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
