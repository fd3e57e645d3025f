"""Kernels for many images: what checks and counts them takes no longer than for one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import vdla
from hypothesis import given
from hypothesis import strategies as st
from vdla.bench.workloads import NETWORKS
from vdla.compiler.targets.gpu import traffic
from vdla.compiler.targets.gpu.scopes import GRID
from vdla.compiler.te.expr import Binary, Const, Expr, Var
from vdla.compiler.te.numpy_values import values_of
from vdla.compiler.tir.ir import Buffer, Thread
from vdla.compiler.tir.races import _Checker

from . import networks

PRECISIONS = ("float32", "tf32", "float16", "int8")
#: Three networks in one precision each, all of them in a sweep.
CASES = [("mobilenet_v1", "int8"), ("dqn", "float32"), ("lstm_lm", "tf32")]
OTHERS = [(name, p) for name in NETWORKS for p in PRECISIONS if (name, p) not in CASES]
#: Elements that are listed at once at most, and values of variables that are tried.
FEW = 1 << 25


def compiled(model: Any, precision: str) -> None:
    precision = "float32" if precision == "int8" else precision
    vdla.compile(model.SerializeToString(), "cuda", precision=precision, arch="sm_90a")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"), [*CASES, *(pytest.param(*o, marks=pytest.mark.sweep) for o in OTHERS)]
)
def test_nothing_is_listed_for_all_images(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What different blocks touch is proved disjoint, and what threads share in a block is listed
    for one block."""
    counts = [0]
    clash, grid = _Checker.clash, traffic._grid

    def checked(
        self: _Checker, buffer: Buffer, accesses: Any, threads: Sequence[Thread], same: Any
    ) -> Any:
        blocks = {t.var for t in self.launch.grid}
        assert not blocks & {t.var for t in threads}, (self.launch.name, buffer.name)
        assert not blocks & set(same), (self.launch.name, buffer.name)
        return clash(self, buffer, accesses, threads, same)

    def tried(extents: Mapping[Var, int]) -> Any:
        counts.append(math.prod(extents.values()))
        return grid(extents)

    monkeypatch.setattr(_Checker, "clash", checked)
    monkeypatch.setattr(_Checker, "check_count", lambda self, buffer, count: counts.append(count))
    monkeypatch.setattr(traffic, "_grid", tried)
    compiled(NETWORKS[name](64, precision == "int8"), precision)
    assert 0 < max(counts) < FEW


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision", ["int8", *(pytest.param(p, marks=pytest.mark.sweep) for p in PRECISIONS[:3])]
)
def test_what_is_proved_is_so(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the proof spares a list of elements, the list shows no race."""
    proved = {True: 0, False: 0}
    are_disjoint = _Checker.are_disjoint

    def compared(self: _Checker, accesses: Any, threads: Sequence[Thread], same: Any) -> bool:
        found = are_disjoint(self, accesses, threads, same)
        if found and accesses:
            proved[any(t.axis in GRID for t in threads)] += 1
            assert self.clash(accesses[0].buffer, accesses, threads, same) is None
        return found

    monkeypatch.setattr(_Checker, "are_disjoint", compared)
    for network in networks.NETWORKS.values():
        compiled(network(precision == "int8"), precision)
    assert all(proved.values())


# ---- how often facts hold ----------------------------------------------------------------------

B, T, K = Var("b"), Var("t"), Var("k")
INDICES = st.recursive(
    st.sampled_from([B, T, K]),
    lambda inner: st.one_of(
        st.builds(lambda op, a, b: Binary(op, a, b, "int32"), st.sampled_from("+-"), inner, inner),
        st.builds(
            lambda op, a, n: Binary(op, a, Const(n), "int32"),
            st.sampled_from(["+", "*", "//", "%", "%"]), inner, st.integers(1, 6),
        ),
    ),
    max_leaves=4,
)  # fmt: skip
FACTS = st.lists(
    st.builds(
        lambda op, a, b: Binary(op, a, b, "bool"),
        st.sampled_from(["<", "<=", "=="]), INDICES, st.integers(0, 6).map(Const),
    ),
    min_size=1, max_size=3,
)  # fmt: skip


@given(FACTS, st.integers(1, 40), st.integers(1, 9), st.integers(1, 4))
def test_facts_hold_as_often_as_they_are_counted(
    facts: list[Expr], blocks: int, threads: int, iterations: int
) -> None:
    buffer = Buffer("x", (1,), "int32")
    access = traffic.Access(buffer, Const(0), 4, False, {K: iterations}, tuple(facts))
    env = traffic._grid({B: blocks, T: threads, K: iterations})
    holds = np.ones((blocks, threads, iterations), bool)
    for fact in facts:
        holds = holds & values_of(fact, env)
    assert traffic._times(access, {B: blocks, T: threads}) == holds.sum()


def test_facts_of_fused_loops_have_a_period() -> None:
    x = B * 256 + T
    facts: list[Expr] = [x // 28 % 112 < K + 3, x % 28 * 4 < 99]
    assert traffic._period(facts, B, 25088) == 49
    assert traffic._period(facts, B, 40) == 40
    assert traffic._period(facts, K, 3) == 3
    assert traffic._period([*facts, x < 5000], B, 25088) == 25088
