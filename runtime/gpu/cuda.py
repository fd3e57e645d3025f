"""CUDA kernels on an NVIDIA GPU, by its driver (``libcuda.so.1``) and no package.

A program's launches are captured once as one graph, which every run replays.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from itertools import pairwise
from typing import Any

import numpy as np

from ...isa.errors import VdlaError
from ..native import aligned_memory
from .nvrtc import compile_cubin
from .program import KernelCall, KernelProgram, Place, TensorMap

LIBRARY = "libcuda.so.1"
#: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_CAPABILITY = (75, 76)
#: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
_MOST_SHARED = 8
#: Bytes of CUtensorMap; CU_TENSOR_MAP_DATA_TYPE_UINT8, _UINT16 and _UINT32 by size;
#: CU_TENSOR_MAP_SWIZZLE_32B, _64B and _128B by the bytes of a row;
#: CU_TENSOR_MAP_L2_PROMOTION_L2_128B.
_MAP_BYTES = 128
_MAP_DTYPES = {1: 0, 2: 1, 4: 2}
_MAP_SWIZZLES = {32: 1, 64: 2, 128: 3}
_MAP_PROMOTION = 2
#: CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL.
_NON_BLOCKING, _THREAD_LOCAL = 1, 1

#: Makes machine code of a text for a compute capability such as (9, 0).
Compile = Callable[[str, tuple[int, int]], bytes]


def capability_of_device() -> tuple[int, int] | None:
    """The compute capability of the first GPU; None without a driver or a GPU."""
    try:
        driver = load_driver()
    except VdlaError:
        return None
    device, major, minor = c_int(), c_int(), c_int()
    if driver.cuInit(c_uint(0)) or driver.cuDeviceGet(byref(device), c_int(0)):
        return None
    for attribute, value in zip(_CAPABILITY, (major, minor), strict=True):
        if driver.cuDeviceGetAttribute(byref(value), c_int(attribute), device):
            return None
    return major.value, minor.value


def device_text(driver: ctypes.CDLL | None = None) -> str:
    """The name of the first GPU, and what its driver supports, for reports.

    Raises
    ------
    VdlaError
        Without a driver or a GPU.
    """
    driver = driver or load_driver()
    name, device, version = ctypes.create_string_buffer(256), c_int(), c_int()
    found = (
        driver.cuInit(c_uint(0))
        or driver.cuDeviceGet(byref(device), c_int(0))
        or driver.cuDeviceGetName(name, c_int(len(name)), device)
        or driver.cuDriverGetVersion(byref(version))
    )
    if found:
        raise VdlaError("target cuda: expected an NVIDIA GPU, found none; use --emulate")
    return f"{name.value.decode()}, CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def load_driver() -> ctypes.CDLL:
    """The driver's library.

    Raises
    ------
    VdlaError
        Where it is missing.
    """
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        raise VdlaError(
            f"target cuda: expected the driver of an NVIDIA GPU ({LIBRARY}), found none; vdla "
            "run --emulate runs the kernels on the processor"
        ) from None


class CudaSession:
    """A program's kernels, parameters and arena on the first GPU."""

    def __init__(
        self,
        program: KernelProgram,
        driver: ctypes.CDLL | None = None,
        compile: Compile = compile_cubin,
    ):
        self.driver = driver or load_driver()
        self.call("cuInit", c_uint(0))
        self.capability = self._retain_device()
        code = compile(program.source, self.capability)
        module = c_void_p()
        self.call("cuModuleLoadData", byref(module), code)
        self.functions: dict[str, c_void_p] = {}
        for name in dict.fromkeys(call.kernel for call in program.calls):
            self.functions[name] = function = c_void_p()
            self.call("cuModuleGetFunction", byref(function), module, c_char_p(name.encode()))
        for name, size in {c.kernel: c.shared_bytes for c in program.calls}.items():
            if size:
                self.call(
                    "cuFuncSetAttribute", self.functions[name], c_int(_MOST_SHARED), c_int(size)
                )
        self.stream = c_void_p()
        self.call("cuStreamCreate", byref(self.stream), c_uint(_NON_BLOCKING))
        self.memory = {
            "arena": self._allocate(program.plan.planned_bytes),
            "parameters": self._allocate(program.parameters.size),
        }
        self._copy_in(self.memory["parameters"], program.parameters)
        self.graph = self._capture(program.calls)
        self.repeated = {1: self.graph}

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises
        ------
        VdlaError
            With the driver's name of the error.
        """
        status = self.driver[name](*arguments)
        if status:
            text = c_char_p()
            self.driver["cuGetErrorName"](c_int(status), byref(text))
            found = (text.value or b"unknown error").decode()
            raise VdlaError(f"target cuda: {name} failed with {found} ({status})")

    def _retain_device(self) -> tuple[int, int]:
        """Make the first GPU's primary context the current one; return its compute capability."""
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        if not count.value:
            raise VdlaError("target cuda: expected an NVIDIA GPU, found none; use --emulate")
        device, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(device), c_int(0))
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        numbers = []
        for attribute in _CAPABILITY:
            value = c_int()
            self.call("cuDeviceGetAttribute", byref(value), c_int(attribute), device)
            numbers.append(value.value)
        return numbers[0], numbers[1]

    def _allocate(self, size_bytes: int) -> int:
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(max(1, size_bytes)))
        return pointer.value

    def _copy_in(self, address: int, data: np.ndarray) -> None:
        if data.size:
            source = c_void_p(data.ctypes.data)
            self.call("cuMemcpyHtoD_v2", c_uint64(address), source, c_size_t(data.size))

    def _capture(self, calls: Sequence[KernelCall]) -> c_void_p:
        """All launches as one graph, ready to be replayed."""
        self.call("cuStreamBeginCapture_v2", self.stream, c_int(_THREAD_LOCAL))
        for call in calls:
            values = [self._argument(a) for a in call.arguments]
            pointers = (c_void_p * max(1, len(values)))(*(v.ctypes.data for v in values))
            sizes = [c_uint(n) for n in (*call.grid, *call.block)]
            self.call(
                "cuLaunchKernel", self.functions[call.kernel], *sizes, c_uint(call.shared_bytes),
                self.stream, pointers, None,
            )  # fmt: skip
        graph, ready = c_void_p(), c_void_p()
        self.call("cuStreamEndCapture", self.stream, byref(graph))
        self.call("cuGraphInstantiateWithFlags", byref(ready), graph, c_uint64(0))
        return ready

    def _argument(self, argument: Place | TensorMap) -> np.ndarray:
        """The bytes of an argument: an address, or what the driver makes of a tensor for the copy
        engine, whose dimensions begin with that of elements side by side."""
        if not isinstance(argument, TensorMap):
            memory, at = argument
            return np.array([self.memory[memory] + at], np.uint64)
        size, rank = np.dtype(argument.dtype).itemsize, len(argument.shape)
        shape, box = argument.shape[::-1], argument.box[::-1]
        strides = [math.prod(shape[: d + 1]) * size for d in range(rank - 1)]
        found = aligned_memory(_MAP_BYTES)
        self.call(
            "cuTensorMapEncodeTiled", c_void_p(found.ctypes.data), c_int(_MAP_DTYPES[size]),
            c_uint(rank), c_uint64(self.memory[argument.memory] + argument.offset),
            (c_uint64 * rank)(*shape), (c_uint64 * (rank - 1))(*strides), (c_uint * rank)(*box),
            (c_uint * rank)(*([1] * rank)), c_int(0), c_int(_MAP_SWIZZLES[box[0] * size]),
            c_int(_MAP_PROMOTION), c_int(0),
        )  # fmt: skip
        return found

    def write(self, offset: int, data: np.ndarray) -> None:
        self._copy_in(self.memory["arena"] + offset, data)

    def launch(self, calls: Sequence[KernelCall]) -> None:
        self.call("cuGraphLaunch", self.graph, self.stream)
        self.call("cuStreamSynchronize", self.stream)

    def time_replays(self, count: int) -> list[float]:
        """Replay the graph so many times; how long each took, in ms, by the GPU's clock."""
        events = [c_void_p() for _ in range(count + 1)]
        for event in events:
            self.call("cuEventCreate", byref(event), c_uint(0))
        self.call("cuEventRecord", events[0], self.stream)
        for event in events[1:]:
            self.call("cuGraphLaunch", self.graph, self.stream)
            self.call("cuEventRecord", event, self.stream)
        self.call("cuStreamSynchronize", self.stream)
        times_ms = []
        for before, after in pairwise(events):
            found = c_float()
            self.call("cuEventElapsedTime", byref(found), before, after)
            times_ms.append(found.value)
        for event in events:
            self.call("cuEventDestroy_v2", event)
        return times_ms

    def time_runs(self, calls: Sequence[KernelCall], count: int) -> float:
        """Seconds that so many runs of a program's launches take, by the GPU's clock: they are one
        graph, whose second replay counts, so that no time of a launch from the host is in it."""
        if count not in self.repeated:
            self.repeated[count] = self._capture([*calls] * count)
        self.graph = self.repeated[count]
        return self.time_replays(2)[1] / 1e3

    def read(self, offset: int, data: np.ndarray) -> None:
        if data.size:
            address = c_uint64(self.memory["arena"] + offset)
            target = c_void_p(data.ctypes.data)
            self.call("cuMemcpyDtoH_v2", target, address, c_size_t(data.size))
