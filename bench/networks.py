"""Whole networks on the accelerator, and on the CPU for comparison.

Those of ``workloads.py`` are built in integers. Those of ``modern.py`` are built in float, and
quantised as ``vdla quantize`` does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..compiler.build import CompiledModel, build
from ..compiler.choose.records import Records
from ..compiler.quantize import quantize
from ..compiler.targets.base import Options
from ..compiler.targets.registry import find_target
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..report.report import accelerator_report, join_programs, timed
from ..runtime.files import whole_file
from .measure import Progress, measure, told
from .modern import FULL_SIZE, MODERN, check_names, efficientnet_lite0, lstm_layers
from .quantised import make_samples
from .workloads import NETWORKS, TABLE_2, mobilenet_v2

#: Virtual threads of all networks.
VTHREADS = 2
#: Inferences on the CPU of which the median counts.
CPU_RUNS = 25
#: Builders of networks in integers and in float, by batch and whether quantised.
IN_INTEGERS: dict[str, Callable[[int, bool], onnx.ModelProto]] = {
    **NETWORKS,
    "mobilenet_v2": mobilenet_v2,
}
#: Builders of networks in float.
IN_FLOAT: dict[str, Callable[[], onnx.ModelProto]] = {
    **MODERN,
    "efficientnet_lite0": efficientnet_lite0,
    "lstm_layers": lstm_layers,
    **FULL_SIZE,
}
_LAYERS = {layer.name: layer for layer in TABLE_2}


def network_rows(
    models: Sequence[str],
    hw: HwParams,
    memory: MemoryParams,
    simulators: tuple[str, ...] = ("sim",),
    progress: Progress | None = None,
    save: Path | None = None,
    records: Path | None = None,
) -> list[dict[str, Any]]:
    """One row for each named network; for those of ``workloads.py`` if none is named. ``save`` is a
    folder for the models, NAME-int8.onnx and NAME.onnx. ``records`` are a file of them, by default
    the one that :func:`vdla.compile` uses. A network that cannot be measured, because it does not
    fit the memory, is a row with the reason (``error``); the others are measured.

    Raises VdlaError for an unknown name.
    """
    models = models or tuple(NETWORKS)
    check_names(models, (*IN_INTEGERS, *IN_FLOAT))
    found, rows = Records.find_file(records), list[dict[str, Any]]()
    for name in told(models, progress):
        try:
            rows.append(_row(name, hw, memory, simulators, save, found))
        except VdlaError as error:
            rows.append({"model": name, "error": str(error)})
    return rows


def make_model(name: str, batch: int, quantized: bool) -> onnx.ModelProto:
    """A network in int8 or in float32. Those of ``modern.py`` are for one image or sentence."""
    if name in IN_INTEGERS:
        return IN_INTEGERS[name](batch, quantized)
    return _quantised(name) if quantized else IN_FLOAT[name]()


@lru_cache(maxsize=4)
def _quantised(name: str) -> onnx.ModelProto:
    """A network of ``modern.py`` in int8: a sweep asks for one for each machine."""
    real = IN_FLOAT[name]()
    return quantize(real, make_samples(real)).model


def find_model(name: str, batch: int, quantized: bool = True) -> str | onnx.ModelProto:
    """A model by the name of its file, of a network or of a layer such as C8. ``-int8`` behind a
    name means quantised, whatever ``quantized`` says.

    Raises VdlaError for anything else.
    """
    base, quantized = name.removesuffix("-int8"), quantized or name.endswith("-int8")
    if Path(name).exists() and not Path(name).is_dir():
        return name
    if is_named(base):
        layer = _LAYERS.get(base)
        return layer.model(batch, quantized) if layer else make_model(base, batch, quantized)
    raise VdlaError(
        f"model: expected a file, one of {', '.join((*IN_INTEGERS, *IN_FLOAT))}, or a layer from"
        f" C1 to D9, got {name!r}"
    )


def is_named(name: str) -> bool:
    """Whether a network or a layer has this name."""
    return name.removesuffix("-int8") in (*_LAYERS, *IN_INTEGERS, *IN_FLOAT)


def _row(
    name: str,
    hw: HwParams,
    memory: MemoryParams,
    simulators: tuple[str, ...],
    save: Path | None,
    records: Records | None,
) -> dict[str, Any]:
    model, real_model = (make_model(name, hw.batch, quantized) for quantized in (True, False))
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        for stem, saved in ((f"{name}-int8", model), (name, real_model)):
            with whole_file(save / f"{stem}.onnx") as place:
                onnx.save_model(saved, str(place))
    found = measure(model, hw, memory, simulators, VTHREADS, records=records)
    cpu = find_target("cpu", Options(hw, memory))
    integer = build(model, cpu)
    if not all(map(np.array_equal, integer.run_cpu(found.inputs), found.outputs)):
        raise VdlaError(f"{name}: the accelerator's outputs differ from the host's")
    real = build(real_model, cpu)
    timing = next(iter(found.results.values()))
    program = join_programs(found.compiled.programs)
    body = accelerator_report(found.compiled.layers, program, memory, timing)
    return {
        "model": name,
        "error": None,
        "target": simulators[0],
        "cycles": found.cycles,
        **timed(found.cycles, hw, memory),
        "sim_cycles": found.cycles_of("sim"),
        "rtl_cycles": found.cycles_of("rtl"),
        "macs": body["macs"],
        "end_to_end": body["utilisation"]["end_to_end"],
        "coverage": body["coverage"],
        "host_s": found.host_s,
        "uncovered": [
            {"layer": layer.name, "macs": layer.macs, "reason": layer.reason}
            for layer in found.compiled.layers
            if layer.runs is None and layer.macs
        ],
        "layers": body["layers"],
        "stalls": body["stalls"],
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
