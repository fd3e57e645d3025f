"""A run as a Chrome trace (JSON trace events), for ui.perfetto.dev or chrome://tracing.

One process per unit and one slice per instruction, from its start to its end, both
included; a token is a flow arrow from the instruction that pushes it to the one that pops it. One
cycle is one microsecond. The units are pipelined, so an instruction may end after the next one has
started. A unit has as many threads as instructions overlap, because the format lets slices of one
thread nest, but never cross.

Instruction fetch is not shown: no result of a simulation says when an instruction was fetched.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..isa.asm import format_insn
from ..isa.opcodes import Unit
from ..isa.program import Program
from ..runtime.result import SimResult


def trace(program: Program, result: SimResult) -> dict[str, Any]:
    """The trace of one run, the same from every simulator that measures the same cycles.

    Parameters
    ----------
    program : Program
        What ran; ``meta["layers"]`` says which instructions belong to which node.
    result : SimResult
        Its starts and ends, in cycles. An instruction that never started has no slice; one that
        never ended (the core stopped) lasts until the end of the run.

    Returns
    -------
    dict
        ``otherData`` (what a microsecond is, cycles, configuration) and ``traceEvents``: metadata,
        a complete event (``ph`` X) per instruction in program order with ``index``, ``node``,
        ``op``, ``opcode``, ``stage``, ``tensor``, ``asm``, ``start`` and ``end`` in its arguments,
        then the two ends (``ph`` s and f) of each token. An event has the name of its layer, so
        that a viewer gives each layer a colour; of its opcode where the program names no layers.
    """
    threads = _threads(program, result)
    return {
        "otherData": {
            "time": "1 us is 1 cycle; a slice covers its first and its last cycle",
            "cycles": result.cycles,
            "config_hash": program.params.hash,
        },
        "traceEvents": [
            *_names(),
            *_slices(program, result, threads),
            *_flows(program, result, threads),
        ],
    }


def write_trace(path: str | Path, events: dict[str, Any]) -> None:
    """Write what :func:`trace` gave as JSON, one event a line."""
    lines = ",\n".join(json.dumps(event) for event in events["traceEvents"])
    head = json.dumps(events["otherData"])
    Path(path).write_text(f'{{"otherData": {head},\n"traceEvents": [\n{lines}\n]}}\n', "utf-8")


def token_pairs(program: Program) -> Iterator[tuple[int, int]]:
    """The instruction that pushes each token and the one that pops it.

    Units run in order and tokens have no names: the n-th pop of a unit from another takes the token
    of the n-th push. Tokens that nobody pops, and pops without a token, are left out.
    """
    pushed: dict[tuple[Unit, Unit], deque[int]] = defaultdict(deque)
    for index, insn in enumerate(program.insns):
        for taker in _units(insn.push):
            pushed[insn.unit, taker].append(index)
    for index, insn in enumerate(program.insns):
        for giver in _units(insn.pop):
            if pushed[giver, insn.unit]:
                yield pushed[giver, insn.unit].popleft(), index


def _units(mask: int) -> list[Unit]:
    return [unit for unit in Unit if mask >> unit & 1]


def _end(result: SimResult, index: int) -> int:
    return result.ends[index] if result.ends[index] >= 0 else result.cycles - 1


def _threads(program: Program, result: SimResult) -> list[int]:
    """For every instruction the first thread of its unit that is free when it starts."""
    busy_until: dict[Unit, list[int]] = {unit: [] for unit in Unit}
    threads = []
    for index, insn in enumerate(program.insns):
        ends, start = busy_until[insn.unit], result.starts[index]
        thread = next((i for i, end in enumerate(ends) if end < start), len(ends))
        if start >= 0:
            ends[thread : thread + 1] = [_end(result, index)]
        threads.append(thread)
    return threads


def _place(program: Program, threads: list[int], index: int) -> dict[str, int]:
    # Perfetto takes process 0 for the idle task of the machine.
    return {"pid": program.insns[index].unit + 1, "tid": threads[index]}


def _names() -> Iterator[dict[str, Any]]:
    """Metadata events: the unit of a process, and its place from top to bottom."""
    for unit in Unit:
        for name, key, value in (
            ("process_name", "name", unit.name.lower()),
            ("process_sort_index", "sort_index", int(unit)),
        ):
            yield {"ph": "M", "name": name, "pid": unit + 1, "tid": 0, "args": {key: value}}


def _slices(program: Program, result: SimResult, threads: list[int]) -> Iterator[dict[str, Any]]:
    nodes = {
        index: layer
        for layer in program.meta.get("layers", ())
        for first, last in layer["runs"]
        for index in range(first, last + 1)
    }
    for index, insn in enumerate(program.insns):
        start, end = result.starts[index], _end(result, index)
        if start < 0:
            continue
        layer = nodes.get(index, {})
        note = program.notes[index] if program.notes else None
        yield {
            "ph": "X",
            "name": layer.get("name") or insn.opcode.name.lower(),
            "cat": "instruction",
            **_place(program, threads, index),
            "ts": start,
            "dur": end - start + 1,
            "args": {
                "node": layer.get("name"),
                "op": layer.get("op"),
                "opcode": insn.opcode.name.lower(),
                "stage": note and note.stage,
                "tensor": (note and note.tensor) or None,
                "index": index,
                "asm": format_insn(insn),
                "start": start,
                "end": result.ends[index],
            },
        }


def _flows(program: Program, result: SimResult, threads: list[int]) -> Iterator[dict[str, Any]]:
    for number, (giver, taker) in enumerate(token_pairs(program)):
        if result.ends[giver] < 0 or result.starts[taker] < 0:
            continue
        token = {"name": "token", "cat": "token", "id": number}
        yield {"ph": "s", **token, **_place(program, threads, giver), "ts": result.ends[giver]}
        yield {
            "ph": "f", "bp": "e", **token, **_place(program, threads, taker),
            "ts": result.starts[taker],
        }  # fmt: skip
