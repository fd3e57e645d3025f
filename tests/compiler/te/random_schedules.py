"""Random sequences of primitives: any of them at any time, most of them where they are legal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from vdla.compiler.targets.cpu.scopes import THREAD_AXES
from vdla.compiler.te.errors import ScheduleError
from vdla.compiler.te.expr import Read
from vdla.compiler.te.intrinsic import TensorIntrin
from vdla.compiler.te.schedule import Schedule
from vdla.compiler.te.stage import Stage
from vdla.compiler.te.tensor import IterVar, compute, placeholder

from ..workloads import Workload

#: Names of memories; the last one is none.
MEMORIES = ("global", "inp", "wgt", "par", "acc", "tmp", "shared", "on chip")


@dataclass
class RandomSchedule:
    """A schedule under way; ``applied`` counts the primitives that it took, ``care`` is the share
    of choices that are meant to be legal, ``ever`` has all stages that there were.
    """

    random: Random
    workload: Workload
    schedule: Schedule
    care: float
    applied: Counter[str] = field(default_factory=Counter)
    ever: dict[Stage, None] = field(default_factory=dict)

    def choice(self, options: Sequence[Any]) -> Any:
        return self.random.choice(list(options))

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def likely(self) -> bool:
        return self.random.random() < self.care

    @property
    def computed(self) -> list[Stage]:
        return [s for s in self.schedule.stages if s.body is not None]

    def stage(self) -> Stage:
        """A stage, at times one that was replaced or a placeholder's."""
        self.ever |= dict.fromkeys(self.schedule.stages)
        return self.choice(self.computed if self.likely() else self.ever)

    def inner_stage(self) -> Stage:
        """A stage, not the result's."""
        found = [s for s in self.computed if s.tensor is not self.workload.output]
        return self.choice(found) if found and self.likely() else self.stage()

    def loop(self, stage: Stage, fits: Callable[[IterVar], bool] = lambda axis: True) -> IterVar:
        """A loop of the stage, mostly one that fits, or one of another, or one no more."""
        found = [a for a in stage.leaves if fits(a)]
        if found and self.likely():
            return self.choice(found)
        other = self.stage()
        axes = (*stage.leaves, *stage.tensor.axes, *other.leaves, *self.workload.output.axes)
        return self.choice(axes)

    def free_loop(self, stage: Stage) -> IterVar:
        """A loop at which nothing is computed."""
        taken = {s.attach[1] for s in self.computed if s.attach is not None}
        return self.loop(stage, lambda axis: axis not in taken)

    def readers(self, stage: Stage) -> list[Stage]:
        """Stages that read a stage, those that read it through inlined ones included."""
        found: list[Stage] = []
        for s in self.computed:
            if any(r.source is stage.tensor for r in s.reads()):
                found.extend(self.readers(s) if s.inlined else [s])
        return found

    def places(self, stage: Stage) -> list[tuple[Stage, IterVar]]:
        """Loops that all (not inlined) readers are inside of."""
        readers = self.readers(stage)
        if not readers:
            return []
        common = surrounding(readers[0])
        for reader in readers[1:]:
            around = surrounding(reader)
            common = {s: min(n, around[s]) for s, n in common.items() if s in around}
        return [(s, s.leaves[depth]) for s, n in common.items() for depth in range(n)]


def surrounding(stage: Stage) -> dict[Stage, int]:
    """Stages around a stage (itself included) and how many of their loops are outside it."""
    around = {stage: len(stage.leaves)}
    while stage.attach is not None and stage.attach[0] not in around:
        stage, axis = stage.attach
        around[stage] = stage.leaves.index(axis) + 1 if axis in stage.leaves else 0
    return around


def state(schedule: Schedule) -> list[dict[str, Any]]:
    """All that primitives can change; what a stage remembers of its expression is none of it."""
    return [
        {
            n: v.copy() if isinstance(v, list | dict) else v
            for n, v in vars(stage).items()
            if n != "_reads"
        }
        for stage in schedule.stages
    ]


def is_data(axis: IterVar) -> bool:
    return axis.kind == "data"


# ---- primitives ----


def split(r: RandomSchedule) -> None:
    stage = r.stage()
    axis = r.free_loop(stage)
    if r.integer(0, 1):
        stage.split(axis, r.choice((1, 2, 3, 4, 4, 5, 8, 16)))
    else:
        stage.split(axis, nparts=r.integer(1, 5))


def tile(r: RandomSchedule) -> None:
    stage = r.stage()
    stage.tile(r.free_loop(stage), r.free_loop(stage), r.integer(1, 4), r.integer(1, 4))


def fuse(r: RandomSchedule) -> None:
    stage = r.stage()
    pairs = [
        (a, b) for a, b in zip(stage.leaves, stage.leaves[1:], strict=False) if a.kind == b.kind
    ]
    if pairs and r.likely():
        stage.fuse(*r.choice(pairs))
    else:
        stage.fuse(r.loop(stage), r.loop(stage))


def reorder(r: RandomSchedule) -> None:
    stage = r.stage()
    kept = 1 if stage.tensor.state is not None and r.likely() else 0
    loops = stage.leaves[kept:]
    stage.reorder(*r.random.sample(loops, r.integer(0, len(loops))))


def unroll(r: RandomSchedule) -> None:
    stage = r.stage()
    stage.unroll(r.loop(stage))


def vectorize(r: RandomSchedule) -> None:
    stage = r.stage()
    stage.vectorize(r.loop(stage, lambda axis: is_data(axis) and axis is stage.leaves[-1]))


def parallel(r: RandomSchedule) -> None:
    stage = r.stage()
    stage.parallel(r.loop(stage, is_data))


def vthread(r: RandomSchedule) -> None:
    stage = r.stage()
    stage.vthread(r.loop(stage, is_data))


def bind(r: RandomSchedule) -> None:
    stage = r.stage()
    stage.bind(r.loop(stage, is_data), r.choice(THREAD_AXES))


def pragma(r: RandomSchedule) -> None:
    stage = r.stage()
    stage.pragma(r.loop(stage), "keep_loop")


def prefetch(r: RandomSchedule) -> None:
    stage = r.stage()
    tensors = [read.source for read in stage.reads()]
    stage.prefetch(r.choice(tensors or r.workload.inputs), r.loop(stage), r.integer(1, 2))


def tensorize(r: RandomSchedule) -> None:
    """Copies of a row, mostly where a stage is one."""
    copies = [s for s in r.computed if isinstance(s.body, Read)]
    stage = r.choice(copies) if copies and r.likely() else r.stage()
    axis = r.loop(stage, lambda axis: axis is stage.leaves[-1])
    row = placeholder((axis.extent,), stage.tensor.dtype, "row")
    stage.tensorize(axis, TensorIntrin("copy", compute(row.shape, lambda i: row[i], "copied")))


def compute_at(r: RandomSchedule) -> None:
    stage = r.inner_stage()
    options = r.places(stage)
    if options and r.likely():
        stage.compute_at(*r.choice(options))
    else:
        consumer = r.stage()
        stage.compute_at(consumer, r.loop(consumer))


def compute_inline(r: RandomSchedule) -> None:
    r.inner_stage().compute_inline()


def compute_root(r: RandomSchedule) -> None:
    r.stage().compute_root()


def double_buffer(r: RandomSchedule) -> None:
    attached = [s for s in r.computed if s.attach is not None]
    (r.choice(attached) if attached else r.stage()).double_buffer()


def set_scope(r: RandomSchedule) -> None:
    r.stage().set_scope(r.choice(MEMORIES))


def storage_align(r: RandomSchedule) -> None:
    stage = r.inner_stage()
    factor = r.integer(1, 8)
    stage.storage_align(
        r.loop(stage, lambda a: a in stage.tensor.axes), factor, r.integer(0, factor)
    )


def cache_read(r: RandomSchedule) -> None:
    tensor = r.choice([*r.workload.inputs, *(s.tensor for s in r.computed)])
    readers = [s.tensor for s in r.computed if any(x.source is tensor for x in s.reads())]
    count = r.integer(1, max(1, len(readers)))
    r.schedule.cache_read(tensor, r.choice(("global", "inp", "wgt")), readers[:count])


def cache_write(r: RandomSchedule) -> None:
    r.schedule.cache_write(r.stage().tensor, r.choice(("global", "acc")))


def split_reduction(r: RandomSchedule) -> None:
    reducing = [s for s in r.computed if s.reduce_axes]
    stage = r.choice(reducing) if reducing else r.stage()
    stage.split(r.loop(stage, lambda axis: not is_data(axis)), r.integer(2, 3))


def rfactor(r: RandomSchedule) -> None:
    reducing = [s for s in r.computed if s.reduce_axes]
    stage = r.choice(reducing) if reducing else r.stage()
    axis = r.loop(stage, lambda axis: not is_data(axis))
    r.schedule.rfactor(stage.tensor, axis, r.integer(0, len(stage.tensor.axes)))


#: Those that change what there is to schedule come early, kinds of loops late: most of them forbid
#: what changes the loops later.
EARLY: tuple[Callable[[RandomSchedule], Any], ...] = (
    cache_read, cache_write, split_reduction, split_reduction, rfactor, rfactor, reorder, fuse,
)  # fmt: skip
LOOPS = (
    split, split, split, tile, fuse, reorder, reorder, compute_at, compute_at, compute_at,
    compute_at, compute_inline, compute_root, rfactor, cache_read,
)  # fmt: skip
LATE = (
    unroll, vectorize, vectorize, parallel, vthread, bind, pragma, prefetch, tensorize,
    double_buffer, set_scope, storage_align, storage_align,
)  # fmt: skip
PRIMITIVES = {primitive.__name__ for primitive in (*EARLY, *LOOPS, *LATE)}


def random_schedule(random: Random, workload: Workload) -> RandomSchedule:
    """A schedule of the workload's output; what it refuses is refused in one line, and changes
    nothing."""
    care = random.choice((0.99, 0.97, 0.97, 0.6))
    r = RandomSchedule(random, workload, workload.schedule(), care)
    for primitives, most in (EARLY, 5), (LOOPS, 12), (LATE, 8):
        for _ in range(r.integer(0, most)):
            primitive = r.choice(primitives if r.likely() else (*EARLY, *LOOPS, *LATE))
            before = state(r.schedule)
            try:
                primitive(r)
            except ScheduleError as error:
                assert "\n" not in str(error)
                assert state(r.schedule) == before, error
            else:
                r.applied[primitive.__name__] += 1
    return r
