"""Compiling for a target by its name, in one call."""

from __future__ import annotations

from vdla.compiler.build import CompiledModel, build
from vdla.compiler.graph.ir import Graph
from vdla.compiler.partition import assign_targets
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.isa.memory import MemoryParams
from vdla.isa.params import PRESETS, HwParams


def placed(graph: Graph, hw: HwParams | None = None) -> Graph:
    """The graph, its nodes on the accelerator where it takes them, else on the host."""
    options = Options(hw or PRESETS["16x16"], MemoryParams.load("vta"))
    return assign_targets(graph, find_target("sim", options))


def build_for(
    target: str,
    model: object,
    hw: HwParams,
    memory: MemoryParams,
    vthreads: int = 2,
    threads: int = 1,
) -> CompiledModel:
    """A model for ``sim``, ``cpu`` or another target."""
    return build(model, find_target(target, Options(hw, memory, vthreads, threads)))
