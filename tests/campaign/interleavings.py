"""What a program may do besides what it means: an oracle that shares no code with ``isa/check.py``.

Tokens leave the units free to run in many orders. A program is right if each order gives the bytes
of program order. Here orders are tried out on the reference interpreter: one that gives other bytes
proves a hazard, whatever the checker says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from vdla.isa.insn import Insn
from vdla.isa.opcodes import Unit
from vdla.isa.program import Program
from vdla.isa.reference import AddressError, State, execute

Order = list[int]


def other_bytes(program: Program) -> Order | None:
    """An order that tokens allow and that leaves other bytes than program order does, or None.

    Queues must be as deep as the program is long: then nothing but tokens holds a unit back.
    Raises AddressError where program order itself accesses beyond a memory.
    """
    assert program.params.queue_depth >= len(program.insns)
    earlier = ancestors(program.insns)
    if earlier is None:
        return None  # a deadlock; it never gives any bytes
    meant = _bytes(program, range(len(program.insns)))
    for order in _orders(earlier):
        try:
            different = _bytes(program, order) != meant
        except AddressError:
            different = True  # the core stops, where it would not in program order
        if different:
            return order
    return None


def stuck(insns: Sequence[Insn]) -> bool:
    """Whether tokens are missing, or wait for one another in a circle."""
    return ancestors(insns) is None


def ancestors(insns: Sequence[Insn]) -> list[set[int]] | None:
    """What must have ended before each instruction starts; None where one never starts."""
    direct: list[set[int]] = [set() for _ in insns]
    for unit in Unit:
        mine = [i for i, insn in enumerate(insns) if insn.unit == unit]
        for before, after in pairwise(mine):
            direct[after].add(before)
        for taker in Unit:
            pushes = [i for i in mine if insns[i].push >> taker & 1]
            pops = [i for i, n in enumerate(insns) if n.unit == taker and n.pop >> unit & 1]
            if len(pops) > len(pushes):
                return None
            for push, pop in zip(pushes, pops, strict=False):
                direct[pop].add(push)
    found: list[set[int]] = [set() for _ in insns]
    ended: set[int] = set()
    while len(ended) < len(insns):
        ready = [i for i in range(len(insns)) if i not in ended and direct[i] <= ended]
        if not ready:
            return None
        for i in ready:
            found[i] = direct[i].union(*(found[k] for k in direct[i]))
        ended |= set(ready)
    return found


def _orders(earlier: list[set[int]]) -> Iterator[Order]:
    """For each instruction, the order in which it runs as early as it may, and as late."""

    def sort(chosen: Sequence[int]) -> Order:
        """Sort by the number of ancestors, of which a descendant always has more; else as in the
        program."""
        return sorted(chosen, key=lambda i: (len(earlier[i]), i))

    everything = range(len(earlier))
    yield sort(everything)
    for one in everything:
        before = earlier[one] | {one}
        yield sort([*before]) + sort([i for i in everything if i not in before])
        after = {i for i in everything if one in earlier[i]} | {one}
        yield sort([i for i in everything if i not in after]) + sort([*after])


def _bytes(program: Program, order: Sequence[int]) -> dict[str, bytes]:
    """All memories after the instructions ran one by one in an order."""
    state = State(program.params, program.dram_image())
    for index in order:
        execute(program.insns[index], state)
    contents: dict[str, np.ndarray] = state.scratchpads() | {"dram": state.dram}
    return {name: array.tobytes() for name, array in contents.items()}
