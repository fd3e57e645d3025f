"""Single int8 operators against vectors of ARM's CMSIS-NN, which TensorFlow generated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vdla.compiler.graph.arithmetic.requant import Requant, mean_requant
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor, infer
from vdla.compiler.graph.ops.base import Op, Pads
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.ops.integer import QAddFixed
from vdla.compiler.graph.ops.pooling import QAvgPool, QAvgPoolValid
from vdla.compiler.targets.cpu.graph_code import build_cpu

VECTORS = Path(__file__).parents[5] / "shared" / "vectors" / "cmsis_nn"
FILES = sorted(VECTORS.glob("*.npz"))
pytestmark = pytest.mark.skipif(not FILES, reason="needs ../shared/vectors/cmsis_nn")


def pads_of(sizes: list[tuple[int, int, int, int, int, int]]) -> Pads:
    """(input, output, kernel, stride, dilation, pad before) of height and width, to pads."""
    after = [
        max((out - 1) * stride + (kernel - 1) * dilation + 1 - size - before, 0)
        for size, out, kernel, stride, dilation, before in sizes
    ]
    return sizes[0][5], sizes[1][5], after[0], after[1]


def convolution(c: dict[str, int], data: Any) -> tuple[Op, list[np.ndarray], list[np.ndarray]]:
    depthwise = "CH_MULT" in c
    groups = c["IN_CH"] if depthwise else 1
    shape = (c["FILTER_Y"], c["FILTER_X"])
    if depthwise:
        weight = data["weights"].reshape(*shape, c["OUT_CH"]).transpose(2, 0, 1)[:, None]
    else:
        weight = data["weights"].reshape(c["OUT_CH"], *shape, c["IN_CH"]).transpose(0, 3, 1, 2)
    image = (c["INPUT_BATCHES"], c["INPUT_H"], c["INPUT_W"], c["IN_CH"])
    strides, dilations = (c["STRIDE_Y"], c["STRIDE_X"]), (c["DILATION_Y"], c["DILATION_X"])
    pads = pads_of(
        [
            (c["INPUT_H"], c["OUTPUT_H"], shape[0], strides[0], dilations[0], c["PAD_Y"]),
            (c["INPUT_W"], c["OUTPUT_W"], shape[1], strides[1], dilations[1], c["PAD_X"]),
        ]
    )
    bounds = c["OUT_ACTIVATION_MIN"], c["OUT_ACTIVATION_MAX"]
    multiplier, shift = data["output_mult"], -data["output_shift"]
    requant = Requant(multiplier, shift, c["OUTPUT_OFFSET"], *bounds, "tflite")
    op = QConv2d(strides, pads, dilations, groups, -c["INPUT_OFFSET"], requant)
    constants = [np.ascontiguousarray(weight), data["biases"]]
    return op, [data["input"].reshape(image)], constants


def average(c: dict[str, int], data: Any) -> tuple[Op, list[np.ndarray], list[np.ndarray]]:
    kernel, strides = (c["FILTER_H"], c["FILTER_W"]), (c["STRIDE_H"], c["STRIDE_W"])
    pads = pads_of(
        [
            (c["INPUT_H"], c["OUTPUT_H"], kernel[0], strides[0], 1, c["PADDING_H"]),
            (c["INPUT_W"], c["OUTPUT_W"], kernel[1], strides[1], 1, c["PADDING_W"]),
        ]
    )
    image = (-1, c["INPUT_H"], c["INPUT_W"], c["INPUT_C"])
    bounds = c["ACTIVATION_MIN"], c["ACTIVATION_MAX"]
    if any(pads):
        op: Op = QAvgPoolValid(kernel, strides, pads, 0, *bounds)
    else:
        requant = mean_requant(kernel[0] * kernel[1], 0, *bounds)
        op = QAvgPool(kernel, strides, pads, True, 0, requant)
    return op, [data["input_tensor"].reshape(image)], []


def addition(c: dict[str, int], data: Any) -> tuple[Op, list[np.ndarray], list[np.ndarray]]:
    assert c["LEFT_SHIFT"] == 20
    bounds = c["OUT_ACTIVATION_MIN"], c["OUT_ACTIVATION_MAX"]
    factors = (np.array([c[f"OUTPUT_{what}"]], np.int32) for what in ("MULT", "SHIFT"))
    multiplier, shift = factors
    op = QAddFixed(
        -c["INPUT1_OFFSET"],
        -c["INPUT2_OFFSET"],
        c["INPUT1_MULT"],
        -c["INPUT1_SHIFT"],
        c["INPUT2_MULT"],
        -c["INPUT2_SHIFT"],
        False,
        Requant(multiplier, -shift, c["OUTPUT_OFFSET"], *bounds, "tflite"),
    )
    return op, [data["input1"][None], data["input2"][None]], []


def one_operator(path: Path) -> tuple[Graph, list[np.ndarray], np.ndarray]:
    """The graph of a vector file, its inputs as NCHW, and the expected output as stored."""
    data = np.load(path)
    config = json.loads(str(data["cfg"]))
    make = average if "FILTER_H" in config else addition if "LEFT_SHIFT" in config else convolution
    op, inputs, constants = make(config, data)
    inputs = [np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if x.ndim == 4 else x for x in inputs]
    operands = [Tensor(f"x{i}", x.shape, "int8") for i, x in enumerate(inputs)]
    operands += [Tensor.constant(f"c{i}", value) for i, value in enumerate(constants)]
    node = Node("node", op, tuple(t.name for t in operands), "y")
    result = Tensor("y", *infer(op, tuple(operands), "node"))
    names = tuple(f"x{i}" for i in range(len(inputs)))
    graph = Graph(path.stem, names, ("y",), (node,), {t.name: t for t in (*operands, result)})
    return graph, inputs, data["output" if "output" in data else "output_ref"]


def stored(y: np.ndarray) -> np.ndarray:
    """Flat, in the order NHWC."""
    return (y.transpose(0, 2, 3, 1) if y.ndim == 4 else y).reshape(-1)


@pytest.mark.fast(3)
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_vector_is_exact(path: Path) -> None:
    graph, inputs, expected = one_operator(path)
    (interpreted,) = interpret(graph, *inputs)
    np.testing.assert_array_equal(stored(interpreted), expected)
    (compiled,) = build_cpu(graph).run(*inputs)
    np.testing.assert_array_equal(stored(compiled), expected)
