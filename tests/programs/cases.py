"""Networks and machines, and what the compiler makes of each: digests, and cycles."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import onnx
from vdla.bench.networks import make_model
from vdla.bench.workloads import NETWORKS
from vdla.compiler.build import build
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.cpu.graph_code import compile_graph
from vdla.compiler.targets.cpu.processor import Processor
from vdla.compiler.targets.registry import find_target
from vdla.isa.memory import MemoryParams
from vdla.isa.params import PRESETS, HwParams
from vdla.runtime.gpu.program import KernelProgram
from vdla.sim.model.core import count_cycles

from ..processors import DEFAULT, FEATURES, on_processor

EXAMPLES = Path(__file__).parents[2] / "examples" / "models"
VTA = MemoryParams.load("vta")

#: Networks on the accelerator.
ON_ACCELERATOR: Mapping[str, Callable[[], onnx.ModelProto]] = {
    **{
        name: partial(onnx.load, EXAMPLES / f"{name}_int8.onnx")
        for name in ("digits", "digits_transformer")
    },
    **{
        name: partial(make_model, name, 1, True)
        for name in (
            "resnet18", "resnet50", "mobilenet_v1", "mobilenet_v2", "mobilenet_v3",
            "efficientnet_b0", "regnety_002", "bert", "vit_tiny", "gpt2", "dcgan", "dqn",
        )
    },
}  # fmt: skip
MACHINES: Mapping[str, HwParams] = {
    **{name: PRESETS[name] for name in ("16x16", "8x8", "4x4")},
    "16x16 without features": HwParams(),
}
#: A processor whose code does not depend on the one that compiles it.
PROCESSOR = Processor(
    "x86_64-unknown-linux-gnu", "x86-64", tuple(f"+{name}" for name in FEATURES[DEFAULT])
)
#: Options of GPUs by name.
GPUS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "cuda, sm_80": ("cuda", {"arch": "sm_80"}),
    "cuda, sm_90a, float16": ("cuda", {"arch": "sm_90a", "precision": "float16"}),
    "opencl": ("opencl", {}),
}


@lru_cache(1)
def _model(network: str) -> onnx.ModelProto:
    """A network, quantised once for all machines, which follow each other in :data:`CASES`."""
    return ON_ACCELERATOR[network]()


def on_accelerator(network: str, machine: str) -> dict[str, Any]:
    """A network's programs on a machine."""
    hw = MACHINES[machine]
    compiled = build(_model(network), find_target("sim", Options(hw, VTA)))
    digest = hashlib.sha256()
    for program in compiled.programs:
        digest.update(program.encoded())
        for address, data in program.image.items():
            digest.update(address.to_bytes(8, "little") + data)
    return {
        "digest": digest.hexdigest()[:32],
        "programs": len(compiled.programs),
        "host layers": sum(layer.target != "accel" for layer in compiled.layers),
        "cycles": sum(count_cycles(program.table, VTA) for program in compiled.programs),
    }


def on_cpu(network: str, kind: str) -> dict[str, Any]:
    """A network's machine code and parameters."""
    graph = run_passes(load_graph(NETWORKS[network](1, kind == "int8")))
    code = compile_graph(graph, PROCESSOR)
    return {"digest": _digest(code.object_file, code.parameters.tobytes())}


def on_gpu(network: str, kind: str, gpu: str) -> dict[str, Any]:
    """The text of a network's kernels, and how they are launched."""
    name, options = GPUS[gpu]
    target = find_target(name, Options(PRESETS["16x16"], VTA, **options))
    [step] = build(NETWORKS[network](1, kind == "int8"), target).steps
    assert isinstance(step, KernelProgram)
    return {"digest": _digest(step.source.encode(), repr(step.calls).encode())}


def _digest(*texts: bytes) -> str:
    return hashlib.sha256(b"".join(texts)).hexdigest()[:32]


CASES: Mapping[str, Callable[[], dict[str, Any]]] = {
    **{
        f"{network} on {machine}": partial(on_accelerator, network, machine)
        for network in ON_ACCELERATOR
        for machine in MACHINES
    },
    **{
        f"{network}, {kind}, on the CPU": partial(on_cpu, network, kind)
        for network in NETWORKS
        for kind in ("int8", "float32")
    },
    **{
        f"{network}, {kind}, on {gpu}": partial(on_gpu, network, kind, gpu)
        for network in NETWORKS
        for kind in ("int8", "float32")
        for gpu in GPUS
    },
}


def made(name: str) -> dict[str, Any]:
    """What the compiler makes of a case. Models are quantised for one processor, too."""
    with on_processor(DEFAULT):
        return CASES[name]()
