"""Whole networks on the accelerator, and on the CPU for comparison."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..compiler.build import CompiledModel, build
from ..compiler.targets.base import Options
from ..compiler.targets.registry import find_target
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from .measure import measure
from .workloads import NETWORKS

#: Inferences on the CPU of which the median counts.
CPU_RUNS = 5


def network_rows(
    models: Sequence[str],
    hw: HwParams,
    memory: MemoryParams,
    simulators: tuple[str, ...] = ("sim",),
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """One row for each named network; for all networks if none is named.

    Raises VdlaError for an unknown name, and as :func:`~vdla.bench.measure.measure`.
    """
    for name in models:
        if name not in NETWORKS:
            raise VdlaError(f"models: expected names from {', '.join(NETWORKS)}, got {name!r}")
    rows = []
    for done, name in enumerate(models or NETWORKS):
        rows.append(_row(name, hw, memory, simulators))
        if progress is not None:
            progress(done + 1, len(models or NETWORKS))
    return rows


def _row(
    name: str, hw: HwParams, memory: MemoryParams, simulators: tuple[str, ...]
) -> dict[str, Any]:
    model = NETWORKS[name](hw.batch, True)
    found = measure(model, hw, memory, simulators)
    cpu = find_target("cpu", Options(hw, memory))
    integer = build(model, cpu)
    if not all(map(np.array_equal, integer.run_cpu(found.inputs), found.outputs)):
        raise VdlaError(f"{name}: the accelerator's outputs differ from the host's")
    real = build(NETWORKS[name](hw.batch, False), cpu)
    return {
        "model": name,
        "target": simulators[0],
        "cycles": found.cycles,
        "sim_cycles": found.cycles_of("sim"),
        "rtl_cycles": found.cycles_of("rtl"),
        "macs": found.macs_total,
        "end_to_end": found.macs / (hw.peak_macs_per_cycle * found.cycles),
        "coverage": found.macs / found.macs_total,
        "uncovered": [
            {"layer": layer.name, "macs": layer.macs, "reason": layer.reason}
            for layer in found.compiled.layers
            if layer.runs is None and layer.macs
        ],
        "programs": len(found.compiled.programs),
        "instructions": sum(len(p.insns) for p in found.compiled.programs),
        "sim_wall_s": found.wall_s.get("sim"),
        "rtl_wall_s": found.wall_s.get("rtl"),
        "cpu_ms": _cpu_ms(integer, found.inputs),
        "cpu_float_ms": _cpu_ms(real, found.inputs),
    }


def _cpu_ms(compiled: CompiledModel, inputs: Sequence[np.ndarray]) -> float:
    """Milliseconds of an inference as machine code, the median of a few."""
    compiled.run_cpu(inputs)
    times = []
    for _ in range(CPU_RUNS):
        begin = time.perf_counter()
        compiled.run_cpu(inputs)
        times.append(time.perf_counter() - begin)
    return 1000 * statistics.median(times)
