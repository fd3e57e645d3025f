"""Every operator as machine code against the graph's interpreter, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdla.compiler.graph.arithmetic.requant import Requant, add_params
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.base import Op
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.ops.integer import QAdd
from vdla.compiler.graph.ops.linear import QDense
from vdla.compiler.graph.ops.movement import Reshape
from vdla.compiler.graph.ops.pooling import QAvgPool, QMaxPool
from vdla.compiler.graph.ops.quantisation import Dequantize, Quant, Quantize
from vdla.compiler.targets.base import expression_of
from vdla.compiler.targets.cpu.graph_code import compile_func
from vdla.compiler.targets.cpu.lowering import choose_knobs, lower_node, new_chooser
from vdla.compiler.targets.cpu.processor import host_processor
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.tir.lower import lower
from vdla.isa.errors import VdlaError


def node_of(op: Op, arrays: list[np.ndarray], constant: int) -> tuple[Graph, Node]:
    """A graph of one node whose last ``constant`` inputs are constants."""
    names = [f"in{i}" for i in range(len(arrays))]
    split = len(arrays) - constant
    result = op.evaluate(*arrays)
    tensors = [
        Tensor(n, a.shape, str(a.dtype), a if i >= split else None)
        for i, (n, a) in enumerate(zip(names, arrays, strict=True))
    ]
    node = Node("node", op, tuple(names), "y")
    tensors.append(Tensor("y", result.shape, str(result.dtype)))
    graph = Graph("test", tuple(names[:split]), ("y",), (node,), {t.name: t for t in tensors})
    return graph, node


def check(op: Op, arrays: list[np.ndarray], constant: int = 0, plain: bool = False) -> np.ndarray:
    """Run an operator, scheduled for the CPU or as it comes, and compare."""
    graph, node = node_of(op, arrays, constant)
    found = expression_of(graph, node)
    func = lower(create_schedule(found.output), [*found.args, found.output], "node")
    if not plain:
        knobs = choose_knobs(graph, node, host_processor(), new_chooser(host_processor()))
        func = lower_node(graph, node, host_processor(), knobs).func
    expected = op.evaluate(*arrays)
    got = np.full(func.params[-1].shape, 85, expected.dtype)
    operands = [a.reshape(b.shape) for a, b in zip(arrays, func.params, strict=False)]
    compile_func(func)(*operands, *found.attributes, got)
    np.testing.assert_array_equal(got.reshape(expected.shape), expected)
    return expected


def int8(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-128, 128, shape).astype(np.int8)


def requant_of(rng: np.random.Generator, channels: int, magnitude: int) -> Requant:
    """Random scales that bring sums of this magnitude to about int8."""
    multiplier = rng.integers(2**30, 2**31, channels).astype(np.int32)
    shift = (30 + max(1, magnitude.bit_length() - 7) + rng.integers(0, 2, channels)).astype(
        np.int32
    )
    lo = int(rng.integers(-128, 0))
    return Requant(multiplier, shift, int(rng.integers(-128, 128)), lo, int(rng.integers(lo, 128)))


@dataclass(frozen=True)
class Conv:
    """The geometry of a convolution."""

    image: tuple[int, int]
    groups: int
    per_group: int
    outputs: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    batch: int = 1


def small(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


CONVS = st.builds(
    Conv,
    image=small(5, 9),
    groups=st.integers(1, 3),
    per_group=st.integers(1, 4),
    outputs=st.integers(1, 6),
    kernel=small(1, 3),
    strides=small(1, 3),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    dilations=small(1, 2),
    batch=st.integers(1, 2),
)


def conv_arrays(conv: Conv, rng: np.random.Generator) -> tuple[QConv2d, list[np.ndarray]]:
    channels = conv.groups * conv.outputs
    magnitude = conv.per_group * conv.kernel[0] * conv.kernel[1] * 4000
    op = QConv2d(
        conv.strides, conv.pads, conv.dilations, conv.groups, int(rng.integers(-128, 128)),
        requant_of(rng, channels if rng.random() < 0.7 else 1, magnitude),
    )  # fmt: skip
    data = int8(rng, conv.batch, conv.groups * conv.per_group, *conv.image)
    weight = int8(rng, channels, conv.per_group, *conv.kernel)
    return op, [data, weight, rng.integers(-9999, 9999, channels).astype(np.int32)]


@pytest.mark.slow
@settings(max_examples=40)
@given(CONVS, st.integers(0, 2**32 - 1))
def test_convolutions(conv: Conv, seed: int) -> None:
    op, arrays = conv_arrays(conv, np.random.default_rng(seed))
    check(op, arrays, constant=2)


@pytest.mark.fast(1)
@pytest.mark.parametrize("groups", [1, 4], ids=["dense", "depthwise"])
@pytest.mark.parametrize("plain", [False, True], ids=["scheduled", "unscheduled"])
def test_convolution_results_vary(groups: int, plain: bool) -> None:
    """The comparison is no comparison of constants."""
    rng = np.random.default_rng(7)
    conv = Conv((8, 11), groups, 4 // groups, 8 // groups, (3, 3), (1, 2), (1, 0, 2, 1), (1, 2), 2)
    op, (data, weight, bias) = conv_arrays(conv, rng)
    requant = Requant(op.requant.multiplier, op.requant.shift, 3)
    op = QConv2d(op.strides, op.pads, op.dilations, op.groups, op.x_zero_point, requant)
    result = check(op, [data, weight, bias], constant=2, plain=plain)
    assert len(np.unique(result)) > 50


def test_large_scales_saturate_before_they_wrap() -> None:
    """A requantised value far beyond int32 clips to the bound of its sign."""
    multiplier, shift = np.array([2**31 - 1], np.int32), np.array([3], np.int32)
    op = QDense(0, Requant(multiplier, shift, 0))
    x = np.array([[127, 127], [-128, -128], [1, -1]], np.int8)
    weight, bias = np.full((1, 2), 127, np.int8), np.zeros(1, np.int32)
    result = check(op, [x, weight, bias], constant=2)
    np.testing.assert_array_equal(result[:, 0], [127, -128, 0])


def test_accumulators_wrap() -> None:
    op = QDense(0, Requant(np.array([2**30], np.int32), np.array([54], np.int32), 0))
    x, weight = np.full((1, 2), 127, np.int8), np.full((1, 2), 127, np.int8)
    result = check(op, [x, weight, np.array([2**31 - 1], np.int32)], constant=2)
    assert result[0, 0] == -128


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(1, 3), st.integers(1, 70), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_dense(batch: int, size: int, outputs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    op = QDense(int(rng.integers(-128, 128)), requant_of(rng, outputs, size * 4000))
    bias = rng.integers(-9999, 9999, outputs).astype(np.int32)
    check(op, [int8(rng, batch, size), int8(rng, outputs, size), bias], constant=2)


@pytest.mark.parametrize("ratios", [(0.3, 1.7), (1.0, 1.0), (0.01, 100.0)])
def test_add_of_all_pairs(ratios: tuple[float, float]) -> None:
    params = add_params(ratios, (-5, 17))
    everything = np.arange(-128, 128, dtype=np.int8)
    a, b = (m.reshape(1, 4, 128, 128) for m in np.meshgrid(everything, everything))
    op = QAdd(*params, zero_point=-9, lo=-100, hi=120)
    check(op, [np.ascontiguousarray(a), np.ascontiguousarray(b)])


POOLS = st.tuples(small(1, 3), small(1, 3), st.tuples(*[st.integers(0, 1)] * 4), small(4, 9))


@pytest.mark.slow
@settings(max_examples=15)
@given(POOLS, st.integers(0, 2**32 - 1))
def test_max_pool(geometry: tuple, seed: int) -> None:
    kernel, strides, pads, image = geometry
    data = int8(np.random.default_rng(seed), 2, 3, *image)
    check(QMaxPool(kernel, strides, pads, -100, 90), [data])


@pytest.mark.slow
@settings(max_examples=15)
@given(POOLS, st.integers(0, 2**32 - 1))
def test_avg_pool(geometry: tuple, seed: int) -> None:
    kernel, strides, pads, image = geometry
    rng = np.random.default_rng(seed)
    requant = requant_of(rng, 1, kernel[0] * kernel[1] * 64)
    op = QAvgPool(kernel, strides, pads, True, int(rng.integers(-128, 128)), requant)
    check(op, [int8(rng, 2, 3, *image)])


def quant_of(rng: np.random.Generator, channels: int, axis: int | None) -> Quant:
    scale = rng.uniform(0.001, 0.1, channels).astype(np.float32)
    return Quant(scale, rng.integers(-128, 128, channels).astype(np.int32), "int8", axis)


@pytest.mark.parametrize(("channels", "axis"), [(1, None), (5, 1), (3, 2)])
def test_quantize_and_dequantize(channels: int, axis: int | None) -> None:
    rng = np.random.default_rng(9)
    quant = quant_of(rng, channels, axis)
    x = rng.normal(size=(2, 5, 3, 7)).astype(np.float32) * 5
    stored = check(Quantize(quant), [x])
    assert len(np.unique(stored)) > 50
    check(Dequantize(quant), [stored])


def test_quantize_rounds_ties_to_even_before_the_zero_point() -> None:
    quant = Quant(np.array([0.5], np.float32), np.array([1], np.int32))
    x = np.array([[0.25, 0.75, 1.25, -0.25, -0.75, 1e30, -1e30, np.inf, -np.inf]], np.float32)
    stored = check(Quantize(quant), [x])
    np.testing.assert_array_equal(stored[0], [1, 3, 3, 1, -1, 127, -128, 127, -128])


def test_dequantize_of_int32_is_exact() -> None:
    quant = Quant(np.array([0.1], np.float32), np.array([-7], np.int32), "int32")
    check(Dequantize(quant), [np.array([[2**31 - 1, -(2**31), 16777217, 0]], np.int32)])


@pytest.mark.parametrize("shape", [(24,), (4, 6), (2, 1, 12), (6, 2, 2)])
def test_reshape(shape: tuple[int, ...]) -> None:
    check(Reshape(shape), [np.arange(24, dtype=np.int8).reshape(2, 3, 4)])


# ---- errors ----


def test_operators_without_a_loop_program_name_the_node() -> None:
    wide = Quantize(Quant(np.float32([0.5]), np.int32([0]), "int16"))
    graph, node = node_of(wide, [np.zeros((1, 4), np.float32)], 0)
    with pytest.raises(VdlaError, match=r"node 'node': Quantize expected to int8 or uint8, got"):
        expression_of(graph, node)


def test_unsigned_tensors() -> None:
    check(Reshape((4,)), [np.array([[0, 255], [128, 7]], np.uint8)])
    quant = Quant(np.float32([0.5]), np.int32([130]), "uint8")
    check(Quantize(quant), [np.linspace(-90, 90, 64, dtype=np.float32)])
    check(Dequantize(quant), [np.arange(256).astype(np.uint8)])
