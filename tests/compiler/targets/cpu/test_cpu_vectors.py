"""Vector code: tails apart, loops as vector values, products and sums in one where allowed."""

from __future__ import annotations

import re

import numpy as np
import pytest
from llvmlite import ir
from vdla.compiler.targets.cpu.graph_code import compile_func, run_passes
from vdla.compiler.targets.cpu.llvm import emit_function
from vdla.compiler.targets.cpu.processor import host_processor
from vdla.compiler.te.expr import Call, Expr, Read, Var, select
from vdla.compiler.te.schedule import Schedule, create_schedule
from vdla.compiler.te.tensor import Tensor, clip, compute, placeholder, reduce_axis, sum_of
from vdla.compiler.tir.ir import Buffer, For, PrimFunc, Store
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.passes.peel import peel_tails
from vdla.compiler.tir.passes.unroll import unroll_loops
from vdla.compiler.tir.printer import print_func
from vdla.compiler.tir.verify import verify


def tiled(size: int, tile: int) -> PrimFunc:
    """Twice a vector, in unrolled tiles."""
    x = placeholder((size,), "int32", "x")
    y = compute((size,), lambda i: x[i] * 2, "y")
    schedule = create_schedule(y)
    _, inner = schedule[y].split(y.axes[0], tile)
    schedule[y].unroll(inner)
    return lower(schedule, [x, y])


def test_the_last_tile_is_apart() -> None:
    func = unroll_loops(peel_tails(tiled(8, 3)))
    verify(func)
    text = """\
func main(x: int32[8], y: int32[8]):
  for i.o in 2:
    y[i.o * 3] = x[i.o * 3] * 2
    y[i.o * 3 + 1] = x[i.o * 3 + 1] * 2
    y[i.o * 3 + 2] = x[i.o * 3 + 2] * 2
  y[6] = x[6] * 2
  y[7] = x[7] * 2
"""
    assert print_func(func) == text


def test_full_tiles_stay_one_loop() -> None:
    func = tiled(9, 3)
    assert print_func(peel_tails(func)) == print_func(func)


def test_the_last_vector_is_shorter() -> None:
    params, _, schedule = vectors(lambda a, b, i: a[i] + b[i], 44)
    func = peel_tails(lower(schedule, params))
    verify(func)
    text = """\
func main(a: float32[44], b: float32[44], y: float32[44]):
  for i.o in 2:
    vectorized for i.i in 16:
      y[i.o * 16 + i.i] = a[i.o * 16 + i.i] + b[i.o * 16 + i.i]
  vectorized for i.i in 12:
    y[32 + i.i] = a[32 + i.i] + b[32 + i.i]
"""
    assert print_func(func) == text


def vectors(rule, size: int = 48, lanes: int = 16) -> tuple[list[Tensor], Tensor, Schedule]:
    """An element-wise function of two float vectors, vectorized."""
    a, b = placeholder((size,), "float32", "a"), placeholder((size,), "float32", "b")
    y = compute((size,), lambda i: rule(a, b, i), "y")
    schedule = create_schedule(y)
    _, inner = schedule[y].split(y.axes[0], lanes)
    schedule[y].vectorize(inner)
    return [a, b, y], y, schedule


RULES = {
    "sides": lambda a, b, i: a[i] * b[i] - a[i] / (b[i] + 5.0),
    "one for all": lambda a, b, i: a[i] + b[3],
    "a choice for all": lambda a, b, i: select(b[0] < 0.5, a[i], b[i]),
    "reversed": lambda a, b, i: a[47 - i] + b[i],
    "every third": lambda a, b, i: a[i * 3 % 48] + b[i],
    "a choice for each": lambda a, b, i: select(a[i] < b[i], a[i], b[i]),
    "an instruction": lambda a, b, i: Call("round", (a[i] * 4.0,), "float32") + b[i],
    "whole numbers": lambda a, b, i: clip(a[i] * 9.0, -99.0, 99.0).astype("int8").astype("float32"),
    "a function": lambda a, b, i: Call("log", (a[i],), "float32") + b[i],
}
VECTORS = ("sides", "one for all", "a choice for all", "an instruction", "whole numbers")


def test_prefetch_is_an_instruction_that_may_go_beyond() -> None:
    """One for each of the two lines of 32 floats, beside the loads, which stay inside."""
    x = placeholder((8, 32), "float32", "x")
    y = compute((8, 32), lambda i, j: x[i, j] + 1.0, "y")
    schedule = create_schedule(y)
    schedule[y].prefetch(x, y.axes[0], 3)
    func = lower(schedule, [x, y])
    module = ir.Module("test")
    emit_function(run_passes(func, host_processor()), module, "kernel", host_processor())
    text = str(module)
    assert len(re.findall(r'call void @"llvm.prefetch.p0"\(.*i32 0, i32 3, i32 1\)', text)) == 1
    assert "for p1 in 2:" in print_func(func)
    assert "prefetch x[i + 3, p1 * 16]" in print_func(func)
    array = np.arange(256, dtype=np.float32).reshape(8, 32)
    result = np.zeros_like(array)
    compile_func(func)(array, result)
    np.testing.assert_array_equal(result, array + 1)


def test_rows_by_an_element() -> None:
    """Which row a vector is loaded from is read, once for all lanes."""
    x, rows = placeholder((5, 16), "int32", "x"), placeholder((3,), "int8", "rows")
    y = compute((3, 16), lambda i, j: x[rows[i].astype("int32") % 5, j], "y")
    schedule = create_schedule(y)
    schedule[y].vectorize(y.axes[1])
    kernel = compile_func(lower(schedule, [x, rows, y]))
    array = np.arange(80, dtype=np.int32).reshape(5, 16)
    result = np.zeros((3, 16), np.int32)
    kernel(array, np.array([4, -2, 0], np.int8), result)
    np.testing.assert_array_equal(result, array[[4, 3, 0]])


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("lanes", [3, 4, 16])
def test_vector_loops_compute_what_scalar_ones_do(name: str, lanes: int) -> None:
    args, y, schedule = vectors(RULES[name], lanes=lanes)
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-2, 2, (2, 48)).astype(np.float32)
    results = []
    for each in (schedule, create_schedule(y)):
        results.append(np.empty(48, np.float32))
        compile_func(lower(each, args))(a, b, results[-1])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("name", RULES)
def test_which_loops_are_vectors(name: str) -> None:
    """In the code as it is before LLVM optimises it."""
    args, _, schedule = vectors(RULES[name])
    module = ir.Module("test")
    func = run_passes(lower(schedule, args), host_processor())
    emit_function(func, module, "kernel", host_processor())
    assert ("<16 x float>" in str(module)) == (name in VECTORS)


def test_a_loop_that_reads_what_it_wrote_is_no_vector() -> None:
    """``a[i + 1] = a[i] + 1``: each iteration needs the one before."""
    a = Buffer("a", (17,), "float32")
    i = Var("i")
    body = Store(a, (i + 1,), Read(a, (i,)) + 1.0)
    array = np.zeros(17, np.float32)
    compile_func(PrimFunc("chain", (a,), For(i, 16, "vectorized", body)))(array)
    np.testing.assert_array_equal(array, np.arange(17))


def dot(contract: bool) -> tuple[PrimFunc, list[np.ndarray]]:
    """Sums of products whose low bits rounding twice loses."""
    x, w = placeholder((2,), "float32", "x"), placeholder((2, 16), "float32", "w")
    k = reduce_axis(2, "k")

    def rule(o: Expr) -> Expr:
        return sum_of(x[k] * w[k, o], k)

    y = compute((16,), rule, "y")
    schedule = create_schedule(y)
    stage = schedule[y]
    stage.reorder(k, *y.axes)
    stage.vectorize(y.axes[0])
    if contract:
        stage.pragma(y.axes[0], "contract")
    tiny = np.float32(2**-12)
    xs = np.array([-(1 + 2 * tiny), 1 + tiny], np.float32)
    ws = np.stack([np.ones(16), np.full(16, 1 + tiny)]).astype(np.float32)
    return lower(schedule, [x, w, y]), [xs, ws, np.empty(16, np.float32)]


def test_sums_are_rounded_once_only_where_a_schedule_allows() -> None:
    """(1 + t)^2 - (1 + 2 t) is t^2; rounded before the subtraction, it is 0."""
    exact, arrays = dot(contract=False)
    compile_func(exact)(*arrays)
    assert set(arrays[2]) == {0.0}
    contracted, arrays = dot(contract=True)
    kernel = compile_func(contracted)
    kernel(*arrays)
    fused = bool(re.search(r"vf(n?m)(add|sub)\d+ps|fmla", kernel.code.assembly))
    assert set(arrays[2]) == ({np.float32(2**-24)} if fused else {0.0})
