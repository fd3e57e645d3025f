"""Each schedule primitive: the loops that it makes, as golden text, and the same result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from vdla.compiler.targets.cpu.graph_code import compile_func
from vdla.compiler.te.schedule import Schedule
from vdla.compiler.tir.printer import print_func

from ..workloads import (
    Workload,
    blur,
    check,
    conv,
    diamond,
    in_main_memory,
    matmul,
    mirror,
    stretch,
)

PRIMITIVES: dict[str, tuple[Callable[[], Workload], Callable[[Workload, Schedule], None]]] = {}


def primitive(workload: Callable[[], Workload]):
    """Register a use of a primitive under its function's name."""

    def register(use: Callable[[Workload, Schedule], None]) -> None:
        PRIMITIVES[use.__name__] = (workload, use)

    return register


@primitive(matmul)
def default(w: Workload, s: Schedule) -> None:
    pass


@primitive(matmul)
def split_factor_divides(w: Workload, s: Schedule) -> None:
    s[w.output].split(w.output.axes[1], 3)


@primitive(matmul)
def split_factor_leaves_tail(w: Workload, s: Schedule) -> None:
    s[w.output].split(w.output.axes[0], 2)


@primitive(matmul)
def split_nparts(w: Workload, s: Schedule) -> None:
    s[w.output].split(w.output.axes[1], nparts=2)


@primitive(matmul)
def split_reduction(w: Workload, s: Schedule) -> None:
    s[w.output].split(w.output.reduce_axes[0], 4)


@primitive(matmul)
def fuse(w: Workload, s: Schedule) -> None:
    s[w.output].fuse(*w.output.axes)


@primitive(matmul)
def reorder_reduction_outside(w: Workload, s: Schedule) -> None:
    i, _ = w.output.axes
    s[w.output].reorder(w.output.reduce_axes[0], i)


@primitive(matmul)
def tile(w: Workload, s: Schedule) -> None:
    s[w.output].tile(*w.output.axes, 4, 3)


@primitive(blur)
def unroll(w: Workload, s: Schedule) -> None:
    s[w.output].unroll(w.output.axes[0])


@primitive(blur)
def vectorize(w: Workload, s: Schedule) -> None:
    _, inner = s[w.output].split(w.output.axes[0], 5)
    s[w.output].vectorize(inner)


@primitive(blur)
def parallel(w: Workload, s: Schedule) -> None:
    s[w.output].parallel(w.output.axes[0])


@primitive(blur)
def vthread(w: Workload, s: Schedule) -> None:
    _, thread = s[w.output].split(w.output.axes[0], 2)
    s[w.output].vthread(thread)
    for name in ("c", "b"):
        s[w.stages[name]].compute_at(s[w.output], thread)


@primitive(blur)
def double_buffer(w: Workload, s: Schedule) -> None:
    outer, _ = s[w.output].split(w.output.axes[0], 4)
    for name in ("c", "b"):
        s[w.stages[name]].compute_at(s[w.output], outer)
    s[w.stages["b"]].double_buffer()


@primitive(blur)
def pragma(w: Workload, s: Schedule) -> None:
    s[w.output].pragma(w.output.axes[0], "note", 3)


@primitive(blur)
def compute_at(w: Workload, s: Schedule) -> None:
    outer, _ = s[w.output].split(w.output.axes[0], 4)
    for name in ("c", "b"):
        s[w.stages[name]].compute_at(s[w.output], outer)


@primitive(conv)
def compute_at_padding_inside_reduction(w: Workload, s: Schedule) -> None:
    pad, acc = w.stages["pad"], w.stages["acc"]
    o, i, j = acc.axes
    c, u, v = acc.reduce_axes
    s[acc].reorder(c, i, o, j, u, v)
    s[pad].compute_at(s[acc], i)


@primitive(diamond)
def compute_at_union_of_two_readers(w: Workload, s: Schedule) -> None:
    i, j = w.output.axes
    for name in ("c", "d"):
        s[w.stages[name]].compute_at(s[w.output], j)
    s[w.stages["b"]].compute_at(s[w.output], i)


@primitive(stretch)
def compute_at_of_quotients(w: Workload, s: Schedule) -> None:
    """Four elements need three, for the first is the second of a pair."""
    outer, _ = s[w.output].split(w.output.axes[0], 4)
    s[w.stages["b"]].compute_at(s[w.output], outer)


@primitive(stretch)
def compute_at_of_quotients_that_begin_anywhere(w: Workload, s: Schedule) -> None:
    outer, _ = s[w.output].split(w.output.axes[0], 3)
    s[w.stages["b"]].compute_at(s[w.output], outer)


@primitive(stretch)
def split_of_a_dividend_leaves_tail(w: Workload, s: Schedule) -> None:
    s[w.output].split(w.output.axes[0], 8)


@primitive(mirror)
def compute_at_backwards(w: Workload, s: Schedule) -> None:
    """A part of the result needs the part at the other end."""
    outer, _ = s[w.output].split(w.output.axes[0], 3)
    s[w.stages["b"]].compute_at(s[w.output], outer)


@primitive(blur)
def compute_at_then_root(w: Workload, s: Schedule) -> None:
    s[w.stages["c"]].compute_at(s[w.output], w.output.axes[0])
    s[w.stages["c"]].compute_root()


@primitive(blur)
def compute_inline(w: Workload, s: Schedule) -> None:
    for name in ("b", "c"):
        s[w.stages[name]].compute_inline()


@primitive(blur)
def cache_read(w: Workload, s: Schedule) -> None:
    copy = s.cache_read(w.inputs[0], "inp", [w.stages["b"]])
    s[copy].compute_at(s[w.stages["b"]], w.stages["b"].axes[0])


@primitive(conv)
def cache_read_of_a_border(w: Workload, s: Schedule) -> None:
    """Rows of the copy outside the image are neither read nor written."""
    pad = w.stages["pad"]
    copy = s.cache_read(w.inputs[0], "inp", [pad])
    outer, _ = s[pad].split(pad.axes[1], 3)
    s[copy].compute_at(s[pad], outer)


@primitive(diamond)
def compute_at_inside_a_fused_loop(w: Workload, s: Schedule) -> None:
    """A part of a fused loop crosses rows: all of them are needed."""
    fused = s[w.output].fuse(*w.output.axes)
    outer, inner = s[w.output].split(fused, 5)
    s[w.stages["c"]].compute_at(s[w.output], outer)
    s[w.stages["d"]].compute_at(s[w.output], inner)


@primitive(matmul)
def cache_write(w: Workload, s: Schedule) -> None:
    local = s.cache_write(w.output, "acc")
    s[local].compute_at(s[w.output], w.output.axes[0])


@primitive(blur)
def set_scope(w: Workload, s: Schedule) -> None:
    s[w.stages["b"]].set_scope("tmp")


@primitive(matmul)
def split_nparts_leaves_tail(w: Workload, s: Schedule) -> None:
    s[w.output].split(w.output.axes[0], nparts=3)


@primitive(blur)
def bind(w: Workload, s: Schedule) -> None:
    block, thread = s[w.output].split(w.output.axes[0], 4)
    s[w.output].bind(block, "blockIdx.x")
    s[w.output].bind(thread, "threadIdx.x")


@primitive(matmul)
def rfactor(w: Workload, s: Schedule) -> None:
    """Seven products in parts of three: the last part is short."""
    _, inner = s[w.output].split(w.output.reduce_axes[0], 3)
    s.rfactor(w.output, inner)


@primitive(conv)
def rfactor_inside(w: Workload, s: Schedule) -> None:
    """Of a fused reduction loop, with the new axis innermost, and the parts where they are read."""
    stage = s[w.stages["acc"]]
    _, u, v = w.stages["acc"].reduce_axes
    outer, _ = stage.split(stage.fuse(u, v), nparts=3)
    partial = s.rfactor(w.stages["acc"], outer, factor_axis=3)
    s[partial].compute_at(s[w.stages["acc"]], w.stages["acc"].axes[1])


@primitive(matmul)
def prefetch(w: Workload, s: Schedule) -> None:
    outer, _ = s[w.output].split(w.output.axes[0], 2)
    s[w.output].prefetch(w.inputs[0], outer, 2)


@primitive(diamond)
def prefetch_of_a_buffer(w: Workload, s: Schedule) -> None:
    """Rows of another stage, by the place of its buffer."""
    i, j = w.output.axes
    for name in ("b", "d", "c"):
        s[w.stages[name]].compute_at(s[w.output], i)
    s[w.output].prefetch(w.stages["c"], j)


@primitive(diamond)
def storage_align(w: Workload, s: Schedule) -> None:
    s[w.stages["b"]].storage_align(w.stages["b"].axes[0], 16, 1)


@pytest.mark.fast(7)
@pytest.mark.parametrize("name", PRIMITIVES)
def test_primitive(name: str, golden: Callable[[str, str], None]) -> None:
    make, use = PRIMITIVES[name]
    workload = make()
    schedule = workload.schedule()
    use(workload, schedule)
    func = check(workload, schedule)
    arrays = workload.arrays()
    expected = workload.numpy(*arrays)
    result = np.full(expected.shape, 85, expected.dtype)
    compile_func(in_main_memory(func))(*arrays, result)
    np.testing.assert_array_equal(result, expected)
    golden(f"{name}.txt", print_func(func))


def test_stage_buffers_hold_only_what_the_consumer_needs() -> None:
    workload = blur()
    schedule = workload.schedule()
    outer, _ = schedule[workload.output].split(workload.output.axes[0], 4)
    for name in ("c", "b"):
        schedule[workload.stages[name]].compute_at(schedule[workload.output], outer)
    text = print_func(check(workload, schedule))
    assert "allocate c: int32[4]" in text and "allocate b: int32[6]" in text


def test_one_description_has_many_schedules() -> None:
    """Primitives change stages, never tensors."""
    workload = blur()
    before = print_func(check(workload, workload.schedule()))
    schedule = workload.schedule()
    compute_inline_all(workload, schedule)
    check(workload, schedule)
    assert print_func(check(workload, workload.schedule())) == before


def compute_inline_all(w: Workload, s: Schedule) -> None:
    for tensor in w.stages.values():
        s[tensor].compute_inline()
