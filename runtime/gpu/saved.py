"""Kernel programs in saved modules: the kernels' text, the parameters, and the launches as JSON;
for CUDA also machine code, where NVIDIA's compiler is at hand, and tables for hosts in C."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..native import MemoryPlan, TensorType, aligned_memory
from .devices import open_session
from .nvrtc import compile_cubin, has_compiler, nvrtc_architecture
from .program import KernelCall, KernelProgram, Place, TensorMap


def describe(program: KernelProgram, stem: str, files: dict[str, bytes]) -> dict[str, Any]:
    """What a manifest says about a program; its files are added to ``files``."""
    source, parameters = f"{stem}.{program.suffix}", f"{stem}.bin"
    files[source] = program.source.encode()
    files[parameters] = program.parameters.tobytes()
    if program.device != "opencl":
        files[f"{stem}.c"] = host_code(program).encode()
        files[HEADER.name] = HEADER.read_bytes()
        files |= {f"{stem}.{name}.cubin": code for name, code in _cubins(program.source)}
    return {
        "name": program.name,
        "kernels": source,
        "device": program.device,
        "parameters": parameters,
        "inputs": [asdict(tensor) for tensor in program.inputs],
        "outputs": [asdict(tensor) for tensor in program.outputs],
        "places": program.places,
        "launches": [asdict(call) for call in program.calls],
    }


def _cubins(source: str) -> Iterator[tuple[str, bytes]]:
    """Machine code by the name of its architecture; none without NVIDIA's compiler."""
    if not has_compiler():
        return
    needs_latest = any(word in source for word in ("wgmma.", "cp.async.bulk"))
    for capability in ((9, 0),) if needs_latest else ((8, 0), (9, 0)):
        yield nvrtc_architecture(capability), compile_cubin(source, capability)


def restore(step: Mapping[str, Any], plan: MemoryPlan, files: Mapping[str, bytes]) -> KernelProgram:
    """The program that :func:`describe` described."""
    raw = np.frombuffer(files[step["parameters"]], np.uint8)
    parameters = aligned_memory(raw.size)
    parameters[...] = raw
    calls = tuple(
        KernelCall(
            call["kernel"], _size(call["grid"]), _size(call["block"]),
            tuple(map(_argument, call["arguments"])), call["shared_bytes"],
        )
        for call in step["launches"]
    )  # fmt: skip
    places = {name: (memory, offset) for name, (memory, offset) in step["places"].items()}
    inputs, outputs = (
        tuple(TensorType(t["name"], tuple(t["shape"]), t["dtype"]) for t in step[key])
        for key in ("inputs", "outputs")
    )
    return KernelProgram(
        step["name"], step["device"], files[step["kernels"]].decode(), calls, inputs, outputs,
        places, parameters, plan, open_session,
    )  # fmt: skip


def _argument(found: Any) -> Place | TensorMap:
    if isinstance(found, list):
        memory, offset = found
        return memory, offset
    sizes = {key: tuple(found[key]) for key in ("shape", "box")}
    return TensorMap(**{**found, **sizes})


def _size(numbers: list[int]) -> tuple[int, int, int]:
    x, y, z = numbers
    return x, y, z


# ---- tables in C, for ``vdla_cuda.h``, which runs a program by the driver ------------------------

HEADER = Path(__file__).with_name("vdla_cuda.h")
_MEMORIES = {"arena": "VDLA_ARENA", "parameters": "VDLA_PARAMETERS"}


def host_code(program: KernelProgram) -> str:
    """What a C program needs to know of a model, as ``vdla_model``."""
    lines = ["/* Written by the compiler; see vdla_cuda.h. */", f'#include "{HEADER.name}"', ""]
    launches = []
    for number, call in enumerate(program.calls):
        arguments = ", ".join(map(_c_argument, call.arguments))
        lines.append(f"static const vdla_argument arguments_{number}[] = {{{arguments}}};")
        grid, block = (", ".join(map(str, size)) for size in (call.grid, call.block))
        launches.append(
            f'    {{"{call.kernel}", {{{grid}}}, {{{block}}}, {call.shared_bytes}, '
            f"{len(call.arguments)}, arguments_{number}}},"
        )
    lines += ["static const vdla_launch launches[] = {", *launches, "};"]
    for name, tensors in (("inputs", program.inputs), ("outputs", program.outputs)):
        rows = [f"    {_c_tensor(t, program.places.get(t.name, ('arena', 0)))}," for t in tensors]
        lines += [f"static const vdla_cuda_tensor {name}[] = {{", *rows, "};"]
    sizes = f"{program.plan.planned_bytes}, {program.parameters.size}"
    counts = f"{len(program.calls)}, {len(program.inputs)}, {len(program.outputs)}"
    lines.append(
        f"const vdla_cuda_model vdla_model = {{{sizes}, {counts}, launches, inputs, outputs}};"
    )
    return "\n".join((*lines, ""))


def _c_argument(argument: Place | TensorMap) -> str:
    if not isinstance(argument, TensorMap):
        memory, offset = argument
        return f"{{{_MEMORIES[memory]}, {offset}, 0, 0, {{0}}, {{0}}}}"
    shape, box = (", ".join(map(str, sizes[::-1])) for sizes in (argument.shape, argument.box))
    size = np.dtype(argument.dtype).itemsize
    return (
        f"{{{_MEMORIES[argument.memory]}, {argument.offset}, {len(argument.shape)}, {size}, "
        f"{{{shape}}}, {{{box}}}}}"
    )


def _c_tensor(tensor: TensorType, place: Place) -> str:
    memory, offset = place
    return (
        f'{{"{tensor.name}", "{tensor.dtype}", {_MEMORIES[memory]}, {offset}, {tensor.size_bytes}}}'
    )
