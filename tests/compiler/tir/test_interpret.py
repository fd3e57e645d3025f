"""The oracle itself: values of every operator, and accesses that it does not let pass."""

from __future__ import annotations

import numpy as np
import pytest
from vdla.compiler.te.expr import Binary, Call, Const, Expr, Read, Select, Var, binary, cast
from vdla.compiler.tir.ir import Allocate, Buffer, For, PrimFunc, Seq, Stmt, Store
from vdla.isa.errors import VdlaError

from ..interpret import interpret

Y = Buffer("y", (4,), "int32")
U = Var("i")
ZERO = Const(0)


def value(expr: Expr) -> object:
    """The expression's value after a store to a buffer of its dtype."""
    target = Buffer("t", (1,), expr.dtype)
    result = np.zeros(1, expr.dtype)
    interpret(PrimFunc("f", (target,), Store(target, (ZERO,), expr)), result)
    return result[0]


def number(x: float, dtype: str = "int32") -> Expr:
    """A constant that folding does not see."""
    return Select(Binary("<", ZERO, Const(1), "bool"), Const(x, dtype), Const(x, dtype))


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (number(2**31 - 1) + number(1), -(2**31)),
        (number(-7) // number(2), -4),
        (number(-7) % number(4), 1),
        (number(-7) >> number(1), -4),
        (number(6) & number(3), 2),
        (number(6) | number(3), 7),
        (number(-128, "int8") * number(-1, "int8"), -128),
        (binary("min", number(3), number(-3)), -3),
        (binary("max", number(3), number(-3)), 3),
        (cast("int8", number(200)), -56),
        (cast("int64", number(-1, "int8")), -1),
        (cast("int8", number(2.5, "float32")), 2),
        (cast("int8", number(-3.5, "float32")), -4),
        (cast("int32", number(float("nan"), "float32")), 0),
        (cast("int64", number(float("inf"), "float32")), 2**63 - 1),
        (cast("int64", number(-1e30, "float32")), -(2**63)),
        (cast("float32", number(2**24 + 1)), np.float32(2**24)),
        (number(1.0, "float32") / number(3.0, "float32"), np.float32(1) / np.float32(3)),
        (Call("round", (number(0.5, "float32"),), "float32"), 0.0),
        (Call("requantize", (number(3), number(1 << 30), number(31)), "int32"), 2),
        (Call("requantize", (number(1), number(1 << 30), number(31)), "int32"), 0),
        (Call("requantize", (number(-3), number(1 << 30), number(31)), "int32"), -2),
        (Call("requantize", (number(1 << 30), number(4), number(0)), "int32"), 0),
        (Call("requantize", (number(1 << 30), number(4), number(0)), "int64"), 1 << 32),
    ],
)
def test_values(expr: Expr, expected: object) -> None:
    assert value(expr) == expected


def run(body: Stmt, *arrays: np.ndarray) -> None:
    interpret(PrimFunc("f", (Y,), body), *arrays)


def test_reads_and_writes_outside_are_errors() -> None:
    y = np.zeros(4, np.int32)
    with pytest.raises(VdlaError, match=r"index \(4,\) outside y\[4\]"):
        run(For(U, 5, "serial", Store(Y, (U,), ZERO)), y)
    with pytest.raises(VdlaError, match=r"index \(-1,\) outside y\[4\]"):
        run(Store(Y, (ZERO,), Read(Y, (Const(-1),))), y)


def test_the_other_side_of_a_select_is_not_read() -> None:
    y = np.arange(4, dtype=np.int32)
    shifted = Select(ZERO < U, Read(Y, (U - 1,)), Const(9))
    copy = Buffer("copy", (4,), "int32")
    program = PrimFunc("f", (Y, copy), For(U, 4, "serial", Store(copy, (U,), shifted)))
    out = np.zeros(4, np.int32)
    interpret(program, y, out)
    assert out.tolist() == [9, 0, 1, 2]


def test_scratch_must_be_written_before_it_is_read() -> None:
    t = Buffer("t", (2,), "int32")
    write = Store(t, (ZERO,), Const(5))
    first = Store(Y, (ZERO,), Read(t, (ZERO,)))
    y = np.zeros(4, np.int32)
    run(Allocate(t, Seq((write, first))), y)
    assert y[0] == 5
    with pytest.raises(VdlaError, match=r"t\[1\] is read before it is written"):
        run(Allocate(t, Seq((write, Store(Y, (ZERO,), Read(t, (Const(1),)))))), y)
    forgotten = For(U, 2, "serial", Allocate(t, Seq((first, write))))
    with pytest.raises(VdlaError, match=r"t\[0\] is read before it is written"):
        run(forgotten, y)


def test_arrays_must_fit() -> None:
    with pytest.raises(VdlaError, match="f: expected 1 arrays, got 0"):
        run(Store(Y, (ZERO,), ZERO))
    with pytest.raises(VdlaError, match=r"f: y expects \(4,\) int32, got \(4,\) int64"):
        run(Store(Y, (ZERO,), ZERO), np.zeros(4, np.int64))
