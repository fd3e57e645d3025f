"""The static checker finds what a program may do wrong, without running it.

It checks the legality of each instruction; tokens (deadlocks, leftovers, overflows) with
``order.py``; and accesses to memory with ``hazards.py``. The meaning of a program is that its
instructions run one by one in program order.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from .errors import VdlaError
from .findings import Finding
from .hazards import memory_findings
from .insn import fault
from .opcodes import Unit
from .order import Order, execute_order, possible_overflow
from .program import Program


def check(program: Program, dram: np.ndarray | None = None, limit: int = 100) -> list[Finding]:
    """Everything wrong with a program, in the order in which it is found.

    Parameters
    ----------
    program : Program
        What to check.
    dram : numpy.ndarray, optional
        uint8, the contents of DRAM at the start, by default ``program.dram_image()``. Micro-ops are
        read from it.
    limit : int
        Stop after this many findings.
    """
    findings = _legality(program, limit)
    if findings:
        return [_named(finding, program) for finding in findings]
    order = execute_order(program.insns, program.params)
    findings += _tokens(program, order)
    findings += memory_findings(program, order, dram, limit)
    return [_named(finding, program) for finding in findings[:limit]]


def _named(finding: Finding, program: Program) -> Finding:
    """The finding together with what its instruction is for, if the program has notes."""
    where = program.where(finding.instruction)
    if not program.notes or where in finding.detail:
        return finding
    return replace(finding, detail=f"{where}: {finding.detail}")


def _legality(program: Program, limit: int) -> list[Finding]:
    with suppress(VdlaError):
        program.encoded()  # validates every instruction
        return []
    findings: list[Finding] = []
    for index, insn in enumerate(program.insns):
        if (reason := fault(insn, program.params)) is not None:
            findings.append(Finding.at("illegal", index, insn, reason))
            if len(findings) == limit:
                break
    return findings


# ---- tokens ----


def _tokens(program: Program, order: Order) -> list[Finding]:
    insns = program.insns
    findings = []
    for unit, waiting in order.waiting.items():
        names = ", ".join(_whereabouts(source, program, order) for source in waiting.missing)
        mine = f"{unit.name.lower()} waits for ever at {program.where(waiting.instruction)}"
        detail = f"{mine} for {names}"
        findings.append(
            Finding.at("deadlock", waiting.instruction, insns[waiting.instruction], detail)
        )
    if order.blocked is not None:
        insn = insns[order.blocked]
        detail = f"never dispatched, the queue of {insn.unit.name.lower()} stays full"
        findings.append(Finding.at("deadlock", order.blocked, insn, detail))
    for left in () if order.stuck else order.leftovers:
        insn = insns[left.instruction]
        detail = f"its token for {left.unit.name.lower()} is never taken"
        findings.append(Finding.at("tokens", left.instruction, insn, detail))
    for index, target in possible_overflow(program.params, order).items():
        most = 2**program.params.token_bits - 1
        detail = f"more than {most} tokens for {target.name.lower()} may wait; raise token_bits"
        findings.append(Finding.at("overflow", index, insns[index], detail))
    return findings


def _whereabouts(source: Unit, program: Program, order: Order) -> str:
    name = source.name.lower()
    if (waiting := order.waiting.get(source)) is not None:
        return f"a token of {name}, which itself waits at {program.where(waiting.instruction)}"
    if order.started[source] < len(order.by_unit[source]):
        return f"a token of {name}, whose next instruction is never dispatched"
    return f"a token of {name}, which has ended all its instructions"
