"""Any legal schedule computes the same bits: random sequences of primitives on random expressions,
verified after lowering and after every pass, interpreted and run as machine code, compared with
NumPy. An illegal one is refused in one line.

300 cases, or as many as ``VDLA_FUZZ`` says (``make schedules``). Every case has a number, and is
the same each time.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from vdla.compiler.targets.cpu.graph_code import compile_func
from vdla.compiler.targets.cpu.scopes import THREAD_AXES
from vdla.compiler.te.errors import ScheduleError
from vdla.compiler.te.expr import Expr, Var, substitute
from vdla.compiler.te.stage import LOOP_KINDS
from vdla.compiler.tir.ir import For, PrimFunc, Stmt, map_stmt, walk_stmt
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.passes.double_buffer import double_buffer
from vdla.compiler.tir.passes.peel import peel_tails
from vdla.compiler.tir.passes.unroll import unroll_loops
from vdla.compiler.tir.passes.vthread import interleave_vthreads
from vdla.compiler.tir.printer import print_func
from vdla.compiler.tir.verify import verify

from ..workloads import WORKLOADS, Workload, in_main_memory, run
from .random_expressions import random_workload
from .random_schedules import PRIMITIVES, RandomSchedule, random_schedule

CASES = int(os.environ.get("VDLA_FUZZ", "300"))
#: What is wrong with loops that are right by themselves.
OF_LOOPS = ("vectorize innermost loops", "as a loop around it is")
PASSES = (double_buffer, interleave_vthreads, peel_tails, unroll_loops)


def lowered(r: RandomSchedule, seen: Counter[str]) -> PrimFunc | None:
    """The schedule's loop program; None where it is refused. The verifier may refuse no more than
    what it alone can see."""
    func = None
    try:
        func = lower(r.schedule, r.workload.args)
        verify(func)
    except ScheduleError as error:
        seen["refused"] += 1
        assert "\n" not in str(error)
        assert func is None or str(error).endswith(OF_LOOPS), error
        return None
    return func


def backwards(func: PrimFunc) -> PrimFunc:
    """Loops whose iterations may run in any order, from the last to the first."""

    def turn(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For):
            return None
        body = map_stmt(stmt.body, lambda expr: expr, on_stmt=turn)
        if stmt.kind not in ("serial", "unrolled"):
            values: dict[Var, Expr] = {stmt.var: stmt.extent - 1 - stmt.var}
            body = map_stmt(body, lambda expr: substitute(expr, values))
        return replace(stmt, body=body)

    return replace(func, body=map_stmt(func.body, lambda expr: expr, on_stmt=turn))


def same(workload: Workload, func: PrimFunc, as_machine_code: bool) -> None:
    """The program, in any order that it allows and after all passes, computes what NumPy does."""
    arrays = workload.arrays()
    expected = workload.numpy(*arrays)
    np.testing.assert_array_equal(run(backwards(func), arrays), expected)
    for apply in PASSES:
        func = apply(func)
        verify(func)
    np.testing.assert_array_equal(run(func, arrays), expected)
    if as_machine_code:
        result = np.full(expected.shape, 85, expected.dtype)
        compile_func(in_main_memory(func))(*arrays, result)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.slow
def test_every_schedule_computes_the_same() -> None:
    seen: Counter[str] = Counter()
    for seed in range(CASES):
        try:
            check(Random(seed), seen)
        except Exception as error:
            error.add_note(f"case {seed}")
            raise
    assert seen["refused"] < CASES * 0.6
    assert CASES < 300 or not {*PRIMITIVES, *LOOP_KINDS, *THREAD_AXES} - set(seen)


def check(random: Random, seen: Counter[str]) -> None:
    """One case; ``seen`` counts what was in it."""
    make = random.choice([*WORKLOADS.values(), *[None] * 12])
    workload = make() if make else random_workload(random)
    r = random_schedule(random, workload)
    func = lowered(r, seen)
    if func is None:
        return
    seen.update({*r.applied, *(s.kind for s in walk_stmt(func.body) if isinstance(s, For))})
    try:
        same(workload, func, as_machine_code=random.random() < 0.5)
    except Exception as error:
        error.add_note(print_func(func))
        raise
