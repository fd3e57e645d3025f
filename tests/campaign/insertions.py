"""Bugs of the kinds that a code generator has, put into right programs at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Gemm, Insn, Load, Param, Store, Vector, validate
from vdla.isa.opcodes import Unit, Units
from vdla.isa.program import Program

Insns = list[Insn]
#: A changed list of instructions, or None where nothing of the kind can be changed.
Insertion = Callable[[Program, np.random.Generator], Insns | None]


def insert(program: Program, insertion: Insertion, rng: np.random.Generator) -> Program | None:
    """The program with one more bug, whose instructions are legal each by itself, or None."""
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
    """An operand lies a few entries, or a few beats of DRAM, from where it should."""
    index = int(rng.integers(len(program.insns)))
    insn = program.insns[index]
    names = {
        Load: ("base", "dram_addr"), Store: ("base", "dram_addr"), Param: ("par_base",),
        Vector: ("src0_base", "src1_base", "dst_base"),
        Gemm: ("uop_begin", "acc_outer", "acc_inner", "inp_outer", "inp_inner", "wgt_outer"),
    }[type(insn)]  # fmt: skip
    name = str(rng.choice(names))
    step = int(rng.choice([-8, -4, -2, -1, 1, 2, 4, 8]))
    if name == "dram_addr":
        step *= program.params.bus_bytes
    moved = getattr(insn, name) + step
    return _with(program, index, replace(insn, **{name: moved})) if moved >= 0 else None


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
    """A dependency is forgotten: neither its push nor its pop is there."""
    pairs = token_pairs(program.insns)
    if not pairs:
        return None
    push, pop = pairs[int(rng.integers(len(pairs)))]
    giver, taker = program.insns[push], program.insns[pop]
    insns = _with(program, push, replace(giver, push=giver.push & ~Units(1 << taker.unit)))
    insns[pop] = replace(taker, pop=taker.pop & ~Units(1 << giver.unit))
    return insns


def widen_load(program: Program, rng: np.random.Generator) -> Insns | None:
    """A LOAD brings more entries than it should."""
    loads = [i for i, insn in enumerate(program.insns) if isinstance(insn, Load)]
    index = int(rng.choice(loads))
    insn = program.insns[index]
    assert isinstance(insn, Load)
    return _with(program, index, replace(insn, x_size=insn.x_size + 1 + int(rng.integers(4))))


INSERTIONS: tuple[Insertion, ...] = (move_address, swap, drop_pair, widen_load)


def single_deletions(program: Program) -> list[tuple[int, str, Program]]:
    """Instruction, side and the program without one token bit there; all of them."""
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
