"""The float operators of the quantised flow as machine code, against NumPy's arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from vdla.compiler.graph.ops.base import Op
from vdla.compiler.graph.ops.convolution import Conv2d
from vdla.compiler.graph.ops.elementwise import Add, Clip, Relu
from vdla.compiler.graph.ops.linear import Dense
from vdla.compiler.graph.ops.movement import Concat, Pad
from vdla.compiler.graph.ops.pooling import AvgPool, MaxPool
from vdla.compiler.graph.ops.reduction import Reduce

from .one_operator import run_op

RNG = np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def check(op: Op, *arrays: np.ndarray) -> None:
    got, expected = run_op(op, arrays), op.evaluate(*arrays)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.fast(2)
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 2, 0, 1)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
@pytest.mark.parametrize(("groups", "bias"), [(1, True), (2, False), (4, True)])
def test_convolution(pads: tuple, strides: tuple, groups: int, bias: bool) -> None:
    op = Conv2d(strides, pads, (2, 1), groups, lo=-1.0, hi=2.0)
    x, weight = floats(2, 4, 9, 8), floats(8, 4 // groups, 3, 2)
    check(op, x, weight, *([floats(8)] if bias else []))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_dense(transposed: bool, bias: bool) -> None:
    weight = floats(7, 5) if transposed else floats(5, 7)
    check(Dense(transposed, lo=-0.5), floats(3, 5), weight, *([floats(7)] if bias else []))


@pytest.mark.fast(1)
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 1)])
@pytest.mark.parametrize("include", [False, True])
def test_pooling(pads: tuple, include: bool) -> None:
    x = floats(2, 3, 7, 9) - 3  # a border of zeros would be the maximum
    check(MaxPool((3, 2), (2, 1), pads), x)
    check(AvgPool((3, 2), (2, 1), pads, include, hi=-2.5), x)


def test_elements() -> None:
    check(Add(lo=0.0), floats(2, 1, 4), floats(3, 1))
    check(Add(hi=0.5), floats(), floats(3))
    check(Relu(), floats(2, 3, 4))
    check(Clip(-0.2, math.inf), floats(5))
    check(Clip(-0.2, 0.3), floats())


def test_results_are_the_same_without_elements() -> None:
    assert run_op(Relu(), [np.zeros((0, 3), np.float32)]).shape == (0, 3)


def test_operands_without_elements_are_not_read() -> None:
    none = np.ones((8, 4), np.float32)[:0]
    check(Concat(0), none, floats(1, 4), none, floats(3, 4))
    check(Concat(0), none, none)
    check(Pad("constant", (1, 0, 2, 0)), none, np.array(7, np.float32))
    check(Reduce("+", (0,), True), none)
