"""The CUDA text under the sanitizers of g++: no access outside of an array, no undefined arithmetic
and no race in the kernels of small networks; and each is found where tests plant it.

A few cases run with all tests, the others with ``make gpu-emulated``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.compiler.choose.chooser import Chooser
from vdla.compiler.dumps import Dumps
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.gpu.dialects import CUDA
from vdla.compiler.targets.gpu.graph_code import GraphKernels, fuse, make_call
from vdla.compiler.targets.gpu.kernels import find_temporaries, make_kernels
from vdla.compiler.targets.gpu.lowering import templates_of
from vdla.compiler.targets.gpu.scopes import element_bytes, element_count
from vdla.compiler.targets.gpu.text import print_module
from vdla.compiler.te.expr import Const
from vdla.compiler.tir.ir import Buffer, PrimFunc, Store

from . import test_tensor_cores as cores
from .networks import NETWORKS
from .sanitized import run_sanitized
from .test_networks import ENDS_IN_FLOAT, FLOAT_ATOL, FLOAT_RTOL
from .test_threads import (
    DROPPED,
    PROGRAMS,
    B,
    T,
    X,
    Y,
    arrays_for,
    expected,
    kernel,
    shifted_reads,
    without_barrier,
)
from .test_warpgroups import group_product

SANITIZERS = ("address", "thread")


def garbage(buffer: Buffer) -> np.ndarray:
    return np.full(element_count(buffer) * element_bytes(buffer.dtype), 85, np.uint8)


def run_func(
    func: PrimFunc, arrays: Sequence[np.ndarray], sanitizer: str, folder: Path
) -> tuple[np.ndarray | None, str]:
    """The last parameter of a program, if the sanitizer lets it run to its end."""
    kernels = make_kernels(func, "", CUDA)
    buffers = [*func.params, *find_temporaries(func)]
    names = {buffer: f"{number} {buffer.name}" for number, buffer in enumerate(buffers)}
    memory = {names[buffer]: garbage(buffer) for buffer in buffers}
    memory |= {names[b]: array for b, array in zip(func.params, arrays, strict=False)}
    calls = [make_call(kernel, lambda b: (names[b], 0)) for kernel in kernels]
    source = print_module([k.text for k in kernels], CUDA)
    made, report = run_sanitized(source, calls, memory, sanitizer, folder)
    result = func.params[-1]
    if names[result] not in made:
        return None, report
    return made[names[result]].view(result.dtype).reshape(result.shape), report


# ---- what is right -----------------------------------------------------------------------------

KERNELS: dict[str, Callable[[], PrimFunc]] = PROGRAMS | {
    "tensor cores": lambda: cores.product("float16"),
    "tensor cores of int8": lambda: cores.product("int8", by_column=False),
}


def wanted(name: str, arrays: list[np.ndarray]) -> np.ndarray:
    return expected(name, arrays) if name in PROGRAMS else cores.expected(arrays)


@pytest.mark.more
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "stencil" else pytest.mark.sweep)
        for name in KERNELS
    ],
)
def test_kernels_by_hand(name: str, sanitizer: str, tmp_path: Path) -> None:
    func = KERNELS[name]()
    arrays = arrays_for(func)
    result, report = run_func(func, arrays, sanitizer, tmp_path)
    assert result is not None, report
    np.testing.assert_array_equal(result, wanted(name, arrays))


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_warpgroups_stay_inside(kind: str, tmp_path: Path) -> None:
    func = group_product(kind)
    arrays = cores.arrays_for(func)
    result, report = run_func(func, arrays, "address", tmp_path)
    assert result is not None, report
    np.testing.assert_array_equal(result, cores.expected(arrays))


@pytest.mark.sweep
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("kind", ["int8", "float32"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, kind: str, sanitizer: str, tmp_path: Path) -> None:
    """Each tensor is memory of its own."""
    model = NETWORKS[name](kind == "int8").SerializeToString()
    graph = run_passes(load_graph(model))
    found = GraphKernels(
        fuse(graph, templates_of(CUDA)),
        CUDA,
        templates_of(CUDA),
        Chooser("cuda", CUDA.name),
        Dumps(),
    )
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=graph[n].shape).astype(graph[n].dtype) for n in graph.inputs]
    memory = {n: garbage(b) for _, names, _ in found.calls for b, n in names.items()}
    memory |= found.memory.constants | dict(zip(graph.inputs, arrays, strict=True))
    calls = [
        make_call(kernel, lambda b, names=names: (names[b], 0))
        for made, names, _ in found.calls
        for kernel in made.kernels
    ]
    source = found.program("emulated").source
    made, report = run_sanitized(source, calls, memory, sanitizer, tmp_path)
    assert made, report
    results = vdla.compile(model, "cpu").run(*arrays)
    for output, value in zip(graph.outputs, results, strict=True):
        got = made[found.memory.source(output)].view(value.dtype).reshape(value.shape)
        if kind == "int8":
            np.testing.assert_allclose(got, value, rtol=0, atol=ENDS_IN_FLOAT.get(name, 0))
        else:
            np.testing.assert_allclose(got, value, rtol=FLOAT_RTOL, atol=FLOAT_ATOL)


# ---- what is wrong -----------------------------------------------------------------------------


def fault(func: PrimFunc, sanitizer: str, folder: Path) -> str:
    result, report = run_func(func, arrays_for(func), sanitizer, folder)
    assert result is None
    return report


@pytest.mark.slow
def test_a_store_that_is_one_too_far(tmp_path: Path) -> None:
    """Of eight threads the last one stores behind the last of 16 elements."""
    report = fault(kernel(Store(Y, (T + 9,), T), T, B, X, Y), "address", tmp_path)
    assert re.search("heap-buffer-overflow.* 0 bytes .*64-byte region", report, re.DOTALL)


@pytest.mark.slow
def test_a_barrier_that_is_missing(tmp_path: Path) -> None:
    report = fault(without_barrier(PROGRAMS["stencil"](), 0), "thread", tmp_path)
    assert "data race" in report and "stencil_y" in report


@pytest.mark.sweep
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_index_of_shared_memory_that_is_one_too_high(name: str, tmp_path: Path) -> None:
    assert "out of bounds for type" in fault(shifted_reads(PROGRAMS[name]()), "address", tmp_path)


@pytest.mark.sweep
def test_a_sum_that_is_too_large(tmp_path: Path) -> None:
    """A sum of integers that the text does not say to wrap."""
    func = kernel(Store(Y, (T,), T * Const(1 << 30)), T, B, X, Y)
    assert "signed integer overflow" in fault(func, "address", tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "which"), DROPPED)
def test_every_missing_barrier(name: str, which: int, tmp_path: Path) -> None:
    report = fault(without_barrier(PROGRAMS[name](), which), "thread", tmp_path)
    assert "data race" in report


@pytest.mark.sweep
@pytest.mark.parametrize("which", range(cores.count(cores.product("float16"), cores.Barrier)))
def test_every_missing_barrier_of_tensor_cores(which: int, tmp_path: Path) -> None:
    report = fault(without_barrier(cores.product("float16"), which), "thread", tmp_path)
    assert "data race" in report
