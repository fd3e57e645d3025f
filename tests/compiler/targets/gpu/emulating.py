"""Loop programs as kernels on the emulated GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from vdla.compiler.targets.gpu.dialects import CUDA
from vdla.compiler.targets.gpu.kernels import Kernel, find_temporaries, make_kernels
from vdla.compiler.targets.gpu.scopes import element_count
from vdla.compiler.targets.gpu.text import print_module
from vdla.compiler.tir.ir import Buffer, PrimFunc
from vdla.runtime.gpu.emulated import ORDERS, EmulatedKernels, load_emulated, map_bytes
from vdla.runtime.gpu.program import TensorMap


@dataclass(frozen=True)
class Emulated:
    """A program's kernels; ``prefix`` begins their names in the text."""

    func: PrimFunc
    kernels: list[Kernel]

    @staticmethod
    def of(func: PrimFunc, prefix: str = "") -> Emulated:
        return Emulated(func, make_kernels(func, prefix, CUDA))

    def run(self, code: EmulatedKernels, arrays: Sequence[np.ndarray], order: str) -> np.ndarray:
        """The last parameter, whose memory and that of all temporaries begin as garbage."""
        *inputs, output = self.func.params
        memory: dict[Buffer, np.ndarray] = dict(zip(inputs, arrays, strict=True))
        for buffer in (output, *find_temporaries(self.func)):
            kind = "uint8" if buffer.dtype == "bool" else buffer.dtype
            memory[buffer] = np.full(element_count(buffer), 85, kind)
        for kernel in self.kernels:
            given = arguments(kernel, memory)
            addresses = [array.ctypes.data for array in given]
            code.launch(kernel.name, kernel.grid, kernel.block, addresses, order)
        return memory[output].reshape(output.shape).view(output.dtype)


def arguments(kernel: Kernel, memory: Mapping[Buffer, np.ndarray]) -> list[np.ndarray]:
    """What a kernel's arguments point to: arrays, and the bytes of tensor maps."""
    found = []
    for argument in kernel.arguments:
        if isinstance(argument, Buffer):
            found.append(memory[argument])
        else:
            buffer = argument.buffer
            tensor = TensorMap("arena", 0, buffer.dtype, buffer.shape, argument.shape)
            found.append(map_bytes(memory[buffer].ctypes.data, tensor))
    return found


def emulate(func: PrimFunc, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A program's result in every order of threads."""
    made = Emulated.of(func)
    code = load_emulated(print_module([k.text for k in made.kernels], CUDA))
    return [made.run(code, arrays, order) for order in ORDERS]
