"""Divisions in indices, simplified by the extents of loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import compute, placeholder
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.passes.divisions import simplify_divisions
from vdla.compiler.tir.printer import print_func

from ..interpret import interpret


def test_a_split_by_the_divisor() -> None:
    """Also with an offset; a loop that passes a multiple of the divisor keeps its division."""
    x = placeholder((6, 16), "int8", "x")
    y = compute((64,), lambda i: x[(i + 32) // 16, i % 16] + x[(i + 8) // 16, 0], "y")
    schedule = create_schedule(y)
    schedule[y].split(y.axes[0], 16)
    text = print_func(simplify_divisions(lower(schedule, [x, y])))
    assert "y[i.o * 16 + i.i] = x[i.o + 2, i.i] + x[i.o + (i.i + 8) // 16, 0]" in text


@given(
    *(st.integers(1, 12) for _ in range(3)),
    st.integers(0, 40),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_values_stay(
    divisor: int, factor: int, extent: int, offset: int, step: int, other: int
) -> None:
    """Of any quotient and remainder of a loop that is split."""
    last = step * (extent - 1) + offset
    x = placeholder((last // divisor + 1, divisor, other), "int32", "x")
    y = compute(
        (extent,),
        lambda i: x[(i * step + offset) // divisor, (i * step + offset) % divisor, i % other], "y",
    )  # fmt: skip
    schedule = create_schedule(y)
    schedule[y].split(y.axes[0], factor)
    func = lower(schedule, [x, y])
    values = np.arange(np.prod(x.shape), dtype=np.int32).reshape(x.shape)
    results = [np.zeros(y.shape, np.int32) for _ in range(2)]
    interpret(func, values, results[0])
    interpret(simplify_divisions(func), values, results[1])
    np.testing.assert_array_equal(results[1], results[0])
