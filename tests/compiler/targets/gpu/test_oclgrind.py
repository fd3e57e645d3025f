"""Small networks, with the kernels of all templates, under Oclgrind: it finds nothing, and results
are the CPU target's. It finds what tests break on purpose (``make gpu-emulated``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.cli.arrays import model_inputs
from vdla.compiler.dumps import Dumps
from vdla.compiler.targets.gpu.dialects import OPENCL
from vdla.compiler.targets.gpu.func_code import FuncKernels
from vdla.compiler.te.expr import Expr
from vdla.compiler.tir.ir import Allocate, Barrier, If, PrimFunc, Store, seq
from vdla.runtime.gpu.program import KernelProgram

from .networks import NETWORKS
from .oclgrind import FOLDER, is_installed, run_watched
from .test_networks import ENDS_IN_FLOAT, FLOAT_ATOL, FLOAT_RTOL
from .test_rows import COLUMNS, LONG, model_of
from .test_threads import (
    DROPPED,
    PROGRAMS,
    B,
    S,
    T,
    X,
    Y,
    arrays_for,
    expected,
    kernel,
    shifted_reads,
    without_barrier,
)

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(not is_installed(), reason=f"no Oclgrind in {FOLDER} (make gpu-emulated)"),
]

GAIN = np.linspace(0.5, 1.5, COLUMNS, dtype=np.float32)
MODELS = {f"{name} {kind}": lambda make=make, kind=kind: make(kind == "int8").SerializeToString()
          for name, make in NETWORKS.items() for kind in ("int8", "float32")}  # fmt: skip
MODELS |= {name: lambda text=text, result=result: model_of(text, 1, result, g=GAIN)
           for name, (text, result) in LONG.items()}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_networks_have_no_fault(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    module = vdla.compile(model, "opencl")
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    arrays = model_inputs(module, None, 0)
    made, report = run_watched(step, arrays, tmp_path)
    assert not report
    network, _, kind = name.partition(" ")
    for got, wanted in zip(made, vdla.compile(model, "cpu").run(*arrays), strict=True):
        if kind == "int8":
            np.testing.assert_allclose(got, wanted, rtol=0, atol=ENDS_IN_FLOAT.get(network, 0))
        else:
            np.testing.assert_allclose(got, wanted, rtol=FLOAT_RTOL, atol=FLOAT_ATOL)


def watched(func: PrimFunc, folder: Path) -> str:
    """What Oclgrind says of kernels that read ones."""
    program = FuncKernels.of(func, OPENCL, "opencl", Dumps()).program
    arrays = [np.ones(tensor.shape, tensor.dtype) for tensor in program.inputs]
    return run_watched(program, arrays, folder)[1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_by_hand_have_no_fault(name: str, tmp_path: Path) -> None:
    func = PROGRAMS[name]()
    arrays = arrays_for(func)
    program = FuncKernels.of(func, OPENCL, "opencl", Dumps()).program
    [result], report = run_watched(program, arrays, tmp_path)
    assert not report
    np.testing.assert_array_equal(result, expected(name, arrays))


@pytest.mark.parametrize(("name", "which"), DROPPED)
def test_every_dropped_barrier_is_a_race(name: str, which: int, tmp_path: Path) -> None:
    report = watched(without_barrier(PROGRAMS[name](), which), tmp_path)
    assert "data race at local memory" in report


def test_an_index_that_is_one_too_high(tmp_path: Path) -> None:
    report = watched(shifted_reads(PROGRAMS["stencil"]()), tmp_path)
    assert "Invalid read of size 4 at local memory" in report


@pytest.mark.parametrize(("place", "blocks"), [(T // 2, 1), (T, 2)], ids=["threads", "blocks"])
def test_stores_to_one_element(place: Expr, blocks: int, tmp_path: Path) -> None:
    report = watched(kernel(Store(Y, (place,), T + B), T, B, X, Y, blocks=blocks), tmp_path)
    assert "Write-write data race at global memory" in report


def test_a_barrier_that_not_all_threads_reach(tmp_path: Path) -> None:
    body = If(T < 4, seq([Store(S, (T,), T), Barrier()]))
    report = watched(kernel(Allocate(S, body), T, B, X, Y), tmp_path)
    assert "divergence" in report
