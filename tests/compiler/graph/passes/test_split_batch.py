"""A fixed batch of images is cut where no operator mixes images, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import vdla
from vdla.bench.workloads import NETWORKS
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.graph.passes.split_batch import split_batch
from vdla.compiler.graph.verify import verify
from vdla.isa.params import HwParams

IMAGES = 4
RNG = np.random.default_rng(1)


def convolved(b: Any, x: str = "x") -> str:
    """Three channels of 6 x 6 become eight; without a convolution these would not be images."""
    w = b.constant("w", RNG.normal(size=(8, 3, 3, 3)).astype(np.float32))
    return b.node("Conv", [x, w], "conv", pads=[1, 1, 1, 1])


def ints(b: Any, name: str, *values: int) -> str:
    return b.constant(name, np.array(values, np.int64))


def classified(b: Any, y: str) -> str:
    """Pooled, flattened, and a dense layer."""
    y = b.node(
        "MaxPool", [b.node("Relu", [y], "relu")], "pool", kernel_shape=[2, 2], strides=[2, 2]
    )
    y = b.node("Flatten", [y], "flat")
    w = b.constant("dense", RNG.normal(size=(72, 5)).astype(np.float32))
    return b.node("Gemm", [y, w, b.constant("bias", np.ones(5, np.float32))], "logits")


def channels_last(b: Any, y: str) -> str:
    y = b.node("Transpose", [y], "last", perm=[0, 2, 3, 1])
    return b.node("Transpose", [b.node("Mul", [y, y], "squares")], "first", perm=[0, 3, 1, 2])


def joined(b: Any, y: str) -> str:
    return b.node(
        "Concat", [y, b.node("AveragePool", [y], "mean", kernel_shape=[1, 1])], "both", axis=1
    )


def per_channel(b: Any, y: str) -> str:
    return b.node("Add", [y, b.constant("c", RNG.normal(size=(8, 1, 1)).astype(np.float32))], "sum")


def averaged(b: Any, y: str) -> str:
    return b.node("GlobalAveragePool", [b.node("Softmax", [y], "soft", axis=1)], "average")


def bordered(b: Any, y: str) -> str:
    return b.node("Pad", [y, ints(b, "pads", 0, 0, 1, 2, 0, 0, 0, 1)], "wide")


def cropped(b: Any, y: str) -> str:
    return b.node("Slice", [y, ints(b, "s", 1), ints(b, "e", 5), ints(b, "a", 2)], "crop")


def over_images(b: Any, y: str) -> str:
    return b.node("Sub", [y, b.node("ReduceMean", [y], "mean", axes=[0], keepdims=1)], "off")


def doubled(b: Any, y: str) -> str:
    y = b.node("Concat", [y, y], "twice", axis=0)
    return b.node("Slice", [y, ints(b, "s", 2), ints(b, "e", 6), ints(b, "a", 0)], "some")


def backwards(b: Any, y: str) -> str:
    """Image 0 of the result is image 3."""
    back = [ints(b, name, value) for name, value in (("s", -1), ("e", -9), ("a", 0), ("d", -1))]
    return b.node("Slice", [y, *back], "back")


def exchanged(b: Any, y: str) -> str:
    """Images stand where channels were, and the other way round."""
    y = b.node("Slice", [y, ints(b, "s", 0), ints(b, "e", IMAGES), ints(b, "a", 1)], "four")
    return b.node("Transpose", [y], "exchanged", perm=[1, 0, 2, 3])


def mixed_shape(b: Any, y: str) -> str:
    y = b.node("Reshape", [y, ints(b, "two", 2, 16, 6, 6)], "pairs")
    return b.node("Reshape", [b.node("Relu", [y], "r"), ints(b, "again", 4, 8, 6, 6)], "apart")


def per_image(b: Any, y: str) -> str:
    each = np.arange(IMAGES, dtype=np.float32).reshape(IMAGES, 1, 1, 1)
    return b.node("Mul", [y, b.constant("each", each)], "scaled")


def shifted(b: Any, y: str) -> str:
    """A border before the first image, without the last one."""
    return b.node("Pad", [y, ints(b, "pads", 1, 0, 0, 0, -1, 0, 0, 0)], "shifted")


def graph_of(builder: Any, body: Callable[[Any, str], str]) -> Graph:
    b = builder
    b.input("x", [IMAGES, 3, 6, 6])
    return run_passes(import_onnx(b.model([body(b, convolved(b))])))


APART = [classified, channels_last, joined, per_channel, averaged, bordered, cropped]
MIXED = [over_images, doubled, backwards, exchanged, mixed_shape, per_image, shifted]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("body", APART)
def test_images_that_stay_apart_are_cut(body: Any, batch: int, builder: Any) -> None:
    graph = graph_of(builder, body)
    cut = split_batch(graph, batch)
    verify(cut)
    assert [cut[name].shape[0] for name in (*cut.inputs, *cut.outputs)] == [batch, batch]
    x = RNG.normal(size=(IMAGES, 3, 6, 6)).astype(np.float32)
    (whole,) = interpret(graph, x)
    parts = [interpret(cut, part)[0] for part in np.split(x, IMAGES // batch)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("body", MIXED)
def test_images_that_depend_on_others_are_not(body: Any, builder: Any) -> None:
    graph = graph_of(builder, body)
    assert split_batch(graph, 1) is graph and split_batch(graph, 2) is graph


def test_a_batch_that_does_not_divide_stays(builder: Any) -> None:
    graph = graph_of(builder, classified)
    assert split_batch(graph, 3) is graph and split_batch(graph, 4) is graph
    assert split_batch(graph, 8) is graph


def test_rows_of_matrices_are_no_images(builder: Any) -> None:
    b = builder
    b.input("x", [8, 16])
    w = b.constant("w", RNG.normal(size=(16, 4)).astype(np.float32))
    graph = run_passes(import_onnx(b.model([b.node("MatMul", ["x", w], "y")])))
    assert split_batch(graph, 1) is graph


@pytest.mark.slow
@pytest.mark.parametrize("machine_batch", [1, 2])
def test_on_the_accelerator(machine_batch: int) -> None:
    """A network for four images is the program of a machine's batch, run several times."""
    hw = HwParams(batch=machine_batch, block_in=8, block_out=8)
    model = NETWORKS["dqn"](IMAGES, True)
    module = vdla.compile(model, "sim", hw=hw)
    x = RNG.normal(size=(IMAGES, 4, 84, 84)).astype(np.float32)
    (found,) = module.run(x)
    (expected,) = vdla.compile(model, "cpu").run(x)
    np.testing.assert_array_equal(found, expected)
    report, coverage = module.report, module.report["coverage"]
    assert report["batches"] == IMAGES // machine_batch
    assert coverage["macs_on_accelerator"] == coverage["macs_total"]
    alone = vdla.compile(NETWORKS["dqn"](machine_batch, True), "sim", hw=hw)
    alone.run(x[:machine_batch])
    assert report["cycles"] == alone.report["cycles"]
