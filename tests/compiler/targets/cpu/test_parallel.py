"""Parallel loops on threads: the same results as one after another, with memory of their own."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from llvmlite import ir
from vdla.bench.workloads import TABLE_2
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.graph.passes import run_passes as run_graph_passes
from vdla.compiler.targets.cpu import graph_code as cpu
from vdla.compiler.targets.cpu.graph_code import build_cpu, run_passes
from vdla.compiler.targets.cpu.link import link
from vdla.compiler.targets.cpu.llvm import emit_function
from vdla.compiler.targets.cpu.llvm_parallel import has_threads
from vdla.compiler.targets.cpu.processor import host_processor, load, optimise
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import compute, placeholder
from vdla.compiler.tir.lower import lower
from vdla.isa.errors import VdlaError
from vdla.runtime.native import aligned_memory

needs_threads = pytest.mark.skipif(not has_threads(), reason="needs GCC's OpenMP library")


def stencil(outer: int, size: int):
    """Sums of three rows of squares, which each iteration keeps in a buffer of its own, too large
    for the stack."""
    x = placeholder((outer + 2, size), "int32", "x")
    squares = compute(x.shape, lambda i, j: x[i, j] * x[i, j] + i, "squares")
    y = compute(
        (outer, size), lambda i, j: squares[i, j] + squares[i + 1, j] + squares[i + 2, j], "y"
    )
    schedule = create_schedule(y)
    schedule[squares].compute_at(schedule[y], y.axes[0])
    schedule[y].parallel(y.axes[0])
    return lower(schedule, [x, y])


@pytest.mark.fast(1)
@needs_threads
@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("outer", [2, 7, 40])
def test_iterations_are_shared(outer: int, threads: int) -> None:
    size = 3000
    processor = replace(host_processor(), threads=threads)
    module = ir.Module("test")
    func = run_passes(stencil(outer, size), processor)
    function, workspace_bytes = emit_function(func, module, "kernel", processor)
    assert workspace_bytes >= threads * 3 * size * 4  # a buffer for each thread
    code = load(optimise(module, processor), function.name, len(function.args))
    assert "GOMP_parallel" in code.llvm_ir
    x = np.random.default_rng(0).integers(-999, 999, (outer + 2, size)).astype(np.int32)
    squares = x * x + np.arange(outer + 2, dtype=np.int32)[:, None]
    for _ in range(20):
        y = np.zeros((outer, size), np.int32)
        workspace = aligned_memory(workspace_bytes)
        code.entry(x.ctypes.data, y.ctypes.data, workspace.ctypes.data)
        np.testing.assert_array_equal(y, squares[:-2] + squares[1:-1] + squares[2:])


@pytest.mark.slow
@needs_threads
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("name", ["C4", "C8", "D4"])
def test_layers_on_threads_give_the_same_bits(name: str, quantised: bool) -> None:
    layer = next(layer for layer in TABLE_2 if layer.name == name)
    graph = run_graph_passes(load_graph(layer.model(1, quantised)))
    (source,) = graph.inputs
    x = np.random.default_rng(0).normal(0, 1, graph[source].shape).astype(np.float32)
    one, three = build_cpu(graph), build_cpu(graph, threads=3)
    np.testing.assert_array_equal(one.run(x)[0], three.run(x)[0])
    assert b"GOMP_parallel" in three.code.object_file
    assert b"GOMP_parallel" not in one.code.object_file
    assert b"libgomp" in link(three.code.object_file, parallel=True)
    results = []
    callers = [
        threading.Thread(target=lambda: results.append(three.run(x)[0])) for _ in range(3)
    ]  # fmt: skip
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert len(results) == 3
    for result in results:
        np.testing.assert_array_equal(result, one.run(x)[0])


def test_without_the_library_there_is_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "has_threads", lambda: False)
    layer = next(layer for layer in TABLE_2 if layer.name == "C8")
    graph = run_graph_passes(load_graph(layer.model(1, False)))
    with pytest.raises(VdlaError, match=r"expected 1 without .*, got 2; install libgomp"):
        build_cpu(graph, threads=2)
    assert build_cpu(graph).code.processor.threads == 1
