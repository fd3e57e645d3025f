"""Functions and sums behind a product that a QDQ file leaves in float, as quantisation-aware
trainers and TensorRT do: on the accelerator, equal on all targets, near to ONNX's definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from vdla.bench.distance import distances
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes

make = helper.make_node
Constants = dict[str, Any]
#: The scale and zero point of the image, and of what is added.
IMAGE, ADDED = (0.05, 3), (0.08, -5)
#: A function, the scale and zero point of its result, and the least share of elements as defined.
FUNCTIONS: dict[str, tuple[Sequence[onnx.NodeProto], float, int, float]] = {
    "leaky": ([make("LeakyRelu", ["c"], ["t"], alpha=0.01)], 0.1, -100, 1),
    "steep": ([make("LeakyRelu", ["c"], ["t"], alpha=0.3)], 0.05, -30, 1),
    "silu": ([make("Sigmoid", ["c"], ["s"]), make("Mul", ["c", "s"], ["t"])], 8 / 255, -119, 0.8),
    "hard_swish": ([make("HardSwish", ["c"], ["t"])], 8 / 255, -116, 0.8),
    "hard_sigmoid": ([make("HardSigmoid", ["c"], ["t"])], 1 / 255, -128, 0.8),
    "elu": ([make("Elu", ["c"], ["t"])], 8 / 255, -100, 0.95),
}


def quantised(name: str, scale: float, zero: int, result: str, known: Constants) -> list:
    known |= {f"{result}_scale": np.float32(scale), f"{result}_zero": np.int8(zero)}
    names = [f"{result}_scale", f"{result}_zero"]
    return [
        make("QuantizeLinear", [name, *names], [f"{result}_int8"]),
        make("DequantizeLinear", [f"{result}_int8", *names], [result]),
    ]


def product(
    kind: str, shape: Sequence[int], weight: Sequence[int], functions: Sequence[onnx.NodeProto],
    scale: float, zero: int, axis: int = 0, **attributes: Any,
) -> tuple[onnx.ModelProto, np.ndarray]:  # fmt: skip
    """A product, a function of its result ``c``, which makes ``t``, and an input."""
    rng = np.random.default_rng(0)
    known: Constants = {
        "w": rng.integers(-127, 128, weight, np.int8),
        "w_scale": (rng.uniform(0.5, 1.5, weight[axis]) * 0.002).astype(np.float32),
        "w_zero": np.zeros(weight[axis], np.int8),
    }
    nodes = [
        *quantised("x", *IMAGE, "real", known),
        make("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_real"], axis=axis),
        make(kind, ["real", "w_real"], ["c"], "product", **attributes),
        *functions,
    ]
    if any("r" in node.input for node in functions):
        nodes[-len(functions) : -len(functions)] = quantised("x", *ADDED, "r", known)
    nodes += quantised("t", scale, zero, "y", known)
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", shape), ("y", None))
    )
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in known.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "test", [x], [y], stored),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    return model, rng.normal(0, 2.5, shape).astype(np.float32)


def check(made: tuple[onnx.ModelProto, np.ndarray], share: float) -> vdla.Module:
    """Equal in the interpreter, on the accelerator and on the CPU; at most a step from ONNX Runtime
    in all elements, in none in this share."""
    model, x = made
    module = vdla.compile(model)
    [y] = module.run(x)
    [on_cpu] = vdla.compile(model, "cpu").run(x)
    [interpreted] = interpret(run_passes(import_onnx(model)), x)
    np.testing.assert_array_equal(y, interpreted)
    np.testing.assert_array_equal(y, on_cpu)
    covered = module.report["coverage"]
    assert covered["macs_on_accelerator"] == covered["macs_total"] > 0
    row = distances(model, [x])[-1]
    assert row.largest <= 1 and row.counts[0] >= share * row.elements
    assert row.elements == y.size
    return module


@pytest.mark.short(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("groups", [1, 2, 16])
def test_functions(name: str, groups: int) -> None:
    function, scale, zero, share = FUNCTIONS[name]
    weight = (16, 16 // groups, 3, 3)
    made = product("Conv", [1, 16, 9, 9], weight, function, scale, zero, pads=[1] * 4, group=groups)
    module = check(made, share)
    host = {row["op"] for row in module.report["layers"] if row["target"] == "cpu"}
    assert host <= {"Quantize", "Dequantize", "PackWindows"}


@pytest.mark.short(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["steep", "silu"])
@pytest.mark.parametrize(
    "form",
    [
        ("Conv", [1, 16, 20], (16, 16, 3), {"pads": [1, 1]}),
        ("Gemm", [8, 32], (16, 32), {"transB": 1}),
        ("MatMul", [1, 10, 32], (32, 16), {"axis": 1}),
        ("ConvTranspose", [1, 16, 5, 5], (16, 16, 2, 2), {"axis": 1, "strides": [2, 2]}),
    ],
    ids=lambda form: f"{form[0]}{len(form[1])}",
)
def test_products(form: tuple[str, list[int], tuple[int, ...], dict[str, Any]], name: str) -> None:
    kind, shape, weight, attributes = form
    function, scale, zero, share = FUNCTIONS[name]
    check(product(kind, shape, weight, function, scale, zero, **attributes), share - 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("relu", [False, True])
def test_sums(relu: bool) -> None:
    nodes = [make("Add", ["r", "c"], ["t0" if relu else "t"])]
    nodes += [make("Relu", ["t0"], ["t"])] * relu
    zero = -128 if relu else -20
    made = product("Conv", [1, 16, 9, 9], (16, 16, 3, 3), nodes, 0.06, zero, pads=[1] * 4)
    check(made, 0.5)


def by_two(known: str) -> list[onnx.NodeProto]:
    """A function of two results of products."""
    return [make("Mul", ["c", known], ["t"])]


@pytest.mark.parametrize("nodes", [by_two("real"), by_two("r")], ids=["image", "other"])
def test_what_is_no_function_of_one_product_stays(nodes: list) -> None:
    model, x = product("Conv", [1, 16, 9, 9], (16, 16, 3, 3), nodes, 0.1, 0, pads=[1] * 4)
    module = vdla.compile(model)
    module.run(x)
    assert module.report["coverage"]["macs_on_accelerator"] == 0
    assert distances(model, [x])[-1].largest == 0
