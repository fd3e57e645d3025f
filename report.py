"""The report of a run: cycles, utilisation, roofline and stalls, per layer and in all.

Vocabulary, for a peak of batch x block_in x block_out MACs a cycle:

- *macs* are the model's own (true channels, no padding), *issued* those that the tensor core
  executed;
- *spatial* = macs / issued, *temporal* = cycles in which the tensor core issues / cycles,
  *end_to_end* = macs / (peak x cycles);
- the roofline bound of a layer is max(macs / peak, compulsory bytes / bus bytes a cycle), and its
  *roofline_fraction* = bound / cycles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from ._version import __version__
from .isa.insn import Gemm, Insn, Load, Store
from .isa.memory import MemoryParams
from .isa.notes import pack_notes
from .isa.opcodes import Unit
from .isa.params import HwParams
from .isa.program import Program
from .isa.regmap import named_causes

#: Counters of one run: unit, then cause, then cycles.
Counters = Mapping[str, Mapping[str, int]]


class Layer(Protocol):
    """What the report reads of one layer of a compiled model."""

    @property
    def name(self) -> str:
        """The node in the model."""
        ...

    @property
    def op(self) -> str:
        """The operator."""
        ...

    @property
    def target(self) -> str:
        """``accel`` or ``cpu``."""
        ...

    @property
    def reason(self) -> str:
        """Why it runs there."""
        ...

    @property
    def macs(self) -> int:
        """Useful multiply-accumulates."""
        ...

    @property
    def compulsory_bytes(self) -> int:
        """Bytes of its operands and its result, each once."""
        ...

    @property
    def knobs(self) -> Mapping[str, int | str | bool]:
        """The knobs that were chosen for it."""
        ...

    @property
    def chosen_by(self) -> str:
        """Who chose: user, record, planner or default; empty where there was no choice."""
        ...

    @property
    def predicted_cycles(self) -> int | None:
        """What a cost model predicts for the choice, if there is one."""
        ...

    @property
    def runs(self) -> Sequence[tuple[int, int]] | None:
        """Its instructions: first and last, both inclusive, of every unbroken run; None on the
        host."""
        ...


class Timing(Protocol):
    """What the report reads of the result of a simulation."""

    @property
    def cycles(self) -> int:
        """Cycles of the whole program."""
        ...

    @property
    def ends(self) -> Sequence[int]:
        """The cycle in which each instruction ended; empty if it was not recorded."""
        ...

    @property
    def causes(self) -> np.ndarray:
        """int64 [instructions, causes]: for each instruction, the cycles of its unit by cause; no
        rows if the simulator does not record them."""
        ...

    @property
    def counters(self) -> Counters:
        """Where the cycles of every unit went."""
        ...


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


def coverage(layers: Sequence[Layer]) -> dict[str, int]:
    """How many of the model's MACs run on the accelerator."""
    return {
        "macs_on_accelerator": sum(layer.macs for layer in layers if layer.runs is not None),
        "macs_total": sum(layer.macs for layer in layers),
    }


def host_report(layers: Sequence[Layer]) -> dict[str, Any]:
    """The report of a run on the CPU, where nothing counts cycles."""
    return {
        "cycles": None,
        "macs": sum(layer.macs for layer in layers),
        "utilisation": None,
        "roofline_fraction": None,
        "layers": [_host_layer(layer) for layer in layers],
        "dram": None,
        "coverage": coverage(layers),
    }


def accelerator_report(
    layers: Sequence[Layer], program: Program, memory: MemoryParams, timing: Timing
) -> dict[str, Any]:
    """The report of one inference on the accelerator.

    A layer's cycles are counted from the end of the previous layer's last instruction to the end of
    its own last one. The last layer also gets the core's final cycles, so that the layers add up to
    the whole program.
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
        insns = [i for first, stop in layer.runs for i in range(first, stop + 1)]
        end = timing.cycles
        if number != last:
            end = max((begin, *(timing.ends[i] for i in insns)))
        row = _accelerator_layer(layer, program, memory, insns, end - begin)
        rows.append(row | {"stalls": layer_stalls(program, timing, insns)})
        begin = end
    on_accelerator = [layer for layer in layers if layer.runs is not None]
    macs = sum(layer.macs for layer in on_accelerator)
    bound = sum(roofline_cycles(layer, program.params, memory) for layer in on_accelerator)
    return {
        "cycles": timing.cycles,
        "macs": sum(layer.macs for layer in layers),
        "utilisation": _utilisation(
            macs, _gemm_iterations(program.insns), program.params, timing.cycles
        ),
        "roofline_fraction": bound / timing.cycles if timing.cycles else None,
        "stalls": {unit: dict(causes) for unit, causes in timing.counters.items()},
        "layers": rows,
        "dram": dram_traffic(program),
        "coverage": coverage(layers),
    }


def layer_stalls(
    program: Program, timing: Timing, insns: Iterable[int]
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


def dram_traffic(program: Program) -> dict[str, int]:
    """Bytes that one run of a program reads (data and instructions) and writes."""
    params = program.params
    read = len(program.insns) * params.insn_bytes
    written = 0
    for insn in program.insns:
        match insn:
            case Load():
                entries = insn.x_size * insn.y_size * insn.z_size
                read += entries * insn.dram_entry_bytes(params)
            case Store():
                written += insn.entries * params.entry_bytes("out")
    return {"read_bytes": read, "written_bytes": written}


def roofline_cycles(layer: Layer, params: HwParams, memory: MemoryParams) -> float:
    """The least cycles that a layer can take: all MACs at peak, or each byte once over the bus."""
    bytes_per_cycle = params.bus_bytes / memory.cycles_per_beat
    return max(layer.macs / params.peak_macs_per_cycle, layer.compulsory_bytes / bytes_per_cycle)


def _gemm_iterations(insns: Iterable[Insn]) -> int:
    return sum(insn.iterations for insn in insns if isinstance(insn, Gemm))


def _utilisation(
    macs: int, iterations: int, params: HwParams, cycles: int
) -> dict[str, float | None]:
    peak = params.peak_macs_per_cycle
    return {
        "spatial": macs / (iterations * peak) if iterations else None,
        "temporal": iterations / cycles if cycles else None,
        "end_to_end": macs / (peak * cycles) if cycles else None,
    }


def _host_layer(layer: Layer) -> dict[str, Any]:
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
        "utilisation": None,
        "roofline_fraction": None,
        "stalls": {},
    }


def _accelerator_layer(
    layer: Layer, program: Program, memory: MemoryParams, insns: Sequence[int], cycles: int
) -> dict[str, Any]:
    params = program.params
    bound = roofline_cycles(layer, params, memory)
    iterations = _gemm_iterations(program.insns[i] for i in insns)
    return _host_layer(layer) | {
        "cycles": cycles,
        "utilisation": _utilisation(layer.macs, iterations, params, cycles),
        "roofline_fraction": bound / cycles if cycles else None,
    }
