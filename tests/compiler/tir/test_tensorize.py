"""Tensor intrinsics match loop nests by what they compute, never by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from vdla.compiler.te.errors import ScheduleError
from vdla.compiler.te.expr import Expr, cast
from vdla.compiler.te.intrinsic import TensorIntrin
from vdla.compiler.te.schedule import Schedule, create_schedule
from vdla.compiler.te.tensor import Tensor, compute, max_of, placeholder, reduce_axis, sum_of
from vdla.compiler.tir.ir import For, PrimFunc, TensorCall, walk_stmt
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.passes.expand import expand_intrinsics
from vdla.compiler.tir.printer import print_func
from vdla.compiler.tir.verify import verify

from ..interpret import interpret
from ..workloads import run


def wide(x: Expr) -> Expr:
    return x.astype("int32")


def gemm(rows: int = 1, out: int = 4, inner: int = 2) -> TensorIntrin:
    """y[b, o] += sum_k p[b, k] * q[o, k]; nothing is named as in the workload."""
    p, q = placeholder((rows, inner), "int8", "p"), placeholder((out, inner), "int8", "q")
    r = reduce_axis(inner, "r")
    return TensorIntrin(
        "gemm", compute((rows, out), lambda b, o: sum_of(wide(p[b, r]) * wide(q[o, r]), r), "g")
    )


class Blocked:
    """Product of x [4, 3, 1, 2] and w [2, 3, 4, 2] in blocks: y [4, 2, 1, 4]."""

    def __init__(self, term: Callable[[Expr, Expr], Expr] = lambda a, b: wide(a) * wide(b)):
        self.x = placeholder((4, 3, 1, 2), "int8", "x")
        self.w = placeholder((2, 3, 4, 2), "int8", "w")
        self.kb, self.ki = reduce_axis(3, "kb"), reduce_axis(2, "ki")
        self.y = compute(
            (4, 2, 1, 4),
            lambda m, n, b, o: sum_of(
                term(self.x[m, self.kb, b, self.ki], self.w[n, self.kb, o, self.ki]),
                (self.kb, self.ki),
            ),
            "y",
        )
        self.s = create_schedule(self.y)
        m, n, self.b, self.o = self.y.axes
        self.s[self.y].reorder(m, n, self.kb, self.b, self.o, self.ki)

    def lower(self) -> PrimFunc:
        return lower(self.s, [self.x, self.w, self.y])

    def tensorized(self, intrinsic: TensorIntrin) -> PrimFunc:
        self.s[self.y].tensorize(self.b, intrinsic)
        return self.lower()


def arrays(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-128, 128, s).astype(np.int8) for s in ((4, 3, 1, 2), (2, 3, 4, 2))]


def test_nest_becomes_calls_on_regions(golden: Callable[[str, str], None]) -> None:
    func = Blocked().tensorized(gemm())
    verify(func)
    golden("tensorize.txt", print_func(func))
    calls = [s for s in walk_stmt(func.body) if isinstance(s, TensorCall)]
    assert [c.variant for c in calls] == ["init", "update"]
    assert [r.buffer.name for r in (calls[1].output, *calls[1].inputs)] == ["y", "x", "w"]


def test_result_is_the_same_tensorized_and_expanded() -> None:
    plain = run(Blocked().lower(), arrays())
    func = Blocked().tensorized(gemm())
    np.testing.assert_array_equal(run(func, arrays()), plain)
    expanded = expand_intrinsics(func)
    verify(expanded)
    assert not any(isinstance(s, TensorCall) for s in walk_stmt(expanded.body))
    np.testing.assert_array_equal(run(expanded, arrays()), plain)


def test_split_loops_match_with_offsets() -> None:
    """The intrinsic's loops come from splits; the outer ones move its regions."""
    x, w = placeholder((6, 8), "int8", "x"), placeholder((8, 8), "int8", "w")
    k = reduce_axis(8, "k")
    y = compute((6, 8), lambda i, j: sum_of(wide(x[i, k]) * wide(w[j, k]), k), "y")

    def build(intrinsic: TensorIntrin | None) -> PrimFunc:
        s = create_schedule(y)
        io, ii = s[y].split(y.axes[0], 2)
        jo, ji = s[y].split(y.axes[1], 4)
        ko, ki = s[y].split(k, 2)
        s[y].reorder(jo, io, ko, ii, ji, ki)
        if intrinsic is not None:
            s[y].tensorize(ii, intrinsic)
        return lower(s, [x, w, y])

    rng = np.random.default_rng(1)
    data = [rng.integers(-128, 128, s).astype(np.int8) for s in ((6, 8), (8, 8))]
    func = build(gemm(2, 4, 2))
    verify(func)
    np.testing.assert_array_equal(run(func, data), run(build(None), data))
    assert "gemm.update(y[i.o * 2, j.o * 4], x[i.o * 2, k.o * 2], w[j.o * 4, k.o * 2])" in (
        print_func(func)
    )


def test_intrinsic_without_reduction() -> None:
    p = placeholder((4,), "int32", "p")
    intrinsic = TensorIntrin("double", compute((4,), lambda i: p[i] * 2, "t"))
    x = placeholder((3, 4), "int32", "x")
    y = compute((3, 4), lambda i, j: x[i, j] * 2, "y")
    s = create_schedule(y)
    s[y].tensorize(y.axes[1], intrinsic)
    func = lower(s, [x, y])
    assert "double.full(y[i, 0], x[i, 0])" in print_func(func)
    data = np.arange(12, dtype=np.int32).reshape(3, 4)
    np.testing.assert_array_equal(run(func, [data]), data * 2)
    assert sum(isinstance(s, For) for s in walk_stmt(func.body)) == 1


@pytest.mark.parametrize("same", [True, False])
def test_one_operand_used_twice_is_one_region(same: bool) -> None:
    p = placeholder((4,), "int32", "p")
    intrinsic = TensorIntrin("square", compute((4,), lambda i: p[i] * p[i], "t"))
    x, z = placeholder((4,), "int32", "x"), placeholder((4,), "int32", "z")
    y = compute((4,), lambda i: x[i] * (x if same else z)[i], "y")
    s = create_schedule(y)
    s[y].tensorize(y.axes[0], intrinsic)
    args = [x, y] if same else [x, z, y]
    if same:
        assert "square.full(y[0], x[0])" in print_func(lower(s, args))
    else:
        refused(lambda: lower(s, args), r"square computes p\[i\], the nest computes z\[i\]")


def refused(func: Callable[[], object], message: str) -> None:
    with pytest.raises(ScheduleError, match=message) as error:
        func()
    assert "\n" not in str(error.value)


def test_wrong_extents() -> None:
    message = r"expects data loops \[1, 8\] and reduction loops \[2\], the nest has \[1, 4\] and"
    refused(lambda: Blocked().tensorized(gemm(out=8)), message)
    refused(lambda: Blocked().tensorized(gemm(inner=3)), r"reduction loops \[3\], the nest has")


@pytest.mark.parametrize(
    "term",
    [
        lambda a, b: wide(a) + wide(b),
        lambda a, b: wide(b) * wide(b),
        lambda a, b: wide(a) * wide(b) * 1 + 1,
        lambda a, b: wide(a * b),
        lambda a, b: wide(a) * cast("int32", cast("int16", b)),
        lambda a, b: wide(a),
    ],
    ids=["sum", "square", "plus one", "product in int8", "other casts", "one operand"],
)
def test_other_expressions_do_not_match(term: Callable[[Expr, Expr], Expr]) -> None:
    with pytest.raises(ScheduleError, match=r"^tensorize of y") as error:
        Blocked(term).tensorized(gemm())
    assert "gemm" in str(error.value)


def test_other_reduction_does_not_match() -> None:
    p, q = placeholder((1, 2), "int8", "p"), placeholder((4, 2), "int8", "q")
    r = reduce_axis(2, "r")
    intrinsic = TensorIntrin(
        "maxmul", compute((1, 4), lambda b, o: max_of(wide(p[b, r]) * wide(q[o, r]), r), "g")
    )
    refused(lambda: Blocked().tensorized(intrinsic), "maxmul computes .*, the nest computes")


def test_operand_of_another_dtype_does_not_match() -> None:
    p, q = placeholder((1, 2), "int16", "p"), placeholder((4, 2), "int8", "q")
    r = reduce_axis(2, "r")
    intrinsic = TensorIntrin(
        "g16", compute((1, 4), lambda b, o: sum_of(wide(p[b, r]) * wide(q[o, r]), r), "g")
    )
    refused(lambda: Blocked().tensorized(intrinsic), "g16 computes .*, the nest computes")


def test_transposed_operand_does_not_match() -> None:
    """w[o, k] and w[k, o] of a square block differ only in which loop moves which index."""
    x, w = placeholder((1, 4), "int8", "x"), placeholder((4, 4), "int8", "w")
    k = reduce_axis(4, "k")

    def product(transposed: bool) -> PrimFunc:
        y = compute(
            (1, 4),
            lambda b, o: sum_of(wide(x[b, k]) * wide(w[k, o] if transposed else w[o, k]), k),
            "y",
        )
        s = create_schedule(y)
        s[y].tensorize(y.axes[0], gemm(1, 4, 4))
        return lower(s, [x, w, y])

    assert "gemm.update" in print_func(product(False))
    refused(lambda: product(True), "index 0 of w")


def test_strided_operand_does_not_match() -> None:
    x, w = placeholder((1, 8), "int8", "x"), placeholder((4, 4), "int8", "w")
    k = reduce_axis(4, "k")
    y = compute((1, 4), lambda b, o: sum_of(wide(x[b, k * 2]) * wide(w[o, k]), k), "y")
    s = create_schedule(y)
    s[y].tensorize(y.axes[0], gemm(1, 4, 4))
    refused(lambda: lower(s, [x, w, y]), r"index 1 of x must advance by 1 with k, got k \* 2")


@pytest.mark.parametrize("step", [2, 1])
def test_an_operand_at_a_sum_of_axes(step: int) -> None:
    """An intrinsic whose operand is read at ``2 f + k`` matches that, and not ``f + k``."""
    f, k = reduce_axis(2, "f"), reduce_axis(2, "k")
    x, w = placeholder((4,), "int8", "x"), placeholder((2, 2), "int8", "w")
    y = compute((1,), lambda i: sum_of(wide(x[f * 2 + k]) * wide(w[f, k]), (f, k)), "y")
    pairs = TensorIntrin("pairs", y)
    f, k = reduce_axis(2, "f"), reduce_axis(2, "k")
    x, w = placeholder((3, 8), "int8", "x"), placeholder((3, 2, 2), "int8", "w")
    y = compute(
        (3, 1), lambda n, i: sum_of(wide(x[n, 4 + f * step + k]) * wide(w[n, f, k]), (f, k)), "y"
    )
    s = create_schedule(y)
    s[y].tensorize(y.axes[1], pairs)
    if step == 1:
        refused(lambda: lower(s, [x, w, y]), r"index 1 of x must advance by 2 with f, got f \+ k")
        return
    func = lower(s, [x, w, y])
    assert "pairs.update(y[n, 0], x[n, 4], w[n, 0, 0])" in print_func(func)
    arrays = [np.arange(t.shape[0] * 8 // (1 + (t is w)), dtype=np.int8).reshape(t.shape)
              for t in (x, w)]  # fmt: skip
    result = np.zeros(y.shape, np.int32)
    interpret(func, *arrays, result)
    expected = (arrays[0][:, 4:].astype(int) * arrays[1].reshape(3, 4)).sum(1)
    np.testing.assert_array_equal(result[:, 0], expected)


def test_operands_at_other_indices_are_refused() -> None:
    """Of an intrinsic's own declaration."""
    k = reduce_axis(4, "k")
    x, w = placeholder((5,), "int8", "x"), placeholder((4,), "int8", "w")
    y = compute((1,), lambda i: sum_of(wide(x[k + 1]) * wide(w[k]), k), "y")
    s = create_schedule(y)
    s[y].tensorize(y.axes[0], TensorIntrin("shifted", y))
    refused(lambda: lower(s, [x, w, y]), r"operand indices must be sums of axes, got k \+ 1")


def test_loop_in_a_leading_index_does_not_match() -> None:
    x, w = placeholder((4, 1, 4), "int8", "x"), placeholder((4, 4), "int8", "w")
    k = reduce_axis(4, "k")
    y = compute((1, 4), lambda b, o: sum_of(wide(x[o, b, k]) * wide(w[o, k]), k), "y")
    s = create_schedule(y)
    s[y].tensorize(y.axes[0], gemm(1, 4, 4))
    refused(lambda: lower(s, [x, w, y]), "index 0 of x, o, moves with a tensorized loop")


def tailed() -> tuple[Schedule, list[Tensor]]:
    x, w = placeholder((1, 6), "int8", "x"), placeholder((4, 6), "int8", "w")
    k = reduce_axis(6, "k")
    y = compute((1, 4), lambda b, o: sum_of(wide(x[b, k]) * wide(w[o, k]), k), "y")
    s = create_schedule(y)
    ko, ki = s[y].split(k, 4)
    b, o = y.axes
    s[y].reorder(ko, b, o, ki)
    s[y].tensorize(b, gemm(1, 4, 4))
    return s, [x, w, y]


def test_loops_with_a_tail_are_refused() -> None:
    """Without its guard, the intrinsic would read beyond the tensors."""
    refused(lambda: lower(*tailed()), r"gemm at b\[1\] would need the guard k.o \* 4 \+ k.i < 6")


def test_stages_inside_the_intrinsic_are_refused() -> None:
    block = Blocked()
    copy = block.s.cache_read(block.x, "inp", [block.y])
    block.s[copy].compute_at(block.s[block.y], block.o)
    refused(lambda: block.tensorized(gemm()), r"attached in y at o\[4\], inside the loop b\[1\]")
