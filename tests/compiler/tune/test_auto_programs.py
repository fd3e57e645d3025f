"""Schedules by rules compute the right bits, however their open steps are decided: random
expressions and operators with random decisions, replayed from their logs, interpreted and run as
machine code, compared with NumPy.

200 cases, or as many as ``VDLA_FUZZ`` says (``make schedules``). Every case has a number, and is
the same each time.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import numpy as np
import pytest
from vdla.compiler.targets.cpu.graph_code import compile_func
from vdla.compiler.te.errors import ScheduleError
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.steps import from_text, replay, to_text
from vdla.compiler.te.tensor import compute, max_of, placeholder, reduce_axis, sum_of
from vdla.compiler.tir.ir import PrimFunc
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.printer import print_func
from vdla.compiler.tir.verify import verify
from vdla.compiler.topi import convolution
from vdla.compiler.tune.auto.builder import Kind, Program, at_random
from vdla.compiler.tune.auto.rules import processor_program, reads_in_place

from ..te.random_expressions import random_workload
from ..workloads import WORKLOADS, Workload, in_main_memory, run

CASES = int(os.environ.get("VDLA_FUZZ", "200"))


def product(rows: int, inner: int, columns: int) -> Workload:
    """A matrix product with a sum and a bound behind it, on floats that are small integers."""
    x = placeholder((rows, inner), "float32", "x")
    w = placeholder((inner, columns), "float32", "w")
    k = reduce_axis(inner, "k")
    acc = compute((rows, columns), lambda i, j: sum_of(x[i, k] * w[k, j], k), "acc")
    out = compute((rows, columns), lambda i, j: acc[i, j] + x[i, 0], "out")
    rng = np.random.default_rng(0)
    given = [rng.integers(-9, 10, t.shape).astype("float32") for t in (x, w)]
    return Workload((x, w), out, lambda a, b: a @ b + a[:, :1], {"acc": acc}, given)


def windows() -> Workload:
    """A convolution of an image with a border."""
    x = placeholder((1, 3, 6, 8), "int8", "x")
    w = placeholder((8, 3, 3, 3), "int8", "w")
    y = convolution(x, w, (1, 1), (1, 1, 1, 1), (1, 1), dtype="int32")

    def numpy(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        image = np.pad(x.astype(np.int32), ((0, 0), (0, 0), (1, 1), (1, 1)))
        seen = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(2, 3))
        return np.einsum("nchwyx,ocyx->nohw", seen, w.astype(np.int32)).astype(np.int32)

    return Workload((x, w), y, numpy, {})


def spread() -> Workload:
    """How far each row reaches: two reductions of long rows, one of which reads the other."""
    x = placeholder((5, 64), "int32", "x")
    k, m = reduce_axis(64, "k"), reduce_axis(64, "m")
    most = compute((5,), lambda i: max_of(x[i, k], k), "most")
    below = compute((5, 64), lambda i, j: most[i] - x[i, j], "below")
    total = compute((5,), lambda i: sum_of(below[i, m], m), "total")
    out = compute((5, 64), lambda i, j: total[i] - below[i, j], "out")

    def numpy(x: np.ndarray) -> np.ndarray:
        below = x.max(1, keepdims=True) - x
        return below.sum(1, keepdims=True, dtype=np.int32) - below

    return Workload((x,), out, numpy, {})


OPERATORS = {
    "product": lambda: product(8, 12, 32), "odd product": lambda: product(7, 13, 11),
    "windows": windows, "spread": spread, **WORKLOADS,
}  # fmt: skip


def lowered(workload: Workload, program: Program) -> PrimFunc:
    """The loop program of a log, which was text in between."""
    schedule = create_schedule(workload.output)
    replay(from_text(to_text(program.log)), schedule)
    func = lower(schedule, workload.args)
    verify(func)
    return func


def same(workload: Workload, program: Program, as_machine_code: bool) -> None:
    func = lowered(workload, program)
    arrays = workload.arrays()
    expected = workload.numpy(*arrays)
    try:
        np.testing.assert_array_equal(run(func, arrays), expected)
        if as_machine_code:
            result = np.full(expected.shape, 85, expected.dtype)
            compile_func(in_main_memory(func))(*arrays, result)
            np.testing.assert_array_equal(result, expected)
    except Exception as error:
        error.add_note(print_func(func))
        raise


@pytest.mark.slow
@pytest.mark.short(2)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_right_however_steps_are_decided(name: str) -> None:
    workload = OPERATORS[name]()
    for seed in range(8):
        program = processor_program(workload.output, at_random(np.random.default_rng(seed)), 4)
        same(workload, program, as_machine_code=seed % 2 == 0)


@pytest.mark.slow
def test_random_expressions_are_right_however_steps_are_decided() -> None:
    seen: Counter[Kind] = Counter()
    refused = 0
    for seed in range(CASES):
        random = Random(seed)
        workload = random_workload(random)
        rng = np.random.default_rng(seed)
        try:
            try:
                widths = {"lanes": random.choice((4, 8)), "threads": random.choice((1, 2))}
                program = processor_program(workload.output, at_random(rng), **widths)
                lowered(workload, program)
            except ScheduleError:
                refused += 1
                continue
            seen.update(decided.opening.kind for decided in program.decided)
            same(workload, program, as_machine_code=random.random() < 0.4)
        except Exception as error:
            error.add_note(f"case {seed}")
            raise
    assert refused < CASES // 20
    assert CASES < 200 or set(seen) == set(Kind)


def test_who_reads_in_place() -> None:
    """Another order of the elements, more of them, or one again is not in place."""
    x, k = placeholder((4, 4, 8), "float32", "x"), reduce_axis(8, "k")
    acc = compute((4, 4), lambda i, j: sum_of(x[i, j, k], k), "acc")
    rules = {
        "same": lambda i, j: acc[i, j] * 2.0,
        "twice": lambda i, j: acc[i, j] * acc[i, j],
        "transposed": lambda i, j: acc[j, i],
        "both": lambda i, j: acc[i, j] + acc[j, i],
        "shifted": lambda i, j: acc[i, 3 - j],
    }
    stages = {name: compute((4, 4), rule, name) for name, rule in rules.items()}
    found = {name: reads_in_place(create_schedule(out)[out], acc) for name, out in stages.items()}
    assert [name for name, in_place in found.items() if in_place] == ["same", "twice"]
