"""Dependency tokens: for each ordered pair of units the cycles from which tokens can be taken."""

from __future__ import annotations

import simpy

from ..isa.opcodes import Unit, Units


class TokenBank:
    """Tokens in flight between units."""

    def __init__(self, env: simpy.Environment):
        self.counters = {
            (giver, taker): simpy.Store(env) for giver in Unit for taker in Unit if giver != taker
        }

    def push(self, giver: Unit, takers: Units, cycle: int) -> None:
        """An instruction of ``giver`` ends in ``cycle`` and gives a token to each of ``takers``."""
        for taker in Unit:
            if takers >> taker & 1:
                self.counters[giver, taker].put(cycle + 1)

    def empty(self, giver: Unit, taker: Unit) -> bool:
        """Whether no token waits."""
        return not self.counters[giver, taker].items
