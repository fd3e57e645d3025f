"""Schedules as data: logs are the same after text, names are unambiguous, errors name the step."""

from __future__ import annotations

import numpy as np
import pytest
from vdla.compiler.te.errors import ScheduleError
from vdla.compiler.te.intrinsic import TensorIntrin
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.steps import Log, Step, from_text, label, replay, to_text
from vdla.compiler.te.tensor import Tensor, compute, placeholder, reduce_axis, sum_of
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.printer import print_func

from ..workloads import run


def product() -> tuple[list[Tensor], Tensor]:
    """A matrix product of int32 and what is made of it; two of its tensors have one name."""
    x, w = placeholder((8, 8), "int32", "x"), placeholder((8, 8), "int32", "w")
    k = reduce_axis(8, "k")
    twice = compute((8, 8), lambda i, j: x[i, j] * 2, "t")
    acc = compute((8, 8), lambda i, j: sum_of(twice[i, k] * w[k, j], k), "acc")
    less = compute((8, 8), lambda i, j: acc[i, j] - 1, "t")
    return [x, w, compute((8, 8), lambda i, j: less[i, j] + 3, "y")], acc


def dot() -> TensorIntrin:
    a, b = placeholder((4,), "int32", "a"), placeholder((4, 4), "int32", "b")
    k = reduce_axis(4, "k")
    return TensorIntrin("dot", compute((4,), lambda o: sum_of(a[k] * b[k, o], k), "y"))


EVERY = (
    Step("compute_inline", "t#1"),
    Step("cache_write", "y", ("global",)),
    Step("split", "y", ("i", 4)),
    Step("split", "y", ("j", 4)),
    Step("reorder", "y", ("i.o", "j.o", "i.i", "j.i")),
    Step("fuse", "y", ("i.o", "j.o")),
    Step("parallel", "y", ("i.o.j.o.f",)),
    Step("unroll", "y", ("i.i",)),
    Step("vectorize", "y", ("j.i",)),
    Step("compute_at", "y.global", ("y", "i.o.j.o.f")),
    Step("compute_at", "acc", ("y", "i.o.j.o.f")),
    Step("split", "acc", ("j", 4)),
    Step("split", "acc", ("k", 4)),
    Step("reorder", "acc", ("k.o", "i", "j.o", "j.i", "k.i")),
    Step("tensorize", "acc", ("j.i", "dot")),
    Step("pragma", "acc", ("k.o", "keep_loop")),
    Step("cache_read", "w", ("global", "acc")),
    Step("compute_at", "w.global", ("acc", "k.o")),
    Step("double_buffer", "w.global"),
    Step("compute_root", "t"),
    Step("set_scope", "t", ("global",)),
    Step("vthread", "t", ("i",)),
)


def values() -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-9, 10, (8, 8)).astype(np.int32) for _ in range(2))
    return [x, w], (2 * x) @ w + 2


def test_a_log_of_every_primitive_is_the_same_after_text_and_computes_the_same() -> None:
    args, _ = product()
    texts = []
    for log in (EVERY, from_text(to_text(EVERY))):
        assert log == EVERY
        schedule = create_schedule(args[-1])
        replay(log, schedule, {"dot": dot()})
        func = lower(schedule, args)
        texts.append(print_func(func))
        operands, expected = values()
        np.testing.assert_array_equal(run(func, operands), expected)
    assert texts[0] == texts[1] and "dot" in texts[0]


def test_partial_results_are_a_step() -> None:
    args, acc = product()
    schedule = create_schedule(args[-1])
    replay((Step("split", "acc", ("k", 4)), Step("rfactor", "acc", ("k.i", 2))), schedule)
    assert any(stage.name == "acc.rf" for stage in schedule.stages)
    operands, expected = values()
    np.testing.assert_array_equal(run(lower(schedule, args), operands), expected)
    assert acc.shape == (8, 8)


def test_of_several_stages_with_one_name_each_has_a_label_of_its_own() -> None:
    schedule = create_schedule(product()[0][-1])
    labels = [label(stage, schedule.stages) for stage in schedule.stages]
    assert labels == ["x", "t", "w", "acc", "t#1", "y"]


WRONG: dict[str, tuple[Log, str]] = {
    "a stage that is not there": ((Step("compute_inline", "z"),), r"step 0 \(compute_inline z\)"),
    "a loop that was split": (
        (Step("split", "y", ("i", 4)), Step("split", "y", ("i", 2))),
        r"step 1 .*expected a loop of y \(i.o, i.i, j\), got 'i'",
    ),
    "no primitive": ((Step("shuffle", "y"),), r'expected a primitive .*\["shuffle", "y"\]'),
    "arguments that do not fit": ((Step("split", "y", ("i",)),), "expected a primitive"),
    "an intrinsic that is not there": (
        (Step("tensorize", "y", ("i", "gemm")),), r"expected an intrinsic .*\(none\), got 'gemm'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_step_that_is_not_possible_is_named(name: str) -> None:
    log, message = WRONG[name]
    with pytest.raises(ScheduleError, match=message) as caught:
        replay(log, create_schedule(product()[0][-1]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[["split"]]', '[["split","y",1.5]]', "[[]]"])
def test_a_text_that_is_no_log_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="steps: expected"):
        from_text(text)
