"""Co-verification: random programs through the reference, the SimPy model and the RTL; every byte,
every cycle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..isa.asm import format_insn
from ..isa.memory import MemoryParams
from ..isa.params import MEMORIES, HwParams
from ..isa.program import Program
from ..isa.reference import State
from ..isa.reference import run as run_reference
from .core import simulate
from .random_programs import random_program
from .result import SimResult
from .rtl import RtlSimulator

#: Runs a program on the RTL, or on something that claims to behave like it.
Simulator = Callable[[Program, np.ndarray, MemoryParams], SimResult]
#: A random program that takes longer than this has hung.
MAX_CYCLES = 2_000_000


def verify(
    params: HwParams,
    memory: MemoryParams,
    programs: int,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    rtl: Simulator | None = None,
    sim: Simulator = simulate,
) -> dict[str, Any]:
    """Compare the three on ``programs`` random programs, seeds ``seed``, ``seed + 1``, ...

    Returns the fields of ``vdla verify --json``: programs, instructions, cycles, byte_mismatches,
    cycle_mismatches, max_cycle_error, first_divergence (None, or program, unit, instruction, text,
    what differs and both values).
    """
    memory.check_bus(params)
    rtl = rtl or _rtl(params)
    totals = {"programs": 0, "instructions": 0, "cycles": 0, "byte_mismatches": 0,
              "cycle_mismatches": 0, "max_cycle_error": 0}  # fmt: skip
    first: dict[str, Any] | None = None
    for number in range(programs):
        program = random_program(params, seed + number)
        found = compare(program, program.dram_image(), memory, rtl, sim)
        totals["programs"] += 1
        totals["instructions"] += len(program.insns)
        totals["cycles"] += found.pop("cycles")
        divergence = found.pop("first_divergence")
        totals["max_cycle_error"] = max(totals["max_cycle_error"], found.pop("max_cycle_error"))
        for key, count in found.items():
            totals[key] += count
        if first is None and divergence is not None:
            first = {"program": seed + number, **divergence}
        if progress is not None:
            progress(number + 1, programs)
    return totals | {"first_divergence": first}


def _rtl(params: HwParams) -> Simulator:
    simulator = RtlSimulator(params)
    return lambda program, dram, memory: simulator.run(program, dram, memory, MAX_CYCLES)


def compare(
    program: Program,
    dram: np.ndarray,
    memory: MemoryParams,
    rtl: Simulator,
    sim: Simulator = simulate,
) -> dict[str, Any]:
    """One program through all three: counts of differences, and the first of them."""
    memories = {name: dram.copy() for name in ("reference", "sim", "rtl")}
    state = run_reference(program, memories["reference"])
    sim_result = sim(program, memories["sim"], memory)
    rtl_result = rtl(program, memories["rtl"], memory)
    divergence = _stops(sim_result, rtl_result) or _cycles(program, sim_result, rtl_result)
    pairs = list(zip(_moments(sim_result), _moments(rtl_result), strict=True))
    wrong = [abs(a - b) for a, b in pairs if a != b]
    contents = {
        "reference": _contents(state, memories["reference"]),
        "sim": sim_result.scratchpads | {"dram": memories["sim"]},
        "rtl": rtl_result.scratchpads | {"dram": memories["rtl"]},
    }
    bytes_wrong = 0
    for name in (*MEMORIES, "dram"):
        for other in ("sim", "rtl"):
            expected, got = contents["reference"][name], contents[other][name]
            if name == "uop":
                expected, got = (
                    _stored_uops(expected, program.params),
                    _stored_uops(got, program.params),
                )
            differs = expected.reshape(-1) != got.reshape(-1)
            bytes_wrong += int(differs.sum())
            if differs.any() and divergence is None:
                divergence = _byte(name, other, expected, got)
    return {
        "cycles": rtl_result.cycles,
        "byte_mismatches": bytes_wrong,
        "cycle_mismatches": len(wrong) + (sim_result.counters != rtl_result.counters),
        "max_cycle_error": max(wrong, default=0),
        "first_divergence": divergence,
    }


def _contents(state: State, dram: np.ndarray) -> dict[str, np.ndarray]:
    return state.scratchpads() | {"dram": dram}


def _stored_uops(entries: np.ndarray, params: HwParams) -> np.ndarray:
    """Micro-ops without the bits above their layout, which the hardware does not store."""
    words = np.zeros((entries.shape[0], 8), np.uint8)
    words[:, : entries.shape[1]] = entries
    return words.view("<u8") & np.uint64((1 << params.uop_bits) - 1)


def _moments(result: SimResult) -> list[int]:
    return [*result.starts, *result.ends, result.cycles]


def _stops(sim: SimResult, rtl: SimResult) -> dict[str, Any] | None:
    if sim.status == rtl.status:
        return None
    return {
        "what": "status",
        "sim": sim.status.name,
        "rtl": rtl.status.name,
        "instruction": rtl.error_index,
    }


def _cycles(program: Program, sim: SimResult, rtl: SimResult) -> dict[str, Any] | None:
    """The difference that happens first in time, or else the first counter that differs."""
    found = []
    for what in ("starts", "ends"):
        for index, (a, b) in enumerate(zip(getattr(sim, what), getattr(rtl, what), strict=True)):
            if a != b:
                found.append((min(x for x in (a, b) if x >= 0), what[:-1], index, a, b))
    if found:
        _, what, index, a, b = min(found)
        insn = program.insns[index]
        return {"unit": insn.unit.name.lower(), "instruction": index, "text": format_insn(insn),
                "what": f"{what} cycle", "sim": a, "rtl": b}  # fmt: skip
    for unit, causes in sim.counters.items():
        for cause, cycles in causes.items():
            if cycles != rtl.counters[unit][cause]:
                return {
                    "unit": unit,
                    "what": f"counter {cause}",
                    "sim": cycles,
                    "rtl": rtl.counters[unit][cause],
                }
    return None


def _byte(name: str, other: str, expected: np.ndarray, got: np.ndarray) -> dict[str, Any]:
    position = tuple(int(i) for i in np.argwhere(expected != got)[0])
    return {
        "what": f"{name} contents",
        "address": list(position),
        "reference": int(expected[position]),
        other: int(got[position]),
    }
