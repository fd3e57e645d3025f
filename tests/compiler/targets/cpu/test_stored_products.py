"""Products of integers less zero points that are known at run time only: their values, and that
they take the templates of integer products, whatever the processor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu, on_blocks
from vdla.compiler.targets.cpu.lowering import new_chooser, template_of
from vdla.compiler.targets.cpu.micro_kernel_code import native_intrinsics
from vdla.compiler.targets.cpu.micro_kernels import DOT, TILE_STORE
from vdla.compiler.targets.cpu.processor import host_processor

from .whole_numbers import kinds


def product_model(
    kind: str, x: np.ndarray, zero: np.ndarray, weight: np.ndarray, zero_w: np.ndarray, **where: Any
) -> onnx.ModelProto:
    """ConvInteger or MatMulInteger, of which the first operand and its zero point are inputs."""
    nodes = [helper.make_node(kind, ["x", "w", "zero", "zero_w"], ["y"], **where)]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in (("x", x), ("zero", zero))
    ]
    held = [numpy_helper.from_array(a, name) for name, a in (("w", weight), ("zero_w", zero_w))]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.INT32, None)
    graph = helper.make_graph(nodes, "product", inputs, [result], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def results(model: onnx.ModelProto, *arrays: np.ndarray) -> tuple[list[np.ndarray], Graph]:
    """Of machine code, of the interpreter, and of that on what the processor computes; the last."""
    graph, processor = run_passes(import_onnx(model, Sizes(1))), host_processor()
    blocked = on_blocks(graph, processor, new_chooser(processor))
    runs = (build_cpu(graph).run(*arrays), interpret(graph, *arrays), interpret(blocked, *arrays))
    return [found for (found,) in runs], blocked


def templates(graph: Graph) -> dict[str, str]:
    """The template of each kind of operator."""
    return {type(n.op).__name__: template_of(graph, n, host_processor()).name for n in graph.nodes}


def whole_range(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


@pytest.mark.each_processor
@pytest.mark.parametrize("kinds_of", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
@pytest.mark.parametrize(
    "shape", [(1, 64, 40), (13, 24, 1), (6, 9, 17)], ids=["row", "column", "no fours"]
)
def test_matmul_integer_is_tiled(kinds_of: tuple[str, str], shape: tuple[int, int, int]) -> None:
    """Extreme zero points, of which none may be forgotten; those of weights are one, or one for
    each column."""
    (rows, depth, columns), rng = shape, np.random.default_rng(0)
    x, w = (
        whole_range(rng, dtype, *size)
        for dtype, size in zip(kinds_of, ((2, rows, depth), (depth, columns)), strict=True)
    )
    zero = np.array(np.iinfo(x.dtype).max, x.dtype)
    zero_w = whole_range(rng, str(w.dtype), *([1] if columns == 40 else [columns]))
    found, blocked = results(product_model("MatMulInteger", x, zero, w, zero_w), x, zero)
    wanted = (x.astype(np.int64) - zero) @ (w.astype(np.int64) - zero_w)
    for each in found:
        np.testing.assert_array_equal(each, wanted)
    assert templates(blocked)["PackedDense"] == "packed dense" and "MatMul" not in kinds(blocked)
    [product] = (node for node in blocked.nodes if type(node.op).__name__ == "PackedDense")
    fours = DOT in native_intrinsics(host_processor()) and depth % 4 == 0
    fours = fours and x.dtype == np.uint8
    assert [t.dtype for t in blocked.operands(product)] == (
        ["uint8", "int8"] if fours else ["int32"] * 2
    )


@pytest.mark.each_processor
@pytest.mark.parametrize("kinds_of", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
@pytest.mark.parametrize(
    ("channels", "features", "size", "where"),
    [(32, 24, (7, 6), {"pads": [1, 0, 2, 1], "strides": [2, 1]}), (3, 16, (9,), {"pads": [1, 1]}),
     (32, 32, (5, 5), {"pads": [1, 1, 1, 1], "group": 32})],
    ids=["image", "row", "depthwise"],
)  # fmt: skip
def test_conv_integer_is_tiled(
    kinds_of: tuple[str, str], channels: int, features: int, size: tuple[int, ...],
    where: Mapping[str, Any],
) -> None:  # fmt: skip
    """The border is made of zero points. Where products by fours cannot be, those of int32 are."""
    rng, groups = np.random.default_rng(1), where.get("group", 1)
    x = whole_range(rng, kinds_of[0], 1, channels, *size)
    w = whole_range(rng, kinds_of[1], features, channels // groups, *[3] * len(size))
    zero, zero_w = np.array(77, x.dtype), np.array(3 if w.dtype == "int8" else 130, w.dtype)
    zero_w = zero_w if w.dtype == "uint8" or groups == 1 else np.array(0, w.dtype)
    found, blocked = results(product_model("ConvInteger", x, zero, w, zero_w, **where), x, zero)
    wanted = _float_convolution(x.astype(float) - zero, w.astype(float) - zero_w, dict(where))
    for each in found:
        np.testing.assert_array_equal(each, wanted)
    native = native_intrinsics(host_processor())
    if DOT not in native or x.dtype == "int8" or (groups > 1 and w.dtype == "uint8"):
        kind = "BlockedConv2d" if groups == 1 else "BlockedDepthwise"
    else:
        kind = "BlockedDotConv2d"
        if TILE_STORE in native and "BlockedMatrixConv2d" in kinds(blocked):
            kind = "BlockedMatrixConv2d"
    template = "direct" if groups == 1 else "channel windows"
    assert templates(blocked)[kind] == (
        "matrix tiles" if kind == "BlockedMatrixConv2d" else template
    )


def _float_convolution(x: np.ndarray, w: np.ndarray, where: dict[str, Any]) -> np.ndarray:
    """By ONNX's evaluator, in float64."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], **where)
    double = onnx.TensorProto.DOUBLE
    x_info, w_info, y_info = (helper.make_tensor_value_info(n, double, None) for n in "xwy")
    graph = helper.make_graph([node], "conv", [x_info, w_info], [y_info])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    [found] = ReferenceEvaluator(model).run(None, {"x": x, "w": w})  # type: ignore[misc]
    return np.asarray(found)
