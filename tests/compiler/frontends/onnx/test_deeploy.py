"""Deeploy's operators against its C kernels' arithmetic, in Python's integers."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.errors import VdlaError

RNG = np.random.default_rng(5)


def run(node: onnx.NodeProto, x: np.ndarray, **constants: np.ndarray) -> np.ndarray:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node], "deeploy", [helper.make_tensor_value_info("x", kind, x.shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 13)]
    made = import_onnx(helper.make_model(graph, opset_imports=imports, ir_version=8))
    (y,) = interpret(made, x)
    np.testing.assert_array_equal(build_cpu(run_passes(made)).run(x)[0], y)
    return y


def shifted(x: int, mul: int, add: int, log2_div: int, low: int, high: int) -> int:
    total = x * mul + add
    if log2_div:
        total = (total + (1 << (log2_div - 1))) >> log2_div
    return min(max(total, low), high)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("signed", [0, 1])
@pytest.mark.parametrize("log2_div", [0, 13])
def test_requant_shift(dtype: str, signed: int, log2_div: int) -> None:
    far = 1 << 17 if log2_div else 30
    x = RNG.integers(-far, far, (2, 3, 4, 5)).astype(dtype)
    mul, add = RNG.integers(-9, 10, 3), RNG.integers(-2 * far, 2 * far, 3)
    settings = {"div": 1 << log2_div, "n_levels_out": 256, "signed": signed}
    tensors = {n: numpy_helper.from_array(np.array(v, np.float32)) for n, v in settings.items()}
    node = helper.make_node("RequantShift", ["x", "m", "a"], ["y"], **tensors)
    y = run(node, x, m=mul.astype(dtype), a=add.astype(dtype).reshape(3, 1, 1))
    low, high = (-128, 127) if signed else (0, 255)
    right = [
        shifted(int(v), int(mul[c]), int(add[c]), log2_div, low, high)
        for (_, c, _, _), v in np.ndenumerate(x)
    ]
    np.testing.assert_array_equal(y.reshape(-1), right)
    assert y.dtype == (np.float32 if dtype == "float32" else np.int8 if signed else np.uint8)
    assert len(set(right)) > 2


def test_factors_as_attributes() -> None:
    """Old files have one operand."""
    x = RNG.integers(-100, 100, (3, 4)).astype(np.float32)
    tensors = {name: helper.make_tensor(name, TensorProto.FLOAT, [], [v])
               for name, v in (("mul", 3), ("add", 5), ("div", 4), ("n_levels", 16))}  # fmt: skip
    node = helper.make_node("RequantShift", ["x"], ["y"], signed=1, **tensors)
    np.testing.assert_array_equal(run(node, x), np.clip((x * 3 + 5 + 2) // 4, -8, 7))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("kind", ["iRMSNorm", "RMSNorm"])
def test_norm_of_integers(kind: str, dtype: str) -> None:
    x = RNG.integers(-128, 128, (2, 3, 16)).astype(dtype)
    weight = RNG.integers(-3000, 3000, 16)
    y = run(helper.make_node(kind, ["x", "w"], ["y"], D=64, n_levels=256), x,
            w=weight.astype("float32" if dtype == "float32" else "int32"))  # fmt: skip
    right = np.zeros(x.shape, np.int64)
    for place in np.ndindex(2, 3):
        row = [int(v) for v in x[place]]
        root = math.isqrt(sum(v * v for v in row) // 16 + 1)
        for i, (v, w) in enumerate(zip(row, weight.tolist(), strict=True)):
            quotient = abs(v * w) // root * (1 if v * w >= 0 else -1)
            right[(*place, i)] = min(max(quotient >> 6, -128), 127)
    np.testing.assert_array_equal(y, right)
    assert y.dtype == dtype and len(np.unique(right)) > 20


def test_norm_of_floats() -> None:
    x, w = RNG.normal(size=(2, 8)).astype(np.float32), RNG.normal(size=8).astype(np.float32)
    y = run(helper.make_node("RMSNorm", ["x", "w"], ["y"], eps=0.01), x, w=w)
    right = x / np.sqrt((x.astype("f8") ** 2).mean(-1, keepdims=True) + 0.01) * w
    np.testing.assert_allclose(y, right, rtol=1e-5)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"div": 12, "n_levels": 256, "signed": 1}, "expected a power of two as div, got 12"),
        ({"div": 16, "signed": 1}, "expected a whole number n_levels_out, got None"),
        ({"div": 16.5, "n_levels": 256, "signed": 1}, "expected a whole number div, got 16.5"),
    ],
    ids=["div", "levels", "fraction"],
)
def test_refusals(settings: dict[str, float], said: str) -> None:
    node = helper.make_node("RequantShift", ["x", "m", "m"], ["y"], **settings)
    with pytest.raises(VdlaError, match=said):
        run(node, np.ones((1, 1), np.float32), m=np.ones(1, np.float32))
