"""Programs with one fault each: the verifier names the function, the loops and the buffer."""

from __future__ import annotations

import pytest
from vdla.compiler.te.errors import ScheduleError
from vdla.compiler.te.expr import Binary, Call, Cast, Const, Expr, Read, Select, Var, cast
from vdla.compiler.te.intrinsic import TensorIntrin
from vdla.compiler.te.tensor import compute, placeholder
from vdla.compiler.tir.ir import (
    Allocate,
    Buffer,
    For,
    If,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
    TensorCall,
)
from vdla.compiler.tir.verify import verify

A = Buffer("a", (8,), "int32")
Y = Buffer("y", (8,), "int32")
BYTES = Buffer("bytes", (8,), "int8")
U, V = Var("i"), Var("j")
ZERO = Const(0)


def func(body: Stmt) -> PrimFunc:
    return PrimFunc("f", (A, Y, BYTES), body)


def loop(body: Stmt, extent: int = 8, var: Var = U, kind: str = "serial") -> For:
    return For(var, extent, kind, body)


def copy(index: Expr = U, target: Expr = U) -> Store:
    return Store(Y, (target,), Read(A, (index,)))


def double(size: int = 4) -> TensorIntrin:
    p = placeholder((size,), "int32", "p")
    return TensorIntrin("double", compute((size,), lambda i: p[i] * 2, "t"))


def call(start: Expr, variant: str = "full", out: Buffer = Y) -> TensorCall:
    return TensorCall(double(), variant, Region(out, (start,)), (Region(A, (start,)),))


SOUND: dict[str, Stmt] = {
    "copy": loop(copy()),
    "guard": loop(If(U + 2 < 8, copy(U + 2, U)), 8),
    "two guards": loop(loop(If(U + V < 4, If(U < 3, copy(U * 2 + V))), 4, V), 8),
    "scaled guard": loop(If(U * 2 + 1 < 8, loop(copy(U * 2 + V), 2, V)), 8),
    "guard of a quotient": loop(If(U < 24, copy(U // 3, U // 3)), 30),
    "guard of a dividend": loop(loop(If(U * 4 + V < 16, copy(U * 2 + V // 2)), 4, V), 8),
    "guard of a negated dividend": loop(
        loop(If(U * 4 + V < 16, copy(7 - U * 2 - V // 2)), 4, V), 8
    ),
    "guard of a multiple": loop(loop(If(U * 4 + V < 16, copy(U * 2)), 4, V), 8),
    "guard of two dividends": loop(
        loop(If(U * 6 + V < 18, copy(U * 2 + V // 3 + (U * 3 + V // 2) // 5)), 6, V), 8
    ),
    "lower guard": loop(If(U >= 3, copy(U - 3)), 8),
    "select": loop(Store(Y, (U,), Select(ZERO < U, Read(A, (U - 1,)), Const(7)))),
    "dead code": If(Const(False, "bool"), copy(Const(99))),
    "scratch": loop(Allocate(Buffer("t", (2,), "int8", "inp"), copy())),
    "call": loop(call(U * 4), 2),
    "any memory": Allocate(Buffer("t", (8,), "int32", "shared"), copy(ZERO, ZERO)),
    "any thread axis": loop(copy(), kind="warpIdx.x"),
}

FAULTS: dict[str, tuple[Stmt, str]] = {
    "beyond": (loop(copy(U + 1)), r"f in loops i: index 0 of a, i \+ 1, cannot .* in 0 \.\. 7"),
    "before": (loop(copy(U - 1)), "index 0 of a, i - 1, cannot be shown"),
    "store beyond": (loop(copy(), 9), "index 0 of y, i, cannot be shown"),
    "weak guard": (loop(If(U < 7, copy(U + 2)), 9), r"index 0 of a, i \+ 2"),
    "weak guard of a dividend": (
        loop(loop(If(U * 4 + V < 17, copy(U * 2 + V // 2)), 4, V), 8),
        r"index 0 of a, i \* 2 \+ j // 2, cannot be shown",
    ),
    "weak guard of a multiple": (
        loop(loop(If(U * 4 + V < 17, copy(U * 2)), 4, V), 8),
        r"index 0 of a, i \* 2, cannot be shown",
    ),
    "dividend before": (
        loop(loop(If(U * 4 + V < 16, copy(6 - U * 2 - V // 2)), 4, V), 8),
        "index 0 of a",
    ),
    "guard of something else": (
        loop(loop(If(V < 3, copy(U + 2)), 8, V)),
        r"f in loops i > j: index 0 of a, i \+ 2",
    ),
    "other side of select": (
        loop(Store(Y, (U,), Select(ZERO < U, Const(7), Read(A, (U - 1,))))),
        "index 0 of a, i - 1",
    ),
    "dimensions": (Store(Y, (ZERO, ZERO), ZERO), "y has 1 dimensions, got 2 indices"),
    "bound twice": (Seq((loop(copy()), loop(copy()))), "variable i is bound by two loops"),
    "bound inside itself": (loop(loop(copy())), "variable i is bound by two loops"),
    "unbound": (copy(), "f: variable i is used outside its loop"),
    "after its loop": (
        Seq((loop(copy()), copy(ZERO, U))),
        "f: variable i is used outside its loop",
    ),
    "empty loop": (loop(copy(), 0), "loop i expects an extent of at least 1, got 0"),
    "kind": (loop(copy(), kind="fast"), "loop i is of kind 'fast', expected serial, .*vthread or"),
    "vectorized nest": (
        loop(loop(copy(V), var=V), kind="vectorized"),
        "vectorized loop i holds loop j",
    ),
    "freed": (
        Seq((
            Allocate(tmp := Buffer("t", (8,), "int32"), Store(tmp, (ZERO,), ZERO)),
            Store(tmp, (ZERO,), ZERO),
        )),
        "buffer t is used outside its allocation",
    ),
    "allocated twice": (
        Allocate(tmp, Allocate(tmp, Store(tmp, (ZERO,), ZERO))),
        "buffer t exists already",
    ),
    "scope": (
        Allocate(Buffer("t", (8,), "int32", "l 2"), copy(ZERO, ZERO)),
        "buffer t is in 'l 2', expected the name of a memory",
    ),
    "extent": (Allocate(Buffer("t", (8, 0), "int32"), copy(ZERO, ZERO)), "no positive extents"),
    "dtype": (Allocate(Buffer("t", (8,), "int7"), copy(ZERO, ZERO)), "unknown dtype 'int7'"),
    "stored dtype": (
        loop(Store(BYTES, (U,), Read(A, (U,)))),
        r"the value stored to bytes is int32, expected int8: a\[i\]",
    ),
    "mixed dtypes": (
        Store(Y, (ZERO,), Binary("+", ZERO, Const(1, "int64"), "int32")),
        r"dtypes of \+ do not agree",
    ),
    "comparison as number": (
        Store(Y, (ZERO,), Binary("<", ZERO, ZERO, "int32")),
        "dtypes of < do not agree",
    ),
    "float shift": (
        Store(Y, (ZERO,), Cast("int32", Binary(">>", *(Const(1.0, "float32"),) * 2, "float32"))),
        ">> of float32",
    ),
    "number as condition": (If(ZERO, copy(ZERO, ZERO)), "a guard is int32, expected bool"),
    "select of two dtypes": (
        Store(Y, (ZERO,), Select(ZERO < 1, ZERO, Const(1, "int8"))),
        "the other side of a select is int8, expected int32",
    ),
    "float index": (Store(Y, (Const(0.0, "float32"),), ZERO), "index 0 of y is float32"),
    "unknown function": (
        Store(Y, (ZERO,), Call("sqrt", (ZERO,), "int32")),
        r"no function sqrt\(int32\) -> int32",
    ),
    "arguments of a function": (
        Store(Y, (ZERO,), Call("requantize", (ZERO, ZERO, cast("int64", ZERO)), "int32")),
        r"no function requantize\(int32, int32, int64\) -> int32",
    ),
    "read of a tensor": (
        Store(Y, (ZERO,), placeholder((8,), "int32", "x")[0]),
        "is read, which is no buffer",
    ),
    "region beyond": (loop(call(U), 6), r"index 0 of y, i \.\. 3 more, cannot be shown"),
    "variant": (call(ZERO, "update"), "double.update: expected variant full"),
    "operand dtype": (call(ZERO, out=BYTES), "operand t is int32, bytes is int8"),
}  # fmt: skip


@pytest.mark.parametrize("case", SOUND)
def test_sound(case: str) -> None:
    verify(func(SOUND[case]))


@pytest.mark.parametrize("case", FAULTS)
def test_fault(case: str) -> None:
    body, message = FAULTS[case]
    with pytest.raises(ScheduleError, match=message) as error:
        verify(func(body))
    assert str(error.value).startswith("f") and "\n" not in str(error.value)
