"""The launcher on a stand-in for the driver, whose kernels are emulated: memory, graph, replay."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.cli.arrays import model_inputs
from vdla.compiler.dumps import Dumps
from vdla.compiler.targets.gpu.dialects import CUDA
from vdla.compiler.targets.gpu.func_code import FuncKernels
from vdla.isa.errors import VdlaError
from vdla.runtime.gpu import cuda
from vdla.runtime.gpu.cuda import CudaSession
from vdla.runtime.gpu.emulated import emulated_library
from vdla.runtime.gpu.program import KernelProgram, TensorMap

from ..compiler.targets.gpu.test_tensor_cores import arrays_for, expected
from ..compiler.targets.gpu.test_warpgroups import group_product

DIGITS = Path(__file__).parents[2] / "examples" / "models" / "digits_int8.onnx"
STANDIN = Path(__file__).with_name("gpu_standin.cpp")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", library, STANDIN, "-ldl"], check=True
    )
    return ctypes.CDLL(str(library))


def emulated_cubin(source: str, capability: tuple[int, int]) -> bytes:
    """The path of the emulated kernels, which the stand-in takes for machine code."""
    assert capability == (9, 0)
    return str(emulated_library(source)).encode() + b"\0"


def opened(driver: ctypes.CDLL, found: list[CudaSession]) -> Callable[..., CudaSession]:
    def open(program: KernelProgram) -> CudaSession:
        found.append(CudaSession(program, driver, emulated_cubin))
        return found[-1]

    return open


@pytest.mark.slow
def test_a_network_is_captured_once_and_replayed(driver: ctypes.CDLL) -> None:
    module = vdla.compile(DIGITS, "cuda", emulate=True)
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    sessions: list[CudaSession] = []
    program = replace(step, open=opened(driver, sessions))
    before = driver.standin_launches(), driver.standin_replays()
    for seed in range(3):
        arrays = model_inputs(module, None, seed)
        for got, wanted in zip(program.run(*arrays), module.run(*arrays), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert len(sessions) == 1
    after = driver.standin_launches(), driver.standin_replays()
    assert (after[0] - before[0], after[1] - before[1]) == (len(step.calls), 3)


@pytest.mark.slow
def test_boxes_and_large_shared_memory(driver: ctypes.CDLL) -> None:
    """The launcher makes tensor maps, and asks for more shared memory than a kernel has anyway."""
    func = group_product("float16", rows=64, columns=64, depth=64, stages=4)
    program = FuncKernels.of(func, CUDA, "emulated", Dumps()).program
    [call] = program.calls
    assert call.shared_bytes > 48 << 10
    assert len([a for a in call.arguments if isinstance(a, TensorMap)]) == 2
    sessions: list[CudaSession] = []
    arrays = arrays_for(func)
    [result] = replace(program, open=opened(driver, sessions)).run(*arrays)
    np.testing.assert_array_equal(result, expected(arrays))


def test_what_is_missing_is_one_line(driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    module = vdla.compile(DIGITS, "cuda", emulate=True)
    [step] = module.compiled.steps
    monkeypatch.setenv("VDLA_STANDIN_EMPTY", "1")
    with pytest.raises(VdlaError, match="expected an NVIDIA GPU, found none"):
        CudaSession(step, driver, emulated_cubin)
    monkeypatch.delenv("VDLA_STANDIN_EMPTY")
    monkeypatch.setenv("VDLA_STANDIN_FAILS", "1")
    with pytest.raises(VdlaError, match=r"cuInit failed with CUDA_ERROR_NO_DEVICE \(100\)"):
        CudaSession(step, driver, emulated_cubin)
    monkeypatch.setattr(cuda, "LIBRARY", "libcuda.so.of.nobody")
    with pytest.raises(VdlaError, match=r"expected the driver of an NVIDIA GPU .* --emulate"):
        CudaSession(step)
