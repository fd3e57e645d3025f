"""Tables in C of a program of CUDA kernels, which ``vdla_cuda.h`` runs by the driver."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..native import TensorType
from .program import KernelProgram, Place, TensorMap

HEADER = Path(__file__).with_name("vdla_cuda.h")
_MEMORIES = {"arena": "VDLA_ARENA", "parameters": "VDLA_PARAMETERS"}


def host_code(program: KernelProgram) -> str:
    """What a C program needs to know of a model, as ``vdla_model``."""
    lines = ["/* Written by the compiler; see vdla_cuda.h. */", f'#include "{HEADER.name}"', ""]
    launches = []
    for number, call in enumerate(program.calls):
        arguments = ", ".join(map(_argument, call.arguments))
        lines.append(f"static const vdla_argument arguments_{number}[] = {{{arguments}}};")
        grid, block = (", ".join(map(str, size)) for size in (call.grid, call.block))
        launches.append(
            f'    {{"{call.kernel}", {{{grid}}}, {{{block}}}, {call.shared_bytes}, '
            f"{len(call.arguments)}, arguments_{number}}},"
        )
    lines += ["static const vdla_launch launches[] = {", *launches, "};"]
    for name, tensors in (("inputs", program.inputs), ("outputs", program.outputs)):
        rows = [f"    {_tensor(t, program.places.get(t.name, ('arena', 0)))}," for t in tensors]
        lines += [f"static const vdla_cuda_tensor {name}[] = {{", *rows, "};"]
    sizes = f"{program.plan.planned_bytes}, {program.parameters.size}"
    counts = f"{len(program.calls)}, {len(program.inputs)}, {len(program.outputs)}"
    lines.append(
        f"const vdla_cuda_model vdla_model = {{{sizes}, {counts}, launches, inputs, outputs}};"
    )
    return "\n".join((*lines, ""))


def _argument(argument: Place | TensorMap) -> str:
    if not isinstance(argument, TensorMap):
        memory, offset = argument
        return f"{{{_MEMORIES[memory]}, {offset}, 0, 0, {{0}}, {{0}}}}"
    shape, box = (", ".join(map(str, sizes[::-1])) for sizes in (argument.shape, argument.box))
    size = np.dtype(argument.dtype).itemsize
    return (
        f"{{{_MEMORIES[argument.memory]}, {argument.offset}, {len(argument.shape)}, {size}, "
        f"{{{shape}}}, {{{box}}}}}"
    )


def _tensor(tensor: TensorType, place: Place) -> str:
    memory, offset = place
    return (
        f'{{"{tensor.name}", "{tensor.dtype}", {_MEMORIES[memory]}, {offset}, {tensor.size_bytes}}}'
    )
