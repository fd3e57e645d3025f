"""Functions of kernels against NumPy, in both languages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from vdla.compiler.targets.gpu.dialects import CUDA, OPENCL
from vdla.compiler.targets.gpu.kernels import lower_kernels, make_kernels, to_launches
from vdla.compiler.targets.gpu.templates.general import each_element
from vdla.compiler.targets.gpu.text import print_module
from vdla.compiler.te.expr import Call, Const, Expr, bits_of, maximum, minimum
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import compute, placeholder
from vdla.compiler.tir.lower import lower
from vdla.runtime.gpu.emulated import load_emulated
from vdla.runtime.gpu.program import KernelCall, KernelProgram
from vdla.runtime.native import MemoryPlan, TensorType

from ...interpret import interpret

Rule = Callable[[list[Expr]], Expr]
RNG = np.random.default_rng(7)
INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")


def edges(dtype: str, count: int = 64) -> np.ndarray:
    """The least, the greatest and other values of an integer type, then random ones."""
    info = np.iinfo(dtype)
    known = [info.min, info.max, 0, 1, 2, info.max - 1, info.min + 1, info.max // 2]
    known += [] if info.min == 0 else [-1, -2]
    rest = RNG.integers(info.min, info.max, count - len(known), dtype, endpoint=True)
    return np.concatenate([np.array(known, dtype), rest])


def both(rule: Rule, *arrays: np.ndarray) -> list[np.ndarray]:
    """The rule's values by the emulated CUDA text, by OpenCL if it is there, and interpreted."""
    inputs = [placeholder(a.shape, str(a.dtype), f"x{i}") for i, a in enumerate(arrays)]
    y = compute(arrays[0].shape, lambda i: rule([x[i] for x in inputs]), "y")
    expected = np.zeros(y.shape, y.dtype)
    interpret(lower(create_schedule(y), [*inputs, y]), *arrays, expected)
    schedule = create_schedule(y)
    each_element(schedule, 32)
    func = to_launches(lower_kernels(schedule, [*inputs, y], "f"))
    [kernel] = make_kernels(func, "", CUDA)
    result = np.zeros(y.shape, y.dtype)
    addresses = [a.ctypes.data for a in (*arrays, result)]
    code = load_emulated(print_module([kernel.text], CUDA))
    code.launch(kernel.name, kernel.grid, kernel.block, addresses)
    return [result, *_by_opencl(func, arrays, y), expected]


def _by_opencl(func, arrays, y) -> list[np.ndarray]:
    try:
        import pyopencl  # noqa: F401
        from vdla.runtime.gpu.opencl import OpenClSession
    except ImportError:
        return []
    [kernel] = make_kernels(func, "", OPENCL)
    names = [b.name for b in kernel.arguments]
    places = {name: ("arena", 1024 * i) for i, name in enumerate(names)}
    types = [TensorType(b.name, b.shape, b.dtype) for b in kernel.arguments]
    call = KernelCall(kernel.name, kernel.grid, kernel.block, tuple(places[n] for n in names))
    size = 1024 * (len(names) + 1)
    program = KernelProgram(
        "f", "opencl", print_module([kernel.text], OPENCL), (call,), tuple(types[:-1]),
        (types[-1],), places, np.empty(0, np.uint8), MemoryPlan(1, size, size, size), OpenClSession,
    )  # fmt: skip
    return program.run(*arrays)


def exact(rule: Rule, *arrays: np.ndarray) -> None:
    *made, expected = both(rule, *arrays)
    for result in made:
        np.testing.assert_array_equal(result, expected)


@pytest.mark.short(3)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: str) -> None:
    a, b = edges(dtype), RNG.permutation(edges(dtype))

    def rule(x: list[Expr]) -> Expr:
        p, q = x
        total = (p + q) * 3 - (p * q) + maximum(p, q) - minimum(p, q) + (p & q) + (p | 5)
        count = q & (2 * bits_of(dtype) - 1)  # up to twice the width
        total = total + (p // 7) + (p % 7) + (p >> 3) + (p << 2) + (p << count) + (p >> count)
        return total + Call("divide", (p, q), dtype) + Call("remainder", (p, q), dtype)

    exact(rule, a, b)


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["requantize", "requantize_tflite"])
def test_requantisation(rounding: str) -> None:
    acc = edges("int32", 96)
    multiplier = RNG.integers(2**30, 2**31, 96).astype(np.int32)
    low, high = (1, 63) if rounding == "requantize" else (-30, 32)
    shift = RNG.integers(low, high, 96).astype(np.int32)
    acc[40:70] = RNG.integers(-300, 300, 30) * 2**3
    shift[40:70] = RNG.integers(max(low, 1), 31, 30)
    multiplier[40:55] = 2**30  # ties
    exact(lambda x: Call(rounding, tuple(x), "int64"), acc, multiplier, shift)


@pytest.mark.more
@pytest.mark.slow
def test_conversions_and_bounds_of_floats() -> None:
    x = np.array(
        [
            0.5,
            1.5,
            2.5,
            -0.5,
            -1.5,
            1e10,
            -1e10,
            1e30,
            -1e30,
            np.nan,
            np.inf,
            -np.inf,
            0,
            -0.0,
            3.7,
        ],
        np.float32,
    )
    y = RNG.permutation(x)
    exact(lambda p: p[0].astype("int64"), x)
    exact(lambda p: p[0].astype("int8") + p[0].astype("int32").astype("int8"), x)
    exact(lambda p: minimum(maximum(p[0], -100.0), 100.0).astype("int8"), x)
    exact(lambda p: maximum(p[0], p[1]) + minimum(p[0], Const(2.0, "float32")), x, y)
    exact(lambda p: p[0].astype("bool").astype("int32"), x)
    y[(y == 0) | ~np.isfinite(y)] = 0.3  # Python divides by no zero
    exact(lambda p: Call("round", (p[0],), "float32") / p[1], x, y)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaled_down", "scaled_floor"])
def test_rounding_down(name: str) -> None:
    x = RNG.integers(-(2**20), 2**20, 64).astype(np.int32)
    factor = (2.0 ** RNG.uniform(-20, -8, 64)).astype(np.float32)
    offset = RNG.uniform(-100, 100, 64).astype(np.float32)
    dtype = "float32" if name == "scaled_down" else "int32"
    exact(lambda p: Call(name, tuple(p), dtype), x, factor, offset)


@pytest.mark.slow
def test_places_below_zero_floor() -> None:
    x = placeholder((8,), "int32", "x")
    y = compute((10,), lambda i: x[(5 - i) // 2 + 2] + (5 - i) % 3, "y")
    schedule = create_schedule(y)
    each_element(schedule, 32)
    values, result = np.arange(8, dtype=np.int32) * 10, np.zeros(10, np.int32)
    [kernel] = make_kernels(to_launches(lower_kernels(schedule, [x, y], "f")), "", CUDA)
    code = load_emulated(print_module([kernel.text], CUDA))
    addresses = [values.ctypes.data, result.ctypes.data]
    code.launch(kernel.name, kernel.grid, kernel.block, addresses)
    i = np.arange(10)
    np.testing.assert_array_equal(result, values[(5 - i) // 2 + 2] + (5 - i) % 3)
