"""Dependency tokens: for each ordered pair of units, when one gave the other a token.

Units run in order and tokens have no names: the n-th pop takes the token of the n-th push.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
