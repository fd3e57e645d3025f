"""The report of a deadlock: who waits for whom, at which instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..isa.opcodes import Unit
from ..isa.program import Program


def waiting_report(program: Program, starts: Sequence[int], missing: Mapping[Unit, int]) -> str:
    """One line: for every unit that waits, its next instruction and the units whose token it lacks
    (a mask per unit).
    """
    insns, parts = program.insns, []
    for unit, mask in missing.items():
        if not mask:
            continue
        index = next(i for i, insn in enumerate(insns) if insn.unit == unit and starts[i] < 0)
        others = " and ".join(u.name.lower() for u in Unit if mask >> u & 1)
        name = insns[index].opcode.name
        parts.append(f"{unit.name.lower()} at {name} {program.where(index)} waits for {others}")
    return "deadlock: " + "; ".join(parts)
