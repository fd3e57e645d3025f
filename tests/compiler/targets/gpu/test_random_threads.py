"""Any legal schedule computes the same bits as threads: random schedules of ``tests/compiler/te``
with loops bound to blocks and threads, as kernels, in three orders of threads.

60 cases, or as many as ``VDLA_FUZZ`` says (``make gpu-emulated``).
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import numpy as np
import pytest
from vdla.compiler.targets.gpu.dialects import CUDA
from vdla.compiler.targets.gpu.kernels import lower_kernels, to_launches
from vdla.compiler.targets.gpu.scopes import BLOCK, GRID, SCOPES
from vdla.compiler.targets.gpu.text import print_module
from vdla.compiler.te.errors import ScheduleError
from vdla.compiler.te.schedule import Schedule
from vdla.compiler.te.tensor import Tensor
from vdla.compiler.tir.ir import Allocate, Barrier, Launch, PrimFunc, walk_stmt
from vdla.compiler.tir.printer import print_func
from vdla.runtime.gpu.emulated import ORDERS, load_emulated

from ...te.random_expressions import random_workload
from ...te.random_schedules import random_schedule
from ...workloads import WORKLOADS, Workload
from .emulating import Emulated

CASES = int(os.environ.get("VDLA_FUZZ", "60"))
#: Programs that are compiled together.
TOGETHER = 60


def bind_loops(random: Random, schedule: Schedule, output: Tensor) -> None:
    """Bind some data loops, outermost ones mostly to blocks, and choose memories."""
    for stage in schedule.stages:
        if stage.scope not in SCOPES or (stage.attach is None and random.random() < 0.8):
            stage.set_scope("global")
        if stage.attach is not None and random.random() < 0.7:
            stage.set_scope(random.choice(("shared", "shared", "local", "global")))
        free = [a for a in stage.leaves if a.kind == "data" and a not in stage.intrinsics
                and stage.kinds.get(a, "serial") in ("serial", "parallel")]  # fmt: skip
        for axis in free:
            names = [n for n in (*BLOCK, *([] if stage.attach else GRID))
                     if n not in stage.kinds.values()]  # fmt: skip
            if names and random.random() < (0.4 if stage.tensor is output else 0.6):
                stage.bind(axis, random.choice(names))


def random_threads(seed: int, seen: Counter[str]) -> tuple[Workload, PrimFunc] | None:
    """A workload and its launches; None where the schedule is refused in one line."""
    random = Random(seed)
    make = random.choice([*WORKLOADS.values(), *[None] * 12])
    workload = make() if make else random_workload(random)
    r = random_schedule(random, workload)
    bind_loops(random, r.schedule, workload.output)
    try:
        func = to_launches(lower_kernels(r.schedule, workload.args, f"case{seed}"))
    except ScheduleError as error:
        assert "\n" not in str(error)
        seen["race" if "race on" in str(error) else "refused"] += 1
        return None
    return workload, func


@pytest.mark.slow
def test_every_schedule_computes_the_same_as_threads() -> None:
    seen: Counter[str] = Counter()
    for first in range(0, CASES, TOGETHER):
        seeds = range(first, min(first + TOGETHER, CASES))
        found = {n: made for n in seeds if (made := random_threads(n, seen)) is not None}
        programs = {n: Emulated.of(func) for n, (_, func) in found.items()}
        texts = [k.text for p in programs.values() for k in p.kernels]
        code = load_emulated(print_module(texts, CUDA), ["-O1"])
        for number, (workload, func) in found.items():
            stmts = [*walk_stmt(func.body)]
            seen["legal"] += 1
            seen["threads"] += any(isinstance(s, Launch) and s.block for s in stmts)
            seen["barriers"] += any(isinstance(s, Barrier) for s in stmts)
            seen["shared"] += any(
                isinstance(s, Allocate) and s.buffer.scope == "shared" for s in stmts
            )
            expected = workload.numpy(*workload.arrays())
            for order in ORDERS:
                result = programs[number].run(code, workload.arrays(), order)
                try:
                    np.testing.assert_array_equal(result, expected)
                except AssertionError as error:
                    error.add_note(f"case {number}, {order}\n{print_func(func)}")
                    raise
    print(dict(seen))
    assert seen["legal"] > CASES * 0.25
    assert seen["threads"] > CASES * 0.2
    assert seen["shared"] and seen["barriers"]
