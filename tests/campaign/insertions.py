"""Bugs of the kinds that a code generator has, put into right programs at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
from vdla.isa.errors import VdlaError
from vdla.isa.footprint import GRANULE_BYTES, MicroOps, accesses
from vdla.isa.insn import Insn, Load, Param, Store, Vector, validate
from vdla.isa.opcodes import Unit, Units
from vdla.isa.program import Program

from .interleavings import ancestors

Insns = list[Insn]
#: A changed list of instructions, or None where nothing of the kind can be changed.
Insertion = Callable[[Program, np.random.Generator], Insns | None]


def insert(program: Program, insertion: Insertion, rng: np.random.Generator) -> Program | None:
    """The program with one more bug, in which each instruction by itself is legal; or None."""
    insns = insertion(program, rng)
    if insns is None or tuple(insns) == program.insns:
        return None
    try:
        for insn in insns:
            validate(insn, program.params)
    except VdlaError:
        return None
    return replace(program, insns=tuple(insns))


def move_address(program: Program, rng: np.random.Generator) -> Insns | None:
    """Move an operand to where an instruction of another unit works; no token orders the two."""
    choices = []
    for one, other in _unordered(program):
        entries = _touched(program, other)
        for memory, name in _operands(program.insns[one]):
            choices += [(one, name, entries[memory])] if memory in entries else []
    if not choices:
        return None
    index, name, entries = choices[int(rng.integers(len(choices)))]
    place = int(rng.choice(entries))
    if name == "dram_addr":
        place = place * GRANULE_BYTES // program.params.bus_bytes * program.params.bus_bytes
    return _with(program, index, replace(program.insns[index], **{name: place}))


def widen_load(program: Program, rng: np.random.Generator) -> Insns | None:
    """Let a LOAD bring more entries than it should, up to where another unit works unordered."""
    choices = []
    for one, other in _unordered(program):
        insn = program.insns[one]
        if isinstance(insn, Load):
            for entry in _touched(program, other).get(insn.memory, ()):
                more = int(entry) + 1 - (insn.base + insn.entries)
                wider = insn.x_size - -more // (insn.rows * insn.z_size)
                choices += [(one, wider)] if more > 0 else []
    if not choices:
        return None
    index, x_size = choices[int(rng.integers(len(choices)))]
    return _with(program, index, replace(program.insns[index], x_size=x_size))


def _unordered(program: Program) -> list[tuple[int, int]]:
    """Pairs of instructions of different units between which no token stands."""
    earlier = ancestors(program.insns)
    assert earlier is not None
    insns = program.insns
    return [
        (i, j)
        for i, j in product(range(len(insns)), repeat=2)
        if insns[i].unit != insns[j].unit and i not in earlier[j] and j not in earlier[i]
    ]


def _operands(insn: Insn) -> list[tuple[str, str]]:
    """Memory and address field of each operand that has one."""
    match insn:
        case Load():
            return [(insn.memory, "base"), ("dram", "dram_addr")]
        case Store():
            return [("out", "base"), ("dram", "dram_addr")]
        case Param():
            return [("par", "par_base")]
        case Vector():
            return [(getattr(insn, name), f"{name}_base") for name in ("src0", "src1", "dst")]
    return []


def _touched(program: Program, index: int) -> dict[str, np.ndarray]:
    """Entries of each memory (granules of DRAM) that an instruction reads or writes."""
    uops = MicroOps(program.params, program.image)
    for insn in program.insns[:index]:
        if isinstance(insn, Load) and insn.memory == "uop":
            uops.load(insn)
    found = accesses(program.insns[index], program.params, uops)
    return {access.memory: np.unique(access.entries) for access in found if access.entries.size}


def swap(program: Program, rng: np.random.Generator) -> Insns | None:
    """Two instructions of different units change places."""
    first = int(rng.integers(len(program.insns) - 1))
    second = min(first + 1 + int(rng.integers(4)), len(program.insns) - 1)
    insns = list(program.insns)
    if insns[first].unit == insns[second].unit:
        return None
    insns[first], insns[second] = insns[second], insns[first]
    return insns


def drop_pair(program: Program, rng: np.random.Generator) -> Insns | None:
    """Forget a dependency: drop both its push and its pop."""
    pairs = token_pairs(program.insns)
    if not pairs:
        return None
    push, pop = pairs[int(rng.integers(len(pairs)))]
    giver, taker = program.insns[push], program.insns[pop]
    insns = _with(program, push, replace(giver, push=giver.push & ~Units(1 << taker.unit)))
    insns[pop] = replace(taker, pop=taker.pop & ~Units(1 << giver.unit))
    return insns


INSERTIONS: tuple[Insertion, ...] = (move_address, swap, drop_pair, widen_load)


def single_deletions(program: Program) -> list[tuple[int, str, Program]]:
    """For every token bit: its instruction, its side (push or pop), and the program without the
    bit."""
    found = []
    for index, side, unit in product(range(len(program.insns)), ("pop", "push"), Unit):
        insn = program.insns[index]
        mask: Units = getattr(insn, side)
        if mask >> unit & 1:
            insns = _with(program, index, replace(insn, **{side: mask & ~Units(1 << unit)}))
            found.append((index, side, replace(program, insns=tuple(insns))))
    return found


def token_pairs(insns: tuple[Insn, ...]) -> list[tuple[int, int]]:
    """Pushing and popping instruction of every token."""
    pairs: list[tuple[int, int]] = []
    for giver, taker in product(Unit, Unit):
        pushes = [i for i, n in enumerate(insns) if n.unit == giver and n.push >> taker & 1]
        pops = [i for i, n in enumerate(insns) if n.unit == taker and n.pop >> giver & 1]
        pairs += zip(pushes, pops, strict=True)
    return pairs


def _with(program: Program, index: int, insn: Insn) -> Insns:
    return [*program.insns[:index], insn, *program.insns[index + 1 :]]
