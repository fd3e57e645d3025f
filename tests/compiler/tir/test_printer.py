"""Text of programs: readable, and without two meanings."""

from __future__ import annotations

import pytest
from vdla.compiler.te.expr import Binary, Const, Expr, Read, Select, Var, cast
from vdla.compiler.tir.ir import Buffer, For, PrimFunc, Store
from vdla.compiler.tir.printer import expr_text, print_func

X, Y = Var("x"), Var("y")


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        ((X + Y) * 2, "(x + y) * 2"),
        (X + Y * 2, "x + y * 2"),
        (X - (Y - 1), "x - (y - 1)"),
        (X - 1 - Y, "x - 1 - y"),
        (Binary("+", X, Const(-1), "int32"), "x - 1"),
        ((X + Binary("+", Y, Const(-3), "int32")) * 2, "(x + (y - 3)) * 2"),
        ((X // 4) * 4 + X % 4, "x // 4 * 4 + x % 4"),
        (X // (Y * 4), "x // (y * 4)"),
        (Select((X < 3) & (Y <= X), X, Const(0)), "select(x < 3 & y <= x, x, 0)"),
        (Binary("max", X, cast("int32", Const(1, "int64") >> 2), "int32"), "max(x, 0)"),
        (cast("int8", X + 1), "int8(x + 1)"),
        (Const(-5, "int8"), "int8(-5)"),
    ],
)
def test_expression(expr: Expr, text: str) -> None:
    assert expr_text(expr) == text


def test_nested_loops_of_one_name_are_told_apart() -> None:
    a = Buffer("a", (4, 4), "int32")
    outer, inner = Var("i"), Var("i")
    body = Store(a, (outer, inner), Read(a, (inner, outer)))
    func = PrimFunc("f", (a,), For(outer, 4, "serial", For(inner, 4, "parallel", body)))
    assert print_func(func) == (
        "func f(a: int32[4, 4]):\n"
        "  for i in 4:\n"
        "    parallel for i.1 in 4:\n"
        "      a[i, i.1] = a[i.1, i]\n"
    )
