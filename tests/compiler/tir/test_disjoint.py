"""The proof that threads touch different elements, against lists of these elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdla.compiler.te.expr import Binary, Const, Expr, Var, wrap
from vdla.compiler.te.numpy_values import values_of
from vdla.compiler.tir.disjoint import Touched, are_disjoint

#: A block, a thread, a loop, and what is the same for all threads.
B, T, K, S = Var("b"), Var("t"), Var("k"), Var("s")
#: Written as they are, where Python's operators would simplify.
OPERATORS = st.sampled_from(["+", "-", "*", "//", "%"])


def touched(*indices: Expr, box: int = 1, facts: tuple[Expr, ...] = (), **extents: int) -> Touched:
    """``box`` elements along the last dimension."""
    known = {var: extents.get(var.name, 1) for var in (B, T, K, S)}
    return Touched(indices, (*[1] * (len(indices) - 1), box), known, facts)


def proved(*statements: Touched, threads: Sequence[Var] = (B,), same: Sequence[Var] = (S,)) -> bool:
    found = are_disjoint(statements, threads, same)
    assert not (found and clashes(statements, threads, same))
    return found


def clashes(statements: Sequence[Touched], threads: Sequence[Var], same: Sequence[Var]) -> bool:
    """Whether different threads touch an element, by a list of all that they touch."""
    owners: dict[tuple[int, ...], tuple[int, ...]] = {}
    for statement in statements:
        for values in every(statement.extents):
            if all(value(fact, values) for fact in statement.facts):
                first = [value(index, values) for index in statement.indices]
                who = tuple(values[var] for var in threads)
                for steps in product(*map(range, statement.box)):
                    at = [a + step for a, step in zip(first, steps, strict=True)]
                    element = (*(values[var] for var in same), *at)
                    if owners.setdefault(element, who) != who:
                        return True
    return False


def every(extents: Mapping[Var, int]) -> list[dict[Var, int]]:
    counts = [range(n) for n in extents.values()]
    return [dict(zip(extents, values, strict=True)) for values in product(*counts)]


def value(expr: Expr, values: Mapping[Var, int]) -> int:
    return int(values_of(expr, {var: np.asarray(v, np.int32) for var, v in values.items()}))


# ---- what an index tells -----------------------------------------------------------------------


def test_parts_that_do_not_overlap() -> None:
    assert proved(touched(B * 8 + T, b=3, t=8))
    assert not proved(touched(B * 8 + T, b=3, t=9))
    assert proved(touched(T * 3 + B, b=3, t=8))
    assert proved(touched(K * 24 + B * 8 + T, b=3, t=8, k=2))
    assert not proved(touched(K * 16 + B * 8 + T, b=3, t=8, k=2))
    assert proved(touched(20 - B * 8 - T, b=3, t=8))


def test_boxes_are_parts_too() -> None:
    assert proved(touched(B * 8 + T * 2, b=3, t=4, box=2))
    assert not proved(touched(B * 8 + T * 2, b=3, t=4, box=3))


def test_another_dimension_tells_what_one_does_not() -> None:
    assert not proved(touched(B + T, b=3, t=3))
    assert proved(touched(B + T, T, b=3, t=3))
    assert not proved(touched(B + T, T // 2, b=3, t=3))


def test_threads_differ_in_any_variable() -> None:
    assert proved(touched(B * 4 + T, b=3, t=4), threads=(B, T))
    assert not proved(touched(B * 4 + T // 2, b=3, t=4), threads=(B, T))
    assert not proved(touched(T, b=2, t=4), threads=(B, T))
    assert proved(touched(T, b=1, t=4), threads=(B, T))
    assert proved(touched(S * 2 + T, s=3, t=4), threads=(T,))


def test_all_digits_tell_a_sum() -> None:
    x = B * 6 + T
    assert proved(touched(x // 4 // 3, x // 4 % 3, x % 4, b=9, t=6))
    assert proved(touched(x % 4, x // 4, b=9, t=6))
    assert proved(touched(x // 4 * 2 + K, x % 4, b=9, t=6, k=2))
    assert not proved(touched(x // 4 // 3, x // 4 % 2, x % 4, b=9, t=6))
    assert not proved(touched(x // 4 // 3, x % 4, b=9, t=6))
    assert not proved(touched(x // 4 % 3, x % 4, b=9, t=6))
    assert proved(touched(x // 4 % 3, x % 4, b=2, t=6))  # there is no third digit


def test_digits_of_what_the_divisor_divides_in_part() -> None:
    x = B * 4 + T // 8
    assert proved(touched(x // 6, x % 6, T % 8, b=5, t=32), threads=(B, T))
    assert not proved(touched(x // 6, x % 6, T % 4, b=5, t=32), threads=(B, T))
    assert proved(touched((B + T // 8) // 3, (B + T // 8) % 3, b=5, t=8))


def test_statements_may_differ_within_what_a_block_has() -> None:
    store = touched(B * 8 + T, b=3, t=8)
    assert proved(store, touched(B * 8 + 7 - T, b=3, t=8))
    assert not proved(store, touched(B * 8 + T + 1, b=3, t=8))
    assert not proved(store, touched(B * 4 + T, b=3, t=8))
    assert not proved(store, touched(T, b=3, t=8))


def test_guards_that_bound_a_variable() -> None:
    index = B * 4 + T
    assert not proved(touched(index, b=3, t=8))
    assert proved(touched(index, b=3, t=8, facts=(T < 4,)))
    assert proved(touched(index, b=3, t=8, facts=((T < 4) & (B < 2),)))
    assert not proved(touched(index, b=3, t=8, facts=(T < 5,)))
    assert proved(touched(wrap(0), t=8, facts=(T.equal(3),)), threads=(T,))
    other = touched(wrap(0), t=8, facts=(T.equal(2),))
    assert not proved(touched(wrap(0), t=8, facts=(T.equal(3),)), other, threads=(T,))


def test_an_index_that_is_no_sum_proves_nothing() -> None:
    assert not proved(touched(B * B, b=3))
    assert not proved(touched(B, Binary("min", B, Const(2), "int32"), b=3))


# ---- against lists -----------------------------------------------------------------------------


@st.composite
def sums(draw: st.DrawFn) -> Expr:
    """A few variables with factors, and digits of such sums."""
    total: Expr = wrap(draw(st.integers(0, 5)))
    for var in draw(st.lists(st.sampled_from([B, T, K, S]), min_size=1, max_size=3)):
        total = total + var * draw(st.sampled_from([1, 1, 2, 3, 4, 6, 8, 12, -1]))
    for op in draw(st.lists(st.sampled_from(["//", "%"]), max_size=3)):
        divisor = draw(st.integers(2, 6))
        total = total // divisor if op == "//" else total % divisor
    return total


EXPRS = st.recursive(
    st.sampled_from([B, T, K, S]) | st.integers(0, 9).map(wrap),
    lambda inner: st.one_of(
        st.builds(lambda op, a, b: Binary(op, a, b, "int32"), st.sampled_from("+-"), inner, inner),
        st.builds(
            lambda op, a, n: Binary(op, a, Const(n), "int32"), OPERATORS, inner, st.integers(1, 9)
        ),
    ),
    max_leaves=6,
)
EXTENTS = st.fixed_dictionaries({name: st.integers(1, 5) for name in "btks"})
FACTS = st.lists(st.builds(lambda v, n: v < n, st.sampled_from([B, T, K]), st.integers(1, 4)),
                 max_size=2).map(tuple)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_what_is_proved_is_so(data: st.DataObject) -> None:
    """Of sums and digits of them, and of any expressions, in one or two statements."""
    extents = data.draw(EXTENTS)
    count = data.draw(st.integers(1, 3))
    statements = []
    for _ in range(data.draw(st.integers(1, 2))):
        indices = data.draw(st.lists(sums() | EXPRS, min_size=count, max_size=count))
        facts, box = data.draw(FACTS), data.draw(st.integers(1, 2))
        statements.append(touched(*indices, box=box, facts=facts, **extents))
    proved(*statements, threads=data.draw(st.sampled_from([(B,), (T,), (B, T)])))


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data())
def test_all_digits_of_any_sum_tell_it(data: st.DataObject) -> None:
    """In any order and cut anywhere, as the fused loops of a kernel have them."""
    radices = data.draw(st.lists(st.integers(2, 5), max_size=4))
    threads, blocks = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 9))
    rest: Expr = B * threads + T
    indices = []
    for radix in radices:
        indices.append(rest % radix)
        rest = rest // radix
    indices = data.draw(st.permutations([*indices, rest]))
    assert proved(touched(*indices, b=blocks, t=threads), threads=(B, T))
