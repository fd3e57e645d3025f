"""Winograd's convolution: against float64 and ONNX Runtime, and where it is chosen.

Errors are relative to the largest result, as ``docs/adr/0010-winograd.md`` measures them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from vdla.bench.workloads import NETWORKS
from vdla.compiler.choose.template import Plan
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor, infer
from vdla.compiler.graph.ops.blocked.convolution import BlockedConv2d, BlockedWinograd
from vdla.compiler.graph.ops.convolution import Conv2d
from vdla.compiler.graph.ops.layout import FromBlocks, ToBlocks
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.common.workload import workload_of
from vdla.compiler.targets.cpu.core import Core
from vdla.compiler.targets.cpu.graph_code import build_cpu, on_blocks
from vdla.compiler.targets.cpu.llvm_parallel import has_threads
from vdla.compiler.targets.cpu.lowering import new_chooser
from vdla.compiler.targets.cpu.processor import host_processor
from vdla.compiler.targets.cpu.templates.algorithms import (
    ALGORITHMS,
    DIRECT,
    ConvolutionAlgorithm,
    transformed_weight,
)
from vdla.compiler.topi import winograd as winograd_expression
from vdla.compiler.topi.winograd import POINTS, matrices

Shape = tuple[int, ...]
#: A processor whose registers have 16 values.
WIDE = replace(host_processor(), features=("+avx512f",), core=Core())
#: Largest errors that are let pass, several times those that are seen.
TOLERANCE = {2: 2e-6, 4: 8e-6}


def normal(shape: Shape, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def blocks(array: np.ndarray, size: int, axis: int) -> np.ndarray:
    """An axis of whole blocks as two."""
    shape = array.shape
    return array.reshape(*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :])


def convolution(x: np.ndarray, weight: np.ndarray, pads: Shape) -> np.ndarray:
    """In float64, by its definition: x [N, C, H, W], weight [OC, C, 3, 3]."""
    top, left, bottom, right = pads
    image = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (2, 3))
    return np.einsum("nchwab,ocab->nohw", windows, weight.astype(np.float64))


class Case:
    """An operator with operands on blocks of channels, and its result in float64."""

    def __init__(
        self,
        size: int,
        x_shape: Shape,
        features: int,
        pads: Shape,
        residual: bool = False,
        lo: float = 0.0,
        lanes: int = host_processor().vector_lanes,
    ):
        x, weight = normal(x_shape, 0), normal((features, x_shape[1], 3, 3), 1)
        weight *= np.float32((9 * x_shape[1]) ** -0.5)
        self.weight, bias = weight, normal((features,), 2)
        exact = convolution(x, weight, pads) + bias[:, None, None]
        self.inputs = [np.ascontiguousarray(np.moveaxis(blocks(x, lanes, 1), 2, -1))]
        if residual:
            other = normal(exact.shape, 3)
            exact += other
            self.inputs.append(np.ascontiguousarray(np.moveaxis(blocks(other, lanes, 1), 2, -1)))
        self.scale = np.abs(exact).max()
        self.exact = np.moveaxis(blocks(np.maximum(exact, lo), lanes, 1), 2, -1)
        packed = blocks(blocks(transformed_weight(weight, size), lanes, 2), lanes, 4)
        constants = {
            "w": np.ascontiguousarray(packed.transpose(0, 1, 2, 4, 5, 3)),
            "b": blocks(bias, lanes, 0),
        }
        tensors = {"x": Tensor("x", self.inputs[0].shape, "float32")}
        tensors |= {name: Tensor.constant(name, data) for name, data in constants.items()}
        if residual:
            tensors["r"] = Tensor("r", self.inputs[1].shape, "float32")
        op = BlockedWinograd(size, (pads[0], pads[1], pads[2], pads[3]), lo=lo)
        shape, dtype = infer(op, tuple(tensors.values()), "y")
        names = tuple(tensors)
        tensors["y"] = Tensor("y", shape, dtype)
        inputs = ("x", "r") if residual else ("x",)
        self.graph = Graph("case", inputs, ("y",), (Node("conv", op, names, "y"),), tensors)

    def error(self, result: np.ndarray) -> float:
        assert result.shape == self.exact.shape
        return float(np.abs(result - self.exact).max() / self.scale)


@pytest.mark.parametrize("size", POINTS)
def test_the_transformations_are_a_convolution(size: int) -> None:
    rng = np.random.default_rng(size)
    image, kernel = rng.normal(size=(size + 2, size + 2)), rng.normal(size=(3, 3))
    m = matrices(size)
    products = (m.kernel @ kernel @ m.kernel.T) * (m.image @ image @ m.image.T)
    wanted = convolution(image[None, None], kernel[None, None], (0,) * 4)[0, 0]
    np.testing.assert_allclose(m.result @ products @ m.result.T, wanted, rtol=0, atol=1e-13)
    for exact in (m.image, m.result):  # and no entry is rounded in the code
        np.testing.assert_array_equal(exact, exact.astype(np.float32))


@pytest.mark.more
@pytest.mark.slow
@settings(max_examples=25, derandomize=True)
@given(st.data())
def test_results_are_those_of_float64(data: st.DataObject) -> None:
    """In groups of rows of tiles, too, of which the last one may be smaller."""
    draw, lanes = data.draw, host_processor().vector_lanes
    pads = tuple(draw(st.integers(0, 1)) for _ in range(4))
    x = (
        draw(st.integers(1, 2)), lanes * draw(st.integers(1, 4)),
        draw(st.integers(3, 30)), draw(st.integers(3, 30)),
    )  # fmt: skip
    size, features = draw(st.sampled_from(sorted(POINTS))), lanes * draw(st.integers(1, 4))
    residual, lo = draw(st.booleans()), draw(st.sampled_from((0.0, -np.inf)))
    case = Case(size, x, features, pads, residual, lo)
    rows = -(-case.exact.shape[2] // size)
    groups = [group for group in range(1, rows + 1) if rows % group == 0]
    knobs = {"conv": {"group": draw(st.sampled_from(groups))}} if draw(st.booleans()) else {}
    [found] = build_cpu(case.graph, knobs=knobs).run(*case.inputs)
    assert case.error(found) < TOLERANCE[size]


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.skipif(not has_threads(), reason="needs GCC's OpenMP library")
@pytest.mark.parametrize("group", [1, 7])
def test_threads_change_no_bit(group: int) -> None:
    """With several groups, which they share, and with one, inside which they share the work."""
    case = Case(4, (1, 48, 27, 22), 32, (1, 1, 1, 1), True, 0.0)
    knobs = {"conv": {"group": group}}
    one, two, five = (build_cpu(case.graph, n, knobs).run(*case.inputs)[0] for n in (1, 2, 5))
    assert case.error(one) < TOLERANCE[4]
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, five)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("size", POINTS)
def test_blocks_of_any_register(size: int, lanes: int) -> None:
    case = Case(size, (1, 32, 15, 21), 48, (1, 1, 1, 1), residual=True, lanes=lanes)
    [found] = build_cpu(case.graph).run(*case.inputs)
    assert case.error(found) < TOLERANCE[size]
    small = Case(size, (1, lanes, 5, 6), lanes, (1, 0, 0, 1), residual=True, lanes=lanes)
    [plain] = interpret(small.graph, *small.inputs)  # its expression, with no schedule
    assert small.error(plain) < TOLERANCE[size]


@pytest.mark.slow
@pytest.mark.parametrize(("matrix", "size"), [("image", 4), ("result", 4), ("image", 2)])
def test_a_wrong_entry_is_seen(matrix: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests of results would say of it."""
    wrong = getattr(matrices(size), matrix).copy()
    wrong[1, 1] *= 1.001
    monkeypatch.setattr(winograd_expression, "matrices",
                        lambda size: replace(matrices(size), **{matrix: wrong}))  # fmt: skip
    case = Case(size, (1, 32, 9, 9), 32, (1, 1, 1, 1))
    [found] = build_cpu(case.graph).run(*case.inputs)
    assert case.error(found) > 10 * TOLERANCE[size]


# ---- where it is chosen --------------------------------------------------------------------------


def model(
    channels: int, features: int, height: int, width: int, residual: bool, **attributes: Any
) -> onnx.ModelProto:
    """``Relu(Conv(x) + r)``, 3 x 3 with a border of 1 if nothing else is said, or without r."""
    kernel = attributes.setdefault("kernel_shape", [3, 3])
    attributes.setdefault("pads", [1, 1, 1, 1])
    weight = normal((features, channels // attributes.get("group", 1), *kernel), 1)
    weight *= np.float32((9 * channels) ** -0.5)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], name="conv", **attributes)]
    inputs = {"x": (1, channels, height, width)}
    if residual:
        inputs["r"] = (1, features, height, width)
        nodes.append(helper.make_node("Add", ["r", "c"], ["s"], name="add"))
    nodes.append(helper.make_node("Relu", [nodes[-1].output[0]], ["y"], name="relu"))
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    ends = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "m", infos, ends, [numpy_helper.from_array(weight, "w")])
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(found)


def operators(found: onnx.ModelProto) -> list[Any]:
    graph = on_blocks(run_passes(import_onnx(found, Sizes(1))), WIDE, new_chooser(WIDE))
    return [n.op for n in graph.nodes if not isinstance(n.op, ToBlocks | FromBlocks)]


@pytest.mark.short(2)
@pytest.mark.slow
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("sizes", [(64, 80, 30, 27), (40, 33, 19, 45)])
def test_models_equal_onnx_runtime(sizes: tuple[int, int, int, int], residual: bool) -> None:
    """Channels beyond the last full block, too; bias of zeros, residual and Relu in one."""
    found = model(*sizes, residual)
    [op] = operators(found)
    assert isinstance(op, BlockedWinograd) and op.size == 4 and op.lo == 0.0
    graph = run_passes(import_onnx(found, Sizes(1)))
    arrays = {name: normal(graph[name].shape, 9 + i) for i, name in enumerate(graph.inputs)}
    session = onnxruntime.InferenceSession(
        found.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    [wanted] = session.run(None, arrays)
    [result] = build_cpu(graph).run(*arrays.values())
    assert np.abs(result - wanted).max() < TOLERANCE[4] * np.abs(wanted).max()


def tile_size(channels: int, extent: int) -> int | None:
    """What is chosen with registers of 16 values; None for direct products."""
    graph = run_passes(import_onnx(model(channels, channels, extent, extent, False), Sizes(1)))
    [node] = (node for node in graph.nodes if isinstance(node.op, Conv2d))
    decision = ConvolutionAlgorithm(WIDE)
    plan = decision.plan(workload_of(graph, node), {})
    assert isinstance(plan, Plan)
    return ALGORITHMS.get(str(plan.knobs["algorithm"]))


@pytest.mark.parametrize(
    ("channels", "extent", "size"),
    [(64, 56, 4), (128, 28, 4), (256, 14, 4), (512, 7, 2), (512, 28, 4), (512, 3, None),
     (256, 4, None), (32, 112, 4), (31, 112, None), (32, 5, None)],
)  # fmt: skip
def test_where_it_pays(channels: int, extent: int, size: int | None) -> None:
    """The paper's layers, ResNet-18's, which measurements agree with; weights of many channels and
    few places take longer to read than direct products take."""
    assert tile_size(channels, extent) == size


OTHERS: list[dict[str, Any]] = [
    {"strides": [2, 2]},
    {"dilations": [2, 2], "pads": [2] * 4},
    {"group": 2},
    {"group": 64},
    {"kernel_shape": [5, 5], "pads": [2] * 4},
    {"kernel_shape": [3, 1], "pads": [1, 0] * 2},
]


@pytest.mark.parametrize("attributes", OTHERS, ids=repr)
def test_other_convolutions_stay(attributes: dict[str, Any]) -> None:
    chosen = {type(op) for op in operators(model(64, 64, 28, 28, False))}
    stayed = {type(op) for op in operators(model(64, 64, 28, 28, False, **attributes))}
    assert BlockedWinograd in chosen and BlockedWinograd not in stayed


# ---- errors --------------------------------------------------------------------------------------


def direct_error(case: Case) -> float:
    """Of the convolution by its definition on the same operands."""
    node = case.graph.nodes[0]
    packed = blocks(
        blocks(case.weight, host_processor().vector_lanes, 0), host_processor().vector_lanes, 2
    )
    weight = np.ascontiguousarray(packed.transpose(0, 2, 4, 5, 3, 1))
    assert isinstance(node.op, BlockedWinograd)
    op = BlockedConv2d((1, 1), node.op.pads, (1, 1), lo=node.op.lo)
    tensors = {**case.graph.tensors, "w": Tensor.constant("w", weight)}
    graph = replace(case.graph, nodes=(replace(node, op=op),), tensors=tensors)
    return case.error(build_cpu(graph).run(*case.inputs)[0])


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "extent"), [(64, 56), (128, 28), (256, 14), (512, 7)])
def test_errors_in_the_papers_layers(channels: int, extent: int) -> None:
    """They are printed with -s."""
    size, shape = tile_size(channels, extent), (1, channels, extent, extent)
    assert size is not None
    case = Case(size, shape, channels, (1, 1, 1, 1))
    ours = case.error(build_cpu(case.graph).run(*case.inputs)[0])
    direct = direct_error(case)
    print(f"{shape}: tiles of {size}: {ours:.1e}, direct: {direct:.1e}")
    assert ours < 4 * direct


def in_float64(found: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float64 wherever it has float32."""
    double = onnx.ModelProto()
    double.CopyFrom(found)
    for tensor in double.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            exact = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(exact, tensor.name))
    for value in (*double.graph.input, *double.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    del double.graph.value_info[:]
    return double


@pytest.mark.more
@pytest.mark.slow
def test_error_in_resnet18() -> None:
    """It is printed with -s."""
    found = NETWORKS["resnet18"](1, False)
    graph = run_passes(load_graph(found))
    [x] = [normal(graph[name].shape, 0) for name in graph.inputs]
    double = {graph.inputs[0]: x.astype(np.float64)}
    [exact] = ReferenceEvaluator(in_float64(found)).run(None, double)
    errors = []
    decision = ConvolutionAlgorithm(host_processor())
    tiled = [
        node.name for node in graph.nodes
        if isinstance(node.op, Conv2d) and decision.is_open(workload_of(graph, node))
    ]  # fmt: skip
    for knobs in ({}, {name: {"algorithm": DIRECT} for name in tiled}):
        [result] = build_cpu(graph, knobs=knobs).run(x)
        errors.append(np.abs(result - exact).max() / np.abs(exact).max())
    print(f"ResNet-18: {errors[0]:.1e}, direct: {errors[1]:.1e}")
    assert errors[0] < 2e-6
