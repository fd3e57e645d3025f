"""Co-verification: random programs through the reference, the SimPy model and the RTL; every byte,
every cycle; on several workers, each of which takes programs of some seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...isa.asm import format_insn
from ...isa.memory import MemoryParams
from ...isa.params import MEMORIES, HwParams
from ...isa.program import Program
from ...isa.reference import run as run_reference
from ...runtime.result import SimResult
from ...runtime.workers import Workers
from ..coverage.coverage import Coverage
from ..model.core import simulate
from ..rtl.driver import HangError, RtlSimulator, Waves
from .random_programs import random_program
from .steered import choose_holes, steered_program

#: Runs a program on the RTL, or on something that claims to behave like it.
Simulator = Callable[[Program, np.ndarray, MemoryParams], SimResult]
#: A random program that takes longer than this has hung.
MAX_CYCLES = 2_000_000
#: Programs whose coverage is collected, besides those that are drawn towards its holes; later ones
#: hardly hit anything new.
SAMPLED_PROGRAMS = 100
#: Programs that are drawn towards holes in the coverage, at most.
STEERED_PROGRAMS = 200
#: What a worker must have.
DEVICE = "vdla-rtl"
#: Programs that a worker runs at a time.
SHARE_PROGRAMS = 20
#: Cycles of a waveform on either side of the difference that it shows.
WAVE_CYCLES = 100


def verify(
    params: HwParams,
    memory: MemoryParams,
    programs: int,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    rtl: Simulator | None = None,
    sim: Simulator = simulate,
    coverage: Coverage | None = None,
) -> dict[str, Any]:
    """Compare reference, model and RTL on ``programs`` random programs, of seeds ``seed``, ``seed +
    1``, ...

    ``coverage`` counts what the first SAMPLED_PROGRAMS hit on the RTL. Further programs are then
    drawn towards its holes, until there are none, or STEERED_PROGRAMS have run.

    Returns the fields of ``vdla verify --json``: programs, steered_programs, instructions and
    cycles (of the former), byte_mismatches, cycle_mismatches, max_cycle_error, first_divergence
    (None, or the program's seed, the bins that it was drawn towards, what differs, its values on
    both sides, and where: see :func:`locate`).
    """
    memory.check_bus(params)
    both = Simulators(rtl or _rtl(params), sim, memory)
    totals = {"programs": 0, "steered_programs": 0, "instructions": 0, "cycles": 0,
              "byte_mismatches": 0, "cycle_mismatches": 0, "max_cycle_error": 0}  # fmt: skip
    first: dict[str, Any] | None = None
    for named in _names(programs, seed, coverage):
        program = named_program(params, named)
        runs = both.run(program, program.dram_image())
        found = _counts(runs)
        cycles = found.pop("cycles")
        if named["wanted"]:
            totals["steered_programs"] += 1
        else:
            totals["programs"] += 1
            totals["instructions"] += len(program.insns)
            totals["cycles"] += cycles
        totals["max_cycle_error"] = max(totals["max_cycle_error"], found.pop("max_cycle_error"))
        for key, count in found.items():
            totals[key] += count
        divergence = _divergence(runs) if first is None else None
        if divergence is not None:
            first = {**named, **locate(runs, divergence, both)}
        sampled = bool(named["wanted"]) or totals["programs"] <= SAMPLED_PROGRAMS
        if coverage is not None and sampled and not isinstance(runs.rtl, HangError):
            coverage.sample(program, program.dram_image(), runs.rtl)
        if progress is not None:
            progress(totals["programs"], programs)
    if coverage is not None:
        sampled = min(programs, SAMPLED_PROGRAMS) + totals["steered_programs"]
        coverage.ran("verify", "rtl", seed, sampled)
    return totals | {"first_divergence": first}


def verify_on(
    workers: Workers,
    params: HwParams,
    memory: MemoryParams,
    programs: int,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    coverage: Coverage | None = None,
) -> dict[str, Any]:
    """As :func:`verify`, with the same result. Programs that add to the ``coverage`` run in this
    process, because what is drawn depends on the programs before.
    """
    memory.check_bus(params)
    RtlSimulator(params)  # builds the RTL, which workers on this machine then find
    here = 0 if coverage is None else min(programs, SAMPLED_PROGRAMS)
    firsts = range(here, programs, SHARE_PROGRAMS)
    items = [
        (params, memory, min(SHARE_PROGRAMS, programs - first), seed + first) for first in firsts
    ]
    running = workers.each(verify, items)
    shares: dict[int, dict[str, Any]] = {}
    done = 0
    if coverage is not None:
        tell = None if progress is None else lambda count, _: progress(count, programs)
        shares[-1] = verify(params, memory, here, seed, tell, coverage=coverage)
        done = here
    for index, share in running:
        shares[index] = share
        done += share["programs"]
        if progress is not None:
            progress(done, programs)
    return _together([shares[index] for index in sorted(shares)])


def _together(shares: list[dict[str, Any]]) -> dict[str, Any]:
    """One report of several, in the order of their seeds."""
    largest = max(share["max_cycle_error"] for share in shares)
    counts = {
        key: sum(share[key] for share in shares)
        for key in shares[0]
        if key not in ("max_cycle_error", "first_divergence")
    }
    found = [first for share in shares if (first := share["first_divergence"]) is not None]
    # Steered programs come after all others.
    found.sort(key=lambda first: bool(first["wanted"]))
    return counts | {"max_cycle_error": largest, "first_divergence": next(iter(found), None)}


def _names(programs: int, seed: int, coverage: Coverage | None) -> Iterator[dict[str, Any]]:
    """What :func:`named_program` makes programs of. Holes are looked up when a program is
    asked for.
    """
    for number in range(programs):
        yield {"program": seed + number, "wanted": []}
    for number in range(STEERED_PROGRAMS if coverage is not None else 0):
        if holes := coverage.holes() if coverage is not None else []:
            wanted = choose_holes(holes, seed + number)
            yield {"program": seed + number, "wanted": [list(bin_) for bin_ in wanted]}


def named_program(params: HwParams, named: dict[str, Any]) -> Program:
    """The program of a divergence: by its seed and, if it was steered, the bins that it was drawn
    towards.
    """
    if named["wanted"]:
        wanted = [(group, bin_name) for group, bin_name in named["wanted"]]
        return steered_program(params, named["program"], wanted)
    return random_program(params, named["program"])


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
    runs = Simulators(rtl, sim, memory).run(program, dram)
    return _counts(runs) | {"first_divergence": _divergence(runs)}


# ---- running ----


@dataclass(frozen=True)
class Runs:
    """One program through all three, and the memories (by simulator, then name) that they left;
    those of the RTL are missing where it hung.
    """

    program: Program
    sim: SimResult
    rtl: SimResult | HangError
    contents: dict[str, dict[str, np.ndarray]]


@dataclass(frozen=True)
class Simulators:
    """The two that are compared, with the memory behind them."""

    rtl: Simulator
    sim: Simulator
    memory: MemoryParams

    def run(self, program: Program, dram: np.ndarray) -> Runs:
        """A program through the reference and both of them; ``dram`` is left as it is."""
        memories = {name: dram.copy() for name in ("reference", "sim", "rtl")}
        state = run_reference(program, memories["reference"])
        sim = self.sim(program, memories["sim"], self.memory)
        contents = {
            "reference": state.scratchpads() | {"dram": memories["reference"]},
            "sim": sim.scratchpads | {"dram": memories["sim"]},
        }
        try:
            rtl = self.rtl(program, memories["rtl"], self.memory)
        except HangError as hang:
            return Runs(program, sim, hang, contents)
        contents["rtl"] = rtl.scratchpads | {"dram": memories["rtl"]}
        return Runs(program, sim, rtl, contents)


# ---- comparing ----


def _counts(runs: Runs) -> dict[str, Any]:
    """How many bytes and cycles differ."""
    pairs = list(zip(_moments(runs.sim), _moments(runs.rtl), strict=True))
    wrong = [abs(a - b) for a, b in pairs if a != b]
    return {
        "cycles": runs.rtl.cycles,
        "byte_mismatches": sum(
            int((expected != got).sum()) for _, _, expected, got in _memories(runs)
        ),
        "cycle_mismatches": len(wrong) + bool(_counters(runs)),
        "max_cycle_error": max(wrong, default=0),
    }


def _memories(runs: Runs) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    """Memory, simulator, what the reference left in it and what the simulator did."""
    for name in (*MEMORIES, "dram"):
        expected = runs.contents["reference"][name]
        for other in (key for key in runs.contents if key != "reference"):
            got = runs.contents[other][name]
            if name == "uop":
                params = runs.program.params
                yield name, other, _stored_uops(expected, params), _stored_uops(got, params)
            else:
                yield name, other, expected, got


def _stored_uops(entries: np.ndarray, params: HwParams) -> np.ndarray:
    """Micro-ops without the bits above their layout, which the hardware does not store."""
    words = np.zeros((entries.shape[0], 8), np.uint8)
    words[:, : entries.shape[1]] = entries
    return words.view("<u8") & np.uint64((1 << params.uop_bits) - 1)


def _moments(result: SimResult | HangError) -> list[int]:
    return [*result.starts, *result.ends, result.cycles]


# ---- the first difference ----


def _divergence(runs: Runs) -> dict[str, Any] | None:
    """What differs first: how the core stopped, a cycle, a counter, a byte; None if nothing."""
    return _stops(runs) or _cycles(runs) or _counters(runs) or _bytes(runs)


def locate(runs: Runs, divergence: dict[str, Any], both: Simulators) -> dict[str, Any]:
    """A divergence with the first instruction that differs, and when both sides ran it.

    A differing cycle belongs to an instruction already. A differing byte or counter shows only at
    the end of a program. So the program is cut after each of its instructions in turn; tokens come
    from earlier instructions, so that each part runs. The last instruction of the first part that
    differs is the culprit, and memories then hold its values, before other instructions overwrite
    or spread them.

    Returns
    -------
    dict
        The divergence with ``instruction`` (index), ``unit``, ``text`` (assembly), ``for`` (layer,
        stage and tensor, if the program names them), ``starts`` and ``ends`` (of both sides, in
        cycles; -1 where that did not happen) and ``cycle``, the start.
    """
    program = runs.program
    for count in range(1, len(program.insns) + 1) if "instruction" not in divergence else ():
        part = replace(program, insns=program.insns[:count])
        found = _divergence(both.run(part, program.dram_image()))
        if found is not None:
            divergence = {"instruction": count - 1, **found}
            break
    index = divergence["instruction"]
    insn = program.insns[index]
    moments = {
        name: {"sim": getattr(runs.sim, name)[index], "rtl": getattr(runs.rtl, name)[index]}
        for name in ("starts", "ends")
    }
    begun = [cycle for cycle in moments["starts"].values() if cycle >= 0]
    return {
        **divergence,
        "unit": insn.unit.name.lower(),
        "text": format_insn(insn),
        "for": str(program.notes[index]) if program.notes else None,
        **moments,
        "cycle": min(begun, default=min(runs.sim.cycles, runs.rtl.cycles)),
    }


def _stops(runs: Runs) -> dict[str, Any] | None:
    if isinstance(runs.rtl, HangError) or runs.sim.status == runs.rtl.status:
        return None
    where = {} if runs.rtl.error_index is None else {"instruction": runs.rtl.error_index}
    return {"what": "status", "sim": runs.sim.status.name, "rtl": runs.rtl.status.name} | where


def _cycles(runs: Runs) -> dict[str, Any] | None:
    """The start or end whose difference happens first in time."""
    found = []
    for what in ("starts", "ends"):
        pairs = zip(getattr(runs.sim, what), getattr(runs.rtl, what), strict=True)
        for index, (a, b) in enumerate(pairs):
            if a != b:
                found.append((min(x for x in (a, b) if x >= 0), what[:-1], index, a, b))
    if not found:
        return None
    _, what, index, a, b = min(found)
    return {"what": f"{what} cycle", "instruction": index, "sim": a, "rtl": b}


def _counters(runs: Runs) -> dict[str, Any] | None:
    """The first counter that differs, or else the cycles of the whole program."""
    if isinstance(runs.rtl, HangError):
        return {"what": "end of the program", "sim": runs.sim.cycles, "rtl": -1}
    for unit, causes in runs.sim.counters.items():
        for cause, cycles in causes.items():
            if cycles != runs.rtl.counters[unit][cause]:
                return {
                    "what": f"counter {cause} of {unit}",
                    "sim": cycles,
                    "rtl": runs.rtl.counters[unit][cause],
                }
    if runs.sim.cycles != runs.rtl.cycles:
        return {"what": "cycles", "sim": runs.sim.cycles, "rtl": runs.rtl.cycles}
    return None


def _bytes(runs: Runs) -> dict[str, Any] | None:
    for name, other, expected, got in _memories(runs):
        if (expected != got).any():
            position = tuple(int(i) for i in np.argwhere(expected != got)[0])
            return {
                "what": f"{name} contents",
                "address": list(position),
                "reference": int(expected[position]),
                other: int(got[position]),
            }
    return None


def save_divergence(
    directory: str | Path,
    params: HwParams,
    memory: MemoryParams,
    first: dict[str, Any],
    rtl: RtlSimulator | None = None,
) -> dict[str, Any]:
    """Save what shows a divergence that :func:`verify` found: ``divergence.vdla``, the program, and
    ``divergence.vcd``, the signals of the RTL from WAVE_CYCLES before its instruction starts to as
    many after the last moment at which the two sides differ in it.

    Returns the fields of ``first_divergence`` that say so: ``saved`` (file names by kind) and
    ``waves_cycles`` (first and last).
    """
    root = Path(directory)
    root.mkdir(parents=True, exist_ok=True)
    program = named_program(params, first)
    saved = {"program": root / "divergence.vdla", "waves": root / "divergence.vcd"}
    program.save(saved["program"])
    begin = max(0, first["cycle"] - WAVE_CYCLES)
    end = max(first["cycle"], *first["ends"].values()) + WAVE_CYCLES
    # A core that hangs has passed the window long before.
    with suppress(HangError):
        (rtl or RtlSimulator(params)).run(
            program, program.dram_image(), memory, MAX_CYCLES, Waves(saved["waves"], begin, end)
        )
    files = {kind: str(path) for kind, path in saved.items()}
    return {"saved": files, "waves_cycles": [begin, end]}
