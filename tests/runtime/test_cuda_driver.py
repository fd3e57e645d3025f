"""The launcher on a stand-in for the driver, whose kernels are emulated: memory, graph, replay."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
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
from vdla.runtime.gpu.nvrtc import compile_cubin, has_compiler
from vdla.runtime.gpu.program import KernelProgram, TensorMap
from vdla.runtime.gpu.saved import describe

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
def test_reports_name_the_gpu(driver: ctypes.CDLL) -> None:
    assert cuda.device_text(driver) == "stand-in, CUDA 13.2"


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
def test_a_trial_is_one_graph_of_many_runs(driver: ctypes.CDLL) -> None:
    """Captured once for each number of runs; its second replay is timed."""
    step = vdla.compile(DIGITS, "cuda", emulate=True).compiled.steps[0]
    assert isinstance(step, KernelProgram)
    session = CudaSession(step, driver, emulated_cubin)
    before = driver.standin_launches(), driver.standin_replays()
    for _ in range(2):
        assert session.time_runs(step.calls, 3) == pytest.approx(1e-3)  # a replay of the stand-in
    after = driver.standin_launches(), driver.standin_replays()
    assert (after[0] - before[0], after[1] - before[1]) == (3 * len(step.calls), 4)


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


MAIN = """\
#include "model.c"
int main(int count, char **given) {
    size_t size;
    void *code = vdla_cuda_read(given[1], &size), *parameters = vdla_cuda_read("model.bin", &size);
    void *inputs[8], *outputs[8];
    vdla_cuda *session;
    if (count != 2 || !code || !parameters) return 1;
    if (vdla_cuda_open(&vdla_model, code, parameters, &session)) return 2;
    for (unsigned i = 0; i < vdla_model.input_count; ++i)
        if (!(inputs[i] = vdla_cuda_read(vdla_model.inputs[i].name, &size))) return 3;
    for (unsigned i = 0; i < vdla_model.output_count; ++i)
        outputs[i] = malloc(vdla_model.outputs[i].bytes);
    for (int turn = 0; turn < 2; ++turn)
        if (vdla_cuda_run(session, (const void *const *)inputs, outputs)) return 4;
    for (unsigned i = 0; i < vdla_model.output_count; ++i)
        fwrite(outputs[i], 1, vdla_model.outputs[i].bytes, stdout);
    vdla_cuda_close(session);
    return 0;
}
"""


def run_in_c(program: KernelProgram, folder: Path, driver: ctypes.CDLL,
             arrays: Sequence[np.ndarray]) -> bytes:  # fmt: skip
    """What a host in C prints of a saved program, whose machine code is the path of the emulated
    kernels."""
    (folder / "main.c").write_text(MAIN)
    (folder / "code").write_bytes(emulated_cubin(program.source, (9, 0)))
    for tensor, array in zip(program.inputs, arrays, strict=True):
        (folder / tensor.name).write_bytes(array.tobytes())
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", "main", "main.c"]
    subprocess.run([*command, driver._name], check=True, cwd=folder)
    return subprocess.run(["./main", "code"], check=True, cwd=folder, stdout=-1).stdout


@pytest.mark.slow
def test_a_saved_module_runs_from_c(driver: ctypes.CDLL, tmp_path: Path) -> None:
    module = vdla.compile(DIGITS, "cuda", emulate=True)
    module.save(tmp_path / "saved")
    again = vdla.load(tmp_path / "saved")
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    arrays = model_inputs(module, None, 0)
    printed = run_in_c(step, tmp_path / "saved", driver, arrays)
    [wanted] = module.run(*arrays)
    assert printed == wanted.tobytes()
    np.testing.assert_array_equal(again.run(*arrays)[0], wanted)
    cubins = sorted(path.name for path in (tmp_path / "saved").glob("*.cubin"))
    assert cubins == (["model.sm_80.cubin", "model.sm_90a.cubin"] if has_compiler() else [])


@pytest.mark.slow
def test_boxes_from_c(driver: ctypes.CDLL, tmp_path: Path) -> None:
    func = group_product("float16", rows=64, columns=64, depth=64, stages=4)
    program = FuncKernels.of(func, CUDA, "emulated", Dumps()).program
    files: dict[str, bytes] = {}
    describe(program, "model", files)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    arrays = arrays_for(func)
    printed = np.frombuffer(run_in_c(program, tmp_path, driver, arrays), np.float32)
    np.testing.assert_array_equal(printed.reshape(1, 70, 48), expected(arrays))


@pytest.mark.slow
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


@pytest.mark.skipif(not has_compiler(), reason="nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize("capability", [(7, 5), (8, 6), (12, 0)])
def test_another_architecture_is_one_line(capability: tuple[int, int]) -> None:
    program = FuncKernels.of(group_product("float16"), CUDA, "cuda", Dumps()).program
    major, minor = capability
    with pytest.raises(
        VdlaError, match=f"for compute capability {major}.{minor} .*sm_90a 9.0"
    ) as e:
        compile_cubin(program.source, capability)
    assert "\n" not in str(e.value)
