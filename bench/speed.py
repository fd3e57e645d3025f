"""How fast the simulators are: the SimPy model, and the loop that counts cycles alone, beside the
RTL."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..compiler.build import build
from ..compiler.targets.base import Options
from ..compiler.targets.registry import find_target
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..runtime.result import SimResult
from ..sim.model.core import count_cycles, simulate
from .measure import Progress, build_rtl, check_runs, random_inputs, told
from .workloads import NETWORKS


def speed_rows(
    models: Sequence[str],
    hw: HwParams,
    memory: MemoryParams,
    rounds: int,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """One row for each model: name of a network, or a model file with float inputs.

    Simulators take turns, so that other load on the machine affects all of them. Seconds are
    processor time (each simulator runs on one thread), as medians over the rounds; ``sim_wall_s``
    and ``rtl_wall_s`` are wall-clock time. ``first_s`` is the first run of the model in this
    process, which also makes or loads the kernels.

    Raises
    ------
    VdlaError
        For an unknown model, one that is not a single program, a simulator that stops, and where
        two differ in a byte or a cycle.
    """
    if rounds < 1:
        raise VdlaError(f"rounds: expected at least 1, got {rounds!r}")
    for name in models:
        if name not in NETWORKS and not Path(name).is_file():
            known = ", ".join(NETWORKS)
            raise VdlaError(f"models: expected files or names from {known}, got {name!r}")
    return [_row(name, hw, memory, rounds) for name in told(models, progress)]


def _row(name: str, hw: HwParams, memory: MemoryParams, rounds: int) -> dict[str, Any]:
    model = NETWORKS[name](hw.batch, True) if name in NETWORKS else name
    compiled = build(model, find_target("sim", Options(hw, memory)))
    if compiled.program is None:
        raise VdlaError(f"{name}: expected a model that is one program of the accelerator")
    start = compiled.dram(random_inputs(compiled.inputs))
    simulators: dict[str, Callable[..., SimResult]] = {
        "sim": simulate,
        "rtl": build_rtl(hw),
    }
    seconds: dict[str, list[float]] = defaultdict(list)
    results: dict[str, SimResult] = {}
    for _ in range(rounds + 1):  # the first one warms up caches
        images: dict[str, np.ndarray] = {}
        for simulator, run in simulators.items():
            images[simulator] = start.copy()
            begin = time.process_time()
            results[simulator] = run(compiled.program, images[simulator], memory)
            seconds[simulator].append(time.process_time() - begin)
            seconds[f"{simulator}_wall"].append(results[simulator].wall_s)
        begin = time.process_time()
        cycles = count_cycles(compiled.program.table, memory, compiled.program.program_addr)
        seconds["timing"].append(time.process_time() - begin)
        if cycles != results["sim"].cycles:
            raise VdlaError(
                f"{name}: expected {results['sim'].cycles} cycles as simulated, the loop for "
                f"searches counts {cycles}; this is a bug of sim/model/loop.py"
            )
        check_runs(
            name,
            compiled.programs,
            {key: results[key] for key in ("sim", "rtl")},
            {key: [image] for key, image in images.items()},
        )
    median = {key: statistics.median(values[1:]) for key, values in seconds.items()}
    return {
        "model": name,
        "instructions": len(compiled.program.insns),
        "cycles": results["sim"].cycles,
        "rounds": rounds,
        "first_s": seconds["sim"][0],
        "sim_s": median["sim"],
        "timing_s": median["timing"],
        "rtl_s": median["rtl"],
        "sim_wall_s": median["sim_wall"],
        "rtl_wall_s": median["rtl_wall"],
        "rtl_cycles_per_s": results["rtl"].cycles / median["rtl"],
        "ratio": median["rtl"] / median["sim"],
        "timing_ratio": median["rtl"] / median["timing"],
    }
