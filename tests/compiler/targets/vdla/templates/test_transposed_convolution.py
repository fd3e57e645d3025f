"""Transposed convolution: its phases, and where they run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdla.compiler.build import CompiledModel
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.arithmetic.subpixel import subpixel
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.convolution import QConvTranspose2d
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams
from vdla.sim.model.core import simulate

from ....building import build_for, placed

VTA = MEMORY_PRESETS["vta"]


def transposed(
    image: tuple[int, ...], channels: int, kernel: tuple[int, int], op_shape: tuple, seed: int = 0
) -> Graph:
    """One operator with random parameters; ``op_shape`` is strides, crop and size."""
    rng = np.random.default_rng(seed)
    strides, before, size = op_shape
    shift = rng.integers(38, 42, channels).astype(np.int32)
    requant = Requant(np.full(channels, 2**30, np.int32), shift, 3)
    op = QConvTranspose2d(strides, before, size, -7, requant)
    weight = rng.integers(-127, 128, (image[1], channels, *kernel)).astype(np.int8)
    tensors = [
        Tensor("x", image, "int8"),
        Tensor.constant("w", weight),
        Tensor.constant("b", rng.integers(-3000, 3000, channels).astype(np.int32)),
        Tensor("y", (image[0], channels, *size), "int8"),
    ]
    node = Node("node", op, ("x", "w", "b"), "y")
    return Graph("one", ("x",), ("y",), (node,), {t.name: t for t in tensors})


def int8(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8)


def test_a_phase_of_stride_2_has_half_of_the_taps() -> None:
    found = subpixel(kernel=4, stride=2, before=1, size=8)
    assert found is not None and (found.taps, found.positions, found.pads(4)) == (2, 4, (1, 1))


@settings(max_examples=200)
@given(*[st.integers(*bounds) for bounds in ((1, 6), (1, 4), (0, 4), (1, 9), (1, 6))])
def test_phases_are_the_definition(
    kernel: int, stride: int, before: int, places: int, image: int
) -> None:
    """Every product of the definition occurs in a phase, once, and no other one."""
    found = subpixel(kernel, stride, before, places * stride)
    assert found is not None
    low, high = found.pads(image)
    got = []
    for q in range(places):
        for p in range(stride):
            for u in range(found.taps):
                source = q + found.first + found.shift * p + u
                assert -low <= source < image + high
                place = found.kernel_position(p, u)
                if place is not None and 0 <= source < image:
                    got.append((q * stride + p, source, place))
    wanted = [
        (i * stride + k - before, i, k)
        for i in range(image)
        for k in range(kernel)
        if 0 <= i * stride + k - before < places * stride
    ]
    assert sorted(got) == sorted(wanted)


CASES = {
    "dcgan": ((1, 32, 4, 4), 16, (4, 4), ((2, 2), (1, 1), (8, 8))),
    "one tap": ((1, 16, 4, 5), 16, (2, 2), ((2, 2), (0, 0), (8, 10))),
    "extra place": ((1, 20, 5, 4), 18, (3, 3), ((2, 2), (1, 1), (10, 8))),
    "uneven": ((1, 20, 5, 4), 18, (5, 3), ((3, 2), (2, 0), (15, 8))),
    "gaps": ((1, 5, 5, 4), 18, (2, 3), ((3, 1), (1, 0), (15, 6))),
    "tiles": ((1, 64, 20, 20), 64, (4, 4), ((2, 2), (1, 1), (40, 40))),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", CASES)
def test_accelerator_and_host_equal_the_interpreter(name: str) -> None:
    image, *rest = CASES[name]
    graph = transposed(image, *rest)
    assert placed(graph).nodes[0].target == "accel"
    x = int8(image)
    (expected,) = interpret(graph, x)
    assert len(np.unique(expected)) > 20
    assert np.array_equal(build_for("cpu", graph, HwParams(), VTA).run_cpu([x])[0], expected)
    compiled = build_for("sim", graph, HwParams(), VTA)
    (got,) = run(compiled, x)
    assert np.array_equal(got, expected)


def run(compiled: CompiledModel, x: np.ndarray) -> list[np.ndarray]:
    return compiled.run([x], lambda program, dram: simulate(program, dram, VTA))


def test_no_products_with_zeros_between_elements() -> None:
    """128 x 128 channels, 16 x 16 elements, 16 taps: the tensor core is busy without them."""
    image, rest = (1, 128, 16, 16), (128, (4, 4), ((2, 2), (1, 1), (32, 32)))
    compiled = build_for("sim", transposed(image, *rest), HwParams(), VTA)
    cycles = []
    compiled.run(
        [int8(image)],
        lambda program, dram: cycles.append(simulate(program, dram, VTA).cycles),
    )
    assert 16 * 16 * 16 * 8 * 8 <= cycles[0] <= 1.05 * 16 * 16 * 16 * 8 * 8


def test_result_that_the_stride_does_not_divide_stays_on_the_host() -> None:
    graph = transposed((1, 3, 5, 4), 2, (2, 3), ((3, 1), (1, 0), (14, 6)))
    (node,) = placed(graph).nodes
    assert (node.target, node.reason) == (
        "cpu", "a result of (14, 6) that strides (3, 1) do not divide"
    )  # fmt: skip
    x = int8((1, 3, 5, 4))
    found = build_for("cpu", graph, HwParams(), VTA).run_cpu([x])[0]
    assert np.array_equal(found, interpret(graph, x)[0])
