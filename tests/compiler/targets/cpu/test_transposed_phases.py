"""Transposed convolutions of integers as ordinary ones: the same bits for every shape, and who is
left as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Tensor
from vdla.compiler.graph.ops.convolution import QConvTranspose2d
from vdla.compiler.graph.ops.layout import Interleave
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.compiler.targets.cpu.passes.transposed_phases import transposed_phases

from .one_operator import graph_of
from .whole_numbers import kinds


def transposed(op: QConvTranspose2d, x: tuple, weight: np.ndarray, bias: np.ndarray) -> Graph:
    """A graph of one operator with known weights."""
    graph = graph_of(op, [(x, "int8"), (weight.shape, "int8"), (bias.shape, "int32")])
    known = {"x1": Tensor.constant("x1", weight), "x2": Tensor.constant("x2", bias)}
    return replace(graph, inputs=("x0",), tensors=graph.tensors | known)


def an_operator(channels: int, strides: tuple, before: tuple, size: tuple) -> QConvTranspose2d:
    requant = Requant(np.full(channels, 2**30, np.int32), np.full(channels, 40, np.int32), 3)
    return QConvTranspose2d(strides, before, size, -7, requant)


@pytest.mark.more
@pytest.mark.slow
@settings(max_examples=60, derandomize=True)
@given(st.data())
def test_the_same_bits(data: st.DataObject) -> None:
    draw = data.draw
    channels, features = draw(st.sampled_from((3, 16, 20))), draw(st.sampled_from((1, 16, 33)))
    kernel, strides, image = (
        [draw(st.integers(low, high)) for _ in range(2)] for low, high in ((1, 5), (1, 3), (1, 9))
    )
    before, behind = ([draw(st.integers(0, k - 1)) for k in kernel] for _ in range(2))
    size = tuple(
        max(1, (i - 1) * s + k - a - b)
        for i, s, k, a, b in zip(image, strides, kernel, before, behind, strict=True)
    )
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    weight = rng.integers(-127, 128, (channels, features, *kernel)).astype(np.int8)
    bias = rng.integers(-999, 999, features).astype(np.int32)
    graph = transposed(
        an_operator(features, tuple(strides), tuple(before), size),
        (1, channels, *image),
        weight,
        bias,
    )
    x = rng.integers(-128, 128, graph["x0"].shape).astype(np.int8)
    expected = graph.nodes[0].op.evaluate(x, weight, bias)
    made = transposed_phases(graph)
    np.testing.assert_array_equal(interpret(made, x)[0], expected)
    np.testing.assert_array_equal(build_cpu(graph).run(x)[0], expected)


@pytest.mark.parametrize(
    ("kernel", "stride", "before", "size", "phases"),
    [
        (4, 2, 1, 16, True), (3, 2, 1, 15, True), (2, 2, 0, 16, True),
        (1, 2, 0, 15, False),  # places that no tap reaches
        (2, 2, 1, 14, False),  # the first and the last of the image are not seen by all phases
    ],
)  # fmt: skip
def test_who_has_phases(kernel: int, stride: int, before: int, size: int, phases: bool) -> None:
    op = an_operator(16, (stride, stride), (before, before), (size, size))
    weight = np.ones((16, 16, kernel, kernel), np.int8)
    graph = transposed(op, (1, 16, 8, 8), weight, np.zeros(16, np.int32))
    found = kinds(transposed_phases(graph))
    expected = ["QConv2d"] * stride**2 + ["Interleave"] if phases else ["QConvTranspose2d"]
    assert found == expected


def test_images_take_turns() -> None:
    op, images = Interleave(2, 3), []
    for number, (height, width) in enumerate((h, w) for h in (3, 2) for w in (4, 4, 3)):
        images.append(np.full((1, 2, height, width), number, np.int8))
    found = op.evaluate(*images)
    assert found.shape == (1, 2, 5, 11)
    np.testing.assert_array_equal(found[0, 1, :2, :6], [[0, 1, 2, 0, 1, 2], [3, 4, 5, 3, 4, 5]])
    with pytest.raises(Exception, match="images that take turns"):
        op.infer(*((image.shape, "int8") for image in reversed(images)))
