"""Functions that targets compute by themselves: how far they are from the exact ones, and that the
processor, one element or many at once, and a GPU's text give the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from llvmlite import ir
from vdla.compiler.targets.common.float_functions import FUNCTIONS
from vdla.compiler.targets.cpu.graph_code import compile_func, run_passes
from vdla.compiler.targets.cpu.llvm import emit_function
from vdla.compiler.targets.cpu.processor import Processor
from vdla.compiler.targets.gpu.dialects import CUDA
from vdla.compiler.targets.gpu.kernels import lower_kernels, make_kernels, to_launches
from vdla.compiler.targets.gpu.templates.general import each_element
from vdla.compiler.targets.gpu.text import print_module
from vdla.compiler.te.expr import Call
from vdla.compiler.te.schedule import Schedule, create_schedule
from vdla.compiler.te.tensor import Tensor, compute, placeholder
from vdla.compiler.tir.lower import lower
from vdla.runtime.gpu.emulated import load_emulated

EXACT: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp, "tanh": np.tanh, "erf": np.vectorize(math.erf, otypes=[np.float64]),
}  # fmt: skip
#: Where the functions are neither 0 nor constant, and their largest errors, in units in the last
#: place.
LIMITS = {"exp": (-87.0, 88.7, 1.5), "tanh": (-12.0, 12.0, 3.0), "erf": (-4.5, 4.5, 1.5)}
ENDS = np.array(
    [0, -0.0, 1e-45, -1e-30, 88.7, 88.8, 89.5, 200, -87.4, -103.9, -104.5, -1e30, 3.4e38,
     np.inf, -np.inf, np.nan, -np.nan, 1, -1, 0.625, -0.625, 4, -4, 9],
    np.float32,
)  # fmt: skip


def described(name: str, count: int) -> tuple[Schedule, list[Tensor]]:
    x = placeholder((count,), "float32", "x")
    y = compute(x.shape, lambda i: Call(name, (x[i],), "float32"), "y")
    return create_schedule(y), [x, y]


def on_processor(name: str, x: np.ndarray, lanes: int) -> np.ndarray:
    schedule, args = described(name, len(x))
    _, inner = schedule[args[1]].split(args[1].axes[0], lanes)
    if lanes > 1:
        schedule[args[1]].vectorize(inner)
    result = np.zeros_like(x)
    compile_func(lower(schedule, args))(x, result)
    return result


def on_gpu(name: str, x: np.ndarray) -> np.ndarray:
    schedule, args = described(name, len(x))
    each_element(schedule, 64)
    [kernel] = make_kernels(to_launches(lower_kernels(schedule, args, "f")), "", CUDA)
    result = np.zeros_like(x)
    code = load_emulated(print_module([kernel.text], CUDA))
    code.launch(kernel.name, kernel.grid, kernel.block, [x.ctypes.data, result.ctypes.data])
    return result


def units_off(result: np.ndarray, exact: np.ndarray) -> float:
    """The greatest error in units in the last place."""
    nearest = exact.astype(np.float32)
    return float(np.max(np.abs(result - exact) / np.spacing(np.abs(nearest)).astype(np.float64)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_how_far_from_the_exact_function(name: str) -> None:
    low, high, most = LIMITS[name]
    rng = np.random.default_rng(7)
    x = np.concatenate([
        np.linspace(low, high, 1 << 18), rng.normal(size=1 << 16),
        np.ldexp(rng.uniform(-1, 1, 1 << 14), rng.integers(-60, 0, 1 << 14)),
    ]).astype(np.float32)  # fmt: skip
    assert 0.5 < units_off(on_processor(name, x, 16), EXACT[name](x.astype(np.float64))) < most


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_bits_everywhere(name: str) -> None:
    low, high, _ = LIMITS[name]
    x = np.concatenate([ENDS, np.random.default_rng(1).uniform(low, high, 1000)])
    x = x.astype(np.float32)
    whole = on_processor(name, x, 1)
    for result in (*(on_processor(name, x, lanes) for lanes in (4, 8, 16, 32)), on_gpu(name, x)):
        np.testing.assert_array_equal(result.view(np.int32), whole.view(np.int32))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_the_ends(name: str) -> None:
    """Infinities, what is not a number, signed zeros, and results too small for a float32."""
    with np.errstate(all="ignore"):
        expected = EXACT[name](ENDS.astype(np.float64)).astype(np.float32)
    result = on_processor(name, ENDS, 8)
    np.testing.assert_allclose(result, expected, rtol=4e-7, atol=3e-45)
    np.testing.assert_array_equal(np.signbit(result)[:2], np.signbit(expected)[:2])


def test_processors_without_fused_multiply_adds_call_the_library() -> None:
    old = Processor("x86_64-unknown-linux-gnu", "x86-64")
    assert not old.fuses_multiply_add
    schedule, args = described("exp", 32)
    schedule[args[1]].vectorize(schedule[args[1]].split(args[1].axes[0], 8)[1])
    module = ir.Module("test")
    emit_function(run_passes(lower(schedule, args), old), module, "kernel", old)
    text = str(module)
    assert text.count('call float @"expf"') == 8 and "exp.v8f32" not in text
