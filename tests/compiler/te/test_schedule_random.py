"""Any legal schedule computes the same bits: random sequences of primitives, verified after
lowering and after every pass, interpreted and run as machine code, compared with NumPy.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st
from vdla.compiler.codegen.cpu import compile_func
from vdla.compiler.te.schedule import Schedule, Stage
from vdla.compiler.te.tensor import IterVar
from vdla.compiler.tir.ir import For, walk_stmt
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.passes.double_buffer import double_buffer
from vdla.compiler.tir.passes.peel import peel_tails
from vdla.compiler.tir.passes.unroll import unroll_loops
from vdla.compiler.tir.passes.vthread import interleave_vthreads
from vdla.compiler.tir.printer import print_func
from vdla.compiler.tir.verify import verify

from ..workloads import WORKLOADS, Workload, run

PASSES = (double_buffer, interleave_vthreads, peel_tails, unroll_loops)


def computed(schedule: Schedule) -> list[Stage]:
    return [s for s in schedule.stages if s.body is not None]


def add_caches(draw: st.DrawFn, workload: Workload, schedule: Schedule) -> None:
    for tensor in [workload.output, *workload.stages.values()]:
        if draw(st.integers(0, 3)) == 0:
            schedule.cache_write(tensor, draw(st.sampled_from(("out", "acc"))))
    for tensor in [*workload.inputs, *workload.stages.values()]:
        readers = [
            s.tensor for s in computed(schedule) if any(r.source is tensor for r in s.reads())
        ]
        if readers and draw(st.integers(0, 2)) == 0:
            size = draw(st.integers(1, len(readers)))
            schedule.cache_read(tensor, draw(st.sampled_from(("inp", "wgt"))), readers[:size])


def change_loops(draw: st.DrawFn, stage: Stage) -> None:
    for _ in range(draw(st.integers(0, 4))):
        axis = draw(st.sampled_from(stage.leaves))
        match draw(st.sampled_from(("split", "nparts", "fuse", "reorder"))):
            case "split":
                stage.split(axis, draw(st.integers(1, 5)))
            case "nparts":
                stage.split(axis, nparts=draw(st.integers(1, 4)))
            case "fuse":
                pairs = [
                    (a, b)
                    for a, b in zip(stage.leaves, stage.leaves[1:], strict=False)
                    if a.kind == b.kind
                ]
                if pairs:
                    stage.fuse(*draw(st.sampled_from(pairs)))
            case "reorder":
                stage.reorder(*draw(st.permutations(stage.leaves)))


def surrounding(stage: Stage) -> dict[Stage, int]:
    """Stages around a stage (itself included) and how many of their loops are outside it."""
    around = {stage: len(stage.leaves)}
    while stage.attach is not None:
        stage, axis = stage.attach
        around[stage] = stage.leaves.index(axis) + 1
    return around


def places(schedule: Schedule, stage: Stage) -> list[tuple[Stage, IterVar]]:
    """Loops that all (not inlined) readers are inside of."""
    readers = reading(schedule, stage)
    if not readers:
        return []
    common = surrounding(readers[0])
    for reader in readers[1:]:
        around = surrounding(reader)
        common = {s: min(n, around[s]) for s, n in common.items() if s in around}
    return [(s, s.leaves[depth]) for s, n in common.items() for depth in range(n)]


def reading(schedule: Schedule, stage: Stage) -> list[Stage]:
    """Stages that read a stage, those that read it through inlined ones included."""
    readers: list[Stage] = []
    for s in computed(schedule):
        if any(r.source is stage.tensor for r in s.reads()):
            readers.extend(reading(schedule, s) if s.inlined else [s])
    return readers


def choose_places(draw: st.DrawFn, schedule: Schedule, workload: Workload) -> None:
    """Consumers first, so that producers see where they are."""
    for stage in reversed(computed(schedule)):
        if stage.tensor is workload.output:
            continue
        choice = draw(st.sampled_from(("root", "inline", "at", "at", "at")))
        if choice == "inline" and not stage.reduce_axes and not stage.tensor.reduce_axes:
            stage.compute_inline()
        options = places(schedule, stage)
        if choice == "at" and options:
            stage.compute_at(*draw(st.sampled_from(options)))
            if draw(st.booleans()):
                stage.double_buffer()


def choose_kinds(draw: st.DrawFn, schedule: Schedule) -> None:
    attached = {s.attach[1] for s in computed(schedule) if s.attach is not None}
    for stage in computed(schedule):
        for axis in stage.leaves:
            kinds = ["serial", "serial", "unroll"]
            if axis.kind == "data":
                kinds += ["parallel", "vthread"]
            if axis is stage.leaves[-1] and axis.kind == "data" and axis not in attached:
                kinds += ["vectorize"] * 3
            kind = draw(st.sampled_from(kinds))
            if kind != "serial":
                getattr(stage, kind)(axis)


def random_schedule(draw: st.DrawFn, workload: Workload) -> Schedule:
    schedule = workload.schedule()
    add_caches(draw, workload, schedule)
    for stage in computed(schedule):
        change_loops(draw, stage)
    choose_places(draw, schedule, workload)
    choose_kinds(draw, schedule)
    return schedule


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_schedule_computes_the_same(name: str) -> None:
    loops: set[str] = set()

    @settings(max_examples=50, derandomize=True, phases=[Phase.explicit, Phase.generate])
    @given(st.data())
    def check(data: st.DataObject) -> None:
        workload = WORKLOADS[name]()
        func = lower(random_schedule(data.draw, workload), workload.args)
        note(print_func(func))
        verify(func)
        loops.update(s.kind for s in walk_stmt(func.body) if isinstance(s, For))
        for apply in PASSES:
            func = apply(func)
            verify(func)
        arrays = workload.arrays()
        expected = workload.numpy(*arrays)
        np.testing.assert_array_equal(run(func, arrays), expected)
        if data.draw(st.booleans(), "as machine code"):
            result = np.full_like(expected, 85)
            compile_func(func)(*arrays, result)
            np.testing.assert_array_equal(result, expected)

    check()
    assert loops >= {"serial", "parallel", "vthread", "vectorized"}
