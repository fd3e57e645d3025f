"""One loop program as kernels, to be called with NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....runtime.gpu.devices import open_session
from ....runtime.gpu.program import KernelProgram, Place
from ....runtime.native import TensorType
from ...arena import Lifetime, plan_arena
from ...dumps import Dumps
from ...tir.ir import Buffer, PrimFunc, written_params
from .dialects import Dialect
from .graph_code import aligned, make_call
from .kernels import find_temporaries, make_kernels
from .scopes import element_bytes, element_count
from .text import print_module


@dataclass(frozen=True, eq=False)
class FuncKernels:
    """A program of launches; call it with one array for each parameter, of which it writes some."""

    func: PrimFunc
    program: KernelProgram

    @staticmethod
    def of(func: PrimFunc, dialect: Dialect, device: str, dumps: Dumps) -> FuncKernels:
        """The kernels of launches (``kernels.to_launches``) for a device."""
        kernels = make_kernels(func, "", dialect)
        for kernel in kernels:
            dumps.write(kernel.name, dialect.suffix, lambda k=kernel: k.text)
        lives: dict[Buffer, Lifetime] = {
            b: Lifetime(aligned(element_count(b) * element_bytes(b.dtype)), 0, 0)
            for b in (*func.params, *find_temporaries(func))
        }
        offsets, plan = plan_arena(lives)

        calls = tuple(make_call(k, lambda b: ("arena", offsets[b])) for k in kernels)
        written = written_params(func)
        inputs = tuple(_type(b) for b in func.params if b not in written)
        outputs = tuple(_type(b) for b in written)
        places: dict[str, Place] = {b.name: ("arena", offsets[b]) for b in func.params}
        source = print_module([k.text for k in kernels], dialect)
        program = KernelProgram(
            func.name, device, source, calls, inputs, outputs, places, np.empty(0, np.uint8), plan,
            open_session,
        )  # fmt: skip
        return FuncKernels(func, program)

    def __call__(self, *arrays: np.ndarray) -> None:
        """Run; results go to the arrays of the parameters that are written."""
        written = written_params(self.func)
        by_buffer = dict(zip(self.func.params, arrays, strict=True))
        given = [by_buffer[b] for b in self.func.params if b not in written]
        for buffer, result in zip(written, self.program.run(*given), strict=True):
            by_buffer[buffer][...] = result


def _type(buffer: Buffer) -> TensorType:
    return TensorType(buffer.name, buffer.shape, buffer.dtype)
