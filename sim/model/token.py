"""Dependency tokens: for each ordered pair of units, when one gave the other a token.

Units run in order and tokens have no names: the n-th pop takes the token of the n-th push.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ...isa.opcodes import Unit
from .queue import Environment, History, Needs

#: The units of every mask.
UNITS_OF = tuple(tuple(unit for unit in Unit if mask >> unit & 1) for mask in range(1 << len(Unit)))


class TokenBank:
    """Tokens between units."""

    def __init__(self, env: Environment):
        self.pushed = {(giver, taker): History(env) for giver in Unit for taker in Unit}

    def given_by(self, giver: Unit) -> list[tuple[History, ...]]:
        """The counters that a unit increments, by mask."""
        return [tuple(self.pushed[giver, taker] for taker in takers) for takers in UNITS_OF]

    def needs(self, taker: Unit, pops: Iterable[int]) -> Iterator[Needs]:
        """The tokens that each instruction of a unit needs, given all their masks in order."""
        taken = [0] * len(Unit)
        for mask in pops:
            needs: Needs = ()
            for giver in UNITS_OF[mask]:
                needs = (*needs, (self.pushed[giver, taker], taken[giver]))
                taken[giver] += 1
            yield needs

    def missing(self, taker: Unit, before: Sequence[int], head: int) -> int:
        """Mask of the units whose token the instruction at the head lacks, given its mask and those
        of all before it.
        """
        lacking = 0
        for giver in UNITS_OF[head]:
            taken = sum(mask >> giver & 1 for mask in before)
            lacking |= (taken >= len(self.pushed[giver, taker])) << giver
        return lacking

    def available(self, taker: Unit, pops: Sequence[int]) -> np.ndarray:
        """Cycles from which the tokens of the first instructions of a unit can be taken, int64
        [instructions, units]; 0 where none is needed.
        """
        masks = np.array(pops, np.int64)
        cycles = np.zeros((masks.size, len(Unit)), np.int64)
        for giver in Unit:
            takes = np.flatnonzero(masks >> giver & 1)
            cycles[takes, giver] = np.array(self.pushed[giver, taker][: takes.size], np.int64) + 1
        return cycles
