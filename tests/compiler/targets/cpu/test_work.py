"""Multiply-accumulates of operators on blocks of channels: those of the model's own operators."""

from __future__ import annotations

import numpy as np
import pytest
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.ir import Graph, Node, Tensor, infer
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.passes.block_channels import block_channels

from .whole_numbers import Model


def total(graph: Graph) -> int:
    """The multiply-accumulates of all nodes."""
    return sum(graph.macs(node) for node in graph.nodes)


@pytest.mark.parametrize(
    ("kind", "weight", "attributes", "algorithm"),
    [
        ("Conv", (48, 32, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}, "direct"),
        ("Conv", (48, 32, 3, 3), {"pads": [1, 1, 1, 1]}, "winograd4"),
        ("Conv", (32, 1, 3, 3), {"group": 32, "dilations": [2, 1]}, "direct"),
        ("ConvTranspose", (32, 16, 4, 4), {"pads": [1, 1, 1, 1], "strides": [2, 2]}, "direct"),
    ],
    ids=["direct", "winograd", "depthwise", "transposed"],
)
def test_of_float_convolutions(
    kind: str, weight: tuple[int, ...], attributes: dict, algorithm: str
) -> None:
    model = Model(x=(1, 32, 13, 14))
    made = model.finish(model.node(kind, "x", model.weight(*weight), **attributes))
    graph = run_passes(import_onnx(made, Sizes(1)))
    blocked = block_channels(graph, 16, algorithm=lambda graph, node: algorithm)
    assert any(node.op.name.startswith("Blocked") for node in blocked.nodes)
    assert total(blocked) == total(graph) > 0


@pytest.mark.parametrize(
    ("features", "groups", "width", "dots", "matrices"),
    [(48, 1, 3, False, False), (48, 1, 3, True, False), (48, 1, 3, True, True),
     (32, 32, 3, False, False), (32, 32, 4, True, False)],
    ids=["direct", "dots", "matrices", "depthwise", "depthwise-dots"],
)  # fmt: skip
def test_of_integer_convolutions(
    features: int, groups: int, width: int, dots: bool, matrices: bool
) -> None:
    requant = Requant(np.int32([2**30]), np.int32([36]), 0, lo=-128, hi=127)
    op = QConv2d((2, 1), (1, 1, 1, 1), (1, 1), groups, 3, requant)
    weight = np.ones((features, 32 // groups, 3, width), np.int8)
    constants = [
        Tensor.constant("w", weight), Tensor.constant("b", np.zeros(features, np.int32)),
    ]  # fmt: skip
    tensors = [Tensor("x", (1, 32, 13, 14), "int8"), *constants]
    shape, dtype = infer(op, tuple(tensors), "y")
    tensors.append(Tensor("y", shape, dtype))
    node = Node("y", op, ("x", "w", "b"), "y")
    graph = Graph("q", ("x",), ("y",), (node,), {t.name: t for t in tensors})
    blocked = block_channels(graph, 16, dots, uses_matrices=lambda graph, node: matrices)
    assert any(node.op.name.startswith("Blocked") for node in blocked.nodes)
    assert total(blocked) == total(graph) > 0


def test_channels_that_fill_a_block_up_count() -> None:
    model = Model(x=(1, 16, 8, 8))
    made = model.finish(model.node("Conv", "x", model.weight(20, 16, 1, 1)))
    graph = run_passes(import_onnx(made, Sizes(1)))
    assert total(graph) == 20 * 16 * 64 and total(block_channels(graph, 16)) == 32 * 16 * 64
