"""Expressions: folding, affine forms, ranges and proofs, against brute force."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vdla.compiler.te.affine import affine, from_affine, interval, prove, simplify_index
from vdla.compiler.te.expr import (
    Binary,
    Cast,
    Const,
    Expr,
    Var,
    binary,
    cast,
    maximum,
    minimum,
    select,
    substitute,
    walk,
)
from vdla.compiler.te.tensor import compute, placeholder, reduce_axis, sum_of
from vdla.isa.errors import VdlaError

X, Y = Var("x"), Var("y")
RANGES: dict[Expr, tuple[int, int]] = {X: (-3, 4), Y: (0, 5)}
POINTS = [(x, y) for x, y in product(range(-3, 5), range(6))]


def at(expr: Expr, x: int, y: int) -> int | bool:
    """The value of an index expression, by substitution and folding."""
    value = substitute(expr, {X: Const(x), Y: Const(y)})
    assert isinstance(value, Const), value
    return value.value


def index_expressions() -> st.SearchStrategy[Expr]:
    small = st.integers(-4, 4)
    leaves = st.one_of(st.sampled_from((X, Y)), small.map(Const))

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.one_of(
            st.builds(binary, st.sampled_from(("+", "-", "min", "max")), inner, inner),
            st.builds(binary, st.just("*"), inner, small),
            st.builds(binary, st.sampled_from(("//", "%")), inner, st.integers(1, 5)),
        )

    return st.recursive(leaves, grow, max_leaves=8)


@given(index_expressions())
def test_canonical_form_has_the_same_value(expr: Expr) -> None:
    simple = simplify_index(expr)
    assert all(at(simple, x, y) == at(expr, x, y) for x, y in POINTS)
    assert affine(simple) == affine(from_affine(affine(simple)))


@given(index_expressions())
def test_interval_holds_every_value(expr: Expr) -> None:
    bounds = interval(expr, RANGES)
    assert bounds is not None
    assert all(bounds[0] <= at(expr, x, y) <= bounds[1] for x, y in POINTS)


@pytest.mark.slow
@given(index_expressions(), index_expressions(), st.sampled_from(("<", "<=")))
def test_proofs_are_true(a: Expr, b: Expr, op: str) -> None:
    cond = binary(op, a, b)
    verdict = prove(cond, RANGES)
    values = {at(cond, x, y) for x, y in POINTS}
    assert verdict is None or values == {verdict}


def test_interval_is_exact_where_variables_occur_once() -> None:
    assert interval(X * 3 - Y * 2 + 1, RANGES) == (-18, 13)
    assert interval((X + 3) // 2, RANGES) == (0, 3)
    assert interval(Y % 8, RANGES) == (0, 5)
    assert interval(Var("free") + 1, RANGES) is None


def test_split_and_fuse_cancel() -> None:
    assert simplify_index((X + Y) // 4 * 4 + (X + Y) % 4) == simplify_index(X + Y)
    assert simplify_index((X // 4 * 4 + X % 4) * 3) == simplify_index(X * 3)
    for other in (X // 4 * 4 + X % 5, X // 4 * 8 + X % 4, X // 4 * 4 + Y % 4):
        assert len(affine(other).terms) == 2


def test_what_a_divisor_divides_comes_out() -> None:
    assert simplify_index((X * 4 + Y + 5) // 4) == simplify_index(X + 1 + (Y + 1) // 4)
    assert simplify_index((X * 4 + Y + 5) % 4) == simplify_index((Y + 1) % 4)
    assert simplify_index((X * 6 + 7) % 3) == Const(1)
    read = placeholder((9,), "int32", "p")[Y]  # a product of what is read may wrap
    assert len(affine((read * 4 + X) // 4).terms) == 1


def test_equal_sums_in_any_order_are_equal() -> None:
    assert affine(X * 2 + Y + X) == affine(Y + X * 3)
    assert affine(X - X) == affine(Const(0))


def test_folding_and_neutral_elements() -> None:
    assert X + 0 is X and X * 1 is X and X // 1 is X and X - 0 is X
    assert X * 0 == Const(0) and X % 1 == Const(0)
    assert select(Const(True, "bool"), X, Y) is X
    assert minimum(3, Const(5)) == Const(3) and maximum(3, Const(5)) == Const(5)
    assert isinstance(X & 1, Binary), "1 is no neutral element of a bitwise and"


def test_constants_wrap_as_values_do() -> None:
    assert Const(100, "int8") + Const(100, "int8") == Const(-56, "int8")
    assert cast("int8", Const(200)) == Const(-56, "int8")
    assert Const(1 << 30) * Const(4) == Const(0)


def test_narrowing_casts_are_opaque_to_affine_forms() -> None:
    narrow = cast("int8", X)
    assert affine(narrow).terms == ((Cast("int8", X), 1),)
    assert affine(cast("int64", X)) == affine(X)


def test_narrow_sums_wrap_before_they_are_widened() -> None:
    data = placeholder((9,), "int8", "p")
    for narrow in (data[X] - data[Y], data[X] + data[Y], data[X] * 3):
        assert affine(cast("int32", narrow)).terms == ((narrow, 1),)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: X + cast("int8", Y), "operands of one dtype expected, got int32 and int8"),
        (lambda: X // 0, "operator //: the divisor of x is 0"),
        (lambda: X % 0, "operator %: the divisor of x is 0"),
        (lambda: X / 2, "operator /: float operands expected, got int32"),
    ],
)
def test_ill_formed(build, message: str) -> None:
    with pytest.raises(VdlaError, match=message):
        build()


def test_reductions_stand_alone() -> None:
    x = placeholder((4,), "int32", "x")
    k = reduce_axis(4)
    with pytest.raises(VdlaError, match="compute y: a reduction must be the whole rule"):
        compute((1,), lambda i: sum_of(x[k] + i, k) + 1, "y")
    with pytest.raises(VdlaError, match=r"compute y: rule takes 1 indices, shape \(2, 2\) has 2"):
        compute((2, 2), lambda i: x[i], "y")


def test_narrow_terms_are_widened_before_they_are_multiplied() -> None:
    places = placeholder((8,), "int8", "places")
    index = cast("int32", places[Y]) * 20 + X // 2
    simple = simplify_index(index)
    assert affine(simple) == affine(index)
    assert all(node.dtype == "int32" for node in walk(simple) if isinstance(node, Binary))
    wide = simplify_index(cast("int64", places[Y]) + cast("int64", Var("z", "int64")))
    assert wide.dtype == "int64" and len(affine(wide).terms) == 2


def test_equal_dividends_are_equal_terms() -> None:
    flat = (X * 6 + (Y * 3 + 2)) // 4
    assert affine(flat - (2 + Y * 3 + X * 6) // 4) == affine(Const(0))
    assert affine(minimum(X + Y, 3) - minimum(Y + X, 3)) == affine(Const(0))
