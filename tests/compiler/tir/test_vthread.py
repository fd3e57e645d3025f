"""Virtual threads become one stream in which they take turns, with buffers of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from vdla.compiler.te.expr import Const, Read, Var
from vdla.compiler.tir.ir import Allocate, Buffer, For, PrimFunc, Store, seq, walk_stmt
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.passes.vthread import interleave_vthreads
from vdla.compiler.tir.printer import print_func
from vdla.compiler.tir.verify import verify

from ..workloads import Workload, conv, run


def threaded(threads: int, rows: int = 1) -> tuple[Workload, PrimFunc]:
    """A convolution whose rows alternate between virtual threads, with the reduction over input
    channels outside the tile.
    """
    w = conv(stride=1)
    s = w.schedule()
    pad, acc = w.stages["pad"], w.stages["acc"]
    o, i, j = w.output.axes
    outer, inner = s[w.output].split(i, rows)
    turn, thread = s[w.output].split(outer, threads)
    s[w.output].reorder(turn, thread, o, inner, j)
    s[w.output].vthread(thread)
    s[acc].compute_at(s[w.output], thread)
    c, u, v = acc.reduce_axes
    s[acc].reorder(c, *acc.axes, u, v)
    s[pad].compute_at(s[acc], c)
    return w, lower(s, w.args)


def test_statements_take_turns(golden: Callable[[str, str], None]) -> None:
    _, func = threaded(2, rows=2)
    golden("vthread_before.txt", print_func(func))
    golden("vthread_after.txt", print_func(interleave_vthreads(func)))


def test_same_result_for_any_number_of_threads() -> None:
    """5 rows on 2, 3 or 4 threads leave tails."""
    for threads in (1, 2, 3, 4, 5):
        workload, func = threaded(threads)
        verify(func)
        spread = interleave_vthreads(func)
        verify(spread)
        arrays = workload.arrays()
        np.testing.assert_array_equal(run(spread, arrays), workload.numpy(*arrays))
        assert not any(s.kind == "vthread" for s in walk_stmt(spread.body) if isinstance(s, For))


def test_every_thread_has_buffers_of_its_own() -> None:
    _, func = threaded(2)
    spread = interleave_vthreads(func)
    shapes = {
        s.buffer.name: s.buffer.shape for s in walk_stmt(spread.body) if isinstance(s, Allocate)
    }
    assert {name: shape[0] for name, shape in shapes.items()} == {"acc": 2, "pad": 2}


def test_threads_use_a_memory_in_turn() -> None:
    """Where one unit alone uses a memory, what lives within a turn needs no copies. The sums of
    ``acc`` live longer, because the threads take turns in the loop over input channels."""
    workload, func = threaded(2)
    spread = interleave_vthreads(func, serial=("global",))
    verify(spread)
    found = [s.buffer for s in walk_stmt(spread.body) if isinstance(s, Allocate)]
    own = [s.buffer for s in walk_stmt(func.body) if isinstance(s, Allocate)]
    sizes = {b.name: b.size_bytes for b in own}
    assert {b.name: b.size_bytes // sizes[b.name] for b in found} == {"acc": 2, "pad": 1}
    arrays = workload.arrays()
    np.testing.assert_array_equal(run(spread, arrays), workload.numpy(*arrays))


def test_what_threads_use_in_turn_is_allocated_around_its_uses() -> None:
    """An allocation around a shared loop that does not use the buffer moves behind the loop."""
    x, y = Buffer("x", (4,), "float32"), Buffer("y", (4,), "float32")
    late, sums = Buffer("late", (1,), "float32"), Buffer("sums", (1,), "float32", "other")
    thread, turn, zero = Var("thread"), Var("turn"), (Const(0),)
    add = Store(sums, zero, Read(sums, zero) + Read(x, (turn,)))
    statements = [
        Store(sums, zero, Const(0.0, "float32")), For(turn, 2, "serial", seq([add, add])),
        Store(late, zero, Read(sums, zero)), Store(y, (thread,), Read(late, zero)),
    ]  # fmt: skip
    body = Allocate(late, Allocate(sums, seq(statements)))
    func = PrimFunc("f", (x, y), For(thread, 2, "vthread", body))
    spread = interleave_vthreads(func, serial=("global",))
    verify(spread)
    buffers = [s.buffer for s in walk_stmt(spread.body) if isinstance(s, Allocate)]
    assert {b.name: b.shape for b in buffers} == {"sums": (2, 1), "late": (1,)}


def test_threads_take_turns_in_shared_loops() -> None:
    """Each one pads and accumulates for an input channel before the other one does."""
    _, func = threaded(2)
    order = [
        (s.buffer.name, s.indices[0])
        for s in walk_stmt(interleave_vthreads(func).body)
        if isinstance(s, Store) and s.buffer.name in ("pad", "acc")
    ]
    threads = [index.value for _, index in order]
    assert threads == [0, 1, 0, 0, 1, 1]
    assert [name for name, _ in order] == ["acc"] * 2 + ["pad", "acc"] * 2
