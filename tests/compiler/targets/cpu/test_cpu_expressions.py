"""Machine code against the interpreter of loop programs: every expression, every statement."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vdla.compiler.targets.cpu.graph_code import CpuKernel, compile_func
from vdla.compiler.te.expr import (
    FLOAT_DTYPES,
    FLOAT_FUNCTIONS,
    Binary,
    Call,
    Const,
    Expr,
    Read,
    Var,
    maximum,
    minimum,
    reinterpret,
    select,
    wrap_value,
)
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import Tensor, compute, placeholder
from vdla.compiler.tir.ir import Allocate, Buffer, For, If, PrimFunc, Seq, Store
from vdla.compiler.tir.lower import lower
from vdla.isa.errors import VdlaError
from vdla.isa.vector_ops import requantize_even

from ....processors import on_processor
from ...interpret import interpret

SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")
EDGES = {d: (np.iinfo(d).min, np.iinfo(d).max, np.iinfo(d).max - 1, 0, 1) for d in INTEGERS}
EDGES |= {d: (*EDGES[d], -1) for d in SIGNED}


def numbers(dtype: str, count: int = 64) -> np.ndarray:
    """The edges of a dtype, then random numbers."""
    info = np.iinfo(dtype)
    rest = np.random.default_rng(1).integers(info.min, info.max, count, dtype, endpoint=True)
    rest[: len(EDGES[dtype])] = EDGES[dtype]
    return rest


def run_both(output: Tensor, args: list[Tensor], *arrays: np.ndarray) -> np.ndarray:
    """The result of the machine code, which must be the interpreter's."""
    func = lower(create_schedule(output), [*args, output], "test")
    expected = np.zeros(output.shape, output.dtype)
    got = np.zeros(output.shape, output.dtype)
    interpret(func, *arrays, expected)
    compile_func(func)(*arrays, got)
    np.testing.assert_array_equal(got, expected)
    return got


def all_pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(numbers(dtype, 16), numbers(dtype, 16))
    return a.reshape(-1), b.reshape(-1)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ["+", "-", "*", "&", "|", "min", "max"])
def test_integer_operators_wrap(op: str, dtype: str) -> None:
    a, b = all_pairs(dtype)
    x, y = (placeholder(a.shape, dtype, n) for n in "xy")
    out = compute(a.shape, lambda i: Binary(op, x[i], y[i], dtype))
    got = run_both(out, [x, y], a, b)
    numpy_op = {"+": np.add, "-": np.subtract, "*": np.multiply, "&": np.bitwise_and,
                "|": np.bitwise_or, "min": np.minimum, "max": np.maximum}[op]  # fmt: skip
    np.testing.assert_array_equal(got, numpy_op(a, b))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ["<", "<=", "=="])
def test_comparisons(op: str, dtype: str) -> None:
    a, b = all_pairs(dtype)
    x, y = (placeholder(a.shape, dtype, n) for n in "xy")
    out = compute(a.shape, lambda i: Binary(op, x[i], y[i], "bool"))
    got = run_both(out, [x, y], a, b)
    numpy_op = {"<": np.less, "<=": np.less_equal, "==": np.equal}[op]
    np.testing.assert_array_equal(got, numpy_op(a, b))


@pytest.mark.parametrize("name", ["avx2", "avx512-vnni", "amx"])
def test_elements_chosen_by_a_remainder(name: str) -> None:
    """Of which LLVM 22 made wrong code for AVX-512, where a comparison found the negative rests."""
    a = np.array([-110, -103, 100, -17, -27], np.int8)
    x = placeholder(a.shape, "int8", "x")

    def square(i: Expr) -> Expr:
        chosen = x[x[i].astype("int32") % 5].astype("int32")
        return chosen * chosen

    y = compute(a.shape, square, "y")
    schedule = create_schedule(y)
    schedule[y].vectorize(y.axes[0])
    result = np.zeros(a.shape, np.int32)
    with on_processor(name):
        compile_func(lower(schedule, [x, y], "main"))(a, result)
    np.testing.assert_array_equal(result, a[a.astype(np.int32) % 5].astype(np.int32) ** 2)


@pytest.mark.fast(6)
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 64, 100])
def test_division_floors(divisor: int, dtype: str) -> None:
    a = numbers(dtype)
    x = placeholder(a.shape, dtype)
    quotient = run_both(compute(a.shape, lambda i: x[i] // divisor), [x], a)
    rest = run_both(compute(a.shape, lambda i: x[i] % divisor), [x], a)
    np.testing.assert_array_equal(quotient, a // divisor)
    np.testing.assert_array_equal(rest, a % divisor)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_division_of_two_truncates_and_never_traps(dtype: str) -> None:
    a, b = all_pairs(dtype)
    x, y = (placeholder(a.shape, dtype, n) for n in "xy")
    wide = [(int(m), int(n)) for m, n in zip(a, b, strict=True)]
    signs = [1 if (m < 0) == (n < 0) else -1 for m, n in wide]
    quotients = [abs(m) // abs(n) * s if n else 0 for (m, n), s in zip(wide, signs, strict=True)]
    rests = [m - q * n if n else 0 for (m, n), q in zip(wide, quotients, strict=True)]
    for name, expected in (("divide", quotients), ("remainder", rests)):
        got = run_both(called(name, x, y), [x, y], a, b)
        assert got.tolist() == [wrap_value(value, dtype) for value in expected]


@pytest.mark.parametrize("bits", [32, 64])
def test_bits_of_floats_and_back(bits: int) -> None:
    """Every bit stays, of infinities and denormal numbers, too."""
    whole, real = f"int{bits}", f"float{bits}"
    a = np.array([0.0, -0.0, 1.5, -1e30, np.inf, -np.inf, 1e-40, np.pi], real)
    x, y = placeholder(a.shape, real), placeholder(a.shape, whole)
    made = run_both(compute(a.shape, lambda i: reinterpret(x[i], whole)), [x], a)
    np.testing.assert_array_equal(made, a.view(whole))
    back = run_both(compute(a.shape, lambda i: reinterpret(y[i], real)), [y], a.view(whole))
    np.testing.assert_array_equal(back.view(whole), a.view(whole))


def called(name: str, x: Tensor, y: Tensor) -> Tensor:
    """A function of the elements of two tensors."""
    return compute(x.shape, lambda i: Call(name, (x[i], y[i]), x.dtype), "out")


REAL = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "round": np.rint, "erf": np.vectorize(math.erf),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", FLOAT_FUNCTIONS)
def test_functions(name: str, dtype: str) -> None:
    edges = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan]
    rest = np.random.default_rng(5).normal(size=40) * 3
    a = np.concatenate([edges, rest]).astype(dtype)
    x = placeholder(a.shape, dtype)
    func = lower(
        create_schedule(out := compute(a.shape, lambda i: Call(name, (x[i],), dtype))), [x, out]
    )
    expected, got = np.zeros_like(a), np.zeros_like(a)
    interpret(func, a, expected)
    compile_func(func)(a, got)
    rtol = 1e-6 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(got, expected, rtol)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, REAL.get(name, getattr(np, name, None))(a), rtol)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_functions_of_two(dtype: str) -> None:
    rng = np.random.default_rng(6)
    a, b = ((rng.normal(size=60) * 4).astype(dtype) for _ in range(2))
    x, y = (placeholder(a.shape, dtype, n) for n in "xy")
    for name, numpy_function in (("pow", np.power), ("remainder", np.fmod)):
        out = called(name, x, y)
        got = np.zeros_like(a)
        compile_func(lower(create_schedule(out), [x, y, out]))(a, b, got)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(got, numpy_function(a, b), 1e-5)


def test_double_precision() -> None:
    a, b = (np.random.default_rng(seed).normal(size=50) for seed in (1, 2))
    x, y = (placeholder(a.shape, "float64", n) for n in "xy")
    got = run_both(compute(a.shape, lambda i: x[i] * 3.0 + y[i] / x[i]), [x, y], a, b)
    np.testing.assert_array_equal(got, a * 3 + b / a)
    narrow = run_both(compute(a.shape, lambda i: x[i].astype("float32")), [x], a)
    np.testing.assert_array_equal(narrow, a.astype(np.float32))


@pytest.mark.parametrize("op", ["<<", ">>"])
def test_shifts_out_everything(op: str) -> None:
    a, shift = (m.reshape(-1) for m in np.meshgrid(numbers("int32", 16), np.arange(40)))
    a, shift = a.astype(np.int32), shift.astype(np.int32)
    x, y = placeholder(a.shape, "int32", "x"), placeholder(a.shape, "int32", "y")
    got = run_both(compute(a.shape, lambda i: Binary(op, x[i], y[i], "int32")), [x, y], a, shift)
    wide = a.astype(object) << shift.astype(object) if op == "<<" else a.astype(np.int64) >> shift
    expected = [(int(w) + 2**31) % 2**32 - 2**31 for w in wide]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", [*INTEGERS, "bool", "float32"])
def test_casts_of_integers(source: str, target: str) -> None:
    a = numbers(source)
    x = placeholder(a.shape, source)
    got = run_both(compute(a.shape, lambda i: x[i].astype(target)), [x], a)
    np.testing.assert_array_equal(got, a.astype(target))


@pytest.mark.parametrize("target", INTEGERS)
def test_casts_of_floats_round_half_to_even(target: str) -> None:
    a = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, 100.7, -100.7], np.float32)
    x = placeholder(a.shape, "float32")
    got = run_both(compute(a.shape, lambda i: x[i].astype(target)), [x], a)
    np.testing.assert_array_equal(got, np.rint(a).astype(target))


def test_casts_of_floats_beyond_int64_saturate() -> None:
    a = np.array([1e30, -1e30, np.inf, -np.inf, np.nan, 2.0**63, -(2.0**63)], np.float32)
    x = placeholder(a.shape, "float32")
    got = run_both(compute(a.shape, lambda i: x[i].astype("int64")), [x], a)
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    np.testing.assert_array_equal(got, [high, low, high, low, 0, high, low])


@pytest.mark.parametrize("op", ["+", "-", "*", "/", "min", "max"])
def test_float_operators_are_single_precision(op: str) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.normal(size=200).astype(np.float32) * np.float32(1e3) for _ in range(2))
    x, y = (placeholder(a.shape, "float32", n) for n in "xy")
    got = run_both(compute(a.shape, lambda i: Binary(op, x[i], y[i], "float32")), [x, y], a, b)
    numpy_op = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide,
                "min": np.minimum, "max": np.maximum}[op]  # fmt: skip
    np.testing.assert_array_equal(got, numpy_op(a, b))


def test_multiply_and_add_are_not_contracted() -> None:
    rng = np.random.default_rng(3)
    a, b, c = (rng.normal(size=500).astype(np.float32) for _ in range(3))
    x, y, z = (placeholder(a.shape, "float32", n) for n in "xyz")
    got = run_both(compute(a.shape, lambda i: x[i] * y[i] + z[i]), [x, y, z], a, b, c)
    np.testing.assert_array_equal(got, a * b + c)
    fused = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (got != fused).any()


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-70, 130))
def test_requantize(acc: int, multiplier: int, shift: int) -> None:
    values = np.array([acc, acc + 1 if acc < 0 else acc - 1, acc & ~1], np.int32)
    factors, shifts = np.full(3, multiplier, np.int32), np.full(3, shift, np.int32)
    got = np.zeros(3, np.int64)
    requantize_kernel()(values, factors, shifts, got)
    np.testing.assert_array_equal(got, requantize_even(values, factors, shifts))


def test_requantize_ties() -> None:
    shifts = np.arange(64, dtype=np.int32)
    for acc, multiplier in ((3, 2**30), (-3, 2**30), (1, 1), (-(2**31), -(2**31)), (5, 2**30)):
        for shift in shifts:
            got = np.zeros(3, np.int64)
            args = (np.full(3, v, np.int32) for v in (acc, multiplier, shift))
            arrays = tuple(args)
            requantize_kernel()(*arrays, got)
            np.testing.assert_array_equal(got, requantize_even(*arrays))


_KERNELS: list[CpuKernel] = []


def requantize_kernel() -> CpuKernel:
    """Compiled once."""
    if not _KERNELS:
        a, m, s = (placeholder((3,), "int32", n) for n in "ams")
        out = compute((3,), lambda i: Call("requantize", (a[i], m[i], s[i]), "int64"))
        _KERNELS.append(compile_func(lower(create_schedule(out), [a, m, s, out], "test")))
    return _KERNELS[0]


def test_select_does_not_read_what_it_does_not_choose() -> None:
    x = placeholder((4,), "int32")
    out = compute((12,), lambda i: select((i >= 4) & (i < 8), x[i - 4], -1))
    got = run_both(out, [x], np.arange(4, dtype=np.int32))
    np.testing.assert_array_equal(got, [-1] * 4 + [0, 1, 2, 3] + [-1] * 4)


def test_conjunction_does_not_read_behind_a_false_condition() -> None:
    x = placeholder((4,), "int32")
    out = compute((400,), lambda i: select((i < 4) & (x[minimum(i, 3)] < 2), 7, 8))
    got = run_both(out, [x], np.arange(4, dtype=np.int32))
    np.testing.assert_array_equal(got, [7, 7] + [8] * 398)


def test_bools_live_in_memory() -> None:
    x = placeholder((5,), "int32")
    flags = compute((5,), lambda i: x[i] < 3, "flags")
    out = compute((5,), lambda i: select(flags[i] | (i.equal(4)), 1, 0), "out")
    got = run_both(out, [x], np.arange(5, dtype=np.int32))
    np.testing.assert_array_equal(got, [1, 1, 1, 0, 1])


# ---- statements ----


def nest(kind: str) -> tuple[PrimFunc, np.ndarray]:
    """Two loops with a guard, of which the inner is of a kind, and the result."""
    x, y = Buffer("x", (6, 10), "int32"), Buffer("y", (6, 10), "int32")
    i, j = Var("i"), Var("j")
    store = Store(y, (i, j), Read(x, (i, j)) * 3 + j)
    body = For(i, 6, "serial", For(j, 10, kind, If(i + j < 12, store)))
    data = np.arange(60, dtype=np.int32).reshape(6, 10)
    rows, columns = np.indices((6, 10))
    return PrimFunc("nest", (x, y), body), np.where(rows + columns < 12, data * 3 + columns, 0)


@pytest.mark.parametrize("kind", ["serial", "unrolled", "vectorized", "parallel", "vthread"])
def test_loop_kinds(kind: str) -> None:
    func, expected = nest(kind)
    got = np.zeros((6, 10), np.int32)
    compile_func(func)(np.arange(60, dtype=np.int32).reshape(6, 10), got)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("elements", [16, 5000, 100_000], ids=["stack", "workspace", "large"])
def test_allocations_in_sequence_share_the_workspace(elements: int) -> None:
    x, y = Buffer("x", (elements,), "int32"), Buffer("y", (elements,), "int32")

    def through(source: Buffer, target: Buffer, step: int) -> Allocate:
        scratch = Buffer("scratch", (elements,), "int32")
        i, j = Var("i"), Var("j")
        write = For(i, elements, "serial", Store(scratch, (i,), Read(source, (i,)) + step))
        read = For(j, elements, "serial", Store(target, (j,), Read(scratch, (j,)) * 2))
        return Allocate(scratch, Seq((write, read)))

    func = PrimFunc("twice", (x, y), Seq((through(x, y, 1), through(y, y, 2))))
    kernel = compile_func(func)
    data, got = np.arange(elements, dtype=np.int32), np.zeros(elements, np.int32)
    kernel(data, got)
    np.testing.assert_array_equal(got, ((data + 1) * 2 + 2) * 2)
    size = elements * 4
    assert kernel.workspace_bytes == (0 if size <= 16384 else -(-size // 64) * 64)


def test_values_of_more_than_32_bits_of_index() -> None:
    """Offsets are computed in 64 bits: the last element of a large two-dimensional view."""
    x = placeholder((3, 5), "int8")
    out = compute((3, 5), lambda i, j: maximum(x[i, j], x[2 - i, 4 - j]))
    data = np.arange(15, dtype=np.int8).reshape(3, 5)
    got = run_both(out, [x], data)
    np.testing.assert_array_equal(got, np.maximum(data, data[::-1, ::-1]))


# ---- errors ----


def kernel_of(rule: Callable[[Tensor, Expr], Expr]) -> None:
    x = placeholder((4,), "int32")
    out = compute((4,), lambda i: rule(x, i))
    compile_func(lower(create_schedule(out), [x, out], "test"))


def test_a_variable_divisor_is_an_error() -> None:
    with pytest.raises(VdlaError, match="divisor"):
        kernel_of(lambda x, i: Binary("//", Const(7), x[i], "int32"))


def test_an_unknown_function_is_an_error() -> None:
    with pytest.raises(VdlaError, match="sigmoid"):
        kernel_of(lambda x, i: Call("sigmoid", (x[i],), "int32"))


def test_arrays_are_checked() -> None:
    func, _ = nest("serial")
    kernel = compile_func(func)
    good = np.zeros((6, 10), np.int32)
    with pytest.raises(VdlaError, match=r"nest: expected 2 arrays, got 1"):
        kernel(good)
    with pytest.raises(VdlaError, match=r"nest: y expects int32\[6, 10\], got int64\[6, 10\]"):
        kernel(good, good.astype(np.int64))
    with pytest.raises(VdlaError, match="contiguous"):
        kernel(np.zeros((10, 6), np.int32).T, good)


def test_the_code_of_a_kernel_can_be_read() -> None:
    func, _ = nest("vectorized")
    code = compile_func(func).code
    assert "define" in code.llvm_ir and "ret" in code.assembly


def test_an_index_computed_from_elements_wraps_as_its_dtype_does() -> None:
    x, t = placeholder((4,), "int32", "x"), placeholder((5,), "int32", "t")
    y = compute((4,), lambda i: t[(x[i] * x[i]) % 5], "y")
    values = np.array([1, 65535, 50000, -46341], np.int32)
    table, result = np.arange(5, dtype=np.int32), np.empty(4, np.int32)
    compile_func(lower(create_schedule(y), [x, t, y]))(values, table, result)
    np.testing.assert_array_equal(result, (values * values) % 5)
