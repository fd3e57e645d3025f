"""OpenCL kernels on the first device of a platform, through pyopencl (the extra ``opencl``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ...isa.errors import VdlaError
from ..cache import cache_dir
from .program import KernelCall, KernelProgram, TensorMap

STANDARD = "-cl-std=CL1.2"
#: Square roots and quotients of float32 are rounded correctly, where the device can do that.
EXACT = "-cl-fp32-correctly-rounded-divide-sqrt"


@cache
def _context() -> tuple[Any, Any]:
    """The first device, preferring a GPU, and pyopencl.

    Raises
    ------
    VdlaError
        Where there is no device.
    """
    os.environ.setdefault("POCL_CACHE_DIR", str(cache_dir() / "pocl"))
    import pyopencl as cl  # pyright: ignore[reportMissingImports]

    try:
        devices = [device for p in cl.get_platforms() for device in p.get_devices()]
    except cl.Error:
        devices = []
    if not devices:
        raise VdlaError(
            "target opencl: expected an OpenCL device, found none; install a driver, or pocl with "
            "pip install 'pyopencl[pocl]'"
        )
    devices.sort(key=lambda device: not device.type & cl.device_type.GPU)
    return cl.Context(devices[:1]), cl


class OpenClSession:
    """A program's kernels, parameters and arena on an OpenCL device."""

    def __init__(self, program: KernelProgram):
        self.context, cl = _context()
        self.cl = cl
        device = self.context.devices[0]
        self.queue = cl.CommandQueue(self.context)
        options: list[str] = [STANDARD]
        if device.get_info(cl.device_info.SINGLE_FP_CONFIG) & (1 << 7):
            options.append(EXACT)
        self.module = self._build(program, options)
        self.kernels = {name: cl.Kernel(self.module, name)
                        for name in {call.kernel for call in program.calls}}  # fmt: skip
        flags = cl.mem_flags
        arena = max(1, program.plan.planned_bytes)
        self.memory = {"arena": cl.Buffer(self.context, flags.READ_WRITE, arena)}
        if program.parameters.size:
            self.memory["parameters"] = cl.Buffer(
                self.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=program.parameters
            )
        self._parts: dict[tuple[str, int], Any] = {}

    def _build(self, program: KernelProgram, options: list[str]) -> Any:
        try:
            return self.cl.Program(self.context, program.source).build(options)
        except self.cl.RuntimeError as error:
            lines = [line for line in str(error).splitlines() if "error" in line]
            raise VdlaError(
                f"graph {program.name}: the OpenCL compiler failed: {(lines or [str(error)])[0]}"
            ) from None

    def write(self, offset: int, data: np.ndarray) -> None:
        if data.size:
            self.cl.enqueue_copy(
                self.queue, self.memory["arena"], data, dst_offset=offset, is_blocking=True
            )

    def launch(self, calls: Sequence[KernelCall]) -> None:
        for call in calls:
            kernel = self.kernels[call.kernel]
            for index, argument in enumerate(call.arguments):
                assert not isinstance(argument, TensorMap)  # OpenCL has no copy engine
                kernel.set_arg(index, self._part(*argument))
            size = tuple(g * b for g, b in zip(call.grid, call.block, strict=True))
            self.cl.enqueue_nd_range_kernel(self.queue, kernel, size, call.block)
        self.queue.finish()

    def _part(self, memory: str, offset: int) -> Any:
        """The rest of a memory from an offset on: kernels stay inside their arguments."""
        if (memory, offset) not in self._parts:
            whole = self.memory[memory]
            self._parts[memory, offset] = whole[offset : whole.size] if offset else whole
        return self._parts[memory, offset]

    def read(self, offset: int, data: np.ndarray) -> None:
        self.cl.enqueue_copy(
            self.queue, data, self.memory["arena"], src_offset=offset, is_blocking=True
        )
