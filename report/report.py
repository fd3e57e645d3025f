"""The report of a run: cycles, utilisation, roofline and stalls, per layer and in all.

Vocabulary, for a peak of batch x block_in x block_out MACs a cycle:

- *macs* are the model's own (true channels, no padding), *issued* those that the tensor core
  executed. *vector_macs* are those that the vector unit does, which has a peak of its own;
- *spatial* = the tensor core's macs / issued, *temporal* = cycles in which the tensor core issues /
  cycles, *end_to_end* = the tensor core's macs / (peak x cycles), *vector* = vector_macs / (the
  vector unit's peak x cycles);
- a layer is *active* in the cycles in which one of its instructions runs. Layers overlap, so that
  their active cycles may sum to more than the whole. Their *cycles* do not: a cycle belongs to the
  earliest layer that has not ended yet. A layer whose work hides behind that of earlier ones has
  few cycles or none. A layer's utilisation is of its active cycles;
- the roofline *bound* of a layer is the largest of the tensor core's macs / peak, the cycles that
  its iterations of the vector unit take, the bytes that it must read / bus bytes a cycle, and the
  bytes that it must write / bus bytes a cycle, because the bus reads and writes at the same time.
  It must read its operands and write its result once, unless it moves fewer bytes (a stride leaves
  some out; another layer has left them on the chip). *roofline_fraction* = bound / active cycles,
  *bound_by* is what the bound comes from; *channel_bytes* are those that it must read, or write if
  that is more;
- a layer's *dram* is what its instructions read and write; the bytes of the instructions themselves
  count in the whole alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import plugins
from .._version import __version__
from ..hw.built import find_built
from ..isa.insn import Gemm, Insn
from ..isa.memory import MemoryParams
from ..isa.notes import pack_notes
from ..isa.opcodes import Unit
from ..isa.params import PRESETS, HwParams
from ..isa.program import Program
from ..isa.regmap import named_causes
from ..runtime.executable import LayerInfo
from ..runtime.result import SimResult
from . import bounds

#: The target of a layer that the host's processor computes.
HOST = "cpu"
#: Operators that a float network does not have.
_QUANTISED = {"Dequantize", "DynamicQuantize", "Quantize"}


def join_programs(programs: Sequence[Program]) -> Program:
    """Join the instructions of several programs for a report; the result cannot run."""
    if len(programs) == 1:
        return programs[0]
    insns: list[Insn] = []
    layers: list[dict[str, Any]] = []
    notes = [note for program in programs for note in program.notes]
    for program in programs:
        for layer in program.meta["layers"]:
            runs = [(first + len(insns), last + len(insns)) for first, last in layer["runs"]]
            layers.append(layer | {"runs": runs})
        insns += program.insns
    size = sum(program.dram_bytes for program in programs)
    meta: dict[str, Any] = {"dram_bytes": size, "layers": layers}
    if notes:
        meta["names"] = pack_notes(notes) | {"constants": []}
    return replace(programs[0], insns=tuple(insns), image={}, meta=meta)


def config_name(params: HwParams) -> str:
    """A configuration as people call it: its preset, whatever the width of the bus, or its hash."""
    names = (
        name
        for name, preset in PRESETS.items()
        if replace(preset, bus_bits=params.bus_bits) == params
    )
    return next(names, params.hash)


def memory_name(memory: MemoryParams) -> str:
    """A memory as people call it: its preset, or its fields that differ from the default's."""
    if isinstance(memory.label, str):
        return memory.label
    default = MemoryParams().to_dict()
    return ", ".join(f"{k} {v}" for k, v in memory.to_dict().items() if v != default[k])


def header(
    command: str,
    params: HwParams | None = None,
    memory: MemoryParams | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """The fields that every report begins with."""
    return {
        "vdla": __version__,
        "command": command,
        "config": None if params is None else params.to_dict(),
        "config_hash": None if params is None else params.hash,
        "memory": None if memory is None else memory.label,
        "seed": seed,
        "plugins": plugins.report(),
    }


def output_report(outputs: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Shape, dtype and SHA-256 of the bytes of each output."""
    return {
        name: {
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "sha256": hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest(),
        }
        for name, array in outputs.items()
    }


def coverage(layers: Sequence[LayerInfo]) -> dict[str, int]:
    """How many of the model's MACs run on the accelerator, and how many of its operators on the
    host; an operator is a layer that computes.
    """
    operators = [layer for layer in layers if layer.computes]
    return {
        "macs_on_accelerator": sum(layer.macs for layer in layers if layer.target != HOST),
        "macs_total": sum(layer.macs for layer in layers),
        "operators_on_host": sum(layer.target == HOST for layer in operators),
        "operators_total": len(operators),
    }


def covered(coverage: Mapping[str, int]) -> float:
    """The share of the MACs that the accelerator executes; 1 without any MACs."""
    total = coverage["macs_total"]
    return coverage["macs_on_accelerator"] / total if total else 1.0


def on_host(coverage: Mapping[str, int]) -> str:
    """How many of the operators run on the host, such as ``155 of 199``."""
    return f"{coverage['operators_on_host']:,} of {coverage['operators_total']:,}"


def significant(value: float, digits: int = 6) -> str:
    """A number in so many digits, with commas between thousands; a large one whole."""
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:,.{digits}g}"


def host_text(report: Mapping[str, Any]) -> str:
    """What of a run on the accelerator or a GPU the host does, in words."""
    found, programs = report["coverage"], report["programs"]
    share = found["operators_on_host"] / max(1, found["operators_total"])
    return (
        f"{programs:,} program{'s' * (programs != 1)}; {on_host(found)} operators"
        f" ({100 * share:.1f} %) run on the host, with {100 - 100 * covered(found):.1f} % of the"
        f" MACs, in {1000 * report['host_s']:.3f} ms on this processor"
    )


def float_text(report: Mapping[str, Any]) -> str:
    """Which two commands bring a float network to the accelerator, or an empty string where its
    products run there already, or are on integers."""
    found, products = report["coverage"], [row for row in report["layers"] if row["macs"]]
    integer = any(row["op"] in _QUANTISED for row in report["layers"])
    on_host = all(row["target"] == HOST for row in products)
    if report["target"] == HOST or not products or integer or not on_host:
        return ""
    model = str(report["model"])
    stem, _, kind = model.rpartition(".")
    first = "" if kind == "onnx" else "export it as ONNX, then: "
    return (
        f"0 of {found['macs_total']:,} MACs ran on the accelerator because the network is float:"
        f" {first}vdla quantize {stem}.onnx --samples SAMPLES.npz -o {stem}_int8.onnx; vdla run"
        f" {stem}_int8.onnx"
    )


def host_report(layers: Sequence[LayerInfo]) -> dict[str, Any]:
    """The report of a run on the CPU, where nothing counts cycles."""
    return {
        "cycles": None,
        "macs": sum(layer.macs for layer in layers),
        "vector_macs": 0,
        "utilisation": None,
        "roofline_fraction": None,
        "bound_by": None,
        "layers": [_host_layer(layer) for layer in layers],
        "dram": None,
        "coverage": coverage(layers),
    }


def accelerator_report(
    layers: Sequence[LayerInfo], program: Program, memory: MemoryParams, timing: SimResult
) -> dict[str, Any]:
    """The report of one inference on the accelerator.

    A cycle belongs to the earliest layer that has not ended yet. So a layer's cycles are counted
    from the end of the last instruction of all layers before it to the end of its own last one. The
    last layer also gets the core's final cycles, so that the layers add up to the whole program.
    """
    rows: list[dict[str, Any]] = []
    last = max((i for i, layer in enumerate(layers) if layer.runs), default=-1)
    begin = 0
    for number, layer in enumerate(layers):
        if layer.runs is None:
            rows.append(_host_layer(layer))
            continue
        if not timing.ends:  # a board counts cycles, but records no ends
            rows.append(_host_layer(layer))
            continue
        insns = bounds.insns_of(layer)
        end = timing.cycles
        if number != last:
            end = max((begin, *(timing.ends[i] for i in insns)))
        rows.append(_accelerator_layer(layer, program, memory, timing, insns, end - begin))
        begin = end
    on_accelerator = [layer for layer in layers if layer.runs is not None]
    bound = bounds.Bound.of(on_accelerator, program, memory)
    return {
        "cycles": timing.cycles,
        "macs": sum(layer.macs for layer in layers),
        "vector_macs": vector_macs(on_accelerator, program),
        "utilisation": utilisation(on_accelerator, program, program.insns, timing.cycles),
        "roofline_fraction": bound.cycles / timing.cycles if timing.cycles else None,
        "bound_by": bound.by,
        "stalls": {unit: dict(causes) for unit, causes in timing.counters.items()},
        "layers": rows,
        "dram": bounds.dram_traffic(program),
        "coverage": coverage(layers),
        **timed(timing.cycles, program.params, memory),
    }


def timed(cycles: int, params: HwParams, memory: MemoryParams) -> dict[str, Any]:
    """The time of so many cycles on the board whose memory this is, as :func:`at_clock`, and
    ``clock_of``, its name; nothing where no such design was routed.
    """
    built = find_built(params, memory)
    if built is None:
        return {}
    return at_clock(cycles, params, built.mhz) | {"clock_of": built.board}


def at_clock(cycles: int, params: HwParams, mhz: float) -> dict[str, Any]:
    """``clock_mhz``, ``time_ms`` of a program of so many cycles, and ``images_per_s``, each image a
    part of the configuration's batch. The host's work is not in it.
    """
    time_ms = milliseconds(cycles, mhz)
    return {"clock_mhz": mhz, "time_ms": time_ms, "images_per_s": 1000 * params.batch / time_ms}


def milliseconds(cycles: int, mhz: float) -> float:
    """How long so many cycles take at a clock."""
    return cycles / (1000 * mhz)


def time_text(report: Mapping[str, Any]) -> str:
    """The time of a report or row, in words; an empty string where it has none."""
    if "time_ms" not in report:
        return ""
    where = f", as routed for {report['clock_of']}" if "clock_of" in report else ""
    return (
        f"{report['time_ms']:.3f} ms, {significant(report['images_per_s'], 3)} images a second at"
        f" {report['clock_mhz']:g} MHz{where}"
    )


def layer_stalls(
    program: Program, timing: SimResult, insns: Iterable[int]
) -> dict[str, dict[str, int]]:
    """Cycles of every unit, by cause, that the given instructions account for.

    The sum over all layers, plus the ``empty`` cycles of each unit after its last instruction,
    equals the counters of the whole run.
    """
    if not len(timing.causes):
        return {}
    of_unit: dict[Unit, list[int]] = {}
    for index in insns:
        of_unit.setdefault(program.insns[index].unit, []).append(index)
    return {
        unit.name.lower(): named_causes(unit, timing.causes[indices].sum(axis=0))
        for unit, indices in of_unit.items()
    }


def vector_macs(layers: Iterable[LayerInfo], program: Program) -> int:
    """MACs of layers on the accelerator that the vector unit does."""
    return sum(layer.macs - bounds.core_macs(layer, program) for layer in layers)


def roofline_macs(row: Mapping[str, Any]) -> int:
    """The MACs of a report's layer, or of all of it, under the roofline: those of the
    tensor core, or those of the vector unit where it does all.
    """
    return row["macs"] - row["vector_macs"] or row["macs"]


def utilisation(
    layers: Sequence[LayerInfo], program: Program, insns: Iterable[Insn], cycles: int
) -> dict[str, float | None]:
    """How well layers with these instructions use the tensor core and, in ``vector``, the vector
    unit, in so many cycles; None where there is nothing to use it for.
    """
    peak, vector_peak = (
        program.params.peak_macs_per_cycle, program.params.peak_vector_macs_per_cycle
    )  # fmt: skip
    iterations = sum(insn.iterations for insn in insns if isinstance(insn, Gemm))
    macs = sum(bounds.core_macs(layer, program) for layer in layers)
    others = vector_macs(layers, program)
    return {
        "spatial": macs / (iterations * peak) if iterations else None,
        "temporal": iterations / cycles if cycles else None,
        "end_to_end": macs / (peak * cycles) if cycles else None,
        "vector": others / (vector_peak * cycles) if cycles and others else None,
    }


def _host_layer(layer: LayerInfo) -> dict[str, Any]:
    return {
        "name": layer.name,
        "op": layer.op,
        "target": layer.target,
        "reason": layer.reason,
        "knobs": dict(layer.knobs),
        "chosen_by": layer.chosen_by,
        "predicted_cycles": layer.predicted_cycles,
        "cycles": None,
        "macs": layer.macs,
        "vector_macs": 0,
        "utilisation": None,
        "active_cycles": None,
        "roofline_fraction": None,
        "bound_by": None,
        "channel_bytes": None,
        "dram": None,
        "stalls": {},
        "busiest_unit": None,
        "main_stall": None,
        "kernels": list(layer.kernels),
    }


def _accelerator_layer(
    layer: LayerInfo,
    program: Program,
    memory: MemoryParams,
    timing: SimResult,
    insns: Sequence[int],
    cycles: int,
) -> dict[str, Any]:
    bound = bounds.Bound.of([layer], program, memory)
    used = [program.insns[i] for i in insns]
    active = bounds.active_cycles(timing, insns)
    stalls = layer_stalls(program, timing, insns)
    unit = max(stalls, key=lambda name: stalls[name]["busy"], default=None)
    return _host_layer(layer) | {
        "cycles": cycles,
        "active_cycles": active,
        "vector_macs": vector_macs([layer], program),
        "utilisation": utilisation([layer], program, used, active),
        "roofline_fraction": bound.cycles / active if active else None,
        "bound_by": bound.by,
        "channel_bytes": bound.channel_bytes,
        "dram": bounds.moved_bytes(used, program.params),
        "stalls": stalls,
        "busiest_unit": unit,
        "main_stall": None if unit is None else main_stall(stalls[unit]),
    }


def main_stall(causes: Mapping[str, int]) -> str | None:
    """What a unit has waited for most; None if it never waited. An empty queue is no stall: then
    the unit had nothing to do.
    """
    waits = {cause: cycles for cause, cycles in causes.items() if cause not in ("busy", "empty")}
    longest = max(waits, key=lambda cause: waits[cause], default=None)
    return longest if longest is not None and waits[longest] else None
