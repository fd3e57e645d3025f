"""Buffers that live one after the other share memory; those that live at one time do not."""

from __future__ import annotations

import numpy as np
import pytest
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import Tensor, compute, placeholder
from vdla.compiler.tir.ir import Allocate, PrimFunc, walk_stmt
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.passes.share_buffers import share_buffers
from vdla.compiler.tir.verify import verify

from ..interpret import interpret

ROWS, WIDTH = 3, 4


def step(before: Tensor, number: int) -> Tensor:
    return compute(before.shape, lambda i, j: before[i, j] * 3 + number, f"s{number}")


def chain(scope: str = "tmp") -> PrimFunc:
    """Five steps for each row, each of the one before; the result takes the first one, too."""
    x = placeholder((ROWS, WIDTH), "int32", "x")
    stages = [compute(x.shape, lambda i, j: x[i, j] + 1, "first")]
    for number in range(4):
        stages.append(step(stages[-1], number))
    first, last = stages[0], stages[-1]
    out = compute(x.shape, lambda i, j: last[i, j] - first[i, j], "out")
    s = create_schedule(out)
    for stage in stages:
        s[stage].compute_at(s[out], out.axes[0])
        s[stage].set_scope(scope)
    return lower(s, [x, out], "chain")


def allocated(func: PrimFunc) -> list[str]:
    return [s.buffer.name for s in walk_stmt(func.body) if isinstance(s, Allocate)]


def test_three_live_at_one_time() -> None:
    """The first one until the end, and each of the others until the next is there."""
    func = chain()
    shared = share_buffers(func, "tmp")
    verify(shared)
    assert len(allocated(func)) == 5 and len(allocated(shared)) == 3
    x = np.arange(ROWS * WIDTH, dtype=np.int32).reshape(ROWS, WIDTH)
    results = [np.zeros_like(x), np.zeros_like(x)]
    for each, result in zip((func, shared), results, strict=True):
        interpret(each, x, result)
    np.testing.assert_array_equal(*results)
    assert results[0].any()


@pytest.mark.parametrize("scope", ["out", "acc"])
def test_other_memories_stay(scope: str) -> None:
    func = chain(scope)
    assert allocated(share_buffers(func, "tmp")) == allocated(func)


def two_steps(turned: bool) -> PrimFunc:
    """The second one reads the element in its place, or of the row from the other end."""
    x = placeholder((ROWS, WIDTH), "int32", "x")
    first = compute(x.shape, lambda i, j: x[i, j] + 1, "first")
    second = compute(x.shape, lambda i, j: first[i, WIDTH - 1 - j if turned else j] * 3, "second")
    out = compute(x.shape, lambda i, j: second[i, j] - 1, "out")
    s = create_schedule(out)
    for stage in (first, second):
        s[stage].set_scope("tmp")
    return lower(s, [x, out], "two_steps")


@pytest.mark.parametrize("turned", [False, True])
def test_elements_replace_those_that_they_are_made_of(turned: bool) -> None:
    """Only where each is read in the place that is written."""
    func = two_steps(turned)
    assert len(allocated(share_buffers(func, "tmp"))) == 2
    shared = share_buffers(func, "tmp", in_place=True)
    verify(shared)
    assert len(allocated(shared)) == 1 + turned
    x = np.arange(ROWS * WIDTH, dtype=np.int32).reshape(ROWS, WIDTH)
    results = [np.zeros_like(x), np.zeros_like(x)]
    for each, result in zip((func, shared), results, strict=True):
        interpret(each, x, result)
    np.testing.assert_array_equal(*results)


def test_a_buffer_that_is_read_later_is_not_replaced() -> None:
    """The first step's result is read by the last one, too."""
    assert len(allocated(share_buffers(chain(), "tmp", in_place=True))) == 2
