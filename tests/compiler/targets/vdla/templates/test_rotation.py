"""Rotary embeddings and products of elements on the vector unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.ops.integer import QMul
from vdla.compiler.graph.ops.rotation import QRotate
from vdla.isa.params import HwParams

from ....building import build_for
from .test_matmul import DEFAULT, SMALL, VTA, check_rtl, check_values, one_operator

#: Sums of two products of random int8 are spread over int8.
REQUANT = Requant(np.array([2**30], np.int32), np.array([38], np.int32), -3)


def rotation(heads: int, width: int, places: int, zero: int) -> Graph:
    """Heads of an image."""
    factors = (1, width, places, 1)
    return one_operator(
        QRotate(1, width, zero, REQUANT), (1, heads * width, places, 1), factors, factors
    )


def product(zeros: tuple[int, int], *shape: int) -> Graph:
    """Two tensors of one shape."""
    return one_operator(QMul(*zeros, REQUANT), shape, shape)


CASES = {
    "rotation": (rotation(3, 64, 16, 0), DEFAULT),
    "rotation, a zero point": (rotation(3, 64, 16, -9), DEFAULT),
    "rotation of one head": (rotation(1, 32, 20, 5), DEFAULT),
    "rotation at one place": (rotation(2, 32, 1, 0), DEFAULT),
    "rotation at many places": (rotation(2, 32, 300, 7), DEFAULT),
    "rotation in blocks of 4": (rotation(2, 16, 6, 3), SMALL),
    "rotation in two passes": (rotation(2, 16, 6, 3), replace(SMALL, vector_passes=2)),
    "product": (product((0, 0), 1, 48, 20, 1), DEFAULT),
    "product, zero points": (product((-114, 8), 1, 48, 300, 1), DEFAULT),
    "product, a zero point": (product((0, 127), 1, 40, 5, 7), DEFAULT),
    "product of vectors": (product((5, 0), 1, 70), DEFAULT),
    "product in blocks of 4": (product((-1, 2), 1, 10, 3, 3), SMALL),
}


@pytest.mark.slow
@pytest.mark.short(3)
@pytest.mark.parametrize("case", CASES)
def test_accelerator_and_machine_code_equal_the_interpreter(case: str) -> None:
    check_values(*CASES[case])


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("graph", [rotation(2, 16, 6, 3), product((-1, 2), 1, 10, 3, 3)])
def test_the_rtl_takes_the_same_cycles(graph: Graph) -> None:
    check_rtl(graph, SMALL)


@pytest.mark.parametrize("axis", [1, 3])
def test_a_rotation_is_that_of_complex_numbers(axis: int) -> None:
    """Element k and element k + h are real and imaginary part of a number of unit factors."""
    heads, width, places = 3, 16, 5
    angle = np.random.default_rng(0).uniform(0, 6, (places, width // 2))
    cos, sin = np.rint(127 * np.cos(angle)), np.rint(127 * np.sin(angle))
    factors = [np.concatenate(pair, 1).astype(np.int8) for pair in ((cos, cos), (-sin, sin))]
    x = np.random.default_rng(1).integers(-90, 90, (1, heads, places, width)).astype(np.int8)
    number = (x[..., : width // 2] - 4.0) + 1j * (x[..., width // 2 :] - 4.0)
    turned = number * (cos + 1j * sin)
    wanted = np.concatenate([turned.real, turned.imag], -1) * 2.0**-8 - 3
    if axis == 1:  # heads are groups of channels of an image
        x = x.transpose(0, 1, 3, 2).reshape(1, heads * width, places, 1)
        wanted = wanted.transpose(0, 1, 3, 2).reshape(x.shape)
        factors = [factor.T[None, :, :, None] for factor in factors]
    found = QRotate(axis, width, 4, REQUANT).evaluate(x, *factors)
    assert np.abs(found - np.clip(wanted, -128, 127)).max() <= 0.51


def test_halves_that_are_no_blocks_are_the_hosts() -> None:
    """The reason says so."""
    [layer] = build_for("sim", rotation(2, 16, 6, 0), HwParams(), VTA).layers
    assert layer.target == "cpu"
    assert layer.reason == "heads of 16 channels, whose halves are no blocks of 16"
