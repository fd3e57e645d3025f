"""Kernels by hand: what becomes of thread loops, where barriers go, what the static checker finds,
and that execution finds it, too."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import vdla
from vdla.compiler.targets.gpu.dialects import CUDA
from vdla.compiler.targets.gpu.kernels import lower_kernels, make_kernels, to_launches
from vdla.compiler.targets.gpu.scopes import MODEL
from vdla.compiler.targets.gpu.templates.gemm import tiled
from vdla.compiler.targets.gpu.templates.product import Product
from vdla.compiler.targets.gpu.text import print_module
from vdla.compiler.te.errors import ScheduleError
from vdla.compiler.te.expr import Const, Expr, Read, Var, rewrite
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import compute, placeholder, reduce_axis, sum_of
from vdla.compiler.tir.ir import (
    Allocate,
    Barrier,
    Buffer,
    For,
    If,
    Launch,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Thread,
    map_stmt,
    seq,
    substatements,
    walk_stmt,
)
from vdla.compiler.tir.passes.barriers import insert_barriers
from vdla.compiler.tir.printer import print_func
from vdla.compiler.tir.races import check_threads
from vdla.compiler.tir.verify import verify
from vdla.runtime.gpu.emulated import load_emulated

from .emulating import emulate

RNG = np.random.default_rng(1)


def gemm(m: int = 20, n: int = 24, k: int = 20) -> PrimFunc:
    """A product in tiles, in shared memory."""
    a, b = placeholder((m, k), "float32", "a"), placeholder((k, n), "float32", "b")
    product = Product(
        (1, m, n, k), lambda _, i, t, r: (a[i, r], []), lambda _, j, t, r: (b[r, j], []),
        lambda _, i, j, acc: acc, "float32", [a, b],
    )  # fmt: skip
    knobs = {
        "rows": 8,
        "columns": 16,
        "thread_rows": 2,
        "thread_columns": 4,
        "depth": 8,
        "stages": 2,
        "split_k": 1,
    }
    schedule = tiled(product, knobs)
    return to_launches(lower_kernels(schedule, [a, b, schedule.outputs[0]], "gemm"))


def row_sums(threads: int = 16) -> PrimFunc:
    """Sums of rows: each thread adds up a part, one thread adds up the parts."""
    x = placeholder((3, 64), "int32", "x")
    k = reduce_axis(64, "k")
    y = compute((3,), lambda i: sum_of(x[i, k], k), "y")
    s = create_schedule(y)
    _, inner = s[y].split(k, threads)
    parts = s.rfactor(y, inner)
    s[y].bind(y.axes[0], "blockIdx.x")
    s[parts].compute_at(s[y], y.axes[0])
    s[parts].bind(parts.axes[0], "threadIdx.x")
    return to_launches(lower_kernels(s, [x, y], "sums"))


def stencil() -> PrimFunc:
    """Neighbours in shared memory, twice as many as threads."""
    x = placeholder((64,), "int32", "x")
    p = compute((64,), lambda i: x[i] * 3 - 1, "p")
    y = compute((62,), lambda i: p[i] + p[i + 2], "y")
    s = create_schedule(y)
    o, i = s[y].split(y.axes[0], 8)
    s[y].bind(o, "blockIdx.x")
    s[y].bind(i, "threadIdx.x")
    s[p].compute_at(s[y], o)
    _, t = s[p].split(p.axes[0], 8)
    s[p].bind(t, "threadIdx.x")
    return to_launches(lower_kernels(s, [x, y], "stencil"))


def steps() -> PrimFunc:
    """Sums of neighbours, which all threads bring to shared memory anew for each step."""
    x = placeholder((5, 64), "int32", "x")
    p = compute((5, 64), lambda k, i: x[k, i] * 3 - 1, "p")
    k = reduce_axis(5, "k")
    y = compute((62,), lambda i: sum_of(p[k, i] + p[k, i + 2], k), "y")
    s = create_schedule(y)
    o, i = s[y].split(y.axes[0], 8)
    s[y].bind(o, "blockIdx.x")
    s[y].bind(i, "threadIdx.x")
    s[p].compute_at(s[y], k)
    _, t = s[p].split(p.axes[1], 8)
    s[p].bind(t, "threadIdx.x")
    s[p].set_scope("shared")
    return to_launches(lower_kernels(s, [x, y], "steps"))


PROGRAMS = {"gemm": gemm, "row sums": row_sums, "stencil": stencil, "steps": steps}


def arrays_for(func: PrimFunc) -> list[np.ndarray]:
    """Small integers, which float32 adds up exactly in any order."""
    return [RNG.integers(-8, 8, b.shape).astype(b.dtype) for b in func.params[:-1]]


def expected(name: str, arrays: list[np.ndarray]) -> np.ndarray:
    match name:
        case "gemm":
            return (arrays[0] @ arrays[1])[None]
        case "row sums":
            return arrays[0].sum(axis=1).astype(np.int32)
    p = arrays[0] * 3 - 1
    return p[:-2] + p[2:] if name == "stencil" else (p[:, :-2] + p[:, 2:]).sum(axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_threads_work_together(name: str) -> None:
    func = PROGRAMS[name]()
    arrays = arrays_for(func)
    for result in emulate(func, arrays):
        np.testing.assert_array_equal(result, expected(name, arrays))


def test_a_stage_in_shared_memory_is_computed_for_all_threads() -> None:
    assert print_func(stencil()) == (
        "func stencil(x: int32[64], y: int32[62]):\n"
        "  launch stencil.y with blockIdx.x in 8, threadIdx.x in 8:\n"
        "    allocate p: int32[10] in shared\n"
        "    for i.o in 2:\n"
        "      if blockIdx.x * 8 + (i.o * 8 + threadIdx.x) < 64:\n"
        "        if i.o * 8 + threadIdx.x < 10:\n"
        "          p[i.o * 8 + threadIdx.x] = x[blockIdx.x * 8 + i.o * 8 + threadIdx.x] * 3 - 1\n"
        "    barrier\n"
        "    if blockIdx.x * 8 + threadIdx.x < 62:\n"
        "      y[blockIdx.x * 8 + threadIdx.x] = p[threadIdx.x] + p[threadIdx.x + 2]\n"
    )


@pytest.mark.slow
def test_more_threads_fill_a_memory_than_read_it() -> None:
    """What they compute for it on the way is not guarded as the readers' work is."""
    a = placeholder((12,), "int32", "a")
    b = compute((12,), lambda i: a[i] * 3, "b")
    p = compute((12,), lambda i: b[i], "p")
    c = compute((6,), lambda i: p[11 - i * 2] - i, "c")
    s = create_schedule(c)
    o, i = s[c].split(c.axes[0], 2)
    s[c].bind(o, "blockIdx.z")
    s[c].bind(i, "threadIdx.y")
    s[p].compute_at(s[c], i)
    s[p].set_scope("shared")
    s[p].bind(p.axes[0], "threadIdx.y")
    s[b].compute_at(s[p], p.axes[0])
    func = to_launches(lower_kernels(s, [a, c], "f"))
    assert "    b[0] = a[threadIdx.y + blockIdx.z * -4 + 9] * 3\n" in print_func(func)
    values = np.arange(12, dtype=np.int32)
    for result in emulate(func, [values]):
        np.testing.assert_array_equal(result, values[11::-2] * 3 - np.arange(6))


def barriers_in(stmt: Stmt) -> int:
    """How often a thread waits in a statement."""
    match stmt:
        case Barrier():
            return 1
        case For():
            return stmt.extent * barriers_in(stmt.body)
    return sum(barriers_in(inner) for inner in substatements(stmt))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_blocks_wait_as_often_as_the_program_says(name: str) -> None:
    func = PROGRAMS[name]()
    [kernel] = make_kernels(func, "", CUDA)
    arrays = arrays_for(func)
    result = np.zeros(func.params[-1].shape, func.params[-1].dtype)
    code = load_emulated(print_module([kernel.text], CUDA))
    addresses = [a.ctypes.data for a in (*arrays, result)]
    counts = code.launch(kernel.name, kernel.grid, kernel.block, addresses)
    assert counts.waits == barriers_in(kernel.launch.body) * math.prod(kernel.grid) > 0


# ---- mutants -----------------------------------------------------------------------------------


def without_barrier(func: PrimFunc, which: int) -> PrimFunc:
    """The program without one of its barriers."""
    barriers = [s for s in walk_stmt(func.body) if isinstance(s, Barrier)]
    gone = barriers[which]

    def on_stmt(stmt: Stmt) -> Stmt | None:
        return Seq(()) if stmt is gone else None

    return replace(func, body=map_stmt(func.body, lambda expr: expr, on_stmt=on_stmt))


def barriers_of(func: PrimFunc) -> int:
    return sum(isinstance(s, Barrier) for s in walk_stmt(func.body))


#: Barriers of each program.
BARRIERS = {"gemm": 2, "row sums": 1, "stencil": 1, "steps": 2}
DROPPED = [(name, which) for name, count in BARRIERS.items() for which in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "which"), DROPPED)
def test_every_dropped_barrier_is_found(name: str, which: int) -> None:
    func = without_barrier(PROGRAMS[name](), which)
    with pytest.raises(ScheduleError, match=r"race on .* in shared: .*without a barrier"):
        check_threads(func, MODEL)
    arrays = arrays_for(func)
    wanted = expected(name, arrays)
    assert any(not np.array_equal(result, wanted) for result in emulate(func, arrays))


def test_the_programs_have_barriers() -> None:
    assert {name: barriers_of(make()) for name, make in PROGRAMS.items()} == BARRIERS


def shifted_reads(func: PrimFunc) -> PrimFunc:
    """The program with the first index of reads of its shared buffers one too high."""

    def leaf(node: Expr) -> Expr | None:
        if isinstance(node, Read) and node.source.scope == "shared":
            return Read(node.source, (*node.indices[:-1], node.indices[-1] + 1))
        return None

    return replace(func, body=map_stmt(func.body, lambda e: rewrite(e, leaf)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_index_that_is_one_too_high_is_outside_its_buffer(name: str) -> None:
    with pytest.raises(ScheduleError, match="cannot be shown to lie in"):
        verify(shifted_reads(PROGRAMS[name]()))


# ---- the checker, on kernels by hand -----------------------------------------------------------


def kernel(body: Stmt, t: Var, b: Var, *params: Buffer, blocks: int = 1) -> PrimFunc:
    launch = Launch("k", (Thread("blockIdx.x", b, blocks),), (Thread("threadIdx.x", t, 8),), body)
    return PrimFunc("k", params, launch)


T, B, K = Var("t"), Var("b"), Var("k")
X, Y = Buffer("x", (16,), "int32"), Buffer("y", (16,), "int32")
S = Buffer("s", (16,), "int32", "shared")


def fault(body: Stmt, blocks: int = 1) -> str:
    func = kernel(body, T, B, X, Y, blocks=blocks)
    try:
        check_threads(func, MODEL)
    except ScheduleError as error:
        return str(error)
    return ""


def test_threads_that_store_to_one_element() -> None:
    assert "race on y in global" in fault(Store(Y, (Const(0),), T))
    assert "race on y in global" in fault(Store(Y, (T // 2,), T))
    assert not fault(Store(Y, (T,), T))
    assert not fault(If(T.equal(Const(3)), Store(Y, (Const(0),), T)))


def test_blocks_that_store_to_one_element() -> None:
    assert "race on y in global" in fault(Store(Y, (T,), T), blocks=2)
    assert not fault(Store(Y, (B * 8 + T,), T), blocks=2)
    body = seq([Store(Y, (B * 8 + T,), T), Barrier(), Store(X, (B * 8 + T,), Read(Y, (T,)))])
    assert "race on y in global" in fault(body, blocks=2)  # a barrier is of one block


def test_what_a_loop_carries() -> None:
    swap = seq([Store(S, (T,), Read(X, (T,))), Barrier(), Store(Y, (T,), Read(S, (7 - T,)))])
    again = For(K, 4, "serial", seq([swap, Barrier()]))
    assert not fault(Allocate(S, again))
    assert "race on s in shared" in fault(Allocate(S, For(K, 4, "serial", swap)))
    assert not fault(Allocate(S, For(K, 1, "serial", swap)))


def test_two_halves_in_turn_need_one_barrier() -> None:
    half = (K % 2) * 8
    body = seq([Store(S, (half + T,), Read(X, (T,))), Barrier(),
                Store(Y, (T,), Read(S, (half + 7 - T,)))])  # fmt: skip
    assert not fault(Allocate(S, For(K, 5, "serial", body)))


def test_barriers_that_not_all_threads_reach() -> None:
    body = If(T < 4, seq([Store(S, (T,), T), Barrier()]))
    assert "a barrier where not all threads are: only those with t < 4" in fault(Allocate(S, body))


def test_an_element_that_memory_decides_is_refused_where_it_is_written() -> None:
    index = Read(X, (T,))
    assert "cannot tell which elements of y" in fault(Store(Y, (index,), T))
    assert not fault(Store(Y, (T,), Read(X, (index,))))


def test_what_no_proof_covers_is_listed() -> None:
    assert not fault(Store(Y, (T * 3 % 8,), T))
    assert "race on y in global" in fault(Store(Y, (T * 2 % 8,), T))
    assert not fault(Store(Y, ((B * 8 + T) * 3 % 16,), T), blocks=2)
    assert "race on y in global" in fault(Store(Y, ((B * 8 + T) * 2 % 16,), T), blocks=2)


def test_guards_of_blocks_are_evaluated_only_where_they_matter() -> None:
    stored = Store(S, (T * 3 % 8,), T)
    guarded = Allocate(S, If(B * 8 + T < 12345, stored))
    assert not fault(guarded, blocks=1 << 40)
    alone = Allocate(S, If(B * 8 + T < 1, Store(S, (Const(0),), T)))
    assert not fault(alone, blocks=2)
    two = Allocate(S, If(B * 8 + T < 2, Store(S, (Const(0),), T)))
    assert "race on s in shared: 's[0] = t' by thread 0, and a store by thread 1" in fault(two, 2)
    both = Allocate(S, If((T < 1) & (B * 8 + T < 12345), Store(S, (T * 3 % 8,), T)))
    assert not fault(both, blocks=1 << 40)


def test_more_elements_than_can_be_listed_are_refused() -> None:
    large = Buffer("large", (1 << 40,), "int32")
    assert not fault(Store(large, (B * 8 + T,), T), blocks=1 << 30)
    assert fault(Store(large, (B * B * 8 + T,), T), blocks=1 << 10) == (
        "kernel k: cannot tell whether threads race on large in global: nothing proves their "
        f"elements disjoint, and {1 << 50} are too many to list"
    )
    assert f"and {16 << 30} are too many" in fault(Store(Y, ((B + T) % 16,), T), blocks=1 << 30)


def test_barriers_are_inserted_only_where_they_are_needed() -> None:
    own = Allocate(S, seq([Store(S, (T,), Const(1)), Store(Y, (T,), Read(S, (T,)))]))
    body = seq([Store(S, (T,), Const(1)), Store(Y, (T,), Read(S, (7 - T,)))])
    beside = seq([Store(S, (T,), Const(1)), Store(Y, (T,), Read(S, (T + 1,)))])
    for stmt, count in ((own, 0), (Allocate(S, body), 1), (Allocate(S, beside), 1)):
        found = insert_barriers(kernel(stmt, T, B, X, Y), MODEL)
        verify(found)
        check_threads(found, MODEL)
        assert barriers_of(found) == count


def test_a_barrier_belongs_into_a_launch() -> None:
    with pytest.raises(ScheduleError, match="a barrier outside of any launch"):
        verify(PrimFunc("k", (X,), Barrier()))


# ---- what cannot be a kernel -------------------------------------------------------------------


def refusal(change: object) -> str:
    x = placeholder((12,), "int32", "x")
    p = compute((12,), lambda i: x[i] * 3, "p")
    y = compute((12,), lambda i: p[i] + p[11 - i], "y")
    s = create_schedule(y)
    with pytest.raises(ScheduleError) as error:
        change(s, p, y)  # type: ignore[operator]
        to_launches(lower_kernels(s, [x, y], "f"))
    return str(error.value)


def test_memories_that_threads_do_not_share() -> None:
    def local(s, p, y) -> None:
        s[y].bind(y.axes[0], "threadIdx.x")
        outer, _ = s[p].split(p.axes[0], 4)
        s[p].bind(outer, "threadIdx.x")
        s[p].set_scope("local")

    assert "p in local" in refusal(local)

    def unknown(s, p, y) -> None:
        s[p].set_scope("texture")

    assert "expected a memory of global, shared, local, fragment_a" in refusal(unknown)
    assert "got 'texture'" in refusal(unknown)


def test_limits_of_a_block() -> None:
    x = placeholder((4096,), "float32", "x")
    y = compute((4096,), lambda i: x[i], "y")
    s = create_schedule(y)
    _, inner = s[y].split(y.axes[0], 2048)
    s[y].bind(inner, "threadIdx.x")
    with pytest.raises(ScheduleError, match="expected at most 1024 threads a block, got 2048"):
        to_launches(lower_kernels(s, [x, y], "f"))


@pytest.mark.slow
def test_a_schedule_by_hand_runs_as_kernels() -> None:
    x = placeholder((5, 40), "int32", "x")
    k = reduce_axis(40, "k")
    total = compute((5,), lambda i: sum_of(x[i, k], k), "total")
    y = compute((5,), lambda i: total[i] * 2, "y")
    s = create_schedule(y)
    s[y].bind(y.axes[0], "threadIdx.x")
    s[total].bind(total.axes[0], "blockIdx.x")  # a kernel of its own, through the arena
    kernel = vdla.build_schedule(s, [x, y], "cuda", emulate=True)
    values = RNG.integers(-99, 99, (5, 40)).astype(np.int32)
    [result] = kernel.run(values)
    np.testing.assert_array_equal(result, values.sum(axis=1) * 2)
