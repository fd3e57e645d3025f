"""What happens to loop programs before machine code: unrolling, intrinsics back to loops; and
schedules of every kind that give the same machine results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdla.compiler.targets.cpu.graph_code import CPU_PASSES, compile_func, run_passes
from vdla.compiler.targets.cpu.processor import host_processor
from vdla.compiler.te.expr import Call, Read, Var, all_of, select
from vdla.compiler.te.intrinsic import TensorIntrin
from vdla.compiler.te.schedule import Schedule, create_schedule
from vdla.compiler.te.tensor import Tensor, clip, compute, placeholder, reduce_axis, sum_of
from vdla.compiler.tir.ir import Buffer, For, If, PrimFunc, Store, TensorCall, walk_stmt
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.passes.divisions import simplify_divisions
from vdla.compiler.tir.passes.expand import expand_intrinsics
from vdla.compiler.tir.passes.peel import peel_tails
from vdla.compiler.tir.passes.unroll import MAX_COPIES, unroll_loops
from vdla.compiler.tir.printer import print_func
from vdla.isa.errors import VdlaError

from ...interpret import interpret


def unrolled(extent: int) -> PrimFunc:
    """``for i: unrolled for j: if i + j < 5: y[i, j] = x[i, j] + j``."""
    x, y = Buffer("x", (4, extent), "int32"), Buffer("y", (4, extent), "int32")
    i, j = Var("i"), Var("j")
    guarded = If(i + j < 5, Store(y, (i, j), Read(x, (i, j)) + j))
    return PrimFunc("test", (x, y), For(i, 4, "serial", For(j, extent, "unrolled", guarded)))


def test_unrolled_loops_become_copies() -> None:
    assert (
        print_func(unroll_loops(unrolled(2)))
        == """\
func test(x: int32[4, 2], y: int32[4, 2]):
  for i in 4:
    if i < 5:
      y[i, 0] = x[i, 0]
    if i + 1 < 5:
      y[i, 1] = x[i, 1] + 1
"""
    )


def test_guards_that_a_copy_decides_go() -> None:
    x = Buffer("x", (4,), "int32")
    j = Var("j")
    func = PrimFunc("test", (x,), For(j, 4, "unrolled", If(j < 2, Store(x, (j,), j * 7))))
    text = "func test(x: int32[4]):\n  x[0] = 0\n  x[1] = 7\n"
    assert print_func(unroll_loops(func)) == text


def test_long_loops_stay_loops() -> None:
    func = unrolled(MAX_COPIES + 1)
    loops = [s for s in walk_stmt(unroll_loops(func).body) if isinstance(s, For)]
    assert [loop.kind for loop in loops] == ["serial", "unrolled"]


def test_copies_bind_variables_of_their_own() -> None:
    x = Buffer("x", (3, 4), "int32")
    i, j = Var("i"), Var("j")
    func = PrimFunc("test", (x,), For(i, 3, "unrolled", For(j, 4, "serial", Store(x, (i, j), j))))
    loops = [s.var for s in walk_stmt(unroll_loops(func).body) if isinstance(s, For)]
    assert len(loops) == len(set(loops)) == 3


def gemm(rows: int, columns: int, depth: int) -> TensorIntrin:
    x, w = placeholder((rows, depth), "int8", "x"), placeholder((columns, depth), "int8", "w")
    k = reduce_axis(depth, "k")
    rule = lambda b, o: sum_of(x[b, k].astype("int32") * w[o, k].astype("int32"), k)  # noqa: E731
    return TensorIntrin("gemm", compute((rows, columns), rule, "y"))


def matmul(m: int, n: int, depth: int) -> tuple[list[Tensor], Tensor]:
    a, b = placeholder((m, depth), "int8", "a"), placeholder((n, depth), "int8", "b")
    k = reduce_axis(depth, "k")
    rule = lambda i, j: sum_of(a[i, k].astype("int32") * b[j, k].astype("int32"), k)  # noqa: E731
    return [a, b], compute((m, n), rule, "c")


def tensorized() -> tuple[PrimFunc, list[np.ndarray]]:
    inputs, c = matmul(6, 8, 12)
    schedule = create_schedule(c)
    io, jo, i, j = schedule[c].tile(*c.axes, 2, 4)
    ko, ki = schedule[c].split(c.reduce_axes[0], 3)
    schedule[c].reorder(io, jo, ko, i, j, ki)
    schedule[c].tensorize(i, gemm(2, 4, 3))
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-128, 128, t.shape).astype(np.int8) for t in inputs]
    return lower(schedule, [*inputs, c], "matmul"), arrays


def test_intrinsics_run_as_their_declared_behaviour() -> None:
    func, arrays = tensorized()
    assert any(isinstance(s, TensorCall) for s in walk_stmt(func.body))
    expanded = expand_intrinsics(func)
    assert not any(isinstance(s, TensorCall) for s in walk_stmt(expanded.body))
    expected = arrays[0].astype(np.int32) @ arrays[1].astype(np.int32).T
    results = [np.full((6, 8), 99, np.int32) for _ in range(3)]
    interpret(func, *arrays, results[0])
    interpret(expanded, *arrays, results[1])
    compile_func(func)(*arrays, results[2])
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_expanded_intrinsics_read_as_loops(golden: Callable[[str, str], None]) -> None:
    golden("expand_intrinsics.txt", print_func(expand_intrinsics(tensorized()[0])))


def test_passes_verify_what_they_get() -> None:
    func = unrolled(2)
    loop = func.body
    assert isinstance(loop, For)
    beyond = replace(func, body=replace(loop, extent=5))
    with pytest.raises(VdlaError, match="index 0 of"):
        run_passes(beyond, host_processor())
    assert CPU_PASSES == (simplify_divisions, peel_tails, unroll_loops)


# ---- schedules: whatever order of loops, the same machine results ----

KINDS = ("serial", "unrolled", "parallel", "vthread")


def convolution() -> tuple[list[Tensor], Tensor, dict[str, Tensor]]:
    """A padded convolution with stride 2, requantised; extents that few factors divide."""
    data = placeholder((3, 7, 9), "int8", "data")
    weight = placeholder((5, 3, 3, 3), "int8", "weight")
    scale = placeholder((5,), "int32", "scale")
    pad = compute(
        (3, 9, 11),
        lambda c, y, x: select(all_of(y >= 1, y < 8, x >= 1, x < 10), data[c, y - 1, x - 1], 5),
        "pad",
    )
    ic, kh, kw = (reduce_axis(n, name) for n, name in ((3, "ic"), (3, "kh"), (3, "kw")))
    acc = compute(
        (5, 4, 9),
        lambda o, y, x: sum_of(
            pad[ic, y * 2 + kh, x + kw].astype("int32") * weight[o, ic, kh, kw].astype("int32"),
            (ic, kh, kw),
        ),
        "acc",
    )
    out = compute(
        acc.shape,
        lambda o, y, x: clip(
            Call("requantize", (acc[o, y, x], scale[o], scale[0] & 0 | 38), "int32") + 3, -128, 127
        ).astype("int8"),
        "out",
    )
    return [data, weight, scale], out, {"pad": pad, "acc": acc}


def mangle(schedule: Schedule, tensor: Tensor, draw: st.DataObject) -> None:
    """Random splits, fusions, orders and kinds of a stage's loops."""
    stage = schedule[tensor]
    for axis in list(stage.leaves):
        if draw.draw(st.booleans()):
            stage.split(axis, factor=draw.draw(st.integers(1, axis.extent)))
    stage.reorder(*draw.draw(st.permutations(stage.leaves)))
    if draw.draw(st.booleans()):
        position = draw.draw(st.integers(0, len(stage.leaves) - 2))
        outer, inner = stage.leaves[position : position + 2]
        if outer.kind == inner.kind:
            stage.fuse(outer, inner)
    for axis in stage.leaves:
        kind = draw.draw(st.sampled_from(KINDS if axis.kind == "data" else KINDS[:2]))
        stage.kinds[axis] = kind
    if stage.leaves[-1].kind == "data" and draw.draw(st.booleans()):
        stage.vectorize(stage.leaves[-1])


@pytest.mark.slow
@settings(max_examples=15)
@given(st.data())
def test_random_schedules_of_a_convolution(draw: st.DataObject) -> None:
    rng = np.random.default_rng(4)
    inputs, out, stages = convolution()
    arrays = [rng.integers(-128, 128, t.shape).astype(np.int8) for t in inputs[:2]]
    arrays.append(rng.integers(2**30, 2**31, 5).astype(np.int32) >> 4)
    expected, got = np.zeros(out.shape, np.int8), np.full(out.shape, 85, np.int8)
    compile_func(lower(create_schedule(out), [*inputs, out], "plain"))(*arrays, expected)
    assert len(np.unique(expected)) > 40

    schedule = create_schedule(out)
    mangle(schedule, out, draw)
    if draw.draw(st.booleans()):
        mangle(schedule, stages["acc"], draw)
    if draw.draw(st.booleans()):
        axis = draw.draw(st.sampled_from(schedule[out].leaves[:-1]))
        schedule[stages["acc"]].compute_at(schedule[out], axis)
    if draw.draw(st.booleans()):
        schedule[stages["pad"]].compute_inline()
    compile_func(lower(schedule, [*inputs, out], "scheduled"))(*arrays, got)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.slow
@settings(max_examples=20)
@given(st.data(), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_random_schedules_of_a_matrix_product(
    draw: st.DataObject, m: int, n: int, depth: int
) -> None:
    rng = np.random.default_rng(5)
    inputs, c = matmul(m, n, depth)
    arrays = [rng.integers(-128, 128, t.shape).astype(np.int8) for t in inputs]
    schedule = create_schedule(c)
    mangle(schedule, c, draw)
    got = np.full((m, n), 85, np.int32)
    compile_func(lower(schedule, [*inputs, c], "matmul"))(*arrays, got)
    np.testing.assert_array_equal(got, arrays[0].astype(np.int32) @ arrays[1].T.astype(np.int32))
